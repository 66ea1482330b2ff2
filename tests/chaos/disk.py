"""A file system in memory that tears, fills up, fails and forgets: `os` as the checkpoint's code uses it.

What is written is in the page cache. A kill keeps that; a loss keeps of every file what was synced and
of every directory a beginning of what was done since it was synced.
"""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.chaos.faults import Fault, Faults, Killed


@dataclass(eq=False, slots=True)
class Inode:
    """A file: what readers see, and what is on the medium."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(eq=False, slots=True)
class Descriptor:
    """An open file or directory."""

    inode: Inode | None
    position: int = 0


Names = dict[str, Inode]


class Disk:
    """One directory; its functions stand for those of `os`, every other name is the real one's."""

    def __init__(self, faults: Faults, random: Random) -> None:
        self.faults = faults
        self.random = random
        self.names: Names = {}
        self.dead = False
        self._synced: Names = {}
        self._history: list[Names] = []
        self.condition: Fault | None = None
        self.is_mounted = False
        self._open: dict[int, Descriptor] = {}
        self._next = 100
        self.path = SimpleNamespace(
            **{name: getattr(os.path, name) for name in ("join", "dirname", "abspath")}
        )
        self.path.lexists = lambda path: os.path.basename(path) in self.names
        self.stalls: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # ------------------------------------------------------------------ what becomes of the directory

    def lose_directory(self, *, is_mounted: bool) -> None:
        """Somebody removes it; where the agent sees it through a mount, it can never be made again from there."""
        self.condition, self.is_mounted = Fault.DIRECTORY_LOST, is_mounted
        self._put({})

    def replace_directory(self, names: Names) -> None:
        """Another one is in its place, with copies of what lay in it once."""
        self._put({name: Inode(bytearray(one.data), bytes(one.data)) for name, one in names.items()})

    def bring_back(self) -> None:
        """The directory can be written to again."""
        self.condition = None

    def _put(self, names: Names) -> None:
        self.names, self._synced, self._history = names, dict(names), []

    def _refuse(self, path: str, *, writes: bool = False) -> None:
        """Fail as the directory's condition demands.

        Raises:
            OSError: there is no directory, or it is read-only and the call `writes`.
        """
        if self.condition is Fault.DIRECTORY_LOST:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        if writes and self.condition is Fault.DIRECTORY_READ_ONLY:
            raise OSError(errno.EROFS, "read-only file system", path)

    # ------------------------------------------------------------------ what a crash leaves

    def restart(self, *, is_losing: bool = False) -> None:
        """The process is gone, and with it what it had open; `is_losing`: so is what was never synced."""
        self._open.clear()
        self.dead = False
        if self.condition is Fault.DIRECTORY_LOST and self.is_mounted:
            self.condition = None  # a new container has a new mount
        if is_losing:
            states = [self._synced, *self._history]
            self.names = dict(states[self.random.randrange(len(states))])
            for inode in set(self.names.values()):
                kept = max(len(inode.synced), self.random.randrange(len(inode.data) + 1))
                inode.data[:] = (
                    inode.data[:kept] if bytes(inode.data).startswith(inode.synced) else inode.synced
                )
        self._synced, self._history = dict(self.names), []
        for inode in self.names.values():
            inode.synced = bytes(inode.data)

    # ------------------------------------------------------------------ the calls

    def open(self, path: str, flags: int, _mode: int = 0o777) -> int:
        """As `os.open`."""
        self._step("open")
        self._refuse(path, writes=bool(flags & os.O_CREAT))
        name = os.path.basename(path)
        if flags & os.O_DIRECTORY:
            return self._opened(Descriptor(None))
        if flags & os.O_CREAT:
            if name in self.names:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self._change({**self.names, name: Inode()})
        if name not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._opened(Descriptor(self.names[name]))

    def write(self, number: int, data: Any) -> int:
        """As `os.write`; a torn write is cut short by the end of the process."""
        fault = self._step("write")
        inode = self._open[number].inode
        assert inode is not None
        if self.condition is Fault.DIRECTORY_READ_ONLY:
            raise OSError(errno.EROFS, "read-only file system")
        if self.condition is Fault.DIRECTORY_FULL:
            # The first write may find room for a part.
            if len(data) == 1 or self.random.random() < 0.5:
                raise OSError(errno.ENOSPC, "no space left on device")
            data = bytes(data)[: self.random.randrange(1, len(data))]
        if fault is Fault.TORN:
            inode.data += bytes(data)[: self.random.randrange(len(data) + 1)]
            self.faults.struck(Fault.TORN)
            self._die()
        inode.data += data
        return len(data)

    def read(self, number: int, count: int) -> bytes:
        """As `os.read`."""
        self._step("read")
        opened = self._open[number]
        assert opened.inode is not None
        part = bytes(opened.inode.data[opened.position : opened.position + count])
        opened.position += len(part)
        return part

    def fstat(self, number: int) -> Any:
        """As `os.fstat`, as far as it is looked at."""
        inode = self._open[number].inode
        assert inode is not None
        return SimpleNamespace(st_mode=stat.S_IFREG | 0o600, st_size=len(inode.data))

    def fsync(self, number: int) -> None:
        """As `os.fsync`."""
        if self._step("fsync") is Fault.STALL:
            self.faults.struck(Fault.STALL)
            self.stalls()
        inode = self._open[number].inode
        if inode is None:
            self._synced, self._history = dict(self.names), []
        else:
            inode.synced = bytes(inode.data)

    def fdatasync(self, number: int) -> None:
        """As `os.fdatasync`."""
        if self._step("fdatasync") is Fault.STALL:
            self.faults.struck(Fault.STALL)
            self.stalls()
        inode = self._open[number].inode
        assert inode is not None
        inode.synced = bytes(inode.data)

    def ftruncate(self, number: int, length: int) -> None:
        """As `os.ftruncate` to a smaller size."""
        self._step("ftruncate")
        if self.condition is Fault.DIRECTORY_READ_ONLY:
            raise OSError(errno.EROFS, "read-only file system")
        inode = self._open[number].inode
        assert inode is not None
        del inode.data[length:]

    def close(self, number: int) -> None:
        """As `os.close`; also of a process that is being killed."""
        self._open.pop(number, None)

    def link(self, source: str, target: str, *, follow_symlinks: bool = True) -> None:
        """As `os.link`."""
        self._step("link")
        self._refuse(source, writes=True)
        self._change({**self.names, os.path.basename(target): self._named(source)})

    def replace(self, source: str, target: str) -> None:
        """As `os.replace`."""
        self._step("replace")
        self._refuse(source, writes=True)
        inode = self._named(source)
        rest = {name: other for name, other in self.names.items() if name != os.path.basename(source)}
        self._change({**rest, os.path.basename(target): inode})

    rename = replace

    def unlink(self, path: str) -> None:
        """As `os.unlink`."""
        self._step("unlink")
        self._refuse(path, writes=True)
        self._named(path)
        self._change({name: inode for name, inode in self.names.items() if name != os.path.basename(path)})

    def mkdir(self, path: str, _mode: int = 0o777) -> None:
        """As `os.mkdir` of the directory: a mount point is there even when what is mounted was removed."""
        if self.condition is not Fault.DIRECTORY_LOST or self.is_mounted:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self.condition = None

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """As `os.makedirs` of what is above the directory."""

    def stat(self, path: str, *, follow_symlinks: bool = True) -> Any:
        """As `os.stat`, as far as it is looked at."""
        inode = self._named(path)
        return SimpleNamespace(st_dev=1, st_ino=id(inode), st_size=len(inode.data))

    # ------------------------------------------------------------------ private

    def _step(self, name: str) -> Fault | None:
        if self.dead:
            raise Killed
        try:
            return self.faults.at_disk(name)
        except Killed:
            self.dead = True
            raise

    def _die(self) -> None:
        self.dead = True
        raise Killed

    def _named(self, path: str) -> Inode:
        try:
            return self.names[os.path.basename(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def _change(self, names: Names) -> None:
        self.names = names
        self._history.append(dict(names))

    def _opened(self, descriptor: Descriptor) -> int:
        self._next += 1
        self._open[self._next] = descriptor
        return self._next
