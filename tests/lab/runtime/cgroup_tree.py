"""A cpuset hierarchy in memory that answers writes as the kernel does.

Invariants: an effective set is a subset of the parent's effective set. On v2 it is the intersection with the own set,
or the whole parent's set if the intersection is empty, so it is never empty. The effective set of the root is the online
set. Processes run on the effective set, so placements are judged by it.

Source: kernel Documentation/admin-guide/cgroup-v2.rst (cpuset) and cgroup-v1/cpusets.rst; details were
    observed on kernel 6.12.
Differs: the kernel has partitions and the v1 flags (exclusive, memory_migrate, clone_children); here: they do
    not exist. Why: the tree serves tests of cpusets only. Option: none.
Differs: the kernel on v1 moves processes whose CPUs all went offline to the parent; here: they stay where
    they are. Why: the tree has no processes to move. Option: none.
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from nri_plugin.model import bits
from nri_plugin.model.errors import NriPinError
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import Topology

# Rejections: why a kernel rejects a write to `cpuset.cpus` or `cpuset.mems`
#
# One row for each reason, in the kernel's order. The first row that applies gives the error. CPUs and memory nodes have the
# same rules, so both are plain masks here.


V1 = 1
V2 = 2
BOTH = frozenset({V1, V2})
ONLY_V1 = frozenset({V1})


@dataclass(frozen=True, slots=True)
class Write:
    """A write and the state that decides about it; all sets are masks.

    Attributes:
        is_root: it goes to the root cgroup.
        wanted: the set to write, None if the text is no list.
        current: the cgroup's own set before.
        top: the machine's set; on v1 nothing may leave it.
        parent: the parent's own set.
        children: union of the own sets of all children.
        ids: how many ids the kernel knows; higher ones cannot be named.
        is_populated: a process lives here or below.
    """

    is_root: bool
    wanted: int | None
    current: int
    top: int
    parent: int
    children: int
    ids: int
    is_populated: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason for a rejection.

    Attributes:
        name: short, for reports.
        sentence: the rule, for error texts.
        versions: cgroup versions it holds for.
        error: the errno of the rejected write.
        rejects: whether the rule forbids this write.
    """

    name: str
    sentence: str
    versions: frozenset[int]
    error: int
    rejects: Callable[[Write], bool]


def _wanted(write: Write) -> int:
    return write.wanted or 0


RULES: tuple[Rule, ...] = (
    Rule(
        "root",
        "the root's sets are the machine's own and cannot be written",
        BOTH,
        errno.EACCES,
        lambda write: write.is_root,
    ),
    Rule(
        "list",
        "the text must be a list such as 0-3,8",
        BOTH,
        errno.EINVAL,
        lambda write: write.wanted is None,
    ),
    Rule(
        "range",
        "an id beyond the possible ones cannot be named",
        BOTH,
        errno.ERANGE,
        lambda write: _wanted(write) >> write.ids != 0,
    ),
    Rule(
        "top",
        "on v1 a set names only CPUs that are online and nodes that have memory",
        ONLY_V1,
        errno.EINVAL,
        lambda write: _wanted(write) & ~write.top != 0,
    ),
    Rule(
        "children",
        "on v1 a parent cannot shrink below what one of its children holds",
        ONLY_V1,
        errno.EBUSY,
        lambda write: write.children & ~_wanted(write) != 0,
    ),
    Rule(
        "parent",
        "on v1 a child holds nothing that its parent does not hold",
        ONLY_V1,
        errno.EACCES,
        lambda write: _wanted(write) & ~write.parent != 0,
    ),
    Rule(
        "clearing",
        "a set, once given, cannot be cleared while a process lives in the cgroup",
        BOTH,
        errno.ENOSPC,
        lambda write: write.is_populated and write.current != 0 and _wanted(write) == 0,
    ),
)


def verdict(version: int, write: Write) -> Rule | None:
    """The first rule that rejects the write, None when it is accepted."""
    for rule in RULES:
        if version in rule.versions and rule.rejects(write):
            return rule
    return None


# The tree


ROOT = ""
MAX_NODES = 1024  # the kernel's MAX_NUMNODES as distributions build it


class CpusetFile(StrEnum):
    """The two sets a cpuset cgroup holds."""

    CPUS = "cpus"
    MEMS = "mems"


class CgroupWriteError(NriPinError):
    """The write was rejected; nothing changed."""

    def __init__(self, path: str, resource: CpusetFile, text: str, rule: Rule) -> None:
        name = errno.errorcode[rule.error]
        super().__init__(f"{path or '/'}: cpuset.{resource} = '{text.strip()}': {name}: {rule.sentence}")
        self.path = path
        self.resource = resource
        self.text = text
        self.rule = rule
        self.errno = rule.error


@dataclass(slots=True, eq=False)
class Cgroup:
    """One directory: own sets (0 = never set), effective sets, and whether processes are directly in it."""

    path: str
    parent: "Cgroup | None" = None
    own: dict[CpusetFile, int] = field(default_factory=lambda: dict.fromkeys(CpusetFile, 0))
    effective: dict[CpusetFile, int] = field(default_factory=lambda: dict.fromkeys(CpusetFile, 0))
    children: dict[str, "Cgroup"] = field(default_factory=dict)
    has_processes: bool = False

    def walk(self) -> Iterator["Cgroup"]:
        """This cgroup and all below it, parents before children."""
        yield self
        for name in sorted(self.children):
            yield from self.children[name].walk()

    @property
    def is_populated(self) -> bool:
        """A process lives here or below."""
        return any(group.has_processes for group in self.walk())


