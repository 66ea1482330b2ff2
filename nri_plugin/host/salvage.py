"""What can still be read of a damaged checkpoint: row by row, each with the line it stands on.

The checksum watches the whole document, so once it fails a row that can be read may still say something else than was
written. Nothing here is a promise yet: `repair.py` asks for a second witness.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nri_plugin.host.checkpoint_format import READABLE
from nri_plugin.host.checkpoint_rows import (
    AllocationRow,
    ContainerRow,
    NodeFacts,
    NodeRow,
    PodRow,
    allocation_from,
    container_from,
    facts_from,
    pod_from,
)
from nri_plugin.state import Allocation, ContainerRecord, PodRecord, State

_HEAD = re.compile(rb'"version":([0-9]{1,9}),.{0,80}?"generation":([0-9]{1,18}),')
_FRAME = re.compile(
    rb'(\{"format":.*|"(pods|containers|allocations)":\[|\],?|"checksum":"crc32:[0-9a-f]{8}"\})?'
)
_NODE = b'"node":'


@dataclass(slots=True)
class Salvage:
    """What was read.

    Attributes:
        pods: by uid.
        containers: by id.
        allocations: by key; one that stands there twice with different words is not among them.
        facts: the machine; None when that line cannot be read.
        generation: 0 when it cannot be read.
        unreadable: a sentence for each line that cannot.
    """

    pods: dict[str, PodRecord] = field(default_factory=dict)
    containers: dict[str, ContainerRecord] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    facts: NodeFacts | None = None
    generation: int = 0
    unreadable: list[str] = field(default_factory=list)

    @property
    def state(self) -> State:
        """All of it."""
        return State(self.pods, self.containers, self.allocations)


def salvage(data: bytes) -> Salvage:
    """Read what can be read; nothing of a version that is not known here."""
    found = Salvage()
    head = _HEAD.search(data[:400])
    if head is not None:
        if int(head[1]) not in READABLE:
            return found
        found.generation = int(head[2])
    for number, line in enumerate(data.split(b"\n"), 1):
        _read_line(found, number, line)
    return found


def _read_line(found: Salvage, number: int, line: bytes) -> None:
    text = line.rstrip(b",")
    if _FRAME.fullmatch(line):
        return
    try:
        if text.startswith(_NODE):
            row = msgspec.json.decode(text.removeprefix(_NODE), type=NodeRow | None)
            found.facts = None if row is None else facts_from(row)
        else:
            _keep(found, number, text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        found.unreadable.append(f"line {number} cannot be read: {_shown(line)}")


def _keep(found: Salvage, number: int, text: bytes) -> None:
    """Rows have no field that is required by another kind too, so the fields tell which it is."""
    for kind, read, kept in _KINDS:
        try:
            key, record = read(msgspec.json.decode(text, type=kind))
        except msgspec.ValidationError:
            continue
        table: dict[str, object] = getattr(found, kept)
        if table.setdefault(key, record) != record:
            found.unreadable.append(f"line {number} says something else of {key} than a line before it")
            if kept == "allocations":
                del table[key]
        return
    raise ValueError("no row of any kind")


_KINDS: tuple[tuple[type, Callable[[Any], tuple[str, object]], str], ...] = (
    (AllocationRow, allocation_from, "allocations"),
    (ContainerRow, container_from, "containers"),
    (PodRow, pod_from, "pods"),
)


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= 48 else f"{text[:48]}... ({len(line)} bytes)"
