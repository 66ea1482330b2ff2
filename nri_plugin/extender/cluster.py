"""Filter and scores for one pod and many nodes, and a cache of the answers.

The filter is that of NodeResourceTopologyMatch. Only the policy single-numa-node filters; other policies never reject
a pod for its topology. In container scope, containers take from the NUMA node of lowest id that holds them, and the
next container sees what is left.

`ClusterAnswers` keeps answers by the shape of the pod. Invariant: an answer is what computing it again would give. It
is valid while the node's row is unchanged; changed rows are computed again.

Source: scheduler-plugins pkg/noderesourcetopology/filter.go.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nri_plugin.extender import cluster_scores
from nri_plugin.extender.cluster_scores import MAX_SCORE, Scoring, Strategy
from nri_plugin.extender.nodes import NodePolicy, Zones, is_free_of_charge
from nri_plugin.extender.table import MOST, Batch, ClusterTable, Flags, Rows
from nri_plugin.kube.pod_demand import ContainerDemand, ContainerKind, PodDemand, QoS, is_host_level

# The filter

PASS = 0
POD = -1
"""The pod as a whole does not fit. A container that does not fit has its position as code, from 1."""
OWN_RESOURCES = -2
"""The resources that the pod sets for itself do not fit."""

Codes = NDArray[np.int32]


def codes(batch: Batch, pod: PodDemand, *, sidecars_stay: bool = False) -> Codes:
    """Return for each row PASS, POD, or the position of the first container that does not fit, from 1."""
    found = np.zeros(len(batch), np.int32)
    if needs_no_filter(pod):
        return found
    filtered = batch.has_nrt & batch.is_single
    for seen, demand in demands(batch, pod):
        for rows, judge in (
            (np.flatnonzero(seen & filtered & batch.is_pod_scope), _pod_codes),
            (np.flatnonzero(seen & filtered & ~batch.is_pod_scope), _container_codes),
        ):
            if len(rows):
                found[rows] = judge(batch.take(rows), demand, sidecars_stay)
    if pod.own:
        found[batch.pod_level_managers & (found == POD)] = OWN_RESOURCES
    return found


def demands(batch: Batch, pod: PodDemand) -> Iterator[tuple[Flags, PodDemand]]:
    """Yield the pod as nodes see it, with a flag for each row of such a node; see `NodePolicy.demand_of`.

    Differs: the scheduler plugin never looks at the resources of the pod itself, and the kubelet then rejects the pod;
        here: they count on nodes that manage them. Why: the node decides by them. Option: none.
    """
    managed = batch.pod_level_managers
    if not pod.own:
        yield np.ones(len(batch), np.bool_), pod
        return
    yield ~managed, pod
    yield managed & batch.is_pod_scope, pod.under_pod_scope
    yield managed & ~batch.is_pod_scope, pod.under_container_scope


def needs_no_filter(pod: PodDemand) -> bool:
    """Whether every node fits the pod, because none of its resources is ever bound to a NUMA node."""
    return pod.qos is QoS.BEST_EFFORT and not pod.asks_for_devices


def stays(container: ContainerDemand, *, sidecars_stay: bool) -> bool:
    """Whether later containers cannot use the resources of the container.

    Differs: the scheduler plugin does not count the resources of sidecars while app containers start, and the
        kubelet then rejects the pod; here: they are counted. Why: a sidecar keeps its resources. Option:
        `--no-sidecars`.
    """
    return container.kind is ContainerKind.APP or (sidecars_stay and container.kind is ContainerKind.SIDECAR)


def names_of(pod: PodDemand) -> list[str]:
    """Return all resources that any part of the pod requests."""
    asked = {name for one in pod.containers for name in one.requests}
    return sorted(asked | set(pod.overhead) | set(pod.own))


def _pod_codes(batch: Batch, pod: PodDemand, sidecars_stay: bool) -> Codes:
    request = pod.effective_with_sidecars if sidecars_stay else pod.effective
    fits, _, _ = _fit(batch, request, is_guaranteed=pod.is_guaranteed)
    return np.where(fits, PASS, POD).astype(np.int32)


def _container_codes(batch: Batch, pod: PodDemand, sidecars_stay: bool) -> Codes:
    found = np.zeros(len(batch), np.int32)
    for place, container in enumerate(pod.containers, start=1):
        fits, is_bound, chosen = _fit(batch, container.requests, is_guaranteed=pod.is_guaranteed)
        found[(found == PASS) & ~fits] = place
        if stays(container, sidecars_stay=sidecars_stay):
            givers = np.flatnonzero(fits & is_bound)
            _take(batch, givers, chosen[givers], container.requests, is_guaranteed=pod.is_guaranteed)
    return found


def _fit(batch: Batch, request: Mapping[str, int], *, is_guaranteed: bool) -> tuple[Flags, Flags, Rows]:
    """Return for each row whether one zone holds the request, whether any zone matters, and the zone of lowest id."""
    suits = batch.exists
    is_bound = np.zeros(len(batch), np.bool_)
    for name, amount in request.items():
        if not amount:
            continue
        listed = batch.listed(name)
        here = listed
        if not is_free_of_charge(name, is_guaranteed=is_guaranteed):
            here = listed & (batch.available(name) >= amount)
        if is_host_level(name):
            matters: Flags = np.asarray(listed.any(axis=1))
            suits &= here | ~matters[:, None]
            is_bound |= matters
        else:
            suits &= here
            is_bound[:] = True
    chosen = np.where(suits, batch.ids, np.iinfo(np.int64).max).argmin(axis=1)
    return suits.any(axis=1) | ~is_bound, is_bound, chosen


def _take(batch: Batch, rows: Rows, chosen: Rows, request: Mapping[str, int], *, is_guaranteed: bool) -> None:
    for name, amount in request.items():
        if amount and not is_free_of_charge(name, is_guaranteed=is_guaranteed):
            batch.available(name)[rows, chosen] -= min(amount, MOST) * batch.listed(name)[rows, chosen]


# The cache of answers

SHAPES = 64
"""Shapes of pods whose answers are kept; each takes 80 kB for 5,000 nodes."""

Scores = NDArray[np.int64]
Column = NDArray[np.int64]


@dataclass(slots=True)
class _Answers:
    """One answer for each row, and the table's stamp up to which they are valid."""

    values: Column
    stamp: int = -1


