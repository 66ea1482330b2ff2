"""The right to serve one runtime: flock on the directory of its NRI socket.

At most one process holds the right, in any container, network namespace or state directory: every process that can connect
to the socket opens the same directory. The kernel releases the lock when the process ends, and leaves no file to remove.

An agent that the runtime has just started takes precedence. It holds a second lock, on the file `nri-pin.launched` in that
directory, while it lives. The agent with the right checks for that lock, gives up the right and waits. An agent that does
not give up is stuck, and is killed. The second lock is only a request: if its file is removed, only the request is lost.

Source: flock(2), proc_locks(5).
"""

import fcntl
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

MARK_NAME = "nri-pin.launched"
TRY_PAUSE_S = 0.02
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MARK = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WORDS_SHOWN = 120


class RuntimeLock:
    """The right to serve the runtime behind one NRI socket.

    Args:
        socket_path: of the runtime.

    Attributes:
        folder: the directory of the socket, which is locked.
    """

    def __init__(self, socket_path: str) -> None:
        self.folder = os.path.dirname(os.path.abspath(socket_path))
        self._lock: int | None = None
        self._mark: int | None = None

    def take(self) -> str:
        """Try once to get the right; return why that failed, empty if this process has it.

        If the directory was replaced since the last call, the right is that of the new directory.
        """
        try:
            descriptor = os.open(self.folder, _DIRECTORY)
        except OSError as error:
            # A missing directory has no socket either, so no agent can serve: the lock stays until there is a new one.
            return "" if self._lock is not None else f"{self.folder}: {_why(error)}"
        if self._lock is not None and _is_same(descriptor, self._lock):
            os.close(descriptor)
            return ""
        try:
            is_free = _locks(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            os.close(descriptor)
            return f"{self.folder} cannot be locked: {_why(error)}"
        if not is_free:
            os.close(descriptor)
            return f"another agent{self._shown_holder()} serves the runtime at {self.folder}"
        # Only now: until the new directory is locked, the lock of the replaced one is the only right there is.
        self._close_lock()
        self._lock = descriptor
        return ""

    def is_wanted(self) -> bool:
        """Whether a living agent, started by the runtime, asks for the right; False in that agent itself."""
        if self._mark is not None:
            return False
        try:
            descriptor = os.open(os.path.join(self.folder, MARK_NAME), os.O_RDONLY | _MARK)
        except OSError:
            return False
        try:
            # Another user's file must not end the service. A shared lock lets two agents check at the same time.
            is_roots = os.fstat(descriptor).st_uid in (0, os.geteuid())
            return is_roots and not _locks(descriptor, fcntl.LOCK_SH)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def demand(self, yield_s: float, end_s: float) -> str:
        """Get the right for an agent that the runtime started; return why that failed, empty for success.

        Args:
            yield_s: how long the other agent may take to give up.
            end_s: how long it may take to end once it is killed.
        """
        with suppress(OSError):
            os.makedirs(self.folder, mode=0o700, exist_ok=True)  # as the runtime would, a moment later
        reason = self._try_until(time.monotonic() + yield_s)
        if reason:
            self._end_holder()
            reason = self._try_until(time.monotonic() + end_s)
        return reason

    def ask(self) -> None:
        """Ask the agent that has the right to give it up."""
        if self._mark is not None:
            return
        with suppress(OSError):
            descriptor = os.open(os.path.join(self.folder, MARK_NAME), os.O_RDWR | os.O_CREAT | _MARK, 0o600)
            if _locks(descriptor, fcntl.LOCK_EX):
                self._mark = descriptor
            else:  # another agent that the runtime started, or one that looks at this moment
                os.close(descriptor)

    def close(self) -> None:
        """Give up the right and the mark."""
        self._close_lock()
        mark, self._mark = self._mark, None
        if mark is not None:
            os.close(mark)

    def _try_until(self, until: float) -> str:
        while True:
            self.ask()
            reason = self.take()
            if not reason or time.monotonic() >= until:
                return reason
            time.sleep(TRY_PAUSE_S)

    def _end_holder(self) -> None:
        """Kill the process that has the right.

        It was asked to give up and does not react. If it continued later, it would write CPUs from an outdated state.
        """
        for pid in self._holders():
            if pid == os.getpid():
                continue
            with suppress(OSError):
                process = os.pidfd_open(pid)
                try:
                    # The process may have ended before `pidfd_open`, and another one may have its number.
                    if pid in self._holders():
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        select.select([process], [], [], 0.0)
                finally:
                    os.close(process)

    def _shown_holder(self) -> str:
        shown = [f"process {pid}{_command(pid)}" for pid in self._holders(if_unseen=True)]
        return f" ({', '.join(shown)})" if shown else " (a process of another container)"

    def _holders(self, *, if_unseen: bool = False) -> Iterator[int]:
        """Processes that hold the lock of the directory and are visible in this PID namespace.

        Args:
            if_unseen: whether a process with the lock's number counts whose files this one may not see, because it has
                more capabilities.
        """
        with suppress(OSError):
            folder = os.stat(self.folder)
            with open("/proc/locks", encoding="ascii", errors="replace") as lines:
                found = {int(line.split()[-4]) for line in lines if _is_flock(line, folder.st_ino)}
            for pid in sorted(found):
                if _has_open(pid, folder, if_unseen=if_unseen):
                    yield pid

    def _close_lock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def readable_by_others(folder: str) -> str:
    """Return a sentence if other users can take the lock of the directory; empty if they cannot."""
    try:
        mode = os.stat(folder).st_mode
    except OSError:
        return ""
    if not mode & 0o044:
        return ""
    return (
        f"{folder} can be read by other users, who can keep every agent off this runtime; chmod 700 {folder}"
    )


def _locks(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(one: int, other: int) -> bool:
    return os.path.samestat(os.fstat(one), os.fstat(other))


def _is_flock(line: str, inode: int) -> bool:
    """Whether a line such as `3: FLOCK  ADVISORY  WRITE 4711 00:1a:812 0 EOF` shows a holder of this inode.

    The line of a waiting process has an arrow, so one word more. The device is not compared: some file systems show
    another number than `stat`.
    """
    words = line.split()
    return len(words) == 8 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode)


def _has_open(pid: int, folder: os.stat_result, *, if_unseen: bool) -> bool:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return if_unseen
    except OSError:
        return False
    for number in numbers:
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), folder):
                return True
    return False


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            words = file.read().rstrip("\0").split("\0")
    except OSError:
        return ""
    text = " ".join(words)
    return f": {text[:_WORDS_SHOWN]}" if text else ""


def _why(error: OSError) -> str:
    words = (error.strerror or str(error)).lower()
    if isinstance(error, FileNotFoundError):
        return f"{words}; is the container runtime running, with NRI enabled"
    if isinstance(error, PermissionError) and os.geteuid():
        return f"{words}; run as root"
    return words
