"""Two claims on one field fail a request."""

import pytest

from nri_plugin.wire.nri.messages import ContainerUpdate, Resources
from tests.lab.runtime.adjusting import FIELDS, Ownership


@pytest.mark.parametrize("name", FIELDS)
def test_a_second_claim_fails_the_request_even_with_an_equal_value(name: str) -> None:
    owners = Ownership()
    claim = Resources(**{name: "0" if name in {"cpus", "mems"} else 0})
    assert owners.claim("10-a", "c1", claim) == owners.claim("10-a", "c2", claim) == ""
    assert owners.claim("20-b", "c1", claim) == f'plugins "20-b" and "10-a" both tried to set {FIELDS[name]}'


def test_variables_and_page_sizes_are_owned_one_by_one() -> None:
    owners, pages = Ownership(), Resources(hugepage_limits=(("2MB", 1),))
    assert owners.claim("10-a", "c1", pages, ["A"]) == ""
    assert owners.claim("20-b", "c1", Resources(hugepage_limits=(("1GB", 1),)), ["B"]) == ""
    assert owners.claim("20-b", "c1", Resources(), ["A"]).endswith("tried to set Env A")
    assert owners.claim("20-b", "c1", pages).endswith("tried to set HugepageLimits 2MB")


def test_an_update_meets_what_an_adjustment_claimed() -> None:
    owners = Ownership()
    owners.claim("10-a", "c1", Resources(cpus="0"))
    update = ContainerUpdate("c1", Resources(cpus="1"))
    assert "CPUSetCPUs" in owners.accept("20-b", (update,))[1]
    may_fail = ContainerUpdate("c1", Resources(cpus="1"), ignore_failure=True)
    assert owners.accept("20-b", (may_fail,)) == ((), "")


def test_nri_0_6_words_pinning_in_its_own_way():
    owners = Ownership(speaks_0_6=True)
    owners.claim("10-a", "c1", Resources(cpus="0", cpu_shares=2))
    assert owners.claim("20-b", "c1", Resources(cpus="0")).endswith("both tried to set CPU pinning")
    assert owners.claim("20-b", "c1", Resources(cpu_shares=2)).endswith("both tried to set CPUShares")
