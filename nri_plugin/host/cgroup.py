"""Cgroups of containers: where they lie, and the CPUs and memory nodes that they hold. This module only reads.

* `host_error` explains the kernel's refusal of a cpuset to an operator.
* `cgroup_path` turns a name of the runtime into a directory below the root of the tree.
* `Cgroups` reads the CPUs and memory nodes of a cgroup, given and effective, and whether it was removed.
* `read_reach` finds the CPUs that the kernel can give to pods.
* `container_cgroups` finds every container below the kubelet's cgroups, known or not; `is_told` tells which are known.

`nri_plugin.host.cgroup_write` writes.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any, Self, TypeVar

from cgroupspy.controllers import Controller
from cgroupspy.interfaces import BaseFileInterface

from nri_plugin.host.mounts import CpusetTree, find_cpuset_tree
from nri_plugin.host.sysfs import discover
from nri_plugin.host.sysfs_files import read_value
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import NO_CPUS, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.topology import Topology

SetT = TypeVar("SetT", CPUSet, NodeMask)
_LISTS: Mapping[type, str] = {CPUSet: "CPU list", NodeMask: "list of memory nodes"}

CPUS, EXCLUSIVE = "cpuset.cpus", "cpuset.cpus.exclusive"
MENDED = "nri-pin-mended"
"""An empty cgroup beside those of pods that marks mended CPUs until the next boot; see `Partitions.mend`."""

CRUN_SUBGROUP = "container"
"""crun with the systemd driver keeps the processes one level below the scope, where they have another cpuset."""

MOST_FOLDERS = 256
"""Cgroups of one container that are looked into for processes; a container with more counts as one that has some."""

MOST_REMEMBERED = 8192
"""Containers known to have no such subgroup. A look-up takes as long as a write, and names are not used again."""


GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
"""The cgroup does not exist. ENODEV: it was removed after its file was opened."""

_EITHER = {
    errno.ERANGE: "an id in {text} is beyond the CPUs this kernel can ever have",
    errno.EINVAL: "none of {text} is a CPU that may be used here: they are offline or the list is malformed",
    errno.ENOSPC: "{text} would leave its processes without a CPU or a memory node",
    errno.EROFS: "the cgroup tree is mounted read-only; mount the host's tree read-write",
    errno.EPERM: "{text} was refused to this user; run as root and outside a user namespace",
    errno.EACCES: "{text} was refused to this user; run as root",
    errno.EBUSY: "{text} conflicts with an exclusive cpuset or partition beside or below it",
}
_V1 = {
    errno.EACCES: "{text} is not within its parent's CPUs {parent}; widen the parent first (or run as root)",
    errno.EBUSY: "{text} would take CPUs away from a cgroup below it; shrink that one first",
    errno.EINVAL: "{text} holds a CPU that is offline or that its parent's {parent} does not have",
}


def host_error(path: str, error: OSError, text: str, version: int) -> HostError:
    """The error for a refused write of `text` to the `cpuset.cpus` at `path`.

    Source: kernel kernel/cgroup/cpuset.c and cpuset-v1.c, validate_change() and cpuset_write_resmask().
    """
    table = _EITHER | _V1 if version == 1 else _EITHER
    meaning = table.get(error.errno or 0, "{text} was not taken")
    reason = meaning.format(text=text, parent=_parent_value(path) if version == 1 else "")
    return HostError(path, f"{reason} ({error.strerror})")


def _parent_value(path: str) -> str:
    above = os.path.join(os.path.dirname(os.path.dirname(path)), os.path.basename(path))
    try:
        return read_value(above) or "(none)"
    except OSError:
        return "(unreadable)"


# Names. They come from the wire, so pods' authors control parts of them. The result always lies below the root: no part is
# `.`, `..` or contains a NUL, and there is at least one part, so no name stands for the root itself.

SLICE = ".slice"
DEFAULT_SLICE = "system.slice"
"""Where OCI runtimes put a scope that names no slice."""


@lru_cache(maxsize=8192)
def cgroup_path(ref: CgroupRef) -> str:
    """The cgroup's directory, relative to the root of the tree.

    Forms of `ref.path`, in the order they are told apart:
        empty: the parent itself;
        `slice:prefix:id`: systemd driver, `prefix-id.scope` in the expanded slice;
        anything else: cgroupfs driver, the path as it is.

    Raises:
        HostError: the name leaves the tree, is the root, or is no slice systemd could have made.

    Source: opencontainers runtime-spec config-linux.md "cgroupsPath"; runc docs/systemd.md.
    """
    name = ref.path or ref.parent
    parts = _scope_parts(ref.path) if ref.path else _parent_parts(ref.parent)
    if not parts:
        raise HostError(name or "''", "names the root of the cgroup tree, which is never ours to change")
    for part in parts:
        if part in {".", ".."} or "\0" in part:
            raise HostError(repr(name), f"a cgroup path may not hold the part {part!r}")
    return "/".join(parts)


def _scope_parts(path: str) -> list[str]:
    fields = path.split(":")
    # Not the form of the systemd driver: a path of the cgroupfs driver may contain colons.
    if len(fields) != 3 or "/" in fields[1] or "/" in fields[2]:
        return _plain_parts(path)
    parent, prefix, name = fields
    if not name:
        raise HostError(repr(path), "names a systemd unit without a name")
    # runc uses a name that ends in `.slice` unchanged, and makes a scope of any other.
    unit = name if name.endswith(SLICE) else f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    return [*_parent_parts(parent or DEFAULT_SLICE), unit]


def _parent_parts(parent: str) -> list[str]:
    """The parts of a pod's cgroup parent, which is a full path or only its last part.

    The name of a slice contains all its ancestors, so slices before the last are redundant. Parts before the slices (of a
    node that is itself a container) are kept.
    """
    parts = _plain_parts(parent)
    if not parts or not parts[-1].endswith(SLICE):
        return parts
    expanded = expand_slice(parts[-1])
    while parts and parts[-1].endswith(SLICE):
        parts.pop()
    return parts + expanded


def expand_slice(name: str) -> list[str]:
    """`a-b.slice` is `a.slice`, `a-b.slice`: the directories from the outermost slice to this one.

    Raises:
        HostError: a dash at an end or beside another dash, which systemd refuses too.

    Source: systemd.slice(5).
    """
    stem = name.removesuffix(SLICE)
    if stem == "-":  # systemd's root slice
        return []
    words = stem.split("-")
    if not all(words):
        raise HostError(repr(name), "is no systemd slice name: every dash has to separate two names")
    return ["-".join(words[: count + 1]) + SLICE for count in range(len(words))]


def _plain_parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


class WriteOutcome(StrEnum):
    """The result of a write that did not fail."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The cgroup held an equal value; nothing was written."""
    LATER = "later"
    """The container has many cgroups of its own inside (cgroup v1). Some were written, and a further call goes on."""
    MISSING = "missing"
    """There is no such cgroup, or it has no cpuset files; `Cgroups.missing_error` tells which."""