class ClusterAnswers:
    """The nodes of a cluster, and computed answers for them.

    Args:
        scoring: how nodes are scored.
        sidecars_stay: count the resources of sidecars while app containers start.
    """

    def __init__(self, scoring: Scoring, *, sidecars_stay: bool = True) -> None:
        self._scoring = scoring
        self._sidecars_stay = sidecars_stay
        self.table = ClusterTable()
        self._kept: OrderedDict[tuple[object, ...], _Answers] = OrderedDict()

    def put(self, node: str, how: NodePolicy, zones: Zones) -> None:
        """Set a node's policy and its NUMA nodes, less the charges."""
        self.table.put(node, how, zones)

    def forget(self, node: str) -> None:
        """Forget a node."""
        self.table.forget(node)

    def codes(self, nodes: Sequence[str], pod: PodDemand) -> Codes:
        """Return the codes of `codes` for each node."""
        return self._answered("codes", nodes, pod, self._ask_codes).astype(np.int32)

    def scores(self, nodes: Sequence[str], pod: PodDemand) -> Scores:
        """Return 0..100 for each node; equal for a pod that is not Guaranteed, 0 for a node without an object."""
        if not pod.is_guaranteed:
            return np.full(len(nodes), MAX_SCORE, np.int64)
        return self._answered("scores", nodes, pod, self._ask_scores)

    def _ask_codes(self, batch: Batch, pod: PodDemand) -> Column:
        return codes(batch, pod, sidecars_stay=self._sidecars_stay).astype(np.int64)

    def _ask_scores(self, batch: Batch, pod: PodDemand) -> Column:
        found = np.zeros(len(batch), np.int64)
        for seen, demand in demands(batch, pod):
            known = np.flatnonzero(seen & batch.has_nrt)
            if not len(known):
                continue
            part, how = batch.take(known), self._scoring
            if how.strategy is Strategy.LEAST_NUMA_NODES:
                found[known] = cluster_scores.scores(part, demand, self.table.costs, how.bonus)
            else:
                found[known] = cluster_scores.node_scores(how.strategy, part, demand, how.weights)
        return found

    def _answered(
        self,
        what: str,
        nodes: Sequence[str],
        pod: PodDemand,
        ask: Callable[[Batch, PodDemand], Column],
    ) -> Column:
        rows = self.table.rows_of(nodes)
        # Pods of one shape have equal answers, so a deployment of a thousand pods is computed once.
        key = what, pod.shape
        answers = self._kept[key] = self._kept.pop(key, _Answers(np.zeros(0, np.int64)))
        if len(self._kept) > SHAPES:
            self._kept.popitem(last=False)
        if len(answers.values) < self.table.size:
            answers.values = np.zeros(self.table.size, np.int64)
            answers.stamp = -1
        # The rows that changed since these answers, also of nodes outside this request, which later requests name.
        open_rows = np.flatnonzero(self.table.stamps > max(answers.stamp, 0))
        for some, batch in self.table.batches(open_rows, names_of(pod)) if len(open_rows) else ():
            answers.values[some] = ask(batch, pod)
        answers.stamp = self.table.stamp
        wanted: Column = answers.values[rows]
        return wanted
