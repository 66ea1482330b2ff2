"""How long to wait before asking again: longer each time, never all at the same moment.

A thousand nodes that lost the API server together must not come back together.
"""

import random
from collections.abc import Callable

Draw = Callable[[], float]


class Backoff:
    """Pauses between attempts.

    Invariant: a pause is between half of its limit and the limit; limits double from `first_s` to `longest_s`;
    a longer pause that the server asked for is kept.

    Args:
        first_s: limit of the first pause.
        longest_s: limit of any.
        draw: a number from 0 to 1, another each time.
    """

    def __init__(self, first_s: float = 1.0, longest_s: float = 60.0, draw: Draw = random.random) -> None:
        self._first_s, self._longest_s, self._draw = first_s, longest_s, draw
        self._limit_s = first_s

    def next_s(self, asked_for_s: float | None = None) -> float:
        """Seconds until the next attempt."""
        pause_s = self._limit_s * (0.5 + 0.5 * self._draw())
        self._limit_s = min(self._limit_s * 2, self._longest_s)
        return max(pause_s, asked_for_s or 0.0)

    def reset(self) -> None:
        """It worked: begin again with a short pause."""
        self._limit_s = self._first_s
