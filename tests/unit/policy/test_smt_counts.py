"""Numbers of CPUs that do not fill their last core."""

import pytest

from nri_plugin.model.errors import SMTAlignmentError
from nri_plugin.model.options import SMTOddCounts
from nri_plugin.policy.cpu_policy import checks_multiple, whole_core_count

KUBELET, REJECT, ROUND_UP, ALLOW = SMTOddCounts


@pytest.mark.parametrize(
    ("rule", "count", "threads", "expected"),
    [
        (KUBELET, 3, 2, 3),
        (ALLOW, 3, 2, 3),
        (ROUND_UP, 3, 2, 4),
        (ROUND_UP, 4, 2, 4),
        (ROUND_UP, 1, 4, 4),
        (ROUND_UP, 0, 2, 0),
        (REJECT, 4, 2, 4),
        (REJECT, 0, 2, 0),
        (REJECT, 3, 1, 3),
    ],
)
def test_the_number_given(rule, count, threads, expected):
    assert whole_core_count(rule, count, threads) == expected


@pytest.mark.parametrize(
    ("count", "threads", "said"),
    [
        (3, 2, "is not a multiple of the 2 cpus per core and smtOddCounts is reject; ask for 2 or 4"),
        (1, 2, "is less than the 2 cpus of a core and smtOddCounts is reject; ask for 2"),
        (5, 4, "is not a multiple of the 4 cpus per core and smtOddCounts is reject; ask for 4 or 8"),
    ],
)
def test_reject_refuses_odd_numbers_and_names_the_next_ones(count, threads, said):
    with pytest.raises(SMTAlignmentError) as refusal:
        whole_core_count(REJECT, count, threads)
    assert str(refusal.value) == f"SMTAlignmentError: requested {count} cpus {said}"


def test_only_allow_overrules_full_pcpus_only():
    assert [rule for rule in SMTOddCounts if not checks_multiple(rule)] == [ALLOW]
