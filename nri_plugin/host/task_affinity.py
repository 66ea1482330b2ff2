"""The CPU affinity of tasks: which CPUs of its cgroup a process may run on.

Since Linux 6.2 a task keeps the mask that `sched_setaffinity` gave it, and its children have the same. It runs on the CPUs
that mask and cpuset have in common, and on the whole cpuset where they have none. A container runtime under systemd's
CPUAffinity= passes its mask on, through its shim, to each container, whose cpuset then counts only in part. runc 1.2.7 and
1.3.1, and crun 1.9.1, reset the mask; earlier releases do not.

A write of the cpuset does not change the mask. Only `sched_setaffinity` does, which needs the process by its number: an
agent in a PID namespace of its own sees none.

Source: kernel kernel/sched/core.c, __set_cpus_allowed_ptr() and commit da019032819a; opencontainers/runc pull request 4858.
"""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from nri_plugin.host.cgroup import Cgroups, processes
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet

MOST_READ = 8
"""Processes of a container that are looked at: its first one is among the first."""

ALL_CPUS = range(1 << 13)
"""More than the kernel has; it takes those that there are."""

STATUS_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class InheritedAffinity:
    """The mask that a container has from the process that started it.

    Attributes:
        cpus: the CPUs that its processes may run on.
        granted: those of its cgroup.
        pids: its processes.
    """

    cpus: CPUSet
    granted: CPUSet
    pids: tuple[int, ...]

    @property
    def is_narrow(self) -> bool:
        """Whether CPUs of the cgroup are left out now; else they are when it gets a CPU of the mask."""
        return self.cpus != self.granted


def read_task(proc: str, pid: int) -> tuple[CPUSet, int] | None:
    """The CPUs that a process may run on, and its parent; None where it cannot be seen."""
    with suppress(OSError, ValueError), open(os.path.join(proc, str(pid), "status"), "rb") as file:
        lines = (
            line.partition(":") for line in file.read(STATUS_BYTES).decode("ascii", "replace").splitlines()
        )
        values = {name: value.strip() for name, _, value in lines}
        if "Cpus_allowed_list" in values:
            return CPUSet.parse(values["Cpus_allowed_list"]), int(values.get("PPid") or 0)
    return None


def inherited(cgroups: Cgroups, ref: CgroupRef, proc: str = "/proc") -> InheritedAffinity | None:
    """The mask that the container has from its parent; None where it has none, or where its processes cannot be seen.

    A program that has set another mask itself is left out: only one that equals what the parent passes on counts.

    Raises:
        HostError: the cgroup cannot be read.
    """
    pids = tuple(processes(cgroups, ref))
    found = cgroups.observe(ref) if pids else None
    granted = found[1] if found else None
    for pid in pids[:MOST_READ]:
        own = read_task(proc, pid) if _is_in(proc, pid, cgroups.directory(ref)) else None
        # Its first process, and those of `exec`, are children of the shim.
        parent = read_task(proc, own[1]) if own is not None and own[1] not in pids else None
        if own is None or parent is None or not granted or granted <= parent[0]:
            continue
        if own[0] == (parent[0] & granted or granted):
            return InheritedAffinity(own[0], granted, pids)
    return None


def _is_in(proc: str, pid: int, directory: str) -> bool:
    """Whether the process is in this cgroup: a list of another PID namespace has other numbers."""
    with suppress(OSError), open(os.path.join(proc, str(pid), "cgroup"), "rb") as file:
        return os.fsencode(os.path.basename(directory)) in file.read(STATUS_BYTES)
    return False


def reset(found: InheritedAffinity) -> None:
    """Let the processes of a container run on all CPUs of their cgroup, those with the inherited mask.

    Raises:
        HostError: the kernel refused: the container has more capabilities or another user, and CAP_SYS_NICE is missing.
    """
    for pid in found.pids:
        for task in _tasks(pid):
            try:
                if CPUSet.from_ids(os.sched_getaffinity(task)) == found.cpus:
                    os.sched_setaffinity(task, ALL_CPUS)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    why = (error.strerror or str(error)).lower()
                    raise HostError(f"process {pid}", f"its CPU affinity cannot be reset: {why}") from None


def _tasks(pid: int) -> Sequence[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return ()