class _Directory:
    """All that a cgroupspy controller asks of the node it belongs to."""

    __slots__ = ("full_path",)

    def __init__(self, full_path: bytes) -> None:
        self.full_path = full_path


class CpusetFiles(Controller):
    """The cpuset files both cgroup versions share, for reading; opening never follows a link."""

    cpus = BaseFileInterface("cpuset.cpus", readonly=True)
    mems = BaseFileInterface("cpuset.mems", readonly=True)

    def __init__(self, directory: str) -> None:
        super().__init__(_Directory(os.fsencode(directory)))

    def get_property(self, filename: bytes) -> str:
        """The file's text without surrounding white space."""
        return read_value(os.fsdecode(self.filepath(filename)))


class CpusetFilesV1(CpusetFiles):
    """Names of cgroup v1."""

    effective_cpus = BaseFileInterface("cpuset.effective_cpus", readonly=True)
    effective_mems = BaseFileInterface("cpuset.effective_mems", readonly=True)


class CpusetFilesV2(CpusetFiles):
    """Names of cgroup v2."""

    exclusive = BaseFileInterface(EXCLUSIVE, readonly=True)
    effective_cpus = BaseFileInterface("cpuset.cpus.effective", readonly=True)
    effective_mems = BaseFileInterface("cpuset.mems.effective", readonly=True)


