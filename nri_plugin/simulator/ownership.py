"""Who set what in one request: two claims on one field fail the request, even by one and the same plugin."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from nri_plugin.nri.messages import ContainerUpdate, Resources

_UNSET: Final = Resources()
_FIELD_NAMES: Final = {
    "cpu_shares": "CPUShares",
    "cpu_quota_us": "CPUQuota",
    "cpu_period_us": "CPUPeriod",
    "cpus": "CPUSetCPUs",
    "mems": "CPUSetMems",
    "memory_limit_bytes": "MemLimit",
}
_FIELD_NAMES_OF_0_6: Final = {"CPUSetCPUs": "CPU pinning", "CPUSetMems": "memory pinning"}


@dataclass(slots=True)
class Ownership:
    """Claims of one request, over all plugins that were asked.

    Attributes:
        speaks_0_6: word conflicts as NRI 0.6 does.
        owner_by_claim: (container id, field, key) -> plugin.
    """

    speaks_0_6: bool = False
    owner_by_claim: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def claim(self, plugin: str, container_id: str, resources: Resources) -> str:
        """Claims every set field; returns "" or the conflict, in the words a CRI client would see."""
        for name, key in _claims(resources):
            owner = self.owner_by_claim.setdefault((container_id, name, key), "")
            if owner:
                word = _FIELD_NAMES_OF_0_6.get(name, name) if self.speaks_0_6 else name
                return f'plugins "{plugin}" and "{owner}" both tried to set {word}'
            self.owner_by_claim[container_id, name, key] = plugin
        return ""

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


def _claims(resources: Resources) -> Iterator[tuple[str, str]]:
    for attribute, name in _FIELD_NAMES.items():
        if getattr(resources, attribute) != getattr(_UNSET, attribute):
            yield name, ""
    for page_size, _ in resources.hugepage_limits:
        yield "HugepageLimits", page_size
    for key in resources.unified:
        yield "CgroupsUnified", key
