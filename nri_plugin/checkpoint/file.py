"""The checkpoint on disk: a document with a journal behind it, never without a sound beginning, never deleted.

An event appends a record to `state.json`. What an append that failed has left is cut off at once. Now and then, after an
answer, the file is compacted: another one with the present state replaces it as a whole. An append that fails is made up for
in the same way. So at every moment, also in the middle of a crash, `state.json` holds the state before a save or the one
after it.

The first save of a process replaces the file too, so that nothing is ever appended to what another process wrote.
`state.json.previous` is the file that the last replacement replaced.

A start that finds a damaged record keeps a second name for the file, `state.json.damaged-N`, and goes on with what is before
the record. A file that it cannot use at all is moved there. It then takes the previous file if that is sound. These are
older states, and the runtime's list of containers tells the difference. Otherwise it rebuilds the state from the runtime's
list alone. Each of these is logged.
"""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.checkpoint.directory import make_directory, replace_file, sync_directory
from nri_plugin.checkpoint.format import Checkpoint, DamagedJournalError, Encoder, decode, last_checksum
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.host.mounts import is_in_memory
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
LEAST_JOURNAL = 64 << 10
"""Bytes of a journal that is not compacted yet, however small the document is."""

# A path component that is a link, a FIFO or a device is refused or does not block: the directory may be another user's.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_whole(path: str, data: bytes, *, replace: bool = False) -> None:
    """Make `data` the content of the file. After a crash the file has the old or the new content, never half of it.

    Args:
        path: of the file, which only its owner may read.
        data: its content.
        replace: whether an existing file may be replaced.

    Raises:
        CheckpointError: it exists and may not be replaced, or it cannot be written.
    """
    try:
        replace_file(path, data, may_exist=replace)
    except FileExistsError:
        raise CheckpointError(path, "is there already; give another name, or --force to replace it") from None
    except HostError as error:
        raise CheckpointError(path, error.detail) from None
    except OSError as error:
        raise CheckpointError(path, f"cannot be written: {error.strerror}") from None


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
            sync_directory(os.path.dirname(path) or ".")
            return target


def _write_new(path: str, pieces: Iterable[bytes], *, sync: bool) -> int:
    """Make a new file for its owner alone; one of that name, left by a crash, goes first. Returns its descriptor."""
    _remove(path)
    descriptor = os.open(path, _CREATE, 0o600)
    try:
        for piece in pieces:
            _write_all(descriptor, piece)
        if sync:
            # Before the rename that follows: else the name may reach the disk first, and show an empty file.
            os.fsync(descriptor)
    except OSError:
        os.close(descriptor)
        _remove(path)
        raise
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


