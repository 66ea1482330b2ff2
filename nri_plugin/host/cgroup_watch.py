"""Reports cgroups that were just written, by inotify watches on their directories and on those above them.

The kernel reports written values. It never reports effective sets that change with a parent or with the machine. It keeps
the watch of a removed cgroup for ever, so each watch has to be removed.
"""

import ctypes
import errno
import os
import struct
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from nri_plugin.model.errors import HostError

# Inotify is not in the standard library, so it is called by ctypes. Source: inotify(7).

IN_MODIFY = 0x2
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_Q_OVERFLOW = 0x4000
IN_ISDIR = 0x40000000
IN_MASK_ADD = 0x20000000
IN_ONLYDIR = 0x1000000
IN_DONT_FOLLOW = 0x2000000

READ_BYTES = 1 << 16
_HEAD = struct.Struct("iIII")
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Notice:
    """One event. `watch` is -1 if the queue overflowed and events are lost."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify descriptor, non-blocking.

    Raises:
        HostError: the user has no instance left (fs.inotify.max_user_instances).
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(_FLAGS)
        if self._fd < 0:
            raise _error("inotify", ctypes.get_errno())

    def fileno(self) -> int:
        """The descriptor, to be waited on."""
        return int(self._fd)

    def add(self, directory: str, mask: int = IN_MODIFY) -> int | None:
        """Watch the files of a directory and return the watch; None if the directory is missing.

        The same directory, as long as it exists, gives the same number.

        Raises:
            HostError: no watch is left (fs.inotify.max_user_watches), or the directory may not be read.
        """
        # A link in place of a directory may lead out of the tree.
        flags = mask | IN_ONLYDIR | IN_DONT_FOLLOW
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), ctypes.c_uint32(flags))
        if watch >= 0:
            return int(watch)
        number = ctypes.get_errno()
        if number in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise _error(directory, number)

    def remove(self, watch: int) -> None:
        """Stop watching. An unknown watch is no error."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> list[Notice]:
        """Return the events that have arrived."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return []
        return list(_parsed(data))

    def close(self) -> None:
        """Close the descriptor, and with it all watches."""
        os.close(self._fd)


def _parsed(data: bytes) -> Iterator[Notice]:
    offset = 0
    while offset < len(data):
        watch, mask, _cookie, length = _HEAD.unpack_from(data, offset)
        offset += _HEAD.size
        name = data[offset : offset + length].rstrip(b"\0")
        offset += length
        yield Notice(watch, mask, os.fsdecode(name))


def _error(path: str, number: int) -> HostError:
    hints = {
        errno.ENOSPC: "; raise the sysctl fs.inotify.max_user_watches",
        errno.EMFILE: "; raise the sysctl fs.inotify.max_user_instances",
    }
    return HostError(path, f"cannot be watched: {os.strerror(number).lower()}{hints.get(number, '')}")


Key = TypeVar("Key", bound=Hashable)

CPUSET_FILES = frozenset({"cpuset.cpus", "cgroup.subtree_control"})
"""Files whose writes change CPUs."""


class CgroupWatch(Generic[Key]):
    """Watches directories for keys. Keys share the watches of directories above them.

    Args:
        top: the root of the tree; neither it nor a directory above it is watched.
        names: the files whose writes are reported; writes to other files of a directory are ignored.
        with_above: also watch the directories above those of a key.

    Attributes:
        made: directories that were made in those with `reports_made`, by the latest `read`.
    """

    def __init__(self, top: str, names: frozenset[str] = CPUSET_FILES, *, with_above: bool = True) -> None:
        self._top, self._names, self._with_above = top, names, with_above
        self.made: set[str] = set()
        self._inotify = Inotify()
        self._watch_by_directory: dict[str, int] = {}
        self._directory_by_watch: dict[int, str] = {}
        self._keys_by_directory: dict[str, set[Key]] = defaultdict(set)
        self._directories_by_key: dict[Key, frozenset[str]] = {}

    def __len__(self) -> int:
        """The number of watches in the kernel."""
        return len(self._watch_by_directory)

    def __contains__(self, key: Key) -> bool:
        return key in self._directories_by_key

    def fileno(self) -> int:
        """The descriptor, readable after a write."""
        return self._inotify.fileno()

    def add(self, key: Key, directories: Iterable[str], *, reports_made: bool = False) -> None:
        """Watch these directories and all above them for `key`. A further call also watches directories made since.

        Args:
            key: is reported when a file in one of them is written.
            directories: the lowest ones.
            reports_made: also report new directories in them. Those in a container are its own business, at any rate.

        Raises:
            HostError: the kernel has no more watches; those that were made stay.
        """
        wanted = frozenset(one for leaf in directories for one in self._chain(leaf))
        for gone in self._directories_by_key.get(key, frozenset()) - wanted:
            self._leave(key, gone)
        self._directories_by_key[key] = wanted
        # The key is known for all directories before the kernel may refuse a watch: `discard` then finds all of them.
        for directory in wanted:
            self._keys_by_directory[directory].add(key)
        for directory in wanted:
            self._renew(directory, IN_MODIFY | IN_CREATE if reports_made else IN_MODIFY)

    def discard(self, key: Key) -> None:
        """Forget the key, and remove watches without a key."""
        for directory in self._directories_by_key.pop(key, frozenset()):
            self._leave(key, directory)

    def read(self) -> set[Key] | None:
        """Keys whose files were written; None if events were lost, so that it may be any key."""
        changed: set[Key] = set()
        self.made = set()
        while notices := self._inotify.read():
            for notice in notices:
                if notice.mask & IN_Q_OVERFLOW:
                    return None
                directory = self._directory_by_watch.get(notice.watch)
                if directory is None:
                    continue
                if notice.mask & IN_ISDIR:
                    self.made.add(os.path.join(directory, notice.name))
                elif notice.name in self._names:
                    changed |= self._keys_by_directory[directory]
        return changed

    def close(self) -> None:
        """Remove all watches."""
        self._inotify.close()

    def _chain(self, directory: str) -> list[str]:
        """The directory and, unless only leaves are watched, those between it and the top."""
        if not self._with_above:
            return [directory]
        found = []
        while directory.startswith(f"{self._top}/"):
            found.append(directory)
            directory = os.path.dirname(directory)
        return found

    def _renew(self, directory: str, mask: int) -> None:
        # A directory that was removed and made again has the same name and a new watch.
        # Other keys may have asked for more.
        known = self._watch_by_directory.get(directory)
        watch = self._inotify.add(directory, mask | IN_MASK_ADD)
        if watch == known:
            return
        if known is not None:
            self._unwatch(directory, known)
        if watch is not None:
            self._watch_by_directory[directory] = watch
            self._directory_by_watch[watch] = directory

    def _leave(self, key: Key, directory: str) -> None:
        keys = self._keys_by_directory[directory]
        keys.discard(key)
        if keys:
            return
        del self._keys_by_directory[directory]
        watch = self._watch_by_directory.get(directory)
        if watch is not None:
            self._unwatch(directory, watch)

    def _unwatch(self, directory: str, watch: int) -> None:
        self._inotify.remove(watch)
        del self._watch_by_directory[directory]
        del self._directory_by_watch[watch]
