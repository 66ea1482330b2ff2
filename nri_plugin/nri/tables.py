"""Which field of which message is which attribute: the mapping table of adjustments, resources and details.

A column says `name` when both sides use it, else `name: path.of.the.field`.
"""

from typing import Any, Final

from nri_plugin.nri import spec
from nri_plugin.nri.adjustment import Adjustment
from nri_plugin.nri.mapping import (
    KEY_VALUES,
    NAME_BY_KEY,
    NAMES,
    PAGE_LIMITS,
    PLAIN,
    TEXT_MAP,
    TEXTS,
    WRAPPED_TEXTS,
    Column,
    Kind,
    Table,
    number_of,
    numbers_of,
    wrapped,
)
from nri_plugin.nri.messages import ContainerDetails, Device, DeviceRule, PodDetails, Resources

_VALUE: Final = wrapped()


def _table(message: str, make: type[Any], columns: dict[str, Kind]) -> Table:
    return Table(message, make, tuple(_column(where, kind) for where, kind in columns.items()))


def _column(where: str, kind: Kind) -> Column:
    name, _, path = where.partition(": ")
    return Column(name, tuple((path or name).split(".")), kind)


MOUNT: Final = _table(
    "Mount", spec.Mount, {"destination": PLAIN, "type": PLAIN, "source": PLAIN, "options": TEXTS}
)
HOOK: Final = _table(
    "Hook", spec.Hook, {"path": PLAIN, "args": TEXTS, "env": TEXTS, "timeout_s: timeout": _VALUE}
)
_HOOKS = HOOK.parts()
HOOKS: Final = _table(
    "Hooks",
    spec.Hooks,
    {
        "prestart": _HOOKS,
        "create_runtime": _HOOKS,
        "create_container": _HOOKS,
        "start_container": _HOOKS,
        "poststart": _HOOKS,
        "poststop": _HOOKS,
    },
)
RLIMIT: Final = _table("POSIXRlimit", spec.Rlimit, {"type": PLAIN, "hard": PLAIN, "soft": PLAIN})
NAMESPACE: Final = _table("LinuxNamespace", spec.Namespace, {"type": PLAIN, "path": PLAIN})
DEVICE: Final = _table(
    "LinuxDevice",
    Device,
    {
        "path": PLAIN,
        "type": PLAIN,
        "major": PLAIN,
        "minor": PLAIN,
        "file_mode": _VALUE,
        "uid": _VALUE,
        "gid": _VALUE,
    },
)
DEVICE_RULE: Final = _table(
    "LinuxDeviceCgroup",
    DeviceRule,
    {"allow": PLAIN, "type": PLAIN, "major": _VALUE, "minor": _VALUE, "access": PLAIN},
)
RESOURCES: Final = _table(
    "LinuxResources",
    Resources,
    {
        "cpu_shares: cpu.shares": _VALUE,
        "cpu_quota_us: cpu.quota": _VALUE,
        "cpu_period_us: cpu.period": _VALUE,
        "cpu_realtime_runtime_us: cpu.realtime_runtime": _VALUE,
        "cpu_realtime_period_us: cpu.realtime_period": _VALUE,
        "cpus: cpu.cpus": PLAIN,
        "mems: cpu.mems": PLAIN,
        "memory_limit_bytes: memory.limit": _VALUE,
        "memory_reservation_bytes: memory.reservation": _VALUE,
        "memory_swap_bytes: memory.swap": _VALUE,
        "memory_kernel_bytes: memory.kernel": _VALUE,
        "memory_kernel_tcp_bytes: memory.kernel_tcp": _VALUE,
        "memory_swappiness: memory.swappiness": _VALUE,
        "memory_disable_oom_killer: memory.disable_oom_killer": _VALUE,
        "memory_use_hierarchy: memory.use_hierarchy": _VALUE,
        "hugepage_limits": PAGE_LIMITS,
        "blockio_class": _VALUE,
        "rdt_class": _VALUE,
        "unified": TEXT_MAP,
        "device_rules: devices": DEVICE_RULE.parts(),
        "pids_limit: pids": wrapped("limit"),
    },
)
IO_PRIORITY: Final = _table(
    "LinuxIOPriority", spec.IOPriority, {"io_class: class": number_of(spec.IOClass), "priority": PLAIN}
)
SYSCALL_ARGUMENT: Final = _table(
    "LinuxSeccompArg",
    spec.SyscallArgument,
    {"index": PLAIN, "value": PLAIN, "value_two": PLAIN, "op": PLAIN},
)
SYSCALL: Final = _table(
    "LinuxSyscall",
    spec.Syscall,
    {"names": TEXTS, "action": PLAIN, "errno_ret": _VALUE, "args": SYSCALL_ARGUMENT.parts()},
)
SECCOMP: Final = _table(
    "LinuxSeccomp",
    spec.Seccomp,
    {
        "default_action": PLAIN,
        "default_errno": _VALUE,
        "architectures": TEXTS,
        "flags": TEXTS,
        "listener_path": PLAIN,
        "listener_metadata": PLAIN,
        "syscalls": SYSCALL.parts(),
    },
)
SECURITY_PROFILE: Final = _table(
    "SecurityProfile",
    spec.SecurityProfile,
    {"profile_type": number_of(spec.ProfileType), "localhost_ref": PLAIN},
)
SCHEDULER: Final = _table(
    "LinuxScheduler",
    spec.Scheduler,
    {
        "policy": number_of(spec.SchedulerPolicy),
        "nice": PLAIN,
        "priority": PLAIN,
        "flags": numbers_of(spec.SchedulerFlag),
        "runtime_ns: runtime": PLAIN,
        "deadline_ns: deadline": PLAIN,
        "period_ns: period": PLAIN,
    },
)
RDT: Final = _table(
    "LinuxRdt",
    spec.RDT,
    {"clos_id": _VALUE, "schemata": WRAPPED_TEXTS, "enable_monitoring": _VALUE, "remove": PLAIN},
)
MEMORY_POLICY: Final = _table(
    "LinuxMemoryPolicy",
    spec.MemoryPolicy,
    {
        "mode": number_of(spec.MemoryPolicyMode),
        "nodes": PLAIN,
        "flags": numbers_of(spec.MemoryPolicyFlag),
    },
)
USER: Final = _table("User", spec.User, {"uid": PLAIN, "gid": PLAIN, "additional_gids": TEXTS})
IMAGE: Final = _table("Image", spec.Image, {"name": PLAIN, "digest": PLAIN, "config_digest": PLAIN})