class Cgroups:
    """The cpuset cgroups of a node, addressed the way the runtime names them; this class only reads."""

    def __init__(self, tree: CpusetTree) -> None:
        self.tree = tree
        self._files: type[CpusetFiles] = CpusetFilesV1 if tree.version == 1 else CpusetFilesV2
        self._undivided: set[str] = set()

    @classmethod
    def open(cls, root: str) -> Self:
        """The tree at `root`: `/sys/fs/cgroup`, where else the host's is mounted, or a stand-in.

        Raises:
            HostError: no cpuset hierarchy there.
        """
        return cls(find_cpuset_tree(root))

    @property
    def version(self) -> int:
        """1 or 2: the version of the hierarchy that carries cpusets."""
        return self.tree.version

    def directory(self, ref: CgroupRef) -> str:
        """The cgroup's directory, whether or not it exists.

        Raises:
            HostError: the name leaves the tree or is the root.
        """
        return os.path.join(self.tree.directory, cgroup_path(ref))

    def read_cpus(self, ref: CgroupRef) -> CPUSet | None:
        """The CPUs that the cgroup was given, empty if none ever were; None if it does not exist.

        Raises:
            HostError: the file cannot be read or holds no CPU list.
        """
        return self._set(CPUSet, self.directory(ref), "cpus")

    def read_effective(self, ref: CgroupRef) -> CPUSet | None:
        """The CPUs that its processes run on; None if the cgroup does not exist.

        Raises:
            HostError: the file cannot be read or holds no CPU list.
        """
        return self._set(CPUSet, self.directories(ref)[-1], "effective_cpus")

    def read_nearest(self, path: str) -> CPUSet:
        """The effective CPUs of a directory of the tree, or of the nearest above it that has any; empty if none has.

        Raises:
            HostError: a file cannot be read or holds no CPU list.
        """
        while not (found := self.read_part(path, "effective_cpus")) and path:
            path = os.path.dirname(path)
        return found

    def read_part(self, path: str, field: str) -> CPUSet:
        """One file of a directory of the tree; empty where there is none.

        Raises:
            HostError: the file cannot be read or holds no CPU list.
        """
        return self._set(CPUSet, os.path.join(self.tree.directory, path), field) or NO_CPUS

    def observe(self, ref: CgroupRef) -> tuple[CPUSet | None, CPUSet | None] | None:
        """Return the given and the effective CPUs, each None without cpuset files; None if the cgroup does not exist.

        A stand-in does not update effective sets, so there the given CPUs count for both.

        Raises:
            HostError: a file cannot be read or holds no CPU list.
        """
        own = self.read_cpus(ref)
        effective = self.read_effective(ref) if self.tree.is_kernel else own
        if own is None and not os.path.isdir(self.directory(ref)):
            return None
        return own, effective

    def read_mems(self, ref: CgroupRef) -> NodeMask | None:
        """The memory nodes that the cgroup was given, empty if none ever were; None if it does not exist.

        Raises:
            HostError: the file cannot be read or holds no list.
        """
        return self._set(NodeMask, self.directory(ref), "mems")

    def read_effective_mems(self, ref: CgroupRef) -> NodeMask | None:
        """The memory nodes that its processes allocate from; None if the cgroup does not exist.

        Raises:
            HostError: the file cannot be read or holds no list.
        """
        return self._set(NodeMask, self.directories(ref)[-1], "effective_mems")

    def is_removed(self, ref: CgroupRef) -> bool:
        """Whether the cgroup was removed. Its parent has to exist: else the name may be wrong, or the tree not mounted."""
        try:
            directory = self.directory(ref)
        except HostError:
            return False
        return not os.path.lexists(directory) and os.path.isdir(os.path.dirname(directory))

    def missing_error(self, ref: CgroupRef) -> HostError:
        """The reason for a write with the outcome MISSING."""
        directory = self.directory(ref)
        if not os.path.isdir(directory):
            return HostError(directory, "no such cgroup; the container is gone or was never started")
        return HostError(directory, "has no cpuset files: cpuset is missing from a parent's subtree_control")

    def directories(self, ref: CgroupRef) -> list[str]:
        """The cgroup's directory and, if its processes have another cpuset in a subgroup, that directory too.

        Raises:
            HostError: the name leaves the tree or is the root.
        """
        directory = self.directory(ref)
        if self.version == 1 or not directory.endswith(".scope") or directory in self._undivided:
            return [directory]
        below = os.path.join(directory, CRUN_SUBGROUP)
        # A subgroup without a value has the CPUs of the scope, which suffices.
        if self._read(below, "cpus"):
            return [directory, below]
        if os.path.isdir(directory) and not os.path.isdir(below):
            self._remember_undivided(directory)
        return [directory]

    def _remember_undivided(self, directory: str) -> None:
        """Remember that the cgroup has no subgroup: a runtime makes one together with the cgroup, or never."""
        if len(self._undivided) >= MOST_REMEMBERED:
            self._undivided.clear()
        self._undivided.add(directory)

    def _read(self, directory: str, field: str) -> str | None:
        try:
            text: str = getattr(self._open(directory), field)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise HostError(directory, f"cpuset {field} cannot be read: {error.strerror}") from error
        return text

    def _set(self, kind: type[SetT], directory: str, field: str) -> SetT | None:
        text = self._read(directory, field)
        if text is None:
            return None
        try:
            return kind.parse(text)
        except ValueError as error:
            raise HostError(directory, f"holds no {_LISTS[kind]}: {error}") from error

    def _open(self, directory: str) -> Any:
        return self._files(directory)


