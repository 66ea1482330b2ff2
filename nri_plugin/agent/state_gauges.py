"""Gauges that are derived from the state at a scrape.

A state is frozen, so a scrape in another thread needs no lock and no copy. Names that begin with `kubelet_` are those of
the kubelet; see `metrics.py`.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nri_plugin import __version__
from nri_plugin.core.hint_providers import tables_of
from nri_plugin.model.options import CPUManagerPolicy, Node
from nri_plugin.model.records import ContainerRecord, Phase, is_whole_pod
from nri_plugin.model.state import State
from nri_plugin.policy.alignment import by_cache, by_numa_node


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
        yield from _allocations(node, state)
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
        "CPUs that containers without exclusive CPUs run on, with reserved ones where they may be used.",
        len(state.shared_pool(node)),
    )


def _allocations(node: Node, state: State) -> Iterator[Metric]:
    live = [record for record in state.containers.values() if record.phase is not Phase.STOPPED]
    yield _one("nri_pin_containers", "Containers that are created or run.", len(live))
    yield _one(
        "nri_pin_unplaced_containers",
        "Those in the shared pool although policy would have placed or refused them, or with the CPUs of before a resize.",
        sum(1 for record in live if record.unplaced),
    )
    yield _one(
        "nri_pin_allocations_without_all_cpus",
        "Those with exclusive CPUs that are not all online.",
        sum(1 for key in state.lost(node) if not is_whole_pod(key)),
    )
    kinds = GaugeMetricFamily(
        "nri_pin_containers_by_cpus",
        "Those by the CPUs that they run on: exclusive ones, the pod shared pool, or the shared pool.",
        labels=["cpus"],
    )
    for kind, count in _by_cpus(state, live).items():
        kinds.add_metric([kind], count)
    yield kinds
    yield _one(
        "nri_pin_pods_with_own_cpus",
        "Pods that own CPUs as a whole, by resources of their own.",
        sum(1 for key, one in state.allocations.items() if is_whole_pod(key) and one.cpus),
    )
    yield _one(
        "nri_pin_allocations",
        "Containers with an allocation; it lasts as long as their pod.",
        sum(1 for key in state.allocations if not is_whole_pod(key)),
    )


def _by_cpus(state: State, live: Iterable[ContainerRecord]) -> dict[str, int]:
    counts = {"exclusive": 0, "pod-shared": 0, "shared": 0}
    for record in live:
        held = state.allocation_of(record)
        if held is None or not held.cpus:
            counts["shared"] += 1
        else:
            counts["pod-shared" if held.is_pod_shared else "exclusive"] += 1
    return counts


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
