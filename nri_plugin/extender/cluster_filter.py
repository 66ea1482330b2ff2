"""The filter of NodeResourceTopologyMatch, for one pod on many nodes at once.

Only the policy single-numa-node filters; other policies never reject a pod for its topology. In container scope,
containers take from the NUMA node of lowest id that holds them, and the next container sees what is left.

Source: scheduler-plugins pkg/noderesourcetopology/filter.go.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from nri_plugin.extender.nodes import is_free_of_charge
from nri_plugin.extender.table import MOST, Batch, Flags, Rows
from nri_plugin.kube.pod_demand import ContainerDemand, ContainerKind, PodDemand, QoS, is_host_level

PASS = 0
POD = -1
"""The pod as a whole does not fit; a container that does not is told by its place, from 1."""

Codes = NDArray[np.int32]


def codes(batch: Batch, pod: PodDemand, *, sidecars_stay: bool = False) -> Codes:
    """Per row PASS, POD, or the place of the first container that does not fit, from 1."""
    found = np.zeros(len(batch), np.int32)
    if needs_no_filter(pod):
        return found
    filtered = batch.has_nrt & batch.is_single
    for rows, judge in (
        (np.flatnonzero(filtered & batch.is_pod_scope), _pod_codes),
        (np.flatnonzero(filtered & ~batch.is_pod_scope), _container_codes),
    ):
        if len(rows):
            found[rows] = judge(batch.take(rows), pod, sidecars_stay)
    return found


def needs_no_filter(pod: PodDemand) -> bool:
    """Whether every node suits the pod: nothing of it is ever bound to a NUMA node."""
    return pod.qos is QoS.BEST_EFFORT and not pod.asks_for_devices


def stays(container: ContainerDemand, *, sidecars_stay: bool) -> bool:
    """Whether what the container takes is gone for those after it.

    Differs: the scheduler plugin does not count what sidecars hold while app containers start, and the kubelet
    then rejects the pod. `sidecars_stay` counts it.
    """
    return container.kind is ContainerKind.APP or (sidecars_stay and container.kind is ContainerKind.SIDECAR)


def names_of(pod: PodDemand) -> list[str]:
    """Every resource that any part of the pod asks for."""
    asked = {name for one in pod.containers for name in one.requests}
    return sorted(asked | set(pod.overhead))


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
    """Per row: whether one zone holds it all, whether any zone matters, and where the zone of lowest id is."""
    suits = batch.exists
    is_bound = np.zeros(len(batch), np.bool_)
    for name, amount in request.items():
        if not amount:
            continue
        listed = batch.listed[name]
        here = listed
        if not is_free_of_charge(name, is_guaranteed=is_guaranteed):
            here = listed & (batch.available[name] >= amount)
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
            batch.available[name][rows, chosen] -= min(amount, MOST) * batch.listed[name][rows, chosen]
