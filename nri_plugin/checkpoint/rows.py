"""The rows of a checkpoint, and their conversion to the records of a state and back.

The rows are the file format: a change here is a new version of it. A row is declared by a `Struct`, and its `RowTable`
names the fields whose values differ between the record and the row. A new kind of record needs these two and, where it is
a part of the state, a line in `STATE_ROWS`. The exporter sends the facts of a pod in the same form.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from nri_plugin.core.outdated import allocatable_memory
from nri_plugin.model import bits, bounds
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import (
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
    PodRefusal,
    QOSClass,
    Regime,
    Resize,
    Size,
)
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask, NUMANodeID
from nri_plugin.model.state import State
from nri_plugin.model.topology import NUMANode, Topology

RecordT = TypeVar("RecordT")
RowT = TypeVar("RowT", bound=Struct)


class RowColumn(NamedTuple):
    """Two functions that convert a value of a record to the value in a row, and back."""

    row: Callable[[Any], Any]
    record: Callable[[Any], Any]


class RowTable(Generic[RecordT, RowT]):
    """Converts records of one class to rows and back, field by field.

    A value moves to the field of the same name. A record gets its default for a field that its row does not have.

    Args:
        record_type: a dataclass.
        row_type: the rows. Fields that a record does not have come first; properties stand for fields of the record
            that a row holds in parts.
        paths: by field of the row, the attribute of a record that it holds, such as `cgroup.path`.
        columns: conversions, by field, of values that are not the same in both.

    Attributes:
        row_type: as given.
        row: makes the row of a record; further arguments are the values of the fields that come first, if there are any.
        record: makes the record of a row. Raises `ValueError` where a set is no kernel list.
    """

    def __init__(
        self,
        record_type: type[RecordT],
        row_type: type[RowT],
        paths: Mapping[str, str] = MappingProxyType({}),
        **columns: "Converts",
    ) -> None:
        self.row_type = row_type
        of_record = names_of(record_type)
        of_row = {
            name: paths.get(name, name)
            for name in row_type.__struct_fields__
            if name in of_record or name in paths
        }
        assert columns.keys() <= {*of_row, *of_record}, "a column is named for no field"
        self.row: Callable[..., RowT] = _constructor(
            row_type,
            of_row,
            {name: one.row for name, one in columns.items()},
            has_first=len(of_row) < len(row_type.__struct_fields__),
        )
        self.record: Callable[[RowT], RecordT] = _constructor(
            record_type,
            {name: name for name in of_record if hasattr(row_type, name)},
            {name: one.record for name, one in columns.items()},
        )


def names_of(record_type: type[Any]) -> tuple[str, ...]:
    """The names of the fields of a Struct or of a dataclass."""
    if issubclass(record_type, Struct):
        return record_type.__struct_fields__
    return tuple(one.name for one in fields(record_type))


def _constructor(
    made: type[Any],
    paths: Mapping[str, str],
    converts: Mapping[str, Callable[[Any], Any]],
    *,
    has_first: bool = False,
) -> Callable[..., Any]:
    """Return a function that makes a `made` from the attributes of an object.

    It is compiled, as `dataclasses` compiles `__init__`: a loop over the fields takes twice as long, and each status line
    converts all records of the node.

    Args:
        made: the class.
        paths: by field of `made`, the attribute of the object.
        converts: by field, a function for its value.
        has_first: whether further arguments of the function are the first fields; they are ignored otherwise.
    """
    values = [
        f"{name}=convert_{name}(given.{path})" if name in converts else f"{name}=given.{path}"
        for name, path in paths.items()
    ]
    source = f"lambda given, *first: made({', '.join([*(['*first'] if has_first else []), *values])})"
    names = {f"convert_{name}": convert for name, convert in converts.items()}
    function: Callable[..., Any] = eval(source, {"made": made, **names})  # noqa: S307 - of names of fields
    return function


Converts = RowColumn | RowTable[Any, Any]


def optional(one: Converts) -> RowColumn:
    """The column of a value that may be None."""
    return RowColumn(
        lambda value: None if value is None else one.row(value),
        lambda value: None if value is None else one.record(value),
    )


def each(one: Converts) -> RowColumn:
    """The column of a tuple of such values."""
    return RowColumn(
        lambda values: values and tuple(map(one.row, values)),
        lambda rows: rows and tuple(map(one.record, rows)),
    )


# The same few sets are written and read again and again.
@lru_cache(maxsize=4096)
def _text(mask: int) -> str:
    return bits.format_list(mask)


@lru_cache(maxsize=4096)
def _mask(text: str) -> int:
    return bits.parse_list(text)


CPUS = RowColumn(lambda cpus: _text(cpus.mask), lambda text: CPUSet(_mask(text)))
NODES = RowColumn(lambda nodes: _text(nodes.mask), lambda text: NodeMask(_mask(text)))
"""Sets are kernel lists in rows."""


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


class PodRefusalRow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A `PodRefusal`."""

    reason: str
    message: str
    with_devices: bool = False
    is_final: bool = False


