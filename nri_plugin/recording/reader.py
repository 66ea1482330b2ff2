"""Reads a recording, and decides its events again: `read(path).moments()`.

A recording holds the events of a node as lines of JSON:

    {"format":"nri-pin recording","version":2,"writer":"0.1.0","why":"start","at":"...","node":{...}}
    {"snapshot":{"pods":[...],"containers":[...],"allocations":[...]}}
    {"at":"...","op":"1f00ba12","event":"CreateContainer","pod":{...},"container":{...},"outcome":{...}}

A head and a snapshot come first in a recording, in each segment of a bounded one, and after each start of the agent. The
events follow in the order of their decisions. States are not written: `decide` is pure, so the reader decides again to
know them. After a line that cannot be read, the state is unknown until the next snapshot.

A long line, such as the snapshot of a full node, is packed: `{"packed":"..."}` is base64 of zlib of the line.

A directory holds a bounded recording: two segments, of which the older is dropped when the newer is full.

`changes` compares the recorded decisions with those of this version. Texts may change between versions and decisions may
not, so it compares neither steps nor the texts of refusals.
"""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import BinaryIO

import msgspec

from nri_plugin import __version__
from nri_plugin.checkpoint.rows import state_from
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide, unrefused
from nri_plugin.model import bounds
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import HintProvider, Node
from nri_plugin.model.state import State
from nri_plugin.recording.file import (
    CURRENT,
    DIRECTORY,
    FORMAT,
    PREVIOUS,
    VERSION,
    outcome_of,
    unpacked,
)
from nri_plugin.recording.rows import (
    Event,
    OutcomeRow,
    RecordedLine,
    RecordedNode,
    event_from,
    node_from,
)
from nri_plugin.wire.nri.events import CreateContainer

_GZIP = b"\x1f\x8b"
_UNREADABLE = (OSError, EOFError, zlib.error)
"""Errors from a damaged disk or a damaged compressed file."""

# A recording may come from anyone. A reader of one takes less than 300 MB of memory, and gives up where a file would cost
# more than its size.

LONGEST_LINE_BYTES = 8 << 20
"""As written: the snapshot of 20,000 containers has 3 MB, packed."""
MOST_VALUES = 1 << 19
"""Values of a line, counted before they are built: 20,000 containers have 450,000."""
MOST_DAMAGED = 1000
"""Damaged lines of a file, after which it is no recording."""
MOST_EXPANSION, FREE_BYTES = 64, 64 << 20
"""How many times as long as its file a recording may be, with its lines unpacked, from this length on. Events are
compressed to a tenth to a thirtieth; zlib reaches a thousandth."""

_decoder = msgspec.json.Decoder(RecordedLine)


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """One line: an event or a change of the node.

    Attributes:
        file: of the line.
        line: its number, from 1.
        at: when, UTC.
        op: as in the log line of the decision; empty for a change of the node.
        event: the event; None for a change of the node and for a head.
        outcome: its outcome at the time; None without an event.
        node: the node from here on, in a change of the node or a head; else None.
        why: `start`, `full` or `gap` in a head, else empty.
        observing: no decision was carried out.
        state: the state from here on, in a head; else None.
        lost: lines before it could not be read, so the state before the event is unknown.
    """

    file: str
    line: int
    at: datetime
    op: str = ""
    event: Event | None = None
    outcome: OutcomeRow | None = None
    node: Node | None = None
    why: str = ""
    observing: bool = False
    state: State | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """One event, decided again.

    Attributes:
        when: of the event, UTC.
        node: the node of the decision.
        state_before: the state before the event.
        state_after: the state after it; an event that was refused or failed at the time changed nothing.
        event: the event.
        outcome: its outcome at the time.
        decision: by this version.
        op: as in the log line of the decision.
        place: `FILE:LINE`.
        observing: no decision was carried out.
        begins: `start`, `full` or `gap` if a head precedes the event, else empty.
    """

    when: datetime
    node: Node
    state_before: State
    state_after: State
    event: Event
    outcome: OutcomeRow
    decision: Decision
    op: str
    place: str
    observing: bool = False
    begins: str = ""


