"""What a person at a terminal sees while something takes longer than a second: one line on standard error, wiped at its end.

Nothing is written into files and pipes, and nothing for what is quick.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Item = TypeVar("Item")

AFTER_S = 1.0
AGAIN_S = 0.25
WIPE = "\r\x1b[K"


class Line:
    """The line, written from its second second on.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + AFTER_S
        self._is_seen = sys.stderr.isatty()
        self._is_written = False

    def say(self, text: str) -> None:
        """Write the text over the former one, if it is time to."""
        if not self._is_seen or self._clock() < self._due:
            return
        self._due, self._is_written = self._clock() + AGAIN_S, True
        sys.stderr.write(f"{WIPE}{text}")
        sys.stderr.flush()

    def wipe(self) -> None:
        """Leave nothing behind."""
        if self._is_written:
            self._is_written = False
            sys.stderr.write(WIPE)
            sys.stderr.flush()


def told(items: Iterable[Item], text: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Item]:
    """The items, while `text` tells how many came by: `replayed {} events`."""
    line = Line(clock)
    try:
        for count, item in enumerate(items):
            line.say(text.format(count))
            yield item
    finally:
        line.wipe()


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Tell what is being done and for how long, where no item comes by that could be counted.

    A timer of the process interrupts what is done for it, so that there is neither thread nor a call in the way.
    """
    if not sys.stderr.isatty() or threading.current_thread() is not threading.main_thread():
        yield
        return
    line, began = Line(), time.monotonic()

    def tell(_number: int, _frame: FrameType | None) -> None:
        line.say(f"{text}, {time.monotonic() - began:.0f} s")

    former = signal.signal(signal.SIGALRM, tell)
    pending = signal.setitimer(signal.ITIMER_REAL, AFTER_S, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        signal.setitimer(signal.ITIMER_REAL, *pending)
        line.wipe()