class Origin(StrEnum):
    """Where a loaded state comes from."""

    NONE = "none"
    """There was no usable checkpoint."""
    CURRENT = "current"
    BEGINNING = "beginning"
    """A record of the journal was damaged; these are the ones before it."""
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
        is_cut: whether it ended within a record, which a process that ended did not finish.
    """

    state: State | None = None
    origin: Origin = Origin.NONE
    kept_aside: str | None = None
    reason: str = ""
    is_cut: bool = False


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
        data = _content(path)
        return None if data is None else decode(data)
    except ValueError as error:
        raise CheckpointError(path, f"cannot be used: {error}") from error


def _content(path: str) -> bytes | None:
    """The bytes of the file; None when there is none.

    Raises:
        CheckpointError: it cannot be read.
        ValueError: it is no regular file, or too large.
    """
    try:
        descriptor = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        text = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
        raise CheckpointError(path, text) from error
    try:
        return _read_regular(descriptor)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
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


class _Journal:
    """The file that a checkpoint is, open for appending.

    Invariant: the first `size` bytes are sound, and the last checksum in them is `checksum`.

    Args:
        descriptor: of the file.
        size: of the document.
        checksum: of the document.
    """

    def __init__(self, descriptor: int, size: int, checksum: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self.checksum = checksum
        self.is_trusted = True
        self.due = size + max(size, LEAST_JOURNAL)

    def append(self, record: bytes, *, sync: bool) -> None:
        """Append a record.

        Raises:
            OSError: it is not there. Where it could not be cut off again, `is_trusted` is False: no record may follow.
        """
        self.is_trusted = False
        try:
            _write_all(self._descriptor, record)
        except OSError:
            self._cut()
            self.is_trusted = True
            raise
        if sync:
            try:
                os.fdatasync(self._descriptor)
            except OSError:
                # The kernel reports such an error once, and nobody knows what reached the disk.
                self._cut()
                raise
        self.is_trusted = True
        self.size += len(record)
        self.checksum = last_checksum(record)

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.size)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class CheckpointFile:
    """The checkpoint of one state directory; used by one thread at a time.

    Attributes:
        path: the file.
        facts: the machine, stored beside every state for readers on other machines.
        found: the facts that were stored beside the loaded state.
        generation: of the checkpoint that was loaded or saved last.
        held: the state in the file; empty where there is none, also where the generation before it was loaded.

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
        # The file as it was loaded or written last: which one, and the facts in it.
        self._mark: tuple[int, int] | None = None
        self.held = State()
        self._held_facts: NodeFacts | None = None
        # Open while this process may append to it.
        self._journal: _Journal | None = None
        self._has_failed = False

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
            if isinstance(error.__cause__, DamagedJournalError):
                return self._begin(error, error.__cause__)
            return self._fall_back(error)
        if found is None:
            # Either nothing was ever saved, or a process moved the damaged file aside and ended before it saved.
            return self._previous(None, f"{self.path}: it is gone, and the generation before it is there")
        self._holds(found)
        return LoadResult(found.state, Origin.CURRENT, is_cut=found.is_cut)

    def _holds(self, found: Checkpoint) -> None:
        self.generation, self.found = found.generation, found.facts
        self.held, self._held_facts = found.state, found.facts
        self._mark = _identity(self.path)

    def is_intact(self) -> bool:
        """Whether the file at the path is the one that was loaded or saved last, with nothing added or cut off."""
        if self._mark is None:
            return True
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._mark and (
            self._journal is None or status.st_size == self._journal.size
        )

    def save(self, state: State) -> None:
        """Replace the file by one with `state` and no journal; when it returns, a crash cannot lose it.

        Raises:
            CheckpointError: it could not be written. The former checkpoint is still in place, unless
                only the last step failed, making the directory durable.
        """
        self._save(state, appends=False)

    def append(self, state: State) -> None:
        """Make `state` the checkpoint at the cost of what has changed; when it returns, a crash cannot lose it.

        Raises:
            CheckpointError: neither a record nor a whole file could be written. The checkpoint holds the former state, or
                `state` where only the last step failed.
        """
        self._save(state, appends=True)

    def compact(self) -> None:
        """Replace the file where its journal has grown larger than what it follows.

        A failure changes nothing; the next attempt comes when the file has grown to twice its size.
        """
        journal = self._journal
        if journal is not None and journal.size >= journal.due:
            journal.due = 2 * journal.size
            with suppress(OSError, ValueError):
                self._replace(self.held)

    def close(self) -> None:
        """Append no more: the next save replaces the file."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _save(self, state: State, *, appends: bool) -> None:
        try:
            if not (appends and self._has_appended(state)):
                self._replace(state)
        except (OSError, ValueError) as error:
            self._has_failed = True
            text = _save_failure(error) if isinstance(error, OSError) else f"cannot be saved: {error}"
            raise CheckpointError(self.path, text) from error
        self._has_failed = False

    def _has_appended(self, state: State) -> bool:
        """Append what differs from the state in the file; returns False where only another file can hold it."""
        journal = self._journal
        if journal is None or self.facts != self._held_facts or not self.is_intact():
            return False
        record = self._encoder.record(state.changes_from(self.held), self.generation + 1, journal.checksum)
        if not record:
            # After a failure, the caller wants to know whether the disk takes anything again.
            return not self._has_failed
        if journal.size + len(record) > LARGEST:
            return False
        try:
            journal.append(record, sync=self.durable)
        except OSError:
            if not journal.is_trusted:
                self.close()
            return False
        self.generation += 1
        self.held = state
        return True

    def _replace(self, state: State) -> None:
        """Replace the file: write another one, keep the old one's name, rename, and make the names durable."""
        facts, new = self.facts, f"{self.path}.new"
        pieces = self._encoder.encode(state, self.generation + 1, facts)
        try:
            descriptor = _write_new(new, pieces, sync=self.durable)
        except FileNotFoundError:
            make_directory(self.directory)
            descriptor = _write_new(new, pieces, sync=self.durable)
        try:
            if self._mark is None or _identity(self.path) == self._mark:
                self._keep_previous()
            else:
                # Another process replaced or removed the file. No start may fall back to a generation of other content.
                _remove(f"{self.path}.previous")
            os.replace(new, self.path)
            self.close()
            self._mark = _identity(self.path)
            self.held, self._held_facts = state, facts
            if self.durable:
                sync_directory(self.directory)
        except OSError:
            os.close(descriptor)
            raise
        self.generation += 1
        self._journal = _Journal(descriptor, sum(map(len, pieces)), last_checksum(pieces[-1]))

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

    def _begin(self, error: CheckpointError, damage: DamagedJournalError) -> LoadResult:
        """Keep the file under a second name, and replace it by what is before the damaged record."""
        kept, problem = None, ""
        try:
            kept = keep_aside(self.path)
            data, new = _content(self.path) or b"", f"{self.path}.new"
            os.close(_write_new(new, [data[: damage.at]], sync=self.durable))
            os.replace(new, self.path)
            if self.durable:
                sync_directory(self.directory)
            self._holds(damage.sound)
        except (CheckpointError, OSError, ValueError) as second:
            self.generation, problem = damage.sound.generation, f"; it could not be replaced: {second}"
        return LoadResult(damage.sound.state, Origin.BEGINNING, kept, f"{error}{problem}")

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


def _save_failure(error: OSError) -> str:
    advice = {
        errno.ENOSPC: "; free space on this file system or choose another state directory",
        errno.EROFS: "; mount the state directory read-write",
        errno.EACCES: "; run as root or choose another state directory",
        errno.ENOTDIR: "; a directory is needed, give another with --state-dir or stateDir",
    }.get(error.errno or 0, "")
    return f"cannot be saved: {error.strerror}{advice}"
