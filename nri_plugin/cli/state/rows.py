"""A row for each container: its allocation, the place on the machine, and irregularities."""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from nri_plugin.cli.state.source import Seen
from nri_plugin.core.pods import MOST_CONTAINERS
from nri_plugin.model import bits
from nri_plugin.model.records import (
    Allocation,
    ContainerRecord,
    Kind,
    Phase,
    PodRecord,
    Regime,
    allocation_key,
    is_whole_pod,
    owner_of,
    pod_of,
)
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.alignment import Footprint, footprint


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection of containers: shell patterns, empty for all."""

    namespace: str = ""
    pod: str = ""
    container: str = ""

    def __bool__(self) -> bool:
        return bool(self.namespace or self.pod or self.container)

    def has(self, record: ContainerRecord, pod: PodRecord | None) -> bool:
        """Whether the container is one of them; a pod is known by its name or its uid, a container by its id, too."""
        name = pod.name if pod else ""
        return (
            _matches(self.namespace, pod.namespace if pod else "")
            and (_matches(self.pod, name) or _matches(self.pod, record.pod_uid))
            and (_matches(self.container, record.name) or _is_id(self.container, record.id))
        )


@dataclass(frozen=True, slots=True)
class StateRow:
    """A container.

    Attributes:
        record: as it is remembered.
        pod: None when it is not known.
        allocation: its allocation; an empty one for the shared pool.
        cpus: the CPUs that it should run on now: its exclusive CPUs that are online, else the shared pool; where it
            ended, those of `kept`; None when that is not known.
        lost: its exclusive CPUs that are offline or out of the pods' reach.
        footprint: where `cpus` lie; None when the machine's cores and caches are not known, or it ended and keeps
            nothing. Cores of the shared pool are never counted as whole.
        numa_nodes: of `cpus`; None when the machine is not known.
        is_ended: it is over: it has no CPUs, or it is an init container that later ones of its pod followed.
        kept: of an init container that is over, the CPUs that no other container of its pod has.
        in_block: its pod owns CPUs as a whole.
    """

    record: ContainerRecord
    pod: PodRecord | None
    allocation: Allocation
    cpus: CPUSet | None
    lost: CPUSet
    footprint: Footprint | None
    numa_nodes: NodeMask | None
    is_ended: bool = False
    kept: CPUSet = NO_CPUS
    in_block: bool = False

    @property
    def is_exclusive(self) -> bool:
        """Whether it has CPUs that no other container runs on."""
        return bool(self.allocation.cpus) and not self.allocation.is_pod_shared and not self.is_ended

    @property
    def kind(self) -> str:
        """How it has its CPUs.

        `exclusive`; `claimed` by a resource claim of another program; `slice` and `pod shared` inside the CPUs of a pod with resources of its own; `shared`; where it is
        over, `kept` for CPUs that stay allocated to it alone, and `ended` without any.
        """
        if self.is_ended:
            return "kept" if self.kept else "ended"
        if self.allocation.is_pod_shared:
            return "pod shared"
        if not self.is_exclusive:
            return "shared"
        if self.allocation.claim:
            return "claimed"
        return "slice" if self.in_block else "exclusive"

    @property
    def namespace(self) -> str:
        """Of its pod, `?` when that is not known."""
        return (self.pod.namespace if self.pod else "") or "?"

    @property
    def pod_name(self) -> str:
        """The pod's name, its uid when there is none."""
        return (self.pod.name if self.pod else "") or self.record.pod_uid or "?"

    @property
    def name(self) -> str:
        """`namespace/pod/container`."""
        return f"{self.namespace}/{self.pod_name}/{self.record.name or self.record.id[:12]}"

    @property
    def container_kind(self) -> Kind | None:
        """Its kind in the pod; None where the pod's facts are not known or not kept."""
        return kind_of(self.pod, self.record.name)


@dataclass(frozen=True, slots=True)
class PodBlock:
    """What a pod with resources of its own owns as a whole.

    Attributes:
        uid: of the pod.
        allocation: its CPUs, NUMA nodes and memory.
        shared_pool: its CPUs that no container owns.
    """

    uid: str
    allocation: Allocation
    shared_pool: CPUSet

    @property
    def text(self) -> str:
        """The block in words."""
        held, parts = self.allocation, []
        if held.cpus:
            parts.append(f"CPUs {held.cpus} ({len(held.cpus)}) are the pod's")
            parts.append(f"pod shared pool {self.shared_pool or '-'}")
        if held.mems:
            parts.append(f"memory on NUMA {held.mems}")
        return ", ".join(parts)


def block_of(state: State, uid: str) -> PodBlock | None:
    """What the pod owns as a whole; None for an ordinary pod."""
    block = state.allocations.get(allocation_key(uid, ""))
    if block is None:
        return None
    taken = 0
    for key, held in state.allocations.items():
        if pod_of(key) == uid and not is_whole_pod(key) and not held.is_pod_shared and not held.is_init:
            taken |= held.cpus.mask
    return PodBlock(uid, block, block.cpus - CPUSet(taken))


def kind_of(pod: PodRecord | None, container: str) -> Kind | None:
    """The kind of a container in its pod; None where it is not known."""
    known = pod.facts.container(container) if pod and pod.facts else None
    return known.kind if known else None


def is_ended(state: State, record: ContainerRecord) -> bool:
    """Whether a container stopped and has no CPUs to start again on, as an init container that is over."""
    if record.phase is not Phase.STOPPED:
        return False
    held = state.allocation_of(record)
    return held is None or not held.cpus or is_over(state, record.key)


