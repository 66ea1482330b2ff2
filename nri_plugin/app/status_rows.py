"""What the agent tells on its status socket: one JSON object on a line, made by one side and read by the other.

    {"version": 1, "agent": "0.1.0", "machine": {...}, "options": {...}, "reserved": "0-1",
     "pods": [...], "containers": [...], "allocations": [...], "refusals": [...],
     "drifts": [...], "lost": [...], "runtime": {...}, "observing": false, "failed_creations": 0}

A line holds everything: who missed some is right again with the next. CPUs and NUMA nodes are kernel lists; the rows
of pods, containers and allocations are those of the checkpoint.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from nri_plugin import __version__
from nri_plugin.cpuset import CPUSet
from nri_plugin.host.checkpoint_rows import (
    AllocationRow,
    ContainerRow,
    PodRow,
    allocation_from,
    allocation_row,
    container_from,
    container_row,
    pod_from,
    pod_row,
)
from nri_plugin.host.recording_node import TopologyRow, topology_from, topology_row
from nri_plugin.options import Node, Options
from nri_plugin.state import State, owner_of

VERSION = 1
LINE_BYTES = 64 << 20
"""A longer line is no status: 10,000 containers take a twentieth of it."""


class RefusalRow(Struct, frozen=True):
    """A container that was refused.

    Attributes:
        number: counts all refusals since the agent began; tells a new one from one already seen.
        reason: the kubelet's reason word.
        detail: the whole sentence.
    """

    number: int
    pod_uid: str
    namespace: str
    pod: str
    container: str
    reason: str
    detail: str


class DriftRow(Struct, frozen=True):
    """A cgroup that said something else than it should, and one try to put it right; see `DriftReport`.

    Attributes:
        number: counts all drifts since the agent began; tells a new one from one already seen.
        cgroup: as the runtime names it.
        container_id: whose; empty for a QoS slice.
        name: `namespace/pod/container`, or the slice.
        found: CPUs written there, null where the cpuset files were gone.
        effective: CPUs its processes ran on.
        cause: `stored-value`, `all-cpus`, `never-set`, `files-gone`, `narrowed-above` or `other-value`.
        noticed_by: `watch` or `sweep`.
        round: how often in a row it was put right.
        is_fight: somebody puts back what we change.
        error: why it could not be put right, empty when it was.
    """

    number: int
    cgroup: str
    container_id: str
    name: str
    found: str | None
    effective: str | None
    desired: str
    cause: str
    noticed_by: str
    round: int
    is_fight: bool
    error: str = ""


class LostRow(Struct, frozen=True):
    """A container whose exclusive CPUs are not all online.

    Attributes:
        lost: those that are not; they stay promised.
        runs_on: what it has instead: the rest, or the shared pool when nothing is left.
    """

    pod_uid: str
    container: str
    lost: str
    runs_on: str


class RuntimeRow(Struct, frozen=True):
    """The container runtime that the agent answers, as it introduced itself.

    Attributes:
        nri: the version of its NRI library, told since 0.12.
        request_timeout_ms: told since 0.7, else 0; so is the other.
    """

    name: str
    version: str
    nri: str = ""
    request_timeout_ms: int = 0
    registration_timeout_ms: int = 0


class StatusRow(Struct, frozen=True):
    """One line."""

    version: int
    agent: str
    machine: TopologyRow
    options: dict[str, Any]
    reserved: str
    pods: tuple[PodRow, ...]
    containers: tuple[ContainerRow, ...]
    allocations: tuple[AllocationRow, ...]
    refusals: tuple[RefusalRow, ...] = ()
    drifts: tuple[DriftRow, ...] = ()
    lost: tuple[LostRow, ...] = ()
    runtime: RuntimeRow | None = None
    observing: bool = False
    failed_creations: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """The agent at one moment.

    Attributes:
        node: what it decides for, without hint providers.
        state: what it has promised.
        refusals: the latest, oldest first.
        drifts: the latest, oldest first.
        runtime: who asks it; None while nobody does.
        agent: its version; empty of one that is not told.
        observing: nothing of it is carried out.
        failed_creations: creations that failed one after the other, after the agent's answer.
    """

    node: Node
    state: State
    refusals: tuple[RefusalRow, ...] = ()
    drifts: tuple[DriftRow, ...] = ()
    runtime: RuntimeRow | None = None
    agent: str = ""
    observing: bool = False
    failed_creations: int = 0

    @property
    def lost(self) -> tuple[LostRow, ...]:
        """Who misses exclusive CPUs."""
        return tuple(
            _lost_row(self.node, self.state, key, cpus) for key, cpus in self.state.lost(self.node).items()
        )


def encode(status: Status) -> bytes:
    """The line, newline included."""
    node, state = status.node, status.state
    row = StatusRow(
        version=VERSION,
        agent=__version__,
        machine=topology_row(node.topology),
        options=msgspec.to_builtins(node.options),
        reserved=str(node.reserved),
        pods=tuple(pod_row(*item) for item in state.pods.items()),
        containers=tuple(container_row(*item) for item in state.containers.items()),
        allocations=tuple(allocation_row(*item) for item in state.allocations.items()),
        refusals=status.refusals,
        drifts=status.drifts,
        lost=status.lost,
        runtime=status.runtime,
        observing=status.observing,
        failed_creations=status.failed_creations,
    )
    return msgspec.json.encode(row) + b"\n"


def decode(line: bytes) -> Status:
    """What a line says.

    Raises:
        ValueError: it is none of ours, or of another version.
    """
    version = msgspec.json.decode(line, type=_VersionRow).version
    if version != VERSION:
        raise ValueError(f"the agent speaks version {version} of the status, this program version {VERSION}")
    row = msgspec.json.decode(line, type=StatusRow)
    state = State(
        pods=dict(map(pod_from, row.pods)),
        containers=dict(map(container_from, row.containers)),
        allocations=dict(map(allocation_from, row.allocations)),
    )
    options = msgspec.convert(row.options, Options)
    node = Node(topology_from(row.machine), options, CPUSet.parse(row.reserved))
    return Status(
        node, state, row.refusals, row.drifts, row.runtime, row.agent, row.observing, row.failed_creations
    )


class _VersionRow(Struct):
    version: int


def _lost_row(node: Node, state: State, key: str, lost: CPUSet) -> LostRow:
    uid, container = owner_of(key)
    left = state.allocations[key].cpus - lost
    return LostRow(uid, container, str(lost), str(left or state.shared_pool(node)))
