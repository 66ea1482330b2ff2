"""Writes a recording: to one file without a limit, or to two segments within a limit.

A crash or a full disk may lose lines. The next line that can be written then follows a head and a snapshot, so the rest of
the recording is readable. Nothing is fsynced: a lost line costs less than a late answer. The agent imports this module;
the reader (`reader.py`) is for commands only.
"""

import contextlib
import os
import zlib
from dataclasses import dataclass
from datetime import datetime

import msgspec

from nri_plugin import __version__
from nri_plugin.checkpoint.rows import state_rows
from nri_plugin.core.decision import Decision
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import Node
from nri_plugin.model.state import State
from nri_plugin.recording.rows import Event, OutcomeRow, RecordedLine, SnapshotRow, event_line, node_row
from nri_plugin.wire.nri.events import CreateContainerResponse

FORMAT = "nri-pin recording"
VERSION = 2
DIRECTORY = "history"
"""Its name in the state directory."""
CURRENT, PREVIOUS = "recording.jsonl", "recording.previous.jsonl"
"""The two segments of a bounded recording."""

PACK_FROM_BYTES = 64 << 10
"""Longer lines are packed: a snapshot of 3,000 containers has 1.7 MB, packed 0.4 MB, and takes 7 ms to pack."""
MOST_UNPACKED_BYTES = 24 << 20
"""A line that is longer when unpacked is damaged: 40,000 containers have 22 MB."""

LEAST_SNAPSHOTS = 3
"""Room of a segment, in snapshots: one at its beginning, a runtime's list of as many containers, and events."""

# The directory may be another user's: a link is refused, a FIFO does not block.
_OPEN = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MODE = 0o600

_encode = msgspec.json.Encoder().encode


def head_lines(
    node: Node, state: State, at: datetime, why: str = "start", *, observing: bool = False
) -> bytes:
    """The first two lines of a recording."""
    head = RecordedLine(
        format=FORMAT,
        version=VERSION,
        writer=__version__,
        why=why,
        observing=observing,
        at=at,
        node=node_row(node),
    )
    return _encode(head) + b"\n" + _written(RecordedLine(snapshot=SnapshotRow(**state_rows(state))))


def node_line(node: Node, at: datetime) -> bytes:
    """The line of a change of the node."""
    return _written(RecordedLine(at=at, node=node_row(node)))


def line_of(event: Event, at: datetime, op: str, outcome: OutcomeRow) -> bytes:
    """Return the line of an event and its outcome."""
    return _written(event_line(event, at, op, outcome))


def _written(line: RecordedLine) -> bytes:
    data = _encode(line)
    if len(data) > PACK_FROM_BYTES:
        data = _encode(RecordedLine(packed=zlib.compress(data, 1)))
    return data + b"\n"


def unpacked(data: bytes) -> bytes:
    """The text of a packed line.

    Raises:
        ValueError: it is damaged.
    """
    # With a limit, because a few bytes can unpack to any length; `MOST_VALUES` in the reader bounds what it is read into.
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, MOST_UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(f"cannot be unpacked: {error}") from None
    if not stream.eof:
        raise ValueError("cannot be unpacked: it is cut short or too long")
    return text


def outcome_of(
    decision: Decision, refusal: str = "", *, failed: bool = False, took_us: int = 0
) -> OutcomeRow:
    """Return the outcome of an event, in short."""
    response = decision.response
    given = response.resources if isinstance(response, CreateContainerResponse) else None
    updates = getattr(response, "updates", ())
    return OutcomeRow(
        refusal=refusal,
        reason="" if decision.refusal is None else decision.refusal.reason,
        failed=failed,
        cpus=given.cpus if given else "",
        mems=given.mems if given else "",
        updates=tuple((one.container_id, one.resources.cpus, one.resources.mems) for one in updates),
        writes=len(decision.writes),
        overruled=str(decision.overruled or ""),
        steps=decision.steps,
        took_us=took_us,
    )


@dataclass(frozen=True, slots=True)
class Situation:
    """The node and the state before an event; a head is made of them where one is due."""

    node: Node
    state: State
    at: datetime
    observing: bool = False

    def head(self, why: str) -> bytes:
        """The first lines of a recording, of a segment or after a gap."""
        return head_lines(self.node, self.state, self.at, why, observing=self.observing)


class RecordingFile:
    """A recording without a limit, appended to a file; used by one thread at a time.

    Args:
        path: of the file, made with mode 0600; an existing recording is continued.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._why = "start"
        self._size = 0

    def append(self, data: bytes, before: Situation) -> None:
        """Write a line, and a head before it where one is due.

        Raises:
            HostError: it could not be written; the next one that can be follows a new head.
        """
        try:
            # If the file was moved or removed, further lines would go to a file without a name.
            if not self._why and not self._is_in_place():
                self.lose()
            if self._why:
                self._open()
            why = self._why or ("full" if self._is_full(len(data)) else "")
            if why:
                self._begin(before.head(why))
            self._write(data)
        except OSError as error:
            self.lose()
            raise HostError(self.path, f"cannot be written: {error.strerror}") from None

    def lose(self) -> None:
        """Note that the next line does not follow the last one."""
        self._why = "start" if self._why == "start" else "gap"

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def check(self) -> None:
        """Open the file at the start. A file with other content is not touched.

        Raises:
            HostError: it cannot be written, or has other content.
        """
        try:
            self._descriptor = os.open(self.path, _OPEN, _MODE)
            head = os.pread(self._descriptor, 64, 0)
            if head and not head.startswith(f'{{"format":"{FORMAT}"'.encode()):
                raise HostError(
                    self.path, "holds something else than a recording; remove it or give another file"
                )
            self._open()
        except OSError as error:
            raise HostError(self.path, f"cannot be written: {error.strerror}") from None

    def _is_full(self, _more: int) -> bool:
        return False

    def _is_in_place(self) -> bool:
        """Return whether the open file is still the one at the path."""
        try:
            there, ours = os.stat(self.path), os.fstat(self._descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def _begin(self, head: bytes) -> None:
        self._write(head)
        self._why = ""

    def _open(self) -> None:
        """Open the file. If a crash cut its last line, end that line, so that it damages no other one."""
        self.close()
        self._descriptor = os.open(self.path, _OPEN, _MODE)
        os.fchmod(self._descriptor, _MODE)
        self._size = os.fstat(self._descriptor).st_size
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            done = os.write(self._descriptor, rest)
            self._size += done
            rest = rest[done:]


class BoundedRecording(RecordingFile):
    """The latest events, in two segments of a directory.

    Args:
        directory: made with mode 0700.
        limit_bytes: for both segments together. If less than three snapshots fit into a segment, segments of that size
            are written nevertheless: a node with so many containers needs its history most.
    """

    def __init__(self, directory: str, limit_bytes: int) -> None:
        super().__init__(os.path.join(directory, CURRENT))
        self._directory = directory
        self._half = limit_bytes // 2
        self._least = 0

    def _is_full(self, more: int) -> bool:
        return self._size + more > max(self._half, self._least)

    def _begin(self, head: bytes) -> None:
        self._least = LEAST_SNAPSHOTS * len(head)
        if self._is_full(len(head)):
            self._turn()
        super()._begin(head)

    def _turn(self) -> None:
        """Make the current segment the previous one, and open a new one."""
        # One rename drops the older segment: a reader finds either both segments or the newer one.
        os.replace(self.path, os.path.join(self._directory, PREVIOUS))
        self._open()

    def _open(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        super()._open()
