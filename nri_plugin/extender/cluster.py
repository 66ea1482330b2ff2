"""A cluster that answers for one pod and all its nodes, and remembers the answers that still hold.

Invariant: an answer is what asking again would give: pods of one shape get one answer per node for as long as the
node's row is unchanged, and a changed row is asked again.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nri_plugin.extender import cluster_filter, cluster_scores
from nri_plugin.extender.cluster_filter import Codes, names_of
from nri_plugin.extender.cluster_scores import MAX_SCORE, DistanceTables, Scoring, Strategy
from nri_plugin.extender.table import Batch, ClusterRow, ClusterTable, Rows
from nri_plugin.kube.pod_demand import PodDemand

SHAPES = 64
"""Shapes of pods whose answers are kept: 5,000 nodes take 80 kB each."""

Scores = NDArray[np.int64]
Column = NDArray[np.int64]


@dataclass(slots=True)
class _Answers:
    """One answer per row, and the table's stamp up to which they hold."""

    values: Column
    stamp: int = -1


class ClusterAnswers:
    """The nodes, and what was asked of them.

    Args:
        scoring: what is liked.
        sidecars_stay: count what sidecars hold while app containers start.
    """

    def __init__(self, scoring: Scoring, *, sidecars_stay: bool = True) -> None:
        self._scoring = scoring
        self._sidecars_stay = sidecars_stay
        self.table = ClusterTable()
        self._distances = DistanceTables(self.table.costs)
        self._kept: OrderedDict[tuple[object, ...], _Answers] = OrderedDict()

    def put(self, node: str, content: ClusterRow | None) -> None:
        """Say what is known of a node; None for nothing."""
        before = self.table.renumbered
        self.table.put(node, content)
        if self.table.renumbered != before:
            self._distances = DistanceTables(self.table.costs)

    def forget(self, node: str) -> None:
        """A node that is no more."""
        self.table.forget(node)

    def codes(self, nodes: Sequence[str], pod: PodDemand) -> Codes:
        """Per node what `cluster_filter.codes` says."""
        return self._answered("codes", nodes, pod, self._ask_codes).astype(np.int32)

    def scores(self, nodes: Sequence[str], pod: PodDemand) -> Scores:
        """Per node 0..100, as `scores.score` says."""
        if not pod.is_guaranteed:
            return np.full(len(nodes), MAX_SCORE, np.int64)
        return self._answered("scores", nodes, pod, self._ask_scores)

    def _ask_codes(self, batch: Batch, pod: PodDemand) -> Column:
        return cluster_filter.codes(batch, pod, sidecars_stay=self._sidecars_stay).astype(np.int64)

    def _ask_scores(self, batch: Batch, pod: PodDemand) -> Column:
        found = np.zeros(len(batch), np.int64)
        known = np.flatnonzero(batch.has_nrt)
        if not len(known):
            return found
        part, how = batch.take(known), self._scoring
        if how.strategy is Strategy.LEAST_NUMA_NODES:
            found[known] = cluster_scores.scores(part, pod, self._distances, self.table.costs, how.bonus)
        else:
            found[known] = cluster_scores.node_scores(how.strategy, part, pod, how.weights)
        return found

    def _answered(
        self,
        what: str,
        nodes: Sequence[str],
        pod: PodDemand,
        ask: Callable[[Batch, PodDemand], Column],
    ) -> Column:
        rows = self.table.rows_of(nodes)
        answers = self._answers_for((what, pod.shape))
        open_rows = self._open_rows(answers)
        if len(open_rows):
            answers.values[open_rows] = ask(self.table.batch(open_rows, names_of(pod)), pod)
        answers.stamp = self.table.stamp
        wanted: Column = answers.values[rows]
        return wanted

    def _open_rows(self, answers: _Answers) -> Rows:
        """Rows that changed since they were asked, asked for now or not: next time they are."""
        if len(answers.values) < self.table.size:
            answers.values = np.zeros(self.table.size, np.int64)
            answers.stamp = -1
        used = self.table.stamps > max(answers.stamp, 0)
        return np.flatnonzero(used)

    def _answers_for(self, key: tuple[object, ...]) -> _Answers:
        answers = self._kept.pop(key, None) or _Answers(np.zeros(0, np.int64))
        self._kept[key] = answers
        if len(self._kept) > SHAPES:
            self._kept.popitem(last=False)
        return answers
