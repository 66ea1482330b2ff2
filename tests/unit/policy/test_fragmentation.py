"""How broken up what is left is."""

from nri_plugin.policy.alignment import by_cache, by_numa_node, fragmentation
from nri_plugin.policy.cpu_assignment import cpu_tables
from tests.builders import cpus, machine

SPLIT = machine(caches=2)
"""CPUs 0-7 in NUMA node 0, caches of 4, cores of 2."""


def test_nothing_left_is_not_broken_up() -> None:
    assert fragmentation(0, [0b11]) == 0


def test_what_lies_in_a_group_that_others_use_in_part_is_broken() -> None:
    assert fragmentation(0b1101, [0b11, 0b1100]) == 1 / 3


def test_a_numa_node_is_broken_by_cache_and_a_cache_by_core() -> None:
    allocatable = SPLIT.online - cpus("0-1")
    left = allocatable - cpus("4")
    nodes = {one.id: one for one in by_numa_node(cpu_tables(SPLIT), allocatable, left)}
    caches = {one.id: one for one in by_cache(cpu_tables(SPLIT), SPLIT, allocatable, left)}
    assert (str(nodes[0].available), str(nodes[0].allocatable), str(nodes[0].cpus)) == (
        "2-3,5-7",
        "2-7",
        "0-7",
    )
    assert (nodes[0].ratio, nodes[1].ratio) == (3 / 5, 0)
    assert (caches[1].ratio, caches[0].ratio) == (1 / 3, 0)
