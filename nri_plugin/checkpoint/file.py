"""The checkpoint on disk: replaced as a whole, never half written, never thrown away.

At every moment, also in the middle of a crash, `state.json` is a complete checkpoint: the one before or
the one after. The one before the last is kept as `state.json.previous`. A checkpoint that cannot be used
is moved aside as `state.json.damaged-N`, and that is logged. Then the previous generation is taken when it is
sound: it is one event old, and the runtime's list of containers tells the difference. Else the state is
rebuilt from the runtime alone. A missing checkpoint was removed on purpose, so the previous generation is
not taken then.
"""

import contextlib
import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.checkpoint.format import Checkpoint, Encoder, decode
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.host.mounts import is_in_memory, read_mounts
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.options import Node
from nri_plugin.model.state import State

LOCK_FILE = "lock"
"""In the directory; locked by the agent or the command that works on it."""

REMOVED = "//deleted"
"""How the kernel marks the root of a mount whose directory was removed. Source: fs/proc_namespace.c, seq_dentry."""


def unsafe(path: str) -> str:
    """Return why another user may replace files of the directory, and what to do; empty when none may."""
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
    """Return why no file can be made in the directory, as far as that shows without trying; empty when one can.

    A directory that is missing can be made, or the first save tells why not.
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
    """Why the directory can never be written to again from here; empty when that is not so.

    A container sees the host's directory through a mount. When the host removes the directory, the mount goes on
    showing the removed one, also after the host has made it anew.
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
    """Make `data` the file; a crash leaves the old or the new content, never half of it.

    Args:
        path: of the file, only its owner may read it.
        data: its content.
        replace: whether a file that is there may go.

    Raises:
        CheckpointError: it is there already and may not go, or it cannot be written.
    """
    new = f"{path}.new-{os.getpid()}"
    try:
        _write_new(new, data)
        if replace:
            os.replace(new, path)
        else:
            os.link(new, path)  # fails where a rename would quietly take the place of another file
        sync_directory(os.path.dirname(path) or ".")
    except FileExistsError:
        raise CheckpointError(path, "is there already; give another name, or --force to replace it") from None
    except OSError as error:
        raise CheckpointError(path, f"cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            os.unlink(new)


def keep_aside(path: str) -> str:
    """Give the file a second name, `path.damaged-N`, so that it outlives its replacement; empty when there is none.

    Raises:
        CheckpointError: it cannot be given one.
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
            sync_directory(os.path.dirname(path) or ".")
            return target


def sync_directory(path: str) -> None:
    """Make names in a directory outlive a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_new(path: str, data: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


DEFAULT_DIR = "/run/nri-pin"
FILE_NAME = "state.json"
OBSERVED_FILE_NAME = "observed.json"
"""The checkpoint of an agent that only observes. No start reads it as allocations."""
LARGEST = 64 << 20
"""Bytes; 100 times what 3,000 containers need."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Origin(StrEnum):
    """Where a loaded state comes from."""

    NONE = "none"
    """There was no usable checkpoint."""
    CURRENT = "current"
    PREVIOUS = "previous"
    """The current one was damaged; this is the generation before it."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a start found.

    Attributes:
        state: the allocations; None when they have to be rebuilt from the runtime.
        origin: which file they come from.
        kept_aside: where the damaged checkpoint is now; None when there was none.
        reason: why the checkpoint could not be used, to be logged; empty when it could.
    """

    state: State | None = None
    origin: Origin = Origin.NONE
    kept_aside: str | None = None
    reason: str = ""


def latest_path(state_dir: str) -> str:
    """The checkpoint of the agent that worked there last: of one that only observed it is another file."""
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
        facts: stored beside every state for those who read the file without the machine.
        found: the facts that were stored beside the state that was loaded.
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
        """Whether a save waits for the disk: as told, else wherever the directory outlives a reboot."""
        if self._durable is None:
            self._durable = _outlives_reboot(self.directory)
        return self._durable

    def load(self) -> LoadResult:
        """Return the last saved state. Never fails: a damaged checkpoint is moved aside and reported.

        A generation before none is one whose successor was moved aside by a process that ended before it saved.
        """
        try:
            found = read_checkpoint(self.path)
        except CheckpointError as error:
            return self._fall_back(error)
        if found is None:
            return self._previous(None, f"{self.path}: it is gone, and the generation before it is there")
        self.generation = found.generation
        self.found = found.facts
        self._mark = _identity(self.path)
        return LoadResult(found.state, Origin.CURRENT)

    def is_intact(self) -> bool:
        """Whether the file that was loaded or saved last is still in its place, and no other one."""
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
        try:
            self._write_new(pieces)
        except FileNotFoundError:
            _make_directory(self.directory)
            self._write_new(pieces)
        if self.is_intact():
            self._keep_previous()
        else:  # what lies there is not of this memory, and a later start must not go back to it
            _remove(f"{self.path}.previous")
        os.replace(self._new, self.path)
        self._mark = _identity(self.path)
        if self.durable:
            _sync_directory(self.directory)

    def _write_new(self, pieces: list[bytes]) -> None:
        _remove(self._new)
        descriptor = os.open(self._new, _CREATE, 0o600)
        try:
            for piece in pieces:
                _write_all(descriptor, piece)
            if self.durable:
                os.fsync(descriptor)
        except OSError:
            _remove(self._new)
            raise
        finally:
            os.close(descriptor)

    def _keep_previous(self) -> None:
        """Give the current file its second name; a file system without links keeps no previous one."""
        staged = f"{self.path}.previous.new"
        _remove(staged)  # of a crash; renaming onto another name of the same file would do nothing
        with contextlib.suppress(OSError):
            os.link(self.path, staged, follow_symlinks=False)
            os.replace(staged, f"{self.path}.previous")

    @property
    def _new(self) -> str:
        return f"{self.path}.new"

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


def _outlives_reboot(directory: str) -> bool:
    try:
        return not is_in_memory(directory)
    except HostError:
        return True  # the slower answer is the safe one


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _make_directory(path: str) -> None:
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _save_failure(error: OSError) -> str:
    advice = {
        errno.ENOSPC: "; free space on this file system or choose another state directory",
        errno.EROFS: "; mount the state directory read-write",
        errno.EACCES: "; run as root or choose another state directory",
        errno.ENOTDIR: "; a directory is needed, give another with --state-dir or stateDir",
    }.get(error.errno or 0, "")
    return f"cannot be saved: {error.strerror}{advice}"
