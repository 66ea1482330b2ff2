"""The line of the agent's status socket, its readers, and the one question that a reader may ask.

The agent writes one JSON object on a line:

    {"version": 1, "agent": "0.1.0", "machine": {...}, "options": {...}, "reserved": "0-1",
     "pods": [...], "containers": [...], "allocations": [...], "refusals": [...],
     "drifts": [...], "lost": [...], "runtime": {...}, "observing": false, "failed_creations": 0,
     "incomplete": [...], "quiet": {...}, "unreported": [...]}

A line holds everything, so a reader that missed some is right again with the next. CPUs and NUMA nodes are kernel lists.
The rows of pods, containers and allocations are those of the checkpoint.

A reader may write one line, `RejectRow`: it asks to set a refused pod to Failed. The agent admits no container of the pod from
then on, and the next status shows that (`PodRefusal.is_final`). If a container of the pod lives, nothing changes.
"""

import logging
import socket
import time
from collections.abc import Callable, Container, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from nri_plugin import __version__
from nri_plugin.checkpoint.rows import AllocationRow, SavedContainer, SavedPod, state_from, state_rows
from nri_plugin.core.reuse import lives
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, Phase, PodRefusal, is_whole_pod, owner_of, pod_of
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.process.logs import say
from nri_plugin.recording.rows import TOPOLOGY, TopologyRow

VERSION = 1
LINE_BYTES = 64 << 20
"""The longest line that is read; a status of 10,000 containers has a twentieth of it."""


class RejectRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The line by which the exporter asks to set a pod to Failed.

    Attributes:
        reason: for the case that the agent has not kept why the pod was refused, as `message`.
    """

    reject_pod: str
    reason: str
    message: str


class RefusalRow(Struct, frozen=True):
    """A container that was refused.

    Attributes:
        number: counts all refusals since the agent began; tells a new one from one already seen.
        reason: the kubelet's reason word.
        detail: the whole sentence.
        message: the kubelet's message about such a pod, and ours behind it.
    """

    number: int
    pod_uid: str
    namespace: str
    pod: str
    container: str
    reason: str
    detail: str
    message: str = ""


class DriftRow(Struct, frozen=True):
    """A cgroup that differed from the desired cpuset, and one repair; see `DriftReport`.

    Attributes:
        number: counts all drifts since the agent began; tells a new one from one already seen.
        cgroup: its name in the runtime.
        container_id: of its container; empty for a QoS slice.
        name: `namespace/pod/container`, or the slice.
        found: CPUs written there, null where the cpuset files were gone.
        effective: CPUs its processes ran on.
        cause: `stored-value`, `all-cpus`, `never-set`, `files-gone`, `narrowed-above`, `other-value` or
            `never-told`.
        noticed_by: `watch` or `sweep`.
        round: how often in a row it was repaired.
        is_fight: whether another writer undoes every repair.
        error: why it could not be repaired; empty when it was.
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
        lost: those that are offline; they stay allocated.
        runs_on: its other CPUs, or the shared pool when none are left.
    """

    pod_uid: str
    container: str
    lost: str
    runs_on: str


class RefusedContainerRow(Struct, frozen=True):
    """A refused container of an incomplete pod; see `RefusalRow`."""

    container: str
    reason: str
    detail: str


class SiblingRow(Struct, frozen=True):
    """Another container of an incomplete pod.

    Attributes:
        cpus: its CPUs that are allocated; empty in the shared pool.
        mems: the NUMA nodes that its memory is bound to; empty for any.
        is_created: whether the runtime has it; else its CPUs wait for it.
        is_pod_shared: `cpus` are the shared pool of its pod.
    """

    container: str
    cpus: str
    mems: str
    is_created: bool
    is_pod_shared: bool = False

    def __str__(self) -> str:
        """Return the container and what it holds."""
        held = "shared pool"
        if self.cpus:
            held = f"{'pod shared pool' if self.is_pod_shared else 'CPUs'} {self.cpus}"
        return f"{self.container} ({held}{'' if self.is_created else ', not created'})"


LACKING = (
    "it should own {} as a whole, and these could not be rebuilt; delete the pod, so that it is made anew"
)
"""Why a pod that was found running is incomplete, with what it lacks."""


class IncompletePodRow(Struct, frozen=True):
    """A pod that runs in part: a container was refused while others of it exist, or what it owns as a whole is lost.

    Attributes:
        refused: its refused containers, with the latest refusal of each.
        siblings: its other containers.
        lacks: the resources that the pod should own as a whole and that could not be rebuilt; empty where none are missing.
    """

    pod_uid: str
    namespace: str
    pod: str
    refused: tuple[RefusedContainerRow, ...]
    siblings: tuple[SiblingRow, ...]
    lacks: str = ""

    def __str__(self) -> str:
        """Return what the pod lacks, which containers were refused, and what the others hold."""
        refused = ", ".join(f"{one.container} ({one.reason})" for one in self.refused)
        others = siblings_text(self.siblings) or "none that exists now"
        why = [LACKING.format(self.lacks)] if self.lacks else []
        why += [f"refused: {refused}"] if refused else []
        return f"incomplete: {'; '.join(why)}; other containers of the pod: {others}"


NAMED_SIBLINGS = 8
"""Containers in one sentence; the others are counted."""


def siblings_text(siblings: Sequence[SiblingRow]) -> str:
    """Return what containers hold; empty for none."""
    more = len(siblings) - NAMED_SIBLINGS
    named = ", ".join(map(str, siblings[:NAMED_SIBLINGS]))
    return f"{named} and {more} more" if more > 0 else named


def siblings_of(state: State, uid: str, refused: Container[str]) -> tuple[SiblingRow, ...]:
    """Return the containers of a pod that live or hold something, without the refused ones."""
    records = state.containers_of(uid)
    live = {one.name for one in records if one.phase is not Phase.STOPPED}
    created = {one.name for one in records}
    held = {
        owner_of(key)[1]: allocation
        for key, allocation in state.allocations.items()
        if pod_of(key) == uid and not is_whole_pod(key)
    }
    return tuple(
        SiblingRow(
            name,
            str(one.cpus),
            str(one.mems),
            is_created=name in created,
            is_pod_shared=one.is_pod_shared,
        )
        for name in sorted(live | held.keys())
        if name not in refused
        for one in (held.get(name, Allocation()),)
    )


class RuntimeRow(Struct, frozen=True):
    """The connected container runtime, as it introduced itself.

    Attributes:
        nri: the version of its NRI library; empty before 0.12.
        request_timeout_ms: 0 before 0.7.
        registration_timeout_ms: 0 before 0.7.
    """

    name: str
    version: str
    nri: str = ""
    request_timeout_ms: int = 0
    registration_timeout_ms: int = 0


class ReachRow(Struct, frozen=True):
    """An interrupt that can still reach quiet CPUs.

    Attributes:
        handlers: names of its handlers.
        cpus: the CPUs that it may be delivered to.
        quiet: those of them that are quiet.
        reason: `kernel-managed`, `next-interrupt`, `left-alone`, `rival`, `claimed`, or the errno of a refused write.
    """

    number: int
    handlers: str
    cpus: str
    quiet: str
    reason: str


class QuietRow(Struct, frozen=True):
    """Quiet CPUs, as the last pass over the settings of the kernel left them.

    Attributes:
        moved: settings that have a value of the agent.
        changed: settings that somebody else has changed, and that keep that value.
        reaching: interrupts that can still reach quiet CPUs; `reaches` has the first of them.
        rivals: settings that somebody else sets again and again.
        trouble: why nothing is kept quiet; empty while it is.
    """

    cpus: str
    moved: int = 0
    changed: int = 0
    reaching: int = 0
    reaches: tuple[ReachRow, ...] = ()
    rivals: tuple[str, ...] = ()
    trouble: str = ""

    def __str__(self) -> str:
        """Return one sentence."""
        if self.trouble:
            return f"CPUs {self.cpus} are not kept quiet: {self.trouble}"
        return f"CPUs {self.cpus} are quiet; {self.reaching or 'no'} interrupts can still reach them"


class StatusRow(Struct, frozen=True):
    """One line of the status."""

    version: int
    agent: str
    machine: TopologyRow
    options: dict[str, Any]
    reserved: str
    pods: tuple[SavedPod, ...]
    containers: tuple[SavedContainer, ...]
    allocations: tuple[AllocationRow, ...]
    refusals: tuple[RefusalRow, ...] = ()
    drifts: tuple[DriftRow, ...] = ()
    lost: tuple[LostRow, ...] = ()
    runtime: RuntimeRow | None = None
    observing: bool = False
    failed_creations: int = 0
    incomplete: tuple[IncompletePodRow, ...] = ()
    quiet: QuietRow | None = None
    unreported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The agent at one moment.

    Attributes:
        node: the machine and the options, without hint providers.
        state: pods, containers and allocations.
        refusals: the latest, oldest first.
        drifts: the latest, oldest first.
        runtime: the connected runtime; None without one.
        agent: its version; empty when it is unknown.
        observing: the agent only observes.
        failed_creations: creations in a row that failed after the agent's answer.
        incomplete: pods that run in part.
        quiet: quiet CPUs; None where nobody asks for them.
        unreported: cgroups of containers that run and that the runtime did not report.
    """

    node: Node
    state: State
    refusals: tuple[RefusalRow, ...] = ()
    drifts: tuple[DriftRow, ...] = ()
    runtime: RuntimeRow | None = None
    agent: str = ""
    observing: bool = False
    failed_creations: int = 0
    incomplete: tuple[IncompletePodRow, ...] = ()
    quiet: QuietRow | None = None
    unreported: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[LostRow, ...]:
        """Return the containers whose exclusive CPUs are not all online."""
        return tuple(
            _lost_row(self.node, self.state, key, cpus) for key, cpus in self.state.lost(self.node).items()
        )


