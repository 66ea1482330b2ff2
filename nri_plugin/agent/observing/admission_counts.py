"""What one creation counts for the kubelet's resource managers, and for its pod-level resource managers.

Source: kubelet v1.36 topologymanager/scope_*.go, cpumanager/policy_static.go, memorymanager/policy_static.go; for pods
    with resources of their own KEP-5526.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product

from nri_plugin.agent.serving.outcome import RequestOutcome
from nri_plugin.core.requests import pod_uid
from nri_plugin.model.options import TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import Allocation, Kind, allocation_key
from nri_plugin.model.refusals import AdmissionRefusal, EmptyPodSharedPool, RefusalKind
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.alignment import is_in_one_cache
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.policy.pod_level import memory_claim
from nri_plugin.wire.nri.events import CreateContainer

# Differs: the kubelet admits a pod once, with all its containers; here: each first creation of a container,
# and each refused try, is one admission request. Why: containers come one by one, and a refused one comes
# again. Option: none.


CPU_REFUSALS = (RefusalKind.SMT_ALIGNMENT, RefusalKind.CPUS, RefusalKind.UNCORE_CACHE)


@dataclass(frozen=True, slots=True)
class Admission:
    """The counts of one created container.

    Attributes:
        outcome: of its creation.
        refused_by: why policy refuses it, also where `neverRefuse` let the container run in the shared pool.
        allocation: the new one; None for the shared pool, a refusal or an allocation that existed before.
        aligned: scope and boundary of rises of the counter of alignments.
        unaligned: the same of the counter of failures.
        owns_pod_memory: it owns part of the memory of its pod, or is an init container of such a pod.
        is_first_of_block: the memory of its pod was allocated with it.
    """

    outcome: RequestOutcome
    refused_by: AdmissionRefusal | None
    allocation: Allocation | None
    aligned: Sequence[tuple[str, str]] = ()
    unaligned: Sequence[tuple[str, str]] = ()
    owns_pod_memory: bool = False
    is_first_of_block: bool = False

    @property
    def is_refused(self) -> bool:
        """Return whether it was refused, or would have been outside `neverRefuse`."""
        return bool(self.outcome.refusal or self.refused_by)

    @property
    def reason(self) -> str:
        """The kubelet's reason of the refusal."""
        return self.refused_by.reason if self.refused_by else "UnexpectedAdmissionError"

    @property
    def is_inexact(self) -> bool:
        """Return whether a search ended before its result was known to be the best."""
        return "inexact-hint" in self.outcome.decision.steps and not self.outcome.from_memory

    @property
    def asked_for_cpus(self) -> bool:
        """Return whether exclusive CPUs were allocated, or could not be although hints allowed them."""
        return bool(_exclusive(self.allocation)) or self.cpus_failed

    @property
    def cpus_failed(self) -> bool:
        """Return whether they could not be allocated."""
        return self.refused_by is not None and self.refused_by.kind in CPU_REFUSALS

    @property
    def asked_for_memory(self) -> bool:
        """Return whether memory was allocated, or could not be although hints allowed it."""
        return bool(self.allocation and self.allocation.memory) or self.owns_pod_memory or self.memory_failed

    @property
    def memory_failed(self) -> bool:
        """Return whether it could not be allocated."""
        return self.refused_by is not None and self.refused_by.kind is RefusalKind.MEMORY


def admission_of(outcome: RequestOutcome) -> Admission | None:
    """Return the counts of `outcome`; None for other events and for containers that are only started again."""
    event, decision = outcome.event, outcome.decision
    if not isinstance(event, CreateContainer):
        return None
    records = outcome.before.containers_of(pod_uid(event.pod))
    if any(record.name == event.container.name and not record.unplaced for record in records):
        return None
    error = decision.refusal or decision.overruled
    allocation = None
    if not outcome.refusal:
        record = decision.state.containers.get(event.container.id)
        allocation = decision.state.allocation_of(record) if record else None
    block = decision.state.allocations.get(allocation_key(pod_uid(event.pod), ""))
    has_memory = allocation is not None and block is not None and bool(block.memory)
    aligned = list(_aligned(outcome, error, allocation))
    return Admission(
        outcome,
        error,
        allocation,
        aligned=[place for place, ok in aligned if ok],
        unaligned=[place for place, ok in aligned if not ok],
        owns_pod_memory=has_memory and _owns_memory(outcome, event),
        is_first_of_block=has_memory and "pod-resources" in decision.steps,
    )


def _exclusive(allocation: Allocation | None) -> CPUSet:
    return allocation.cpus if allocation and not allocation.is_pod_shared else CPUSet()


def _owns_memory(outcome: RequestOutcome, event: CreateContainer) -> bool:
    """Return whether the kubelet counts the container of a pod with memory of its own: each with a claim, each init."""
    facts = outcome.decision.state.pods[pod_uid(event.pod)].facts
    one = facts.container(event.container.name) if facts else None
    return facts is not None and one is not None and (one.kind is Kind.INIT or bool(memory_claim(facts, one)))


