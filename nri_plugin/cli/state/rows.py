"""A row for each container: its allocation, the place on the machine, and irregularities."""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from nri_plugin.cli.state.source import Seen
from nri_plugin.core.pods import MOST_CONTAINERS
from nri_plugin.model import bits
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask
from nri_plugin.model.state import (
    Allocation,
    ContainerRecord,
    Kind,
    Phase,
    PodRecord,
    State,
    allocation_key,
    is_whole_pod,
    owner_of,
    pod_of,
)
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
        cpus: the CPUs that it should run on now: its exclusive CPUs that are online, else the shared pool, none where
            it ended; None when that is not known.
        lost: its exclusive CPUs that are offline.
        footprint: where `cpus` lie; None when the machine's cores and caches are not known, or it ended. Cores of the
            shared pool are never counted as whole.
        numa_nodes: of `cpus`; None when the machine is not known.
        is_ended: it runs nowhere and nothing is kept for it alone, as for an init container that is done.
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
    in_block: bool = False

    @property
    def is_exclusive(self) -> bool:
        """Whether it has CPUs that no other container runs on."""
        return bool(self.allocation.cpus) and not self.allocation.is_pod_shared and not self.is_ended

    @property
    def kind(self) -> str:
        """How it has its CPUs.

        `exclusive`; `slice` and `pod shared` inside the CPUs of a pod with resources of its own; `shared`; `ended` where
        it runs nowhere and no CPUs are kept for it alone.
        """
        if self.is_ended:
            return "ended"
        if self.allocation.is_pod_shared:
            return "pod shared"
        if not self.is_exclusive:
            return "shared"
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
    """Whether a container stopped and nothing is kept for its next instance alone.

    An init container keeps its CPUs. Once a later container of its pod runs on some of them, they are that one's.
    """
    if record.phase is not Phase.STOPPED:
        return False
    held = state.allocation_of(record)
    if held is None or not held.cpus:
        return True
    if not held.is_init:
        return False
    pod = state.pods.get(record.pod_uid)
    return any(
        one.phase is not Phase.STOPPED
        and kind_of(pod, one.name) is not Kind.SIDECAR
        and (other := state.allocation_of(one)) is not None
        and not other.is_init
        and bool(other.cpus & held.cpus)
        for one in state.containers_of(record.pod_uid)
    )


def is_placed_singly(state: State, uid: str) -> bool:
    """Whether the pod has too many containers to be admitted as a whole."""
    pod = state.pods.get(uid)
    return pod is not None and pod.facts is not None and len(pod.facts.containers) > MOST_CONTAINERS


def rows_of(seen: Seen, wanted: Wanted | None = None) -> list[StateRow]:
    """The containers asked for: pods with exclusive CPUs first, then by namespace, pod, container and id."""
    state, pool = seen.state, shared_pool(seen)
    prints: Prints = {}
    rows = [
        _row(seen, record, pool, prints)
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

    An init container whose record is gone has ended where a later container of its pod exists.
    """
    used = {record.key for record in state.containers.values()}
    left = (key for key in state.allocations if key not in used and not is_whole_pod(key))
    return sorted(key for key in left if not _has_run(state, key))


def _has_run(state: State, key: str) -> bool:
    uid, name = owner_of(key)
    pod = state.pods.get(uid)
    if not state.allocations[key].is_init or pod is None or pod.facts is None:
        return False
    names = [one.name for one in pod.facts.containers]
    later = names[names.index(name) + 1 :] if name in names else []
    return any(record.name in later for record in state.containers_of(uid))


def ids(numbers: Iterable[int]) -> str:
    """Ids as a kernel list."""
    return bits.format_list(bits.from_ids(numbers))


Prints = dict[tuple[int, int, bool], Footprint]
"""Footprints by CPUs, memory nodes, and whether the CPUs are exclusive."""


def _row(seen: Seen, record: ContainerRecord, pool: CPUSet | None, prints: Prints) -> StateRow:
    allocation = seen.state.allocation_of(record) or Allocation()
    lost = allocation.cpus - seen.node.topology.online if seen.node else NO_CPUS
    own = allocation.in_force - lost
    ended = is_ended(seen.state, record)
    cpus = NO_CPUS if ended else own or pool
    return StateRow(
        record=record,
        pod=seen.state.pods.get(record.pod_uid),
        allocation=allocation,
        cpus=cpus,
        lost=lost,
        footprint=None
        if ended
        else _footprint(
            seen, cpus, allocation.mems, prints, is_own=bool(own) and not allocation.is_pod_shared
        ),
        numa_nodes=None if cpus is None or seen.node is None else seen.node.topology.nodes_of(cpus),
        is_ended=ended,
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
