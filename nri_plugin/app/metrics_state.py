"""Gauges read off the state at the moment of a scrape: a frozen value, so no lock and no copy.

Source: `kubelet_cpu_manager_*` as kubelet v1.36 pkg/kubelet/cm/cpumanager/policy_static.go, initializeMetrics.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin import __version__
from nri_plugin.hint_providers import tables_of
from nri_plugin.options import CPUManagerPolicy, Node
from nri_plugin.policy.fragmentation import by_cache, by_numa_node
from nri_plugin.state import Phase, State


class StateGauges(Collector):
    """What is free, promised and broken up.

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