# Scope and boundary, and whether it is aligned there.


def _aligned(
    outcome: RequestOutcome, error: AdmissionRefusal | None, allocation: Allocation | None
) -> Iterator[tuple[tuple[str, str], bool]]:
    options = outcome.node.options
    if options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield from _aligned_to_node(outcome, error)
    cpus = _exclusive(allocation)
    if options.full_pcpus_only and (cpus or (error is not None and error.kind in CPU_REFUSALS)):
        yield ("container", "physical_cpu"), bool(cpus)
    if cpus and is_in_one_cache(outcome.node.topology, cpus):
        yield ("container", "uncore_cache"), True


def _aligned_to_node(
    outcome: RequestOutcome, error: AdmissionRefusal | None
) -> Iterator[tuple[tuple[str, str], bool]]:
    """Only single-numa-node guarantees it; a pod counts once, with its first container."""
    scope = outcome.node.options.topology_manager_scope
    is_counted = scope is TopologyManagerScope.CONTAINER or "pod-scope" in outcome.decision.steps
    if error is not None and error.kind is RefusalKind.TOPOLOGY_AFFINITY:
        yield (scope, "numa_node"), False
    elif error is None and not outcome.refusal and is_counted:
        yield (scope, "numa_node"), True


# The kubelet's counters of pod-level resource managers

PodLevel = Enum("PodLevel", ("ALLOCATIONS", "ERRORS", "ASSIGNMENTS"))
SOURCED = tuple(product(("cpu", MEMORY), ("pod", "node")))
POD_LEVEL_SERIES = {
    PodLevel.ALLOCATIONS: SOURCED,
    PodLevel.ERRORS: SOURCED,
    PodLevel.ASSIGNMENTS: tuple(product(("cpu", MEMORY), ("node_exclusive", "pod_exclusive", "pod_shared"))),
}
"""The resource, and the source or the type of the assignment."""

Rises = Mapping[PodLevel, Counter[tuple[str, ...]]]


def resource_counts(admission: Admission) -> Rises:
    """Count what was allocated out of the node, and out of pods with resources of their own."""
    rises: Rises = {kind: Counter() for kind in PodLevel}
    refusal = admission.refused_by
    if refusal is not None:
        resource = _resource_of(refusal)
        if resource:
            rises[PodLevel.ERRORS][resource, "pod" if refusal.is_of_pod else "node"] += 1
    elif "pod-resources" in admission.outcome.decision.steps:
        _count_pod(admission.outcome, rises)
    elif admission.allocation is not None and not _has_block(admission.outcome):
        _count_node(admission.allocation, rises)
    return rises


def _resource_of(refusal: AdmissionRefusal) -> str:
    """The resource that a manager failed to allocate; empty where hints or another rule refused."""
    if isinstance(refusal.detail, EmptyPodSharedPool):
        return "cpu" if refusal.detail.resource == "cpu" else MEMORY
    if refusal.kind in CPU_REFUSALS:
        return "cpu"
    return MEMORY if refusal.kind is RefusalKind.MEMORY else ""


def _has_block(outcome: RequestOutcome) -> bool:
    event = outcome.event
    return (
        isinstance(event, CreateContainer)
        and allocation_key(pod_uid(event.pod), "") in outcome.decision.state.allocations
    )


def _count_node(allocation: Allocation, rises: Rises) -> None:
    """CPUs count once for a container, memory once for each resource."""
    if allocation.cpus:
        rises[PodLevel.ALLOCATIONS]["cpu", "node"] += 1
        rises[PodLevel.ASSIGNMENTS]["cpu", "node_exclusive"] += 1
    if allocation.memory:
        rises[PodLevel.ALLOCATIONS][MEMORY, "node"] += len({block.resource for block in allocation.memory})
        rises[PodLevel.ASSIGNMENTS][MEMORY, "node_exclusive"] += 1


def _count_pod(outcome: RequestOutcome, rises: Rises) -> None:
    """Both count once for each container of the pod, at the creation of the first."""
    event, state = outcome.event, outcome.decision.state
    assert isinstance(event, CreateContainer)
    uid = pod_uid(event.pod)
    block, facts = state.allocations.get(allocation_key(uid, "")), state.pods[uid].facts
    for one in facts.containers if block and facts else ():
        part = state.allocations[allocation_key(uid, one.name)]
        if block and block.cpus:
            rises[PodLevel.ALLOCATIONS]["cpu", "pod"] += 1
            rises[PodLevel.ASSIGNMENTS]["cpu", "pod_shared" if part.is_pod_shared else "pod_exclusive"] += 1
        if block and block.memory and facts:
            rises[PodLevel.ALLOCATIONS][MEMORY, "pod"] += 1
            rises[PodLevel.ASSIGNMENTS][
                MEMORY, "pod_exclusive" if memory_claim(facts, one) else "pod_shared"
            ] += 1
