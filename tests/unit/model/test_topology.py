import pytest

from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import NUMANode, Topology
from tests.topology_rows import topology_of_rows

ROWS = [(0, 0, 0, 0, 0), (1, 1, 0, 2, 0), (2, 0, 0, 0, 0), (3, 1, 0, 2, 0)]


@pytest.fixture
def topology() -> Topology:
    return topology_of_rows(ROWS, memory_bytes={0: 100, 2: 0, 7: 50}, distances={0: (10, 20, 80)})


def test_rows_become_groups(topology: Topology) -> None:
    assert topology.online == CPUSet.of(0, 1, 2, 3)
    assert topology.cores == ((0, CPUSet.of(0, 2)), (1, CPUSet.of(1, 3)))
    assert topology.sockets == topology.caches == ((0, topology.online),)
    assert [(node.id, str(node.cpus)) for node in topology.nodes] == [(0, "0,2"), (2, "1,3"), (7, "")]


def test_a_node_that_only_memory_names_has_no_cpus(topology: Topology) -> None:
    assert topology.nodes[2] == NUMANode(topology.node_ids[2], CPUSet(), 50)
    assert topology.node_mask == NodeMask.of(0, 2, 7)


def test_memory_can_be_placed_where_there_is_some_or_its_size_is_unknown(topology: Topology) -> None:
    assert topology.nodes_with_memory == NodeMask.of(0, 7)
    assert topology_of_rows(ROWS).nodes_with_memory == NodeMask.of(0, 2)


def test_every_cpu_knows_its_groups(topology: Topology) -> None:
    assert dict(topology.node_by_cpu) == {0: 0, 2: 0, 1: 2, 3: 2}
    assert set(topology.socket_by_cpu.values()) == set(topology.cache_by_cpu.values()) == {0}


def test_the_nodes_of_cpus_are_found(topology: Topology) -> None:
    assert topology.nodes_of(CPUSet.of(2, 3)) == NodeMask.of(0, 2)
    assert topology.nodes_of(CPUSet.of(99)) == NodeMask()


def test_distances_are_kept_where_they_are_known(topology: Topology) -> None:
    assert [node.distances for node in topology.nodes] == [(10, 20, 80), None, None]


def test_cpus_out_of_reach_count_as_offline_and_every_node_stays(topology: Topology) -> None:
    found = topology.within(CPUSet.of(0, 2, 9))
    assert (str(found.online), str(found.offline), str(found.unreachable)) == ("0,2", "1,3", "1,3")
    assert found.kernel_online == topology.online
    assert found.cores == ((0, CPUSet.of(0, 2)),)
    assert [(node.id, str(node.cpus)) for node in found.nodes] == [(0, "0,2"), (2, ""), (7, "")]
    assert topology.within(topology.online) is topology.within(CPUSet.of(9)) is topology
