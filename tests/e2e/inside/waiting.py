"""Waiting for a fact with a limit: the only place of the scenarios that sleeps."""

import time
from collections.abc import Callable


def wait_for(fact: Callable[[], bool], limit_s: float, what: str) -> None:
    """Return as soon as `fact` holds.

    Raises:
        TimeoutError: it did not hold within `limit_s` seconds.
    """
    deadline = time.monotonic() + limit_s
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:g} s in vain until {what}")
        time.sleep(0.02)
