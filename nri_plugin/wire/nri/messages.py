"""NRI messages as plain frozen values: pods, containers, resources, updates.

The values hold the fields that placement needs; all others are stepped over.

Names follow the protocol's fields. Absent message fields are None, absent
strings are empty, absent lists are empty tuples. A wrapper with value 0 is 0,
not None: presence matters (`nri.pkg.api.v1alpha1`, NRI 0.12.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from msgspec import Struct

from nri_plugin.model.bounds import Cut

EMPTY: Mapping[str, str] = MappingProxyType({})


def _no_texts() -> Mapping[str, str]:
    """Returns the one empty mapping; as a plain default Python 3.11 takes it for a mutable value."""
    return EMPTY


class ContainerState(IntEnum):
    """State as the runtime reports it; runtimes disagree, so releases go by event, not by state."""

    UNKNOWN = 0
    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4


class Resources(Struct, frozen=True):
    """LinuxResources: in an adjustment or update fields that are not set change nothing.

    `cpus` and `mems` are kernel lists, empty = not set. Times are microseconds, sizes bytes.
    """

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpus: str = ""
    mems: str = ""
    memory_limit_bytes: int | None = None
    hugepage_limits: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node given to a container; `type` is b, c, u or p."""

    path: str
    type: str = ""
    major: int = 0
    minor: int = 0


class Pod(Struct, frozen=True):
    """A pod sandbox. `resources` is the sum of the pod's containers as the kubelet sent it.

    Labels are never read, and annotations only of namespaces that are trusted. `cut` names fields that
    exceeded a bound and were left out; see `nri_plugin.model.bounds`.
    """

    id: str
    name: str = ""
    uid: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = EMPTY
    annotations: Mapping[str, str] = EMPTY
    runtime_handler: str = ""
    cgroup_parent: str = ""
    cgroups_path: str = ""
    resources: Resources | None = None
    overhead: Resources | None = None
    pid: int = 0
    cut: tuple[Cut, ...] = ()


class Container(Struct, frozen=True):
    """A container as the runtime describes it at that moment.

    `net_devices` are names on the host of network interfaces that move into the container, ascending.
    Labels and annotations are never read, and of `env` only the variables that list devices, at its creation.
    `cut` is as in `Pod`.
    """

    id: str
    pod_id: str = ""
    name: str = ""
    state: ContainerState = ContainerState.UNKNOWN
    labels: Mapping[str, str] = EMPTY
    annotations: Mapping[str, str] = EMPTY
    env: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    resources: Resources = Resources()
    oom_score_adj: int | None = None
    cgroups_path: str = ""
    pid: int = 0
    net_devices: tuple[str, ...] = ()
    cut: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerUpdate:
    """A change of another container's (or, in UpdateContainer, the own) resources.

    At most one update per container id may be in one reply: the codec makes one of several, and refuses those that
    disagree. Zero and empty leave alone. With `ignore_failure` a conflict or failure skips the update instead of
    failing the request.
    """

    container_id: str
    resources: Resources
    ignore_failure: bool = False