def encode(status: AgentStatus) -> bytes:
    """Return the line, with its newline."""
    node, state = status.node, status.state
    row = StatusRow(
        version=VERSION,
        agent=__version__,
        machine=TOPOLOGY.row(node.topology),
        options=msgspec.to_builtins(node.options),
        reserved=str(node.reserved),
        **state_rows(state),
        refusals=status.refusals,
        drifts=status.drifts,
        lost=status.lost,
        runtime=status.runtime,
        observing=status.observing,
        failed_creations=status.failed_creations,
        incomplete=status.incomplete,
        quiet=status.quiet,
        unreported=status.unreported,
    )
    return msgspec.json.encode(row) + b"\n"


def decode(line: bytes) -> AgentStatus:
    """Decode a line.

    Raises:
        ValueError: it is no status, or one of another version.
    """
    version = msgspec.json.decode(line, type=_VersionRow).version
    if version != VERSION:
        raise ValueError(f"the agent speaks version {version} of the status, this program version {VERSION}")
    row = msgspec.json.decode(line, type=StatusRow)
    state = state_from(row)
    options = msgspec.convert(row.options, Options)
    node = Node(TOPOLOGY.record(row.machine), options, CPUSet.parse(row.reserved))
    return AgentStatus(
        node,
        state,
        row.refusals,
        row.drifts,
        row.runtime,
        row.agent,
        row.observing,
        row.failed_creations,
        row.incomplete,
        row.quiet,
        row.unreported,
    )


class _VersionRow(Struct):
    version: int


def _lost_row(node: Node, state: State, key: str, lost: CPUSet) -> LostRow:
    uid, container = owner_of(key)
    left = state.allocations[key].cpus - lost
    return LostRow(uid, container, str(lost), str(left or state.shared_pool(node)))


ANSWER_S = 5.0
"""Time limit of a line; a running agent sends it within milliseconds."""

AGAIN_S = 1.0
"""Seconds between two attempts to connect to an agent that does not run."""


def read_status(path: str, timeout_s: float = ANSWER_S) -> AgentStatus:
    """Return the current status of the agent.

    Raises:
        HostError: no agent listens, or another program answers.
    """
    try:
        return next(read_lines(path, timeout_s))
    except StopIteration:
        raise HostError(path, "the agent closed the connection without an answer; try again") from None


REJECT_S = 1.0
"""Time limit of the agent's answer to `RejectRow`."""


def reject_pod(path: str, uid: str, reason: str, message: str) -> PodRefusal | None:
    """Ask the agent to admit no container of a refused pod any more.

    Returns:
        The refusal, which is final now; None where a container of the pod lives, or the pod is gone.

    Raises:
        HostError: no agent answers in time.
    """
    until = time.monotonic() + REJECT_S
    asks = msgspec.json.encode(RejectRow(uid, reason, message)) + b"\n"
    with closing(read_lines(path, REJECT_S, asks)) as statuses:
        for status in statuses:
            pod = status.state.pods.get(uid)
            if pod is None or lives(status.state, pod):
                return None
            if pod.refusal is not None and pod.refusal.is_final:
                return pod.refusal
            if time.monotonic() > until:
                break
    raise HostError(path, f"the agent did not reject the pod within {REJECT_S:g} s")


def read_lines(
    path: str, timeout_s: float | None = None, asks: bytes = b""
) -> Generator[AgentStatus, None, None]:
    """Yield every status of the agent, until it ends.

    Args:
        path: of its socket.
        timeout_s: how long to wait for a line; None for ever.
        asks: a line to write first.

    Raises:
        HostError: no agent listens, or another program answers.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(timeout_s)
        peer.connect(path)
        peer.sendall(asks)
        with peer.makefile("rb") as lines:
            while line := lines.readline(LINE_BYTES):
                if not line.endswith(b"\n"):
                    return
                yield decode(line)
    except TimeoutError:
        raise HostError(path, f"no answer of the agent within {timeout_s:g} s; see its log") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise HostError(path, f"{why}; is the agent running, and is this its state directory?") from None
    except ValueError as error:
        raise HostError(path, f"{error}; use the same version of both programs") from None
    finally:
        peer.close()


def follow(
    path: str,
    tell: Callable[[AgentStatus], None],
    pause: Callable[[float], bool],
    log: logging.Logger,
    lost: Callable[[], None] = lambda: None,
) -> None:
    """Call `tell` with every status, and `lost` when the connection ends, until `pause` returns True."""
    trouble = ""
    while not pause(0.0):
        try:
            for status in read_lines(path):
                if trouble:
                    say(log, logging.INFO, "connected to the agent again", socket=path)
                trouble = ""
                tell(status)
                if pause(0.0):
                    return
            found = "the agent ended; its allocations stay"
        except HostError as error:
            found = str(error)
        lost()
        if found != trouble:
            say(log, logging.WARNING, "no connection to the agent", err=found)
        trouble = found
        if pause(AGAIN_S):
            return
