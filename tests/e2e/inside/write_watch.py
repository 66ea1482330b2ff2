"""Counts writes to files of the kernel, whoever makes them and whatever they write: the proof of "changed nothing".

inotify reports every write to a file of cgroups, procfs and sysfs, equal values too. It does not report what the kernel
changes by itself.
"""

import ctypes
import os
import select
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

_IN_MODIFY = 0x2
_IN_Q_OVERFLOW = 0x4000
_HEADER = struct.Struct("iIII")
_QUOTAS = ("cpu.max", "cpu.cfs_quota_us")
_libc = ctypes.CDLL(None, use_errno=True)


def _pins(name: str) -> bool:
    """Whether a file says on which CPUs and for how long a cgroup runs."""
    return "cpuset" in name or name in _QUOTAS


class WriteWatch:
    """Watches every directory at or below `tops` that has one of some files, as they are when the watch begins.

    Args:
        tops: where to look.
        having: names of files; a directory with none of them is not watched.
        counts: whether a write to a file of this name counts.
    """

    def __init__(
        self,
        *tops: Path,
        having: Iterable[str] = ("cpuset.cpus",),
        counts: Callable[[str], bool] = _pins,
    ) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._counts = counts
        self._directories: dict[int, Path] = {}
        for directory in sorted({file.parent for top in tops for name in having for file in top.rglob(name)}):
            watch = _libc.inotify_add_watch(self._fd, os.fsencode(directory), _IN_MODIFY)
            self._directories[watch] = directory

    def __len__(self) -> int:
        return len(self._directories)

    def wait(self, limit_s: float) -> None:
        """Wait until there are writes that nobody has asked for, or the time is over."""
        select.select([self._fd], [], [], limit_s)

    def writes(self) -> list[str]:
        """Return the files written since the last call, once per write; what was lost counts as one."""
        found = []
        while data := self._read():
            while data:
                watch, mask, _cookie, length = _HEADER.unpack_from(data)
                name = data[_HEADER.size : _HEADER.size + length].rstrip(b"\0").decode()
                data = data[_HEADER.size + length :]
                if mask & _IN_Q_OVERFLOW:
                    found.append("more writes than the kernel keeps")
                elif self._counts(name):
                    found.append(str(self._directories[watch] / name))
        return found

    def close(self) -> None:
        """End the watch."""
        os.close(self._fd)

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, 1 << 20)
        except BlockingIOError:
            return b""
