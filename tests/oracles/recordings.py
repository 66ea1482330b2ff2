"""Recorded machines: one gzipped JSON object each, read in place or unpacked to a tree.

`files` holds what was recorded, `derived` what follows from it: path -> text, or {"link": target}.
"""

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nri_plugin.simulator.machine.source import RecordedFiles

__all__ = ["RecordedFiles", "read_recording", "relative_target", "unpack"]

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
