"""Scores of NodeResourceTopologyMatch, 0..100, for one pod on many nodes at once.

Three strategies score each NUMA node by its shares: LeastAllocated, MostAllocated, BalancedAllocation. A Kubernetes
node then scores as its worst NUMA node that can hold the request, and 0 unless it aligns to single NUMA nodes.

LeastNUMANodes scores by the number of NUMA nodes that the pod needs and by the distance between them, for every
topology policy. With the default divisor 8, one NUMA node scores 94 if no other is closer to itself, else 88; two
score 82 if they are the closest two, else 76; and so on.

Every value is computed as a column: one entry for each node of the cluster. Requests are compared exactly, and
divided in whole units rounded up, as the scheduler does.

Source: scheduler-plugins pkg/noderesourcetopology/{least_allocated,most_allocated,balanced_allocation,score,
least_numa}.go.
Differs: the scheduler plugin charges the wrong zone where NUMA ids have gaps; here: NUMA nodes are found by
    id. Why: machines with gaps exist. Option: none.
Differs: the scheduler plugin enumerates sets of NUMA nodes; here: sets are searched where enumerating them is
    too much. Why: kube-scheduler waits for the answer. Option: none.
Differs: the scheduler plugin gives the bonus for distance on every node; here: it can be limited to nodes
    that prefer close NUMA nodes. Why: other nodes do not choose NUMA nodes by distance. Option:
    `--distance-bonus always`.
Differs: the scheduler plugin converts not-a-number for BalancedAllocation of a single resource; here: a
    single resource is balanced. Why: the result of that conversion depends on the processor. Option: none.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nri_plugin.extender.nodes import UNKNOWN_COST, Costs, closest_set, least_total
from nri_plugin.extender.table import MOST, Amounts, Batch, CostTable, Flags, Rows
from nri_plugin.kube.pod_demand import PodDemand

MAX_SCORE = 100

LEAST_SCORE = -(1 << 53)
"""The lowest score, for zones that publish negative amounts. A lower floating-point score may not fit an integer."""

MOST_SETS = 2048
"""Most columns: all pairs of 64 NUMA nodes, all sets of 12."""

FAR = np.int64(1 << 62)
"""Stands for the distance of a set with a NUMA node that the Kubernetes node does not have."""

Request = Mapping[str, int]
Weights = Mapping[str, int]
Scores = NDArray[np.int64]
ZoneScores = Callable[[Request, Batch, Weights], Scores]


class Strategy(StrEnum):
    """How nodes are scored; the values are those of the scheduler plugin's `scoringStrategy.type`."""

    LEAST_NUMA_NODES = "LeastNUMANodes"
    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"
    BALANCED_ALLOCATION = "BalancedAllocation"


class DistanceBonus(StrEnum):
    """On which nodes close NUMA nodes score higher: all, or those that set `prefer-closest-numa-nodes`."""

    ALWAYS = "always"
    PREFER_CLOSEST = "prefer-closest-numa-nodes"


@dataclass(frozen=True, slots=True)
class Scoring:
    """The administrator's options.

    Attributes:
        strategy: how nodes are scored.
        weights: by resource, for LeastAllocated and MostAllocated.
        bonus: on which nodes distance counts, for LeastNUMANodes.
    """

    strategy: Strategy = Strategy.LEAST_NUMA_NODES
    weights: Weights = field(default_factory=dict)
    bonus: DistanceBonus = DistanceBonus.ALWAYS


# Scores of single NUMA nodes


