"""The checkpoint on disk: replaced as a whole, never half written, never deleted.

At every moment, also in the middle of a crash, `state.json` is a complete checkpoint: the one before a save or the one
after it. `state.json.previous` is the generation before it. A start moves a checkpoint that it cannot use to
`state.json.damaged-N` and logs that. It then takes the previous generation if that is sound: the previous one is one event
old, and the runtime's list of containers tells the difference. Otherwise it rebuilds the state from the runtime's list
alone.
"""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.checkpoint.format import Checkpoint, Encoder, decode
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.host.mounts import is_in_memory, read_mounts
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.options import Node
from nri_plugin.model.state import State

DEFAULT_DIR = "/run/nri-pin"
FILE_NAME = "state.json"
OBSERVED_FILE_NAME = "observed.json"
"""The checkpoint of an agent that only observes. No start reads it as allocations."""
LOCK_FILE = "lock"
"""In the directory; locked by the agent or the command that works on it."""
LARGEST = 64 << 20
"""Bytes; 100 times what 3,000 containers need."""

REMOVED = "//deleted"
"""The end of a mount's root whose directory was removed. Source: Linux, fs/proc_namespace.c, seq_dentry."""

# A path component that is a link, a FIFO or a device is refused or does not block: the directory may be another user's.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unsafe(path: str) -> str:
    """Return why another user may replace files of the directory, with advice; empty if none may."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISDIR(status.st_mode):
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}, who can replace the checkpoint; chown it to root"
    if status.st_mode & stat.S_IWOTH:
        mode = stat.S_IMODE(status.st_mode)
        return f"everybody may write to it (mode {mode:04o}) and replace the checkpoint; chmod 700 it"
    return ""


def unwritable(path: str) -> str:
    """Return why no file can be made in the directory, without trying; empty if no reason is known.

    A missing directory can be made, or the first save reports the reason.
    """
    if not os.path.lexists(path):
        return ""
    if not os.path.isdir(path):
        return "is no directory; give another with --state-dir or stateDir"
    if os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return (
        "is mounted read-only; mount it read-write"
        if is_read_only
        else "is not writable; let it belong to root"
    )


def removed_mount(path: str) -> str:
    """Return why this process can never write to the directory again; empty when it can.

    A container sees the host's directory through a mount. When the host removes the directory, the mount still shows
    the removed one, also after the host has made a new one.
    """
    try:
        is_removed = os.stat(path).st_nlink == 0 or _is_marked(path)
    except OSError:
        return ""
    return (
        "was removed on the host, and this container's mount still shows the removed directory; "
        "only a restart of the agent heals that"
        if is_removed
        else ""
    )


def _is_marked(path: str) -> bool:
    real = os.path.realpath(path)
    try:
        mounts = [mount for mount in read_mounts() if mount.point == real]
    except HostError:
        return False
    return bool(mounts) and mounts[-1].root.endswith(REMOVED)


def write_whole(path: str, data: bytes, *, replace: bool = False) -> None:
    """Make `data` the content of the file. After a crash the file has the old or the new content, never half of it.

    Args:
        path: of the file, which only its owner may read.
        data: its content.
        replace: whether an existing file may be replaced.

    Raises:
        CheckpointError: it exists and may not be replaced, or it cannot be written.
    """
    new = f"{path}.new-{os.getpid()}"
    try:
        _write_new(new, [data], sync=True)
        if replace:
            os.replace(new, path)
        else:
            os.link(new, path)  # fails if the file exists; a rename would replace it silently
        _sync_directory(os.path.dirname(path) or ".")
    except FileExistsError:
        raise CheckpointError(path, "is there already; give another name, or --force to replace it") from None
    except OSError as error:
        raise CheckpointError(path, f"cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            os.unlink(new)


def keep_aside(path: str) -> str:
    """Give the file a second name, `path.damaged-N`, so that its replacement does not delete it.

    Returns:
        The name; empty when there is no file.

    Raises:
        CheckpointError: the name cannot be given.
    """
    number = 1
    while True:
        target = f"{path}.damaged-{number}"
        try:
            os.link(path, target, follow_symlinks=False)
        except FileExistsError:
            number += 1
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CheckpointError(path, f"cannot be kept as {target}: {error.strerror}") from None
        else:
            # The new name has to reach the disk before the old one is replaced.
            _sync_directory(os.path.dirname(path) or ".")
            return target


def _write_new(path: str, pieces: Iterable[bytes], *, sync: bool) -> None:
    """Make a new file for its owner alone; one of that name, left by a crash, goes first."""
    _remove(path)
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        if sync:
            # Before the rename that follows: else the name may reach the disk first, and show an empty file.
            os.fsync(descriptor)
    except OSError:
        _remove(path)
        raise
    finally:
        os.close(descriptor)


def _sync_directory(path: str) -> None:
    """Write names in a directory to the disk: a rename or link is lost in a crash until then."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


