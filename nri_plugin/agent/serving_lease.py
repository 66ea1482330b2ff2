"""The lease to serve: one agent serves a runtime, and one process uses a state directory.

An agent takes the lock of the runtime's socket directory (`host.runtime_lock`), then that of its state directory, and
only then connects. Without both it touches no checkpoint, no cgroup and no socket of the state directory. An agent that
the runtime has just started takes over: the one that serves sees its mark, stops and waits.
"""

import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nri_plugin.agent.connection import words
from nri_plugin.checkpoint.file import LOCK_FILE, unsafe
from nri_plugin.host.runtime_lock import RuntimeLock, readable_by_others
from nri_plugin.model.errors import CheckpointError
from nri_plugin.process.logs import LogRateLimit, say
from nri_plugin.process.loop import Loop

EXIT_YIELDED = 75
"""EX_TEMPFAIL of sysexits.h: another agent serves."""

LOOK_PAUSE_S = 0.25
"""Between two looks for a newer agent, which waits one second for us."""

YIELD_S = 1.0
"""An agent that the runtime started waits so long for the one that serves. It has two seconds to be configured."""

END_S = 0.3
"""More than the kernel needs to end a process that was killed."""

LOST_S = 1.0
"""The lock file of the state directory is missing for so long before it is made again: `rm -r` of the directory must not
meet a new file."""

TIMER = "serving lease"
NEWER = "a newer agent, started by the runtime, takes over"


class ServingLease:
    """The right of this agent to serve.

    Args:
        lock: the right to serve the runtime.
        state_dir: of which this agent must be the only one, too.
        loop: where it waits.
        log: takes the reason to wait.
        serve: begins to serve; called once, with the right in hand.
        wait: called with the reason to wait; empty when the wait is over.
        is_replaceable: False for an agent that the runtime started, which only the runtime ends.
        stays: whether the agent waits when a newer one takes over; False where the newer one makes it needless.
    """

    def __init__(
        self,
        lock: RuntimeLock,
        state_dir: str,
        loop: Loop,
        log: logging.Logger,
        serve: Callable[[], None],
        wait: Callable[[str], None],
        *,
        is_replaceable: bool = True,
        stays: bool = True,
    ) -> None:
        self._lock, self._state_dir, self._loop, self._log = lock, state_dir, loop, log
        self._serve, self._tell, self._is_replaceable, self._stays = serve, wait, is_replaceable, stays
        self._state_lock: int | None = None
        self._said = LogRateLimit()
        self._lost_at: float | None = None
        self.is_serving = False
        self._is_waiting = False

    def begin(self) -> None:
        """Serve at once, or wait for the right.

        Raises:
            NriPinError: the agent has the right and cannot serve.
        """
        if self._lock.is_wanted():
            self._yield(NEWER)
        else:
            self._try(self._lock.take())
        self._look_later()

    def demand(self) -> None:
        """Serve at once as an agent that the runtime started: the one that serves gives up or is ended.

        Raises:
            NriPinError: the agent has the right and cannot serve.
        """
        self._try(self._lock.demand(YIELD_S, END_S))
        self._look_later()

    def close(self) -> None:
        """Give up the right."""
        self._loop.set_timer(TIMER, None, self._look)
        if self._state_lock is not None:
            os.close(self._state_lock)
            self._state_lock = None
        self._lock.close()

    def _look_later(self) -> None:
        self._loop.set_timer(TIMER, self._loop.clock() + LOOK_PAUSE_S, self._look)

    def _look(self) -> None:
        if self._is_replaceable and self._lock.is_wanted():
            self._yield(NEWER)
        else:
            if not self._is_replaceable:
                self._lock.ask()  # the first try fails while another agent looks at the mark
            reason = self._lock.take()
            if self.is_serving and reason and self._is_replaceable:
                self._yield(reason)
            elif not self.is_serving:
                self._try(reason)
            else:
                self._hold_state_dir()
        self._look_later()

    def _hold_state_dir(self) -> None:
        """Lock the state directory as it is there now: it may have been removed, replaced or mended since."""
        if self._state_lock is not None and holds_state_dir(self._state_lock, self._state_dir):
            self._lost_at = None
            return
        now = self._loop.clock()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if now - self._lost_at < LOST_S or not os.path.isdir(self._state_dir):
            return
        try:
            lock = lock_where_possible(self._state_dir)
        except StateDirInUseError as error:
            if self._said.is_due(str(error), now):
                say(self._log, logging.WARNING, "another process uses the state directory", err=error)
            return
        if lock is not None:
            former, self._state_lock = self._state_lock, lock
            if former is not None:
                os.close(former)

    def _yield(self, reason: str) -> None:
        if self._stays and not self.is_serving:
            self._wait(reason)
            return
        say(self._log, logging.WARNING, "this agent no longer serves the runtime", err=reason)
        self._loop.stop(EXIT_YIELDED)

    def _try(self, reason: str) -> None:
        """Serve when there is no reason against it."""
        if not reason:
            try:
                self._state_lock = lock_where_possible(self._state_dir)
            except StateDirInUseError as error:
                reason = str(error)
        if reason:
            self._wait(reason)
            return
        if self._is_waiting:
            self._tell("")
            say(self._log, logging.INFO, "the wait is over, this agent serves the runtime")
        warning = readable_by_others(self._lock.folder)
        if warning:
            say(self._log, logging.WARNING, "any user can keep the agent from serving", err=warning)
        self.is_serving = True
        self._serve()

    def _wait(self, reason: str) -> None:
        self._is_waiting = True
        self._tell(reason)
        if self._said.is_due(reason, self._loop.clock()):
            say(self._log, logging.WARNING, "waiting for the right to serve the runtime", err=reason)


