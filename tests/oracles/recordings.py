"""Recorded machines: one gzipped JSON object each, read in place or unpacked to a tree.

`files` holds what was recorded, `derived` what follows from it: path -> text, or {"link": target}.
"""

import gzip
import json
import os
import posixpath
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from nri_plugin.host.sysfs_files import KernelFiles

Entries = Mapping[str, Any]


def read_recording(path: Path) -> Entries:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        recorded = json.load(file)
    return dict(recorded.get("derived", {}) | recorded["files"])


def unpack(entries: Entries, destination: Path) -> None:
    """Write the tree; links last, so that nothing is written through one."""
    for folder in sorted({os.path.dirname(name) for name in entries}):
        (destination / folder).mkdir(parents=True, exist_ok=True)
    for name, value in entries.items():
        if isinstance(value, str):
            (destination / name).write_text(value, newline="")
    for name, value in entries.items():
        if not isinstance(value, str):
            (destination / name).symlink_to(relative_target(name, value["link"]))


def relative_target(name: str, target: str) -> str:
    """A link's target as seen from the link; an absolute one is meant below the tree's root."""
    if not target.startswith("/"):
        return target
    return os.path.relpath(target, "/" + os.path.dirname(name))


class RecordedFiles(KernelFiles):
    """Kernel files read out of a recording: what `KernelFiles` reads from the unpacked tree."""

    def __init__(self, entries: Entries) -> None:
        super().__init__("/recorded")
        self.entries = entries

    def text(self, name: str) -> str | None:
        value = self.entries.get(self.resolved(name))
        return value.strip(" \t\r\n\0") if isinstance(value, str) else None

    def names(self, name: str) -> list[str] | None:
        return self.names_by_folder.get(self.resolved(name))

    def end_of_link(self, name: str) -> str | None:
        resolved = self.resolved(name)
        return posixpath.basename(resolved) if resolved != name or name in self.entries else None

    @cached_property
    def names_by_folder(self) -> dict[str, list[str]]:
        found: dict[str, dict[str, None]] = {}
        for entry in self.entries:
            path = entry
            while path:
                folder, _, name = path.rpartition("/")
                found.setdefault(folder, {})[name] = None
                path = folder
        return {folder: list(names) for folder, names in found.items()}

    def resolved(self, name: str) -> str:
        """The path with every link on the way followed."""
        done = ""
        left = name.split("/")
        while left:
            path = posixpath.join(done, left.pop(0))
            value = self.entries.get(path)
            if isinstance(value, Mapping):
                target = posixpath.join("/" + done, value["link"])
                left = posixpath.normpath(target).strip("/").split("/") + left
                done = ""
            else:
                done = path
        return done