class Recording:
    """A recording. Each iteration reads its files again.

    Args:
        path: as given.
        files: in the order of their lines.
        providers: hint providers of other packages that are installed here.

    Attributes:
        problems: lines that the iterations so far could not read, `FILE:LINE: ...`, each once.
    """

    def __init__(self, path: str, files: tuple[str, ...], providers: tuple[HintProvider, ...] = ()) -> None:
        self.path = path
        self._providers = providers
        self.files = files
        self.problems: list[str] = []

    def entries(self) -> Iterator[RecordedEntry]:
        """All lines that can be read.

        Raises:
            HostError: a file can no longer be read.
        """
        with ExitStack() as opened:
            # All files are opened before the first is read: the agent may drop the older segment meanwhile.
            streams = [(name, opened.enter_context(_opened(name))) for name in self.files]
            lost = False
            for name, stream in streams:
                entries = _Lines(name, stream, self._problem, self._providers, lost=lost)
                yield from entries
                lost = entries.lost

    def lived(self) -> Iterator[tuple[RecordedEntry, Moment | None]]:
        """All lines that can be read, with a moment for each event whose state is known.

        Raises:
            HostError: a file can no longer be read.
        """
        life = _Life(self._problem)
        for entry in self.entries():
            yield entry, life.lives(entry)

    def moments(self) -> Iterator[Moment]:
        """Every event whose state is known, decided again.

        Raises:
            HostError: a file can no longer be read.
        """
        return (moment for _, moment in self.lived() if moment is not None)

    def size_bytes(self) -> int:
        """The size of the files that exist."""
        return sum(os.path.getsize(name) for name in self.files if os.path.exists(name))

    def _problem(self, sentence: str) -> None:
        if sentence not in self.problems:
            self.problems.append(sentence)


class _Life:
    """Node and state while entries are read."""

    def __init__(self, problem: Callable[[str], None]) -> None:
        self._problem = problem
        self._node: Node | None = None
        self._state: State | None = None
        self._observing, self._begins = False, ""

    def lives(self, entry: RecordedEntry) -> Moment | None:
        """The entry, decided again; None for an entry without an event, or if the state before it is unknown."""
        self._node = entry.node or self._node
        if entry.state is not None:
            self._state, self._observing, self._begins = entry.state, entry.observing, entry.why
        node, before = self._node, self._state
        if entry.event is None or entry.outcome is None or node is None or before is None or entry.lost:
            return None
        try:
            decision = decide(node, before, entry.event)
            self._state = _after(node, before, entry, decision, observing=self._observing)
        except Exception as error:  # noqa: BLE001 - a line that a disk or a person changed may hold any values
            why = f"cannot be decided again: {type(error).__name__}: {error}"
            self._problem(f"{entry.file}:{entry.line}: {why}")
            self._state = None
            return None
        begins, self._begins = self._begins, ""
        return Moment(
            entry.at,
            node,
            before,
            self._state,
            entry.event,
            entry.outcome,
            decision,
            entry.op,
            f"{entry.file}:{entry.line}",
            self._observing,
            begins,
        )


def _after(node: Node, before: State, entry: RecordedEntry, decision: Decision, *, observing: bool) -> State:
    """Return the state after an event. An agent that only observes refuses nothing, so the container runs."""
    outcome, event = entry.outcome, entry.event
    if outcome is None or outcome.failed:
        return before
    if not outcome.refusal:
        return decision.state
    if observing and outcome.reason and isinstance(event, CreateContainer | InformedCreate):
        return unrefused(node, before, event).state
    return before if decision.refusal is None else decision.state


