"""The rows of a recording, and their conversion to events and nodes and back.

A row has only the values that decisions read. Environment variables, arguments, mounts, labels and other annotations of
pods are never written: they hold secrets, and no decision reads them. The whole node is recorded, machine and options, so
that another computer can decide again. The rows are the file format: a change that an older reader would misread is a new
version of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from nri_plugin.checkpoint.rows import (
    CPUS,
    POD_FACTS,
    POD_REFUSAL,
    AllocationRow,
    Converts,
    PodFactsRow,
    PodRefusalRow,
    RowColumn,
    RowTable,
    SavedContainer,
    SavedPod,
    each,
    optional,
)
from nri_plugin.core.decision import InformedCreate, UnsavedStart
from nri_plugin.core.drift import Observed, OwnEvent, Target
from nri_plugin.core.engine import DECIDED
from nri_plugin.core.pod_news import PodNews
from nri_plugin.model import bounds
from nri_plugin.model.bounds import Cut
from nri_plugin.model.options import HintProvider, Node, Options
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import NUMANode, SharedQueue, Topology
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState, Pod, Resources


class RecordedRow(Struct, frozen=True, omit_defaults=True):
    """A part of a line; defaults are left out, unknown fields are passed over."""


class RecordedNUMANode(RecordedRow, frozen=True):
    """A `NUMANode`."""

    id: int
    cpus: str = ""
    memory_bytes: int | None = None
    hugepages: tuple[tuple[int, int], ...] = ()
    distances: tuple[int, ...] | None = None


class RecordedQueue(RecordedRow, frozen=True):
    """A `SharedQueue`."""

    cpus: str
    delivered: str = ""


class TopologyRow(RecordedRow, frozen=True):
    """A `Topology`; groups are pairs of a number and its CPUs."""

    online: str
    cores: tuple[tuple[int, str], ...]
    sockets: tuple[tuple[int, str], ...]
    nodes: tuple[RecordedNUMANode, ...]
    caches: tuple[tuple[int, str], ...]
    caches_known: bool = True
    without_l3: str = ""
    offline: str = ""
    isolated: str = ""
    unreachable: str = ""
    queues: tuple[RecordedQueue, ...] = ()


class RecordedNode(RecordedRow, frozen=True):
    """A `Node`: the machine and its options; external hint providers by name only."""

    topology: TopologyRow
    options: dict[str, Any]
    reserved: str = ""
    hint_providers: tuple[str, ...] = ()
    withheld: str = ""


_GROUPS = RowColumn(
    lambda groups: tuple((number, CPUS.row(cpus)) for number, cpus in groups),
    lambda rows: tuple((number, CPUS.record(text)) for number, text in rows),
)
TOPOLOGY = RowTable(
    Topology,
    TopologyRow,
    online=CPUS,
    cores=_GROUPS,
    sockets=_GROUPS,
    nodes=each(RowTable(NUMANode, RecordedNUMANode, cpus=CPUS)),
    caches=_GROUPS,
    without_l3=CPUS,
    offline=CPUS,
    isolated=CPUS,
    unreachable=CPUS,
    queues=each(RowTable(SharedQueue, RecordedQueue, cpus=CPUS, delivered=CPUS)),
)


def node_row(node: Node) -> RecordedNode:
    """The row of a node."""
    return RecordedNode(
        topology=TOPOLOGY.row(node.topology),
        options=msgspec.to_builtins(node.options, order="deterministic"),
        reserved=str(node.reserved),
        withheld=str(node.withheld),
        hint_providers=names_of(node.hint_providers),
    )


def names_of(providers: Iterable[HintProvider]) -> tuple[str, ...]:
    """The names of hint providers, which stand for them in a recording."""
    return tuple(getattr(one, "__qualname__", type(one).__name__) for one in providers)


def node_from(row: RecordedNode, providers: tuple[HintProvider, ...] = ()) -> Node:
    """A node from its row; with `providers` if they have the recorded names.

    Raises:
        ValueError: a set is no kernel list, or an option is not known.
    """
    unknown = row.options.keys() - {one.name for one in fields(Options)}
    if unknown:
        raise ValueError(f"option {min(unknown)} is not known to this version")
    options = msgspec.convert(row.options, Options)
    return Node(
        TOPOLOGY.record(row.topology),
        options,
        CPUSet.parse(row.reserved),
        providers if names_of(providers) == row.hint_providers else (),
        withheld=CPUSet.parse(row.withheld),
    )


Event = nri.NRIEvent | InformedCreate | UnsavedStart | OwnEvent | PodNews


class ResourcesRow(
    RecordedRow,
    frozen=True,
    rename={
        "cpu_shares": "shares",
        "cpu_quota_us": "quota_us",
        "cpu_period_us": "period_us",
        "memory_limit_bytes": "memory_bytes",
        "hugepage_limits": "hugepages",
    },
):
    """The part of `Resources` that decides; the runtime's words for sizes of huge pages."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpus: str = ""
    mems: str = ""
    memory_limit_bytes: int | None = None
    hugepage_limits: tuple[tuple[str, int], ...] = ()


