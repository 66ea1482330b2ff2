"""Parts of a container's specification that the protocol carries beside resources, as plain frozen values.

Names follow the protocol's fields, with their unit where they have one. Absent texts are empty, absent
lists are empty tuples, None is an absent wrapper. A number that no enumeration here knows stays a number.

Source: messages of `nri.pkg.api.v1alpha1`, NRI 0.12.2.
"""

from dataclasses import dataclass
from enum import IntEnum


class IOClass(IntEnum):
    """Scheduling class of block I/O, see ioprio_set(2)."""

    NONE = 0
    REALTIME = 1
    BEST_EFFORT = 2
    IDLE = 3


class SchedulerPolicy(IntEnum):
    """CPU scheduling policy, see sched(7)."""

    NONE = 0
    OTHER = 1
    FIFO = 2
    RR = 3
    BATCH = 4
    ISO = 5
    IDLE = 6
    DEADLINE = 7


class SchedulerFlag(IntEnum):
    """Flags of sched_setattr(2), by the protocol's numbers."""

    RESET_ON_FORK = 0
    RECLAIM = 1
    DL_OVERRUN = 2
    KEEP_POLICY = 3
    KEEP_PARAMS = 4
    UTIL_CLAMP_MIN = 5
    UTIL_CLAMP_MAX = 6


class MemoryPolicyMode(IntEnum):
    """Modes of set_mempolicy(2)."""

    DEFAULT = 0
    PREFERRED = 1
    BIND = 2
    INTERLEAVE = 3
    LOCAL = 4
    PREFERRED_MANY = 5
    WEIGHTED_INTERLEAVE = 6


class MemoryPolicyFlag(IntEnum):
    """Mode flags of set_mempolicy(2), by the protocol's numbers."""

    STATIC_NODES = 0
    RELATIVE_NODES = 1
    NUMA_BALANCING = 2


class ProfileType(IntEnum):
    """Where a security profile comes from."""

    RUNTIME_DEFAULT = 0
    UNCONFINED = 1
    LOCALHOST = 2


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A mount; in an adjustment the destination `-PATH` removes the one at PATH."""

    destination: str
    type: str = ""
    source: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hook:
    """A program the OCI runtime calls."""

    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class Hooks:
    """OCI hooks by the moment they run."""

    prestart: tuple[Hook, ...] = ()
    create_runtime: tuple[Hook, ...] = ()
    create_container: tuple[Hook, ...] = ()
    start_container: tuple[Hook, ...] = ()
    poststart: tuple[Hook, ...] = ()
    poststop: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True)
class Rlimit:
    """A POSIX resource limit, `type` as in RLIMIT_NOFILE."""

    type: str
    hard: int = 0
    soft: int = 0


@dataclass(frozen=True, slots=True)
class Namespace:
    """A Linux namespace; in an adjustment the type `-TYPE` removes."""

    type: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class IOPriority:
    """Priority of block I/O, 0 (first) to 7 within a class."""

    io_class: IOClass | int = IOClass.NONE
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SyscallArgument:
    """A comparison with one argument of a system call."""

    index: int = 0
    value: int = 0
    value_two: int = 0
    op: str = ""


@dataclass(frozen=True, slots=True)
class Syscall:
    """The action of seccomp on a call of one of these system calls."""

    names: tuple[str, ...] = ()
    action: str = ""
    errno_ret: int | None = None
    args: tuple[SyscallArgument, ...] = ()


@dataclass(frozen=True, slots=True)
class Seccomp:
    """A whole seccomp policy."""

    default_action: str = ""
    default_errno: int | None = None
    architectures: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    listener_path: str = ""
    listener_metadata: str = ""
    syscalls: tuple[Syscall, ...] = ()


@dataclass(frozen=True, slots=True)
class SecurityProfile:
    """A seccomp profile by reference; `localhost_ref` names a file on the node."""

    profile_type: ProfileType | int = ProfileType.RUNTIME_DEFAULT
    localhost_ref: str = ""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """CPU scheduling attributes; the last three are nanoseconds and belong to `DEADLINE`."""

    policy: SchedulerPolicy | int = SchedulerPolicy.NONE
    nice: int = 0
    priority: int = 0
    flags: tuple[SchedulerFlag | int, ...] = ()
    runtime_ns: int = 0
    deadline_ns: int = 0
    period_ns: int = 0


@dataclass(frozen=True, slots=True)
class RDT:
    """Cache and memory bandwidth class (resctrl); `remove` drops the class that was configured before."""

    clos_id: str | None = None
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool | None = None
    remove: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """NUMA memory policy; `nodes` is a kernel list."""

    mode: MemoryPolicyMode | int = MemoryPolicyMode.DEFAULT
    nodes: str = ""
    flags: tuple[MemoryPolicyFlag | int, ...] = ()


@dataclass(frozen=True, slots=True)
class User:
    """Who the container's process is."""

    uid: int = 0
    gid: int = 0
    additional_gids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """The image of the container."""

    name: str = ""
    digest: str = ""
    config_digest: str = ""
