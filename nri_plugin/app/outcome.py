"""One event, over: what those who count and watch are told of it."""

from collections.abc import Callable
from dataclasses import dataclass

from nri_plugin.decision import Decision
from nri_plugin.nri.events import NRIEvent
from nri_plugin.options import Node
from nri_plugin.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one event.

    Attributes:
        node: decided for.
        event: the event.
        before: the state it met.
        decision: what was decided; the bare state `before` when deciding failed.
        refusal: why it was refused, empty when it was not.
        failed: something other than policy went wrong: a bug, a file, a cgroup.
        decide_s: seconds the decision took.
        total_s: seconds until the answer was ready, with checkpoint and cgroups.
    """

    node: Node
    event: NRIEvent
    before: State
    decision: Decision
    refusal: str
    failed: bool
    decide_s: float
    total_s: float


Observer = Callable[[Outcome], None]
"""Told of every outcome by the thread that answers the runtime: microseconds, no I/O."""
