"""The checkpoint as text: one JSON document with one row a line, and the records of what has changed since.

    {"format":"nri-pin checkpoint","version":4,"writer":"0.1.0","generation":7,
    "node":{...},
    "pods":[
    {...}
    ],
    "containers":[...],
    "allocations":[...],
    "checksum":"crc32:0123abcd"}

The checksum covers every byte before its line, so each change of the document is noticed. Sets are kernel lists. Reading is
strict: an unknown field, a missing one or a wrong type is an error. A row has a line, so that people can compare two
files, and a damaged file loses only the damaged lines.

A journal follows the document: a line for each event, with the rows that it added or replaced and the keys that it removed.

    {"generation":8,"allocations":[{...}],"removed":{"pods":["..."]},"checksum":"crc32:4567cdef"}

The checksum of a line continues that of the line before it, the first that of the document, so a line that is missing,
repeated or behind another document is noticed. A last line without its end was being written when the process ended. Another
version is an error that names both.
"""

import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from nri_plugin import __version__
from nri_plugin.checkpoint.rows import (
    NODE_FACTS,
    STATE_ROWS,
    AllocationRow,
    NodeFacts,
    SavedContainer,
    SavedNode,
    SavedPod,
    Tables,
    tables_from,
)
from nri_plugin.model.bounds import values_in
from nri_plugin.model.state import State, StateChanges

FORMAT = "nri-pin checkpoint"
VERSION = 4
MOST_VALUES = 1 << 21
"""Of a file that is read; 40,000 containers have 900,000."""

_HEAD = re.compile(rb'\{"format":"nri-pin checkpoint","version":([0-9]{1,9}),')
_END = b',\n"checksum":"crc32:%08x"}\n'
_TAIL = re.compile(rb',\n"checksum":"crc32:([0-9a-f]{8})"\}\n')
_RECORD_TAIL = re.compile(rb',"checksum":"crc32:([0-9a-f]{8})"\}')


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    format: str
    version: int
    writer: str
    generation: int
    node: SavedNode | None
    pods: list[SavedPod]
    containers: list[SavedContainer]
    allocations: list[AllocationRow]
    checksum: str


class RemovedKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys that an event removed."""

    pods: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()
    allocations: tuple[str, ...] = ()


class JournalRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the journal."""

    generation: int
    checksum: str
    pods: tuple[SavedPod, ...] = ()
    containers: tuple[SavedContainer, ...] = ()
    allocations: tuple[AllocationRow, ...] = ()
    removed: RemovedKeys = RemovedKeys()

    def apply(self, tables: Tables) -> None:
        """Make the changes of the event in the tables of a state.

        Raises:
            ValueError: a set is no kernel list.
        """
        for name, rows in tables_from(self).items():
            for key in getattr(self.removed, name):
                tables[name].pop(key, None)
            tables[name].update(rows)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        state: the allocations.
        generation: counts the saves of a node, so that two files can be told apart.
        writer: version of the program that wrote it.
        facts: the machine it was made on, None when the writer did not know it.
        is_cut: whether it ends within a record, which is left out.
    """

    state: State
    generation: int
    writer: str
    facts: NodeFacts | None
    is_cut: bool = False


class Encoder:
    """Encodes states as documents, and changes as records of the journal behind one.

    Rows are remembered: records of a state are frozen, so the same object always has the same row.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, tuple[object, bytes]]] = {name: {} for name in STATE_ROWS}

    def encode(self, state: State, generation: int, facts: NodeFacts | None = None) -> list[bytes]:
        """The document in pieces: joining a large one would take longer than encoding it.

        Raises:
            ValueError: a text of the state cannot be written as UTF-8.
        """
        pieces = [_head(generation, facts)]
        for name in STATE_ROWS:
            rows = {key: self._row(name, key, record) for key, record in getattr(state, name).items()}
            self._rows[name] = rows
            lines = b",\n".join([line for _, line in rows.values()])
            pieces += [b',\n"%s":[\n' % name.encode(), lines, b"\n]"]
        checksum = 0
        for piece in pieces:
            checksum = zlib.crc32(piece, checksum)
        return [*pieces, _END % checksum]

    def record(self, changes: StateChanges, generation: int, checksum: int) -> bytes:
        """The line of the journal with these changes; empty where nothing has changed.

        Args:
            changes: from the state before.
            generation: of the state after them.
            checksum: of the line before, or of the document.

        Raises:
            ValueError: a text of the changes cannot be written as UTF-8.
        """
        parts, removed = [], {}
        for name in STATE_ROWS:
            changed = [one for one in getattr(changes, name) if one.before != one.after]
            rows = []
            for one in changed:
                if one.after is not None:
                    entry = self._rows[name][one.key] = self._row(name, one.key, one.after)
                    rows.append(entry[1])
            if rows:
                parts.append(b',"%s":[%s]' % (name.encode(), b",".join(rows)))
            if len(rows) < len(changed):
                removed[name] = [one.key for one in changed if one.after is None]
        if removed:
            parts.append(b',"removed":' + msgspec.json.encode(removed))
        if not parts:
            return b""
        line = b'{"generation":%d%s' % (generation, b"".join(parts))
        return line + b',"checksum":"crc32:%08x"}\n' % zlib.crc32(line, checksum)

    def _row(self, name: str, key: str, record: Any) -> tuple[object, bytes]:
        known = self._rows[name].get(key)
        if known is not None and known[0] is record:
            return known
        return record, msgspec.json.encode(STATE_ROWS[name].table.row(record, key))