def is_over(state: State, key: str) -> bool:
    """Whether an allocation is that of an init container which does not run, and a later container of its pod exists.

    Without the pod's facts a later container is one that has some of its CPUs.
    """
    held, (uid, name) = state.allocations[key], owner_of(key)
    others = state.containers_of(uid) if held.is_init else []
    if not others or any(one.name == name and one.phase is not Phase.STOPPED for one in others):
        return False
    pod = state.pods.get(uid)
    if pod and pod.facts:
        names = [one.name for one in pod.facts.containers]
        later = names[names.index(name) + 1 :] if name in names else []
        return any(one.name in later for one in others)
    theirs = (state.allocation_of(one) for one in others)
    return any(one is not None and not one.is_init and bool(one.cpus & held.cpus) for one in theirs)


def kept_by_ended(state: State) -> dict[str, CPUSet]:
    """The CPUs that init containers keep which are over, and that no other container of their pods has, by key.

    They stay allocated until the pod ends, unless a later container of it takes them. Those of a pod that owns CPUs as a
    whole are the pod's.
    """
    inits = [key for key, held in state.allocations.items() if held.is_init and held.cpus]
    over = [key for key in inits if is_over(state, key)]
    uids, taken, kept = {pod_of(key) for key in over}, dict[str, int](), {}
    for key, held in state.allocations.items() if over else ():
        if pod_of(key) in uids and key not in over:
            taken[pod_of(key)] = taken.get(pod_of(key), 0) | held.cpus.mask
    for key in over:
        left = state.allocations[key].cpus.mask & ~taken.get(pod_of(key), 0)
        taken[pod_of(key)] = taken.get(pod_of(key), 0) | left
        if left:
            kept[key] = CPUSet(left)
    return kept


def is_placed_singly(state: State, uid: str) -> bool:
    """Whether the pod has too many containers to be admitted as a whole. Resources of the pod itself are one request."""
    pod = state.pods.get(uid)
    if pod is None or pod.facts is None or pod.regime is Regime.WHOLE:
        return False
    return len(pod.facts.containers) > MOST_CONTAINERS


def rows_of(seen: Seen, wanted: Wanted | None = None) -> list[StateRow]:
    """The containers asked for: pods with exclusive CPUs first, then by namespace, pod, container and id."""
    state, pool, kept = seen.state, shared_pool(seen), kept_by_ended(seen.state)
    prints: Prints = {}
    rows = [
        _row(seen, record, pool, kept.get(record.key, NO_CPUS), prints)
        for record in state.containers.values()
        if wanted is None or wanted.has(record, state.pods.get(record.pod_uid))
    ]
    holders = {row.record.pod_uid for row in rows if row.allocation.cpus and not row.is_ended}

    def place(row: StateRow) -> tuple[Any, ...]:
        record = row.record
        key = record.pod_uid
        return (
            key not in holders,
            row.namespace,
            row.pod_name,
            key,
            not row.is_exclusive,
            record.name,
            record.id,
        )

    return sorted(rows, key=place)


def shared_pool(seen: Seen) -> CPUSet | None:
    """The shared pool; None when the machine is not known."""
    return None if seen.node is None else seen.state.shared_pool(seen.node)


def waiting(state: State) -> list[str]:
    """Keys of allocations whose container is not created, or not again; without those of pods as wholes.

    An init container whose record is gone is over where a later container of its pod exists.
    """
    used = {record.key for record in state.containers.values()}
    left = (key for key in state.allocations if key not in used and not is_whole_pod(key))
    return sorted(key for key in left if not is_over(state, key))


def ids(numbers: Iterable[int]) -> str:
    """Ids as a kernel list."""
    return bits.format_list(bits.from_ids(numbers))


Prints = dict[tuple[int, int, bool], Footprint]
"""Footprints by CPUs, memory nodes, and whether the CPUs are exclusive."""


def _row(seen: Seen, record: ContainerRecord, pool: CPUSet | None, kept: CPUSet, prints: Prints) -> StateRow:
    allocation = seen.state.allocation_of(record) or Allocation()
    lost = allocation.cpus - seen.node.topology.online if seen.node else NO_CPUS
    own = allocation.in_force - lost
    ended = is_ended(seen.state, record)
    kept = kept if ended else NO_CPUS
    cpus = kept - lost if ended else own or pool
    return StateRow(
        record=record,
        pod=seen.state.pods.get(record.pod_uid),
        allocation=allocation,
        cpus=cpus,
        lost=lost,
        footprint=None
        if ended and not kept
        else _footprint(
            seen, cpus, allocation.mems, prints, is_own=bool(own) and not allocation.is_pod_shared
        ),
        numa_nodes=None if cpus is None or seen.node is None else seen.node.topology.nodes_of(cpus),
        is_ended=ended,
        kept=kept,
        in_block=allocation_key(record.pod_uid, "") in seen.state.allocations,
    )


def _footprint(
    seen: Seen, cpus: CPUSet | None, mems: NodeMask, prints: Prints, *, is_own: bool
) -> Footprint | None:
    """Computed once for each different set: hundreds of containers share one pool."""
    if cpus is None or seen.node is None or not seen.has_parts:
        return None
    key = cpus.mask, mems.mask, is_own
    if key not in prints:
        found = footprint(seen.node.topology, cpus, mems)
        prints[key] = found if is_own else replace(found, aligned=replace(found.aligned, whole_cores=False))
    return prints[key]


def _matches(pattern: str, name: str) -> bool:
    return not pattern or fnmatch.fnmatchcase(name, pattern)


def _is_id(pattern: str, container_id: str) -> bool:
    """Container ids are matched by their prefix, as crictl and others print them."""
    return len(pattern) >= 8 and container_id.startswith(pattern)
