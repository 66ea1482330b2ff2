"""The kernel's inotify: who is told when files in a directory are written. Not in the standard library, so by ctypes.

Source: inotify(7).
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from nri_plugin.errors import HostError

IN_MODIFY = 0x2
IN_Q_OVERFLOW = 0x4000
IN_ONLYDIR = 0x1000000
IN_DONT_FOLLOW = 0x2000000

READ_BYTES = 1 << 16
_HEAD = struct.Struct("iIII")
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Notice:
    """One event: `watch` is -1 when the queue overflowed and some are lost."""

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
        """Watch the files of a directory; the same directory gives the same number. None when there is none.

        Raises:
            HostError: no watch is left (fs.inotify.max_user_watches), or it may not be read.
        """
        flags = mask | IN_ONLYDIR | IN_DONT_FOLLOW
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), ctypes.c_uint32(flags))
        if watch >= 0:
            return int(watch)
        number = ctypes.get_errno()
        if number in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise _error(directory, number)

    def remove(self, watch: int) -> None:
        """Stop watching; one that is gone already is no error."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> list[Notice]:
        """What has come, nothing when nothing has."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return []
        return list(_parsed(data))

    def close(self) -> None:
        """Give the descriptor and all watches back."""
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
