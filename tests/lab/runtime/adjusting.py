"""Adjustments and updates as a runtime applies them: effects on a container, fields that get lost, and ownership.

Two claims on one field fail a request, also if one plugin makes both. Maps and lists are owned by key. Removing a key
gives it up, so a plugin takes a key over by removing and setting it in one answer. Hooks accumulate and are owned by all;
device rules are owned by none.

Source: NRI pkg/adaptation and runtime-tools, and how containerd and CRI-O apply updates.
Differs: a runtime moves the cgroup when the cgroups path changes, and applies a memory policy; here: the
    changed path is reported, but the cgroup does not move, and a memory policy has no effect. Why: no
    placement depends on either. Option: none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from nri_plugin.wire.nri import spec
from nri_plugin.wire.nri.events import NOTHING, Adjustment, CreateContainerResponse, is_removal
from nri_plugin.wire.nri.messages import (
    EMPTY,
    Container,
    ContainerDetails,
    ContainerUpdate,
    FieldOwners,
    OwnedField,
    Resources,
)
from nri_plugin.wire.nri.releases import LOST_IN_UPDATES, fields_since
from nri_plugin.wire.nri.spec import RDT, Hooks

_T = TypeVar("_T")
_UNSET: Final = Resources()
_MERGED_BY_KEY: Final = frozenset({"hugepage_limits", "unified", "device_rules"})
_REPLACED: Final = tuple(each.name for each in fields(Resources) if each.name not in _MERGED_BY_KEY)


def merged(base: Resources, change: Resources) -> Resources:
    """`base` with the fields that `change` sets. Absent, zero and empty fields change nothing; device rules are appended."""
    changes = {name: content for name in _REPLACED if (content := getattr(change, name))}
    return replace(
        base,
        hugepage_limits=tuple({**dict(base.hugepage_limits), **dict(change.hugepage_limits)}.items()),
        unified={**base.unified, **change.unified},
        device_rules=base.device_rules + change.device_rules,
        **changes,
    )


def heeded(change: Resources, runtime_name: str, *, is_own: bool) -> Resources:
    """The part of an update that a runtime applies; `is_own`: an answer to the container's own UpdateContainer."""
    lost = LOST_IN_UPDATES.get((runtime_name, is_own), frozenset())
    return replace(change, **{name: getattr(_UNSET, name) for name in lost})


def known(response: CreateContainerResponse, release: tuple[int, ...]) -> CreateContainerResponse:
    """The part of an answer that a runtime of an NRI release reads: newer fields are dropped silently."""
    unknown = [name for name, since in fields_since(response.whole()).items() if since > release]
    if not unknown:
        return response
    rest = {name: getattr(NOTHING, name) for name in unknown if "." not in name}
    left = replace(response.adjustment or NOTHING, **rest)
    resources = response.resources
    if resources is not None and len(rest) < len(unknown):
        resources = replace(resources, pids_limit=None)
    return replace(response, resources=resources, adjustment=None if left == NOTHING else left)


def adjusted(container: Container, change: Adjustment) -> Container:
    """The container after an adjustment. Removals are applied before additions."""
    return replace(
        container,
        annotations=_changed_map(container.annotations, change.annotations),
        env=_changed_env(container.env, change.env),
        devices=_changed_list(container.devices, change.devices, lambda device: device.path),
        cdi_devices=container.cdi_devices + change.cdi_devices,
        net_devices=tuple(sorted(_changed_map(dict.fromkeys(container.net_devices, ""), change.net_devices))),
        resources=merged(container.resources, change.resources or _UNSET),
        oom_score_adj=container.oom_score_adj if change.oom_score_adj is None else change.oom_score_adj,
        cgroups_path=change.cgroups_path or container.cgroups_path,
        details=_changed_details(container.details, change),
    )


def _changed_details(details: ContainerDetails | None, change: Adjustment) -> ContainerDetails | None:
    base = details or ContainerDetails()
    changed = replace(
        base,
        args=change.args[1:] if change.args[:1] == ("",) else change.args or base.args,
        mounts=_changed_list(base.mounts, change.mounts, lambda mount: mount.destination),
        hooks=_more_hooks(base.hooks, change.hooks),
        rlimits=_changed_list(base.rlimits, change.rlimits, lambda limit: limit.type),
        namespaces=_changed_list(base.namespaces, change.namespaces, lambda namespace: namespace.type),
        sysctl=_changed_map(base.sysctl, change.sysctl),
        net_devices=_changed_map(base.net_devices, change.net_devices),
        io_priority=change.io_priority or base.io_priority,
        seccomp_policy=change.seccomp_policy or base.seccomp_policy,
        scheduler=change.scheduler or base.scheduler,
        rdt=_changed_rdt(base.rdt, change.rdt),
    )
    return details if changed == base else changed


