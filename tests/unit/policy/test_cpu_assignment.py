"""Which CPUs are taken: one rule a case."""

import pytest

from nri_plugin.model.errors import InsufficientCPUsError
from nri_plugin.model.options import UncoreCacheRule
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import cpu_tables, lowest_bits, take_packed
from tests.topology_rows import topology_of_rows
from tests.unit.policy.shapes import machine

ONE = machine(cores=4, threads=2)
"""0-7 in pairs."""
TWO = machine(2, 1, cores=4, threads=2)
"""Node 0: 0-7, node 1: 8-15."""
FOUR = machine(2, 2, cores=2, threads=2)
"""Nodes 0-3 of four CPUs each, two a socket."""
CACHES = machine(1, 1, caches=3, cores=4, threads=2)
"""Caches 0-7, 8-15, 16-23."""
HYBRID = topology_of_rows([(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (2, 2, 0, 0, 0), (3, 3, 0, 0, 0)])
"""One core of two threads, two of one: the average is one."""


def take(topology, available, count, **options):
    return str(take_packed(cpu_tables(topology), CPUSet.parse(available), count, **options))


@pytest.mark.parametrize(
    ("topology", "available", "count", "taken", "rule"),
    [
        (ONE, "0-7", 0, "", "nothing for nothing"),
        (ONE, "0-7", -3, "", "nothing for less than nothing"),
        (ONE, "0-7", 2, "0-1", "a whole core"),
        (ONE, "1-7", 2, "2-3", "a whole core before two odd threads"),
        (ONE, "1,3,4-7", 3, "1,4-5", "the rest from the core already in use"),
        (ONE, "0-7", 1, "0", "the lowest thread"),
        (ONE, "1,3,5,7", 3, "1,3,5", "threads of broken cores by number"),
        (TWO, "0-15", 8, "0-7", "a whole NUMA node"),
        (TWO, "1-15", 8, "8-15", "a whole NUMA node even if the other is fuller"),
        (TWO, "0-7,12-15", 2, "12-13", "from the node with fewest free CPUs"),
        (TWO, "0-15", 10, "0-9", "a node, then the next"),
        (TWO, "4-15", 4, "4-7", "the fuller node first"),
        (FOUR, "0-15", 8, "0-7", "a whole socket before whole nodes"),
        (FOUR, "1-15", 4, "4-7", "the whole node of the fuller socket"),
        (FOUR, "0-3,8-15", 4, "0-3", "nodes in the order of their sockets"),
        (HYBRID, "0-3", 2, "2-3", "a core of above-average size is not seen as free"),
        (HYBRID, "1-3", 2, "2-3", "half of a large core is not a whole average core"),
        (HYBRID, "1", 1, "1", "half of a large core is taken when there is nothing else"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_packed(topology, available, count, taken, rule):
    assert take(topology, available, count) == taken, rule


@pytest.mark.parametrize(
    ("available", "count", "taken", "rule"),
    [
        ("0-23", 8, "0-7", "a whole cache"),
        ("2-23", 8, "8-15", "a whole cache rather than the fullest one"),
        ("2-23", 4, "2-5", "a part of the fullest cache that holds it"),
        ("0-23", 10, "0-9", "a whole cache and the rest from one"),
        ("0-1,8-23", 4, "8-11", "a cache too full is passed over"),
        ("1-23", 2, "8-9", "a cache whose lowest core is half used is passed over"),
        ("2-23", 3, "2-4", "of an odd need the highest thread is dropped"),
        ("2-7,9-23", 3, "2-4", "and that although a thread of a broken core is elsewhere"),
        ("0,8,16", 2, "0,8", "no cache fits: single CPUs"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_packed_by_uncore_cache(available, count, taken, rule):
    assert take(CACHES, available, count, prefer_uncore_cache=True) == taken, rule


def test_without_the_option_caches_play_no_part():
    assert take(CACHES, "1-23", 2) == "2-3"


def test_a_socket_counts_as_whole_only_at_the_average_size():
    rows = [(0, 0, 0, 0, 0), (1, 1, 0, 1, 0), *((c, c, 1, 2, 0) for c in range(2, 6))]
    assert take(topology_of_rows(rows), "0,2-5", 4) == "0,2-4"
    even = [(c, c, c // 4, c // 2, 0) for c in range(8)]
    assert take(topology_of_rows(even), "0,4-7", 4) == "4-7"


def test_spread_goes_by_cpu_number_inside_the_fullest_socket():
    assert take(TWO, "1-15", 3, spread=True) == "1-3"
    assert take(TWO, "0-7,9-15", 3, spread=True) == "9-11"


@pytest.mark.parametrize(("available", "count"), [("", 1), ("0-3", 5), ("0-7", 9)])
def test_a_shortage_is_refused_with_both_numbers(available, count):
    with pytest.raises(
        InsufficientCPUsError, match=f"requested={count}, available={len(CPUSet.parse(available))}"
    ):
        take(ONE, available, count)


def test_lowest_bits_are_the_lowest_members():
    assert lowest_bits(0b1101_0100, 2) == 0b0001_0100
    assert lowest_bits(0b11, 0) == 0


def test_cache_that_reaches_into_a_node_counts_there_only_while_it_has_a_free_cpu_there():
    """Cache 1 lies in both nodes, but all that is free of it lies in the second."""
    rows = [(cpu, cpu, 0, cpu // 6, cpu // 4) for cpu in range(12)]
    assert take(topology_of_rows(rows), "0-2,6-7,8-9", 1, prefer_uncore_cache=True) == "0"


NODES_OF_TWO_SOCKETS = topology_of_rows([(cpu, cpu, cpu // 4, cpu // 8, cpu // 4) for cpu in range(16)])
"""Two NUMA nodes 0-7 and 8-15, of two sockets each; each socket is a cache."""


def test_where_nodes_come_first_their_caches_are_tried_node_by_node():
    assert take(NODES_OF_TWO_SOCKETS, "0,4-7,8-9,12-13", 1, prefer_uncore_cache=True) == "8"


def test_a_cache_below_the_average_is_taken_whole_also_for_exactly_the_average():
    uneven = topology_of_rows([(cpu, cpu, 0, 0, min(cpu // 2, 1)) for cpu in range(8)])
    assert take(uneven, "0-7", 4, prefer_uncore_cache=True) == "0-3"


def test_only_of_an_odd_need_is_a_thread_dropped():
    wide = machine(caches=2, cores=2, threads=3)
    assert take(wide, "2-5,6-11", 2, prefer_uncore_cache=True) == "2-3"


def test_caches_go_by_number_as_soon_as_one_node_has_two():
    rows = [(cpu, cpu, 0, cpu // 8, max(0, cpu // 4 - 1)) for cpu in range(16)]
    by_number = {"prefer_uncore_cache": True, "cache_rule": UncoreCacheRule.KEP_4800}
    assert take(topology_of_rows(rows), "0-9,12-15", 2, **by_number) == "0-1"
    assert take(topology_of_rows(rows), "0-9,12-15", 2) == "8-9"
