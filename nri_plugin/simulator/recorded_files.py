"""Kernel files out of memory: what `KernelFiles` would read from the tree they make.

Entries are text by path, or `{"link": target}`, as `hack/record-machine` writes them.
"""

import posixpath
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from nri_plugin import bits
from nri_plugin.errors import HostError
from nri_plugin.host.sysfs_files import KernelFiles

Entries = Mapping[str, Any]

MAX_LINKS = 40
"""Links that are followed in one path. Source: Linux, MAXSYMLINKS."""


class RecordedFiles(KernelFiles):
    """The files of a machine that is not this one.

    Args:
        entries: text or link by path below the root, without a leading slash.
        root: what stands before a path in errors.
    """

    def __init__(self, entries: Entries, root: str = "/recorded") -> None:
        super().__init__(root)
        self.entries = entries

    def text(self, name: str) -> str | None:
        """The content without surrounding white space and NULs; None when there is no such file."""
        value = self.entries.get(self.resolved(name))
        return value.strip(" \t\r\n\0") if isinstance(value, str) else None

    def names(self, name: str) -> list[str] | None:
        """Entries of a directory; None when there is no such directory."""
        return self.names_by_folder.get(self.resolved(name))

    def numbered(self, name: str, prefix: str) -> list[int]:
        """As on a kernel, which numbers nothing as high as a file can be made to say."""
        return [number for number in super().numbered(name, prefix) if number <= bits.MAX_ID]

    def end_of_link(self, name: str) -> str | None:
        """The last name of what a link leads to; None when there is no such link."""
        resolved = self.resolved(name)
        return posixpath.basename(resolved) if resolved != name or name in self.entries else None

    @cached_property
    def names_by_folder(self) -> dict[str, list[str]]:
        """Entries by directory."""
        found: dict[str, dict[str, None]] = {}
        for entry in self.entries:
            path = entry
            while path:
                folder, _, name = path.rpartition("/")
                known = found.setdefault(folder, {})
                if name in known:
                    break
                known[name] = None
                path = folder
        return {folder: list(names) for folder, names in found.items()}

    @cached_property
    def has_links(self) -> bool:
        """Whether any entry is a link."""
        return any(isinstance(value, Mapping) for value in self.entries.values())

    def resolved(self, name: str) -> str:
        """The path with every link on the way followed.

        Raises:
            HostError: links lead in a circle.
        """
        if not self.has_links:
            return name
        done, followed = "", 0
        left = name.split("/")
        while left:
            path = posixpath.join(done, left.pop(0))
            value = self.entries.get(path)
            if isinstance(value, Mapping):
                followed += 1
                if followed > MAX_LINKS:
                    raise HostError(self.path(name), f"leads through more than {MAX_LINKS} links")
                target = posixpath.join("/" + done, value["link"])
                left = posixpath.normpath(target).strip("/").split("/") + left
                done = ""
            else:
                done = path
        return done
