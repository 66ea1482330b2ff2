"""The event loop of the agent: one thread, one selector, sockets, signals, timers and calls posted by other threads.

Everything runs in the thread that calls `run`. Only `post` may be called from other threads. There are no locks: append
and popleft of a deque are atomic, and a byte in the wake-up socket pair ends the wait.

An exception in a piece of work never ends the loop: containers would start unpinned. It is logged and counted, and the work
is tried again, with growing pauses. What cannot go on without its work calls `fail`.
"""

import faulthandler
import logging
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import itemgetter
from types import FrameType
from typing import Protocol

from nri_plugin.process.logs import LOGGER_NAME, say, say_trace

Action = Callable[[], None]
StartThread = Callable[[threading.Thread], None]
Clock = Callable[[], float]

DRAIN_BYTES = 4096

NO_THREAD = "thread not started, trying again"

START_AGAIN_S = 1.0
"""Seconds between two attempts to start a thread."""

MOST_PUT_OFF = 16
"""Turns in a row that timers wait for urgent sources. A runtime that never pauses delays them no longer than that."""

FIRST_AGAIN_S, LONGEST_AGAIN_S = 0.5, 10.0
"""Seconds until failed work is tried again: doubled with each failure in a row. `LoopWatchdog` waits longer than the longest."""

_WHEN = itemgetter(0)
_AFTER_TURN = "after each turn"


class Source(Protocol):
    """An object with a descriptor to wait for: a socket, an inotify instance."""

    def fileno(self) -> int:
        """The descriptor."""


