"""Progress lines: every step says how long it took and how far into the whole run it ended."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_started = time.monotonic()
_printing = threading.Lock()


def say(text: str) -> None:
    """Print one line, stamped with the seconds since the command was started; safe from several threads."""
    with _printing:
        print(f"[{time.monotonic() - _started:6.1f} s] {text}", flush=True)  # noqa: T201 - this is what the command prints


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce `text`, and say at its end how long it took, whether it succeeded or not."""
    began = time.monotonic()
    say(f"{text} ...")
    try:
        yield
    except BaseException:
        say(f"{text}: FAILED after {time.monotonic() - began:.1f} s")
        raise
    say(f"{text}: {time.monotonic() - began:.1f} s")
