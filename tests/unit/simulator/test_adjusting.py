import pytest

from nri_plugin.nri.messages import Resources
from nri_plugin.simulator.adjusting import merged


@pytest.mark.parametrize(
    "nothing", [Resources(), Resources(cpu_shares=0, cpu_quota_us=0, memory_limit_bytes=0)]
)
def test_absent_zero_and_empty_leave_alone(nothing: Resources) -> None:
    base = Resources(
        cpu_shares=100, cpu_quota_us=5, cpus="0", mems="1", memory_limit_bytes=7, unified={"a": "b"}
    )
    assert merged(base, nothing) == base


def test_what_is_set_replaces() -> None:
    base = Resources(cpus="0", mems="1", unified={"a": "1", "b": "2"})
    assert merged(base, Resources(cpus="3", unified={"b": "9"})) == Resources(
        cpus="3", mems="1", unified={"a": "1", "b": "9"}
    )
