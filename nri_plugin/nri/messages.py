"""NRI messages as plain frozen values: what the rest of the program sees of the wire.

Names follow the protocol's fields. Absent message fields are None, absent
strings are empty, absent lists are empty tuples. A wrapper with value 0 is 0,
not None: presence matters (`nri.pkg.api.v1alpha1`, NRI 0.12.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from types import MappingProxyType

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


class EventMask(IntFlag):
    """Subscription bits of a Configure reply: bit of event E is `1 << (E - 1)`."""

    RUN_POD_SANDBOX = 0x0001
    STOP_POD_SANDBOX = 0x0002
    REMOVE_POD_SANDBOX = 0x0004
    CREATE_CONTAINER = 0x0008
    POST_CREATE_CONTAINER = 0x0010
    START_CONTAINER = 0x0020
    POST_START_CONTAINER = 0x0040
    UPDATE_CONTAINER = 0x0080
    POST_UPDATE_CONTAINER = 0x0100
    STOP_CONTAINER = 0x0200
    REMOVE_CONTAINER = 0x0400
    UPDATE_POD_SANDBOX = 0x0800
    POST_UPDATE_POD_SANDBOX = 0x1000
    VALIDATE_CONTAINER_ADJUSTMENT = 0x2000


@dataclass(frozen=True, slots=True)
class Resources:
    """LinuxResources, as far as placement reads or writes it.

    `cpus` and `mems` are kernel lists, empty = not set. Times are microseconds, sizes bytes.
    """

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpus: str = ""
    mems: str = ""
    memory_limit_bytes: int | None = None
    hugepage_limits: tuple[tuple[str, int], ...] = ()
    unified: Mapping[str, str] = field(default_factory=_no_texts)


@dataclass(frozen=True, slots=True)
class Device:
    """A device node given to a container; `type` is b, c, u or p."""

    path: str
    type: str = ""
    major: int = 0
    minor: int = 0


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox. `resources` is the sum of the pod's containers as the kubelet sent it."""

    id: str
    name: str = ""
    uid: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=_no_texts)
    annotations: Mapping[str, str] = field(default_factory=_no_texts)
    runtime_handler: str = ""
    cgroup_parent: str = ""
    cgroups_path: str = ""
    resources: Resources | None = None
    overhead: Resources | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Container:
    """A container as the runtime describes it at that moment.

    `net_devices` are names on the host of network interfaces that move into the container, ascending.
    """

    id: str
    pod_id: str = ""
    name: str = ""
    state: ContainerState = ContainerState.UNKNOWN
    labels: Mapping[str, str] = field(default_factory=_no_texts)
    annotations: Mapping[str, str] = field(default_factory=_no_texts)
    env: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    resources: Resources = field(default=Resources())
    oom_score_adj: int | None = None
    cgroups_path: str = ""
    pid: int = 0
    net_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerUpdate:
    """A change of another container's (or, in UpdateContainer, the own) resources.

    At most one update per container id may be in one reply; the codec refuses a second.
    """

    container_id: str
    resources: Resources
    ignore_failure: bool = False
