"""CPUs and memory nodes of cgroups, read and written where the kernel keeps them.

Only values change: no cgroup and no file is ever made, none is ever emptied, and a value that is already
right is not written. One `write()` carries a whole value, so nobody sees half of one.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

from cgroupspy.controllers import Controller
from cgroupspy.interfaces import BaseFileInterface

from nri_plugin.host.cgroup_tree import GONE, cgroup_path, host_error
from nri_plugin.host.mounts import CpusetTree, find_cpuset_tree
from nri_plugin.model import bits
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import CgroupRef

# ----------------------------------------------------------------------------------------------------
# Moving a v1 cpuset that has cpusets of its own below it, as a container with a runtime inside has.
#
# On v1 a parent holds at all times what its children hold, so such a cpuset can be neither narrowed nor moved by
# one write. Afterwards every cgroup below is within the new set; one that was wholly outside has all of it.


class CpusFile(Protocol):
    """A cgroup's own CPUs as the text of a kernel list."""

    cpus: str


def write_with_children(open_files: Callable[[str], CpusFile], directory: str, wanted: int) -> None:
    """Set the cpuset at `directory` to the mask `wanted`, its children first.

    In between the set is the union of the old and the new one: every step is one the kernel takes.

    Raises:
        OSError: the kernel refused a step.
        ValueError: a cpuset holds no kernel list.
    """
    files = open_files(directory)
    held = bits.parse_list(files.cpus)
    if held | wanted != held:
        files.cpus = bits.format_list(held | wanted)
    for child in _children(directory):
        _narrow(open_files, child, wanted)
    files.cpus = bits.format_list(wanted)


def _narrow(open_files: Callable[[str], CpusFile], directory: str, limit: int) -> None:
    try:
        held = bits.parse_list(open_files(directory).cpus)
        if held & ~limit:
            write_with_children(open_files, directory, held & limit or limit)
    except OSError as error:
        if error.errno not in GONE:
            raise


