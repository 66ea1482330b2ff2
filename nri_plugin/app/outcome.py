"""One event, over: what those who count, watch and record are told of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nri_plugin.decision import Decision
from nri_plugin.drift import OwnEvent
from nri_plugin.facts import InformedCreate, UnsavedStart
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


class History(Protocol):
    """Who records what happened; told by the thread that answers the runtime, and quick. See `recorder.py`."""

    def decided(
        self,
        node: Node,
        before: State,
        event: NRIEvent | InformedCreate | UnsavedStart | OwnEvent,
        decision: Decision,
        *,
        refusal: str = "",
        failed: bool = False,
        op: str = "",
        took_us: int = 0,
    ) -> None:
        """Keep an event and what came of it."""

    def changed(self, node: Node, state: State) -> None:
        """Keep that another node is decided for."""

    def close(self) -> None:
        """Write what waits, and end."""
