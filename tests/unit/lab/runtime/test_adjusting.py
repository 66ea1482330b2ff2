import pytest

from nri_plugin.wire.nri.events import CreateContainerResponse
from nri_plugin.wire.nri.messages import Container, Resources
from tests.lab.runtime.adjusting import adjusted, merged


@pytest.mark.parametrize(
    ("base", "change", "after"),
    [
        (Resources(100, 5, cpus="0", mems="1"), Resources(), Resources(100, 5, cpus="0", mems="1")),
        (
            Resources(100, 5, memory_limit_bytes=7),
            Resources(0, 0, memory_limit_bytes=0),
            Resources(100, 5, memory_limit_bytes=7),
        ),
        (Resources(cpus="0", mems="1"), Resources(cpus="3"), Resources(cpus="3", mems="1")),
        (
            Resources(hugepage_limits=(("2MB", 1), ("1GB", 2))),
            Resources(hugepage_limits=(("1GB", 3),)),
            Resources(hugepage_limits=(("2MB", 1), ("1GB", 3))),
        ),
    ],
    ids=["absent", "zero", "set", "page sizes"],
)
def test_what_is_set_replaces_and_absent_zero_and_empty_leave_alone(
    base: Resources, change: Resources, after: Resources
) -> None:
    assert merged(base, change) == after


def test_a_new_container_gets_its_resources_and_variables() -> None:
    base = Container("c1", env=("A=1", "B=2"), resources=Resources(cpu_shares=2))
    assert adjusted(base, CreateContainerResponse()) == base
    after = adjusted(base, CreateContainerResponse(Resources(cpus="0"), env={"B": "3", "C": "4"}))
    assert after.env == ("A=1", "B=3", "C=4")
    assert after.resources == Resources(cpu_shares=2, cpus="0")