ADJUSTMENT: Final = _table(
    "ContainerAdjustment",
    Adjustment,
    {
        "annotations": TEXT_MAP,
        "mounts": MOUNT.parts(),
        "env": KEY_VALUES,
        "hooks": HOOKS.whole(),
        "rlimits": RLIMIT.parts(),
        "cdi_devices: CDI_devices": NAMES,
        "args": TEXTS,
        "devices: linux.devices": DEVICE.parts(),
        "resources: linux.resources": RESOURCES.part(),
        "cgroups_path: linux.cgroups_path": PLAIN,
        "oom_score_adj: linux.oom_score_adj": _VALUE,
        "io_priority: linux.io_priority": IO_PRIORITY.part(),
        "seccomp_policy: linux.seccomp_policy": SECCOMP.part(),
        "namespaces: linux.namespaces": NAMESPACE.parts(),
        "sysctl: linux.sysctl": TEXT_MAP,
        "net_devices: linux.net_devices": NAME_BY_KEY,
        "scheduler: linux.scheduler": SCHEDULER.part(),
        "rdt: linux.rdt": RDT.part(),
        "memory_policy: linux.memory_policy": MEMORY_POLICY.part(),
    },
)
CONTAINER_DETAILS: Final = _table(
    "Container",
    ContainerDetails,
    {
        "args": TEXTS,
        "mounts": MOUNT.parts(),
        "hooks": HOOKS.whole(),
        "rlimits": RLIMIT.parts(),
        "created_at": PLAIN,
        "started_at": PLAIN,
        "finished_at": PLAIN,
        "exit_code": PLAIN,
        "status_reason": PLAIN,
        "status_message": PLAIN,
        "user": USER.part(),
        "image": IMAGE.part(),
        "namespaces: linux.namespaces": NAMESPACE.parts(),
        "io_priority: linux.io_priority": IO_PRIORITY.part(),
        "seccomp_profile: linux.seccomp_profile": SECURITY_PROFILE.part(),
        "seccomp_policy: linux.seccomp_policy": SECCOMP.part(),
        "sysctl: linux.sysctl": TEXT_MAP,
        "net_devices: linux.net_devices": NAME_BY_KEY,
        "scheduler: linux.scheduler": SCHEDULER.part(),
        "rdt: linux.rdt": RDT.part(),
    },
)
POD_DETAILS: Final = _table(
    "PodSandbox",
    PodDetails,
    {
        "ips": TEXTS,
        "namespaces: linux.namespaces": NAMESPACE.parts(),
        "resources: linux.resources": RESOURCES.part(),
    },
)
