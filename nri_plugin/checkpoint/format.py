"""The checkpoint as text: one JSON document with one record a line.

    {"format":"nri-pin checkpoint","version":3,"writer":"0.1.0","generation":7,
    "node":{...},
    "pods":[
    {...}
    ],
    "containers":[...],
    "allocations":[...],
    "checksum":"crc32:0123abcd"}

The checksum covers every byte before its line, so each change of the document is noticed. Sets are kernel lists. Reading is
strict: an unknown field, a missing one or a wrong type is an error. A record has a line, so that people can compare two
files, and a damaged file loses only the damaged lines.

Version 2 added the `facts` of pods, the steps of resizes, the memory that ended init containers returned, whether a hint
counts the devices of a whole pod, CPU limits, hints of containers, sandboxes, and the node's memory. Version 3 added the
marks of pods that were admitted as a whole, of init containers, and of the shared pools of pods; the memory that init
containers returned is read and ignored. Versions 1 to 3 are read, and 3 is written; fields that an older version lacks have
defaults. An unknown version is an error that names those that are read.
"""

import re
import zlib
from collections.abc import Callable, Mapping
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
    state_from,
)
from nri_plugin.model.state import State

FORMAT = "nri-pin checkpoint"
VERSION = 3
READABLE = (1, 2, 3)

_HEAD = re.compile(rb'\{"format":"nri-pin checkpoint","version":([0-9]{1,9}),')
_TAIL = re.compile(rb',\n"checksum":"crc32:([0-9a-f]{8})"\}\n\Z')


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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        state: the allocations.
        generation: counts the saves of a node, so that two files can be told apart.
        writer: version of the program that wrote it.
        facts: the machine it was made on, None when the writer did not know it.
    """

    state: State
    generation: int
    writer: str
    facts: NodeFacts | None


class _Lines:
    """The encoded lines of one mapping of a state, remembered from one save to the next.

    Records are frozen: the same object always has the same line, so only changed records are encoded.
    """

    def __init__(self, row: Callable[[Any, str], object]) -> None:
        self._row = row
        self._lines: dict[str, tuple[object, bytes]] = {}
        self._records: Mapping[str, object] = {}
        self._text = b""

    def text(self, records: Mapping[str, object]) -> bytes:
        """The lines of `records`, joined."""
        if records is self._records:
            return self._text
        known, self._lines = self._lines, {}
        for key, record in records.items():
            entry = known.get(key)
            if entry is None or entry[0] is not record:
                entry = (record, msgspec.json.encode(self._row(record, key)))
            self._lines[key] = entry
        self._text = b",\n".join([line for _, line in self._lines.values()])
        self._records = records
        return self._text


class Encoder:
    """Encodes states as documents. The time depends on the changes since the last one."""

    def __init__(self) -> None:
        self._lines = {name: _Lines(rows.table.row) for name, rows in STATE_ROWS.items()}

    def encode(self, state: State, generation: int, facts: NodeFacts | None = None) -> list[bytes]:
        """The document in pieces: joining a large one would take longer than encoding it.

        Raises:
            ValueError: a text of the state cannot be written as UTF-8.
        """
        pieces = [_head(generation, facts)]
        for name, lines in self._lines.items():
            pieces += [b',\n"%s":[\n' % name.encode(), lines.text(getattr(state, name)), b"\n]"]
        checksum = 0
        for piece in pieces:
            checksum = zlib.crc32(piece, checksum)
        return [*pieces, b',\n"checksum":"crc32:%08x"}\n' % checksum]


@lru_cache(maxsize=8)
def _node_line(facts: NodeFacts | None) -> bytes:
    return msgspec.json.encode(None if facts is None else NODE_FACTS.row(facts))


def _head(generation: int, facts: NodeFacts | None) -> bytes:
    head = f'{{"format":"{FORMAT}","version":{VERSION},"writer":"{__version__}","generation":{generation},\n"node":'
    return head.encode("ascii") + _node_line(facts)


class OtherVersionError(ValueError):
    """The checkpoint has a version of another release. It is not damaged."""


_decoder = msgspec.json.Decoder(Document)


def decode(data: bytes) -> Checkpoint:
    """Decode a document.

    Raises:
        ValueError: it is no checkpoint, has another version, is damaged, or has wrong fields; one sentence.
    """
    # The version first: another version may have another checksum, and is no damage.
    _check_version(data)
    _check_sum(data)
    try:
        document = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"its content is not what a checkpoint holds: {error}") from error
    state = state_from(document)
    for name in STATE_ROWS:
        count, keys = len(getattr(document, name)), len(getattr(state, name))
        if count != keys:
            raise ValueError(f"it holds a {name.removesuffix('s')} twice: {count} records under {keys} keys")
    facts = None if document.node is None else NODE_FACTS.record(document.node)
    return Checkpoint(state, document.generation, document.writer, facts)


def _check_version(data: bytes) -> None:
    match = _HEAD.match(data)
    if match is None:
        raise ValueError(f"it does not begin as an {FORMAT} does")
    if int(match[1]) not in READABLE:
        raise OtherVersionError(
            f"it has version {int(match[1])} and this program ({__version__}) reads versions "
            f"{READABLE[0]} to {VERSION}"
        )


def _check_sum(data: bytes) -> None:
    tail = _TAIL.search(data, max(0, len(data) - 64))
    if tail is None:
        raise ValueError("it does not end in a checksum: it was cut short or changed by hand")
    found = zlib.crc32(data[: tail.start()])
    if found != int(tail[1], 16):
        raise ValueError(
            f"its checksum is {found:08x} and should be {tail[1].decode()}: it was changed or damaged"
        )
