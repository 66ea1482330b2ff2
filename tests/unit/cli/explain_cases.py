"""State directories as an agent leaves them: a history of decisions and a checkpoint."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import Node
from nri_plugin.model.state import State
from nri_plugin.recording.file import CURRENT, DIRECTORY, head_lines, line_of, outcome_of
from nri_plugin.wire.nri.events import NRIEvent

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def lived(
    folder: Path, node: Node, events: Sequence[NRIEvent | InformedCreate], *, observing: bool = False
) -> State:
    """Let an agent decide these events; its history and its checkpoint are in `folder`."""
    state = State()
    lines = [head_lines(node, state, AT, observing=observing)]
    for number, event in enumerate(events):
        decision = decide(node, state, event)
        refusal = str(decision.refusal or "")
        lines.append(line_of(event, AT.replace(second=number), f"op{number}", outcome_of(decision, refusal)))
        state = decision.state
    history = folder / DIRECTORY
    history.mkdir(parents=True)
    (history / CURRENT).write_bytes(b"".join(lines))
    CheckpointFile(str(folder), node).save(state)
    return state


def forget(folder: Path) -> None:
    """The history is gone, the checkpoint stays."""
    (folder / DIRECTORY / CURRENT).unlink()
    (folder / DIRECTORY).rmdir()
