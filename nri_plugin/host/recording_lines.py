"""The lines of a recording as they are written: the format is that of `recording.py`, which reads them.

Kept apart from the reader, for this part runs in the agent.
"""

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
VERSION = 1
DIRECTORY = "history"
"""Its name in the state directory."""
CURRENT, PREVIOUS = "recording.jsonl", "recording.previous.jsonl"
"""The two segments of a bounded recording."""

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
    return _encode(head) + b"\n" + _encode(Line(snapshot=snapshot_row(state))) + b"\n"


def node_line(node: Node, at: datetime) -> bytes:
    """The line of a node that became another one."""
    return _encode(Line(at=at, node=node_row(node))) + b"\n"


def line_of(event: Event, at: datetime, op: str, outcome: OutcomeRow) -> bytes:
    """The line of an event and what came of it."""
    return _encode(event_line(event, at, op, outcome)) + b"\n"


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
