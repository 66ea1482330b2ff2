"""The lines of a recording as they are written: the format is that of `recording.py`, which reads them.

Kept apart from the reader, for this part runs in the agent.
"""

import zlib
from datetime import datetime

import msgspec

from nri_plugin import __version__
from nri_plugin.decision import Decision
from nri_plugin.host.recording_node import node_row
from nri_plugin.host.recording_rows import Event, Line, OutcomeRow, event_line, snapshot_row
from nri_plugin.nri.events import CreateContainerResponse
from nri_plugin.options import Node
from nri_plugin.state import State

FORMAT = "nri-pin recording"
VERSION = 2
"""2 has packed lines; a reader of version 1 would pass over them."""
READABLE = (1, VERSION)
DIRECTORY = "history"
"""Its name in the state directory."""
CURRENT, PREVIOUS = "recording.jsonl", "recording.previous.jsonl"
"""The two segments of a bounded recording."""

PACK_FROM_BYTES = 64 << 10
"""Longer lines are packed: a snapshot of 3,000 containers has 1.7 MB, packed 0.4 MB, and takes 7 ms to pack."""
MOST_UNPACKED_BYTES = 256 << 20
"""A line that would become longer is damaged: 40,000 containers have 22 MB."""

_encode = msgspec.json.Encoder().encode


def head_lines(
    node: Node, state: State, at: datetime, why: str = "start", *, observing: bool = False
) -> bytes:
    """The two lines a recording begins with."""
    head = Line(
        format=FORMAT,
        version=VERSION,
        writer=__version__,
        why=why,
        observing=observing,
        at=at,
        node=node_row(node),
    )
    return _encode(head) + b"\n" + _written(Line(snapshot=snapshot_row(state)))


def node_line(node: Node, at: datetime) -> bytes:
    """The line of a node that became another one."""
    return _written(Line(at=at, node=node_row(node)))


def line_of(event: Event, at: datetime, op: str, outcome: OutcomeRow) -> bytes:
    """The line of an event and what came of it."""
    return _written(event_line(event, at, op, outcome))


def _written(line: Line) -> bytes:
    data = _encode(line)
    if len(data) > PACK_FROM_BYTES:
        data = _encode(Line(packed=zlib.compress(data, 1)))
    return data + b"\n"


def unpacked(data: bytes) -> bytes:
    """A packed line as it was.

    Raises:
        ValueError: it is damaged.
    """
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
    """What came of an event, in short."""
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
