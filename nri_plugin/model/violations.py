"""The invariants of a state, written apart from the code that makes decisions, so that they can check it.

CPUs have one owner, but for these: a pod with resources of its own and its containers, the containers that share the pool of
such a pod, and an init container and those of its pod that run after it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from nri_plugin.model.options import Node
from nri_plugin.model.records import Allocation, ContainerRecord, Phase, allocation_key, is_whole_pod, pod_of
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.model.state import State


class ViolationKind(StrEnum):
    """The invariants of a state."""

    TWO_OWNERS = "two-owners"
    RESERVED = "reserved"
    NO_MEMORY = "no-memory"
    EMPTY_POOL = "empty-pool"
    """The violation of a decision that takes the last CPU, not of one that adds a container to the empty pool."""
    EMPTY_POD_POOL = "empty-pod-pool"
    OUTSIDE_POD = "outside-pod"


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that a state breaks; `str()` is one sentence.

    Attributes:
        kind: which invariant.
        ids: the CPU, or the NUMA nodes as a kernel list.
        key: the allocation.
        other: for a CPU with two owners the other allocation.
    """

    kind: ViolationKind
    ids: str = ""
    key: str = ""
    other: str = ""

    def __str__(self) -> str:
        match self.kind:
            case ViolationKind.TWO_OWNERS:
                return f"CPU {self.ids} is exclusive to both {self.other} and {self.key}"
            case ViolationKind.RESERVED:
                return f"reserved CPU {self.ids} is exclusive to {self.key}"
            case ViolationKind.NO_MEMORY:
                return f"{self.key} is bound to NUMA nodes without memory: {self.ids}"
            case ViolationKind.EMPTY_POD_POOL:
                return f"{self.key} shares the CPUs of its pod, and there are none"
            case ViolationKind.OUTSIDE_POD:
                return f"{self.key} shares CPUs that its pod does not own: {self.ids}"
        return "the shared pool is empty while shared containers exist"


def violations(node: Node, state: State) -> list[Violation]:
    """The invariants that `state` breaks on `node`; empty when sound."""
    return [*_of_allocations(node, state), *_of_pool(node, state)]


def new_violations(node: Node, before: State, after: State) -> list[Violation]:
    """The invariants that `after` breaks and `before` did not.

    Only pods whose allocations or containers differ are looked at, and the owners of CPUs that were gained.
    """
    changes = after.changes_from(before)
    touched = {pod_of(one.key) for one in changes.allocations}
    # The CPUs of an init container that runs again are those of containers that came after it.
    records = (one.after or one.before for one in changes.containers)
    lived_in = {record.pod_uid for record in records if record}
    touched |= {uid for uid in lived_in if _has_init(after, uid)}
    if not touched:
        return []
    gained = 0
    for change in changes.allocations:
        had = change.before.cpus.mask if change.before else 0
        gained |= change.after.cpus.mask & ~had if change.after else 0
    if gained & before.exclusive.mask:
        # They have, or had, an owner: it may be one that has not changed.
        found, known = violations(node, after), violations(node, before)
    else:
        found = [*_of_allocations(node, _part(after, touched)), *_of_pool(node, after)]
        known = [*_of_allocations(node, _part(before, touched)), *_of_pool(node, before)] if found else []
    # Only a decision that took CPUs can have emptied the pool.
    if after.exclusive <= before.exclusive:
        found = [one for one in found if one.kind is not ViolationKind.EMPTY_POOL]
    return [one for one in found if one not in known]


def _has_init(state: State, pod_uid: str) -> bool:
    return any(one.is_init for one in state.allocations_of(pod_uid).values())


def _part(state: State, pods: Iterable[str]) -> State:
    """The containers and allocations of these pods."""
    containers = {record.id: record for uid in pods for record in state.containers_of(uid)}
    allocations = {key: one for uid in pods for key, one in state.allocations_of(uid).items()}
    return State({}, containers, allocations)


def _of_pool(node: Node, state: State) -> Iterator[Violation]:
    if node.topology.online <= state.exclusive and any(
        _is_shared(state, record) for record in state.containers.values()
    ):
        yield Violation(ViolationKind.EMPTY_POOL)


