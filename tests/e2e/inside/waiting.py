"""Waiting for a fact with a limit: the only place of the scenarios that sleeps."""

import time
from collections.abc import Callable

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.3
"""In an emulated guest looking takes the time of what is waited for."""


def wait_for(fact: Callable[[], bool], limit_s: float, what: str) -> None:
    """Return as soon as `fact` holds.

    Raises:
        TimeoutError: it did not hold within `limit_s` seconds.
    """
    deadline, pause = time.monotonic() + limit_s, _FIRST_PAUSE_S
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:g} s in vain until {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
