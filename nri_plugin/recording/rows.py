"""The rows of a recording, and their conversion to events, nodes and states and back.

A row holds the values that decisions read and nothing else. Environment variables, arguments, mounts, labels and foreign
annotations of pods are never written: they hold secrets, and no decision reads them. The node is recorded as a whole,
machine and options, so that decisions can be made again anywhere. The rows are the file format: a change that an older
reader would misread is a new version of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from nri_plugin.checkpoint import rows as checkpoint
from nri_plugin.checkpoint.rows import PodFactsRow, pod_facts_from, pod_facts_row
from nri_plugin.core.decision import InformedCreate, UnsavedStart
from nri_plugin.core.drift import CpusetsObserved, MachineChanged, Observed, OwnEvent, Target
from nri_plugin.model import bounds
from nri_plugin.model.bounds import Cut
from nri_plugin.model.options import HintProvider, Node, Options
from nri_plugin.model.sets import CoreID, CPUSet, NodeMask, NUMANodeID, SocketID, UncoreCacheID
from nri_plugin.model.state import CgroupRef, State
from nri_plugin.model.topology import NUMANode, Topology
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
    taken: str = ""


class RecordedNode(RecordedRow, frozen=True):
    """A `Node`: the machine and its options; external hint providers by name only."""

    topology: TopologyRow
    options: dict[str, Any]
    reserved: str = ""
    hint_providers: tuple[str, ...] = ()
    withheld: str = ""


def node_row(node: Node) -> RecordedNode:
    """The row of a node."""
    return RecordedNode(
        topology=topology_row(node.topology),
        options=msgspec.to_builtins(node.options, order="deterministic"),
        reserved=str(node.reserved),
        withheld=str(node.withheld),
        hint_providers=names_of(node.hint_providers),
    )


def names_of(providers: Iterable[HintProvider]) -> tuple[str, ...]:
    """How providers from outside are recorded: their code is not."""
    return tuple(getattr(one, "__qualname__", type(one).__name__) for one in providers)


def node_from(row: RecordedNode, providers: tuple[HintProvider, ...] = ()) -> Node:
    """A node from its row; with `providers` where those are the ones that were asked.

    Raises:
        ValueError: a set is no kernel list, or an option is not known.
    """
    unknown = row.options.keys() - {one.name for one in fields(Options)}
    if unknown:
        raise ValueError(f"option {min(unknown)} is not known to this version")
    options = msgspec.convert(row.options, Options)
    return Node(
        topology_from(row.topology),
        options,
        CPUSet.parse(row.reserved),
        providers if names_of(providers) == row.hint_providers else (),
        withheld=CPUSet.parse(row.withheld),
    )


def topology_row(machine: Topology) -> TopologyRow:
    """The row of a machine."""
    return TopologyRow(
        online=str(machine.online),
        cores=_listed(machine.cores),
        sockets=_listed(machine.sockets),
        nodes=tuple(
            RecordedNUMANode(one.id, str(one.cpus), one.memory_bytes, one.hugepages, one.distances)
            for one in machine.nodes
        ),
        caches=_listed(machine.caches),
        caches_known=machine.caches_known,
        without_l3=str(machine.without_l3),
        offline=str(machine.offline),
        isolated=str(machine.isolated),
        taken=str(machine.taken),
    )


def _listed(groups: Iterable[tuple[int, CPUSet]]) -> tuple[tuple[int, str], ...]:
    return tuple((number, str(cpus)) for number, cpus in groups)


def topology_from(row: TopologyRow) -> Topology:
    """A machine from its row.

    Raises:
        ValueError: a set is no kernel list.
    """
    return Topology(
        online=CPUSet.parse(row.online),
        cores=tuple((CoreID(number), CPUSet.parse(cpus)) for number, cpus in row.cores),
        sockets=tuple((SocketID(number), CPUSet.parse(cpus)) for number, cpus in row.sockets),
        nodes=tuple(
            NUMANode(
                NUMANodeID(one.id), CPUSet.parse(one.cpus), one.memory_bytes, one.hugepages, one.distances
            )
            for one in row.nodes
        ),
        caches=tuple((UncoreCacheID(number), CPUSet.parse(cpus)) for number, cpus in row.caches),
        caches_known=row.caches_known,
        without_l3=CPUSet.parse(row.without_l3),
        offline=CPUSet.parse(row.offline),
        isolated=CPUSet.parse(row.isolated),
        taken=CPUSet.parse(row.taken),
    )


Event = nri.NRIEvent | InformedCreate | UnsavedStart | OwnEvent


class ResourcesRow(RecordedRow, frozen=True):
    """The part of `Resources` that decides; the runtime's words for sizes of huge pages."""

    shares: int | None = None
    quota_us: int | None = None
    period_us: int | None = None
    cpus: str = ""
    mems: str = ""
    memory_bytes: int | None = None
    hugepages: tuple[tuple[str, int], ...] = ()


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


class DevicesRow(RecordedRow, frozen=True):
    """A `DeviceResource`; each device is its id and the NUMA nodes it is attached to.

    Attributes:
        total_by_node: how many there are by NUMA nodes; earlier releases wrote the number of a single node.
    """

    name: str
    devices: tuple[tuple[str, str], ...] = ()
    total_by_node: tuple[tuple[int | str, int], ...] = ()