@dataclass(frozen=True, slots=True)
class Reach:
    """The CPUs that the kernel can give to pods.

    Attributes:
        cpus: online CPUs of the cgroup above all pods; empty where no file tells.
        above: on cgroup v1, those of the cgroup above kubepods.
    """

    cpus: CPUSet = NO_CPUS
    above: CPUSet = NO_CPUS


def read_reach(
    tree: CpusetTree, slices: Iterable[CgroupRef] = (), own: CPUSet = NO_CPUS, former: Reach | None = None
) -> Reach:
    """The CPUs that kubepods has, or the nearest cgroup above it that exists.

    What the agent itself takes away counts as reachable: its partitions take their CPUs out of the effective sets above them,
    and `cpuset.cpus.exclusive` of kubepods has these CPUs. The slices below kubepods, which hold the pool, are not read.

    On v1, the kernel takes a CPU that goes offline from kubepods and does not give it back. Nobody else does, so a CPU
    that returned to the cgroup above kubepods counts as reachable, and the agent widens kubepods.

    Args:
        tree: the tree.
        slices: the QoS slices of known pods; kubepods is above them. Without any, it is looked for.
        own: exclusive CPUs of containers. On v1 nobody can take them from kubepods while their containers have them.
        former: what was found the last time.

    Raises:
        HostError: a file holds no CPU list.

    Source: kernel Documentation/admin-guide/cgroup-v2.rst, cpuset.cpus.exclusive; kernel/cgroup/cpuset-v1.c,
        hotplug_update_tasks_legacy.
    """
    cgroups, cpus, above = Cgroups(tree), None, NO_CPUS
    tops = {os.path.dirname(cgroup_path(ref)) for ref in slices} or set(_tops(tree.directory)) or {""}
    for top in tops:
        if tree.version == 1:
            above = cgroups.read_nearest(os.path.dirname(top))
            returned = above - former.above if former else NO_CPUS
            had = cgroups.read_part(top, "cpus") if top else NO_CPUS
            found = above & (had | own | returned) if had else above
        else:
            found = cgroups.read_nearest(top) | cgroups.read_part(top, "exclusive")
        cpus = found if cpus is None else cpus & found
    return Reach(cpus or NO_CPUS, above)


