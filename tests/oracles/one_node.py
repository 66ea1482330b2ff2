"""Filter and scores of the scheduler plugin NodeResourceTopologyMatch for one node at a time: a scalar twin.

The extender answers for all nodes of a cluster at once in columns; recorded answers of the plugin judge both, and
laws compare them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from nri_plugin.extender.cluster import needs_no_filter, stays
from nri_plugin.extender.cluster_scores import (
    LEAST_SCORE,
    MAX_SCORE,
    DistanceBonus,
    Scoring,
    Strategy,
    Weights,
    weight_of,
    whole,
)
from nri_plugin.extender.nodes import (
    UNKNOWN_COST,
    NodePolicy,
    NUMAZone,
    Zones,
    closest_set,
    fitting,
    is_free_of_charge,
    least_total,
    node_policy,
    numa_zones,
)
from nri_plugin.extender.table import cost_table
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.kube.pod_demand import Amounts, PodDemand

ALWAYS_ALLOCATABLE = frozenset({"cpu", "memory", "pods", "ephemeral-storage"})

ZoneScore = Callable[[Amounts, Amounts, Weights], int]

# May a pod go to a node: the filter of NodeResourceTopologyMatch, one node at a time.
#
# Only the policy single-numa-node filters; the others never turn a pod away for its topology.
# `cluster_filter` answers the same for all nodes of a cluster at once.
#
# Source: scheduler-plugins pkg/noderesourcetopology/filter.go.


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node is out.

    Attributes:
        what: the first thing that could not be aligned: `pod` or a kind of container.
        name: the container's name, empty for the pod.
        request: what it asks for.
    """

    what: str
    name: str
    request: Amounts


def refusal(
    pod: PodDemand,
    topology: NodeResourceTopology | None,
    allocatable: Amounts | None = None,
    *,
    sidecars_stay: bool = False,
) -> Refusal | None:
    """None when the pod may go to the node.

    Args:
        pod: what is asked for.
        topology: what the node tells; None passes.
        allocatable: of the node, None where unknown.
        sidecars_stay: count what sidecars hold while app containers start. Differs: the scheduler plugin
            checks each alone, and then the kubelet refuses the pod.
    """
    if topology is None or needs_no_filter(pod):
        return None
    how = node_policy(topology)
    if not how.is_single:
        return None
    pod = how.demand_of(pod)
    zones = numa_zones(topology)
    if how.is_pod_scope:
        request = pod.effective_with_sidecars if sidecars_stay else pod.effective
        return _pod_refusal(pod, request, zones, allocatable)
    return _container_refusal(pod, zones, allocatable, sidecars_stay=sidecars_stay)


def _pod_refusal(
    pod: PodDemand, request: Amounts, zones: Zones, allocatable: Amounts | None
) -> Refusal | None:
    found = _fitting(pod, request, zones, allocatable)
    return None if found is None or found else Refusal("pod", "", request)


def _fitting(
    pod: PodDemand, request: Amounts, zones: Zones, allocatable: Amounts | None
) -> frozenset[int] | None:
    """As the extender, and none where the node cannot allocate a resource, which the scheduler's own filter judges."""
    asked = {name for name, amount in request.items() if amount} - ALWAYS_ALLOCATABLE
    if allocatable is not None and not asked <= allocatable.keys():
        return frozenset()
    return fitting(request, zones, is_guaranteed=pod.is_guaranteed)


def _container_refusal(
    pod: PodDemand, zones: Zones, allocatable: Amounts | None, *, sidecars_stay: bool
) -> Refusal | None:
    for container in pod.containers:
        found = _fitting(pod, container.requests, zones, allocatable)
        if found is not None and not found:
            return Refusal(container.kind.value, container.name, container.requests)
        if found and stays(container, sidecars_stay=sidecars_stay):
            zones, short = take_from_one(
                zones, min(found), container.requests, is_guaranteed=pod.is_guaranteed
            )
            if short:
                return Refusal(container.kind.value, container.name, container.requests)
    return None


# LeastAllocated, MostAllocated and BalancedAllocation of one zone, and of a node by its zones.
#
# A score is 0..100. Requests are compared exactly and divided in whole units, rounded up, as the scheduler does.
#
# Source: scheduler-plugins pkg/noderesourcetopology/{least_allocated,most_allocated,balanced_allocation,score}.go.