def parent_of(path: str) -> str:
    """The path of the parent; the root is the empty path."""
    return path.rpartition("/")[0]


class CgroupTree:
    """The hierarchy of one machine.

    Paths are relative to the hierarchy's root, without a leading slash.
    """

    def __init__(
        self,
        *,
        online: CPUSet,
        memory_nodes: NodeMask,
        possible: CPUSet | None = None,
        version: int = V2,
    ) -> None:
        if version not in BOTH:
            raise ValueError(f"cgroup version {version} does not exist, 1 and 2 do")
        self.version = version
        self._machine = {CpusetFile.CPUS: online.mask, CpusetFile.MEMS: memory_nodes.mask}
        self._ids = {
            CpusetFile.CPUS: ((possible or online) | online).mask.bit_length(),
            CpusetFile.MEMS: MAX_NODES,
        }
        self._root = Cgroup(ROOT)
        self._groups = {ROOT: self._root}
        self._refresh(self._root)

    @classmethod
    def of(cls, topology: Topology, *, version: int = V2) -> "CgroupTree":
        """The empty hierarchy of that machine."""
        return cls(
            online=topology.online,
            possible=topology.online | topology.offline,
            memory_nodes=topology.nodes_with_memory,
            version=version,
        )

    def __contains__(self, path: str) -> bool:
        return path in self._groups

    def __iter__(self) -> Iterator[str]:
        """All paths, parents before children."""
        return (group.path for group in self._root.walk())

    def own_cpus(self, path: str) -> CPUSet:
        """The content of `cpuset.cpus`; empty before the first write."""
        return CPUSet(self._group(path).own[CpusetFile.CPUS])

    def own_mems(self, path: str) -> NodeMask:
        """The content of `cpuset.mems`; empty before the first write."""
        return NodeMask(self._group(path).own[CpusetFile.MEMS])

    def effective_cpus(self, path: str) -> CPUSet:
        """The CPUs its processes run on."""
        return CPUSet(self._group(path).effective[CpusetFile.CPUS])

    def effective_mems(self, path: str) -> NodeMask:
        """The NUMA nodes its processes get memory from."""
        return NodeMask(self._group(path).effective[CpusetFile.MEMS])

    def text(self, path: str, resource: CpusetFile, *, effective: bool = False) -> str:
        """The content of the file, without the line end."""
        group = self._group(path)
        sets = group.effective if effective or group.parent is None else group.own
        return bits.format_list(sets[resource])

    def add(self, path: str) -> None:
        """Make the directory and those above it; one that exists stays as it is."""
        if not path or path in self._groups:
            return
        self.add(parent_of(path))
        parent = self._group(parent_of(path))
        group = Cgroup(path, parent)
        self._groups[path] = parent.children[path] = group
        self._refresh(group)

    def remove(self, path: str) -> None:
        """Remove the directory.

        Raises:
            OSError: EBUSY, as rmdir does, while it has children or processes.
        """
        group = self._group(path)
        if group.parent is None or group.has_processes or group.children:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        del group.parent.children[path]
        del self._groups[path]

    def attach(self, path: str) -> None:
        """A process moves in.

        Raises:
            OSError: ENOSPC on v1 while the cgroup has no CPUs or no memory nodes.
        """
        group = self._group(path)
        if not all(group.effective.values()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        group.has_processes = True

    def detach(self, path: str) -> None:
        """The last process leaves."""
        self._group(path).has_processes = False

    def write(self, path: str, resource: CpusetFile, text: str) -> None:
        """Write `cpuset.cpus` or `cpuset.mems`.

        Raises:
            CgroupWriteError: the kernel would not take it; nothing changed.
        """
        group = self._group(path)
        wanted = _parse(text)
        rule = verdict(self.version, self._write_of(group, resource, wanted))
        if rule is not None:
            raise CgroupWriteError(path, resource, text, rule)
        group.own[resource] = wanted or 0
        self._refresh(group)

    def set_online(self, online: CPUSet) -> None:
        """Change the online CPUs.

        On v1 an offline CPU also leaves every own set, and does not return to it when it comes online.
        """
        self._machine[CpusetFile.CPUS] = online.mask
        if self.version == V1:
            for group in self._groups.values():
                group.own[CpusetFile.CPUS] &= online.mask
        self._refresh(self._root)

    def _group(self, path: str) -> Cgroup:
        try:
            return self._groups[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def _write_of(self, group: Cgroup, resource: CpusetFile, wanted: int | None) -> Write:
        machine = self._machine[resource]
        above = group.parent
        children = 0
        for child in group.children.values():
            children |= child.own[resource]
        return Write(
            is_root=above is None,
            wanted=wanted,
            current=group.own[resource],
            top=machine,
            parent=machine if above is None or above.parent is None else above.own[resource],
            children=children,
            ids=self._ids[resource],
            is_populated=group.is_populated,
        )

    def _refresh(self, top: Cgroup) -> None:
        """Compute the effective sets from `top` down."""
        for group in top.walk():
            for resource in CpusetFile:
                group.effective[resource] = self._effective(group, resource)

    def _effective(self, group: Cgroup, resource: CpusetFile) -> int:
        if group.parent is None:
            return self._machine[resource]
        above = group.parent.effective[resource]
        within = group.own[resource] & above
        return within if within or self.version == V1 else above


def _parse(text: str) -> int | None:
    try:
        return bits.parse_list(text)
    except ValueError:
        return None
