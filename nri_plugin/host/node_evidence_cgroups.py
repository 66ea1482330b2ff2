"""The node's cgroup tree as placements need it: which version, what is passed on, how wide, who keeps CPUs to himself."""

import os
from dataclasses import dataclass
from pathlib import Path

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import HostError
from nri_plugin.host.cgroup_root import find_cpuset_tree
from nri_plugin.host.mounts import MOUNTINFO
from nri_plugin.host.node_evidence import Hidden, NodeView
from nri_plugin.host.partitions import CPUS, EXCLUSIVE, MENDED

TREE = "/sys/fs/cgroup"
TOPS = ("kubepods.slice", "kubepods")
"""As the systemd and the cgroupfs driver name it."""

LEVELS = 3
"""Below the top: the QoS slices, the pods, their containers; Guaranteed pods have no slice of their own above them."""


@dataclass(frozen=True, slots=True)
class Group:
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
    groups: tuple[Group, ...] = ()
    options: tuple[str, ...] | None = None
    nests_partitions: bool | None = None
    is_spoilt: bool = False


def read_tree(view: NodeView, path: str = "") -> Tree | Hidden | str:
    """The tree that carries cpusets; a text says what is wrong with what is there instead."""
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


def _below(directory: str, top: str, levels: int = LEVELS) -> list[str]:
    found = [top]
    if levels:
        try:
            names = sorted(entry.name for entry in os.scandir(os.path.join(directory, top)) if entry.is_dir())
        except OSError:
            names = []
        for name in names:
            found += _below(directory, os.path.join(top, name), levels - 1)
    return found


def _group(directory: str, path: str, version: int) -> Group:
    place = os.path.join(directory, path)
    effective = "cpuset.cpus.effective" if version == 2 else "cpuset.effective_cpus"
    controllers = (_text(place, "cgroup.subtree_control") or "").split()
    return Group(
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
