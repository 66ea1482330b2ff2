"""Small files of the kernel, which hold one value each.

`KernelFiles` reads them below a root that may be `/`, a container's `/host` or a fixture. A missing file is None, because
kernels differ in the files they have. A file that cannot be read, or that does not follow its format, is a `HostError` that
names it. `read_value` and `write_value` are for cgroup files, where callers distinguish the errors of the kernel.
"""

import errno
import os
import re
from collections.abc import Callable
from typing import TypeVar

from nri_plugin.model import bits
from nri_plugin.model.errors import HostError

Value = TypeVar("Value")

_MISSING = (FileNotFoundError, NotADirectoryError)
LONGEST_VALUE = 1 << 16
"""Bytes; 8192 CPUs, every other one set, make a list of 20 kB."""
_MAX_BYTES = 16 << 20
"""No kernel file that is read here is larger."""

_HEX_MAP = re.compile(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{8})*\Z")
_INTEGER = re.compile(r"-?[0-9]{1,18}\Z")


def read_value(path: str) -> str:
    """The text of a file without surrounding white space, in one read. It never follows a link.

    Raises:
        OSError: the kernel refused.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.read(descriptor, LONGEST_VALUE).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)


def write_value(path: str, text: str, *, truncate: bool = True) -> None:
    """Write a value in one `write()`, because the kernel takes each for a whole value. It never makes a file.

    Args:
        path: of the file; a link is refused.
        text: the value.
        truncate: whether a longer former text goes. Only ordinary files that stand in for a tree need that; on a kernel's
            file it wakes watchers once more.

    Raises:
        OSError: the kernel refused, or took only a part.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_TRUNC if truncate else 0)
    descriptor = os.open(path, flags)
    try:
        written = os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)
    if written != len(text):
        raise OSError(errno.EIO, f"only {written} of {len(text)} bytes were taken")


class KernelFiles:
    """The files below one root; paths are relative to it and have no leading slash.

    Attributes:
        root: a directory that contains `sys` and `proc`.
    """

    __slots__ = ("_prefix", "root")

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self._prefix = root if root.endswith("/") else root + "/"

    def path(self, name: str) -> str:
        """The full path of `name`."""
        return self._prefix + name

    def names(self, name: str) -> list[str] | None:
        """Entries of a directory in no particular order; None when there is no such directory.

        Raises:
            HostError: the directory cannot be listed.
        """
        try:
            return os.listdir(self._prefix + name)
        except _MISSING:
            return None
        except OSError as err:
            raise HostError(self.path(name), f"cannot be listed: {_why(err)}") from err

    def numbered(self, name: str, prefix: str) -> list[int]:
        """Numbers n of the entries `<prefix>n` of a directory, ascending; a missing directory has none.

        Raises:
            HostError: the directory cannot be listed.
        """
        skip = len(prefix)
        return sorted(
            int(entry[skip:])
            for entry in self.names(name) or ()
            if entry.startswith(prefix) and entry[skip:].isascii() and entry[skip:].isdigit()
        )

    def text(self, name: str) -> str | None:
        """The content without surrounding white space and NULs; None when there is no such file.

        Raises:
            HostError: the file cannot be read.
        """
        try:
            return _read(self._prefix + name).decode("ascii", "replace").strip(" \t\r\n\0")
        except _MISSING:
            return None
        except OSError as err:
            raise HostError(self.path(name), f"cannot be read: {_why(err)}") from err

    def end_of_link(self, name: str) -> str | None:
        """The last part of a link's target, such as a PCI address; None if there is no such link."""
        path = self._prefix + name
        return os.path.basename(os.path.realpath(path)) if os.path.lexists(path) else None

    def number(self, name: str) -> int | None:
        """A decimal number.

        Raises:
            HostError: the file cannot be read or holds something else.
        """
        return self._parsed(name, _integer, "a number")

    def id_list(self, name: str) -> int | None:
        """The mask of a kernel list such as `0-3,8`.

        Raises:
            HostError: the file cannot be read or holds something else.
        """
        return self._parsed(name, bits.parse_list, "a list such as 0-3,8")

    def id_map(self, name: str) -> int | None:
        """The mask of a kernel bit map such as `00000000,0000ffff`.

        Raises:
            HostError: the file cannot be read or holds something else.
        """
        return self._parsed(name, _hex_map, "a bit map such as 00000000,0000ffff")

    def ids(self, *names: str) -> int | None:
        """The mask in the first of these files that names an id; None where no file does.

        A file is a list if its name ends in `list`, else a bit map. Old kernels of some machines write empty maps, which
        mean nothing: the CPU that has the file belongs to the set.

        Raises:
            HostError: a file cannot be read or holds something else.
        """
        for name in names:
            mask = self.id_list(name) if name.endswith("list") else self.id_map(name)
            if mask:
                return mask
        return None

    def _parsed(self, name: str, parse: Callable[[str], Value], expected: str) -> Value | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as err:
            raise HostError(self.path(name), f"expected {expected}, found {_quoted(text)}") from err


def _read(path: str) -> bytes:
    """The whole file. A page is usually enough; the size that sysfs shows is not that of the content."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, LONGEST_VALUE)
        if len(data) < 4096:
            return data
        blocks = [data]
        size = len(data)
        while data and size <= _MAX_BYTES:
            data = os.read(descriptor, LONGEST_VALUE)
            blocks.append(data)
            size += len(data)
        return b"".join(blocks)
    finally:
        os.close(descriptor)


def _integer(text: str) -> int:
    if _INTEGER.match(text) is None:
        raise ValueError(text)
    return int(text)


def _hex_map(text: str) -> int:
    if _HEX_MAP.match(text) is None:
        raise ValueError(text)
    return int(text.replace(",", ""), 16)


def _quoted(text: str) -> str:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return repr(shown) if text else "an empty file"


def _why(err: OSError) -> str:
    return (err.strerror or type(err).__name__).lower()