def _changed_map(base: Mapping[str, str], change: Mapping[str, str]) -> Mapping[str, str]:
    gone = {key[1:] for key in change if is_removal(key)}
    kept = {key: text for key, text in base.items() if key not in gone}
    return {**kept, **{key: text for key, text in change.items() if not is_removal(key)}} or EMPTY


def _changed_list(base: Iterable[_T], change: Iterable[_T], key_of: Callable[[_T], str]) -> tuple[_T, ...]:
    """A list with keys: an entry replaces the old one with the same key."""
    touched = {key_of(each).removeprefix("-") for each in change}
    kept = [each for each in base if key_of(each) not in touched]
    return (*kept, *(each for each in change if not is_removal(key_of(each))))


def _changed_env(env: tuple[str, ...], change: Mapping[str, str]) -> tuple[str, ...]:
    added = tuple(f"{name}={text}" for name, text in change.items() if not is_removal(name))
    touched = {name.removeprefix("-") for name in change}
    return tuple(entry for entry in env if entry.partition("=")[0] not in touched) + added


def _more_hooks(base: spec.Hooks, more: spec.Hooks) -> spec.Hooks:
    moments = [each.name for each in fields(spec.Hooks)]
    return spec.Hooks(**{name: getattr(base, name) + getattr(more, name) for name in moments})


def _changed_rdt(base: spec.RDT | None, change: spec.RDT | None) -> spec.RDT | None:
    if change is None:
        return base
    kept = spec.RDT() if base is None or change.remove else base
    names = ("clos_id", "schemata", "enable_monitoring")
    news: dict[str, Any] = {
        name: getattr(change, name) for name in names if getattr(change, name) is not None
    }
    result = replace(kept, **news)
    return None if result == spec.RDT() else result


# Ownership


RESOURCE_FIELDS: Final[Mapping[str, OwnedField]] = {
    "cpu_shares": OwnedField.CPUShares,
    "cpu_quota_us": OwnedField.CPUQuota,
    "cpu_period_us": OwnedField.CPUPeriod,
    "cpu_realtime_runtime_us": OwnedField.CPURealtimeRuntime,
    "cpu_realtime_period_us": OwnedField.CPURealtimePeriod,
    "cpus": OwnedField.CPUSetCPUs,
    "mems": OwnedField.CPUSetMems,
    "memory_limit_bytes": OwnedField.MemLimit,
    "memory_reservation_bytes": OwnedField.MemReservation,
    "memory_swap_bytes": OwnedField.MemSwapLimit,
    "memory_kernel_bytes": OwnedField.MemKernelLimit,
    "memory_kernel_tcp_bytes": OwnedField.MemTCPLimit,
    "memory_swappiness": OwnedField.MemSwappiness,
    "memory_disable_oom_killer": OwnedField.MemDisableOomKiller,
    "memory_use_hierarchy": OwnedField.MemUseHierarchy,
    "pids_limit": OwnedField.PidsLimit,
    "blockio_class": OwnedField.BlockioClass,
    "rdt_class": OwnedField.RdtClass,
}
"""Fields of `Resources` that are owned whole; hugepage limits and unified keys are owned by key."""
RDT_FIELDS: Final = (OwnedField.RdtClosID, OwnedField.RdtSchemata, OwnedField.RdtEnableMonitoring)

_WORDS_OF_0_6: Final = {OwnedField.CPUSetCPUs: "CPU pinning", OwnedField.CPUSetMems: "memory pinning"}

Claim = tuple[OwnedField, str]


