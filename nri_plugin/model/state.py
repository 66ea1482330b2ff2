"""The state of a node: pods, containers and allocations, as frozen values that decisions return.

The shared pool, available CPUs and free memory are derived from allocations and stored nowhere.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, partial, reduce
from itertools import chain
from operator import or_
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ReferenceType, ref

from msgspec import Struct

from nri_plugin.model.options import Node
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    PodRecord,
    QOSClass,
    allocation_key,
    is_whole_pod,
    pod_of,
    slice_above,
)
from nri_plugin.model.sets import NO_CPUS, CPUSet

Value = TypeVar("Value")

MOST_STEPS = 32
"""A state remembers by which steps it was made; with one that is further away, all records are compared."""


class Grouping(NamedTuple):
    """A way to group the keys of one mapping of a state; `State.grouped` has the groups."""

    mapping: str
    group: Callable[[Any, Any], Any]


class Change(Struct, Generic[Value], frozen=True):
    """A key whose value differs between two mappings; None where it is missing."""

    key: str
    before: Value | None
    after: Value | None


class State(Struct, frozen=True, dict=True, weakref=True):
    """Everything that is stored between two events.

    Attributes:
        pods: by uid.
        containers: by the runtime's container id.
        allocations: by `allocation_key`; only of containers that hold something. A pod with resources of its own has
            one under the key with an empty name, too: the CPUs and the memory of the pod as a whole. Its memory is
            counted there, and nowhere in its containers.
    """

    pods: dict[str, PodRecord] = {}
    containers: dict[str, ContainerRecord] = {}
    allocations: dict[str, Allocation] = {}

    @cached_property
    def exclusive(self) -> CPUSet:
        """All exclusive CPUs."""
        return CPUSet(reduce(or_, [one.cpus.mask for one in self.allocations.values()], 0))

    @cached_property
    def owned(self) -> Mapping[str, CPUSet]:
        """CPUs by allocation key, each CPU once.

        A pod that owns CPUs as a whole stands for its containers, but for claims. The CPUs of an init container that a later container of
        its pod holds, too, are that one's; an init container of which nothing is left is left out.
        """
        blocks = {pod_of(key) for key in self.allocations if is_whole_pod(key)}
        taken: dict[str, int] = {}
        for key, allocation in self.allocations.items():
            if not allocation.is_init:
                taken[pod_of(key)] = taken.get(pod_of(key), 0) | allocation.cpus.mask
        found = {}
        for key, allocation in self.allocations.items():
            uid, cpus = pod_of(key), allocation.cpus
            if uid in blocks and not (is_whole_pod(key) or allocation.claim):
                continue
            if allocation.is_init:
                cpus = CPUSet(cpus.mask & ~taken.get(uid, 0))
                taken[uid] = taken.get(uid, 0) | cpus.mask
            if cpus or allocation.memory or not allocation.cpus:
                found[key] = cpus
        return found

    def shared_pool(self, node: Node) -> CPUSet:
        """CPUs that everything without exclusive CPUs runs on: online minus exclusive.

        Also minus those that the kernel isolates, and with strict-cpu-reservation minus reserved, each as long as
        that leaves any.

        Differs: the kubelet's shared pool may become empty under strict-cpu-reservation, and its containers
            then run on all CPUs; here: they run on the reserved CPUs. Why: exclusive CPUs stay exclusive.
            Option: none.
        Differs: the kubelet's shared pool contains isolated CPUs; here: it does not, as long as other CPUs
            are left. Why: the kernel does not balance processes on isolated CPUs. Option: `isolatedCPUs:
            ignore`.
        """
        return self.remember("_pool", node, lambda: self._shared_pool(node))

    def remember(self, what: str, node: Node, find: Callable[[], Value]) -> Value:
        """The value of `what` on the node, found once: a decision, its check and its writes ask for the same several times."""
        known: tuple[Node, Value] | None = self.__dict__.get(what)
        if known is None or known[0] is not node:
            known = self.__dict__[what] = (node, find())
        return known[1]

    def _shared_pool(self, node: Node) -> CPUSet:
        pool = node.topology.online - self.exclusive
        pool = pool - node.isolated or pool
        if node.options.strict_cpu_reservation:
            return pool - node.reserved or pool
        return pool

    def available(self, node: Node) -> CPUSet:
        """CPUs that can still become exclusive: allocatable minus exclusive.

        One stays for the shared pool where no reserved CPU is online: a container without CPUs would run on those of others.
        """
        available = node.allocatable - self.exclusive
        is_all = node.reserved and node.topology.online - self.exclusive <= available
        return CPUSet(available.mask & (available.mask - 1)) if is_all and available else available

    def allocation_of(self, container: ContainerRecord) -> Allocation | None:
        """The container's allocation, if it has one."""
        return self.allocations.get(container.key)

    def lost(self, node: Node) -> Mapping[str, CPUSet]:
        """Allocated CPUs that are not online, by allocation key; only of allocations that miss some.

        They stay allocated: no other container gets them, and their container runs on them again once they return.
        """
        missing = {key: value.cpus - node.topology.online for key, value in self.allocations.items()}
        return {key: cpus for key, cpus in missing.items() if cpus}

    def desired_cpus(self, node: Node, container: ContainerRecord) -> CPUSet:
        """The cpuset the container's cgroup should hold: CPUs of its own, or else the shared pool."""
        return self.desired_cpus_of(node, container.key)

    def desired_cpus_of(self, node: Node, key: str) -> CPUSet:
        """The same of the container whose allocation has that key."""
        return self.own_cpus(node, key) or self.shared_pool(node)

    def own_cpus(self, node: Node, key: str) -> CPUSet:
        """The CPUs of an allocation that are online, because cgroup v1 accepts no others; none for the shared pool.

        While none of them is online, a container of a pod with resources of its own runs on those that its pod shares. Any
        other runs in the shared pool. The allocation itself does not change.
        """
        allocation = self.allocations.get(key)
        if allocation is None or not allocation.cpus:
            return NO_CPUS
        online = node.topology.online
        return allocation.in_force & online or self._left_to_pod(pod_of(key)) & online

    def _left_to_pod(self, pod_uid: str) -> CPUSet:
        """The CPUs that a pod owns as a whole, without those that one of its containers has for itself.

        A plain init container counts as ended: its slice is taken out of CPUs that sidecars share.
        """
        whole = self.allocations.get(allocation_key(pod_uid, ""))
        left = whole.cpus if whole else NO_CPUS
        for key, one in self.allocations_of(pod_uid).items() if left else ():
            if not (is_whole_pod(key) or one.is_init or one.is_pod_shared):
                left -= one.cpus
        return left

    def containers_of(self, pod_uid: str) -> list[ContainerRecord]:
        """The pod's containers."""
        return [self.containers[one] for one in self.grouped(_BY_POD).get(pod_uid, ())]

    def allocations_of(self, pod_uid: str) -> dict[str, Allocation]:
        """The allocations of the pod and of its containers, by key."""
        return {key: self.allocations[key] for key in self.grouped(_HELD_BY_POD).get(pod_uid, ())}

    def pod_of_sandbox(self, sandbox_id: str) -> PodRecord | None:
        """The pod that has this sandbox now."""
        uids = self.grouped(_BY_SANDBOX).get(sandbox_id)
        return self.pods[uids[0]] if uids else None

    @cached_property
    def holders(self) -> list[str]:
        """The keys of the allocations that have CPUs."""
        return [key for key, one in self.allocations.items() if one.cpus]

    @cached_property
    def owners(self) -> Collection[str]:
        """The uids of the pods with such allocations."""
        return frozenset(map(pod_of, self.holders))

    @property
    def guaranteed_pods(self) -> list[PodRecord]:
        """The pods of class Guaranteed."""
        return [self.pods[uid] for uid in self.grouped(_BY_QOS).get(QOSClass.GUARANTEED, ())]

    @property
    def has_unreachable(self) -> bool:
        """Whether a container has no path of a cgroup, so that only the runtime can change its cpuset."""
        return _NO_PATH in self.grouped(_BY_PLACE)

    def grouped(self, by: Grouping) -> Mapping[Any, tuple[str, ...]]:
        """The keys of a mapping by group, in the order in which they came to it.

        The first call looks at all records. States that are made from this one keep the answer up to date.
        """
        known = self._groups.get(by)
        if known is None:
            found: dict[Any, list[str]] = {}
            for key, value in getattr(self, by.mapping).items():
                found.setdefault(by.group(key, value), []).append(key)
            known = self._groups[by] = {one: tuple(keys) for one, keys in found.items()}
        return known

    @cached_property
    def _groups(self) -> dict[Grouping, Mapping[Any, tuple[str, ...]]]:
        return {}

    def changes_from(self, before: "State") -> "StateChanges":
        """The records that are other objects than in `before`: removed ones first, then in their order.

        Only the changed keys are looked at where this state was made from `before`.
        """
        # The validator, the checkpoint and the cgroup writes ask for the same changes. The latter two may be a step behind.
        known: tuple[ReferenceType[State], StateChanges] | None = self.__dict__.get("_changes")
        if known is None or known[0]() is not before:
            keys = self._keys_since(before)
            changes = StateChanges(
                _changes(before.pods, self.pods, keys.get("pods")),
                _changes(before.containers, self.containers, keys.get("containers")),
                _changes(before.allocations, self.allocations, keys.get("allocations")),
            )
            # Nobody asks again once the former state is gone; the changes would keep its records alive.
            forget = partial(_forget_changes, ref(self))
            known = self.__dict__["_changes"] = (ref(before, forget), changes)
        return known[1]

    def _keys_since(self, before: "State") -> Mapping[str, Iterable[str]]:
        """The keys by mapping that were changed since `before`; empty where that is no longer known."""
        steps: tuple[_Step, ...] = self.__dict__.get("_steps", ())
        for at in range(len(steps) - 1, -1, -1):
            if steps[at].origin() is before:
                keys: dict[str, dict[str, None]] = {name: {} for name in _MAPPINGS}
                for step in steps[at:]:
                    keys[step.mapping].update(dict.fromkeys(step.keys))
                return keys
        return {}

    def changed_allocations(self, before: "State") -> list[Change[Allocation]]:
        """The same of the allocations alone."""
        return [] if self.allocations is before.allocations else self.changes_from(before).allocations

    @property
    def slices_above(self) -> frozenset[CgroupRef]:
        """The QoS slices above containers with a cgroup."""
        return frozenset(place for place in self.grouped(_BY_PLACE) if isinstance(place, CgroupRef))

    def outside(self, slices: Collection[CgroupRef]) -> list[ContainerRecord]:
        """The containers with a cgroup that none of these slices is above."""
        places = self.grouped(_BY_PLACE)
        ids = [places[one] for one in places if one is not _NO_PATH and one not in slices]
        return [self.containers[one] for one in chain.from_iterable(ids)]

    def unpinned_outside(self, slices: Collection[CgroupRef], pods: Collection[str]) -> list[ContainerRecord]:
        """Of these containers those that have no CPUs of their own in force, and all of the given pods."""
        allocations = self.allocations
        return [
            one
            for one in self.outside(slices)
            if one.pod_uid in pods or (held := allocations.get(one.key)) is None or not held.in_force
        ]

    def ids_below(self, slices: Collection[CgroupRef]) -> Iterator[str]:
        """The ids of the containers that one of these slices is above."""
        places = self.grouped(_BY_PLACE)
        return chain.from_iterable(places.get(one, ()) for one in slices)

    def with_entries(self, name: str, entries: Mapping[str, Any]) -> "State":
        """This state with these entries in one of its mappings; None removes one."""
        former: dict[str, Any] = getattr(self, name)
        entries = {key: value for key, value in entries.items() if former.get(key) is not value}
        if not entries:
            return self
        mapping = former.copy()
        for key, value in entries.items():
            if value is None:
                del mapping[key]
            else:
                mapping[key] = value
        made = State(**{one: mapping if one == name else getattr(self, one) for one in _MAPPINGS})
        known, of_made = self.__dict__, made.__dict__
        if name != "allocations":
            of_made.update((one, known[one]) for one in _OF_ALLOCATIONS if one in known)
        of_made["_groups"] = regrouped = {}
        for by, groups in tuple(self._groups.items()):  # another thread may add one
            regrouped[by] = groups if by.mapping != name else _regrouped(by, groups, former, entries)
        of_made["_steps"] = (*known.get("_steps", ())[-MOST_STEPS:], _Step(ref(self), name, tuple(entries)))
        return made

    def with_pod(self, pod: PodRecord) -> "State":
        """This state with `pod` added or replaced."""
        return self.with_entries("pods", {pod.uid: pod})

    def with_container(self, record: ContainerRecord) -> "State":
        """This state with `record` added or replaced."""
        return self.with_entries("containers", {record.id: record})

    def with_containers(self, records: Mapping[str, ContainerRecord]) -> "State":
        """This state with `records`, by id, added or replaced."""
        return self.with_entries("containers", records)

    def with_allocation(self, key: str, allocation: Allocation) -> "State":
        """This state with the allocation added or replaced."""
        return self.with_entries("allocations", {key: allocation})

    def without_container(self, container_id: str) -> "State":
        """This state without the container's record; its allocation stays."""
        return self.with_entries("containers", {container_id: None})

    def without_allocation(self, key: str) -> "State":
        """This state without that allocation."""
        return self.with_entries("allocations", {key: None})

    def released(self, pod_uid: str) -> "State":
        """This state without the pod's allocations."""
        return self.with_entries("allocations", dict.fromkeys(self.allocations_of(pod_uid)))

    def without_pod(self, pod_uid: str) -> "State":
        """This state without the pod, its containers and its allocations."""
        ids = [one.id for one in self.containers_of(pod_uid)]
        return (
            self.released(pod_uid)
            .with_entries("containers", dict.fromkeys(ids))
            .with_entries("pods", {pod_uid: None})
        )


