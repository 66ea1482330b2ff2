"""The three verbs of a scheduler extender: filter, prioritize, bind.

Invariant: an answer names only nodes of the request. A node without an object passes. If no node has an object, all
nodes get the same score.

A pod is charged to the only node that passes, or to the node that scores best, and a bound pod to its node, so that the
next pod does not count on the same CPUs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import StrEnum

import numpy as np

from nri_plugin.extender import forms
from nri_plugin.extender.cache import ExtenderCache
from nri_plugin.extender.cluster import OWN_RESOURCES, PASS, POD
from nri_plugin.extender.nodes import fitting
from nri_plugin.kube.noderesourcetopology import format_amount
from nri_plugin.kube.pod_demand import PodDemand, pod_demand
from nri_plugin.model.errors import KubeObjectError, NriPinError

MAX_PRIORITY = 10
ANNOTATION_NUMA_NODE = "nri-pin/numa-node"
"""On a pod: the NUMA node that the extender chose, as a hint for the agent."""

MOST_AMOUNTS = 8
"""Most resources that a reason names."""

RECENT_PODS = 4096
"""Pods of the last filter requests, kept for bind, whose request has only the name of the pod."""


class ScoreScale(StrEnum):
    """How scores of 0..100 are sent: their order in 0..10, or unchanged."""

    RANK = "rank"
    RAW = "raw"


Binder = Callable[[forms.BindingArgs, Mapping[str, str]], None]
"""Creates a pod's binding, with annotations that the API server copies to the pod. Raises NriPinError on failure."""


