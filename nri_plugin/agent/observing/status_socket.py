"""The agent's status socket: sends the whole status to each reader, and again after every change.

The thread that answers the runtime only notes refusals and drifts, and wakes the thread of the socket. That thread reads
the current state, which is frozen, encodes it as one line, and writes no faster than its readers read. A slow reader gets
the newest line next, not every line.
"""

import logging
import os
import resource
import selectors
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

import msgspec

from nri_plugin.agent.observing.status_client import (
    AgentStatus,
    DriftRow,
    IncompletePodRow,
    QuietRow,
    ReachRow,
    RefusalRow,
    RefusedContainerRow,
    RejectRow,
    RuntimeRow,
    encode,
    siblings_of,
    siblings_text,
)
from nri_plugin.agent.repair.drift_watch import DriftReport
from nri_plugin.agent.repair.interrupts import QuietReport
from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.pod_news import PodFactsTold
from nri_plugin.core.requests import lacks_its_resources, owned_as_whole, pod_uid
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.records import PodRecord
from nri_plugin.model.refusals import UNEXPECTED, AdmissionRefusal, RefusalKind
from nri_plugin.model.state import State
from nri_plugin.process.logs import LOGGER_NAME, say, say_trace
from nri_plugin.process.loop import StartThread
from nri_plugin.wire.nri.events import Configure, CreateContainer, StopPodSandbox, Synchronize

FILE_NAME = "agent.sock"
"""In the state directory."""

LONGEST_ROW = 8 << 10
"""Bytes of a line of a reader."""

NO_REPORT = QuietReport()
LATEST_REFUSALS = 64
LATEST_DRIFTS = 64
PAUSE_S = 0.05
"""Seconds between two lines: a burst of containers is one change to a reader, and encoding holds the interpreter."""

MOST_READERS = 32
"""Readers at a time. Each takes a descriptor, and the agent needs descriptors to place containers."""

CORE_DESCRIPTORS = 64
"""Descriptors below the limit of the process that readers leave to the rest of the agent."""

AFTER_ERROR_S = 1.0
LOOK_S = 5.0
"""Seconds after which changes without an event (a reload, a removed socket) are noticed."""

View = Callable[[], tuple[Node, State]]


# Incomplete pods
#
# Pods that run in part: a container was refused while others of the pod exist, or what the pod owns as a whole is lost.
#
# A refused decision changes no state, so the agent keeps this record beside it: from the refusal until the container is
# created, or until the pod ends. It is empty after a restart of the agent. The kubelet tries a refused container again and
# again, so it fills itself. What a pod lacks that was found running (`nri_plugin.core.found_pods`) follows from the state.

MOST_PODS = 256
"""The oldest record is dropped. A node runs at most 110 pods by default, and the kubelet tries refused ones again."""

MOST_CONTAINERS = 128
"""Refused containers that are kept of one pod."""

BEGINNINGS = (Synchronize, PodFactsTold)
"""Events beside a creation with which a pod may become incomplete."""


def lacking(node: Node, pod: PodRecord) -> str:
    """Return the CPUs and memory that the pod should own as a whole and that could not be rebuilt; empty for none."""
    if pod.facts is None or not lacks_its_resources(node.options, pod):
        return ""
    count, amounts = owned_as_whole(node.options, pod.facts)
    cpus = [f"{count} {'CPU' if count == 1 else 'CPUs'}"] if count else []
    return ", ".join([*cpus, *(f"{name} {format_bytes(size)}" for name, size in amounts.items())])


@dataclass(frozen=True, slots=True)
class MissingOfPod:
    """What is missing of one pod.

    Attributes:
        refused: by name, the latest refusal of each.
        is_incomplete: other containers of the pod existed at some time since the first refusal.
        lacks: as in `IncompletePodRow`.
    """

    uid: str
    namespace: str
    pod: str
    refused: dict[str, RefusedContainerRow] = field(default_factory=dict)
    is_incomplete: bool = False
    lacks: str = ""


