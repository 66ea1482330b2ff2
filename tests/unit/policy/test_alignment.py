"""Where CPUs lie, and what they are aligned to."""

from nri_plugin.core.hint_providers import tables_of
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.alignment import CPUAlignment, footprint, is_in_one_cache, of_machine
from tests.builders import machine
from tests.builders import node as a_node

MACHINE = machine(nodes=2, cores=4, threads=2, caches=2)
"""Caches 0-3, 4-7, 8-11, 12-15; NUMA nodes 0-7, 8-15."""


def levels(cpus: str, mems: str = "") -> CPUAlignment:
    return footprint(MACHINE, CPUSet.parse(cpus), NodeMask.parse(mems)).aligned


def test_two_whole_cores_of_one_cache_are_aligned_at_every_level() -> None:
    assert levels("4-7", "0") == CPUAlignment(True, True, True, True)


def test_half_a_core_is_no_whole_core() -> None:
    assert levels("4-6") == CPUAlignment(True, True, True, whole_cores=False)


def test_two_caches_of_one_node_are_not_one_cache() -> None:
    assert levels("2-5") == CPUAlignment(True, True, uncore_cache=False, whole_cores=True)


def test_memory_on_another_node_is_no_numa_alignment() -> None:
    assert levels("4-7", "1") == CPUAlignment(
        numa_node=False, socket=True, uncore_cache=True, whole_cores=True
    )


def test_nothing_is_aligned_at_no_level() -> None:
    assert levels("", "0") == CPUAlignment(False, False, False, False)
    assert not is_in_one_cache(MACHINE, CPUSet())


def test_everything_touched_is_named() -> None:
    found = footprint(MACHINE, CPUSet.parse("3-4,8,100"))
    assert found.cores == (2, 4, 8)
    assert found.sockets == (0, 1)
    assert str(found.numa_nodes) == "0-1"
    assert found.uncore_caches == (0, 1, 2)
    assert str(found.offline) == "100"


def test_a_core_whose_other_thread_is_offline_is_whole() -> None:
    one = machine(nodes=1, cores=2, threads=1)
    assert footprint(one, CPUSet.of(1)).aligned.whole_cores


def test_fragmentation_of_the_machine_counts_caches_and_cores_in_part() -> None:
    node = a_node()  # 2 caches of 8 CPUs, cores of 2 CPUs, 0-1 reserved
    found = of_machine(tables_of(node), node.allocatable, node.allocatable - CPUSet.of(2))
    assert found == (5 / 13, 1 / 13)
    assert of_machine(tables_of(node), node.allocatable, CPUSet()) == (0.0, 0.0)
