"""LeastNUMANodes: the fewer NUMA nodes a pod needs, and the closer they are, the higher the score.

One NUMA node gives 94 when no other is closer to itself, else 88; two give 82 when they are the closest two, else
76; and so on (with the default divisor 8). Works for all topology policies.

Source: scheduler-plugins pkg/noderesourcetopology/least_numa.go. Differs: zones are found by id also where ids have
gaps (the reference charges the wrong zone); sets are searched, not enumerated; the bonus for distance can be kept
for nodes that prefer close NUMA nodes, as the first design of the strategy has it.
"""

from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.kube.closest_search import Costs, closest_set, least_total
from nri_plugin.kube.node_policy import NodePolicy
from nri_plugin.kube.numa_zones import (
    UNKNOWN_COST,
    NUMAZone,
    Zones,
    drain,
    is_free_of_charge,
    lists_none,
)
from nri_plugin.kube.pod_demand import Amounts, PodDemand
from nri_plugin.kube.zone_scores import MAX_SCORE


class DistanceBonus(StrEnum):
    """Where close NUMA nodes score higher: always, or where the node says `prefer-closest-numa-nodes`."""

    ALWAYS = "always"
    PREFER_CLOSEST = "prefer-closest-numa-nodes"


@dataclass(frozen=True, slots=True)
class Needed:
    """The NUMA nodes of one request: positions in the list, and whether no set of that size is closer."""

    positions: tuple[int, ...]
    is_closest: bool


def score(pod: PodDemand, how: NodePolicy, zones: Zones, bonus: DistanceBonus = DistanceBonus.ALWAYS) -> int:
    """The score of a node, 0..100; 0 when the pod fits in no set of its NUMA nodes."""
    requests = [pod.effective] if how.is_pod_scope else [one.requests for one in pod.containers]
    most, is_closest = 0, bonus is DistanceBonus.ALWAYS or how.prefers_closest
    for request in requests:
        if lists_none(zones, request):
            continue
        needed = nodes_needed(zones, request, is_guaranteed=pod.is_guaranteed)
        if needed is None:
            return 0
        most, is_closest = max(most, len(needed.positions)), is_closest and needed.is_closest
        by_id = sorted(needed.positions, key=lambda position: zones[position].id)
        zones = drain(zones, by_id, request)
    return normalised(most, how.max_numa_nodes, is_closest=is_closest) if most else MAX_SCORE


def normalised(count: int, max_numa_nodes: int, *, is_closest: bool) -> int:
    """The score of a number of NUMA nodes."""
    unit = MAX_SCORE // max_numa_nodes
    return MAX_SCORE - count * unit + (unit // 2 if is_closest else 0)


def nodes_needed(zones: Zones, request: Amounts, *, is_guaranteed: bool) -> Needed | None:
    """The closest of the smallest sets of zones that list every resource and together hold it; None if none."""
    eligible = [at for at, zone in enumerate(zones) if all(name in zone.available for name in request)]
    needs = [
        (amount, [zone.available.get(name, 0) for zone in zones])
        for name, amount in request.items()
        if amount and not is_free_of_charge(name, is_guaranteed=is_guaranteed)
    ]
    costs = cost_table(zones)
    found = closest_set(eligible, needs, costs)
    if found is None:
        return None
    least = least_total(costs, len(found.positions))
    limit = min(least, UNKNOWN_COST * len(found.positions) ** 2)
    return Needed(found.positions, found.total <= limit)


def cost_table(zones: Zones) -> Costs:
    """Distances by position; what is not told counts as farthest."""
    return tuple(tuple(_cost(one, other) for other in zones) for one in zones)


def average_distance(zones: Zones, positions: tuple[int, ...]) -> float:
    """Mean over all ordered pairs, self included."""
    total = sum(_cost(zones[one], zones[other]) for one in positions for other in positions)
    return total / len(positions) ** 2


def _cost(one: NUMAZone, other: NUMAZone) -> int:
    return one.costs.get(other.id, UNKNOWN_COST)
