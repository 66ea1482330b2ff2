"""The kernel's list of mounts: the cpuset hierarchy, and the file system of a state directory."""

import os
import re
from dataclasses import dataclass

from nri_plugin.model.errors import HostError

MOUNTINFO = "/proc/self/mountinfo"
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""File systems whose content is lost at a reboot, so fsync has no use."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """One mounted file system.

    Attributes:
        point: the directory it is mounted on.
        fstype: `cgroup2`, `tmpfs`, ...
        super_options: for cgroup v1 these name the controllers.
        root: the directory of the file system that is mounted there.
    """

    point: str
    fstype: str
    super_options: tuple[str, ...]
    root: str = "/"

    def holds(self, path: str) -> bool:
        """Whether the absolute `path` is the mount point or below it."""
        return path == self.point or path.startswith(self.point.rstrip("/") + "/")


def parse_mounts(text: str) -> list[MountPoint]:
    """The mounts in the order in which they were made; a malformed line is ignored.

    Source: proc_pid_mountinfo(5): optional fields end with a single dash.
    """
    mounts = []
    for line in text.splitlines():
        # The dash separates the two halves, because the number of optional fields before it varies.
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) >= 6 and len(right) >= 3:
            mounts.append(
                MountPoint(_unescape(left[4]), right[0], tuple(right[2].split(",")), _unescape(left[3]))
            )
    return mounts


def read_mounts(path: str = MOUNTINFO) -> list[MountPoint]:
    """The mounts this process sees.

    Raises:
        HostError: the list cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return parse_mounts(file.read())
    except OSError as error:
        raise HostError(path, f"cannot be read: {error.strerror}") from error


def is_in_memory(path: str, mounts: list[MountPoint] | None = None) -> bool:
    """Whether `path`, which need not exist, lies on a file system whose content is lost at a reboot."""
    real = os.path.realpath(path)
    holders = [mount for mount in (read_mounts() if mounts is None else mounts) if mount.holds(real)]
    if not holders:
        return False
    # The deepest mount point counts, and of several mounts on it the last one, which hides the others.
    longest = max(len(mount.point) for mount in holders)
    return [m for m in holders if len(m.point) == longest][-1].fstype in IN_MEMORY


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


@dataclass(frozen=True, slots=True)
class CpusetTree:
    """A hierarchy with the cpuset controller.

    Attributes:
        version: 1 or 2.
        directory: its root; cgroup paths of the runtime are relative to it.
        is_kernel: False for a tree of ordinary files that stands in for the kernel's.
    """

    version: int
    directory: str
    is_kernel: bool


def find_cpuset_tree(root: str, mounts: list[MountPoint] | None = None) -> CpusetTree:
    """The cpuset hierarchy at or below `root`, by the list of mounts, else by the files there.

    `root` may also be a directory inside a hierarchy, for a node that is itself a container.

    Raises:
        HostError: there is none; names the hierarchy that is there instead.
    """
    root = os.path.realpath(root)  # the kernel lists mounts without links
    mounts = read_mounts() if mounts is None else mounts
    return _by_mounts(root, mounts) or _by_files(root, mounts)


def _by_mounts(root: str, mounts: list[MountPoint]) -> CpusetTree | None:
    for mount in reversed(mounts):  # a later mount hides an earlier one
        below = os.path.dirname(mount.point) == root or mount.point == root
        if below and mount.fstype == "cgroup" and "cpuset" in mount.super_options:
            return CpusetTree(1, mount.point, is_kernel=True)
    return None


def _by_files(root: str, mounts: list[MountPoint]) -> CpusetTree:
    is_kernel = _is_cgroup_mount(root, mounts)
    for directory in (root, os.path.join(root, "unified")):
        if "cpuset" in _controllers(directory):
            return CpusetTree(2, directory, is_kernel or _is_cgroup_mount(directory, mounts))
    for directory in (os.path.join(root, "cpuset"), root):
        if os.path.isfile(os.path.join(directory, "cpuset.cpus")):
            return CpusetTree(1, directory, is_kernel)
    if os.path.isdir(os.path.join(root, "cpuset")):
        return CpusetTree(1, os.path.join(root, "cpuset"), is_kernel)
    raise _no_tree(root)


def _controllers(directory: str) -> list[str]:
    try:
        with open(os.path.join(directory, "cgroup.controllers"), encoding="ascii", errors="replace") as file:
            return file.read(4096).split()
    except OSError:
        return []


def _is_cgroup_mount(directory: str, mounts: list[MountPoint]) -> bool:
    holders = [mount for mount in mounts if mount.holds(directory)]
    return bool(holders) and max(holders, key=lambda m: len(m.point)).fstype in {"cgroup", "cgroup2"}


def _no_tree(root: str) -> HostError:
    if not os.path.isdir(root):
        return HostError(root, "no such directory; mount the host's cgroup tree here or name another root")
    if os.path.exists(os.path.join(root, "cgroup.controllers")):
        found = " ".join(_controllers(root)) or "none"
        return HostError(
            os.path.join(root, "cgroup.controllers"),
            f"the cpuset controller is not available here (available: {found}); "
            "is this the root of the host's tree?",
        )
    return HostError(root, "holds neither cgroup.controllers (cgroup v2) nor a cpuset directory (cgroup v1)")
