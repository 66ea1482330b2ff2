"""The lease to serve: one agent serves a runtime, and one process uses a state directory.

An agent takes the lock of the runtime's socket directory (`host.runtime_lock`), then that of its state directory, and
only then connects. Without both locks it touches no checkpoint, no cgroup and no socket of the state directory. An agent
that the runtime has just started takes over: it leaves a mark, and the agent that serves sees the mark, stops and waits.
"""

import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nri_plugin.agent.serving.link import words
from nri_plugin.checkpoint.directory import unsafe
from nri_plugin.checkpoint.file import LOCK_FILE
from nri_plugin.host.runtime_lock import RuntimeLock, readable_by_others
from nri_plugin.model.errors import CheckpointError
from nri_plugin.process.logs import LogRateLimit, say
from nri_plugin.process.loop import Loop

EXIT_YIELDED = 75
"""The exit code when another agent serves: EX_TEMPFAIL of sysexits.h."""

LOOK_PAUSE_S = 0.25
"""Seconds between two checks for a newer agent, which waits one second for this one."""

ABSENT_PAUSE_S = 0.02
"""The same while the directory of the socket is missing: the runtime makes it with its socket."""

YIELD_S = 1.0
"""Seconds that an agent started by the runtime waits for the one that serves. Its configuration may take two."""

END_S = 0.3
"""Seconds to wait after a kill; the kernel needs less to end a process."""

LOST_S = 1.0
"""Seconds that the lock file of the state directory must be missing before it is made again: `rm -r` of the directory
would fail on a new file."""

TIMER = "serving lease"
NEWER = "a newer agent, started by the runtime, takes over"


class ServingLease:
    """The right of this agent to serve.

    Args:
        lock: of the runtime's socket directory.
        state_dir: locked as well.
        loop: runs the checks.
        log: takes the reason to wait.
        serve: begins to serve; called once, with both locks held.
        wait: called with the reason to wait; empty when the wait is over.
        is_replaceable: False for an agent that the runtime started, which only the runtime ends.
        stays: whether the agent waits when a newer one takes over; False for a successor: the
            newer agent has a supervisor, too.
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
        """Serve at once, for an agent that the runtime started: the one that serves yields, or is killed.

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
        is_absent = not self.is_serving and not os.path.isdir(self._lock.folder)
        pause_s = ABSENT_PAUSE_S if is_absent else LOOK_PAUSE_S
        self._loop.set_timer(TIMER, self._loop.clock() + pause_s, self._look)

    def _look(self) -> None:
        served = self.is_serving
        try:
            self._check()
        except Exception as error:
            if served or not self.is_serving:
                raise  # the loop tries again later
            self._loop.fail(error)  # it has the right and cannot serve
        self._look_later()

    def _check(self) -> None:
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

    def _hold_state_dir(self) -> None:
        """Lock the state directory again where it was removed, replaced or repaired."""
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
        """Serve unless there is a reason to wait."""
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
            say(self._log, logging.WARNING, "any user can prevent the agent from serving", err=warning)
        self.is_serving = True
        self._serve()

    def _wait(self, reason: str) -> None:
        self._is_waiting = True
        self._tell(reason)
        if self._said.is_due(reason, self._loop.clock()):
            say(self._log, logging.WARNING, "waiting for the right to serve the runtime", err=reason)


class StateDirInUseError(CheckpointError):
    """Another process uses the state directory."""


def lock_state_dir(state_dir: str) -> int:
    """Make this process the only agent of the state directory; returns the descriptor that holds the lock.

    Two agents of two runtimes must not share a checkpoint, and commands must not change the checkpoint of a running agent.
    `RuntimeLock` decides which agent serves a runtime.

    Args:
        state_dir: created when it is missing.

    Raises:
        UnusableDirectoryError: it cannot be created or written to.
        StateDirInUseError: another agent has it.
    """
    path = Path(state_dir) / LOCK_FILE
    try:
        Path(state_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise unusable_state_dir(state_dir, error) from None
    if not _locks(descriptor):
        number = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        holder = f" (process {number})" if number.isdigit() else ""
        os.close(descriptor)
        raise StateDirInUseError(
            str(path),
            f"another agent{holder} uses this state directory; stop it first: two agents on one node would give the "
            "same CPUs to two containers",
        )
    with suppress(OSError):  # a full disk: the lock holds without the number
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holds_state_dir(lock: int, state_dir: str) -> bool:
    """Return whether `lock` is that of the current directory, which commands and other agents look at."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(lock), os.stat(Path(state_dir) / LOCK_FILE))
    return False


def lock_where_possible(state_dir: str) -> int | None:
    """Lock as `lock_state_dir` does; None where the directory cannot be used, because an agent works without it.

    A directory that other users may change counts as unusable: any of them can hold its lock.

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
        return None  # `CheckpointSaver` logs it


class UnusableDirectoryError(CheckpointError):
    """The state directory cannot be locked because of the directory itself, not because of another agent."""


def unusable_state_dir(state_dir: str, error: OSError) -> UnusableDirectoryError:
    """Return the error for a state directory that cannot be locked, with the remedy."""
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