class IncompletePods:
    """Observes outcomes in the thread that answers the runtime.

    Args:
        log: takes a line when a pod becomes incomplete, and one when it is complete again.

    Attributes:
        records: of incomplete pods, the oldest first; replaced as a whole, so that other threads may read it.
    """

    def __init__(self, log: logging.Logger | None = None) -> None:
        self._log = log or logging.getLogger(LOGGER_NAME)
        self._by_uid: dict[str, MissingOfPod] = {}
        self.records: tuple[MissingOfPod, ...] = ()

    def __call__(self, outcome: RequestOutcome) -> None:
        """Keep a refusal and what a pod lacks, and drop it when it is over."""
        event = outcome.event
        is_creation = isinstance(event, CreateContainer)
        if not self._by_uid and not (is_creation or isinstance(event, BEGINNINGS)):
            return
        state = outcome.before if outcome.refusal or outcome.failed else outcome.decision.state
        if isinstance(event, Synchronize):
            self._by_uid = {uid: one for uid, one in self._by_uid.items() if uid in state.pods}
            for pod in state.pods.values():
                self._look(outcome.node, pod)
            for uid in list(self._by_uid):
                self._settle(uid, state)
        elif (of := getattr(event, "pod", None)) is not None:
            uid = pod_uid(of)
            if isinstance(event, CreateContainer):
                self._created(uid, event, outcome)
            if (isinstance(event, StopPodSandbox) or uid not in state.pods) and not is_creation:
                self._by_uid.pop(uid, None)
            elif uid in state.pods:
                self._look(outcome.node, state.pods[uid])
            self._settle(uid, state)
        self.records = tuple(one for one in self._by_uid.values() if one.is_incomplete)

    def rows(self, state: State) -> tuple[IncompletePodRow, ...]:
        """Return the incomplete pods, with the other containers of each as they are in `state`."""
        return tuple(
            IncompletePodRow(
                pod_uid=one.uid,
                namespace=one.namespace,
                pod=one.pod,
                refused=tuple(one.refused.values()),
                siblings=siblings_of(state, one.uid, one.refused),
                lacks=one.lacks,
            )
            for one in self.records
        )

    def _created(self, uid: str, event: CreateContainer, outcome: RequestOutcome) -> None:
        """Note a refused container, or that a container was created."""
        name = event.container.name
        known = self._by_uid.get(uid)
        if not outcome.refusal:
            if known is not None and name in known.refused:
                left = {key: row for key, row in known.refused.items() if key != name}
                self._by_uid[uid] = replace(known, refused=left)
            return
        refusal = outcome.decision.refusal
        row = RefusedContainerRow(name, refusal.reason if refusal else UNEXPECTED, outcome.refusal)
        known = known or MissingOfPod(uid, event.pod.namespace, event.pod.name)
        if name in known.refused or len(known.refused) < MOST_CONTAINERS:
            self._keep(replace(known, refused={**known.refused, name: row}))

    def _look(self, node: Node, pod: PodRecord) -> None:
        """Record what the pod lacks."""
        known = self._by_uid.get(pod.uid) or MissingOfPod(pod.uid, pod.namespace, pod.name)
        lacks = lacking(node, pod)
        if lacks != known.lacks:
            self._keep(replace(known, lacks=lacks))

    def _keep(self, one: MissingOfPod) -> None:
        self._by_uid[one.uid] = one
        if len(self._by_uid) > MOST_PODS:
            del self._by_uid[next(iter(self._by_uid))]

    def _settle(self, uid: str, state: State) -> None:
        """Log a pod that became incomplete or complete."""
        one = self._by_uid.get(uid)
        if one is None:
            return
        name = f"{one.namespace}/{one.pod}"
        if not (one.refused or one.lacks):
            del self._by_uid[uid]
            if one.is_incomplete:
                say(self._log, logging.INFO, "the pod is complete again", pod=name)
        elif not one.is_incomplete and (siblings := siblings_of(state, uid, one.refused)):
            self._by_uid[uid] = replace(one, is_incomplete=True)
            say(
                self._log,
                logging.WARNING,
                "the pod is incomplete: it runs without what it should own as a whole"
                if one.lacks
                else "the pod is incomplete: it runs without a container that was refused",
                pod=name,
                lacks=one.lacks,
                refused=",".join(one.refused),
                others=siblings_text(siblings),
            )