class ObservedRow(RecordedRow, frozen=True):
    """An `Observed`; None where a cgroup has no such file."""

    path: str = ""
    parent: str = ""
    container: str = ""
    cpus: str | None = None
    effective: str | None = None


class OutcomeRow(RecordedRow, frozen=True):
    """The outcome of an event, in short.

    Attributes:
        refusal: why it was refused, as the runtime was told; empty when it was not.
        reason: the reason word of a refusal by policy.
        failed: something other than policy kept it from being done, and nothing changed.
        cpus: what a created container was given.
        mems: the same for memory nodes.
        updates: (container, cpus, mems) that the runtime was asked to change.
        writes: how many cgroups had to say something else.
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

    pods: tuple[checkpoint.SavedPod, ...] = ()
    containers: tuple[checkpoint.SavedContainer, ...] = ()
    allocations: tuple[checkpoint.AllocationRow, ...] = ()


class RecordedLine(RecordedRow, frozen=True):
    """Any line; the parts that are present show its kind.

    Attributes:
        format: only in a head.
        version: only in a head.
        writer: version of the program, only in a head.
        observing: in a head: nothing that is recorded was carried out.
        why: what began here, in a head: `start`, `full` (the segment before), `gap` (lines were lost before it).
        at: when; in events, heads and changes of the node.
        op: as in the log line of the decision.
        event: the event's name.
        snapshot: the state from here on; follows every head.
        node: in a head, and where another machine or configuration is decided for from here on.
        packed: a long line, compressed by zlib; nothing else stands beside it.
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
    is_informed: bool = False
    unsaved: str = ""
    facts: PodFactsRow | None = None
    pods: tuple[RecordedPod, ...] = ()
    containers: tuple[RecordedContainer, ...] = ()
    observed: tuple[ObservedRow, ...] = ()
    outcome: OutcomeRow | None = None
    node: RecordedNode | None = None
    snapshot: SnapshotRow | None = None


_POD_EVENTS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (nri.RunPodSandbox, nri.StopPodSandbox, nri.RemovePodSandbox)
}
_CONTAINER_EVENTS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        nri.CreateContainer,
        nri.PostCreateContainer,
        nri.StartContainer,
        nri.PostStartContainer,
        nri.PostUpdateContainer,
        nri.StopContainer,
        nri.RemoveContainer,
    )
}

RECORDED = frozenset(
    {
        *_POD_EVENTS.values(),
        *_CONTAINER_EVENTS.values(),
        nri.Synchronize,
        nri.UpdateContainer,
        nri.UpdatePodSandbox,
        InformedCreate,
        UnsavedStart,
        CpusetsObserved,
        MachineChanged,
    }
)
"""Events that something may follow from."""


def event_line(event: Event, at: datetime, op: str, outcome: OutcomeRow | None) -> RecordedLine:
    """The line of an event; of one that decides nothing only its name."""
    return RecordedLine(at=at, op=op, outcome=outcome, **_parts(event))


def _parts(event: Event) -> dict[str, Any]:
    if isinstance(event, InformedCreate):
        return {
            **_parts(event.event),
            "is_informed": True,
            "devices": tuple(map(_devices_row, event.devices)),
            "pod_devices": tuple(map(_devices_row, event.pod_devices)),
            "facts": None if event.facts is None else pod_facts_row(event.facts),
        }
    if isinstance(event, UnsavedStart):
        return {**_parts(event.event), "unsaved": event.why}
    parts: dict[str, Any] = {"event": type(event).__name__}
    if isinstance(event, nri.Synchronize):
        parts["pods"] = tuple(map(_pod_row, event.pods))
        parts["containers"] = tuple(map(_container_row, event.containers))
    elif isinstance(event, CpusetsObserved):
        parts["observed"] = tuple(map(_observed_row, event.observed))
    else:
        pod, container = getattr(event, "pod", None), getattr(event, "container", None)
        resources = getattr(event, "resources", None)
        parts["pod"] = None if pod is None else _pod_row(pod)
        parts["container"] = None if container is None else _container_row(container)
        parts["resources"] = None if resources is None else _resources_row(resources)
    return parts


def event_from(line: RecordedLine) -> Event:
    """The event of a line.

    Raises:
        ValueError: its name is not known, or a part that it needs is not there.
    """
    name = line.event
    if name == "Synchronize":
        return nri.Synchronize(tuple(map(_pod, line.pods)), tuple(map(_container, line.containers)))
    if name == "CpusetsObserved":
        return CpusetsObserved(tuple(map(_observed, line.observed)))
    if name == "MachineChanged":
        return MachineChanged()
    if line.pod is None:
        raise ValueError(f"event {name!r} without a pod" if name else "neither head nor event")
    pod, resources = _pod(line.pod), None if line.resources is None else _resources(line.resources)
    if name in _POD_EVENTS:
        event: Event = _POD_EVENTS[name](pod)
        return event
    if name == "UpdatePodSandbox":
        return nri.UpdatePodSandbox(pod, resources=resources)
    if line.container is None:
        raise ValueError(f"event {name!r} without a container")
    container = _container(line.container)
    if name == "UpdateContainer":
        return nri.UpdateContainer(pod, container, resources or Resources())
    return _container_event(line, pod, container)


