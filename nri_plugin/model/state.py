"""The state of a node: pods, containers and allocations, as frozen values that decisions return.

The shared pool, available CPUs and free memory are derived from allocations and stored nowhere.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from operator import or_
from typing import Any, TypeVar
from weakref import ReferenceType, ref

from nri_plugin.model.options import Node
from nri_plugin.model.persistent import Change, PersistentMap, Tally, persistent, tally
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

_PERSISTENT = (PersistentMap, PersistentMap, PersistentMap)


@dataclass(frozen=True)
class State:
    """Everything that is stored between two events.

    Attributes:
        pods: by uid.
        containers: by the runtime's container id.
        allocations: by `allocation_key`; only of containers that hold something. A pod with resources of its own has
            one under the key with an empty name, too: the CPUs and the memory of the pod as a whole. Its memory is
            counted there, and nowhere in its containers.
    """

    pods: Mapping[str, PodRecord] = field(default_factory=dict)
    containers: Mapping[str, ContainerRecord] = field(default_factory=dict)
    allocations: Mapping[str, Allocation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Most states are made from an earlier one, whose mappings are persistent already.
        if (type(self.pods), type(self.containers), type(self.allocations)) == _PERSISTENT:
            return
        for name, group in _GROUPS.items():
            given = getattr(self, name)
            if type(given) is not PersistentMap:
                object.__setattr__(self, name, PersistentMap.of(given, group))

    @cached_property
    def exclusive(self) -> CPUSet:
        """All exclusive CPUs."""
        masks = persistent(self.allocations).total(_EXCLUSIVE)
        return CPUSet(reduce(or_, masks, 0))

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
        return [self.containers[one] for one in persistent(self.containers).keys_in(pod_uid)]

    def allocations_of(self, pod_uid: str) -> dict[str, Allocation]:
        """The allocations of the pod and of its containers, by key."""
        return {key: self.allocations[key] for key in persistent(self.allocations).keys_in(pod_uid)}

    def pod_of_sandbox(self, sandbox_id: str) -> PodRecord | None:
        """The pod that has this sandbox now."""
        keys = persistent(self.pods).keys_in(sandbox_id)
        return self.pods[keys[0]] if keys else None

    @property
    def holders(self) -> list[str]:
        """The keys of the allocations that have CPUs."""
        allocations = persistent(self.allocations)
        keys = allocations.total(_HOLDERS)
        return allocations.in_order(keys)

    @property
    def owners(self) -> Collection[str]:
        """The uids of the pods with such allocations."""
        return persistent(self.allocations).total(_OWNERS)

    @property
    def guaranteed_pods(self) -> list[PodRecord]:
        """The pods of class Guaranteed."""
        pods = persistent(self.pods)
        uids = pods.total(_GUARANTEED)
        return [pods[uid] for uid in pods.in_order(uids)]

    @property
    def has_unreachable(self) -> bool:
        """Whether a container has no path of a cgroup, so that only the runtime can change its cpuset."""
        return _NO_PATH in self._places

    def changes_from(self, before: "State") -> "StateChanges":
        """What differs from `before`. The cost is that of the changes where one state was made from the other."""
        # The validator, the checkpoint and the cgroup writes ask for the same changes.
        known: tuple[ReferenceType[State], StateChanges] | None = self.__dict__.get("_changes")
        if known is None or known[0]() is not before:
            changes = StateChanges(
                persistent(self.pods).changes_from(persistent(before.pods)),
                persistent(self.containers).changes_from(persistent(before.containers)),
                persistent(self.allocations).changes_from(persistent(before.allocations)),
            )
            # Nobody asks again once the former state is gone; the changes would keep its records alive.
            forget = partial(_forget_changes, ref(self))
            known = self.__dict__["_changes"] = (ref(before, forget), changes)
        return known[1]

    def changed_allocations(self, before: "State") -> list[Change[str, Allocation]]:
        """The same of the allocations alone."""
        return [] if self.allocations is before.allocations else self.changes_from(before).allocations

    @property
    def slices_above(self) -> frozenset[CgroupRef]:
        """The QoS slices above containers with a cgroup."""
        return frozenset(place for place in self._places if isinstance(place, CgroupRef))

    @property
    def _places(self) -> Collection[CgroupRef | str]:
        """Where cgroups of containers are, see `_place`."""
        return persistent(self.containers).total(_PLACES)

    def outside(self, slices: Collection[CgroupRef]) -> list[ContainerRecord]:
        """The containers with a cgroup that none of these slices is above.

        The cost is that of their number, unless a slice that is not among these has containers.
        """
        containers = persistent(self.containers)
        if self._are_all_below(slices):
            ids = [one for one, _ in containers.total(_OUTSIDE)]
            return [containers[one] for one in containers.in_order(ids)]
        paths = ((record, record.cgroup.path) for record in containers.values())
        return [record for record, path in paths if path and slice_above(path) not in slices]

    def unpinned_outside(self, slices: Collection[CgroupRef], pods: Collection[str]) -> list[ContainerRecord]:
        """Of these containers those that have no CPUs of their own in force, and all of the given pods.

        Where `outside` goes over all containers, so does this.
        """
        if not self._are_all_below(slices):
            return self.outside(slices)
        containers, pinned = persistent(self.containers), persistent(self.allocations).total(_PINNED)
        outside = containers.total(_OUTSIDE)
        ids = [one for one, key in outside if key not in pinned or pod_of(key) in pods]
        return [containers[one] for one in containers.in_order(ids)]

    def _are_all_below(self, slices: Collection[CgroupRef]) -> bool:
        """Whether there is no slice but these that has containers."""
        return all(place in slices for place in self._places if isinstance(place, CgroupRef))

    def ids_below(self, slices: Collection[CgroupRef]) -> Iterator[str]:
        """The ids of the containers that one of these slices is above, in any order, found one by one."""
        for one, record in persistent(self.containers).in_any_order():
            if record.cgroup.path and slice_above(record.cgroup.path) in slices:
                yield one

    def _with(self, pods: Mapping[str, PodRecord], containers: Mapping[str, ContainerRecord]) -> "State":
        """This state with these records and the same allocations; what follows from allocations alone is known already."""
        if pods is self.pods and containers is self.containers:
            return self
        made = State(pods, containers, self.allocations)
        known = self.__dict__
        for name in ("exclusive", "_pool"):
            if name in known:
                made.__dict__[name] = known[name]
        return made

    def with_pod(self, pod: PodRecord) -> "State":
        """This state with `pod` added or replaced."""
        return self._with(persistent(self.pods).with_item(pod.uid, pod), self.containers)

    def with_container(self, record: ContainerRecord) -> "State":
        """This state with `record` added or replaced."""
        containers = persistent(self.containers).with_item(record.id, record)
        return self._with(self.pods, containers)

    def with_containers(self, records: Mapping[str, ContainerRecord]) -> "State":
        """This state with `records`, by id, added or replaced."""
        return self._with(self.pods, persistent(self.containers).with_items(records))

    def with_allocation(self, key: str, allocation: Allocation) -> "State":
        """This state with the allocation added or replaced."""
        allocations = persistent(self.allocations).with_item(key, allocation)
        return State(self.pods, self.containers, allocations)

    def without_container(self, container_id: str) -> "State":
        """This state without the container's record; its allocation stays."""
        return self._with(self.pods, persistent(self.containers).without(container_id))

    def without_allocation(self, key: str) -> "State":
        """This state without that allocation."""
        kept = persistent(self.allocations).without(key)
        return self if kept is self.allocations else State(self.pods, self.containers, kept)

    def released(self, pod_uid: str) -> "State":
        """This state without the pod's allocations."""
        allocations = persistent(self.allocations)
        kept = allocations.without(*allocations.keys_in(pod_uid))
        return self if kept is allocations else State(self.pods, self.containers, kept)

    def without_pod(self, pod_uid: str) -> "State":
        """This state without the pod, its containers and its allocations."""
        containers = persistent(self.containers)
        containers = containers.without(*containers.keys_in(pod_uid))
        return State(persistent(self.pods).without(pod_uid), containers, self.released(pod_uid).allocations)


