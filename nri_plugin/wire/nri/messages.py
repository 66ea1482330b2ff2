"""NRI messages as plain frozen values: pods, containers, resources, updates, owners of fields.

The values hold the fields that placement needs. All other fields of a pod or container are in `details`, which only
sessions with `details=True` read: reading everything takes several times as long and has no bound.

Names follow the protocol's fields. Absent message fields are None, absent
strings are empty, absent lists are empty tuples. A wrapper with value 0 is 0,
not None: presence matters (`nri.pkg.api.v1alpha1`, NRI 0.12.2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from types import MappingProxyType

from nri_plugin.model.bounds import Cut
from nri_plugin.model.frozen import made_quickly
from nri_plugin.wire.nri import spec

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
class DeviceRule:
    """A device cgroup rule; `type` is a, b or c, `access` of the letters rwm, a None number is any."""

    allow: bool = False
    type: str = ""
    major: int | None = None
    minor: int | None = None
    access: str = ""


@made_quickly
@dataclass(frozen=True, slots=True)
class Resources:
    """LinuxResources: in an adjustment or update fields that are not set change nothing.

    `cpus` and `mems` are kernel lists, empty = not set. Times are microseconds, sizes bytes. A container has
    a dozen `device_rules` that placement never reads: events bring them only to sessions that read details.
    """

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    cpus: str = ""
    mems: str = ""
    memory_limit_bytes: int | None = None
    hugepage_limits: tuple[tuple[str, int], ...] = ()
    unified: Mapping[str, str] = field(default_factory=_no_texts)
    memory_reservation_bytes: int | None = None
    memory_swap_bytes: int | None = None
    memory_kernel_bytes: int | None = None
    memory_kernel_tcp_bytes: int | None = None
    memory_swappiness: int | None = None
    memory_disable_oom_killer: bool | None = None
    memory_use_hierarchy: bool | None = None
    cpu_realtime_runtime_us: int | None = None
    cpu_realtime_period_us: int | None = None
    pids_limit: int | None = None
    blockio_class: str | None = None
    rdt_class: str | None = None
    device_rules: tuple[DeviceRule, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node given to a container; `type` is b, c, u or p.

    In an adjustment the path `-PATH` removes. Mode and owner come only to sessions that read details.
    """

    path: str
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class PodDetails:
    """Fields of a pod beyond `Pod`; `resources` are those of the sandbox itself."""

    ips: tuple[str, ...] = ()
    namespaces: tuple[spec.Namespace, ...] = ()
    resources: Resources | None = None


@made_quickly
@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox. `resources` is the sum of the pod's containers as the kubelet sent it.

    Sessions that do not read details leave out labels, and annotations of namespaces that are not trusted. `cut` names fields that
    exceeded a bound and were left out; see `nri_plugin.model.bounds`.
    """

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
    details: PodDetails | None = None
    cut: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerDetails:
    """Fields of a container beyond `Container`; which of them are filled in depends on the runtime's version.

    Attributes:
        created_at: nanoseconds since 1970, 0 = not sent; so are the two after it.
        net_devices: name on the host -> name in the container.
    """

    args: tuple[str, ...] = ()
    mounts: tuple[spec.MountSpec, ...] = ()
    hooks: spec.Hooks = field(default=spec.Hooks())
    rlimits: tuple[spec.Rlimit, ...] = ()
    created_at: int = 0
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    status_reason: str = ""
    status_message: str = ""
    user: spec.User | None = None
    image: spec.Image | None = None
    namespaces: tuple[spec.Namespace, ...] = ()
    io_priority: spec.IOPriority | None = None
    seccomp_profile: spec.SecurityProfile | None = None
    seccomp_policy: spec.Seccomp | None = None
    sysctl: Mapping[str, str] = field(default_factory=_no_texts)
    net_devices: Mapping[str, str] = field(default_factory=_no_texts)
    scheduler: spec.Scheduler | None = None
    rdt: spec.RDT | None = None


@made_quickly
@dataclass(frozen=True, slots=True)
class Container:
    """A container as the runtime describes it at that moment.

    `net_devices` are names on the host of network interfaces that move into the container, ascending.
    `details` is None unless the session reads details. Those that do not leave out labels, annotations, and of `env`
    all but the variables that list devices, which they read at its creation only. `cut` is as in `Pod`.
    """

    id: str
    pod_id: str = ""
    name: str = ""
    state: ContainerState = ContainerState.UNKNOWN
    labels: Mapping[str, str] = field(default_factory=_no_texts)
    annotations: Mapping[str, str] = field(default_factory=_no_texts)
    env: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    resources: Resources = field(default=Resources())
    oom_score_adj: int | None = None
    cgroups_path: str = ""
    pid: int = 0
    net_devices: tuple[str, ...] = ()
    details: ContainerDetails | None = None
    cut: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerUpdate:
    """A change of another container's (or, in UpdateContainer, the own) resources.

    At most one update per container id may be in one reply: the codec makes one of several, and refuses
    those that disagree. Runtimes apply only part of the fields, see `releases.LOST_IN_UPDATES`; zero and
    empty leave alone. With `ignore_failure` a conflict or failure skips the update instead of failing the request.
    """

    container_id: str
    resources: Resources
    ignore_failure: bool = False


class OwnedField(IntEnum):
    """A field of a container that a plugin can own: number and spelling as in the owners map (NRI >= 0.10)."""

    Annotations = 1
    Mounts = 2
    OciHooks = 3
    Devices = 4
    CdiDevices = 5
    Env = 6
    Args = 7
    MemLimit = 8
    MemReservation = 9
    MemSwapLimit = 10
    MemKernelLimit = 11
    MemTCPLimit = 12
    MemSwappiness = 13
    MemDisableOomKiller = 14
    MemUseHierarchy = 15
    CPUShares = 16
    CPUQuota = 17
    CPUPeriod = 18
    CPURealtimeRuntime = 19
    CPURealtimePeriod = 20
    CPUSetCPUs = 21
    CPUSetMems = 22
    PidsLimit = 23
    HugepageLimits = 24
    BlockioClass = 25
    RdtClass = 26
    CgroupsUnified = 27
    CgroupsPath = 28
    OomScoreAdj = 29
    Rlimits = 30
    IoPriority = 31
    SeccompPolicy = 32
    Namespace = 33
    Sysctl = 34
    LinuxNetDevices = 35
    LinuxSched = 36
    RdtClosID = 37
    RdtSchemata = 38
    RdtEnableMonitoring = 39
    MemoryPolicy = 40


@dataclass(frozen=True, slots=True)
class FieldOwners:
    """The plugin (`NN-name`) that set each field of one container; numbers that `OwnedField` does not know stay numbers.

    Attributes:
        simple: field -> plugin.
        compound: field with entries -> key of the entry -> plugin.
    """

    simple: Mapping[int, str] = field(default_factory=dict)
    compound: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def owner(self, what: int, key: str = "") -> str:
        """Returns the plugin that set a field, or one entry of it; "" = none."""
        if key:
            return self.compound.get(what, {}).get(key, "")
        return self.simple.get(what, "")
