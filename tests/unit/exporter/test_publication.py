"""The published object: its figures, and what schedulers make of it by their own rules."""

import dataclasses

import pytest
from msgspec.structs import replace

from nri_plugin.exporter.publication import DeviceCount, Devices, accounted_pods, legacy_policy, published
from nri_plugin.extender.nodes import node_policy
from nri_plugin.kube.noderesourcetopology import fingerprint, from_object, to_object
from nri_plugin.kube.pod_demand import pod_demand
from nri_plugin.model.options import (
    MemoryManagerPolicy,
    Node,
    Options,
    ReservedMemory,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    CgroupRef,
    ContainerFacts,
    ContainerRecord,
    MemoryBlock,
    Phase,
    PodRecord,
    QOSClass,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.topology import NUMANode, Topology
from tests.builders import GIB, machine
from tests.level_pod import LEVEL, ROWS, WHOLE, admitted, level_node
from tests.oracles.one_node import refusal

SINGLE = Options(topology_manager_policy=TopologyManagerPolicy.SINGLE_NUMA_NODE)


def node(options: Options = SINGLE, reserved: str = "0-1", topology: Topology | None = None) -> Node:
    """Two NUMA nodes of 8 CPUs and 16 GiB."""
    return Node(topology or machine(), options, CPUSet.parse(reserved))


def holding(
    cpus: str = "", memory: tuple[MemoryBlock, ...] = (), qos: QOSClass = QOSClass.GUARANTEED
) -> State:
    pod = PodRecord("u-1", "s1", "web", "default", qos)
    container = ContainerRecord("c1", "u-1", "app", Phase.RUNNING, CgroupRef(""))
    allocation = Allocation(CPUSet.parse(cpus), memory=memory)
    return State({"u-1": pod}, {"c1": container}, {"u-1/app": allocation})


def figures(node: Node, state: State, resource: str) -> list[tuple[int, int, int]]:
    return [
        (row.capacity_milli // 1000, row.allocatable_milli // 1000, row.available_milli // 1000)
        for zone in published("n", node, state).zones
        for row in zone.resources
        if row.name == resource
    ]


def test_reserved_cpus_are_not_allocatable_and_exclusive_ones_not_available() -> None:
    assert figures(node(), holding("2-5,8"), "cpu") == [(8, 6, 2), (8, 8, 7)]


def test_memory_is_total_less_reserved_less_promised() -> None:
    options = dataclasses.replace(
        SINGLE,
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        reserved_memory=(ReservedMemory(0, "memory", GIB),),
    )
    state = holding("2", (MemoryBlock(NodeMask(0b11), "memory", 20 * GIB),))
    gib = [tuple(value // GIB for value in row) for row in figures(node(options), state, "memory")]
    assert gib == [(16, 15, 0), (16, 16, 11)]


def test_without_a_memory_policy_what_is_kept_is_spread_by_size_to_the_byte() -> None:
    small, large = machine().nodes
    topology = replace(machine(), nodes=(replace(small, memory_bytes=4 * GIB), large))
    kept = 5 * GIB + 1
    rows = figures(node(Options(kept_memory_bytes=kept), topology=topology), State(), "memory")
    assert [capacity for capacity, _, _ in rows] == [4 * GIB, 16 * GIB]
    assert [capacity - allocatable for capacity, allocatable, _ in rows] == [GIB, 4 * GIB + 1]
    assert all(allocatable == available for _, allocatable, available in rows)


def test_what_is_kept_is_not_taken_from_huge_pages_nor_from_nodes_without_other_memory() -> None:
    pages, plain = machine().nodes
    full = replace(pages, memory_bytes=GIB, hugepages=((2048, GIB >> 20),))
    topology = replace(machine(), nodes=(full, plain))
    rows = figures(node(Options(kept_memory_bytes=2 * GIB), topology=topology), State(), "memory")
    assert [allocatable for _, allocatable, _ in rows] == [0, 14 * GIB]


def test_static_memory_is_kept_as_the_operator_divided_it() -> None:
    options = Options(
        memory_manager_policy=MemoryManagerPolicy.STATIC,
        reserved_memory=(ReservedMemory(1, "memory", GIB),),
        kept_memory_bytes=GIB,
    )
    rows = figures(node(options), State(), "memory")
    assert [allocatable for _, allocatable, _ in rows] == [16 * GIB, 15 * GIB]


def test_a_machine_whose_memory_is_not_known_has_none_to_keep() -> None:
    topology = replace(machine(), nodes=tuple(replace(numa, memory_bytes=None) for numa in machine().nodes))
    rows = figures(node(Options(kept_memory_bytes=GIB), topology=topology), State(), "memory")
    assert rows == [(0, 0, 0), (0, 0, 0)]


def test_huge_pages_are_listed_by_every_zone() -> None:
    topology = machine()
    first = replace(topology.nodes[0], hugepages=((2048, 512),))
    state = holding("2", (MemoryBlock(NodeMask(1), "hugepages-2Mi", GIB // 4),))
    found = figures(
        node(topology=replace(topology, nodes=(first, topology.nodes[1]))), state, "hugepages-2Mi"
    )
    assert found == [(GIB, GIB, GIB * 3 // 4), (0, 0, 0)]


def test_distances_are_named_by_numa_id_where_ids_have_holes() -> None:
    nodes = tuple(
        NUMANode(number, CPUSet(1 << number), GIB, distances=row)
        for number, row in ((0, (10, 12, 14)), (2, (12, 10, 16)), (7, (14, 16, 10)))
    )
    topology = Topology(CPUSet(0b10000101), (), (), nodes, ())
    zones = {zone.name: dict(zone.costs) for zone in published("n", node(topology=topology), State()).zones}
    assert zones["node-7"] == {"node-0": 14, "node-2": 16, "node-7": 10}
    assert list(zones) == ["node-0", "node-2", "node-7"]


def test_unknown_distances_are_left_out() -> None:
    topology = machine()
    bare = replace(topology, nodes=tuple(replace(one, distances=None) for one in topology.nodes))
    assert {zone.costs for zone in published("n", node(topology=bare), State()).zones} == {()}


@pytest.mark.parametrize(
    ("policy", "scope", "word"),
    [
        ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
        ("single-numa-node", "pod", "SingleNUMANodePodLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("none", "pod", "None"),
    ],
)
def test_readers_understand_policy_and_scope_in_both_forms(policy: str, scope: str, word: str) -> None:
    options = Options(
        topology_manager_policy=TopologyManagerPolicy(policy),
        topology_manager_scope=TopologyManagerScope(scope),
    )
    topology = published("n", node(options), State())
    assert topology.topology_policies == (legacy_policy(options),) == (word,)
    read = node_policy(topology)
    assert (read.policy, read.scope) == (policy, scope)
    former = node_policy(dataclasses.replace(topology, attributes=()))
    assert former.policy == policy
    assert former.scope == ("container" if policy == "none" else scope)


def test_a_machine_of_many_numa_nodes_says_how_many() -> None:
    many = published("n", node(topology=machine(nodes=12)), State())
    assert node_policy(many).max_numa_nodes == 12
    assert published("n", node(), State()).attribute("topologyManagerMaxNUMANodes") is None


def test_options_that_are_on_are_named() -> None:
    options = dataclasses.replace(
        SINGLE, full_pcpus_only=True, align_by_socket=True, prefer_closest_numa_nodes=True
    )
    topology = published("n", node(options), State())
    named = topology.attribute("nri-pin/cpuManagerPolicyOptions")
    assert named == "full-pcpus-only=true,align-by-socket=true"
    assert topology.attribute("nri-pin/topologyManagerPolicyOptions") == "prefer-closest-numa-nodes=true"
    assert published("n", node(), State()).attribute("nri-pin/topologyManagerPolicyOptions") is None


def test_the_fingerprint_is_of_guaranteed_pods_that_have_begun() -> None:
    state = holding("2")
    state = state.with_pod(PodRecord("u-2", "s2", "batch", "default", QOSClass.BURSTABLE))
    state = state.with_container(ContainerRecord("c2", "u-2", "app", Phase.RUNNING, CgroupRef("")))
    state = state.with_pod(PodRecord("u-3", "s3", "new", "default", QOSClass.GUARANTEED))
    assert [pod.name for pod in accounted_pods(state)] == ["web"]
    topology = published("n", node(), state)
    assert topology.fingerprint == fingerprint([("default", "web")])
    assert topology.fingerprint_method == "with-exclusive-resources"
    assert topology.attribute("nri-pin/accounted-pods") == "u1"


def test_devices_are_listed_where_they_are() -> None:
    counts = (
        DeviceCount(1, "vendor/gpu", 4, 1),
        DeviceCount(0, "vendor/gpu", 4, 4),
        DeviceCount(9, "vendor/x", 1, 1),
    )
    zones = published("n", node(), State(), Devices(counts)).zones
    assert [zone.resources[-1].available_milli for zone in zones] == [4000, 1000]
    assert {row.name for zone in zones for row in zone.resources} == {"cpu", "memory", "vendor/gpu"}


def test_a_pod_with_devices_is_in_the_fingerprint_whatever_its_class() -> None:
    devices = Devices(pods=frozenset({("default", "web"), ("default", "gone")}))
    for qos in QOSClass:
        topology = published("n", node(), holding("", qos=qos), devices)
        assert topology.fingerprint == fingerprint([("default", "web")])


def test_what_is_published_reads_as_it_was_meant() -> None:
    topology = published("n", node(), holding("2-5,8"))
    assert from_object(to_object(topology)) == topology


def test_equal_promises_make_equal_objects() -> None:
    one, other = holding("2-5"), holding("2-5")
    one = one.with_allocation("u-9/x", Allocation(CPUSet.parse("8"))).with_allocation("u-8/x", Allocation())
    other = other.with_allocation("u-8/x", Allocation()).with_allocation(
        "u-9/x", Allocation(CPUSet.parse("8"))
    )
    assert to_object(published("n", node(), one)) == to_object(published("n", node(), other))


def guaranteed_pod(cpus: int) -> dict:
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    container = {"name": "app", "resources": {"requests": amounts, "limits": amounts}}
    return {"metadata": {"name": "p", "namespace": "d"}, "spec": {"containers": [container]}}


@pytest.mark.parametrize("held", ["", "2-5", "2-5,8-11", "2-7", "2-15"])
@pytest.mark.parametrize("wanted", [1, 2, 4, 6, 8])
def test_the_scheduler_passes_what_one_numa_node_can_still_give(held: str, wanted: int) -> None:
    here, state = node(), holding(held)
    largest = max(len(state.available(here) & numa.cpus) for numa in here.topology.nodes)
    told = from_object(to_object(published("n", here, state)))
    assert (refusal(pod_demand(guaranteed_pod(wanted)), told) is None) == (wanted <= largest)


def test_a_pod_with_resources_of_its_own_counts_once_with_all_it_owns() -> None:
    """6 CPUs and 6 GiB of 15 CPUs and 32 GiB, whatever its containers share."""
    on = level_node()
    state = admitted(on, *ROWS)
    assert figures(on, state, "cpu") == [(8, 7, 1), (8, 8, 8)]
    assert figures(on, state, "memory") == [
        (16 * GIB, 16 * GIB, 10 * GIB),
        (16 * GIB, 16 * GIB, 16 * GIB),
    ]


def test_an_init_container_and_those_that_run_after_it_on_its_cpus_count_once() -> None:
    on = level_node(dataclasses.replace(LEVEL, pod_level_managers=False))
    state = admitted(on, ROWS[0], ROWS[2], resources=None)
    assert sum(available for _, _, available in figures(on, state, "cpu")) == 13
    assert sum(available for _, _, available in figures(on, state, "memory")) == 30 * GIB


def test_the_gate_is_published_only_where_it_is_on() -> None:
    """A scheduler then places pods by the resources that they set for themselves."""
    on, off = (
        published("n", level_node(dataclasses.replace(LEVEL, pod_level_managers=value)), State())
        for value in (True, False)
    )
    assert on.attribute("nri-pin/podLevelResourceManagers") == "true"
    assert off.attribute("nri-pin/podLevelResourceManagers") is None
    assert node_policy(from_object(to_object(on))).pod_level_managers
    assert not node_policy(from_object(to_object(off))).pod_level_managers


@pytest.mark.parametrize(
    ("rows", "resources", "is_seen"),
    [
        (ROWS, WHOLE, True),
        (ROWS[1:2] + ROWS[3:], WHOLE, False),
        # Plain init containers do not count.
        ((ROWS[0], ROWS[3]), WHOLE, False),
        ((replace(ROWS[3], amounts=Amounts(1500, 0, 0, 0)),), WHOLE, False),
        ((replace(ROWS[3], amounts=Amounts(1000, 0, 0, 0)),), WHOLE, True),
        ((replace(ROWS[3], amounts=Amounts(hugepages=(("hugepages-1Gi", GIB),))),), WHOLE, True),
    ],
)
def test_the_fingerprint_has_the_pods_that_the_scheduler_plugin_sees(
    rows: tuple[ContainerFacts, ...], resources: Amounts, is_seen: bool
) -> None:
    """It looks at containers only. Our own extender is told of every pod."""
    state = admitted(level_node(), *rows, resources=resources)
    found = published("n", level_node(), state)
    assert found.fingerprint == fingerprint([("default", "web")] if is_seen else [])
    assert found.attribute("nri-pin/accounted-pods") == "web"
    with_devices = published("n", level_node(), state, Devices(pods=frozenset({("default", "web")})))
    assert with_devices.fingerprint == fingerprint([("default", "web")])
