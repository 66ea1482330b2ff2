"""The rows of a checkpoint, and their conversion to the records of a state and back.

The rows are the file format: a change here is a new version of it. The facts of a pod come first, because the exporter
sends the same form.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Struct

from nri_plugin.core.outdated import allocatable_memory
from nri_plugin.model import bits, bounds
from nri_plugin.model.options import Node, Options
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask, NUMANodeID
from nri_plugin.model.state import (
    Allocation,
    Amounts,
    CgroupRef,
    ContainerFacts,
    ContainerRecord,
    Kind,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
    Resize,
    Size,
)
from nri_plugin.model.topology import NUMANode, Topology


class AmountsRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An `Amounts`."""

    cpu_request_milli: int = 0
    cpu_limit_milli: int = 0
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    hugepages: tuple[tuple[str, int], ...] = ()


NO_AMOUNTS = AmountsRow()


class ContainerFactsRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `ContainerFacts`."""

    name: str
    kind: Kind = Kind.APP
    amounts: AmountsRow | None = None


class PodFactsRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `PodFacts`."""

    uid: str
    qos: QOSClass
    containers: tuple[ContainerFactsRow, ...] = ()
    pod_resources: AmountsRow | None = None


def pod_facts_row(facts: PodFacts) -> PodFactsRow:
    """The row of a pod's facts."""
    return PodFactsRow(
        uid=facts.uid,
        qos=facts.qos,
        containers=tuple(
            ContainerFactsRow(one.name, one.kind, None if one.amounts == Amounts() else _row(one.amounts))
            for one in facts.containers
        ),
        pod_resources=None if facts.pod_resources is None else _row(facts.pod_resources),
    )


def pod_facts_from(row: PodFactsRow) -> PodFacts:
    """A pod's facts from their row."""
    return PodFacts(
        row.uid,
        row.qos,
        tuple(ContainerFacts(one.name, one.kind, _from(one.amounts or NO_AMOUNTS)) for one in row.containers),
        None if row.pod_resources is None else _from(row.pod_resources),
    )


def _row(amounts: Amounts) -> AmountsRow:
    return AmountsRow(
        amounts.cpu_request_milli,
        amounts.cpu_limit_milli,
        amounts.memory_request_bytes,
        amounts.memory_limit_bytes,
        amounts.hugepages,
    )


def _from(row: AmountsRow) -> Amounts:
    return Amounts(
        row.cpu_request_milli,
        row.cpu_limit_milli,
        row.memory_request_bytes,
        row.memory_limit_bytes,
        row.hugepages,
    )


class SavedRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of the file; fields at their default are left out."""


class SavedPod(SavedRow, frozen=True):
    """A `PodRecord`."""

    uid: str
    sandbox_id: str
    qos: QOSClass
    name: str = ""
    namespace: str = ""
    cgroup_parent: str = ""
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    hugepages: tuple[tuple[str, int], ...] = ()
    sandbox_path: str = ""
    limit_milli: int = 0
    affinity: str | None = None
    affinity_preferred: bool = True
    annotations: tuple[tuple[str, str], ...] = ()
    run_seen: bool = False
    facts: PodFactsRow | None = None
    devices_counted: bool = False


class SavedContainer(SavedRow, frozen=True):
    """A `ContainerRecord`; its `CgroupRef` is `cgroup_path` and the parent that path begins with.

    `cgroup_parent` is there only when the path does not say it.
    """

    id: str
    pod_uid: str
    name: str
    phase: Phase
    cgroup_path: str = ""
    cgroup_parent: str | None = None
    stored_cpus: str = ""
    stored_mems: str = ""
    limit_milli: int = 0
    unplaced: str = ""
    affinity: str | None = None
    affinity_preferred: bool = True


class SavedMemory(SavedRow, frozen=True):
    """A `MemoryBlock`."""

    nodes: str
    resource: str
    size_bytes: int


class SizeRow(SavedRow, frozen=True):
    """A `Size`."""

    cpus: str = ""
    grown: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory: tuple[SavedMemory, ...] = ()


class ResizeRow(SavedRow, frozen=True):
    """A `Resize`."""

    before: SizeRow
    after: SizeRow


class AllocationRow(SavedRow, frozen=True):
    """An `Allocation` and the key it is kept under."""

    key: str
    cpus: str = ""
    mems: str = ""
    memory: tuple[SavedMemory, ...] = ()
    cpu_milli: int = 0
    affinity: str = ""
    preferred: bool = True
    grown: tuple[str, ...] = ()
    resize: ResizeRow | None = None
    returned: tuple[SavedMemory, ...] = ()


class SavedNode(SavedRow, frozen=True):
    """A `NodeFacts`; `numa_nodes` gives CPUs by the number of the NUMA node."""

    online: str
    reserved: str
    numa_nodes: dict[int, str]
    memory_nodes: str
    strict_cpu_reservation: bool = False
    isolated: str = ""
    memory: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a reader of the checkpoint has to know of the machine it was made on.

    Attributes:
        online: CPUs that were online at the time.
        reserved: CPUs for the system.
        numa_nodes: each NUMA node with its CPUs, ascending.
        memory_nodes: NUMA nodes on which memory can be placed.
        strict_cpu_reservation: whether the reserved CPUs are not in the shared pool.
        isolated: CPUs that the shared pool stays out of.
        memory: allocatable bytes of each (NUMA node, resource); empty where no memory is allocated.
    """

    online: CPUSet
    reserved: CPUSet
    numa_nodes: tuple[tuple[NUMANodeID, CPUSet], ...]
    memory_nodes: NodeMask
    strict_cpu_reservation: bool = False
    isolated: CPUSet = NO_CPUS
    memory: tuple[tuple[int, str, int], ...] = ()

    @classmethod
    def of(cls, node: Node) -> "NodeFacts":
        """The facts of a node."""
        topology = node.topology
        return cls(
            online=topology.online,
            reserved=node.reserved,
            numa_nodes=tuple((numa.id, numa.cpus) for numa in topology.nodes),
            memory_nodes=topology.nodes_with_memory,
            strict_cpu_reservation=node.options.strict_cpu_reservation,
            isolated=node.isolated,
            memory=tuple((*where, size) for where, size in allocatable_memory(node).items()),
        )

    def as_node(self) -> Node:
        """A node with these facts, good for judging a state, not for making decisions."""
        nodes = tuple(
            NUMANode(number, cpus, None if number in self.memory_nodes else 0)
            for number, cpus in self.numa_nodes
        )
        topology = Topology(
            online=self.online, cores=(), sockets=(), nodes=nodes, caches=(), isolated=self.isolated
        )
        options = Options(strict_cpu_reservation=self.strict_cpu_reservation)
        return Node(topology=topology, options=options, reserved=self.reserved)


