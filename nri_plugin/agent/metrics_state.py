"""Values that follow from the state: gauges at a scrape, and the kubelet's counters for one created container. Pure.

A state is frozen, so a scrape in another thread needs no lock and no copy.

Source: `kubelet_cpu_manager_*` as kubelet v1.36 pkg/kubelet/cm/cpumanager/policy_static.go, initializeMetrics.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin import __version__
from nri_plugin.agent.outcome import RequestOutcome
from nri_plugin.core.hint_providers import tables_of
from nri_plugin.core.requests import pod_uid
from nri_plugin.model.options import CPUManagerPolicy, Node, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.refusals import AdmissionRefusal, RefusalKind
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import Allocation, Phase, State
from nri_plugin.policy.alignment import by_cache, by_numa_node, is_in_one_cache
from nri_plugin.wire.nri.events import CreateContainer

# The kubelet's resource manager counters.
#
# Source: kubelet v1.36 pkg/kubelet/metrics/metrics.go for names and labels; topologymanager/scope_*.go and
# cpumanager/policy_static.go, memorymanager/policy_static.go for when they are raised.
#
# Differs: the kubelet admits a pod once, with all its containers; here containers come one by one, and a refused
# one comes again. Each first creation of a container, and each refused try, is one admission request.


CPU_REFUSALS = (RefusalKind.SMT_ALIGNMENT, RefusalKind.CPUS, RefusalKind.UNCORE_CACHE)


@dataclass(frozen=True, slots=True)
class ContainerAlignment:
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
        refused_by: why policy refuses it, also where `neverRefuse` let the container run in the shared pool.
        allocation: the new one; None for the shared pool, a refusal or an allocation that existed before.
        aligned: rises of the alignment counters.
    """

    refused_by: AdmissionRefusal | None
    allocation: Allocation | None
    aligned: tuple[ContainerAlignment, ...]

    @property
    def asked_for_cpus(self) -> bool:
        """Whether exclusive CPUs were given, or could not be although hints allowed them."""
        return bool(self.allocation and self.allocation.cpus) or self.cpus_failed

    @property
    def cpus_failed(self) -> bool:
        """Whether they could not be given."""
        return self.refused_by is not None and self.refused_by.kind in CPU_REFUSALS

    @property
    def asked_for_memory(self) -> bool:
        """Whether memory was bound, or could not be although hints allowed it."""
        return bool(self.allocation and self.allocation.memory) or self.memory_failed

    @property
    def memory_failed(self) -> bool:
        """Whether it could not be bound."""
        return self.refused_by is not None and self.refused_by.kind is RefusalKind.MEMORY


def admission_of(outcome: RequestOutcome) -> Admission | None:
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


def _is_known(outcome: RequestOutcome, event: CreateContainer) -> bool:
    records = outcome.before.containers_of(pod_uid(event.pod))
    return any(record.name == event.container.name and not record.unplaced for record in records)


def _aligned(
    outcome: RequestOutcome, error: AdmissionRefusal | None, allocation: Allocation | None
) -> Iterator[ContainerAlignment]:
    options = outcome.node.options
    if options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        yield from _aligned_to_node(outcome, error)
    cpus = allocation.cpus if allocation else CPUSet()
    if options.full_pcpus_only and (cpus or (error is not None and error.kind in CPU_REFUSALS)):
        yield ContainerAlignment("container", "physical_cpu", ok=bool(cpus))
    if cpus and is_in_one_cache(outcome.node.topology, cpus):
        yield ContainerAlignment("container", "uncore_cache")


def _aligned_to_node(outcome: RequestOutcome, error: AdmissionRefusal | None) -> Iterator[ContainerAlignment]:
    """Only single-numa-node guarantees it; a pod counts once, with its first container."""
    scope = outcome.node.options.topology_manager_scope
    is_counted = scope is TopologyManagerScope.CONTAINER or "pod-scope" in outcome.decision.steps
    if error is not None and error.kind is RefusalKind.TOPOLOGY_AFFINITY:
        yield ContainerAlignment(scope, "numa_node", ok=False)
    elif error is None and not outcome.refusal and is_counted:
        yield ContainerAlignment(scope, "numa_node")


