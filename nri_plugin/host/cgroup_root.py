"""Finding the cpuset hierarchy of a node: cgroup v2, v1, or v1 beside an unused v2 ("hybrid")."""

import os
from dataclasses import dataclass

from nri_plugin.errors import HostError
from nri_plugin.host.mounts import Mount, read_mounts


@dataclass(frozen=True, slots=True)
class CpusetTree:
    """A hierarchy that carries the cpuset controller.

    Attributes:
        version: 1 or 2.
        directory: its root; cgroup paths of the runtime are relative to it.
        is_kernel: mounted by the kernel; False for a tree of ordinary files that stands in for one.
    """

    version: int
    directory: str
    is_kernel: bool


def find_cpuset_tree(root: str, mounts: list[Mount] | None = None) -> CpusetTree:
    """The cpuset hierarchy at or below `root`, told by the mounts, else by the files found there.

    `root` may also be a directory inside a hierarchy, for a node that is itself a container.

    Raises:
        HostError: there is none; says what is there instead.
    """
    root = os.path.realpath(root)  # mounts are listed without links
    mounts = read_mounts() if mounts is None else mounts
    return _by_mounts(root, mounts) or _by_files(root, mounts)


def _by_mounts(root: str, mounts: list[Mount]) -> CpusetTree | None:
    for mount in reversed(mounts):  # a later mount hides an earlier one
        below = os.path.dirname(mount.point) == root or mount.point == root
        if below and mount.fstype == "cgroup" and "cpuset" in mount.super_options:
            return CpusetTree(1, mount.point, is_kernel=True)
    return None


def _by_files(root: str, mounts: list[Mount]) -> CpusetTree:
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


def _is_cgroup_mount(directory: str, mounts: list[Mount]) -> bool:
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