def discover_reachable(root: str, cgroup_root: str = "") -> Topology:
    """The machine below `root` with the CPUs that pods can reach, for commands that no agent answers.

    A command in a container may see its own cgroup in place of the node's, so only kubepods is believed.

    Raises:
        HostError: a file cannot be read or does not have its format.
    """
    try:
        tree = find_cpuset_tree(cgroup_root or os.path.join(root, "sys/fs/cgroup"))
    except HostError:
        return discover(root)
    return discover(root).within(read_reach(tree).cpus if any(_tops(tree.directory)) else NO_CPUS)


# All container cgroups of a node, also of containers that the runtime did not report. The kubelet's tree is `kubepods`
# (cgroupfs driver) or `kubepods.slice` (systemd driver), at the root or one level below (`--cgroup-root`). Below it lie
# QoS classes and pods, and in a pod's directory its containers and its sandbox.
#
# Source: kubelet cm/pod_container_manager_linux.go, GetPodContainerName; runc docs/systemd.md.


TOP = re.compile(r"(.+-)?kubepods\.slice|kubepods")
QOS = ("burstable", "besteffort")
POD = re.compile(r"pod(?P<plain>.+)|.+-pod(?P<in_slice>[^-]+)\.slice")
PREFIXES = ("cri-containerd-", "crio-", "docker-")
MONITOR = "crio-conmon-"
"""CRI-O's monitor of a container lies beside it; it is no container."""
PROCESSES, EVENTS = "cgroup.procs", "cgroup.events"
MOST_PROCESSES, MOST_PIDS = 1 << 16, 1 << 13
"""Bytes of one list of processes, and processes of a container, that are read."""

HOST_PIDS = 0xEFFFFFFC
"""The inode of the first PID namespace. Source: kernel include/linux/proc_ns.h, PROC_PID_INIT_INO."""


@dataclass(frozen=True, slots=True)
class ContainerCgroup:
    """The cgroup of a container or sandbox.

    Attributes:
        path: below the root of the tree, without a leading slash.
        pod_uid: of the pod that it lies in.
        container_id: by its name; a sandbox's is the pod sandbox id.
    """

    path: str
    pod_uid: str
    container_id: str


def container_cgroups(cgroups: Cgroups) -> Iterator[ContainerCgroup]:
    """All of them, pod by pod."""
    for top in _tops(cgroups.tree.directory):
        for folder in _folders(cgroups.tree.directory, top):
            yield from containers_in(cgroups, folder)


def kubelet_folders(cgroups: Cgroups, state: State) -> Iterator[str]:
    """The cgroups above containers: the kubelet's top, QoS classes and pods, as paths below the root of the tree.

    Only of the kubelet whose pods the runtime reports: another one on this machine has an agent of its own, or none.
    """
    tops = {_top_above(pod.cgroup_parent) for pod in state.pods.values()}
    for top in sorted(filter(None, tops)):
        yield top
        yield from _folders(cgroups.tree.directory, top)


def _top_above(parent: str) -> str:
    """The kubelet's top above the cgroup of a pod; empty where there is none."""
    with suppress(HostError):
        parts = cgroup_path(CgroupRef(parent)).split("/")
        for count, name in enumerate(parts[:-1], 1):
            if TOP.fullmatch(name):
                return "/".join(parts[:count])
    return ""


def containers_in(cgroups: Cgroups, folder: str) -> Iterator[ContainerCgroup]:
    """The containers and sandboxes of the pod with this cgroup; none in the cgroup of a QoS class."""
    names = _names(cgroups.tree.directory, folder) if POD.fullmatch(os.path.basename(folder)) else ()
    found = (container_at(os.path.join(folder, name)) for name in names)
    return (one for one in found if one is not None)


def container_at(path: str) -> ContainerCgroup | None:
    """The container or sandbox with this cgroup; None for another cgroup."""
    folder, name = os.path.split(path)
    pod = POD.fullmatch(os.path.basename(folder))
    if pod is None or name.startswith(MONITOR):
        return None
    # In a slice's name a dash separates parents, so the kubelet writes the dashes of a uid as underscores.
    uid = pod["plain"] or pod["in_slice"].replace("_", "-")
    return ContainerCgroup(path, uid, _container_id(name))


