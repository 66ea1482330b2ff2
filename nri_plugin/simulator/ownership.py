"""Who set what in one request: two claims on one field fail the request, even by one and the same plugin.

Maps and lists are owned by key. Removing a key gives it up, so removing and setting it in one answer is how a
plugin takes a key over. Hooks accumulate and belong to all; device rules belong to nobody.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from nri_plugin.nri.adjustment import Adjustment, is_removal
from nri_plugin.nri.messages import ContainerUpdate, Field, FieldOwners, Resources
from nri_plugin.nri.spec import RDT, Hooks

_UNSET: Final = Resources()
RESOURCE_FIELDS: Final[Mapping[str, Field]] = {
    "cpu_shares": Field.CPUShares,
    "cpu_quota_us": Field.CPUQuota,
    "cpu_period_us": Field.CPUPeriod,
    "cpu_realtime_runtime_us": Field.CPURealtimeRuntime,
    "cpu_realtime_period_us": Field.CPURealtimePeriod,
    "cpus": Field.CPUSetCPUs,
    "mems": Field.CPUSetMems,
    "memory_limit_bytes": Field.MemLimit,
    "memory_reservation_bytes": Field.MemReservation,
    "memory_swap_bytes": Field.MemSwapLimit,
    "memory_kernel_bytes": Field.MemKernelLimit,
    "memory_kernel_tcp_bytes": Field.MemTCPLimit,
    "memory_swappiness": Field.MemSwappiness,
    "memory_disable_oom_killer": Field.MemDisableOomKiller,
    "memory_use_hierarchy": Field.MemUseHierarchy,
    "pids_limit": Field.PidsLimit,
    "blockio_class": Field.BlockioClass,
    "rdt_class": Field.RdtClass,
}
"""Fields of `Resources` that are owned whole; hugepage limits and unified keys are owned by key."""
RDT_FIELDS: Final = (Field.RdtClosID, Field.RdtSchemata, Field.RdtEnableMonitoring)

_WORDS_OF_0_6: Final = {Field.CPUSetCPUs: "CPU pinning", Field.CPUSetMems: "memory pinning"}

Claim = tuple[Field, str]


@dataclass(slots=True)
class Ownership:
    """Claims of one request, over all plugins that were asked.

    Attributes:
        speaks_0_6: word conflicts as NRI 0.6 does.
        owner_by_claim: (container id, field, key) -> plugin; the key is empty where a field is owned whole.
    """

    speaks_0_6: bool = False
    owner_by_claim: dict[tuple[str, Field, str], str] = field(default_factory=dict)

    def claim(self, plugin: str, container_id: str, resources: Resources) -> str:
        """Claims every set field; returns "" or the conflict, in the words a CRI client would see."""
        return self._claim(plugin, container_id, _resource_claims(resources))

    def adjust(self, plugin: str, container_id: str, adjustment: Adjustment) -> str:
        """Gives up what an adjustment removes, then claims what it sets; returns "" or the conflict."""
        for what, key in _given_up(adjustment):
            self.owner_by_claim.pop((container_id, what, key), None)
        if adjustment.hooks != Hooks():
            known = self.owner_by_claim.get((container_id, Field.OciHooks, ""), "")
            self.owner_by_claim[container_id, Field.OciHooks, ""] = f"{known},{plugin}" if known else plugin
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
        """Returns container id -> who set what, as validators are told."""
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

    def _word(self, what: Field, key: str) -> str:
        name = _WORDS_OF_0_6.get(what, what.name) if self.speaks_0_6 else what.name
        return f"{name} {key}" if key else name


def _resource_claims(resources: Resources) -> Iterator[Claim]:
    for attribute, what in RESOURCE_FIELDS.items():
        if getattr(resources, attribute) != getattr(_UNSET, attribute):
            yield what, ""
    for page_size, _ in resources.hugepage_limits:
        yield Field.HugepageLimits, page_size
    for key in resources.unified:
        yield Field.CgroupsUnified, key


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
        yield Field.Args, ""
    if adjustment.rdt is not None and adjustment.rdt.remove:
        yield from ((what, "") for what in RDT_FIELDS)


def _keys(adjustment: Adjustment) -> Iterator[Claim]:
    keys_by_field: dict[Field, Iterable[str]] = {
        Field.Annotations: adjustment.annotations,
        Field.Mounts: [mount.destination for mount in adjustment.mounts],
        Field.Devices: [device.path for device in adjustment.devices],
        Field.CdiDevices: adjustment.cdi_devices,
        Field.Env: adjustment.env,
        Field.Rlimits: [limit.type for limit in adjustment.rlimits],
        Field.Namespace: [namespace.type for namespace in adjustment.namespaces],
        Field.Sysctl: adjustment.sysctl,
        Field.LinuxNetDevices: adjustment.net_devices,
    }
    return ((what, key) for what, keys in keys_by_field.items() for key in keys)


def _whole_fields(adjustment: Adjustment) -> dict[Field, bool]:
    rdt = adjustment.rdt or RDT()
    return {
        Field.Args: bool(adjustment.args),
        Field.CgroupsPath: bool(adjustment.cgroups_path),
        Field.OomScoreAdj: adjustment.oom_score_adj is not None,
        Field.IoPriority: adjustment.io_priority is not None,
        Field.SeccompPolicy: adjustment.seccomp_policy is not None,
        Field.LinuxSched: adjustment.scheduler is not None,
        Field.MemoryPolicy: adjustment.memory_policy is not None,
        Field.RdtClosID: rdt.clos_id is not None,
        Field.RdtSchemata: rdt.schemata is not None,
        Field.RdtEnableMonitoring: rdt.enable_monitoring is not None,
    }
