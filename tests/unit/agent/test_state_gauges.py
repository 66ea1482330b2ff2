from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from nri_plugin import __version__
from nri_plugin.agent.observing.metrics import OF_PLACED, OF_SERVING, Placed, Serving, Shown
from nri_plugin.model.options import CPUManagerPolicy, Node
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase
from nri_plugin.model.state import State
from tests.agent_fakes import Bench
from tests.builders import cpus, machine, node

SPLIT = machine(caches=2)  # cpus 0-7 in node 0, caches of 4, cores of 2


def gauges(of: Node, state: State, *, connected: bool = True) -> CollectorRegistry:
    registry = CollectorRegistry()
    link = SimpleNamespace(is_synchronized=connected, lost=0)
    serving = Serving(Bench(of, state).handler, link, lambda: 0, lambda: 0)  # type: ignore[arg-type]
    registry.register(Shown(OF_PLACED, lambda: Placed(of, state)))
    registry.register(Shown(OF_SERVING, lambda: serving))
    return registry


def promised(text: str) -> State:
    return State(allocations={"p/c": Allocation(cpus(text))})


def record(name: str, phase: Phase = Phase.RUNNING, unplaced: str = "") -> ContainerRecord:
    return ContainerRecord(name, "p", name, phase, CgroupRef("/kubepods"), unplaced=unplaced)


def test_sizes_are_the_kubelets():
    read = gauges(node(SPLIT), promised("2-5")).get_sample_value
    assert read("kubelet_cpu_manager_shared_pool_size_millicores") == 10_000  # 16 - 4 - reserved 0-1
    assert read("kubelet_cpu_manager_exclusive_cpu_allocation_count") == 4
    assert read("nri_pin_shared_pool_cpus") == 12
    assert read("kubelet_cpu_manager_allocation_per_numa", {"numa_node": "0"}) == 4
    assert read("kubelet_cpu_manager_allocation_per_numa", {"numa_node": "1"}) == 0


def test_allocations_whose_cpus_went_offline_are_counted():
    state = promised("4-5")
    assert gauges(node(SPLIT), state).get_sample_value("nri_pin_allocations_without_all_cpus") == 0
    small = machine(nodes=1, cores=2)
    assert gauges(node(small), state).get_sample_value("nri_pin_allocations_without_all_cpus") == 1


def test_available_cpus_are_told_by_numa_node_and_cache():
    read = gauges(node(SPLIT), promised("2-5")).get_sample_value
    assert read("nri_pin_numa_node_available_cpus", {"numa_node": "0"}) == 2
    assert read("nri_pin_numa_node_available_cpus", {"numa_node": "1"}) == 8
    assert read("nri_pin_uncore_cache_available_cpus", {"uncore_cache": "1"}) == 2


def test_fragmentation_is_the_share_of_what_is_left_in_broken_groups():
    read = gauges(node(SPLIT), promised("4")).get_sample_value
    # Of node 0, CPUs 2-3 (reserved breaks nothing up) and 5-7 are left, the latter in a cache that is in use.
    assert read("nri_pin_numa_node_fragmentation_ratio", {"numa_node": "0"}) == 3 / 5
    assert read("nri_pin_numa_node_fragmentation_ratio", {"numa_node": "1"}) == 0
    assert read("nri_pin_uncore_cache_fragmentation_ratio", {"uncore_cache": "1"}) == 1 / 3
    assert read("nri_pin_uncore_cache_fragmentation_ratio", {"uncore_cache": "0"}) == 0


def test_unplaced_containers_are_counted_while_they_live():
    records = [
        record("a", unplaced="TopologyAffinityError: no"),
        record("b"),
        record("c", Phase.STOPPED, "gone"),
    ]
    read = gauges(node(), State(containers={r.id: r for r in records})).get_sample_value
    assert read("nri_pin_containers") == 2
    assert read("nri_pin_unplaced_containers") == 1
    assert read("nri_pin_allocations") == 0


def test_without_a_static_policy_there_is_nothing_to_say_of_numa_nodes():
    read = gauges(node(reserved="", cpu_manager_policy=CPUManagerPolicy.NONE), State()).get_sample_value
    assert read("nri_pin_numa_node_available_cpus", {"numa_node": "0"}) is None
    assert read("nri_pin_shared_pool_cpus") == 16


def test_version_and_connection_are_told():
    assert gauges(node(), State()).get_sample_value("nri_pin_build_info", {"version": __version__}) == 1
    assert gauges(node(), State()).get_sample_value("nri_pin_connected") == 1
    assert gauges(node(), State(), connected=False).get_sample_value("nri_pin_connected") == 0