def last_checksum(text: bytes) -> int:
    """The checksum at the end of a document, of its last piece, or of a record."""
    return int(text[-11:-3], 16)


@lru_cache(maxsize=8)
def _node_line(facts: NodeFacts | None) -> bytes:
    return msgspec.json.encode(None if facts is None else NODE_FACTS.row(facts))


def _head(generation: int, facts: NodeFacts | None) -> bytes:
    head = f'{{"format":"{FORMAT}","version":{VERSION},"writer":"{__version__}","generation":{generation},\n"node":'
    return head.encode("ascii") + _node_line(facts)


class OtherVersionError(ValueError):
    """The checkpoint has a version of another release. It is not damaged."""


class DamagedJournalError(ValueError):
    """A record of the journal is damaged; the document and the records before it are sound.

    Args:
        number: of the record, from 1.
        at: where it begins, in bytes.
        sound: what is before it.
    """

    def __init__(self, number: int, at: int, sound: Checkpoint) -> None:
        super().__init__(
            f"it was changed or damaged in record {number} of its journal, at byte {at}; the records before that are "
            f"sound, the last of generation {sound.generation}"
        )
        self.at = at
        self.sound = sound


_decoder = msgspec.json.Decoder(Document)
_record_decoder = msgspec.json.Decoder(JournalRecord)


def decode(data: bytes) -> Checkpoint:
    """Decode a checkpoint.

    Raises:
        DamagedJournalError: a record of the journal is damaged.
        ValueError: it is no checkpoint, has another version, is damaged, or has wrong fields; one sentence.
    """
    if values_in(data) > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values, as for {MOST_VALUES // 25} containers")
    end, checksum = _document_end(data)
    try:
        document = _decoder.decode(memoryview(data)[:end])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"its content is not what a checkpoint holds: {error}") from error
    tables = tables_from(document)
    for name, table in tables.items():
        count, keys = len(getattr(document, name)), len(table)
        if count != keys:
            raise ValueError(f"it holds a {name.removesuffix('s')} twice: {count} records under {keys} keys")
    facts = None if document.node is None else NODE_FACTS.record(document.node)
    generation, number, at = document.generation, 0, end
    while at < len(data):
        stop = data.find(b"\n", at) + 1 or len(data)
        line, number = data[at:stop], number + 1
        tail = _RECORD_TAIL.search(line)
        if tail is None and not line.endswith(b"\n"):
            break  # a record that was being written
        record = _record(line, checksum)
        if tail is None or record is None:
            sound = Checkpoint(State(**tables), generation, document.writer, facts)
            raise DamagedJournalError(number, at, sound)
        record.apply(tables)
        generation = record.generation
        checksum = int(tail[1], 16)
        at = stop
    return Checkpoint(State(**tables), generation, document.writer, facts, is_cut=at < len(data))


def _record(line: bytes, former: int) -> JournalRecord | None:
    """The record of a line; None where it is damaged. `former` is the checksum of the line before."""
    tail = _RECORD_TAIL.search(line)
    if tail is None or line[tail.end() :] not in (b"\n", b""):
        return None
    if zlib.crc32(line[: tail.start()], former) != int(tail[1], 16):
        return None
    try:
        return _record_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _document_end(data: bytes) -> tuple[int, int]:
    """Where the document ends, and its checksum."""
    # The version first: another version may have another checksum, and is no damage.
    head = _HEAD.match(data)
    if head is None:
        raise ValueError(f"it does not begin as an {FORMAT} does")
    if int(head[1]) != VERSION:
        raise OtherVersionError(
            f"it has version {int(head[1])} and this program ({__version__}) reads version {VERSION}"
        )
    tail = _TAIL.search(data)
    if tail is None:
        raise ValueError("it does not end in a checksum: it was cut short or changed by hand")
    found = zlib.crc32(data[: tail.start()])
    if found != int(tail[1], 16):
        raise ValueError(
            f"its checksum is {found:08x} and should be {tail[1].decode()}: it was changed or damaged"
        )
    return tail.end(), found