def least_allocated(request: Amounts, available: Amounts, weights: Weights) -> int:
    """The larger the share that stays, the better."""
    return _weighted(request, available, weights, lambda asked, have: (have - asked) * MAX_SCORE // have)


def most_allocated(request: Amounts, available: Amounts, weights: Weights) -> int:
    """The larger the share that is used, the better."""
    return _weighted(request, available, weights, lambda asked, have: asked * MAX_SCORE // have)


def balanced_allocation(request: Amounts, available: Amounts, weights: Weights) -> int:
    """The more alike the shares of all resources, the better; weights do not matter.

    Differs: for a single resource the reference converts not-a-number; here it is balanced in itself.
    """
    shares = [_share(amount, available.get(name, 0)) for name, amount in request.items()]
    if any(share > 1 for share in shares):
        return 0
    return max(LEAST_SCORE, int((1 - sample_variance(shares)) * MAX_SCORE))


def sample_variance(values: list[float]) -> float:
    """By two passes, corrected; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = _added(values) / len(values)
    apart = [value - mean for value in values]
    squares, rest = _added(one * one for one in apart), _added(apart)
    return (squares - rest * rest / len(values)) / (len(values) - 1)


def _added(values: Iterable[float]) -> float:
    """One after the other, as the reference adds: from Python 3.12 on `sum` makes up for rounding, and is another."""
    return reduce(add, values, 0.0)


def node_score(score: ZoneScore, pod: PodDemand, how: NodePolicy, zones: Zones, weights: Weights) -> int:
    """The score of a node; 0 unless it aligns to single NUMA nodes.

    In container scope the mean over all containers, each alone on an untouched node.
    """
    if not how.is_single:
        return 0
    if how.is_pod_scope:
        return _worst_usable(score, pod.effective, zones, weights)
    scores = [_worst_usable(score, one.requests, zones, weights) for one in pod.containers]
    return int(sum(scores) / len(scores)) if scores else 0


def _worst_usable(score: ZoneScore, request: Amounts, zones: Zones, weights: Weights) -> int:
    """The lowest score above zero: nobody knows which zone the node will take, and a zero is taken as "cannot"."""
    return min((s for s in (score(request, zone.available, weights) for zone in zones) if s), default=0)


def _weighted(
    request: Amounts, available: Amounts, weights: Weights, share: Callable[[int, int], int]
) -> int:
    total = weight_sum = 0
    for name, amount in request.items():
        have, weight = available.get(name, 0), weight_of(weights, name)
        if have and amount <= have:
            total += share(whole(amount), whole(have)) * weight
        weight_sum += weight
    return total // weight_sum if weight_sum else 0


def _share(amount: int, have: int) -> float:
    return whole(amount) / whole(have) if have else 1.0


# LeastNUMANodes: the fewer NUMA nodes a pod needs, and the closer they are, the higher the score.
#
# One NUMA node gives 94 when no other is closer to itself, else 88; two give 82 when they are the closest two, else
# 76; and so on (with the default divisor 8). Works for all topology policies.
#
# Source: scheduler-plugins pkg/noderesourcetopology/least_numa.go. Differs: zones are found by id also where ids have
# gaps (the reference charges the wrong zone); sets are searched, not enumerated; the bonus for distance can be kept
# for nodes that prefer close NUMA nodes, as the first design of the strategy has it.


@dataclass(frozen=True, slots=True)
class Needed:
    """The NUMA nodes of one request: positions in the list, and whether no set of that size is closer."""

    positions: tuple[int, ...]
    is_closest: bool


def least_numa_score(
    pod: PodDemand, how: NodePolicy, zones: Zones, bonus: DistanceBonus = DistanceBonus.ALWAYS
) -> int:
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


def average_distance(zones: Zones, positions: tuple[int, ...]) -> float:
    """Mean over all ordered pairs, self included."""
    total = sum(_cost(zones[one], zones[other]) for one in positions for other in positions)
    return total / len(positions) ** 2


def _cost(one: NUMAZone, other: NUMAZone) -> int:
    return one.costs.get(other.id, UNKNOWN_COST)


ZONE_SCORES: Mapping[Strategy, ZoneScore] = {
    Strategy.LEAST_ALLOCATED: least_allocated,
    Strategy.MOST_ALLOCATED: most_allocated,
    Strategy.BALANCED_ALLOCATION: balanced_allocation,
}


def score(pod: PodDemand, topology: NodeResourceTopology | None, scoring: Scoring) -> int:
    """0..100; every node alike for a pod that is not Guaranteed, 0 for a node that tells nothing."""
    if not pod.is_guaranteed:
        return MAX_SCORE
    if topology is None:
        return 0
    how, zones = node_policy(topology), numa_zones(topology)
    pod = how.demand_of(pod)
    if scoring.strategy is Strategy.LEAST_NUMA_NODES:
        return least_numa_score(pod, how, zones, scoring.bonus)
    return node_score(ZONE_SCORES[scoring.strategy], pod, how, zones, scoring.weights)


# NUMA nodes, and taking from them


def lists_none(zones: Zones, names: Iterable[str]) -> bool:
    """Whether no zone lists any of the names."""
    return not any(name in zone.available for zone in zones for name in names)


def take_from_one(
    zones: Zones, numa_id: int, request: Amounts, *, is_guaranteed: bool
) -> tuple[Zones, Sequence[str]]:
    """The zones after one NUMA node gave the request, and the names of what went below zero."""
    taken = {
        name: amount
        for name, amount in request.items()
        if amount and not is_free_of_charge(name, is_guaranteed=is_guaranteed)
    }
    after = tuple(_less(zone, taken) if zone.id == numa_id else zone for zone in zones)
    short = [
        name for zone in after if zone.id == numa_id for name in taken if zone.available.get(name, 0) < 0
    ]
    return after, short


def drain(zones: Zones, positions: Sequence[int], request: Amounts) -> Zones:
    """The zones after those at `positions` gave the request together, each all it has before the next."""
    left = {name: amount for name, amount in request.items() if amount}
    after = list(zones)
    for position in positions:
        zone = zones[position]
        given = {name: min(left[name], have) for name, have in zone.available.items() if name in left}
        given = {name: max(0, amount) for name, amount in given.items()}
        after[position] = _less(zone, given)
        left = {name: amount - given.get(name, 0) for name, amount in left.items()}
    return tuple(after)


def _less(zone: NUMAZone, amounts: Amounts) -> NUMAZone:
    available = {name: have - amounts.get(name, 0) for name, have in zone.available.items()}
    return replace(zone, available=available)
