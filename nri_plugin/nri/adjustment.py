"""What a plugin may change about a container that is being created, with the rules of each part.

* Only what is set changes anything; plugins called later see the changed container.
* `removed(key)` removes: an annotation, variable, mount (by destination), device (by path), namespace (by
  type), sysctl or network device. Removing and setting one key in the same adjustment replaces it, which is
  how a plugin overwrites what an earlier one set.
* `args` replace the command once; `overriding(args)` does so even after another plugin did.
* Hooks accumulate. CDI devices, rlimits and device rules can only be added. `RDT(remove=True)` drops the class.
* Two plugins that set the same field or key fail the creation, with equal values too: state only what you own.

Source: `nri.pkg.api.v1alpha1` ContainerAdjustment, NRI 0.12.2, and how NRI's library applies it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nri_plugin.errors import LocalProtocolError
from nri_plugin.nri import spec
from nri_plugin.nri.messages import EMPTY, Device, Resources

REMOVAL: Final = "-"
"""First character of a key that removes."""
ONLY_ADDED: Final = frozenset({"rlimit", "CDI device", "hugepage limit"})
"""Entries that nothing removes."""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Changes of the container that is being created.

    Attributes:
        env: variable -> value.
        args: the command; an empty first element overrides another plugin's.
        devices: device nodes; the rules that allow using them are `resources.device_rules`.
        cdi_devices: fully qualified names.
        net_devices: name on the host -> name in the container.
    """

    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    mounts: tuple[spec.Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    hooks: spec.Hooks = field(default=spec.Hooks())
    rlimits: tuple[spec.Rlimit, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    resources: Resources | None = None
    cgroups_path: str = ""
    oom_score_adj: int | None = None
    io_priority: spec.IOPriority | None = None
    seccomp_policy: spec.Seccomp | None = None
    namespaces: tuple[spec.Namespace, ...] = ()
    sysctl: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    net_devices: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    scheduler: spec.Scheduler | None = None
    rdt: spec.RDT | None = None
    memory_policy: spec.MemoryPolicy | None = None


NOTHING: Final = Adjustment()


def removed(key: str) -> str:
    """Returns the key that removes `key`."""
    return REMOVAL + key


def is_removal(key: str) -> bool:
    """Whether a key removes."""
    return key.startswith(REMOVAL)


def overriding(args: Iterable[str]) -> tuple[str, ...]:
    """Returns a command that holds even when another plugin set one."""
    return ("", *args)


def check(adjustment: Adjustment) -> None:
    """Refuses what a runtime would drop without a word or fail the creation for.

    Raises:
        LocalProtocolError: an entry without key, two entries that set one key, the removal of something that
            can only be added, or a command that overrides with nothing.
    """
    for what, keys in _keys(adjustment):
        if keys:
            _check_keys(what, keys)
    if adjustment.args == ("",):
        raise LocalProtocolError(
            "args override the command with nothing; name the command after the empty element"
        )


def _keys(adjustment: Adjustment) -> tuple[tuple[str, Collection[str]], ...]:
    limits = () if adjustment.resources is None else adjustment.resources.hugepage_limits
    return (
        ("annotation", adjustment.annotations),
        ("environment variable", adjustment.env),
        ("sysctl", adjustment.sysctl),
        ("network device", adjustment.net_devices),
        ("mount", [mount.destination for mount in adjustment.mounts]),
        ("device", [device.path for device in adjustment.devices]),
        ("namespace", [namespace.type for namespace in adjustment.namespaces]),
        ("rlimit", [limit.type for limit in adjustment.rlimits]),
        ("CDI device", adjustment.cdi_devices),
        ("hugepage limit", [size for size, _ in limits]),
    )


def _check_keys(what: str, keys: Collection[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in {"", REMOVAL}:
            raise LocalProtocolError(f"an adjustment of a {what} has the key {key!r}, which names nothing")
        if is_removal(key):
            if what in ONLY_ADDED:
                raise LocalProtocolError(f"{what} {key!r} cannot be removed, only added; leave it out")
        elif key in seen:
            msg = f"{what} {key!r} is set twice in one adjustment, which fails the creation; set it once"
            raise LocalProtocolError(msg)
        seen.add(key)
