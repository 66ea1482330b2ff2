"""The over-reserve cache of the scheduler plugin, for one node, as values: who reserved, who was seen, what is stale.

A reserved pod is charged to every NUMA node until exporter and scheduler agree, by fingerprint, which pods run
there. This is what an unmodified scheduler makes of the objects we publish; the extender goes pod by pod (`charges`).

Source: scheduler-plugins pkg/noderesourcetopology/cache/overreserve.go.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nri_plugin.extender.nodes import Zones, node_policy, numa_zones
from nri_plugin.kube.noderesourcetopology import METHOD_EXCLUSIVE, NodeResourceTopology, fingerprint
from nri_plugin.kube.pod_demand import PodDemand

PodKey = tuple[str, str]


class ResyncMethod(StrEnum):
    """Which pods a fingerprint is made of; the values are the plugin's."""

    AUTODETECT = "Autodetect"
    ALL = "All"
    ONLY_EXCLUSIVE = "OnlyExclusiveResources"


class ResyncScope(StrEnum):
    """Whether a changed policy makes the cache take the new object; the values are the plugin's."""

    ALL = "All"
    ONLY_RESOURCES = "OnlyResources"


@dataclass(frozen=True, slots=True)
class OverReserve:
    """What the cache knows of a node.

    Attributes:
        cached: the object that is believed; newer ones wait for `resynced`.
        assumed: requests by pod.
        is_suspect: a pod was refused, so too much may be charged.
        is_foreign: a pod came from elsewhere, so too little may be.
        is_changed: the node's policy is another.
    """

    cached: NodeResourceTopology
    assumed: Mapping[PodKey, Mapping[str, int]] = field(default_factory=dict)
    is_suspect: bool = False
    is_foreign: bool = False
    is_changed: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether pods may be placed by it."""
        return not self.is_foreign

    @property
    def is_dirty(self) -> bool:
        """Whether it waits for agreement."""
        return self.is_suspect or self.is_foreign

    @property
    def charges(self) -> dict[str, int]:
        """The sum of all assumed requests."""
        total: dict[str, int] = {}
        for request in self.assumed.values():
            for name, amount in request.items():
                total[name] = total.get(name, 0) + amount
        return total

    def zones(self) -> Zones:
        """The NUMA nodes less the charges, each of them."""
        return tuple(zone.less(self.charges) for zone in numa_zones(self.cached))

    def reserved(self, pod: PodDemand) -> "OverReserve":
        """After the scheduler chose the node for a pod."""
        return replace(self, assumed={**self.assumed, (pod.namespace, pod.name): pod.effective})

    def unreserved(self, pod: PodKey) -> "OverReserve":
        """After it gave the choice up."""
        return replace(self, assumed={key: value for key, value in self.assumed.items() if key != pod})

    def refused(self) -> "OverReserve":
        """After the filter refused the node."""
        return replace(self, is_suspect=True)

    def met_foreign_pod(self) -> "OverReserve":
        """After another scheduler's pod was seen on the node."""
        return replace(self, is_foreign=True)

    def observed(self, live: NodeResourceTopology, scope: ResyncScope) -> "OverReserve":
        """After the watch showed a new object."""
        differs = node_policy(live) != node_policy(self.cached)
        return replace(self, is_changed=self.is_changed or (differs and scope is ResyncScope.ALL))

    def resynced(
        self, live: NodeResourceTopology, listed: Iterable[PodDemand], method: ResyncMethod
    ) -> "OverReserve":
        """After a round: the live object without charges where both sides agree, else unchanged."""
        if self.is_changed or (self.is_dirty and agrees(live, listed, method)):
            return OverReserve(live)
        return self


def agrees(live: NodeResourceTopology, listed: Iterable[PodDemand], method: ResyncMethod) -> bool:
    """Whether the object accounts for exactly the pods listed on the node."""
    pods = list(listed)
    if not pods or not live.fingerprint:
        return False
    if is_exclusive_only(live, method):
        pods = [pod for pod in pods if pod.holds_exclusively(live.resource_names)]
    return fingerprint((pod.namespace, pod.name) for pod in pods) == live.fingerprint


def is_exclusive_only(live: NodeResourceTopology, method: ResyncMethod) -> bool:
    """Whether only pods that hold something alone are in the fingerprint."""
    if method is ResyncMethod.AUTODETECT:
        return live.fingerprint_method == METHOD_EXCLUSIVE
    return method is ResyncMethod.ONLY_EXCLUSIVE


def is_foreign(
    pod: PodDemand, profiles: Iterable[str], nrt_names: Iterable[str], *, only_exclusive: bool
) -> bool:
    """Whether a pod sits on a node by the choice of a scheduler that is not ours."""
    if not pod.node or pod.scheduler in set(profiles):
        return False
    return not only_exclusive or pod.holds_exclusively(nrt_names)
