"""How well a pod would sit on a node: the scores of NodeResourceTopologyMatch, one node at a time.

`cluster_scores` answers the same for all nodes of a cluster at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nri_plugin.kube import least_numa_nodes, zone_scores
from nri_plugin.kube.least_numa_nodes import DistanceBonus
from nri_plugin.kube.node_policy import node_policy
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.kube.numa_zones import numa_zones
from nri_plugin.kube.pod_demand import PodDemand
from nri_plugin.kube.zone_scores import MAX_SCORE, ZoneScore


class Strategy(StrEnum):
    """What is liked; the values are those of the scheduler plugin's `scoringStrategy.type`."""

    LEAST_NUMA_NODES = "LeastNUMANodes"
    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"
    BALANCED_ALLOCATION = "BalancedAllocation"


ZONE_SCORES: Mapping[Strategy, ZoneScore] = {
    Strategy.LEAST_ALLOCATED: zone_scores.least_allocated,
    Strategy.MOST_ALLOCATED: zone_scores.most_allocated,
    Strategy.BALANCED_ALLOCATION: zone_scores.balanced_allocation,
}


@dataclass(frozen=True, slots=True)
class Scoring:
    """What an administrator chose.

    Attributes:
        strategy: what is liked.
        weights: of resources, for LeastAllocated and MostAllocated.
        bonus: where distance counts, for LeastNUMANodes.
    """

    strategy: Strategy = Strategy.LEAST_NUMA_NODES
    weights: Mapping[str, int] = field(default_factory=dict)
    bonus: DistanceBonus = DistanceBonus.ALWAYS


def score(pod: PodDemand, topology: NodeResourceTopology | None, scoring: Scoring) -> int:
    """0..100; every node alike for a pod that is not Guaranteed, 0 for a node that tells nothing."""
    if not pod.is_guaranteed:
        return MAX_SCORE
    if topology is None:
        return 0
    how, zones = node_policy(topology), numa_zones(topology)
    if scoring.strategy is Strategy.LEAST_NUMA_NODES:
        return least_numa_nodes.score(pod, how, zones, scoring.bonus)
    return zone_scores.node_score(ZONE_SCORES[scoring.strategy], pod, how, zones, scoring.weights)
