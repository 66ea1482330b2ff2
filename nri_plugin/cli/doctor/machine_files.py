"""The kernel, the cgroup tree and the topology of a node, read from its files.

A node that is seen in part has parts that are `Hidden`; a text stands for evidence that contradicts itself.
"""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nri_plugin.cli.doctor.view import NOT_COPIED, Hidden, NodeView
from nri_plugin.host.cgroup import CPUS, EXCLUSIVE, MENDED
from nri_plugin.host.mounts import MOUNTINFO, find_cpuset_tree
from nri_plugin.host.sysfs import discover
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology

SYSFS_CPUS = "/sys/devices/system/cpu"
ISOLATING = ("isolcpus", "nohz_full", "rcu_nocbs")
BALANCING = "/proc/sys/kernel/numa_balancing"
SYS_ADMIN = 21
"""Source: Linux, include/uapi/linux/capability.h."""

_FLAG = re.compile(r"^[a-z_]+$")
_IN_FORCE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel.

    Attributes:
        release: such as `6.12.48`.
        options: of its command line that concern CPUs: `isolcpus`, `nohz_full`, `rcu_nocbs`.
        unread: options whose value is no plain CPU list, unparsed; by name.
        numa_balancing: None without such a switch.
    """

    release: str
    options: Mapping[str, CPUSet] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    numa_balancing: bool | Hidden | None = None


def read_kernel(view: NodeView) -> Kernel | Hidden:
    """The kernel of the node; every kernel has a command line and a release, so files without them are no evidence."""
    line = view.kernel_text("/proc/cmdline")
    if line is None:
        return Hidden("/proc/cmdline", why=NOT_COPIED)
    if isinstance(line, Hidden):
        return line
    balancing = view.kernel_text(BALANCING)
    version = view.kernel_text("/proc/sys/kernel/osrelease")
    release = version.strip() if isinstance(version, str) else "" if view.is_copy else platform.release()
    known, unread = boot_options(line)
    if isinstance(balancing, str):
        return Kernel(
            release, known, unread, balancing.strip() not in ("", "0") if balancing.strip() else None
        )
    if balancing is None and not isinstance(version, str):
        balancing = Hidden(BALANCING, why=NOT_COPIED)
    return Kernel(release, known, unread, balancing)


def boot_options(line: str) -> tuple[dict[str, CPUSet], dict[str, str]]:
    """CPUs by option, and values that are no CPU list, by option (`isolcpus=managed_irq,2-5` has flags before it)."""
    known: dict[str, CPUSet] = {}
    unread: dict[str, str] = {}
    for word in line.split():
        name, _, value = word.partition("=")
        if name not in ISOLATING or not value:
            continue
        lists = ",".join(part for part in value.split(",") if not _FLAG.match(part))
        try:
            known[name] = CPUSet.parse(lists)
        except ValueError:
            unread[name] = value
    return known, unread


def is_admin(view: NodeView, pid: int) -> bool | None:
    """Whether a process of the node has the capability SYS_ADMIN; None where that cannot be seen."""
    try:
        found = _IN_FORCE.search(Path(view.proc, str(pid), "status").read_text("utf-8", "replace"))
    except OSError:
        return None
    return bool(int(found[1], 16) >> SYS_ADMIN & 1) if found else None


def free_bytes(path: str) -> int | None:
    """The free bytes of the file system of `path`; None when they cannot be read."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


TREE = "/sys/fs/cgroup"
TOPS = ("kubepods.slice", "kubepods")
"""As the systemd and the cgroupfs driver name it."""

LEVELS = 3
"""Below the top: the QoS slices, the pods, their containers; Guaranteed pods are directly below the top."""