def is_told(state: State, one: ContainerCgroup) -> bool:
    """Whether the runtime has reported the container or sandbox."""
    if one.container_id in state.containers or state.pod_of_sandbox(one.container_id):
        return True
    refs = [record.cgroup for record in state.containers_of(one.pod_uid)]
    if pod := state.pods.get(one.pod_uid):
        refs.append(CgroupRef(pod.cgroup_parent, pod.sandbox_path))
    return any(_is_at(ref, one.path) for ref in refs if ref.path)


def _is_at(ref: CgroupRef, path: str) -> bool:
    with suppress(HostError):
        return cgroup_path(ref) == path
    return False


def runs_on(cgroups: Cgroups, path: str) -> CPUSet | None:
    """The CPUs that processes in this cgroup may run on; None if no file tells.

    A cgroup without cpuset files or without a value has the CPUs of the one above.

    Raises:
        HostError: a file cannot be read or holds no CPU list.
    """
    while path:
        ref = CgroupRef(os.path.dirname(path), path)
        own = None if cgroups.tree.is_kernel else cgroups.read_cpus(ref)
        found = own or cgroups.read_effective(ref)
        if found:
            return found
        path = os.path.dirname(path)
    return None


def is_empty(cgroups: Cgroups, path: str) -> bool:
    """Whether no process is in this cgroup or below it. A container that was not removed cleanly leaves such a cgroup."""
    if cgroups.tree.is_kernel:
        with suppress(OSError):
            return "populated 0" in read_value(os.path.join(cgroups.tree.directory, path, EVENTS))
        # On v1 the processes of another PID namespace are not listed.
        if os.stat("/proc/self/ns/pid").st_ino != HOST_PIDS:
            return False
    # `cgroup.procs` has no processes of the cgroups below, so all of them are read, up to a bound: the container decides how
    # many there are, and how deep.
    told, coming = False, [path]
    for _ in range(MOST_FOLDERS):
        if not coming:
            break
        folder = coming.pop()
        with (
            suppress(OSError),
            open(os.path.join(cgroups.tree.directory, folder, PROCESSES), "rb") as file,
        ):
            told = True
            if file.read(1):
                return False
        coming += [os.path.join(folder, name) for name in _names(cgroups.tree.directory, folder)]
    return told and not coming


def processes(cgroups: Cgroups, ref: CgroupRef) -> list[int]:
    """The processes in the container's cgroup and below it, the first of many; those that have no number here are left out.

    Raises:
        HostError: the name leaves the tree.
    """
    found: list[int] = []
    for folder, _, _ in islice(os.walk(cgroups.directory(ref)), MOST_FOLDERS):
        with suppress(OSError), open(os.path.join(folder, PROCESSES), "rb") as file:
            found += [int(word) for word in file.read(MOST_PROCESSES).split() if word.isdigit()]
        if len(found) > MOST_PIDS:
            break
    return [pid for pid in found if pid]


def _tops(directory: str) -> Iterator[str]:
    for name in _names(directory, ""):
        if TOP.fullmatch(name):
            yield name
            continue
        for below in _names(directory, name):
            if TOP.fullmatch(below):
                yield os.path.join(name, below)


def is_kubelet_folder(path: str) -> bool:
    """Whether the cgroup, which lies directly below another such one, is of a QoS class or of a pod."""
    name = os.path.basename(path)
    return name in QOS or name.endswith(".slice") or POD.fullmatch(name) is not None


def _folders(directory: str, above: str) -> Iterator[str]:
    """QoS classes and pods."""
    for name in _names(directory, above):
        path = os.path.join(above, name)
        if is_kubelet_folder(path):
            yield path
            if not POD.fullmatch(name):
                yield from _folders(directory, path)


def _names(directory: str, path: str) -> list[str]:
    """Directories in this one; none if it does not exist."""
    try:
        with os.scandir(os.path.join(directory, path)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _container_id(name: str) -> str:
    # With the systemd driver each runtime puts its prefix before the id.
    stem = name.removesuffix(".scope")
    return next((stem.removeprefix(prefix) for prefix in PREFIXES if stem.startswith(prefix)), stem)
