"""Pods with resources of their own, as slowly and plainly as can be: every moment of a pod's life is gone through.

A moment is the set of containers that run at once. Its author read the kubelet's rules, not our code.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from nri_plugin.model.records import ContainerFacts, Kind, PodFacts, QOSClass

MEMORY = "memory"


@dataclass(frozen=True)
class Moment:
    """Containers that run at once, and the plain init container among them."""

    running: tuple[ContainerFacts, ...]
    init: ContainerFacts | None = None

    @property
    def lasting(self) -> list[ContainerFacts]:
        """Those that go on when the next container starts."""
        return [one for one in self.running if one is not self.init]


def moments(facts: PodFacts) -> Iterator[Moment]:
    """Each init container runs beside the sidecars before it; then app containers start, in any order."""
    sidecars: list[ContainerFacts] = []
    for one in facts.containers:
        if one.kind is Kind.SIDECAR:
            sidecars.append(one)
            yield Moment(tuple(sidecars))
        if one.kind is Kind.INIT:
            yield Moment((*sidecars, one), one)
    apps = [one for one in facts.containers if one.kind is Kind.APP]
    for order in permutations(apps):
        for count in range(1, len(order) + 1):
            yield Moment((*sidecars, *order[:count]))


def owns(facts: PodFacts, one: ContainerFacts) -> tuple[int, int]:
    """The CPUs and the bytes that a container has for itself, 0 for none."""
    told = one.amounts
    equal = (
        told.cpu_request_milli == told.cpu_limit_milli
        and told.memory_request_bytes == told.memory_limit_bytes
    )
    if (
        facts.qos is not QOSClass.GUARANTEED
        or not equal
        or not told.cpu_request_milli
        or not told.memory_request_bytes
    ):
        return 0, 0
    is_whole = told.cpu_request_milli % 1000 == 0
    return told.cpu_request_milli // 1000 if is_whole else 0, told.memory_request_bytes


def has_empty_pool(facts: PodFacts, which: int, amount: int) -> bool:
    """Whether at some moment a container that shares runs, and all the pod's CPUs (0) or bytes (1) are owned by others.

    What a plain init container owns is free again before the next container starts, so it leaves no one without.
    """
    for moment in moments(facts):
        owned = sum(owns(facts, one)[which] for one in moment.lasting)
        if owned >= amount and any(not owns(facts, one)[which] for one in moment.running):
            return True
    return False


def needs(facts: PodFacts) -> int:
    """The most CPUs that containers own at one moment."""
    return max(sum(owns(facts, one)[0] for one in moment.running) for moment in moments(facts))