def _children(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


# ----------------------------------------------------------------------------------------------------
# Making room above a cgroup whose own value is right and does not count, or whose cpuset files were taken away.
#
# Cgroups above are only ever widened, by what the one below should have, never narrowed: they are not ours. The
# root of the tree is left alone.


def widen_above(
    open_files: Callable[[str], CpusFile], top: str, directory: str, wanted: int, version: int
) -> None:
    """Let every cgroup between `top` and `directory` hold the mask `wanted`, outermost first.

    On v2 one that was never given a set has its parent's and needs none.

    Raises:
        HostError: the kernel refused a value.
    """
    for above in _above(top, directory):
        path = os.path.join(above, "cpuset.cpus")
        text = ""
        try:
            files = open_files(above)
            held = bits.parse_list(files.cpus)
            if not wanted & ~held or (version == 2 and not held):
                continue
            text = bits.format_list(held | wanted)
            files.cpus = text
        except FileNotFoundError:
            return
        except OSError as error:
            raise host_error(path, error, text, version) from error
        except ValueError:
            continue


def return_files(top: str, directory: str) -> None:
    """Pass cpuset on from `top` to `directory` again, outermost first (cgroup v2).

    Raises:
        HostError: the kernel refused.
    """
    for above in (top, *_above(top, directory)):
        path = os.path.join(above, "cgroup.subtree_control")
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                if "cpuset" in file.read(4096).split():
                    continue
            with open(path, "r+", encoding="ascii") as file:
                file.write("+cpuset")
        except FileNotFoundError:
            return
        except OSError as error:
            raise host_error(path, error, "+cpuset", 2) from error


def _above(top: str, directory: str) -> Iterator[str]:
    """Directories strictly between the two, outermost first."""
    parts = os.path.relpath(directory, top).split("/")[:-1]
    for count in range(1, len(parts) + 1):
        yield os.path.join(top, *parts[:count])


# ----------------------------------------------------------------------------------------------------


LONGEST_VALUE = 1 << 16
"""Bytes; 8192 CPUs, every other one set, make a list of 20 kB."""

CRUN_SUBGROUP = "container"
"""crun with the systemd driver keeps the processes, and a cpuset of their own, one level below the scope."""

MOST_REMEMBERED = 8192
"""Containers known to have no such subgroup: looking for it takes as long as a write, and names do not return."""


class WriteOutcome(StrEnum):
    """What became of a write that did not fail."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """The cgroup held an equal value; nothing was written."""
    MISSING = "missing"
    """There is no such cgroup, or it has no cpuset files; `Cgroups.missing_error` tells which."""


class _Directory:
    """All that a cgroupspy controller asks of the node it belongs to."""

    __slots__ = ("full_path",)

    def __init__(self, full_path: bytes) -> None:
        self.full_path = full_path


class _CpusetFiles(Controller):
    """The cpuset files both cgroup versions share; opening never creates and never follows a link.

    Differs: cgroupspy opens for writing with creation and truncation. On a kernel tree truncation
    only wakes watchers a second time; on a tree of ordinary files it is needed.
    """

    cpus = BaseFileInterface("cpuset.cpus")
    mems = BaseFileInterface("cpuset.mems")

    def __init__(self, directory: str, *, truncate: bool) -> None:
        super().__init__(_Directory(os.fsencode(directory)))
        self.write_flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_TRUNC if truncate else 0)

    def get_property(self, filename: bytes) -> str:
        """The file's text without surrounding white space."""
        descriptor = os.open(self.filepath(filename), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return os.read(descriptor, LONGEST_VALUE).decode("ascii", "replace").strip()
        finally:
            os.close(descriptor)

    def set_property(self, filename: bytes, value: str) -> None:
        """Write the whole value at once."""
        descriptor = os.open(self.filepath(filename), self.write_flags)
        try:
            written = os.write(descriptor, value.encode("ascii"))
        finally:
            os.close(descriptor)
        if written != len(value):
            raise OSError(errno.EIO, f"only {written} of {len(value)} bytes were taken")


class _CpusetFilesV1(_CpusetFiles):
    """Names of cgroup v1."""

    effective_cpus = BaseFileInterface("cpuset.effective_cpus", readonly=True)
    effective_mems = BaseFileInterface("cpuset.effective_mems", readonly=True)


class _CpusetFilesV2(_CpusetFiles):
    """Names of cgroup v2."""

    effective_cpus = BaseFileInterface("cpuset.cpus.effective", readonly=True)
    effective_mems = BaseFileInterface("cpuset.mems.effective", readonly=True)


class Cgroups:
    """The cpuset cgroups of a node, addressed the way the runtime names them."""

    def __init__(self, tree: CpusetTree) -> None:
        self.tree = tree
        self._files = _CpusetFilesV1 if tree.version == 1 else _CpusetFilesV2
        self._undivided: set[str] = set()

    @classmethod
    def open(cls, root: str) -> "Cgroups":
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

    def write_cpus(self, ref: CgroupRef, cpus: CPUSet, *, compare: bool = True) -> WriteOutcome:
        """Make `cpuset.cpus` of the cgroup equal `cpus`.

        Args:
            ref: the cgroup.
            cpus: the value.
            compare: read first and leave an equal value alone.

        Raises:
            HostError: the kernel refused the value, or `cpus` is empty: a cpuset that was set can
                never be cleared, and an empty one would mean "all CPUs of the parent".
        """
        if not cpus:
            raise HostError(
                self._file(self.directory(ref), "cpuset.cpus"), "an empty cpuset is never written"
            )
        put = self._put_nested if self.version == 1 and ref.path else self._put
        outcomes = [self._write(directory, cpus, put, compare) for directory in self._directories(ref)]
        return WriteOutcome.WRITTEN if WriteOutcome.WRITTEN in outcomes else outcomes[0]

    def read_cpus(self, ref: CgroupRef) -> CPUSet | None:
        """The CPUs the cgroup was given, empty when it never was; None when it does not exist.

        Raises:
            HostError: the file cannot be read or holds no CPU list.
        """
        text = self._read(self.directory(ref), "cpus")
        return None if text is None else self._parse_cpus(ref, text)

    def read_effective(self, ref: CgroupRef) -> CPUSet | None:
        """The CPUs its processes really run on; None when the cgroup does not exist.

        Raises:
            HostError: the file cannot be read or holds no CPU list.
        """
        text = self._read(self._directories(ref)[-1], "effective_cpus")
        return None if text is None else self._parse_cpus(ref, text)

    def observe(self, ref: CgroupRef) -> tuple[CPUSet | None, CPUSet | None] | None:
        """What it was given and what its processes run on, None each without cpuset files; None when it is gone.

        In a stand-in nothing keeps effective sets in step, so what was given counts for both.

        Raises:
            HostError: a file cannot be read or holds no CPU list.
        """
        own = self.read_cpus(ref)
        effective = self.read_effective(ref) if self.tree.is_kernel else own
        if own is None and not os.path.isdir(self.directory(ref)):
            return None
        return own, effective

    def directories(self, ref: CgroupRef) -> list[str]:
        """The cgroup's directory and, of a container that has its processes below in another, that too.

        Raises:
            HostError: the name leaves the tree or is the root.
        """
        return self._directories(ref)

    def make_room(self, ref: CgroupRef, cpus: CPUSet) -> None:
        """See that nothing above keeps the cgroup from holding `cpus`; what is wide enough stays as it is.

        Raises:
            HostError: the kernel refused a value.
        """
        directory, top = self.directory(ref), self.tree.directory
        if self.version == 2 and self._read(directory, "cpus") is None:
            return_files(top, directory)
        widen_above(self._open, top, directory, cpus.mask, self.version)

    def read_mems(self, ref: CgroupRef) -> NodeMask | None:
        """The memory nodes the cgroup was given, empty when it never was; None when it does not exist.

        Raises:
            HostError: the file cannot be read or holds no list.
        """
        text = self._read(self.directory(ref), "mems")
        return None if text is None else self._parse_mems(ref, text)

    def read_effective_mems(self, ref: CgroupRef) -> NodeMask | None:
        """The memory nodes its processes really allocate from; None when the cgroup does not exist.

        Raises:
            HostError: the file cannot be read or holds no list.
        """
        text = self._read(self._directories(ref)[-1], "effective_mems")
        return None if text is None else self._parse_mems(ref, text)

    def is_removed(self, ref: CgroupRef) -> bool:
        """Whether the cgroup is gone: missing in a parent that is there, so that it is no question of names."""
        try:
            directory = self.directory(ref)
        except HostError:
            return False
        return not os.path.lexists(directory) and os.path.isdir(os.path.dirname(directory))

    def missing_error(self, ref: CgroupRef) -> HostError:
        """Why a write came back MISSING although the cgroup had to be there."""
        directory = self.directory(ref)
        if not os.path.isdir(directory):
            return HostError(directory, "no such cgroup; the container is gone or was never started")
        return HostError(
            directory, "has no cpuset files: somebody took cpuset out of a parent's subtree_control"
        )

    def _directories(self, ref: CgroupRef) -> list[str]:
        """The cgroup and, below it, the one with the processes where that has a cpuset of its own."""
        directory = self.directory(ref)
        if self.version == 1 or not directory.endswith(".scope") or directory in self._undivided:
            return [directory]
        below = os.path.join(directory, CRUN_SUBGROUP)
        if self._read(below, "cpus"):
            return [directory, below]
        if os.path.isdir(directory) and not os.path.isdir(below):
            self._remember_undivided(directory)
        return [directory]

    def _remember_undivided(self, directory: str) -> None:
        """The other way round is never remembered: a runtime divides a cgroup when it makes it, or never."""
        if len(self._undivided) >= MOST_REMEMBERED:
            self._undivided.clear()
        self._undivided.add(directory)

    def _write(
        self, directory: str, cpus: CPUSet, put: Callable[[str, str], None], compare: bool
    ) -> WriteOutcome:
        text = _list_of(cpus.mask)
        try:
            if compare and _mask_of(self._open(directory).cpus) == cpus.mask:
                return WriteOutcome.UNCHANGED
            put(directory, text)
        except OSError as error:
            if error.errno in GONE:
                return WriteOutcome.MISSING
            raise host_error(self._file(directory, "cpuset.cpus"), error, text, self.version) from error
        except ValueError as error:
            raise HostError(directory, f"a cpuset below it holds no CPU list: {error}") from error
        return WriteOutcome.WRITTEN

    def _put(self, directory: str, text: str) -> None:
        try:
            self._open(directory).cpus = text
        except OSError as error:
            if error.errno != errno.EPERM or self.version == 1:
                raise
            self._put_above(directory, text)

    def _put_above(self, directory: str, text: str) -> None:
        """Bound our own container by the cgroup above it, its pod's.

        Where cgroup v2 is mounted with nsdelegate, as systemd does, a process may not write the root of its own
        cgroup namespace, and that is the container the agent itself runs in; everything above it may be written.

        Source: kernel kernel/cgroup/cgroup.c, cgroup_file_write().
        """
        above = self._open(os.path.dirname(directory))
        if _mask_of(above.cpus) != _mask_of(text):
            above.cpus = text

    def _put_nested(self, directory: str, text: str) -> None:
        """On v1, take a container's own cgroups along; those of a pod or a slice are not ours to narrow."""
        try:
            self._put(directory, text)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            write_with_children(self._open, directory, _mask_of(text))

    def _read(self, directory: str, field: str) -> str | None:
        try:
            text: str = getattr(self._open(directory), field)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise HostError(directory, f"cpuset {field} cannot be read: {error.strerror}") from error
        return text

    def _parse_cpus(self, ref: CgroupRef, text: str) -> CPUSet:
        try:
            return CPUSet.parse(text)
        except ValueError as error:
            raise HostError(self.directory(ref), f"holds no CPU list: {error}") from error

    def _parse_mems(self, ref: CgroupRef, text: str) -> NodeMask:
        try:
            return NodeMask.parse(text)
        except ValueError as error:
            raise HostError(self.directory(ref), f"holds no list of memory nodes: {error}") from error

    def _open(self, directory: str) -> Any:
        return self._files(directory, truncate=not self.tree.is_kernel)

    @staticmethod
    def _file(directory: str, name: str) -> str:
        return os.path.join(directory, name)


# A changed pool meets the same two texts in every container: the one before and the one after.
@lru_cache(maxsize=256)
def _list_of(mask: int) -> str:
    return bits.format_list(mask)


@lru_cache(maxsize=256)
def _mask_of(text: str) -> int:
    """The mask of a kernel list, -1 for what is none."""
    try:
        return bits.parse_list(text)
    except ValueError:
        return -1


# ----------------------------------------------------------------------------------------------------
# Every container cgroup of a node, whether or not anybody told of the container.
#
# The kubelet's tree is `kubepods` (cgroupfs driver) or `kubepods.slice` (systemd driver), at the root or one level below
# (`--cgroup-root`). Below it lie QoS classes and pods, and in a pod's directory its containers and its sandbox.
#
# Source: kubelet cm/pod_container_manager_linux.go, GetPodContainerName; runc docs/systemd.md.


TOP = re.compile(r"(.+-)?kubepods\.slice|kubepods")
QOS = ("burstable", "besteffort")
POD = re.compile(r"pod(?P<plain>.+)|.+-pod(?P<in_slice>[^-]+)\.slice")
PREFIXES = ("cri-containerd-", "crio-", "docker-")
MONITOR = "crio-conmon-"
"""CRI-O's monitor of a container lies beside it; it is no container."""
PROCESSES = "cgroup.procs"


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
        for pod, uid in _pods(cgroups.tree.directory, top):
            for name in _names(cgroups.tree.directory, pod):
                if not name.startswith(MONITOR):
                    yield ContainerCgroup(os.path.join(pod, name), uid, _container_id(name))


def runs_on(cgroups: Cgroups, path: str) -> CPUSet | None:
    """The CPUs that processes in this cgroup may run on; None where nothing tells.

    A cgroup without cpuset files, or without a value, has what the next one above has.

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
    """Whether the kernel has no process in this cgroup or below: a container that was not removed cleanly leaves such."""
    told = False
    for folder, _, names in os.walk(os.path.join(cgroups.tree.directory, path)):
        if PROCESSES in names:
            told = True
            with suppress(OSError), open(os.path.join(folder, PROCESSES), "rb") as file:
                if file.read(1):
                    return False
    return told


def _tops(directory: str) -> Iterator[str]:
    for name in _names(directory, ""):
        if TOP.fullmatch(name):
            yield name
            continue
        for below in _names(directory, name):
            if TOP.fullmatch(below):
                yield os.path.join(name, below)


def _pods(directory: str, above: str) -> Iterator[tuple[str, str]]:
    """Directories of pods and the pods' uids."""
    for name in _names(directory, above):
        path = os.path.join(above, name)
        if pod := POD.fullmatch(name):
            yield path, pod["plain"] or pod["in_slice"].replace("_", "-")
        elif name in QOS or name.endswith(".slice"):
            yield from _pods(directory, path)


def _names(directory: str, path: str) -> list[str]:
    """Directories in this one; none where it is gone."""
    try:
        with os.scandir(os.path.join(directory, path)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _container_id(name: str) -> str:
    stem = name.removesuffix(".scope")
    return next((stem.removeprefix(prefix) for prefix in PREFIXES if stem.startswith(prefix)), stem)
