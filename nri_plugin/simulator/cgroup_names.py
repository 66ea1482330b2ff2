"""Where a runtime puts the cgroups of pods and containers, for both cgroup drivers.

The names NRI carries are not paths: with the systemd driver a pod's parent is the last slice and a
container's path is `slice:prefix:id`. The directory is spelled out of them here, on the runtime's side.

Source: runc libcontainer, systemd slice expansion; the kubelet's pod cgroup names.
"""

from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.state import QOSClass


class Driver(StrEnum):
    """Who makes the cgroups."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


@dataclass(frozen=True, slots=True)
class Names:
    """How one cgroup is named on the wire and on disk.

    Attributes:
        wire: what the message holds.
        path: the directory under the hierarchy's root, without a leading slash.
    """

    wire: str
    path: str


_QOS_PARTS = {
    QOSClass.GUARANTEED: (),
    QOSClass.BURSTABLE: ("burstable",),
    QOSClass.BEST_EFFORT: ("besteffort",),
}


def pod_names(driver: Driver, qos: QOSClass, uid: str) -> Names:
    """The pod's cgroup."""
    parts = ("kubepods", *_QOS_PARTS[qos], f"pod{uid}")
    if driver is Driver.CGROUPFS:
        path = "/".join(parts)
        return Names("/" + path, path)
    slice_name = "-".join(part.replace("-", "_") for part in parts) + ".slice"
    return Names(slice_name, expand_slice(slice_name))


def container_names(driver: Driver, pod: Names, prefix: str, container_id: str) -> Names:
    """The container's cgroup; `prefix` is the runtime's, `cri-containerd` or `crio`."""
    if driver is Driver.SYSTEMD:
        return Names(f"{pod.wire}:{prefix}:{container_id}", f"{pod.path}/{prefix}-{container_id}.scope")
    leaf = f"crio-{container_id}" if prefix == "crio" else container_id
    return Names(f"{pod.wire}/{leaf}", f"{pod.path}/{leaf}")


def expand_slice(name: str) -> str:
    """The directory of a systemd slice: `a-b.slice` lies in `a.slice`."""
    parts = name.removesuffix(".slice").split("-")
    return "/".join("-".join(parts[: count + 1]) + ".slice" for count in range(len(parts)))
