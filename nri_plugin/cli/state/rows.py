"""A row for each container: its allocation, the place on the machine, and irregularities."""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from nri_plugin.cli.state.source import Seen
from nri_plugin.model import bits
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask
from nri_plugin.model.state import Allocation, ContainerRecord, Kind, Phase, PodRecord, State
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
    """

    record: ContainerRecord
    pod: PodRecord | None
    allocation: Allocation
    cpus: CPUSet | None
    lost: CPUSet
    footprint: Footprint | None
    numa_nodes: NodeMask | None

    @property
    def is_exclusive(self) -> bool:
        """Whether it has exclusive CPUs."""
        return bool(self.allocation.cpus)

    @property
    def kind(self) -> str:
        """`exclusive`, `shared`, or `ended` where nothing is allocated to a container that stopped."""
        if self.is_ended:
            return "ended"
        return "exclusive" if self.is_exclusive else "shared"

    @property
    def is_ended(self) -> bool:
        """Whether it runs nowhere and holds nothing, as an init container that is done."""
        return is_ended(self.record, self.allocation)

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
        known = self.pod.facts.container(self.record.name) if self.pod and self.pod.facts else None
        return known.kind if known else None


def is_ended(record: ContainerRecord, allocation: Allocation) -> bool:
    """Whether a container stopped and nothing is kept for its next instance."""
    return record.phase is Phase.STOPPED and not allocation.cpus


def rows_of(seen: Seen, wanted: Wanted | None = None) -> list[StateRow]:
    """The containers asked for: pods with exclusive CPUs first, then by namespace, pod, container and id."""
    state, pool = seen.state, shared_pool(seen)
    prints: Prints = {}
    rows = [
        _row(seen, record, pool, prints)
        for record in state.containers.values()
        if wanted is None or wanted.has(record, state.pods.get(record.pod_uid))
    ]
    holders = {row.record.pod_uid for row in rows if row.is_exclusive}

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
    """Keys of allocations that wait for a container to be created again."""
    used = {record.key for record in state.containers.values()}
    return sorted(key for key in state.allocations if key not in used)


def ids(numbers: Iterable[int]) -> str:
    """Ids as a kernel list."""
    return bits.format_list(bits.from_ids(numbers))


Prints = dict[tuple[int, int, bool], Footprint]
"""Footprints by CPUs, memory nodes, and whether the CPUs are exclusive."""


def _row(seen: Seen, record: ContainerRecord, pool: CPUSet | None, prints: Prints) -> StateRow:
    allocation = seen.state.allocation_of(record) or Allocation()
    lost = allocation.cpus - seen.node.topology.online if seen.node else NO_CPUS
    own = allocation.in_force - lost
    ended = is_ended(record, allocation)
    cpus = NO_CPUS if ended else own or pool
    return StateRow(
        record=record,
        pod=seen.state.pods.get(record.pod_uid),
        allocation=allocation,
        cpus=cpus,
        lost=lost,
        footprint=None if ended else _footprint(seen, cpus, allocation.mems, prints, is_own=bool(own)),
        numa_nodes=None if cpus is None or seen.node is None else seen.node.topology.nodes_of(cpus),
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