def _of_allocations(node: Node, state: State) -> Iterator[Violation]:
    yield from _owned_twice(state)
    for key, allocation in state.allocations.items():
        if not allocation.claim and not allocation.cpus.isdisjoint(node.reserved):
            for cpu in allocation.cpus & node.reserved:
                yield Violation(ViolationKind.RESERVED, str(cpu), key)
        wrong = allocation.mems - node.topology.nodes_with_memory
        if wrong:
            yield Violation(ViolationKind.NO_MEMORY, str(wrong), key)
        if allocation.is_pod_shared:
            yield from _of_pod_pool(state, key, allocation)


def _of_pod_pool(state: State, key: str, allocation: Allocation) -> Iterator[Violation]:
    whole = state.allocations.get(allocation_key(pod_of(key), ""))
    foreign = allocation.cpus - whole.cpus if whole else allocation.cpus
    if not allocation.cpus:
        yield Violation(ViolationKind.EMPTY_POD_POOL, key=key)
    if foreign:
        yield Violation(ViolationKind.OUTSIDE_POD, str(foreign), key)


def _owned_twice(state: State) -> Iterator[Violation]:
    """Each CPU that two allocations have which may not share it.

    Pods of 128 containers that all share a hundred CPUs are looked at in a time that grows with the containers.
    """
    cpus_by_pod: dict[str, dict[str, CPUSet]] = {}
    for key, allocation in state.allocations.items():
        if allocation.cpus:
            cpus_by_pod.setdefault(pod_of(key), {})[key] = allocation.cpus
    taken, earlier = NO_CPUS, list[str]()
    for uid, own in cpus_by_pod.items():
        mine = NO_CPUS
        for cpus in own.values():
            mine |= cpus
        if not mine.isdisjoint(taken):
            yield from _both_own(state, ((other, key) for key in own for other in earlier), frozenset())
        if len(own) > 1:
            live = _live_keys(state, uid)
            some = _alone(state, own, live)
            # Sets whose sizes add up to the size of their union have no CPU in common.
            if sum(len(own[key]) for key in some) > len(mine):
                yield from _both_own(state, combinations(some, 2), live)
        taken |= mine
        earlier += own


def _alone(state: State, keys: Iterable[str], live: frozenset[str]) -> list[str]:
    """Of one pod's allocations those that have CPUs which others of the pod may not have, one for each shared pool."""
    some: dict[object, str] = {}
    for key in keys:
        one = state.allocations[key]
        # The end of an init container leaves its CPUs to all others of its pod.
        if is_whole_pod(key) or (one.is_init and key not in live):
            continue
        some.setdefault((one.cpus, one.is_init) if one.is_pod_shared else key, key)
    return list(some.values())


def _both_own(state: State, pairs: Iterable[tuple[str, str]], live: frozenset[str]) -> Iterator[Violation]:
    for one, other in pairs:
        cpus, others = state.allocations[one].cpus, state.allocations[other].cpus
        if not cpus.isdisjoint(others) and not _may_share(state, one, other, live):
            for cpu in cpus & others:
                yield Violation(ViolationKind.TWO_OWNERS, str(cpu), other, one)


def _may_share(state: State, one: str, other: str, live: frozenset[str]) -> bool:
    """Whether two containers may have the same CPUs: only those of one pod, in these cases."""
    if pod_of(one) != pod_of(other):
        return False
    first, second = state.allocations[one], state.allocations[other]
    if first.is_pod_shared and second.is_pod_shared:
        return True
    if not first.is_init and not second.is_init:
        return False
    # The slice of an init container comes out of all CPUs of its pod, the shared pool of its sidecars included.
    if first.is_pod_shared or second.is_pod_shared:
        return True
    return not {one, other} <= live


def _live_keys(state: State, pod_uid: str) -> frozenset[str]:
    return frozenset(
        record.key for record in state.containers_of(pod_uid) if record.phase is not Phase.STOPPED
    )


def _is_shared(state: State, record: ContainerRecord) -> bool:
    allocation = state.allocations.get(record.key)
    return record.phase != Phase.STOPPED and not (allocation and allocation.cpus)
