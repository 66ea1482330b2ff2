"""Counts writes to cpuset files, whoever makes them and whatever they write: the proof of "changed nothing".

inotify reports every write to a cgroup file, equal values too, on cgroup v1 and v2. It does not report what the kernel
changes by itself.
"""

import ctypes
import os
import struct
from pathlib import Path

_IN_MODIFY = 0x2
_HEADER = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class WriteWatch:
    """Watches every directory at or below `tops` that has a `cpuset.cpus`, as they are when the watch begins."""

    def __init__(self, *tops: Path) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._directories: dict[int, Path] = {}
        for file in (file for top in tops for file in sorted(top.rglob("cpuset.cpus"))):
            watch = _libc.inotify_add_watch(self._fd, os.fsencode(file.parent), _IN_MODIFY)
            self._directories[watch] = file.parent

    def __len__(self) -> int:
        return len(self._directories)

    def writes(self) -> list[str]:
        """Return the files written since the last call, once per write."""
        try:
            data = os.read(self._fd, 1 << 20)
        except BlockingIOError:
            return []
        found = []
        while data:
            watch, _mask, _cookie, length = _HEADER.unpack_from(data)
            name = data[_HEADER.size : _HEADER.size + length].rstrip(b"\0").decode()
            found.append(str(self._directories[watch] / name))
            data = data[_HEADER.size + length :]
        return [path for path in found if "cpuset" in path]

    def close(self) -> None:
        """End the watch."""
        os.close(self._fd)