AMOUNTS = RowTable(Amounts, AmountsRow)
POD_REFUSAL = RowTable(PodRefusal, PodRefusalRow)
CONTAINER_FACTS = RowTable(
    ContainerFacts,
    ContainerFactsRow,
    amounts=RowColumn(
        lambda amounts: None if amounts == Amounts() else AMOUNTS.row(amounts),
        lambda row: AMOUNTS.record(row or NO_AMOUNTS),
    ),
)
POD_FACTS = RowTable(PodFacts, PodFactsRow, containers=each(CONTAINER_FACTS), pod_resources=optional(AMOUNTS))


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
    is_admitted: bool = False
    regime: Regime | None = None
    vm_handler: str = ""
    refusal: PodRefusalRow | None = None


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

    @property
    def cgroup(self) -> CgroupRef:
        """The cgroup of the record."""
        parent = _parent_in(self.cgroup_path) if self.cgroup_parent is None else self.cgroup_parent
        return CgroupRef(parent, self.cgroup_path)


def _parent_in(cgroup_path: str) -> str:
    """The beginning of a cgroups path: `SLICE` of `SLICE:prefix:id`, the directory of a plain path."""
    return cgroup_path.partition(":")[0] if ":" in cgroup_path else cgroup_path.rpartition("/")[0]


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
    is_init: bool = False
    is_pod_shared: bool = False
    claim: str = ""


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
    """The facts of a machine that a reader of its checkpoint needs.

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


NODE_FACTS = RowTable(
    NodeFacts,
    SavedNode,
    online=CPUS,
    reserved=CPUS,
    numa_nodes=RowColumn(
        lambda pairs: {int(number): CPUS.row(cpus) for number, cpus in pairs},
        lambda row: tuple((NUMANodeID(number), CPUS.record(cpus)) for number, cpus in sorted(row.items())),
    ),
    memory_nodes=NODES,
    isolated=CPUS,
)
POD = RowTable(
    PodRecord,
    SavedPod,
    affinity=optional(NODES),
    # A checkpoint may come from a release with wider bounds.
    annotations=RowColumn(tuple, lambda row: tuple(bounds.own_annotations(dict(row))[0].items())),
    facts=optional(POD_FACTS),
    refusal=optional(POD_REFUSAL),
)
CONTAINER = RowTable(
    ContainerRecord,
    SavedContainer,
    {"cgroup_path": "cgroup.path", "cgroup_parent": "cgroup"},
    cgroup_parent=RowColumn(
        lambda cgroup: None if cgroup.parent == _parent_in(cgroup.path) else cgroup.parent, str
    ),
    stored_cpus=CPUS,
    stored_mems=NODES,
    affinity=optional(NODES),
)
MEMORY = RowTable(MemoryBlock, SavedMemory, nodes=NODES)
SIZE = RowTable(Size, SizeRow, cpus=CPUS, grown=each(CPUS), memory=each(MEMORY))
RESIZE = RowTable(Resize, ResizeRow, before=SIZE, after=SIZE)
ALLOCATION = RowTable(
    Allocation,
    AllocationRow,
    cpus=CPUS,
    mems=NODES,
    memory=each(MEMORY),
    affinity=NODES,
    grown=each(CPUS),
    resize=optional(RESIZE),
)


class KeyedRows(NamedTuple):
    """The rows of one mapping of a state.

    Attributes:
        table: converts them; the key comes first in a row whose record does not have it.
        key: the field of a row that holds the key.
    """

    table: RowTable[Any, Any]
    key: str


STATE_ROWS: Mapping[str, KeyedRows] = {
    "pods": KeyedRows(POD, "uid"),
    "containers": KeyedRows(CONTAINER, "id"),
    "allocations": KeyedRows(ALLOCATION, "key"),
}
"""By the names of the state's mappings, in the order of a checkpoint."""


def state_rows(state: State) -> dict[str, tuple[Any, ...]]:
    """The rows of a state, by the names of its mappings."""
    return {
        name: tuple([rows.table.row(record, key) for key, record in getattr(state, name).items()])
        for name, rows in STATE_ROWS.items()
    }


Tables = dict[str, dict[str, Any]]
"""The records of a state by key, by the names of its mappings."""


def tables_from(document: Struct) -> Tables:
    """The records of a document with the fields of `STATE_ROWS`; of two rows with the same key the later one.

    Raises:
        ValueError: a set is no kernel list.
    """
    return {
        name: {getattr(row, rows.key): rows.table.record(row) for row in getattr(document, name)}
        for name, rows in STATE_ROWS.items()
    }


def state_from(document: Struct) -> State:
    """The state of such a document.

    Raises:
        ValueError: a set is no kernel list.
    """
    return State(**tables_from(document))