class Origin(StrEnum):
    """Where a loaded state comes from."""

    NONE = "none"
    """There was no usable checkpoint."""
    CURRENT = "current"
    PREVIOUS = "previous"
    """The current one was damaged; this is the generation before it."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of `CheckpointFile.load`.

    Attributes:
        state: the allocations; None when they have to be rebuilt from the runtime.
        origin: which file they come from.
        kept_aside: where the damaged checkpoint is now; None when there was none.
        reason: why the checkpoint could not be used, for the log; empty when it could.
    """

    state: State | None = None
    origin: Origin = Origin.NONE
    kept_aside: str | None = None
    reason: str = ""


def latest_path(state_dir: str) -> str:
    """The checkpoint that was written last: an agent that only observes writes another file."""
    usual, observed = (os.path.join(state_dir, name) for name in (FILE_NAME, OBSERVED_FILE_NAME))
    return observed if _written_at(observed) > _written_at(usual) else usual


def _written_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def read_checkpoint(path: str) -> Checkpoint | None:
    """Return the checkpoint at `path`; None when there is none.

    Raises:
        CheckpointError: it cannot be read or is damaged.
    """
    try:
        descriptor = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        text = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise CheckpointError(path, text) from error
    try:
        return decode(_read_regular(descriptor))
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(path, f"cannot be used: {error}") from error
    finally:
        os.close(descriptor)


def _read_regular(descriptor: int) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    if status.st_size > LARGEST:
        raise ValueError(f"it has {status.st_size} bytes, more than the {LARGEST} that are ever written")
    parts = []
    while part := os.read(descriptor, LARGEST + 1):
        parts.append(part)
    return b"".join(parts)


