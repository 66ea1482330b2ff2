"""Ends a process whose loop is stuck, so that it is started again; a restart moves nobody.

The DaemonSet's kubelet, systemd, or the supervisor of an agent that the runtime started does that; the runtime itself
starts a plugin only once. Without this, a deadlock or a file that never answers would leave a node without an agent.
"""

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable

from nri_plugin.app.logs import say
from nri_plugin.app.loop import Loop

LOOK_PAUSE_S = 10.0
LIMIT_S = 30.0
"""Fifteen times what runtimes wait for an answer: by then they have closed the connection long ago."""

EXIT_STUCK = 70
"""EX_SOFTWARE of sysexits.h."""


class Watchdog:
    """Asks the loop for a sign of life from a thread of its own, until `close`.

    Args:
        loop: is asked.
        log: says why the process ended.
        pause_s: between two looks.
        limit_s: how long a sign may take.
        give_up: ends the process with a code, and not by way of a thread that is stuck.
    """

    def __init__(
        self,
        loop: Loop,
        log: logging.Logger,
        *,
        pause_s: float = LOOK_PAUSE_S,
        limit_s: float = LIMIT_S,
        give_up: Callable[[int], object] = os._exit,
    ) -> None:
        self._loop, self._log, self._give_up = loop, log, give_up
        self._pause_s, self._limit_s = pause_s, limit_s
        self._closed, self._seen = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking; before the loop is closed."""
        self._closed.set()
        self._seen.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._pause_s):
            seen = self._seen = threading.Event()
            if self._closed.is_set():
                return
            self._loop.post(seen.set)
            # In two halves: a process that was frozen meanwhile gets the second one to come round.
            if (
                not seen.wait(self._limit_s / 2)
                and not seen.wait(self._limit_s / 2)
                and not self._closed.is_set()
            ):
                say(
                    self._log,
                    logging.CRITICAL,
                    "the event loop is stuck, the agent ends to be started again; where each thread is follows",
                    limit_s=self._limit_s,
                )
                faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
                self._give_up(EXIT_STUCK)
                return