class StatusFeed:
    """Observes outcomes and drifts in the thread that answers the runtime; takes microseconds.

    Attributes:
        refusals: the latest, oldest first; replaced as a whole, so that another thread may read it.
        drifts: the same for drifts.
        wake: called after each change.
        quiet: returns what the last pass over the settings of quiet CPUs found.
        failed_creations: returns how many creations in a row failed after the agent's answer.
        unreported: returns the cgroups of containers that the runtime did not report.
        incomplete: the record of pods that run in part.
    """

    def __init__(self, log: logging.Logger | None = None) -> None:
        self.incomplete = IncompletePods(log)
        self.refusals: tuple[RefusalRow, ...] = ()
        self.drifts: tuple[DriftRow, ...] = ()
        self.wake: Callable[[], None] = lambda: None
        self.failed_creations: Callable[[], int] = lambda: 0
        self.unreported: Callable[[], tuple[str, ...]] = tuple
        self.quiet: Callable[[], QuietReport] = lambda: NO_REPORT
        self._count = 0

    def __call__(self, outcome: RequestOutcome) -> None:
        """Note a refusal, and wake the socket's thread."""
        self.incomplete(outcome)
        if outcome.refusal:
            self._count += 1
            self.refusals = (*self.refusals, refusal_row(outcome, self._count))[-LATEST_REFUSALS:]
        elif outcome.decision.state is outcome.before:
            return
        self.wake()

    def machine_changed(self) -> None:
        """Wake the socket's thread: the machine has changed."""
        self.wake()

    def drifted(self, report: DriftReport) -> None:
        """Note a drift, and wake the socket's thread."""
        self.drifts = (*self.drifts, drift_row(report))[-LATEST_DRIFTS:]
        self.wake()


def refusal_row(outcome: RequestOutcome, number: int) -> RefusalRow:
    """Return the row of a refusal."""
    pod, container = getattr(outcome.event, "pod", None), getattr(outcome.event, "container", None)
    refusal = outcome.decision.refusal
    return RefusalRow(
        number=number,
        pod_uid=pod.uid if pod else "",
        namespace=pod.namespace if pod else "",
        pod=pod.name if pod else "",
        container=container.name if container else "",
        reason=refusal.reason if refusal else UNEXPECTED,
        detail=outcome.refusal,
        message=(refusal or AdmissionRefusal(RefusalKind.OTHER, outcome.refusal)).message,
    )


def drift_row(report: DriftReport) -> DriftRow:
    """Return the row of a drift."""
    return DriftRow(
        number=report.number,
        cgroup=report.cgroup.path or report.cgroup.parent,
        container_id=report.container_id,
        name=report.name,
        found=None if report.found is None else str(report.found),
        effective=None if report.effective is None else str(report.effective),
        desired=str(report.desired),
        cause=report.cause,
        noticed_by=report.noticed_by,
        round=report.round,
        is_fight=report.is_fight,
        error=report.error,
    )


MOST_REACHES = 64
"""Interrupts that a line names; a machine may have a queue for each CPU and device."""


def quiet_row(report: QuietReport) -> QuietRow | None:
    """Return the row of quiet CPUs; None where nobody asks for them. Interrupts that can be moved come first."""
    if not (report.quiet or report.trouble):
        return None
    reaches = sorted(report.reaches, key=lambda one: one.reason == "kernel-managed")
    return QuietRow(
        str(report.quiet),
        report.moved,
        report.changed,
        len(reaches),
        tuple(
            ReachRow(one.number, ",".join(one.actions), str(one.cpus), str(one.quiet), one.reason)
            for one in reaches[:MOST_REACHES]
        ),
        report.rivals,
        report.trouble,
    )


