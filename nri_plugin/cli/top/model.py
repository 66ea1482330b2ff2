"""The data behind `nri-pin top`: the state of the agent, the latest changes, and the selection of the reader.

`TopFeed` reads the agent's status socket, and the checkpoint while no agent answers. Each answer is a `Sample`. `Model`
compares two samples in a row, keeps the changes as `TopEvent`s, and selects and sorts the rows.
"""

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nri_plugin.agent.observing.status_client import (
    DriftRow,
    IncompletePodRow,
    RefusalRow,
    RuntimeRow,
    decode,
)
from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint
from nri_plugin.cli.state.changes import change_facts, change_line, changes
from nri_plugin.cli.state.rows import StateRow, rows_of
from nri_plugin.cli.state.source import ANSWER_S, NO_RUNTIME, SOCKET, Seen, seen
from nri_plugin.model.errors import CheckpointError, HostError

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of an agent at one moment.

    Attributes:
        seen: the state and the machine.
        is_connected: whether the agent itself answered.
        source: where the sample comes from, in words.
        refusals: the latest, oldest first; none without the agent.
        drifts: the same.
        runtime: the connected container runtime; None for none, and without the agent.
        incomplete: pods that run in part; none without the agent.
        agent: its version; empty without the agent.
    """

    seen: Seen
    is_connected: bool
    source: str
    refusals: tuple[RefusalRow, ...] = ()
    drifts: tuple[DriftRow, ...] = ()
    runtime: RuntimeRow | None = None
    incomplete: tuple[IncompletePodRow, ...] = ()
    agent: str = ""

    @property
    def is_placing(self) -> bool:
        """Whether new containers are placed: an agent answers, and a runtime is connected to it."""
        return self.is_connected and self.runtime is not None


class TopFeed:
    """A connection to the agent of a state directory; its checkpoint while no agent answers.

    Args:
        state_dir: of the agent.
        machine: a named machine, for a checkpoint from elsewhere.
        root: of the machine.
    """

    def __init__(self, state_dir: str, machine: str | None = None, root: str | None = None) -> None:
        self._socket_path = os.path.join(state_dir, SOCKET)
        self._file = os.path.join(state_dir, FILE_NAME)
        self._machine, self._root = machine, root
        self._peer: socket.socket | None = None
        self._data = b""
        self._known: tuple[tuple[int, int, int], Sample] | None = None

    def fileno(self) -> int:
        """Of the connection, -1 without one."""
        return -1 if self._peer is None else self._peer.fileno()

    def first(self) -> Sample:
        """The first sample.

        Raises:
            HostError: the agent does not answer and there is no checkpoint.
        """
        self._connect()
        while self._peer is not None:
            sample = self._received(self._peer)
            if sample is not None:
                self._peer.setblocking(False)
                return sample
        return self._from_file()

    def next(self) -> Sample | None:
        """The next sample; None when nothing is new. Connects again to an agent that was away.

        Raises:
            HostError: the agent has ended and there is no checkpoint.
        """
        if self._peer is None:
            self._connect()
        if self._peer is not None:
            self._peer.setblocking(False)
            sample = self._received(self._peer)
            if sample is not None or self._peer is not None:
                return sample
        return self._from_file()

    def close(self) -> None:
        """Close the connection."""
        if self._peer is not None:
            self._peer.close()
            self._peer, self._data = None, b""

    def _connect(self) -> None:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.settimeout(ANSWER_S)
            peer.connect(self._socket_path)
        except OSError:
            peer.close()
            return
        self._peer, self._data = peer, b""

    def _received(self, peer: socket.socket) -> Sample | None:
        """The newest complete line; closes the connection when the agent did."""
        try:
            while part := peer.recv(CHUNK):
                self._data += part
                if peer.gettimeout() and self._data.endswith(b"\n"):
                    break
            else:
                self.close()
                return None
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return None
        return self._newest()

    def _newest(self) -> Sample | None:
        lines, end, rest = self._data.rpartition(b"\n")
        if not end:
            return None
        self._data = rest
        try:
            status = decode(lines.rpartition(b"\n")[2] + b"\n")
        except ValueError as error:
            self.close()
            raise HostError(self._socket_path, f"{error}; use the same version of both programs") from None
        found = Seen(status.state, status.node, has_parts=True, machine="of the agent")
        source = f"agent at {self._socket_path}"
        return Sample(
            found,
            True,
            source,
            status.refusals,
            status.drifts,
            status.runtime,
            status.incomplete,
            status.agent,
        )

    def _from_file(self) -> Sample:
        try:
            status = os.stat(self._file)
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            if self._known is None or self._known[0] != stamp:
                self._known = stamp, self._read_file()
        except FileNotFoundError:
            raise HostError(
                self._socket_path,
                f"no agent answers, and there is no checkpoint {self._file}; name the agent's --state-dir",
            ) from None
        except CheckpointError as error:
            raise HostError(self._socket_path, f"no agent answers, and of its checkpoint: {error}") from None
        except OSError as error:
            raise HostError(self._file, f"cannot be read: {error.strerror}; run as root") from None
        return self._known[1]

    def _read_file(self) -> Sample:
        checkpoint = read_checkpoint(self._file)
        if checkpoint is None:
            raise FileNotFoundError
        found = seen(checkpoint, self._machine, self._root, self._file)
        return Sample(found, False, f"{self._file}, generation {checkpoint.generation}")


HIGHLIGHT_S = 5.0
LONGEST_LOG = 200

SortKey = Callable[["TopRow"], Any]


@dataclass(frozen=True, slots=True)
class TopRow:
    """A container.

    Attributes:
        row: allocation and place.
        used: CPUs used since the last read; None where that is not known.
        age_s: seconds since its start; None where that is not known.
        is_fresh: changed within the last seconds.
    """

    row: StateRow
    used: float | None
    age_s: float | None
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class TopEvent:
    """A change.

    Attributes:
        at: seconds since the epoch.
        text: in one line.
        facts: for programs.
    """

    at: float
    text: str
    facts: Mapping[str, Any]


SORTS: Mapping[str, SortKey] = {
    "name": lambda line: (not line.row.is_exclusive, line.row.name),
    "cpus": lambda line: (not line.row.is_exclusive, -len(line.row.cpus or ()), line.row.name),
    "use": lambda line: (-(line.used or 0.0), line.row.name),
    "numa": lambda line: (
        not line.row.is_exclusive,
        line.row.numa_nodes.mask if line.row.numa_nodes else 0,
        line.row.name,
    ),
    "age": lambda line: (line.age_s is None, line.age_s or 0.0, line.row.name),
}


@dataclass(slots=True)
class Model:
    """The state of the display.

    Attributes:
        sample: the newest state.
        log: changes, the newest last.
        sort: one of `SORTS`.
        pattern: selects containers whose names contain it.
        is_paused: new samples are not taken in.
        scroll: containers above the first shown.
    """

    sample: Sample
    log: deque[TopEvent] = field(default_factory=lambda: deque(maxlen=LONGEST_LOG))
    sort: str = "name"
    pattern: str = ""
    is_paused: bool = False
    scroll: int = 0
    fresh: dict[str, float] = field(default_factory=dict)

    def take(self, sample: Sample, at: float) -> list[TopEvent]:
        """Take in a sample; returns the changes."""
        new = list(happenings(self.sample, sample, at))
        for one in new:
            key = one.facts.get("key")
            if key is not None:
                self.fresh[str(key)] = at
        self.fresh = {key: since for key, since in self.fresh.items() if at - since < HIGHLIGHT_S}
        self.sample = sample
        self.log.extend(new)
        return new

    def next_sort(self) -> None:
        """Sort by the next key."""
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]

    def lines(
        self, used: Mapping[str, float], age_of: Callable[[StateRow], float | None], at: float
    ) -> list[TopRow]:
        """The selected containers, sorted."""
        lines = [
            TopRow(
                row,
                used.get(row.record.id),
                age_of(row),
                at - self.fresh.get(row.record.key, 0.0) < HIGHLIGHT_S,
            )
            for row in rows_of(self.sample.seen)
            if self.pattern in row.name
        ]
        return sorted(lines, key=SORTS[self.sort])


def happenings(before: Sample, after: Sample, at: float) -> Iterator[TopEvent]:
    """The changes from one sample to the next."""
    if before.is_connected != after.is_connected:
        text = "the agent answers" if after.is_connected else "the agent is away; this is its checkpoint"
        yield TopEvent(at, text, {"what": "agent", "connected": after.is_connected})
    elif after.is_connected and before.is_placing != after.is_placing:
        runtime = after.runtime
        text = f"{runtime.name} {runtime.version} asks the agent" if runtime else NO_RUNTIME
        yield TopEvent(at, text, {"what": "runtime", "connected": after.is_placing})
    for change in changes(before.seen.state, after.seen.state):
        yield TopEvent(at, " ".join(change_line(change).split()), change_facts(change))
    if not (before.is_connected and after.is_connected):
        return
    yield from _refusals(before, after, at)
    for drift in after.drifts:
        if drift.number > drifted(before):
            found = f"found CPUs {drift.found or '-'}, should be {drift.desired} ({drift.cause})"
            facts = {name: getattr(drift, name) for name in ("name", "found", "desired", "cause", "error")}
            yield TopEvent(at, f"drift {drift.name}: {found}", {"what": "drift", **facts})


def _refusals(before: Sample, after: Sample, at: float) -> Iterator[TopEvent]:
    """New refusals, and pods that became incomplete by them."""
    for refusal in after.refusals:
        if refusal.number > refused(before):
            name = f"{refusal.namespace}/{refusal.pod}/{refusal.container}"
            facts = {"what": "refused", "name": name, "reason": refusal.reason, "detail": refusal.detail}
            yield TopEvent(at, f"refused {name}: {refusal.detail}", facts)
    earlier = {one.pod_uid for one in before.incomplete}
    for one in after.incomplete:
        if one.pod_uid not in earlier:
            name = f"{one.namespace}/{one.pod}"
            yield TopEvent(at, f"{name}: {one}", {"what": "incomplete", "name": name, "detail": str(one)})


def refused(sample: Sample) -> int:
    """Containers refused since the agent began."""
    return sample.refusals[-1].number if sample.refusals else 0


def drifted(sample: Sample) -> int:
    """Drifts since the agent began."""
    return sample.drifts[-1].number if sample.drifts else 0
