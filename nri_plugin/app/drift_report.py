"""One drift and what became of it: what those who count and tell are given."""

from collections.abc import Callable
from dataclasses import dataclass

from nri_plugin.cpuset import CPUSet
from nri_plugin.drift import Cause
from nri_plugin.state import CgroupRef


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """A cgroup that was found to say something else than it should, and one try to put it right.

    Attributes:
        number: counts all since the agent began.
        cgroup: where.
        container_id: whose, empty for a QoS slice.
        name: `namespace/pod/container`, or the slice.
        found: the CPUs that were written to it; None where it had no cpuset files.
        effective: what its processes ran on.
        desired: what they should run on.
        cause: what it looks like.
        noticed_by: `watch` or `sweep`.
        round: how often in a row this cgroup was put right; from 4 on somebody fights us.
        is_fight: that.
        next_after_s: should it drift again, it is left as it is for so long.
        error: why it could not be put right; empty when it was.
    """

    number: int
    cgroup: CgroupRef
    container_id: str
    name: str
    found: CPUSet | None
    effective: CPUSet | None
    desired: CPUSet
    cause: Cause
    noticed_by: str
    round: int
    is_fight: bool
    next_after_s: float
    error: str = ""


Reporter = Callable[[DriftReport], None]