@lru_cache(maxsize=4096)
def _text(mask: int) -> str:
    """The kernel list of a mask; the same few sets are written again and again."""
    return bits.format_list(mask)


@lru_cache(maxsize=4096)
def _mask(text: str) -> int:
    return bits.parse_list(text)


def _cpus(text: str) -> CPUSet:
    return CPUSet(_mask(text))


def _nodes(text: str) -> NodeMask:
    return NodeMask(_mask(text))


def facts_row(facts: NodeFacts) -> SavedNode:
    """The row of the node's facts."""
    return SavedNode(
        online=_text(facts.online.mask),
        reserved=_text(facts.reserved.mask),
        numa_nodes={int(number): _text(cpus.mask) for number, cpus in facts.numa_nodes},
        memory_nodes=_text(facts.memory_nodes.mask),
        strict_cpu_reservation=facts.strict_cpu_reservation,
        isolated=_text(facts.isolated.mask),
        memory=facts.memory,
    )


def facts_from(row: SavedNode) -> NodeFacts:
    """The node's facts from their row.

    Raises:
        ValueError: a set is no kernel list.
    """
    return NodeFacts(
        online=_cpus(row.online),
        reserved=_cpus(row.reserved),
        numa_nodes=tuple(
            (NUMANodeID(number), _cpus(cpus)) for number, cpus in sorted(row.numa_nodes.items())
        ),
        memory_nodes=_nodes(row.memory_nodes),
        strict_cpu_reservation=row.strict_cpu_reservation,
        isolated=_cpus(row.isolated),
        memory=row.memory,
    )


def pod_row(_key: str, pod: PodRecord) -> SavedPod:
    """The row of a pod."""
    return SavedPod(
        uid=pod.uid,
        sandbox_id=pod.sandbox_id,
        qos=pod.qos,
        name=pod.name,
        namespace=pod.namespace,
        cgroup_parent=pod.cgroup_parent,
        cpu_milli=pod.cpu_milli,
        memory_bytes=pod.memory_bytes,
        hugepages=pod.hugepages,
        sandbox_path=pod.sandbox_path,
        limit_milli=pod.limit_milli,
        affinity=None if pod.affinity is None else _text(pod.affinity.mask),
        affinity_preferred=pod.affinity_preferred,
        annotations=pod.annotations,
        run_seen=pod.run_seen,
        facts=None if pod.facts is None else pod_facts_row(pod.facts),
        devices_counted=pod.devices_counted,
    )


