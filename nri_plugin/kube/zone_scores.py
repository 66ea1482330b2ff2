"""LeastAllocated, MostAllocated and BalancedAllocation of one zone, and of a node by its zones.

A score is 0..100. Requests are compared exactly and divided in whole units, rounded up, as the scheduler does.

Source: scheduler-plugins pkg/noderesourcetopology/{least_allocated,most_allocated,balanced_allocation,score}.go.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import add

from nri_plugin.kube.node_policy import NodePolicy
from nri_plugin.kube.numa_zones import Zones
from nri_plugin.kube.pod_demand import Amounts, PodDemand

MAX_SCORE = 100

Weights = Mapping[str, int]
ZoneScore = Callable[[Amounts, Amounts, Weights], int]


def weight_of(weights: Weights, name: str) -> int:
    """The configured weight; what is not configured, or below one, weighs one."""
    return max(1, weights.get(name, 1))


def least_allocated(request: Amounts, available: Amounts, weights: Weights) -> int:
    """The larger the share that stays, the better."""
    return _weighted(request, available, weights, lambda asked, have: (have - asked) * MAX_SCORE // have)


def most_allocated(request: Amounts, available: Amounts, weights: Weights) -> int:
    """The larger the share that is used, the better."""
    return _weighted(request, available, weights, lambda asked, have: asked * MAX_SCORE // have)


def balanced_allocation(request: Amounts, available: Amounts, weights: Weights) -> int:  # noqa: ARG001 - one form
    """The more alike the shares of all resources, the better; weights do not matter.

    Differs: for a single resource the reference converts not-a-number; here it is balanced in itself.
    """
    shares = [_share(amount, available.get(name, 0)) for name, amount in request.items()]
    if any(share > 1 for share in shares):
        return 0
    return int((1 - sample_variance(shares)) * MAX_SCORE)


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


def whole(milli: int) -> int:
    """Whole units, rounded up; what is below zero, as some exporters tell it, away from zero.

    Source: k8s.io/apimachinery pkg/api/resource, `Quantity.Value`.
    """
    return -(-milli // 1000) if milli >= 0 else milli // 1000


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
