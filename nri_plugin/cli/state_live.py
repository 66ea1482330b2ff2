"""What the cgroups of containers hold, beside what was promised; nothing is written."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from nri_plugin.cli.state_rows import Row, Wanted, rows_of
from nri_plugin.cli.state_source import Seen
from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.nodemask import NodeMask
from nri_plugin.state import CgroupRef, Phase

HOST_TREE = "/host/sys/fs/cgroup"
OWN_TREE = "/sys/fs/cgroup"


@dataclass(frozen=True, slots=True)
class Found:
    """The cgroup of a running container.

    Attributes:
        row: the container.
        cpus: what its processes run on; None when there is no such cgroup or it cannot be read.
        mems: where they may have memory; None when that is not told.
        problem: why it could not be read; empty when it could.
    """

    row: Row
    cpus: CPUSet | None
    mems: NodeMask | None
    problem: str = ""

    @property
    def wanted_cpus(self) -> CPUSet:
        """What it should run on."""
        return self.row.cpus or CPUSet()

    @property
    def wanted_mems(self) -> NodeMask:
        """Where its memory should be; empty where nothing was promised."""
        return self.row.allocation.mems

    @property
    def has_other_cpus(self) -> bool:
        """Whether it runs on something else than promised."""
        return self.cpus is not None and self.cpus != self.wanted_cpus

    @property
    def has_other_mems(self) -> bool:
        """Whether its memory may be elsewhere than promised."""
        return bool(self.wanted_mems) and self.mems is not None and self.mems != self.wanted_mems


def cgroup_root_here() -> str:
    """The host's cgroup tree as a container of ours sees it, else this system's."""
    return HOST_TREE if os.path.isdir(HOST_TREE) else OWN_TREE


def look(found: Seen, root: str, wanted: Wanted | None = None) -> list[Found]:
    """The cgroups of all running containers.

    Raises:
        HostError: there is no cpuset tree at `root`.
    """
    cgroups = Cgroups.open(root)
    running = (row for row in rows_of(found, wanted) if row.record.phase is Phase.RUNNING)
    return [_look_at(cgroups, row) for row in running]


def need_visible(looked: Iterable[Found], root: str) -> None:
    """See that this is the tree of these containers.

    Raises:
        HostError: none of them has its cgroup here.
    """
    looked = list(looked)
    if looked and all(one.cpus is None for one in looked):
        raise HostError(
            root,
            f"none of the {len(looked)} running containers has its cgroup here; mount the host's cgroup tree "
            "and name it with --cgroup-root",
        )


def _look_at(cgroups: Cgroups, row: Row) -> Found:
    ref = row.record.cgroup
    try:
        cpus = _cpus(cgroups, ref)
        if cpus is None:
            return Found(row, None, None, str(cgroups.missing_error(ref)))
        return Found(row, cpus, _mems(cgroups, ref))
    except HostError as error:
        return Found(row, None, None, str(error))


def _cpus(cgroups: Cgroups, ref: CgroupRef) -> CPUSet | None:
    """What its processes run on; in a stand-in, where nothing keeps effective sets in step, what it was given."""
    own = None if cgroups.tree.is_kernel else cgroups.read_cpus(ref)
    return cgroups.read_effective(ref) if own is None else own


def _mems(cgroups: Cgroups, ref: CgroupRef) -> NodeMask | None:
    own = None if cgroups.tree.is_kernel else cgroups.read_mems(ref)
    return cgroups.read_effective_mems(ref) if own is None else own