class RecordedPod(RecordedRow, frozen=True):
    """The part of `Pod` that decides; annotations are only those meant for us."""

    id: str
    uid: str = ""
    namespace: str = ""
    name: str = ""
    cgroup_parent: str = ""
    cgroups_path: str = ""
    annotations: dict[str, str] = {}
    resources: ResourcesRow | None = None
    pid: int = 0


class RecordedContainer(RecordedRow, frozen=True):
    """The part of `Container` that decides."""

    id: str
    name: str = ""
    pod_id: str = ""
    state: int = 0
    cgroups_path: str = ""
    resources: ResourcesRow = ResourcesRow()
    cut: tuple[Cut, ...] = ()
    env: tuple[str, ...] = ()


class DevicesRow(RecordedRow, frozen=True, rename={"totals": "total_by_node"}):
    """A `DeviceResource`; each device is its id and the NUMA nodes it is attached to.

    Attributes:
        totals: how many there are by NUMA nodes.
    """

    name: str
    devices: tuple[tuple[str, str], ...] = ()
    totals: tuple[tuple[str, int], ...] = ()


class ObservedRow(RecordedRow, frozen=True):
    """An `Observed`; None where a cgroup has no such file."""

    path: str = ""
    parent: str = ""
    container: str = ""
    cpus: str | None = None
    effective: str | None = None

    @property
    def target(self) -> Target:
        """The cgroup."""
        return Target(CgroupRef(self.parent, self.path), self.container)


class OutcomeRow(RecordedRow, frozen=True):
    """The outcome of an event, in short.

    Attributes:
        refusal: the reason in the answer to the runtime; empty if it was not refused.
        reason: the reason word of a refusal by policy.
        failed: it failed for another reason than policy, and nothing changed.
        cpus: CPUs in the adjustment of a created container.
        mems: its memory nodes.
        updates: (container, cpus, mems) of the updates in the answer.
        writes: the number of cgroups to write.
        overruled: why a container of a namespace that is never refused runs in the shared pool.
        steps: why, in short codes.
        took_us: until the answer was ready.
    """

    refusal: str = ""
    reason: str = ""
    failed: bool = False
    cpus: str = ""
    mems: str = ""
    updates: tuple[tuple[str, str, str], ...] = ()
    writes: int = 0
    overruled: str = ""
    steps: tuple[str, ...] = ()
    took_us: int = 0


class SnapshotRow(RecordedRow, frozen=True):
    """A `State`, in the rows of a checkpoint."""

    pods: tuple[SavedPod, ...] = ()
    containers: tuple[SavedContainer, ...] = ()
    allocations: tuple[AllocationRow, ...] = ()


class RecordedLine(RecordedRow, frozen=True):
    """Any line; the parts that are present show its kind.

    Attributes:
        format: only in a head.
        version: only in a head.
        writer: version of the program, only in a head.
        observing: in a head: no decision was carried out.
        why: the reason for a head: `start`, `full` (the segment before it), `gap` (lines before it were lost).
        at: the time; in events, heads and changes of the node.
        op: as in the log line of the decision.
        event: the event's name.
        snapshot: the state from here on; follows every head.
        node: in a head, and after a change of the machine or the configuration.
        packed: a long line, compressed by zlib; the line has no other field.
    """

    packed: bytes = b""
    format: str = ""
    version: int = 0
    writer: str = ""
    why: str = ""
    observing: bool = False
    at: datetime | None = None
    op: str = ""
    event: str = ""
    pod: RecordedPod | None = None
    container: RecordedContainer | None = None
    resources: ResourcesRow | None = None
    devices: tuple[DevicesRow, ...] = ()
    pod_devices: tuple[DevicesRow, ...] = ()
    devices_by_container: tuple[tuple[str, tuple[DevicesRow, ...]], ...] = ()
    is_informed: bool = False
    has_ended: bool = False
    unsaved: str = ""
    facts: PodFactsRow | None = None
    refusal: PodRefusalRow | None = None
    pods: tuple[RecordedPod, ...] = ()
    containers: tuple[RecordedContainer, ...] = ()
    observed: tuple[ObservedRow, ...] = ()
    outcome: OutcomeRow | None = None
    node: RecordedNode | None = None
    snapshot: SnapshotRow | None = None