@dataclass(slots=True)
class Ownership:
    """Claims of one request, over all plugins that were asked.

    Attributes:
        speaks_0_6: whether conflicts have the texts of NRI 0.6.
        owner_by_claim: (container id, field, key) -> plugin; the key is empty where a field is owned whole.
    """

    speaks_0_6: bool = False
    owner_by_claim: dict[tuple[str, OwnedField, str], str] = field(default_factory=dict)

    def claim(self, plugin: str, container_id: str, resources: Resources) -> str:
        """Claims every set field; returns "" or the conflict, in the words a CRI client would see."""
        return self._claim(plugin, container_id, _resource_claims(resources))

    def adjust(self, plugin: str, container_id: str, adjustment: Adjustment) -> str:
        """Gives up what an adjustment removes, then claims what it sets; returns "" or the conflict."""
        for what, key in _given_up(adjustment):
            self.owner_by_claim.pop((container_id, what, key), None)
        if adjustment.hooks != Hooks():
            known = self.owner_by_claim.get((container_id, OwnedField.OciHooks, ""), "")
            self.owner_by_claim[container_id, OwnedField.OciHooks, ""] = (
                f"{known},{plugin}" if known else plugin
            )
        return self._claim(plugin, container_id, _claims(adjustment))

    def accept(
        self, plugin: str, updates: tuple[ContainerUpdate, ...]
    ) -> tuple[tuple[ContainerUpdate, ...], str]:
        """Claims the fields of all updates.

        Returns:
            The updates that count, and "" or the conflict that fails the request. An update that may fail is
            left out in silence instead.
        """
        accepted: list[ContainerUpdate] = []
        for update in updates:
            conflict = self.claim(plugin, update.container_id, update.resources)
            if conflict and not update.ignore_failure:
                return (), conflict
            if not conflict:
                accepted.append(update)
        return tuple(accepted), ""

    def owners(self) -> dict[str, FieldOwners]:
        """Returns container id -> owners of fields, as validators get them."""
        simple: dict[str, dict[int, str]] = {}
        compound: dict[str, dict[int, dict[str, str]]] = {}
        for (container_id, what, key), plugin in self.owner_by_claim.items():
            if key:
                compound.setdefault(container_id, {}).setdefault(what, {})[key] = plugin
            else:
                simple.setdefault(container_id, {})[what] = plugin
        ids = dict.fromkeys([*simple, *compound])
        return {each: FieldOwners(simple.get(each, {}), compound.get(each, {})) for each in ids}

    def _claim(self, plugin: str, container_id: str, claims: Iterable[Claim]) -> str:
        for what, key in claims:
            owner = self.owner_by_claim.get((container_id, what, key), "")
            if owner:
                return f'plugins "{plugin}" and "{owner}" both tried to set {self._word(what, key)}'
            self.owner_by_claim[container_id, what, key] = plugin
        return ""

    def _word(self, what: OwnedField, key: str) -> str:
        name = _WORDS_OF_0_6.get(what, what.name) if self.speaks_0_6 else what.name
        return f"{name} {key}" if key else name


def _resource_claims(resources: Resources) -> Iterator[Claim]:
    for attribute, what in RESOURCE_FIELDS.items():
        if getattr(resources, attribute) != getattr(_UNSET, attribute):
            yield what, ""
    for page_size, _ in resources.hugepage_limits:
        yield OwnedField.HugepageLimits, page_size
    for key in resources.unified:
        yield OwnedField.CgroupsUnified, key


def _claims(adjustment: Adjustment) -> Iterator[Claim]:
    for what, key in _keys(adjustment):
        if not is_removal(key):
            yield what, key
    yield from ((what, "") for what, is_set in _whole_fields(adjustment).items() if is_set)
    yield from _resource_claims(adjustment.resources or _UNSET)


def _given_up(adjustment: Adjustment) -> Iterator[Claim]:
    for what, key in _keys(adjustment):
        if is_removal(key):
            yield what, key[1:]
    if adjustment.args[:1] == ("",):
        yield OwnedField.Args, ""
    if adjustment.rdt is not None and adjustment.rdt.remove:
        yield from ((what, "") for what in RDT_FIELDS)


def _keys(adjustment: Adjustment) -> Iterator[Claim]:
    keys_by_field: dict[OwnedField, Iterable[str]] = {
        OwnedField.Annotations: adjustment.annotations,
        OwnedField.Mounts: [mount.destination for mount in adjustment.mounts],
        OwnedField.Devices: [device.path for device in adjustment.devices],
        OwnedField.CdiDevices: adjustment.cdi_devices,
        OwnedField.Env: adjustment.env,
        OwnedField.Rlimits: [limit.type for limit in adjustment.rlimits],
        OwnedField.Namespace: [namespace.type for namespace in adjustment.namespaces],
        OwnedField.Sysctl: adjustment.sysctl,
        OwnedField.LinuxNetDevices: adjustment.net_devices,
    }
    return ((what, key) for what, keys in keys_by_field.items() for key in keys)


def _whole_fields(adjustment: Adjustment) -> dict[OwnedField, bool]:
    rdt = adjustment.rdt or RDT()
    return {
        OwnedField.Args: bool(adjustment.args),
        OwnedField.CgroupsPath: bool(adjustment.cgroups_path),
        OwnedField.OomScoreAdj: adjustment.oom_score_adj is not None,
        OwnedField.IoPriority: adjustment.io_priority is not None,
        OwnedField.SeccompPolicy: adjustment.seccomp_policy is not None,
        OwnedField.LinuxSched: adjustment.scheduler is not None,
        OwnedField.MemoryPolicy: adjustment.memory_policy is not None,
        OwnedField.RdtClosID: rdt.clos_id is not None,
        OwnedField.RdtSchemata: rdt.schemata is not None,
        OwnedField.RdtEnableMonitoring: rdt.enable_monitoring is not None,
    }
