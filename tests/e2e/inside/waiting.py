"""Waiting for a fact with a limit: the only place of the scenarios that sleeps."""

import subprocess
import time
from collections.abc import Callable

from .report import tell

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.3
"""In an emulated guest looking takes the time of what is waited for."""

SLOW_S = 2.0
"""A program that does nothing takes a millisecond, and in an emulated guest some 50."""


def tell_if_slow(what: str) -> None:
    """Tell that the host is too slow, where it is: then `what` ran out of time and says nothing about the product."""
    began = time.monotonic()
    subprocess.run(["true"], check=False)
    took_s = time.monotonic() - began
    if took_s > SLOW_S:
        tell("slow", what=f"{what}, and a program that does nothing took {took_s:.1f} s")


def wait_for(fact: Callable[[], bool], limit_s: float, what: str) -> None:
    """Return as soon as `fact` holds.

    Raises:
        TimeoutError: it did not hold within `limit_s` seconds.
    """
    deadline, pause = time.monotonic() + limit_s, _FIRST_PAUSE_S
    while not fact():
        if time.monotonic() > deadline:
            tell_if_slow(f"waited {limit_s:g} s in vain until {what}")
            raise TimeoutError(f"waited {limit_s:g} s in vain until {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
