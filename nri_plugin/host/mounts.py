"""The kernel's list of mounts, as far as cgroup trees and state directories need it."""

import os
import re
from dataclasses import dataclass

from nri_plugin.errors import HostError

MOUNTINFO = "/proc/self/mountinfo"
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""File systems that do not outlive the kernel, so that fsync buys nothing."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system.

    Attributes:
        point: the directory it is mounted on.
        fstype: `cgroup2`, `tmpfs`, ...
        super_options: for cgroup v1 these name the controllers.
        root: which directory of the file system is seen there.
    """

    point: str
    fstype: str
    super_options: tuple[str, ...]
    root: str = "/"

    def holds(self, path: str) -> bool:
        """Whether the absolute `path` is the mount point or below it."""
        return path == self.point or path.startswith(self.point.rstrip("/") + "/")


def parse_mounts(text: str) -> list[Mount]:
    """The mounts in the order they were made; a line that is not understood is passed over.

    Source: proc_pid_mountinfo(5): optional fields end with a single dash.
    """
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) >= 6 and len(right) >= 3:
            mounts.append(Mount(_unescape(left[4]), right[0], tuple(right[2].split(",")), _unescape(left[3])))
    return mounts


def read_mounts(path: str = MOUNTINFO) -> list[Mount]:
    """The mounts this process sees.

    Raises:
        HostError: the list cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse_mounts(file.read())
    except OSError as error:
        raise HostError(path, f"cannot be read: {error.strerror}") from error


def is_in_memory(path: str, mounts: list[Mount] | None = None) -> bool:
    """Whether `path`, which need not exist yet, lies on a file system that is gone after a reboot."""
    real = os.path.realpath(path)
    holders = [mount for mount in (read_mounts() if mounts is None else mounts) if mount.holds(real)]
    if not holders:
        return False
    longest = max(len(mount.point) for mount in holders)
    return [m for m in holders if len(m.point) == longest][-1].fstype in IN_MEMORY


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
