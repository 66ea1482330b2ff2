"""Counts writes to cpuset and quota files, whoever makes them and whatever they write: the proof of "changed nothing".

inotify reports every write to a cgroup file, equal values too, on cgroup v1 and v2. It does not report what the kernel
changes by itself.
"""

import ctypes
import os
import struct
from pathlib import Path

_IN_MODIFY = 0x2
_IN_Q_OVERFLOW = 0x4000
_HEADER = struct.Struct("iIII")
_QUOTAS = ("cpu.max", "cpu.cfs_quota_us")
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
        """Return the files written since the last call, once per write; what was lost counts as one."""
        found = []
        while data := self._read():
            while data:
                watch, mask, _cookie, length = _HEADER.unpack_from(data)
                name = data[_HEADER.size : _HEADER.size + length].rstrip(b"\0").decode()
                data = data[_HEADER.size + length :]
                if mask & _IN_Q_OVERFLOW:
                    found.append("more writes than the kernel keeps")
                elif "cpuset" in name or name in _QUOTAS:
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