def pod_from(row: SavedPod) -> tuple[str, PodRecord]:
    """A pod and its key from their row.

    Raises:
        ValueError: a set is no kernel list.
    """
    return row.uid, PodRecord(
        uid=row.uid,
        sandbox_id=row.sandbox_id,
        name=row.name,
        namespace=row.namespace,
        qos=row.qos,
        cgroup_parent=row.cgroup_parent,
        cpu_milli=row.cpu_milli,
        memory_bytes=row.memory_bytes,
        hugepages=row.hugepages,
        sandbox_path=row.sandbox_path,
        limit_milli=row.limit_milli,
        affinity=None if row.affinity is None else _nodes(row.affinity),
        affinity_preferred=row.affinity_preferred,
        annotations=tuple(bounds.own_annotations(dict(row.annotations))[0].items()),
        run_seen=row.run_seen,
        facts=None if row.facts is None else pod_facts_from(row.facts),
        devices_counted=row.devices_counted,
    )


def _parent_in(cgroup_path: str) -> str:
    """What a cgroups path begins with: `SLICE` of `SLICE:prefix:id`, the directory of a plain path."""
    return cgroup_path.partition(":")[0] if ":" in cgroup_path else cgroup_path.rpartition("/")[0]


def container_row(_key: str, record: ContainerRecord) -> SavedContainer:
    """The row of a container."""
    return SavedContainer(
        id=record.id,
        pod_uid=record.pod_uid,
        name=record.name,
        phase=record.phase,
        cgroup_path=record.cgroup.path,
        cgroup_parent=None
        if record.cgroup.parent == _parent_in(record.cgroup.path)
        else record.cgroup.parent,
        stored_cpus=_text(record.stored_cpus.mask),
        stored_mems=_text(record.stored_mems.mask),
        limit_milli=record.limit_milli,
        unplaced=record.unplaced,
        affinity=None if record.affinity is None else _text(record.affinity.mask),
        affinity_preferred=record.affinity_preferred,
    )


def container_from(row: SavedContainer) -> tuple[str, ContainerRecord]:
    """A container and its key from their row.

    Raises:
        ValueError: a set is no kernel list.
    """
    parent = _parent_in(row.cgroup_path) if row.cgroup_parent is None else row.cgroup_parent
    return row.id, ContainerRecord(
        id=row.id,
        pod_uid=row.pod_uid,
        name=row.name,
        phase=row.phase,
        cgroup=CgroupRef(parent, row.cgroup_path),
        stored_cpus=_cpus(row.stored_cpus),
        stored_mems=_nodes(row.stored_mems),
        limit_milli=row.limit_milli,
        unplaced=row.unplaced,
        affinity=None if row.affinity is None else _nodes(row.affinity),
        affinity_preferred=row.affinity_preferred,
    )


def allocation_row(key: str, allocation: Allocation) -> AllocationRow:
    """The row of an allocation."""
    return AllocationRow(
        key=key,
        cpus=_text(allocation.cpus.mask),
        mems=_text(allocation.mems.mask),
        memory=_memory_rows(allocation.memory),
        cpu_milli=allocation.cpu_milli,
        affinity=_text(allocation.affinity.mask),
        preferred=allocation.preferred,
        grown=_texts(allocation.grown),
        resize=None
        if allocation.resize is None
        else ResizeRow(_size_row(allocation.resize.before), _size_row(allocation.resize.after)),
        returned=_memory_rows(allocation.returned),
    )


def _size_row(size: Size) -> SizeRow:
    return SizeRow(_text(size.cpus.mask), _texts(size.grown), size.cpu_milli, _memory_rows(size.memory))


def _texts(sets: Iterable[CPUSet]) -> tuple[str, ...]:
    return tuple(_text(one.mask) for one in sets)


def _memory_rows(blocks: Iterable[MemoryBlock]) -> tuple[SavedMemory, ...]:
    return tuple(
        SavedMemory(nodes=_text(block.nodes.mask), resource=block.resource, size_bytes=block.size_bytes)
        for block in blocks
    )


def allocation_from(row: AllocationRow) -> tuple[str, Allocation]:
    """An allocation and its key from their row.

    Raises:
        ValueError: a set is no kernel list.
    """
    return row.key, Allocation(
        cpus=_cpus(row.cpus),
        mems=_nodes(row.mems),
        memory=_blocks(row.memory),
        cpu_milli=row.cpu_milli,
        affinity=_nodes(row.affinity),
        preferred=row.preferred,
        grown=tuple(map(_cpus, row.grown)),
        resize=None
        if row.resize is None
        else Resize(_size_from(row.resize.before), _size_from(row.resize.after)),
        returned=_blocks(row.returned),
    )


def _size_from(row: SizeRow) -> Size:
    return Size(_cpus(row.cpus), tuple(map(_cpus, row.grown)), row.cpu_milli, _blocks(row.memory))


def _blocks(rows: Iterable[SavedMemory]) -> tuple[MemoryBlock, ...]:
    return tuple(MemoryBlock(_nodes(row.nodes), row.resource, row.size_bytes) for row in rows)