def node_scores(strategy: Strategy, batch: Batch, pod: PodDemand, weights: Weights) -> Scores:
    """Return 0..100 for each row; 0 if the node does not align to single NUMA nodes.

    In container scope, the score is the mean over all containers, each of them alone on the node.
    """
    found = np.zeros(len(batch), np.int64)
    score = ZONE_SCORES[strategy]
    rows = np.flatnonzero(batch.is_single & batch.is_pod_scope)
    if len(rows):
        found[rows] = _worst_usable(score, pod.effective, batch.take(rows), weights)
    rows = np.flatnonzero(batch.is_single & ~batch.is_pod_scope)
    if len(rows) and pod.containers:
        part = batch.take(rows)
        total = sum(_worst_usable(score, one.requests, part, weights) for one in pod.containers)
        # Truncated, as Go converts a mean: a zone with less than nothing available scores below zero.
        found[rows] = np.sign(total) * (np.abs(total) // len(pod.containers))
    return found


def _worst_usable(score: ZoneScores, request: Request, batch: Batch, weights: Weights) -> Scores:
    # The kubelet's choice of the NUMA node is unknown, so the lowest score counts. A zero means "cannot hold it".
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
            have, weight = batch.available(name), weight_of(weights, name)
            units = _whole(have)
            usable = (have != 0) & (amount <= have)
            total += np.where(usable, share(whole(min(amount, MOST)), np.where(usable, units, 1)), 0) * weight
            weight_sum += weight
        return total // weight_sum if weight_sum else total

    return score


def _balanced(request: Request, batch: Batch, weights: Weights) -> Scores:  # noqa: ARG001 - one form
    shares = [_shares(amount, batch.available(name)) for name, amount in request.items()]
    is_over = np.zeros(batch.ids.shape, np.bool_)
    for share in shares:
        is_over |= share > 1
    shares = [np.where(is_over, 1.0, share) for share in shares]  # avoids squares that no integer can hold
    scores = np.maximum((1 - _variance(shares, is_over)) * MAX_SCORE, LEAST_SCORE)
    return np.where(is_over, 0, scores.astype(np.int64))


def _shares(amount: int, have: Amounts) -> NDArray[np.float64]:
    units = np.where(have != 0, _whole(have), 1)
    return np.where(have != 0, whole(amount) / units, 1.0)


def weight_of(weights: Weights, name: str) -> int:
    """Return the configured weight, at least 1; 1 for a resource without a weight."""
    return max(1, weights.get(name, 1))


def whole(milli: int) -> int:
    """Return whole units, rounded up. Negative amounts, which some exporters publish, are rounded away from zero.

    Source: k8s.io/apimachinery pkg/api/resource, `Quantity.Value`.
    """
    return -(-milli // 1000) if milli >= 0 else milli // 1000


def _whole(milli: Amounts) -> Amounts:
    """Return `whole` of a column."""
    return np.where(milli >= 0, -(-milli // 1000), milli // 1000)


def _variance(shares: list[NDArray[np.float64]], like: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the sample variance in two passes, corrected; 0 for fewer than two values.

    The order of the operations is that of the reference, so that floating-point numbers round alike.
    """
    zero = np.zeros(like.shape, np.float64)
    if len(shares) < 2:
        return zero
    mean = sum(shares, zero) / len(shares)
    deviations = [share - mean for share in shares]
    squares = sum((one * one for one in deviations), zero)
    return np.asarray((squares - sum(deviations, zero) ** 2 / len(shares)) / (len(shares) - 1))


ZONE_SCORES: Mapping[Strategy, ZoneScores] = {
    Strategy.LEAST_ALLOCATED: _weighted(_least),
    Strategy.MOST_ALLOCATED: _weighted(_most),
    Strategy.BALANCED_ALLOCATION: _balanced,
}


# LeastNUMANodes


@dataclass(slots=True)
class _ChosenSets:
    """For each row the chosen set, its size (0 while there is none), and whether no set of that size is closer."""

    members: Flags
    size: Amounts
    is_closest: Flags


MOST_SUMS = 64
"""Sizes and widths for which sums of one table of distances are kept; each takes up to 16 KiB."""

CostTables = Mapping[int, CostTable]


def _sums(tables: CostTables, cost_index: Rows, size: int, width: int) -> tuple[Amounts, Amounts]:
    """Return for each row the sum of each set, `FAR` for sets with zones that its table lacks, and the least sum."""
    indices, places = np.unique(cost_index, return_inverse=True)
    sums = [_sums_of(tables[index], size, width) for index in indices.tolist()]
    least = np.array([least for _, least in sums], np.int64)
    return np.stack([totals for totals, _ in sums])[places], least[places]


def _sums_of(table: CostTable, size: int, width: int) -> tuple[Amounts, int]:
    known = table.sums.get((size, width))
    if known is None:
        totals = _totals(table.costs, width, size)
        if len(table.sums) >= MOST_SUMS:
            table.sums.clear()
        known = table.sums[size, width] = totals, min(int(totals.min()), UNKNOWN_COST * size * size)
    return known


def scores(batch: Batch, pod: PodDemand, tables: CostTables, bonus: DistanceBonus) -> Scores:
    """Return the score for each row; 0 if the pod fits in no set of NUMA nodes."""
    found = np.zeros(len(batch), np.int64)
    by_container = [one.requests for one in pod.containers]
    for rows, requests in (
        (np.flatnonzero(batch.is_pod_scope), [pod.effective]),
        (np.flatnonzero(~batch.is_pod_scope), by_container),
    ):
        if len(rows):
            found[rows] = _scores(batch.take(rows), requests, tables, bonus)
    return found


def _scores(
    batch: Batch,
    requests: Sequence[Request],
    tables: CostTables,
    bonus: DistanceBonus,
) -> Scores:
    most = np.zeros(len(batch), np.int64)
    is_closest = np.ones(len(batch), np.bool_) if bonus is DistanceBonus.ALWAYS else batch.prefers_closest
    is_out = np.zeros(len(batch), np.bool_)
    for number, request in enumerate(requests):
        matters = np.zeros(len(batch), np.bool_)
        for name in request:
            matters |= batch.listed(name).any(axis=1)
        rows = np.flatnonzero(matters & ~is_out)
        if not len(rows):
            continue
        # Choose for all rows in which a NUMA node lists a requested resource and no container failed before.
        answer = _choose(batch, rows, request, tables)
        is_out[rows] |= answer.size == 0
        most[rows] = np.maximum(most[rows], answer.size)
        is_closest[rows] &= answer.is_closest | (answer.size == 0)
        # The next container sees the resources that this one leaves.
        if number + 1 < len(requests):
            _drain(batch, rows, answer.members, request)
    unit = MAX_SCORE // batch.max_numa_nodes
    score = MAX_SCORE - most * unit + np.where(is_closest, unit // 2, 0)
    return np.where(is_out, 0, np.where(most == 0, MAX_SCORE, score))


def _choose(batch: Batch, rows: Rows, request: Request, tables: CostTables) -> _ChosenSets:
    width = batch.ids.shape[1]
    answer = _ChosenSets(
        np.zeros((len(rows), width), np.bool_), np.zeros(len(rows), np.int64), np.ones(len(rows), np.bool_)
    )
    eligible = batch.exists[rows]
    for name in request:
        eligible &= batch.listed(name)[rows]
    needs = [
        (amount, np.where(eligible, batch.available(name)[rows], 0))
        for name, amount in request.items()
        if amount
    ]
    cost_index = batch.cost_index[rows]
    # Sizes ascend, so the first set of a row is a smallest one. Rows with a set drop out.
    open_rows = np.flatnonzero(_can_ever(eligible, needs))
    for size in range(1, width + 1):
        if not len(open_rows):
            break
        # Past this size a column per set costs more than a search for each remaining row.
        if math.comb(width, size) > MOST_SETS:
            _search(answer, open_rows, eligible, needs, cost_index, tables)
            break
        open_rows = _try_size(answer, open_rows, size, eligible, needs, cost_index, tables)
    return answer


def _can_ever(eligible: Flags, needs: Sequence[tuple[int, Amounts]]) -> Flags:
    """Return whether all eligible zones together hold the needs, or there are no needs."""
    can: Flags = np.asarray(eligible.any(axis=1))
    for amount, have in needs:
        can &= np.maximum(have, 0).sum(axis=1) >= amount
    return can


def _try_size(
    answer: _ChosenSets,
    rows: Rows,
    size: int,
    eligible: Flags,
    needs: Sequence[tuple[int, Amounts]],
    cost_index: Rows,
    tables: CostTables,
) -> Rows:
    """Choose for the rows in which a set of this size holds the needs; returns the other rows."""
    # For each row and set, a matrix product counts the eligible members, and another adds up their amounts.
    members = members_of(eligible.shape[1], size)
    fits = eligible[rows].astype(np.int64) @ members == size
    for amount, have in needs:
        fits &= have[rows] @ members >= amount
    settled: Flags = np.asarray(fits.any(axis=1))
    done = rows[settled]
    if len(done):
        totals, least = _sums(tables, cost_index[done], size, eligible.shape[1])
        # argmin takes the first of equals, which is the first set in lexicographic order.
        by_set = np.where(fits[settled], totals, FAR)
        chosen = by_set.argmin(axis=1)
        answer.members[done] = members.T[chosen].astype(np.bool_)
        answer.size[done] = size
        answer.is_closest[done] = by_set[np.arange(len(done)), chosen] <= least
    rest: Rows = rows[~settled]
    return rest


def _search(
    answer: _ChosenSets,
    rows: Rows,
    eligible: Flags,
    needs: Sequence[tuple[int, Amounts]],
    cost_index: Rows,
    tables: CostTables,
) -> None:
    for row in rows:
        table = tables[int(cost_index[row])]
        wanted = [(amount, have[row].tolist()) for amount, have in needs]
        found = closest_set(np.flatnonzero(eligible[row]).tolist(), wanted, table.costs)
        if found is not None:
            size = len(found.positions)
            answer.members[row, list(found.positions)] = True
            answer.size[row] = size
            if size not in table.least_by_size:
                least = least_total(table.costs, size)
                table.least_by_size[size] = min(least, UNKNOWN_COST * size * size)
            answer.is_closest[row] = found.total <= table.least_by_size[size]


def _drain(batch: Batch, rows: Rows, members: Flags, request: Request) -> None:
    """Subtract the request from the chosen zones, by ascending id, each zone's whole amount before the next."""
    by_id = batch.ids[rows].argsort(axis=1, kind="stable")
    for name, amount in request.items():
        if not amount:
            continue
        left = np.full(len(rows), min(amount, MOST), np.int64)
        for place in range(by_id.shape[1]):
            at = by_id[:, place]
            have = batch.available(name)[rows, at] * (members[np.arange(len(rows)), at])
            given = np.maximum(np.minimum(left, have), 0)
            batch.available(name)[rows, at] -= given
            left -= given


@lru_cache(maxsize=64)
def members_of(width: int, size: int) -> Amounts:
    """Return a column for each set of `size` of `width` positions, in lexicographic order; 1 for a member."""
    sets = list(itertools.combinations(range(width), size))
    members = np.zeros((width, len(sets)), np.int64)
    for column, positions in enumerate(sets):
        members[list(positions), column] = 1
    return members


def _totals(costs: Costs, width: int, size: int) -> Amounts:
    members = members_of(width, size)
    table = np.zeros((width, width), np.int64)
    count = len(costs)
    if count:
        table[:count, :count] = costs
    sums = ((table @ members) * members).sum(axis=0)
    return np.where(members[count:].any(axis=0), FAR, sums)
