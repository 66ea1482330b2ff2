"""The kubelet's counters of pod-level resource managers; registered only where that feature gate is on.

Source: KEP-5526; kubelet v1.36.2 pkg/kubelet/metrics/metrics.go, and the places that count in
    pkg/kubelet/cm/cpumanager/policy_static.go and memorymanager/policy_static.go. Their names have no `kubelet_` prefix.
"""

import threading
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin.agent.outcome import RequestOutcome
from nri_plugin.core.requests import pod_uid
from nri_plugin.model.records import Allocation, allocation_key
from nri_plugin.model.refusals import AdmissionRefusal, EmptyPodSharedPool, RefusalKind
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.policy.pod_level import memory_claim
from nri_plugin.wire.nri.events import CreateContainer

ALLOCATIONS = "resource_manager_allocations"
ERRORS = "resource_manager_allocation_errors"
ASSIGNMENTS = "resource_manager_container_assignments"
"""A counter whose name does not end in `_total`."""

RESOURCES = ("cpu", MEMORY)
SOURCES = ("pod", "node")
ASSIGNMENT_TYPES = ("node_exclusive", "pod_exclusive", "pod_shared")

ERROR_RESOURCES = {
    RefusalKind.SMT_ALIGNMENT: "cpu",
    RefusalKind.CPUS: "cpu",
    RefusalKind.UNCORE_CACHE: "cpu",
    RefusalKind.MEMORY: MEMORY,
}


class ResourceManagerCounts(Collector):
    """Counts what was allocated out of the node, and out of pods with resources of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        sourced = [
            (name, one, source) for name in (ALLOCATIONS, ERRORS) for one in RESOURCES for source in SOURCES
        ]
        assigned = [(ASSIGNMENTS, one, kind) for one in RESOURCES for kind in ASSIGNMENT_TYPES]
        self._counts = Counter(dict.fromkeys([*sourced, *assigned], 0))

    def count(
        self, outcome: RequestOutcome, allocation: Allocation | None, refusal: AdmissionRefusal | None
    ) -> None:
        """Count the creation of a container.

        Args:
            outcome: of the creation.
            allocation: of the container; None for the shared pool and for a refusal.
            refusal: why policy refuses it.
        """
        rises: Counter[tuple[str, str, str]] = Counter()
        if refusal is not None:
            resource = _resource_of(refusal)
            if resource:
                rises[ERRORS, resource, "pod" if refusal.is_of_pod else "node"] += 1
        elif "pod-resources" in outcome.decision.steps:
            rises = _of_pod(outcome)
        elif allocation is not None and not _has_block(outcome):
            rises = _of_node(allocation)
        with self._lock:
            self._counts.update(rises)

    def collect(self) -> Iterator[Metric]:
        """All three counters, with a series for each set of labels there can be."""
        with self._lock:
            counts = dict(self._counts)
        for name, label, text in (
            (ALLOCATIONS, "source", "Allocations by the resource managers, out of the node or out of a pod."),
            (ERRORS, "source", "Allocations by the resource managers that failed."),
        ):
            family = CounterMetricFamily(name, text, labels=["resource_name", label])
            for (counted, resource, value), count in counts.items():
                if counted == name:
                    family.add_metric([resource, value], count)
            yield family
        metric = Metric(ASSIGNMENTS, "Containers by how they got their resources.", "unknown")
        for (counted, resource, value), count in counts.items():
            if counted == ASSIGNMENTS:
                metric.add_sample(counted, {"resource_name": resource, "assignment_type": value}, count)
        yield metric


def _resource_of(refusal: AdmissionRefusal) -> str:
    """The resource that a manager failed to allocate; empty where hints or another rule refused."""
    if isinstance(refusal.detail, EmptyPodSharedPool):
        return "cpu" if refusal.detail.resource == "cpu" else MEMORY
    return ERROR_RESOURCES.get(refusal.kind, "")


def _has_block(outcome: RequestOutcome) -> bool:
    event = outcome.event
    return (
        isinstance(event, CreateContainer)
        and allocation_key(pod_uid(event.pod), "") in outcome.decision.state.allocations
    )


def _of_node(allocation: Allocation) -> Counter[tuple[str, str, str]]:
    """CPUs count once for a container, memory once for each resource."""
    rises: Counter[tuple[str, str, str]] = Counter()
    if allocation.cpus:
        rises[ALLOCATIONS, "cpu", "node"] += 1
        rises[ASSIGNMENTS, "cpu", "node_exclusive"] += 1
    if allocation.memory:
        rises[ALLOCATIONS, MEMORY, "node"] += len({block.resource for block in allocation.memory})
        rises[ASSIGNMENTS, MEMORY, "node_exclusive"] += 1
    return rises


def _of_pod(outcome: RequestOutcome) -> Counter[tuple[str, str, str]]:
    """Both count once for each container of the pod, at the creation of the first."""
    rises: Counter[tuple[str, str, str]] = Counter()
    event, state = outcome.event, outcome.decision.state
    assert isinstance(event, CreateContainer)
    uid = pod_uid(event.pod)
    block, facts = state.allocations.get(allocation_key(uid, "")), state.pods[uid].facts
    for one in facts.containers if block and facts else ():
        part = state.allocations[allocation_key(uid, one.name)]
        if block and block.cpus:
            rises[ALLOCATIONS, "cpu", "pod"] += 1
            rises[ASSIGNMENTS, "cpu", "pod_shared" if part.is_pod_shared else "pod_exclusive"] += 1
        if block and block.memory and facts:
            rises[ALLOCATIONS, MEMORY, "pod"] += 1
            rises[ASSIGNMENTS, MEMORY, "pod_exclusive" if memory_claim(facts, one) else "pod_shared"] += 1
    return rises
