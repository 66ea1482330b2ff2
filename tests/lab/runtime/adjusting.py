"""Answers as a runtime applies them: effects on a container, and ownership of what a plugin sets.

Only what the agent sends is played: resources and environment. Two claims on one field fail a request, also if one plugin
makes both. Variables and sizes of huge pages are owned by key.

Source: NRI pkg/adaptation and runtime-tools.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from nri_plugin.wire.nri.events import CreateContainerResponse
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Resources

_UNSET: Final = Resources()
_REPLACED: Final = tuple(name for name in Resources.__struct_fields__ if name != "hugepage_limits")


def merged(base: Resources, change: Resources) -> Resources:
    """`base` with the fields that `change` sets. Absent, zero and empty fields change nothing."""
    changes = {name: content for name in _REPLACED if (content := getattr(change, name))}
    limits = tuple({**dict(base.hugepage_limits), **dict(change.hugepage_limits)}.items())
    return replace(base, hugepage_limits=limits, **changes)


def adjusted(container: Container, change: CreateContainerResponse) -> Container:
    """The container after an answer to its creation."""
    kept = tuple(entry for entry in container.env if entry.partition("=")[0] not in change.env)
    return replace(
        container,
        env=kept + tuple(f"{name}={text}" for name, text in change.env.items()),
        resources=merged(container.resources, change.resources or _UNSET),
    )


# Ownership


FIELDS: Final[Mapping[str, str]] = {
    "cpu_shares": "CPUShares",
    "cpu_quota_us": "CPUQuota",
    "cpu_period_us": "CPUPeriod",
    "cpus": "CPUSetCPUs",
    "mems": "CPUSetMems",
    "memory_limit_bytes": "MemLimit",
}
"""The protocol's names of fields that are owned whole."""
_WORDS_OF_0_6: Final = {"CPUSetCPUs": "CPU pinning", "CPUSetMems": "memory pinning"}


@dataclass(slots=True)
class Ownership:
    """Claims of one request, over all plugins that were asked.

    Attributes:
        speaks_0_6: whether conflicts have the texts of NRI 0.6.
        owner_by_claim: (container id, field with its key) -> plugin.
    """

    speaks_0_6: bool = False
    owner_by_claim: dict[tuple[str, str], str] = field(default_factory=dict)

    def claim(self, plugin: str, container_id: str, resources: Resources, env: Iterable[str] = ()) -> str:
        """Claims every set field; returns "" or the conflict, in the words a CRI client would see."""
        for what in (*_resource_claims(resources), *(f"Env {name}" for name in env)):
            owner = self.owner_by_claim.get((container_id, what), "")
            if owner:
                word = _WORDS_OF_0_6.get(what, what) if self.speaks_0_6 else what
                return f'plugins "{plugin}" and "{owner}" both tried to set {word}'
            self.owner_by_claim[container_id, what] = plugin
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


def _resource_claims(resources: Resources) -> Iterator[str]:
    for attribute, what in FIELDS.items():
        if getattr(resources, attribute) != getattr(_UNSET, attribute):
            yield what
    for page_size, _ in resources.hugepage_limits:
        yield f"HugepageLimits {page_size}"