class CheckpointFile:
    """The checkpoint of one state directory; used by one thread at a time.

    Attributes:
        path: the file.
        facts: the machine, stored beside every state for readers on other machines.
        found: the facts that were stored beside the loaded state.
        generation: of the checkpoint that was loaded or saved last.

    Args:
        state_dir: the directory.
        node: the machine; None for a reader.
        durable: whether a save waits for the disk; None to wait where the directory outlives a reboot.
        name: of the file.
    """

    def __init__(
        self,
        state_dir: str = DEFAULT_DIR,
        node: Node | None = None,
        *,
        durable: bool | None = None,
        name: str = FILE_NAME,
    ) -> None:
        self.directory = state_dir
        self.path = os.path.join(state_dir, name)
        self.facts = None if node is None else NodeFacts.of(node)
        self.found: NodeFacts | None = None
        self.generation = 0
        self._durable = durable
        self._encoder = Encoder()
        self._mark: tuple[int, int] | None = None

    @property
    def durable(self) -> bool:
        """Whether a save waits for the disk. On a file system in memory fsync adds nothing but time."""
        if self._durable is None:
            try:
                self._durable = not is_in_memory(self.directory)
            except HostError:
                self._durable = True  # the slower choice is the safe one
        return self._durable

    def load(self) -> LoadResult:
        """Return the last saved state. Never raises: a damaged checkpoint is moved aside and reported."""
        try:
            found = read_checkpoint(self.path)
        except CheckpointError as error:
            return self._fall_back(error)
        if found is None:
            # Either nothing was ever saved, or a process moved the damaged file aside and ended before it saved.
            return self._previous(None, f"{self.path}: it is gone, and the generation before it is there")
        self.generation = found.generation
        self.found = found.facts
        self._mark = _identity(self.path)
        return LoadResult(found.state, Origin.CURRENT)

    def is_intact(self) -> bool:
        """Whether the file at the path is the one that was loaded or saved last."""
        return self._mark is None or _identity(self.path) == self._mark

    def save(self, state: State) -> None:
        """Make `state` the checkpoint; when it returns, a crash cannot lose it.

        Raises:
            CheckpointError: it could not be written. The former checkpoint is still in place, unless
                only the last step failed, making the directory durable.
        """
        try:
            self._write(self._encoder.encode(state, self.generation + 1, self.facts))
        except OSError as error:
            raise CheckpointError(self.path, _save_failure(error)) from error
        except ValueError as error:
            raise CheckpointError(self.path, f"cannot be saved: {error}") from error
        self.generation += 1

    def _write(self, pieces: list[bytes]) -> None:
        """Replace the file: write another one, keep the old one's name, rename, and make the names durable."""
        new = f"{self.path}.new"
        try:
            _write_new(new, pieces, sync=self.durable)
        except FileNotFoundError:
            _make_directory(self.directory)
            _write_new(new, pieces, sync=self.durable)
        if self.is_intact():
            self._keep_previous()
        else:
            # Another process replaced or removed the file. No start may fall back to a generation of other content.
            _remove(f"{self.path}.previous")
        os.replace(new, self.path)
        self._mark = _identity(self.path)
        if self.durable:
            _sync_directory(self.directory)

    def _keep_previous(self) -> None:
        """Give the current file its second name, without a moment in which it has none.

        A file system without links keeps no previous generation.
        """
        # `link` does not replace a file and `replace` does, so the link gets a name that is renamed. A crash may leave
        # that name behind: it goes first, because a rename between two names of one file does nothing.
        staged = f"{self.path}.previous.new"
        _remove(staged)
        with suppress(OSError):
            os.link(self.path, staged, follow_symlinks=False)
            os.replace(staged, f"{self.path}.previous")

    def _fall_back(self, error: CheckpointError) -> LoadResult:
        kept, problem = self._move_aside()
        return self._previous(kept, f"{error}; {problem}" if problem else str(error), is_damaged=True)

    def _previous(self, kept: str | None, reason: str, *, is_damaged: bool = False) -> LoadResult:
        try:
            found = read_checkpoint(f"{self.path}.previous")
        except CheckpointError as second:
            return LoadResult(None, Origin.NONE, kept, f"{reason}; {second}")
        if found is None:
            return LoadResult(None, Origin.NONE, kept, reason if is_damaged else "")
        self.generation = found.generation
        return LoadResult(found.state, Origin.PREVIOUS, kept, reason)

    def _move_aside(self) -> tuple[str | None, str]:
        number = 1
        while os.path.lexists(target := f"{self.path}.damaged-{number}"):
            number += 1
        try:
            os.rename(self.path, target)
        except OSError as error:
            return None, f"it could not be moved aside: {error.strerror}"
        return target, ""


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode: they change when the file is replaced."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _make_directory(path: str) -> None:
    # Parents first and apart: they keep the usual mode, and only the last directory is closed to others.
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _save_failure(error: OSError) -> str:
    advice = {
        errno.ENOSPC: "; free space on this file system or choose another state directory",
        errno.EROFS: "; mount the state directory read-write",
        errno.EACCES: "; run as root or choose another state directory",
        errno.ENOTDIR: "; a directory is needed, give another with --state-dir or stateDir",
    }.get(error.errno or 0, "")
    return f"cannot be saved: {error.strerror}{advice}"
