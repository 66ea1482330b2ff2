"""Tables that map attributes of plain values to fields of messages: adjustments, resources, details.

One column stands for one field and serves both directions, so no field can be forgotten in one of them. A column is
written `name` if both sides use that name, else `name: path.of.the.field`.

Writing gives nested dicts, which the constructors of messages take. Reading takes a message. A value that equals its
default is not written; an absent field reads as the default.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final

from nri_plugin.wire.nri import spec
from nri_plugin.wire.nri.events import Adjustment
from nri_plugin.wire.nri.messages import (
    EMPTY,
    ContainerDetails,
    DeviceNode,
    DeviceRule,
    PodDetails,
    Resources,
)

# The machinery


@dataclass(frozen=True, slots=True)
class FieldKind:
    """How the value of one field looks on both sides.

    Attributes:
        write: value -> argument of the message's constructor.
        read: the message's attribute -> value.
        has_presence: absent reads as None; "set to zero" is something else.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    has_presence: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One field: its name in the value, where it is in the message (from the outside in), and how it looks."""

    name: str
    path: tuple[str, ...]
    kind: FieldKind


def _same(value: Any) -> Any:
    return value


# Proto3 scalars have no presence: an empty text or list is the same as an absent one, and is not written. Wrappers
# (`OptionalInt64`) do have presence: a wrapper that holds 0 claims the field and sets it to 0.
PLAIN = FieldKind(_same, _same)
TEXTS = FieldKind(list, tuple)
TEXT_MAP = FieldKind(dict, lambda found: dict(found) if found else EMPTY)
WRAPPED_TEXTS = FieldKind(
    lambda value: {"value": list(value)}, lambda found: tuple(found.value), has_presence=True
)
NAMES = FieldKind(
    lambda value: [{"name": name} for name in value], lambda found: tuple([entry.name for entry in found])
)
NAME_BY_KEY = FieldKind(
    lambda value: {key: {"name": name} for key, name in value.items()},
    lambda found: {key: entry.name for key, entry in found.items()} or EMPTY,
)
KEY_VALUES = FieldKind(
    lambda value: [{"key": key, "value": text} for key, text in value.items()],
    lambda found: {entry.key: entry.value for entry in found} or EMPTY,
)
PAGE_LIMITS = FieldKind(
    lambda value: [{"page_size": size, "limit": limit} for size, limit in value],
    lambda found: tuple([(entry.page_size, entry.limit) for entry in found]),
)


def wrapped(inner: str = "value") -> FieldKind:
    """Returns the kind of a number or text in a message of its own: absent is None."""
    return FieldKind(lambda value: {inner: value}, lambda found: getattr(found, inner), has_presence=True)


def number_of(numbers: type[IntEnum]) -> FieldKind:
    """Returns the kind of an enumeration; a number it does not know stays one."""
    # A later release may add a member. An unknown number is kept, so that nothing is lost between reading and writing.
    known = {member.value: member for member in numbers}
    return FieldKind(int, lambda found: known.get(found, found))


def numbers_of(numbers: type[IntEnum]) -> FieldKind:
    """Returns the kind of a list of an enumeration."""
    one = number_of(numbers)
    return FieldKind(
        lambda value: [one.write(each) for each in value], lambda found: tuple(map(one.read, found))
    )


@dataclass(frozen=True)
class Table:
    """All of a message that a plain value holds.

    Attributes:
        message: name of the message.
        make: class of the value.
        columns: one for each of its fields.
    """

    message: str
    make: type
    columns: tuple[Column, ...]
    _unset: tuple[Any, ...] = field(init=False, repr=False)
    _contents: Callable[[Any], tuple[Any, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        defaults = _defaults(self.make)
        object.__setattr__(self, "_unset", tuple(defaults[name] for name in names))
        object.__setattr__(self, "_contents", attrgetter(*names))

    def write(self, value: Any) -> dict[str, Any]:
        """Returns the fields of `value` that are set, as the message's constructor takes them."""
        written: dict[str, Any] = {}
        for column, content in self.set_fields(value):
            # Columns that share the start of a path, such as `cpu.shares` and `cpu.cpus`, share the dict.
            inner = written
            for step in column.path[:-1]:
                inner = inner.setdefault(step, {})
            inner[column.path[-1]] = column.kind.write(content)
        return written

    def set_fields(self, value: Any) -> list[tuple[Column, Any]]:
        """Returns the columns in which `value` differs from the default, with the content."""
        return [
            (column, content)
            for column, unset, content in zip(self.columns, self._unset, self._contents(value), strict=True)
            # Mostly nothing is set, and then the content is the default itself.
            if content is not unset and content != unset
        ]

    def read(self, message: Any) -> Any:
        """Returns the value a message holds."""
        return self.make(**self.values(message))

    def values(self, message: Any) -> dict[str, Any]:
        """Returns the fields of that value by name."""
        return {column.name: _read(message, column) for column in self.columns}

    def part(self) -> FieldKind:
        """Returns the kind of such a value that may be absent."""
        return FieldKind(self.write, self.read, has_presence=True)

    def whole(self) -> FieldKind:
        """Returns the kind of such a value that is empty when absent."""
        return FieldKind(self.write, self.read)

    def parts(self) -> FieldKind:
        """Returns the kind of a list of such values."""
        return FieldKind(
            lambda value: [self.write(each) for each in value],
            lambda found: tuple([self.read(each) for each in found]),
        )


def _read(message: Any, column: Column) -> Any:
    # An absent message on the way reads as an empty one, so only the last field needs a test for presence.
    for step in column.path[:-1]:
        message = getattr(message, step)
    last = column.path[-1]
    if column.kind.has_presence and not message.HasField(last):
        return None
    return column.kind.read(getattr(message, last))


def _defaults(make: type) -> dict[str, Any]:
    """Returns each field's default; one without a default is always written."""
    return {
        each.name: each.default_factory() if each.default_factory is not MISSING else each.default
        for each in fields(make)
    }


# The tables


_VALUE: Final = wrapped()


def _table(message: str, make: type[Any], columns: dict[str, FieldKind]) -> Table:
    return Table(message, make, tuple(_column(where, kind) for where, kind in columns.items()))


def _column(where: str, kind: FieldKind) -> Column:
    name, _, path = where.partition(": ")
    return Column(name, tuple((path or name).split(".")), kind)


MOUNT: Final = _table(
    "Mount", spec.MountSpec, {"destination": PLAIN, "type": PLAIN, "source": PLAIN, "options": TEXTS}
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
    DeviceNode,
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
