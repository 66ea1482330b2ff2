"""CFS quotas of cgroups: removed, and restored.

Source: kernel Documentation/admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cpu.cfs_quota_us).
"""

import os

from nri_plugin.core.kernel_settings import NO_QUOTA, PERIOD_US
from nri_plugin.host.cgroup import CRUN_SUBGROUP, GONE, cgroup_path
from nri_plugin.host.mounts import CpusetTree
from nri_plugin.host.sysfs_files import read_value, write_value
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef

V1_NAMES = ("cpu,cpuacct", "cpuacct,cpu", "cpu")
"""Directories of the cpu controller of cgroup v1, beside that of the cpuset controller."""

MAX, CFS_QUOTA, CFS_PERIOD = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"

QUOTA_FILES = frozenset({MAX, CFS_QUOTA})
"""Files of a quota. A period alone throttles nothing."""


class CPUQuotas:
    """The quota files of a tree; addressed like its cpusets.

    Args:
        directory: the root of the hierarchy with the cpu controller.
        version: of that hierarchy.
    """

    def __init__(self, directory: str, version: int) -> None:
        self.directory, self._version = directory, version

    @classmethod
    def beside(cls, cpusets: CpusetTree) -> "CPUQuotas | None":
        """The quotas of the same cgroups; None where the cpu controller is not mounted."""
        if cpusets.version != 1:
            return cls(cpusets.directory, 2)
        # Most systems mount cpu and cpuacct together, under one of two names.
        above = os.path.dirname(cpusets.directory)
        found = (os.path.join(above, name) for name in V1_NAMES)
        return next((cls(path, 1) for path in found if os.path.isdir(path)), None)

    def set(self, ref: CgroupRef, quota_us: int) -> bool:
        """Remove the quota, or set it to `quota_us` in each PERIOD_US if there is none; returns whether it changed.

        An existing quota stays: another writer set it. A missing cgroup or file has no quota to change.

        Raises:
            HostError: the kernel refused it, or the file holds something else.
        """
        own, *below = self.directories(ref)
        # From above down: cgroup v1 refuses a child more than its parent has. A quota is restored only above, where the
        # runtime sets it.
        changed = self._set(own, quota_us)
        if quota_us == NO_QUOTA:
            for directory in below:
                changed |= self._set(directory, quota_us)
        return changed

    def directories(self, ref: CgroupRef) -> list[str]:
        """The directory of the cgroup, and the one below it where a runtime may keep the processes.

        Raises:
            HostError: its name leaves the tree.
        """
        own = os.path.join(self.directory, cgroup_path(ref))
        return [own, os.path.join(own, CRUN_SUBGROUP)] if own.endswith(".scope") else [own]

    def _set(self, directory: str, quota_us: int) -> bool:
        path = os.path.join(directory, MAX if self._version == 2 else CFS_QUOTA)
        try:
            found_us, period_us = self._read(directory)
            if (found_us == NO_QUOTA) == (quota_us == NO_QUOTA):
                return False
            write_value(path, self._text(quota_us, period_us))
        except OSError as error:
            if error.errno in GONE:
                return False
            raise HostError(
                path, f"a CPU quota of {_words(quota_us)} was refused ({error.strerror})"
            ) from error
        except ValueError:
            raise HostError(path, "holds no CPU quota") from None
        return True

    def _read(self, directory: str) -> tuple[int, int]:
        if self._version == 1:
            return int(read_value(f"{directory}/{CFS_QUOTA}")), int(read_value(f"{directory}/{CFS_PERIOD}"))
        quota, period = read_value(f"{directory}/{MAX}").split()
        return (NO_QUOTA if quota == "max" else int(quota)), int(period)

    def _text(self, quota_us: int, period_us: int) -> str:
        """The value to write, with the period that is in the file: the kubelet's configuration decides it."""
        if quota_us == NO_QUOTA:
            return f"max {period_us}" if self._version == 2 else str(NO_QUOTA)
        text = str(quota_us * period_us // PERIOD_US)
        return f"{text} {period_us}" if self._version == 2 else text


def _words(quota_us: int) -> str:
    return "none" if quota_us == NO_QUOTA else f"{quota_us} us each {PERIOD_US} us"
