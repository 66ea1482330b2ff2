"""`zone_scores.node_score` for many nodes at once."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from nri_plugin.kube.cluster_table import MOST, Amounts, Batch
from nri_plugin.kube.pod_demand import PodDemand
from nri_plugin.kube.scores import Strategy
from nri_plugin.kube.zone_scores import MAX_SCORE, Weights, weight_of, whole

Request = Mapping[str, int]
Scores = NDArray[np.int64]
ZoneScores = Callable[[Request, Batch, Weights], Scores]


def node_scores(strategy: Strategy, batch: Batch, pod: PodDemand, weights: Weights) -> Scores:
    """Per row 0..100; 0 where the node does not align to single NUMA nodes."""
    found = np.zeros(len(batch), np.int64)
    score = ZONE_SCORES[strategy]
    rows = np.flatnonzero(batch.is_single & batch.is_pod_scope)
    if len(rows):
        found[rows] = _worst_usable(score, pod.effective, batch.take(rows), weights)
    rows = np.flatnonzero(batch.is_single & ~batch.is_pod_scope)
    if len(rows) and pod.containers:
        part = batch.take(rows)
        total = sum(_worst_usable(score, one.requests, part, weights) for one in pod.containers)
        found[rows] = total // len(pod.containers)
    return found


def _worst_usable(score: ZoneScores, request: Request, batch: Batch, weights: Weights) -> Scores:
    by_zone = score(request, batch, weights)
    usable = batch.exists & (by_zone != 0)
    lowest = np.where(usable, by_zone, np.iinfo(np.int64).max).min(axis=1)
    return np.where(usable.any(axis=1), lowest, 0)


def _least(asked: int, have: Amounts) -> Amounts:
    return (have - asked) * MAX_SCORE // have


def _most(asked: int, have: Amounts) -> Amounts:
    return asked * MAX_SCORE // have


def _weighted(share: Callable[[int, Amounts], Amounts]) -> ZoneScores:
    def score(request: Request, batch: Batch, weights: Weights) -> Scores:
        total = np.zeros(batch.ids.shape, np.int64)
        weight_sum = 0
        for name, amount in request.items():
            have, weight = batch.available[name], weight_of(weights, name)
            units = _whole(have)
            usable = (have != 0) & (amount <= have)
            total += np.where(usable, share(whole(min(amount, MOST)), np.where(usable, units, 1)), 0) * weight
            weight_sum += weight
        return total // weight_sum if weight_sum else total

    return score


def _balanced(request: Request, batch: Batch, weights: Weights) -> Scores:  # noqa: ARG001 - one form
    shares = [_shares(amount, batch.available[name]) for name, amount in request.items()]
    is_over = np.zeros(batch.ids.shape, np.bool_)
    for share in shares:
        is_over |= share > 1
    shares = [np.where(is_over, 1.0, share) for share in shares]  # else squares no integer can hold
    return np.where(is_over, 0, ((1 - _variance(shares, is_over)) * MAX_SCORE).astype(np.int64))


def _shares(amount: int, have: Amounts) -> NDArray[np.float64]:
    units = np.where(have != 0, _whole(have), 1)
    return np.where(have != 0, whole(amount) / units, 1.0)


def _whole(milli: Amounts) -> Amounts:
    """`whole`, of many."""
    return np.where(milli >= 0, -(-milli // 1000), milli // 1000)


def _variance(shares: list[NDArray[np.float64]], like: NDArray[np.bool_]) -> NDArray[np.float64]:
    """`zone_scores.sample_variance`, operation by operation."""
    zero = np.zeros(like.shape, np.float64)
    if len(shares) < 2:
        return zero
    mean = sum(shares, zero) / len(shares)
    apart = [share - mean for share in shares]
    squares = sum((one * one for one in apart), zero)
    return np.asarray((squares - sum(apart, zero) ** 2 / len(shares)) / (len(shares) - 1))


ZONE_SCORES: Mapping[Strategy, ZoneScores] = {
    Strategy.LEAST_ALLOCATED: _weighted(_least),
    Strategy.MOST_ALLOCATED: _weighted(_most),
    Strategy.BALANCED_ALLOCATION: _balanced,
}