def read(path: str, providers: tuple[HintProvider, ...] = ()) -> Recording:
    """The recording in a file, or in the directory of a bounded one; compressed by gzip or not.

    Args:
        path: of either.
        providers: hint providers of other packages that are installed here: a recording holds only their names.

    Raises:
        HostError: there is none, it cannot be read, or its first line is no head; says what to do.
    """
    files = _segments(path) if os.path.isdir(path) else (path,)
    recording = Recording(path, files, providers)
    with _opened(files[0]) as stream:
        try:
            head = stream.readline(LONGEST_LINE_BYTES)
        except _UNREADABLE as error:
            raise HostError(files[0], f"cannot be read: {error}; give a whole copy of it") from None
        _check_head(files[0], head)
    return recording


def _segments(path: str) -> tuple[str, ...]:
    names = (os.path.join(path, PREVIOUS), os.path.join(path, CURRENT))
    found = tuple(name for name in names if os.path.exists(name))
    if not found:
        inner = os.path.join(path, DIRECTORY)
        if os.path.isdir(inner):
            return _segments(inner)
        raise HostError(path, f"no recording in it: neither {PREVIOUS} nor {CURRENT} is there")
    return found


def _opened(path: str) -> BinaryIO:
    try:
        with open(path, "rb") as file:
            is_compressed = file.read(2) == _GZIP
        return gzip.open(path) if is_compressed else open(path, "rb")  # type: ignore[return-value]
    except OSError as error:
        why = (
            "is not there"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read: {(error.strerror or 'unknown error').lower()}"
        )
        raise HostError(path, f"{why}; name what nri-pin run --record wrote, or a state directory") from None


def _check_head(path: str, text: bytes) -> None:
    try:
        head = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        head = RecordedLine()
    if head.format != FORMAT:
        raise HostError(
            f"{path}:1",
            "is no head of a recording; give a file that nri-pin run --record made, or a state directory",
        )
    _check_version(f"{path}:1", head)


def _check_version(place: str, head: RecordedLine) -> None:
    if head.version != VERSION:
        raise HostError(
            place,
            f"has version {head.version} (written by nri-pin {head.writer}), this program ({__version__}) "
            f"reads version {VERSION}; use the version that wrote it",
        )


def _decoded(text: bytes) -> RecordedLine:
    """The values of a line.

    Raises:
        ValueError: it has too many.
        MsgspecError: it has others.
    """
    values = bounds.values_in(text)
    if values > MOST_VALUES:
        raise ValueError(f"{values} values, more than the {MOST_VALUES} that a line may have")
    return _decoder.decode(text)