def runtime_row(runtime: Configure | None) -> RuntimeRow | None:
    """Return the row of the runtime, without the configuration that it sent."""
    if runtime is None:
        return None
    return RuntimeRow(
        runtime.runtime_name,
        runtime.runtime_version,
        runtime.nri_version,
        runtime.request_timeout_ms,
        runtime.registration_timeout_ms,
    )


class _Reader:
    """A reader, the unsent rest of its line, and what it has written so far."""

    __slots__ = ("heard", "is_current", "left", "socket")

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self.left = memoryview(b"")
        self.heard = b""
        self.is_current = False


class StatusSocket:
    """Listens from the moment it is made until `close`.

    Args:
        path: of the socket; a socket at this path is replaced. One that cannot be created, or was removed, is tried
            again from time to time.
        view: returns the current node and state.
        feed: wakes the thread, and holds refusals and drifts.
        runtime: returns the runtime of the current connection.
        reject: called, in the thread of the socket, with each `RejectRow` of a reader.
        log: takes a line when the socket cannot be created, and when it was restored.
        observing: the agent only observes.
        start: starts the thread.
    """

    def __init__(
        self,
        path: Path,
        view: View,
        feed: StatusFeed,
        runtime: Callable[[], Configure | None] = lambda: None,
        *,
        reject: Callable[[RejectRow], None] = lambda _row: None,
        log: logging.Logger | None = None,
        observing: bool = False,
        start: StartThread = Thread.start,
    ) -> None:
        self._observing, self._log, self._trouble = observing, log or logging.getLogger(LOGGER_NAME), ""
        self._reject = reject
        self._path, self._view, self._feed, self._runtime = path, view, feed, runtime
        self._listener: socket.socket | None = None
        self._mark: tuple[int, int] | None = None
        self._looked_at = 0.0
        self._wake_in, self._wake_out = socket.socketpair()
        for one in (self._wake_in, self._wake_out):
            one.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._listen()
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._readers: dict[socket.socket, _Reader] = {}
        self._told: tuple[object, ...] | None = None
        self._line = b""
        self._made_at = 0.0
        self._is_early = False
        self._is_closing = False
        feed.wake = self._wake
        self._thread = Thread(target=self._run, name="status socket", daemon=True)
        start(self._thread)

    def close(self) -> None:
        """Close all connections and remove the socket."""
        self._is_closing = True
        self._feed.wake = lambda: None
        self._ring()
        self._thread.join()
        if self._mark is not None and _identity(self._path) == self._mark:
            self._path.unlink(missing_ok=True)
        self._hang_up()
        for one in (*self._readers, self._wake_in, self._wake_out):
            one.close()
        self._selector.close()

    def _listen(self) -> None:
        """Listen at the path, again where the socket was removed or replaced; connections stay open."""
        self._looked_at = time.monotonic()
        if self._mark is not None and _identity(self._path) == self._mark:
            return
        self._hang_up()
        try:
            self._listener = _listening(self._path)
        except HostError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                say(self._log, logging.WARNING, "nothing can be exported to the cluster", err=error)
            return
        self._mark = _identity(self._path)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        if self._trouble:
            self._trouble = ""
            say(self._log, logging.INFO, "the status socket was restored", path=self._path)

    def _hang_up(self) -> None:
        listener, self._listener, self._mark = self._listener, None, None
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()

    def _wake(self) -> None:
        if self._readers:
            self._ring()

    def _ring(self) -> None:
        with suppress(BlockingIOError):
            self._wake_out.send(b"\0")

    def _run(self) -> None:
        while not self._is_closing:
            try:
                self._turn()
            except Exception:  # noqa: BLE001 - without this thread nothing is shown any more
                with suppress(Exception):
                    say_trace(self._log, "internal error, the status is late")
                time.sleep(AFTER_ERROR_S)

    def _turn(self) -> None:
        timeout = max(0.0, self._made_at + PAUSE_S - time.monotonic()) if self._is_early else LOOK_S
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_in:
                with suppress(BlockingIOError):
                    self._wake_in.recv(4096)
            elif isinstance(key.data, _Reader):
                self._hear(key.data)
        if time.monotonic() >= self._looked_at + LOOK_S:
            self._listen()
        self._make_line()
        for reader in list(self._readers.values()):
            self._write(reader)

    def _make_line(self) -> None:
        """Encode a new line if something changed, a reader is connected, and the last line is older than `PAUSE_S`."""
        self._is_early = bool(self._readers) and time.monotonic() < self._made_at + PAUSE_S
        if self._is_early or not self._readers:
            return
        refusals, drifts = self._feed.refusals, self._feed.drifts
        node, state = self._view()
        runtime = self._runtime()
        failed = self._feed.failed_creations()
        quiet, unreported = self._feed.quiet(), self._feed.unreported()
        now = (
            node,
            state,
            refusals,
            drifts,
            runtime,
            failed,
            self._feed.incomplete.records,
            quiet,
            unreported,
        )
        if self._told is not None and all(a is b for a, b in zip(now, self._told, strict=True)):
            return
        self._line = encode(
            AgentStatus(
                node,
                state,
                refusals,
                drifts,
                runtime_row(runtime),
                observing=self._observing,
                failed_creations=failed,
                incomplete=self._feed.incomplete.rows(state),
                quiet=quiet_row(quiet),
                unreported=unreported,
            )
        )
        self._told, self._made_at = now, time.monotonic()
        for reader in self._readers.values():
            reader.is_current = False

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            peer, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:
            self._hang_up()  # no descriptor is left: the next look listens again
            return
        peer.setblocking(False)
        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - CORE_DESCRIPTORS
        if len(self._readers) >= MOST_READERS or (self._readers and peer.fileno() >= room):
            # One that reads nothing goes first, then the oldest. Those of our own connect again.
            readers = list(self._readers.values())
            self._drop(next((one for one in readers if one.left), readers[0]))
        reader = self._readers[peer] = _Reader(peer)
        self._selector.register(peer, selectors.EVENT_READ, reader)

    def _hear(self, reader: _Reader) -> None:
        """Take the line of a reader; drop a reader that has closed its end. Anything else that it writes is ignored."""
        with suppress(BlockingIOError):
            try:
                data = reader.socket.recv(4096)
            except ConnectionError:
                data = b""
            if not data:
                self._drop(reader)
                return
            *lines, rest = (reader.heard + data).split(b"\n")
            reader.heard = rest[:LONGEST_ROW]
            for line in lines:
                with suppress(msgspec.DecodeError):
                    self._reject(msgspec.json.decode(line, type=RejectRow))

    def _unsent(self, reader: _Reader) -> memoryview:
        """Return the rest of the line that is being sent, otherwise the latest line."""
        if not reader.left and not reader.is_current and self._line:
            reader.left, reader.is_current = memoryview(self._line), True
        return reader.left

    def _write(self, reader: _Reader) -> None:
        try:
            while part := self._unsent(reader):
                reader.left = part[reader.socket.send(part) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(reader)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if reader.left else 0)
        if self._selector.get_key(reader.socket).events != wanted:
            self._selector.modify(reader.socket, wanted, reader)

    def _drop(self, reader: _Reader) -> None:
        if self._readers.pop(reader.socket, None) is not None:
            self._selector.unregister(reader.socket)
            reader.socket.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _listening(path: Path) -> socket.socket:
    """Return a listening socket that only its owner may connect to.

    Raises:
        HostError: it cannot be created.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if os.path.lexists(path) and stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(8)
    except OSError as error:
        listener.close()
        raise HostError(str(path), f"no status socket: {(error.strerror or str(error)).lower()}") from None
    return listener