@dataclass(frozen=True, slots=True)
class StateChanges:
    """Records that one of two states has and the other has not, or has otherwise."""

    pods: list[Change[str, PodRecord]]
    containers: list[Change[str, ContainerRecord]]
    allocations: list[Change[str, Allocation]]


_GROUPS: Mapping[str, Callable[[str, Any], str]] = {
    "pods": lambda _uid, pod: pod.sandbox_id,
    "containers": lambda _id, record: record.pod_uid,
    "allocations": lambda key, _allocation: pod_of(key),
}
"""The group of a record in each mapping of a state."""


def _forget_changes(state: ReferenceType[State], _: ReferenceType[State]) -> None:
    alive = state()
    if alive is not None:
        alive.__dict__.pop("_changes", None)


_NO_PATH = "without a path"
_NO_SLICE = "below no slice"


def _place(_id: str, one: ContainerRecord) -> CgroupRef | str:
    """The slice above the container's cgroup, or why there is none."""
    return (slice_above(one.cgroup.path) or _NO_SLICE) if one.cgroup.path else _NO_PATH


_PLACES: Tally[str, ContainerRecord, CgroupRef | str] = tally(_place)
_OUTSIDE: Tally[str, ContainerRecord, tuple[str, str]] = tally(
    lambda one_id, one: (one_id, one.key) if _place(one_id, one) is _NO_SLICE else None
)
_GUARANTEED: Tally[str, PodRecord, str] = tally(
    lambda uid, pod: uid if pod.qos is QOSClass.GUARANTEED else None
)
_EXCLUSIVE: Tally[str, Allocation, int] = tally(lambda _key, one: one.cpus.mask or None)
_HOLDERS: Tally[str, Allocation, str] = tally(lambda key, one: key if one.cpus else None)
_OWNERS: Tally[str, Allocation, str] = tally(lambda key, one: pod_of(key) if one.cpus else None)
_PINNED: Tally[str, Allocation, str] = tally(lambda key, one: key if one.in_force else None)