class _Lines:
    """The lines of one file as entries."""

    def __init__(
        self,
        name: str,
        stream: BinaryIO,
        problem: Callable[[str], None],
        providers: tuple[HintProvider, ...],
        *,
        lost: bool = False,
    ) -> None:
        self._name, self._stream, self._problem, self._providers = name, stream, problem, providers
        self._head: RecordedEntry | None = None
        self._damaged = self._read_bytes = 0
        self.lost = lost

    def __iter__(self) -> Iterator[RecordedEntry]:
        number = 0
        try:
            for number, text in enumerate(self._texts(), 1):
                entry = self._entry(number, text)
                if entry is not None:
                    yield entry
        except _UNREADABLE as error:
            self._lose(number + 1, f"cannot be read on: {error}")

    def _texts(self) -> Iterator[bytes]:
        """The lines as written.

        Raises:
            EOFError: the rest is not worth its reading.
        """
        most = max(FREE_BYTES, MOST_EXPANSION * os.path.getsize(self._name))
        while text := self._stream.readline(LONGEST_LINE_BYTES):
            self._read_bytes += len(text)
            if len(text) == LONGEST_LINE_BYTES:
                raise EOFError(f"the line is longer than {LONGEST_LINE_BYTES >> 20} MiB")
            if self._read_bytes > most:
                raise EOFError(f"it is more than {MOST_EXPANSION} times as long as its file")
            if self._damaged > MOST_DAMAGED:
                raise EOFError(f"more than {MOST_DAMAGED} of its lines are damaged")
            yield text

    def _entry(self, number: int, text: bytes) -> RecordedEntry | None:
        try:
            line = _decoded(text)
            if line.packed:
                whole = unpacked(line.packed)
                self._read_bytes += len(whole)
                line = _decoded(whole)
            return self._understood(number, line)
        except (msgspec.MsgspecError, ValueError, RecursionError, HostError) as error:
            torn = not text.endswith(b"\n")
            why = "is torn: its writer ended in the middle of it" if torn else f"is damaged: {error}"
            self._lose(number, error.detail if isinstance(error, HostError) else why)
            return None

    def _lose(self, number: int, why: str) -> None:
        self.lost, self._head = True, None
        self._damaged += 1
        self._problem(f"{self._name}:{number}: {why}")

    def _understood(self, number: int, line: RecordedLine) -> RecordedEntry | None:
        if line.snapshot is not None:
            return self._begun(line)
        if line.at is None:
            raise ValueError("a line without a time")
        place = (self._name, number, line.at)
        if line.format:
            _check_version(f"{self._name}:{number}", line)
            if line.node is None:
                raise ValueError("a head without a node")
            # Only the snapshot in the next line makes the state known again.
            self._head = RecordedEntry(
                *place, node=self._node(number, line.node), why=line.why, observing=line.observing, lost=True
            )
            return None
        if line.node is not None:
            return RecordedEntry(*place, node=self._node(number, line.node), lost=self.lost)
        if line.outcome is None:
            raise ValueError("an event without an outcome")
        return RecordedEntry(*place, op=line.op, event=event_from(line), outcome=line.outcome, lost=self.lost)

    def _node(self, number: int, row: RecordedNode) -> Node:
        node = node_from(row, self._providers)
        if row.hint_providers and not node.hint_providers:
            names = ", ".join(row.hint_providers)
            self._problem(
                f"{self._name}:{number}: hint providers {names} were asked, which are not those installed here; "
                "their decisions may differ"
            )
        return node

    def _begun(self, line: RecordedLine) -> RecordedEntry:
        if self._head is None or line.snapshot is None:
            raise ValueError("a snapshot without a head")
        entry = replace(self._head, state=state_from(line.snapshot), lost=False)
        self.lost, self._head = False, None
        return entry


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A decision that this version makes differently.

    Attributes:
        moment: the event.
        what: `admission`, `cpus`, `mems`, `updates`, `writes`, or `state` where the states before it differ.
        recorded: the recorded value.
        today: the value by this version.
    """

    moment: Moment
    what: str
    recorded: str
    today: str


def changes(moment: Moment, former: Moment | None) -> Iterator[RecordedChange]:
    """Return the differences at one event; `former` is the event before it."""
    # A segment begins with the state at the end of the one before it, so the two are compared as well.
    if moment.begins == "full" and former is not None and former.state_after != moment.state_before:
        yield RecordedChange(moment, "state", _allocated(moment.state_before), _allocated(former.state_after))
    if moment.outcome.failed:
        return
    recorded = moment.outcome
    refused = recorded.reason or ("refused" if recorded.refusal else "")
    today = moment.decision.refusal.reason if moment.decision.refusal else ""
    # The sets of an admitted and of a refused container are not compared: they always differ.
    if refused != today:
        yield RecordedChange(moment, "admission", refused or "admitted", today or "admitted")
        return
    now = outcome_of(moment.decision)
    for what in ("cpus", "mems", "updates", "writes"):
        before, after = getattr(recorded, what), getattr(now, what)
        if before != after:
            yield RecordedChange(moment, what, _text(before), _text(after))


def _allocated(state: State) -> str:
    return f"{len(state.allocations)} allocations, CPUs {state.exclusive}"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{one[0][:12]}={one[1]}" for one in value) or "none"
    return str(value) or "none"
