"""What choosing CPUs knows about a machine."""

import pytest

from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.policy.cpu_assignment import cpu_tables
from tests.topology_rows import topology_of_rows
from tests.unit.policy.shapes import machine


@pytest.mark.parametrize(
    ("sockets", "nodes_each", "nodes_first"),
    [(1, 1, True), (2, 1, True), (1, 2, False), (2, 4, False)],
)
def test_nodes_come_first_unless_there_are_fewer_sockets(sockets, nodes_each, nodes_first):
    assert cpu_tables(machine(sockets, nodes_each)).nodes_first is nodes_first


def test_one_node_over_two_sockets_comes_first():
    tables = cpu_tables(topology_of_rows([(0, 0, 0, 0, 0), (1, 1, 1, 0, 1)]))
    assert tables.nodes_first
    assert tables.sockets_in[0b11] == (0b01, 0b10)


def test_counters_are_averages_rounded_down():
    hybrid = topology_of_rows([(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (2, 2, 0, 0, 0)])
    tables = cpu_tables(hybrid)
    assert (tables.cpus_per_core, tables.cpus_per_socket, tables.cpus_per_cache) == (1, 3, 3)


def test_nodes_without_cpus_are_left_out():
    topology = topology_of_rows([(0, 0, 0, 1, 0)], memory_bytes={0: 1, 1: 1, 2: 1})
    assert cpu_tables(topology).nodes == ((1, 0b1),)


def test_a_cache_over_two_nodes_is_in_both_with_all_its_cpus():
    tables = cpu_tables(topology_of_rows([(0, 0, 0, 0, 0), (1, 1, 0, 1, 0)]))
    assert tables.caches_in == {0b01: (0b11,), 0b10: (0b11,)}


def test_siblings_are_all_threads_of_the_cores_touched():
    tables = cpu_tables(machine(cores=4, threads=2))
    assert CPUSet(tables.siblings_of(0b0100_0001)) == CPUSet.parse("0-1,6-7")


def test_cpus_and_nodes_are_found_from_each_other():
    tables = cpu_tables(machine(2, 1, cores=2, threads=2))
    assert CPUSet(tables.cpus_in(0b10)) == CPUSet.parse("4-7")
    assert tables.cpus_in(0b100) == 0
    assert tables.nodes_of(CPUSet.parse("3-4").mask) == 0b11
    assert tables.nodes_of(0) == 0


def test_sockets_are_found_from_their_nodes():
    tables = cpu_tables(machine(2, 2, cores=1, threads=2))
    assert tables.nodes_per_socket == 2
    assert CPUSet(tables.sockets_of(0b0010)) == CPUSet.parse("0-3")
    assert CPUSet(tables.sockets_of(0b0110)) == CPUSet.parse("0-7")
    assert tables.sockets_of(0) == 0
    wide = cpu_tables(topology_of_rows([(0, 0, 0, 0, 0), (1, 1, 1, 0, 0), (2, 2, 2, 1, 0)]))
    assert wide.sockets_of(0b01) == 0b011
    assert wide.nodes_per_socket == 0


def test_a_part_is_only_in_what_it_shares_a_cpu_with():
    tables = cpu_tables(machine(2, 1, cores=1, threads=1))
    assert tables.sockets_in == tables.nodes_in == tables.caches_in == {0b01: (0b01,), 0b10: (0b10,)}


def test_a_machine_without_cpus_has_averages_of_nothing():
    tables = cpu_tables(Topology(CPUSet(), (), (), (), ()))
    assert (tables.cpus_per_core, tables.cpus_per_socket, tables.cpus_per_cache) == (0, 0, 0)