@dataclass(frozen=True, slots=True)
class CgroupDir:
    """One cgroup.

    Attributes:
        path: below the root of the tree, empty for the root.
        cpus: what it was given; None without cpuset files, empty when it was never given any.
        effective: what its processes run on.
        passes_on: whether those below have cpuset files (cgroup v2; always so on v1).
        partition: `cpuset.cpus.partition`, empty without.
    """

    path: str
    cpus: CPUSet | None
    effective: CPUSet | None
    passes_on: bool
    partition: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """The tree.

    Attributes:
        version: 1 or 2.
        directory: as seen from here.
        top: `kubepods.slice` or `kubepods`, empty when the node has run no pod yet.
        groups: the root, the top, QoS slices and pods, outermost first.
        options: of the mount, such as `nsdelegate`; None where the mount is not seen.
        nests_partitions: whether groups below the root can be partitions; None where no group has cpuset files yet.
        is_spoilt: whether CPUs of a partition had to be mended, after which the agent makes none until the next boot.
    """

    version: int
    directory: str
    top: str = ""
    groups: tuple[CgroupDir, ...] = ()
    options: tuple[str, ...] | None = None
    nests_partitions: bool | None = None
    is_spoilt: bool = False


def read_tree(view: NodeView, path: str = "") -> Tree | Hidden | str:
    """The tree that carries cpusets; a text says why there is none."""
    place = path or view.find(TREE)
    if isinstance(place, Hidden):
        return place
    if view.in_pod and not path and view.root == "/":
        return view.hidden(TREE)
    try:
        found = find_cpuset_tree(place)
    except HostError as error:
        return view.hidden(TREE) if not os.path.isdir(place) and not view.is_here else error.detail
    top = next((name for name in TOPS if os.path.isdir(os.path.join(found.directory, name))), "")
    paths = ["", *_below(found.directory, top)] if top else [""]
    groups = tuple(_group(found.directory, name, found.version) for name in paths)
    return Tree(
        found.version,
        found.directory,
        top,
        groups,
        _options(found.directory),
        _nests_partitions(os.path.join(found.directory, top)) if top else None,
        os.path.isdir(os.path.join(found.directory, MENDED)),
    )


def _nests_partitions(place: str) -> bool | None:
    """By the file that such a group takes its CPUs from; distributions bring it to older kernels, too."""
    if not os.path.exists(os.path.join(place, CPUS)):
        return None
    return os.path.exists(os.path.join(place, EXCLUSIVE))


def _below(directory: str, top: str, levels: int = LEVELS) -> Iterator[str]:
    """`top` and the groups below it, each before its own."""
    yield top
    if not levels:
        return
    try:
        names = sorted(entry.name for entry in os.scandir(os.path.join(directory, top)) if entry.is_dir())
    except OSError:
        return
    for name in names:
        yield from _below(directory, os.path.join(top, name), levels - 1)


def _group(directory: str, path: str, version: int) -> CgroupDir:
    place = os.path.join(directory, path)
    effective = "cpuset.cpus.effective" if version == 2 else "cpuset.effective_cpus"
    controllers = (_text(place, "cgroup.subtree_control") or "").split()
    return CgroupDir(
        path,
        _cpus(_text(place, "cpuset.cpus")),
        _cpus(_text(place, effective)),
        version == 1 or "cpuset" in controllers,
        _text(place, "cpuset.cpus.partition") or "",
    )


def _options(directory: str) -> tuple[str, ...] | None:
    """Of the innermost mount that is the tree itself; those of a bind mount are the file system's."""
    try:
        lines = Path(MOUNTINFO).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        before, _, after = line.partition(" - ")
        fields, source = before.split(" "), after.split(" ")
        if len(fields) > 5 and fields[4] == directory and len(source) >= 3 and source[0] == "cgroup2":
            return tuple(source[2].split(","))
    return None


def _text(place: str, name: str) -> str | None:
    try:
        return Path(place, name).read_text("ascii", "replace").strip()
    except OSError:
        return None


def _cpus(text: str | None) -> CPUSet | None:
    try:
        return None if text is None else CPUSet.parse(text)
    except ValueError:
        return None


def read_topology(view: NodeView) -> Topology | Hidden | str:
    """The machine; a text when its files make no sense."""
    place = view.find(SYSFS_CPUS)
    root = "/" if isinstance(place, Hidden) and view.in_pod else view.root
    if isinstance(place, Hidden) and root != "/":
        return place
    if not os.path.isdir(os.path.join(root, SYSFS_CPUS[1:])):
        return view.hidden("/sys")
    try:
        return discover(root)
    except HostError as error:
        return str(error)