class Extender:
    """Answers requests; bytes in, bytes out. The caller holds the lock of the cache, except in `bind`.

    Args:
        cache: nodes and charges.
        scale: of the scores.
        binder: None if bind is not offered.
        sends_to_numa_node: bind writes the NUMA node on the pod and charges only that node.
        takes_node_objects: requests may carry whole Node objects in place of names.
    """

    def __init__(
        self,
        cache: ExtenderCache,
        scale: ScoreScale = ScoreScale.RANK,
        binder: Binder | None = None,
        *,
        sends_to_numa_node: bool = False,
        takes_node_objects: bool = False,
    ) -> None:
        self.cache, self.binder = cache, binder
        self._scale = scale
        self._sends = sends_to_numa_node
        self._takes_objects = takes_node_objects
        self._recent: dict[tuple[str, str, str], PodDemand] = {}

    def filter(self, body: bytes) -> bytes:
        """Answer which nodes fit the pod. The answer to an invalid request has the error."""
        try:
            args = forms.read_args(body, takes_node_objects=self._takes_objects)
            pod = pod_demand(args.pod)
            self.cache.expire()
            self.cache.forget_guess(pod)
            codes = self.cache.cluster.codes(args.names, pod)
        except KubeObjectError as error:
            return forms.filter_error(str(error))
        self._remember(pod)
        is_in = (codes == PASS).tolist()
        # kube-scheduler asks for no scores where one node passes. Source: kubernetes v1.34, schedulePod.
        if is_in.count(True) == 1:
            self.cache.guess(replace(pod, node=args.names[is_in.index(True)], phase="Pending"))
        texts = {int(code): reason(pod, int(code)) for code in np.unique(codes) if code != PASS}
        failed = {args.names[at]: texts[int(codes[at])] for at in np.flatnonzero(codes != PASS).tolist()}
        return forms.filter_result(args, is_in, failed)

    def prioritize(self, body: bytes) -> bytes:
        """Answer the score of each node.

        Raises:
            KubeObjectError: the request is invalid.
        """
        args = forms.read_args(body, takes_node_objects=self._takes_objects)
        pod = pod_demand(args.pod)
        self.cache.expire()
        scores = self.cache.cluster.scores(args.names, pod)
        self._guess(pod, args.names, scores.tolist())
        values = scores.tolist() if self._scale is ScoreScale.RAW else ranks(scores.tolist())
        return forms.priorities(args.names, values)

    def bind(self, body: bytes, locked: AbstractContextManager[object]) -> bytes:
        """Charge the pod to the node, bind it, and end the charge if the binding fails.

        Args:
            body: the request.
            locked: the lock of the cache; it is not held during the request to the API server.
        """
        if self.binder is None:
            return forms.binding_result("bind is not offered; start the extender with --bind")
        try:
            args = forms.read_binding(body)
        except KubeObjectError as error:
            return forms.binding_result(str(error))
        # Charge first: another pod may be filtered during the request.
        with locked:
            pod, annotations = self._charged_pod(args)
        try:
            self.binder(args, annotations)
        except NriPinError as error:
            with locked:
                if pod is not None:
                    self.cache.release(pod.key)
            return forms.binding_result(str(error))
        return forms.binding_result()

    def _charged_pod(self, args: forms.BindingArgs) -> tuple[PodDemand | None, dict[str, str]]:
        """Charge the pod; return it and its annotations. None for a pod that was not filtered here."""
        known = self._recent.pop((args.pod_namespace, args.pod_name, args.pod_uid), None)
        if known is None:
            return None, {}
        pod = replace(known, node=args.node, phase="Pending")
        self.cache.forget_guess(pod)
        if self.cache.is_charged_for(pod):  # it is bound already, and keeps its charge if this binding fails
            return None, {}
        numa_id = self._numa_id(pod) if self._sends else None
        self.cache.charge(pod, numa_id)
        return pod, {} if numa_id is None else {ANNOTATION_NUMA_NODE: str(numa_id)}

    def _guess(self, pod: PodDemand, names: Sequence[str], scores: Sequence[int]) -> None:
        """Charge the pod to the best node, if only one is best: pods that are scored before the binding is seen count it there."""
        best = max(scores, default=0)
        if scores.count(best) == 1 and len(names) > 1:
            self.cache.guess(replace(pod, node=names[scores.index(best)], phase="Pending"))

    def _numa_id(self, pod: PodDemand) -> int | None:
        """Return the NUMA node of lowest id that holds the whole pod; None if there is none, or the pod needs none."""
        zones = self.cache.zones(pod.node)
        request = self.cache.demand_of(pod).effective_with_sidecars
        found = fitting(request, zones, is_guaranteed=pod.is_guaranteed)
        return min(found) if found and pod.is_guaranteed else None

    def _remember(self, pod: PodDemand) -> None:
        if self.binder is None:
            return
        key = (pod.namespace, pod.name, pod.uid)
        self._recent.pop(key, None)
        self._recent[key] = pod
        if len(self._recent) > RECENT_PODS:
            del self._recent[next(iter(self._recent))]


def ranks(scores: Sequence[int]) -> list[int]:
    """Map scores to 0..10 in their order: the best gets 10, and equal scores get equal ranks."""
    distinct = sorted(set(scores), reverse=True)
    steps = max(len(distinct) - 1, MAX_PRIORITY)
    rank = {score: MAX_PRIORITY - place * MAX_PRIORITY // steps for place, score in enumerate(distinct)}
    return [rank[score] for score in scores]


def reason(pod: PodDemand, code: int) -> str:
    """Return why a node was filtered out, for the pod's events."""
    if code == OWN_RESOURCES:
        request = pod.under_pod_scope.effective
        return f"no NUMA node has the resources that the pod sets for itself available: {_amounts(request)}"
    if code == POD:
        return f"no NUMA node has the requested resources of the pod available: {_amounts(pod.effective_with_sidecars)}"
    container = pod.containers[code - 1]
    return (
        "no NUMA node has the requested resources of "
        f"{container.kind.value.replace('-', ' ')} {container.name} available: "
        f"{_amounts(container.requests)}"
    )


def _amounts(request: Mapping[str, int]) -> str:
    """Format the first amounts only: a pod may request thousands of resources, and the text is sent for each node."""
    asked = sorted(name for name, amount in request.items() if amount)
    told = [f"{name} {format_amount(request[name])}" for name in asked[:MOST_AMOUNTS]]
    return ", ".join([*told, *([f"{len(asked) - MOST_AMOUNTS} more"] if len(asked) > MOST_AMOUNTS else [])])