def _container_event(line: RecordedLine, pod: Pod, container: Container) -> Event:
    """Return an event whose message holds a pod and a container, with the facts of that time."""
    name = line.event
    if name not in _CONTAINER_EVENTS:
        raise ValueError(f"event {name!r} is not known to this version")
    event: Event = _CONTAINER_EVENTS[name](pod, container)
    if line.is_informed and isinstance(event, nri.CreateContainer):
        return _informed(line, event)
    if line.unsaved and isinstance(
        event, nri.PostCreateContainer | nri.StartContainer | nri.PostStartContainer
    ):
        return UnsavedStart(event, line.unsaved)
    return event


def _informed(line: RecordedLine, event: nri.CreateContainer) -> InformedCreate:
    facts = None if line.facts is None else pod_facts_from(line.facts)
    devices, pod_devices = (tuple(map(_devices, rows)) for rows in (line.devices, line.pod_devices))
    return InformedCreate(event, devices, pod_devices, facts)


def snapshot_row(state: State) -> SnapshotRow:
    """The row of a state."""
    return SnapshotRow(
        tuple(checkpoint.pod_row(key, pod) for key, pod in state.pods.items()),
        tuple(checkpoint.container_row(key, record) for key, record in state.containers.items()),
        tuple(checkpoint.allocation_row(key, one) for key, one in state.allocations.items()),
    )


def snapshot_from(row: SnapshotRow) -> State:
    """A state from its row.

    Raises:
        ValueError: a set is no kernel list.
    """
    return State(
        dict(map(checkpoint.pod_from, row.pods)),
        dict(map(checkpoint.container_from, row.containers)),
        dict(map(checkpoint.allocation_from, row.allocations)),
    )


def _resources_row(said: Resources) -> ResourcesRow:
    return ResourcesRow(
        said.cpu_shares,
        said.cpu_quota_us,
        said.cpu_period_us,
        said.cpus,
        said.mems,
        said.memory_limit_bytes,
        said.hugepage_limits,
    )


def _resources(row: ResourcesRow) -> Resources:
    return Resources(
        cpu_shares=row.shares,
        cpu_quota_us=row.quota_us,
        cpu_period_us=row.period_us,
        cpus=row.cpus,
        mems=row.mems,
        memory_limit_bytes=row.memory_bytes,
        hugepage_limits=row.hugepages,
    )


def _pod_row(pod: Pod) -> RecordedPod:
    return RecordedPod(
        id=pod.id,
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        cgroup_parent=pod.cgroup_parent,
        cgroups_path=pod.cgroups_path,
        annotations=bounds.own_annotations(pod.annotations)[0],
        resources=None if pod.resources is None else _resources_row(pod.resources),
        pid=pod.pid,
    )


def _pod(row: RecordedPod) -> Pod:
    return Pod(
        id=row.id,
        uid=row.uid,
        namespace=row.namespace,
        name=row.name,
        cgroup_parent=row.cgroup_parent,
        cgroups_path=row.cgroups_path,
        annotations=row.annotations,
        resources=None if row.resources is None else _resources(row.resources),
        pid=row.pid,
    )


def _container_row(container: Container) -> RecordedContainer:
    return RecordedContainer(
        id=container.id,
        name=container.name,
        pod_id=container.pod_id,
        state=int(container.state),
        cgroups_path=container.cgroups_path,
        resources=_resources_row(container.resources),
        cut=container.cut,
    )


def _container(row: RecordedContainer) -> Container:
    return Container(
        id=row.id,
        name=row.name,
        pod_id=row.pod_id,
        state=ContainerState(row.state),
        cgroups_path=row.cgroups_path,
        resources=_resources(row.resources),
        cut=row.cut,
    )


def _devices_row(resource: DeviceResource) -> DevicesRow:
    given = tuple((device.id, str(device.nodes)) for device in resource.devices)
    return DevicesRow(resource.name, given, tuple((str(nodes), count) for nodes, count in resource.totals))


def _devices(row: DevicesRow) -> DeviceResource:
    given = tuple(Device(name, NodeMask.parse(nodes)) for name, nodes in row.devices)
    totals = tuple((NodeMask.parse(str(nodes)), count) for nodes, count in row.total_by_node)
    return DeviceResource(row.name, given, totals)


def _observed_row(one: Observed) -> ObservedRow:
    return ObservedRow(
        one.target.cgroup.path,
        one.target.cgroup.parent,
        one.target.container_id,
        None if one.cpus is None else str(one.cpus),
        None if one.effective is None else str(one.effective),
    )


def _observed(row: ObservedRow) -> Observed:
    return Observed(
        Target(CgroupRef(row.parent, row.path), row.container),
        None if row.cpus is None else CPUSet.parse(row.cpus),
        None if row.effective is None else CPUSet.parse(row.effective),
    )
