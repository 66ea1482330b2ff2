"""When a cgroup that drifted again may be put right again: at once, then ever later, never in step with who fights us.

Whoever writes again after every repair is as stubborn as we are. Each further round waits longer, up to minutes, so
that neither side burns the node's time, and the cgroup is put right again in the end when the other stops.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 300.0
CALM_S = 60.0
"""Whoever has left it alone for so long, and longer than the last pause twice, begins anew."""

FIGHT_ROUNDS = 4
"""A runtime that puts back its stored value once or twice is no fight."""


@dataclass(frozen=True, slots=True)
class Round:
    """The latest repair of one cgroup.

    Attributes:
        number: 1 for the first since it was calm.
        at: when, in seconds.
        next_at: before that it is not touched again.
    """

    number: int
    at: float
    next_at: float

    @property
    def is_fight(self) -> bool:
        """Whether somebody puts back what we change, again and again."""
        return self.number >= FIGHT_ROUNDS

    @property
    def pause_s(self) -> float:
        """Seconds until the next try."""
        return self.next_at - self.at


class Pacing(Generic[Key]):
    """Rounds by cgroup.

    Args:
        draw: jitter, from 0 to 1.
    """

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._rounds: dict[Key, Round] = {}

    def due_at(self, key: Key) -> float:
        """When it may be put right; in the past for whatever was calm."""
        latest = self._rounds.get(key)
        return latest.next_at if latest else float("-inf")

    def took_place(self, key: Key, now: float) -> Round:
        """A repair was tried now."""
        former = self._rounds.get(key)
        number = 1 if former is None or _is_calm(former, now) else former.number + 1
        pause = min(FIRST_PAUSE_S * 2.0 ** (number - 1), LONGEST_PAUSE_S) * (0.75 + self._draw() / 2)
        latest = self._rounds[key] = Round(number, now, now + pause)
        return latest

    def forget(self, key: Key) -> None:
        """The cgroup is gone."""
        self._rounds.pop(key, None)

    def forget_calm(self, now: float) -> list[Key]:
        """Forget those that were left alone since; returns those that had been fought over."""
        calm = [key for key, latest in self._rounds.items() if _is_calm(latest, now)]
        return [key for key in calm if self._rounds.pop(key).is_fight]

    @property
    def fights(self) -> list[Key]:
        """Cgroups fought over."""
        return [key for key, latest in self._rounds.items() if latest.is_fight]


def _is_calm(latest: Round, now: float) -> bool:
    return now - latest.at > max(CALM_S, 2 * latest.pause_s)