class Loop:
    """Waits for events and runs their callbacks, one at a time.

    Args:
        clock: seconds, monotonic; the times of timers are on this clock.
        log: takes the traces of failed work.

    Attributes:
        failures: how many pieces of work ended with an exception; other threads may read it.
    """

    def __init__(self, clock: Clock = time.monotonic, log: logging.Logger | None = None) -> None:
        self.clock = clock
        self.failures = 0
        self._log = log or logging.getLogger(LOGGER_NAME)
        self._in_a_row: dict[str, int] = {}
        self._error: Exception | None = None
        self._selector = selectors.DefaultSelector()
        self._urgent = select.poll()
        self._put_off = 0
        self._posted: deque[Action] = deque()
        self._timers: dict[str, tuple[float, Action]] = {}
        self._after_turn: Action | None = None
        self._exit_code: int | None = None
        self._hears_signals = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, (self._drain, None))

    def watch(
        self,
        source: Source,
        on_readable: Action,
        on_writable: Action | None = None,
        *,
        is_urgent: bool = False,
    ) -> None:
        """Run `on_readable` whenever `source` is readable or closed, and `on_writable`, if given, while it is writable.

        A second call for the same source replaces the first. Timers wait while an urgent source is readable.
        """
        self._timers.pop(_listening_again(source), None)
        if is_urgent:
            self._urgent.register(source.fileno(), select.POLLIN)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if on_writable else 0)
        data = (on_readable, on_writable)
        if source in self._selector.get_map():
            self._selector.modify(source, events, data)
        else:
            self._selector.register(source, events, data)

    def forget(self, source: Source) -> None:
        """Stop watching; call it before the source is closed."""
        self._timers.pop(_listening_again(source), None)
        if source in self._selector.get_map():
            self._selector.unregister(source)
        with suppress(KeyError):
            self._urgent.unregister(source.fileno())

    def is_asked(self) -> bool:
        """Return whether an urgent source is readable: what nobody waits for gives way."""
        try:
            return bool(self._urgent.poll(0))
        except OSError:
            return False

    def set_timer(self, name: str, when: float | None, action: Action) -> None:
        """Run `action` once at `when`; replaces the timer of that name, and with None only removes it."""
        if when is None:
            self._timers.pop(name, None)
        else:
            self._timers[name] = (when, action)

    def repeat(self, name: str, pause_s: float, action: Callable[[], object]) -> None:
        """Run `action` every `pause_s` seconds, from one pause on; each pause begins when the action has ended."""

        def again() -> None:
            action()
            self.set_timer(name, self.clock() + pause_s, again)

        self.set_timer(name, self.clock() + pause_s, again)

    def after_each_turn(self, action: Action) -> None:
        """Run `action` at the end of every turn, when the events and timers of the turn have been served."""
        self._after_turn = action

    def post(self, action: Action) -> None:
        """Run `action` soon in the loop's thread; safe in any thread and in signal handlers."""
        self._posted.append(action)
        with suppress(OSError):  # full: the loop wakes up anyway; closed: it has ended
            self._wake_out.send(b"\0")

    def start_thread(self, thread: threading.Thread) -> None:
        """Start a thread; where the node has no thread left, try again until it has."""
        try:
            thread.start()
        except RuntimeError as error:
            say(self._log, logging.WARNING, NO_THREAD, thread=thread.name, err=error)
            again = partial(self.start_thread, thread)
            self.set_timer(f"start {thread.name}", self.clock() + START_AGAIN_S, again)

    def fail(self, error: Exception) -> None:
        """Let `run` raise `error`: without the work that failed, the process is of no use."""
        self._error = error
        self.stop(1)

    def stop(self, exit_code: int) -> None:
        """Let `run` return `exit_code`; only the first call counts."""
        if self._exit_code is None:
            self._exit_code = exit_code

    def handle_signals(self, actions: Mapping[signal.Signals, Action]) -> None:
        """Run the actions as ordinary work of the loop when signals arrive. Main thread only."""

        def hand_over(number: int, _frame: FrameType | None) -> None:
            self._posted.append(actions[signal.Signals(number)])

        # A signal between the interpreter's last check for signals and the wait would be noticed late without this.
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        self._hears_signals = True
        for number in actions:
            signal.signal(number, hand_over)

    def run(self) -> int:
        """Run until `stop`; returns its exit code."""
        while self._exit_code is None:
            self.run_once()
        if self._error is not None:
            raise self._error
        return self._exit_code

    def run_once(self) -> None:
        """Wait for the next event, then run everything that is due."""
        try:
            ready = self._selector.select(self._timeout())
        except OSError:
            time.sleep(self._failed("wait"))
            ready = []
        for key, mask in ready:
            on_readable, on_writable = key.data
            try:
                if mask & selectors.EVENT_WRITE and on_writable:
                    on_writable()
                # An action before may have dropped the source. Mostly one source is ready, and nothing ran before it.
                is_first = mask == selectors.EVENT_READ and len(ready) == 1
                if mask & selectors.EVENT_READ and (is_first or key.fd in self._selector.get_map()):
                    on_readable()
            except Exception:  # noqa: BLE001 - see the top
                self._pause_source(key, self._failed(_name_of(on_readable)))
            else:
                if self._in_a_row:
                    self._in_a_row.pop(_name_of(on_readable), None)
        if self._posted:
            self._run_posted()
        self._run_due_timers()
        if self._after_turn is not None:
            self._run_after_turn(self._after_turn)

    def close(self) -> None:
        """Close the descriptors."""
        if self._hears_signals:
            signal.set_wakeup_fd(-1)  # the number of the descriptor is given again
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _timeout(self) -> float | None:
        if self._posted:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, float(min(map(_WHEN, self._timers.values()))) - self.clock())

    def _run_posted(self) -> None:
        for _ in range(len(self._posted)):
            action = self._posted.popleft()
            self._guarded(_name_of(action), action)

    def _run_due_timers(self) -> None:
        now = self.clock()
        if not self._timers or min(map(_WHEN, self._timers.values())) > now:
            return
        for name in [name for name, (when, _) in self._timers.items() if when <= now]:
            if self._put_off < MOST_PUT_OFF and self.is_asked():
                self._put_off += 1
                return
            timer = self._timers.get(name)
            if timer is not None and timer[0] <= now:
                del self._timers[name]
                self._run_timer(name, timer[1])
        self._put_off = 0

    def _run_timer(self, name: str, action: Action) -> None:
        pause_s = self._guarded(name, action)
        if pause_s:
            again_at = self.clock() + pause_s
            # It may have set its next time before it failed.
            when, action = self._timers.get(name, (again_at, action))
            self._timers[name] = (max(when, again_at), action)

    def _run_after_turn(self, action: Action) -> None:
        pause_s = self._guarded(_AFTER_TURN, action)
        if pause_s:
            self._after_turn = None
            again = partial(self.after_each_turn, action)
            self.set_timer("after each turn again", self.clock() + pause_s, again)

    def _guarded(self, name: str, action: Action) -> float:
        """Run the action; return the seconds until it may be tried again, 0 if it went well."""
        try:
            action()
        except Exception:  # noqa: BLE001 - see the top
            return self._failed(name)
        if self._in_a_row:
            self._in_a_row.pop(name, None)
        return 0.0

    def _failed(self, name: str) -> float:
        """Log and count the exception that is handled; return the seconds until the work may be tried again."""
        self.failures += 1
        count = self._in_a_row[name] = self._in_a_row.get(name, 0) + 1
        pause_s = min(FIRST_AGAIN_S * 2.0 ** min(count - 1, 16), LONGEST_AGAIN_S)
        if count & (count - 1) == 0:  # the first, second, fourth and eighth in a row: a trace is long
            with suppress(Exception):
                say_trace(self._log, "internal error, the agent goes on", work=name, in_a_row=count)
        return pause_s

    def _pause_source(self, key: selectors.SelectorKey, pause_s: float) -> None:
        """Do not listen to a source whose action fails: it stays readable, and the loop would spin."""
        source, (on_readable, on_writable) = key.fileobj, key.data
        now = self._selector.get_map().get(key.fd)
        if now is None or now.fileobj is not source or isinstance(source, int):
            return  # the action has dropped it before it failed
        is_urgent = True
        try:
            self._urgent.unregister(key.fd)
        except KeyError:
            is_urgent = False
        self._selector.unregister(source)
        again = partial(self.watch, source, on_readable, on_writable, is_urgent=is_urgent)
        self.set_timer(_listening_again(source), self.clock() + pause_s, again)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._wake_in.recv(DRAIN_BYTES)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; where the node has no thread left, wait until it has. For a process that is of no use without it."""
    while True:
        try:
            thread.start()
        except RuntimeError as error:
            log = logging.getLogger(LOGGER_NAME)
            say(log, logging.WARNING, NO_THREAD, thread=thread.name, err=error)
            time.sleep(START_AGAIN_S)
        else:
            return


def _name_of(action: Action) -> str:
    return getattr(action, "__qualname__", None) or repr(getattr(action, "func", action))


def _listening_again(source: Source) -> str:
    return f"listen to {id(source)}"


# The watchdog ends a process whose loop is stuck. The kubelet, systemd, or the supervisor of an agent that the runtime
# started then starts it again. A restart moves no container. Without the watchdog, a deadlock or a file that never answers
# would leave the node without an agent.


LOOK_PAUSE_S = 10.0
LIMIT_S = 30.0
"""Fifteen times the time limit of the runtimes for an answer: by then they have closed the connection."""

EXIT_STUCK = 70
"""EX_SOFTWARE of sysexits.h."""


class LoopWatchdog:
    """Posts calls to the loop from another thread, and ends the process when one is not run in time.

    Args:
        loop: the loop.
        log: takes the reason for the end.
        pause_s: seconds between two calls.
        limit_s: seconds that a call may take.
        give_up: ends the process with an exit code, without the help of a stuck thread.
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
        loop.start_thread(self._thread)

    def close(self) -> None:
        """Stop; call it before the loop is closed."""
        self._closed.set()
        self._seen.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._pause_s):
            seen = self._seen = threading.Event()
            if self._closed.is_set():
                return
            self._loop.post(seen.set)
            # In two halves: a process that was frozen still has the second half to run the call.
            if (
                not seen.wait(self._limit_s / 2)
                and not seen.wait(self._limit_s / 2)
                and not self._closed.is_set()
            ):
                say(
                    self._log,
                    logging.CRITICAL,
                    "the event loop is stuck, the agent ends and must be started again; the stacks of all threads follow",
                    limit_s=self._limit_s,
                )
                faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
                self._give_up(EXIT_STUCK)
                return
