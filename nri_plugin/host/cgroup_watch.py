"""Which cgroups somebody just wrote to, by watches on their directories and on those above them.

Every watch is one we made and one we remove: the kernel keeps the watch of a removed cgroup for good. The kernel
tells of values that are written, never of effective sets that follow a parent or the machine.
"""

import os
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from nri_plugin.host.inotify import IN_Q_OVERFLOW, Inotify

Key = TypeVar("Key", bound=Hashable)

CPUSET_FILES = frozenset({"cpuset.cpus", "cgroup.subtree_control"})
"""Files that a change of CPUs is written to."""


class CgroupWatch(Generic[Key]):
    """Watches directories for the sake of keys, which share those above them.

    Args:
        top: the root of the tree; it is not watched, nor is what is above it.
        names: the files whose writes are reported; writes to other files of a directory are ignored.
        with_above: also watch the directories above those of a key.
    """

    def __init__(self, top: str, names: frozenset[str] = CPUSET_FILES, *, with_above: bool = True) -> None:
        self._top, self._names, self._with_above = top, names, with_above
        self._inotify = Inotify()
        self._watch_by_directory: dict[str, int] = {}
        self._directory_by_watch: dict[int, str] = {}
        self._keys_by_directory: dict[str, set[Key]] = defaultdict(set)
        self._directories_by_key: dict[Key, frozenset[str]] = {}

    def __len__(self) -> int:
        """How many watches the kernel holds for us."""
        return len(self._watch_by_directory)

    def __contains__(self, key: Key) -> bool:
        return key in self._directories_by_key

    def fileno(self) -> int:
        """The descriptor, readable when something was written."""
        return self._inotify.fileno()

    def add(self, key: Key, directories: Iterable[str]) -> None:
        """Watch these and all above them for `key`; again, it also finds those that were made anew.

        Raises:
            HostError: the kernel gives no more watches; those it gave are kept.
        """
        wanted = frozenset(one for leaf in directories for one in self._chain(leaf))
        for gone in self._directories_by_key.get(key, frozenset()) - wanted:
            self._leave(key, gone)
        self._directories_by_key[key] = wanted
        for directory in wanted:
            self._keys_by_directory[directory].add(key)
        for directory in wanted:
            self._renew(directory)

    def discard(self, key: Key) -> None:
        """Nobody asks for this key any more; watches that nobody needs are removed."""
        for directory in self._directories_by_key.pop(key, frozenset()):
            self._leave(key, directory)

    def read(self) -> set[Key] | None:
        """Keys whose files were written; None when notices were lost and it may be any."""
        changed: set[Key] = set()
        while notices := self._inotify.read():
            for notice in notices:
                if notice.mask & IN_Q_OVERFLOW:
                    return None
                directory = self._directory_by_watch.get(notice.watch)
                if directory is not None and notice.name in self._names:
                    changed |= self._keys_by_directory[directory]
        return changed

    def close(self) -> None:
        """Give all watches back."""
        self._inotify.close()

    def _chain(self, directory: str) -> list[str]:
        """The directory and, unless only leaves are watched, those above it, below the top."""
        if not self._with_above:
            return [directory]
        found = []
        while directory.startswith(f"{self._top}/"):
            found.append(directory)
            directory = os.path.dirname(directory)
        return found

    def _renew(self, directory: str) -> None:
        known, watch = self._watch_by_directory.get(directory), self._inotify.add(directory)
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
