"""Every container cgroup of a node, whether or not anybody told of the container.

The kubelet's tree is `kubepods` (cgroupfs driver) or `kubepods.slice` (systemd driver), at the root or one level below
(`--cgroup-root`). Below it lie QoS classes and pods, and in a pod's directory its containers and its sandbox.

Source: kubelet cm/pod_container_manager_linux.go, GetPodContainerName; runc docs/systemd.md.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from nri_plugin.cpuset import CPUSet
from nri_plugin.host.cgroup import Cgroups
from nri_plugin.state import CgroupRef

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