class _Step(NamedTuple):
    """The state that another one was made from, and the keys that differ."""

    origin: ReferenceType[State]
    mapping: str
    keys: tuple[str, ...]


class StateChanges(Struct, frozen=True):
    """Records that one of two states has and the other has not, or has otherwise."""

    pods: list[Change[PodRecord]]
    containers: list[Change[ContainerRecord]]
    allocations: list[Change[Allocation]]


_MAPPINGS = ("pods", "containers", "allocations")

_OF_ALLOCATIONS = ("exclusive", "holders", "owners", "_pool", "_memory")
"""Derived values that depend on nothing but the allocations and the node."""


def _changes(
    before: Mapping[str, Value], after: Mapping[str, Value], keys: Iterable[str] | None
) -> list[Change[Value]]:
    """The entries that differ among these keys; None: among all."""
    if before is after:
        return []
    if keys is None:
        keys = (*(key for key in before if key not in after), *after)
    pairs = ((key, before.get(key), after.get(key)) for key in keys)
    found = [Change(key, old, new) for key, old, new in pairs if old is not new]
    found.sort(key=lambda one: one.after is not None)
    return found


def _regrouped(
    by: Grouping,
    groups: Mapping[Any, tuple[str, ...]],
    former: Mapping[str, Any],
    entries: Mapping[str, Any],
) -> Mapping[Any, tuple[str, ...]]:
    """The groups of a mapping after a change of these entries; None removes one."""
    changed = dict(groups)
    is_same = True
    for key, value in entries.items():
        left = by.group(key, former[key]) if key in former else None
        joined = None if value is None else by.group(key, value)
        if left == joined:
            continue
        is_same = False
        if left is not None:
            at = changed[left].index(key)
            others = changed[left][:at] + changed[left][at + 1 :]
            if others:
                changed[left] = others
            else:
                del changed[left]
        if joined is not None:
            changed[joined] = (*changed.get(joined, ()), key)
    return groups if is_same else changed


def _forget_changes(state: ReferenceType[State], _: ReferenceType[State]) -> None:
    alive = state()
    if alive is not None:
        alive.__dict__.pop("_changes", None)


_NO_PATH = "without a path"
_NO_SLICE = "below no slice"


def _place(_id: str, one: ContainerRecord) -> CgroupRef | str:
    """The slice above the container's cgroup, or why there is none."""
    return (slice_above(one.cgroup.path) or _NO_SLICE) if one.cgroup.path else _NO_PATH


_BY_PLACE = Grouping("containers", _place)
_BY_POD = Grouping("containers", lambda _id, one: one.pod_uid)
_BY_SANDBOX = Grouping("pods", lambda _uid, pod: pod.sandbox_id)
_BY_QOS = Grouping("pods", lambda _uid, pod: pod.qos)
_HELD_BY_POD = Grouping("allocations", lambda key, _allocation: pod_of(key))
