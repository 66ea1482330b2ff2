"""Whether today's program decides what was decided when a recording was made.

Words may change from version to version, decisions not: steps and the texts of refusals are not compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nri_plugin.host.recording import Moment
from nri_plugin.host.recording_lines import outcome_of


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is decided otherwise today.

    Attributes:
        moment: the event.
        what: `admission`, `cpus`, `mems`, `updates`, `writes`, or `state` where the states before it differ.
        recorded: what it was.
        today: what it is.
    """

    moment: Moment
    what: str
    recorded: str
    today: str


def changes(moment: Moment, former: Moment | None) -> Iterator[Change]:
    """What differs at one event; `former` is the one before it.

    A segment begins with the state that the one before it ended in, which is compared, too.
    """
    if moment.begins == "full" and former is not None and former.state_after != moment.state_before:
        yield Change(moment, "state", _promises(moment.state_before), _promises(former.state_after))
    if moment.outcome.failed:
        return
    recorded = moment.outcome
    refused = recorded.reason or ("refused" if recorded.refusal else "")
    today = moment.decision.refusal.reason if moment.decision.refusal else ""
    if refused != today:
        yield Change(moment, "admission", refused or "admitted", today or "admitted")
        return
    now = outcome_of(moment.decision)
    for what in ("cpus", "mems", "updates", "writes"):
        before, after = getattr(recorded, what), getattr(now, what)
        if before != after:
            yield Change(moment, what, _text(before), _text(after))


def _promises(state: object) -> str:
    allocations = getattr(state, "allocations", {})
    return f"{len(allocations)} promises, CPUs {getattr(state, 'exclusive', '')}"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{one[0][:12]}={one[1]}" for one in value) or "none"
    return str(value) or "none"