RESOURCES = RowTable(Resources, ResourcesRow)
POD = RowTable(
    Pod,
    RecordedPod,
    annotations=RowColumn(lambda given: bounds.own_annotations(given)[0], dict),
    resources=optional(RESOURCES),
)
CONTAINER = RowTable(
    Container,
    RecordedContainer,
    state=RowColumn(int, ContainerState),
    resources=RESOURCES,
    # Devices that variables list are recorded as resources.
    env=RowColumn(lambda env: tuple(line for line in env if line.startswith(bounds.CLAIMS_CPUS)), tuple),
)
DEVICES = RowTable(
    DeviceResource,
    DevicesRow,
    devices=RowColumn(
        lambda devices: tuple((one.id, str(one.nodes)) for one in devices),
        lambda rows: tuple(Device(name, NodeMask.parse(nodes)) for name, nodes in rows),
    ),
    totals=RowColumn(
        lambda totals: tuple((str(nodes), count) for nodes, count in totals),
        lambda rows: tuple((NodeMask.parse(nodes), count) for nodes, count in rows),
    ),
)
_BY_CONTAINER = RowColumn(
    lambda given: tuple((name, tuple(map(DEVICES.row, devices))) for name, devices in given),
    lambda rows: tuple((name, tuple(map(DEVICES.record, devices))) for name, devices in rows),
)
OBSERVED = RowTable(
    Observed,
    ObservedRow,
    {"path": "target.cgroup.path", "parent": "target.cgroup.parent", "container": "target.container_id"},
    cpus=optional(CPUS),
    effective=optional(CPUS),
)

_PARTS: Mapping[str, Converts] = {
    "pod": POD,
    "container": CONTAINER,
    "resources": RESOURCES,
    "pods": each(POD),
    "containers": each(CONTAINER),
    "observed": each(OBSERVED),
    "facts": POD_FACTS,
    "refusal": POD_REFUSAL,
    "devices_by_container": _BY_CONTAINER,
}
"""The recorded fields of events, which are fields of a line under the same names."""

_EVENTS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in DECIDED - {InformedCreate, UnsavedStart}}

_NAMES: Mapping[type[Any], tuple[str, ...]] = {
    kind: tuple(one.name for one in fields(kind) if one.name in _PARTS) for kind in _EVENTS.values()
}


def event_line(event: Event, at: datetime, op: str, outcome: OutcomeRow | None) -> RecordedLine:
    """The line of an event."""
    return RecordedLine(at=at, op=op, outcome=outcome, **_parts(event))


def _parts(event: Event) -> dict[str, Any]:
    if isinstance(event, InformedCreate):
        return {
            **_parts(event.event),
            "is_informed": True,
            "has_ended": event.has_ended,
            "devices": tuple(map(DEVICES.row, event.devices)),
            "pod_devices": tuple(map(DEVICES.row, event.pod_devices)),
            "devices_by_container": _BY_CONTAINER.row(event.devices_by_container),
            "facts": None if event.facts is None else POD_FACTS.row(event.facts),
        }
    if isinstance(event, UnsavedStart):
        return {**_parts(event.event), "unsaved": event.why}
    parts: dict[str, Any] = {"event": type(event).__name__}
    for name in _NAMES[type(event)]:
        value = getattr(event, name)
        if value is not None:
            parts[name] = _PARTS[name].row(value)
    return parts


def event_from(line: RecordedLine) -> Event:
    """The event of a line.

    Raises:
        ValueError: its name is not known, or a part that it needs is not there.
    """
    kind = _EVENTS.get(line.event)
    if kind is None:
        raise ValueError(
            f"event {line.event!r} is not known to this version" if line.event else "neither head nor event"
        )
    parts = {}
    for one in fields(kind):
        row = getattr(line, one.name, None)
        if row is not None:
            parts[one.name] = _PARTS[one.name].record(row)
        elif one.default is MISSING:
            raise ValueError(f"event {line.event!r} without its {one.name}")
    event: Event = kind(**parts)
    if line.is_informed and isinstance(event, nri.CreateContainer):
        devices, pod_devices = (tuple(map(DEVICES.record, rows)) for rows in (line.devices, line.pod_devices))
        facts = None if line.facts is None else POD_FACTS.record(line.facts)
        others = _BY_CONTAINER.record(line.devices_by_container)
        return InformedCreate(event, devices, pod_devices, facts, others, line.has_ended)
    if line.unsaved and isinstance(
        event, nri.PostCreateContainer | nri.StartContainer | nri.PostStartContainer
    ):
        return UnsavedStart(event, line.unsaved)
    return event