class StateGauges(Collector):
    """Available, allocated and fragmented resources.

    Args:
        current: the node and state decisions are made from now; two reads of frozen values.
        is_connected: whether the runtime has been synchronized with.
    """

    def __init__(self, current: Callable[[], tuple[Node, State]], is_connected: Callable[[], bool]) -> None:
        self._current = current
        self._is_connected = is_connected

    def describe(self) -> Iterable[Metric]:
        """Nothing: there is no state yet when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All gauges."""
        node, state = self._current()
        yield _one("nri_pin_build_info", "The version, as a label; always 1.", 1, version=__version__)
        yield _one(
            "nri_pin_connected",
            "1 when registered and synchronized with the container runtime.",
            self._is_connected(),
        )
        yield from _pool(node, state)
        yield from _promises(node, state)
        if node.options.cpu_manager_policy is CPUManagerPolicy.STATIC:
            yield from _by_numa_node(node, state)
            yield from _by_cache(node, state)


def _pool(node: Node, state: State) -> Iterator[Metric]:
    yield _one(
        "kubelet_cpu_manager_shared_pool_size_millicores",
        "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores, reserved CPUs not counted.",
        1000 * len(state.available(node)),
    )
    yield _one(
        "kubelet_cpu_manager_exclusive_cpu_allocation_count",
        "The total number of CPUs exclusively allocated to containers running on this node.",
        len(state.exclusive),
    )
    yield _one(
        "nri_pin_shared_pool_cpus",
        "CPUs that everything without exclusive CPUs runs on, reserved ones included where they may be used.",
        len(state.shared_pool(node)),
    )


def _promises(node: Node, state: State) -> Iterator[Metric]:
    live = [record for record in state.containers.values() if record.phase is not Phase.STOPPED]
    yield _one("nri_pin_containers", "Containers that are created or run.", len(live))
    yield _one(
        "nri_pin_unplaced_containers",
        "Those that run in the shared pool although policy would have placed or refused them.",
        sum(1 for record in live if record.unplaced),
    )
    yield _one(
        "nri_pin_allocations_without_all_cpus",
        "Those with exclusive CPUs that are not all online.",
        len(state.lost(node)),
    )
    yield _one(
        "nri_pin_allocations",
        "Containers with a promise that lasts as long as their pod.",
        len(state.allocations),
    )


def _by_numa_node(node: Node, state: State) -> Iterator[Metric]:
    assigned = GaugeMetricFamily(
        "kubelet_cpu_manager_allocation_per_numa",
        "Number of CPUs allocated per NUMA node.",
        labels=["numa_node"],
    )
    available = GaugeMetricFamily(
        "nri_pin_numa_node_available_cpus", "CPUs that can still become exclusive.", labels=["numa_node"]
    )
    broken = GaugeMetricFamily(
        "nri_pin_numa_node_fragmentation_ratio",
        "Share of the available CPUs that lie in uncore caches others use in part; 0 when there are none.",
        labels=["numa_node"],
    )
    for one in by_numa_node(tables_of(node), node.allocatable, state.available(node)):
        labels = [str(one.id)]
        assigned.add_metric(labels, len(state.exclusive & one.cpus))
        available.add_metric(labels, len(one.available))
        broken.add_metric(labels, one.ratio)
    yield from (assigned, available, broken)


def _by_cache(node: Node, state: State) -> Iterator[Metric]:
    available = GaugeMetricFamily(
        "nri_pin_uncore_cache_available_cpus",
        "CPUs that can still become exclusive.",
        labels=["uncore_cache"],
    )
    broken = GaugeMetricFamily(
        "nri_pin_uncore_cache_fragmentation_ratio",
        "Share of the available CPUs that lie in cores others use in part; 0 when there are none.",
        labels=["uncore_cache"],
    )
    for one in by_cache(tables_of(node), node.topology, node.allocatable, state.available(node)):
        available.add_metric([str(one.id)], len(one.available))
        broken.add_metric([str(one.id)], one.ratio)
    yield from (available, broken)


def _one(name: str, text: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