class StateDirInUseError(CheckpointError):
    """Another process works on the state directory."""


def lock_state_dir(state_dir: str) -> int:
    """Make this process the only agent of the state directory; returns the descriptor that holds the lock.

    Two agents of two runtimes must not share a checkpoint, and commands must not change one while an agent works on it.
    Which agent serves a runtime is another question: see `RuntimeLock`.

    Args:
        state_dir: made when it is missing.

    Raises:
        UnusableDirectoryError: it cannot be made or written to.
        StateDirInUseError: another agent has it.
    """
    path = Path(state_dir) / LOCK_FILE
    try:
        Path(state_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise unusable_state_dir(state_dir, error) from None
    if not _locks(descriptor):
        holder = _holder(descriptor)
        os.close(descriptor)
        raise StateDirInUseError(
            str(path),
            f"another agent{holder} works on this state directory; stop it first: two agents on one node would "
            "hand out the same CPUs",
        )
    with suppress(OSError):  # a full disk: the lock holds without the number
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holds_state_dir(lock: int, state_dir: str) -> bool:
    """Whether the lock is that of the directory as it is there now; commands and other agents go by that one."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(lock), os.stat(Path(state_dir) / LOCK_FILE))
    return False


def lock_where_possible(state_dir: str) -> int | None:
    """As `lock_state_dir`; None where the directory cannot be used, for an agent works without it too.

    The lock of a directory that other users may change says nothing: any of them can hold it.

    Raises:
        StateDirInUseError: another agent has it.
    """
    try:
        return lock_state_dir(state_dir)
    except StateDirInUseError:
        if unsafe(state_dir):
            return None
        raise
    except UnusableDirectoryError:
        return None  # said once there is a log, by `CheckpointSaver`


class UnusableDirectoryError(CheckpointError):
    """No lock can be had in the state directory, because of the directory and not of another agent."""


def unusable_state_dir(state_dir: str, error: OSError) -> UnusableDirectoryError:
    """Why the lock in it cannot be had, and what to do."""
    if isinstance(error, PermissionError) and os.geteuid() != 0:
        return UnusableDirectoryError(state_dir, f"{words(error)}; run as root, or give --state-dir DIR")
    if isinstance(error, FileExistsError | NotADirectoryError):
        return UnusableDirectoryError(
            state_dir, f"{words(error)}, but a directory is needed; give another with --state-dir or stateDir"
        )
    return UnusableDirectoryError(
        state_dir, f"{words(error)}; give another directory with --state-dir or stateDir"
    )


def _locks(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return f" (process {text})" if text.isdigit() else ""
