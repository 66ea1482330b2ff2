"""What one created container adds to the kubelet's resource manager counters; pure.

Source: kubelet v1.36 pkg/kubelet/metrics/metrics.go for names and labels; topologymanager/scope_*.go and
cpumanager/policy_static.go, memorymanager/policy_static.go for when they are raised.

Differs: the kubelet admits a pod once, with all its containers; here containers come one by one, and a refused
one comes again. Each first creation of a container, and each refused try, is one admission request.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nri_plugin.app.outcome import Outcome
from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import (
    AdmissionError,
    InsufficientCPUsError,
    InsufficientMemoryError,
    SMTAlignmentError,
    TopologyAffinityError,
    UncoreCacheAlignmentError,
)
from nri_plugin.nri.events import CreateContainer
from nri_plugin.options import TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.policy.alignment import is_in_one_cache
from nri_plugin.state import Allocation
from nri_plugin.workload import pod_uid

CPU_ERRORS = (SMTAlignmentError, InsufficientCPUsError, UncoreCacheAlignmentError)


@dataclass(frozen=True, slots=True)
class Alignment:
    """One rise of `container_aligned_compute_resources_count`, or of its failure count.

    Attributes:
        scope: `container` or `pod`.
        boundary: `numa_node`, `physical_cpu` or `uncore_cache`.
        ok: aligned, not failed.
    """

    scope: str
    boundary: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Admission:
    """What a created container counts for.

    Attributes:
        refused_by: the policy error, also where `neverRefuse` let the container run in the shared pool.
        allocation: what it was promised now; None for the shared pool, a refusal or an earlier promise.
        aligned: rises of the alignment counters.
    """

    refused_by: AdmissionError | None
    allocation: Allocation | None
    aligned: tuple[Alignment, ...]

    @property
    def asked_for_cpus(self) -> bool:
        """Whether exclusive CPUs were given, or could not be although hints allowed them."""
        return bool(self.allocation and self.allocation.cpus) or self.cpus_failed

    @property
    def cpus_failed(self) -> bool:
        """Whether they could not be given."""
        return isinstance(self.refused_by, CPU_ERRORS)

    @property
    def asked_for_memory(self) -> bool:
        """Whether memory was bound, or could not be although hints allowed it."""
        return bool(self.allocation and self.allocation.memory) or self.memory_failed

    @property
    def memory_failed(self) -> bool:
        """Whether it could not be bound."""
        return isinstance(self.refused_by, InsufficientMemoryError)


def admission_of(outcome: Outcome) -> Admission | None:
    """What `outcome` counts for; None for other events and for containers that are only started again."""
    event, decision = outcome.event, outcome.decision
    if not isinstance(event, CreateContainer) or _is_known(outcome, event):
        return None
    error = decision.refusal or decision.overruled
    allocation = None
    if not outcome.refusal:
        record = decision.state.containers.get(event.container.id)
        allocation = decision.state.allocation_of(record) if record else None
    return Admission(error, allocation, tuple(_aligned(outcome, error, allocation)))


def _is_known(outcome: Outcome, event: CreateContainer) -> bool:
    records = outcome.before.containers_of(pod_uid(event.pod))
    return any(record.name == event.container.name and not record.unplaced for record in records)


def _aligned(
    outcome: Outcome, error: AdmissionError | None, allocation: Allocation | None
) -> Iterator[Alignment]:
    options = outcome.node.options
    if options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield from _aligned_to_node(outcome, error)
    cpus = allocation.cpus if allocation else CPUSet()
    if options.full_pcpus_only and (cpus or isinstance(error, CPU_ERRORS)):
        yield Alignment("container", "physical_cpu", ok=bool(cpus))
    if cpus and is_in_one_cache(outcome.node.topology, cpus):
        yield Alignment("container", "uncore_cache")


def _aligned_to_node(outcome: Outcome, error: AdmissionError | None) -> Iterator[Alignment]:
    """Only single-numa-node guarantees it; a pod counts once, with its first container."""
    scope = outcome.node.options.topology_manager_scope
    is_counted = scope is TopologyManagerScope.CONTAINER or "pod-scope" in outcome.decision.steps
    if isinstance(error, TopologyAffinityError):
        yield Alignment(scope, "numa_node", ok=False)
    elif error is None and not outcome.refusal and is_counted:
        yield Alignment(scope, "numa_node")
