"""The best fit: a sentence a case. The law of all cases is in tests/property."""

import pytest

from nri_plugin.model.errors import InsufficientCPUsError, UncoreCacheAlignmentError
from nri_plugin.model.options import Options
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy import best_fit
from nri_plugin.policy.best_fit import take_best_fit, take_in_one_cache
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import take_cpus
from tests.topology_rows import topology_of_rows
from tests.unit.policy.shapes import machine

cpus = CPUSet.parse
ONE_NODE = cpu_tables(machine(caches=4, cores=4, threads=2))
"""32 CPUs; caches 0-7, 8-15, 16-23, 24-31."""
FOUR_NODES = cpu_tables(machine(sockets=2, nodes=2, caches=2, cores=2, threads=2))
"""32 CPUs; nodes 0-7, 8-15, 16-23, 24-31 with two caches of two cores each."""
NODE_IS_CACHE = cpu_tables(machine(sockets=2, nodes=4, caches=1, cores=2, threads=2))
"""32 CPUs; eight nodes of one cache with two cores."""
ACROSS = cpu_tables(
    topology_of_rows((cpu, cpu // 2 * 2, 0, cpu // 4, (0, 0, 1, 1, 1, 1, 2, 2)[cpu]) for cpu in range(8))
)
"""Two nodes 0-3 and 4-7; caches 0-1, 2-5 over both nodes, 6-7; SMT 2."""


@pytest.mark.parametrize(
    ("tables", "available", "count", "expected", "rule"),
    [
        (ONE_NODE, "0-31", 0, "", "nothing wanted"),
        (ONE_NODE, "0-31", -1, "", "less than nothing wanted"),
        (ONE_NODE, "0-31", 4, "0-3", "the lowest cores of the lowest of equal caches"),
        (ONE_NODE, "0-7,8-13,16-19,24-31", 4, "16-19", "the tightest hole"),
        (ONE_NODE, "0-7,8-13,16-19,24-31", 6, "8-13", "the tightest that holds it"),
        (ONE_NODE, "0-7,8-13,16-17,24-31", 8, "0-7", "one cache before two tight ones"),
        (ONE_NODE, "0-5,8-13,16-19,24-31", 10, "0-5,16-19", "two caches, the largest holes are left"),
        (ONE_NODE, "0,2,4,6,8-15", 4, "8-11", "whole cores before a tighter hole of halves"),
        (ONE_NODE, "0-2,8-15", 3, "0-2", "an odd number ends in a core that is in use already"),
        (ONE_NODE, "0-3,8-15", 3, "0-2", "else one is opened, the lowest"),
        (ONE_NODE, "1,4-7,8-15", 5, "1,4-7", "whole cores, then the half"),
        (FOUR_NODES, "0-3,8-15", 6, "8-13", "one node before two"),
        (FOUR_NODES, "0-2,4-6,8-15", 4, "8-11", "fewest caches before the tightest node"),
        (FOUR_NODES, "0-7,8-11", 4, "8-11", "of equal caches that on the tighter node"),
        (FOUR_NODES, "0-7,8-15,16-23,24-31", 12, "0-11", "the lowest of equal nodes"),
        (
            FOUR_NODES,
            "0-7,8-15,16-21",
            10,
            "0-7,20-21",
            "on two nodes three caches, the smallest hole among them",
        ),
        (NODE_IS_CACHE, "0-3,4-7,8-10,12-13,16-31", 6, "0-3,12-13", "nodes that are caches: no core split"),
        (ACROSS, "0-7", 4, "0-3", "a node, though a cache over two nodes would hold it"),
    ],
)
def test_the_best_fit(tables, available, count, expected, rule):
    assert str(take_best_fit(tables, cpus(available), count)) == expected, rule


def test_one_numa_node_is_worth_a_third_cache_where_first_fit_goes_to_two_nodes_for_two():
    """Why the best fit alone, without topology hints, can be on more caches than first fit: nodes come first."""
    tables = cpu_tables(
        machine(sockets=2, caches=4, cores=4, threads=1)
    )  # caches 0-3, 4-7... node 1 from 16 on
    left = CPUSet.parse("0-3,4-5,8-9,16-19")
    first = take_cpus(tables, left, 8, Options(prefer_align_cpus_by_uncore_cache=True))
    assert str(first) == "0-3,16-19"
    assert str(take_best_fit(tables, left, 8)) == "0-5,8-9"


def test_too_few_cpus_are_refused_with_the_numbers():
    with pytest.raises(InsufficientCPUsError, match="requested=3, available=2"):
        take_best_fit(ONE_NODE, cpus("0-1"), 3)


def test_cpus_that_the_machine_does_not_have_do_not_count():
    with pytest.raises(InsufficientCPUsError):
        take_best_fit(ONE_NODE, cpus("31-40"), 2)


def test_past_the_limit_of_node_sets_the_tightest_nodes_are_taken(monkeypatch):
    available = cpus("0-7,8-15,16-21,24-29")
    exact = take_best_fit(FOUR_NODES, available, 12)
    monkeypatch.setattr(best_fit, "NODE_SETS", 1)
    tightest = take_best_fit(FOUR_NODES, available, 12)
    assert (str(exact), str(tightest)) == ("0-7,16-19", "16-21,24-29")


def test_strict_refuses_what_no_cache_holds_and_names_the_largest_hole():
    with pytest.raises(UncoreCacheAlignmentError, match=r"7 cpus requested.* has 6 .*8 in all.*ask for 6"):
        take_in_one_cache(ONE_NODE, cpus("0-5,8-12,16-20"), 7)


def test_strict_refuses_what_is_larger_than_any_cache_for_good():
    with pytest.raises(UncoreCacheAlignmentError, match="ask for 8 or fewer"):
        take_in_one_cache(ONE_NODE, cpus("0-31"), 9)


def test_strict_does_not_suggest_to_ask_for_no_cpus():
    assert str(UncoreCacheAlignmentError(7, 0, 8)).endswith(
        "(the largest has 8 in all); wait until others end"
    )


def test_strict_takes_the_best_fit_where_it_is_one_cache():
    assert take_in_one_cache(ONE_NODE, cpus("0-7,8-13"), 5) == cpus("8-12")


def test_strict_splits_no_core_for_a_tighter_hole():
    assert take_in_one_cache(ONE_NODE, cpus("0,2,4,6,8-15"), 4) == cpus("8-11")


def test_nodes_that_share_a_cache_are_not_alike():
    rows = [(cpu, cpu, 0, cpu // 2, cpu // 2 % 2) for cpu in range(8)]  # nodes 0, 2 and nodes 1, 3
    assert take_best_fit(cpu_tables(topology_of_rows(rows)), cpus("0-7"), 4) == cpus("0-1,4-5")


def test_strict_goes_to_a_cache_over_two_nodes_when_only_that_holds_it():
    assert take_in_one_cache(ACROSS, cpus("0-6"), 4) == cpus("2-5")


def test_strict_goes_to_the_tightest_of_the_caches_over_two_nodes():
    caches = (0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3)
    wide = cpu_tables(topology_of_rows((cpu, cpu, 0, cpu // 4, caches[cpu]) for cpu in range(12)))
    assert take_in_one_cache(wide, cpus("2-8"), 3) == cpus("6-8")


def test_strict_names_the_size_of_the_largest_cache():
    with pytest.raises(UncoreCacheAlignmentError, match=r"5 cpus requested.* has 3 .*4 in all"):
        take_in_one_cache(ACROSS, cpus("0-1,3-6,7"), 5)


def sets(tables, available, size, need):
    nodes = best_fit._Machine(tables, cpus(available).mask)._nodes()
    return [[node.number for node in found] for found in best_fit.node_sets(nodes, size, need)]


@pytest.mark.parametrize(
    ("tables", "available", "size", "need", "expected", "rule"),
    [
        (FOUR_NODES, "0-31", 2, 12, [[0, 1]], "of nodes that offer the same the lowest"),
        (FOUR_NODES, "0-7,8-15,16-21,24-29", 2, 12, [[2, 3], [0, 2], [0, 1]], "the tightest first"),
        (FOUR_NODES, "0-7,8-15,16-21,24-29", 2, 13, [[0, 2], [0, 1]], "only those that hold it"),
        (FOUR_NODES, "0-7,8-15,16-21,24-25", 3, 18, [[0, 1, 3], [0, 1, 2]], "three of them"),
        (
            FOUR_NODES,
            "0-3,8-9,12-13,16-19,28-31",
            1,
            4,
            [[0], [1]],
            "caches count by what they hold, not by place",
        ),
        (FOUR_NODES, "0-5,8-9,12-15", 1, 6, [[0]], "caches count by what they hold, in whatever order"),
        (
            NODE_IS_CACHE,
            "0-3,4-6,8-10,12-13,16-17,20",
            2,
            6,
            [[1, 2], [0, 3], [0, 1]],
            "of three sizes and more",
        ),
        (ACROSS, "0-7", 1, 4, [[0], [1]], "nodes that share a cache are never alike"),
    ],
)
def test_node_sets(tables, available, size, need, expected, rule):
    assert sets(tables, available, size, need) == expected, rule


def test_where_nodes_are_caches_no_set_of_nodes_is_listed(monkeypatch):
    monkeypatch.setattr(best_fit, "NODE_SETS", 0)
    assert take_best_fit(NODE_IS_CACHE, cpus("0-3,4-7,8-10,12-13,16-31"), 6) == cpus("0-3,12-13")
    assert take_best_fit(NODE_IS_CACHE, cpus("0,4-5,9,12"), 3) == cpus("0,4-5")


def test_nodes_that_share_caches_are_no_caches_of_their_own():
    caches = (1, 2, 0, 1, 0)
    shared = cpu_tables(topology_of_rows((cpu, cpu, 0, cpu // 4, caches[cpu // 4]) for cpu in range(20)))
    assert take_best_fit(shared, cpus("8-10,12-13,16-18"), 5) == cpus("8-10,16-17")


def test_of_equal_caches_those_on_evenly_filled_nodes_go_before_those_that_touch_a_fuller_one():
    tables = cpu_tables(machine(nodes=4, caches=3, cores=4, threads=1))
    assert take_best_fit(tables, cpus("0-8,12-13,24-29,36-40"), 10) == cpus("24-29,36-39")


def test_of_nodes_that_are_equally_free_those_with_the_lowest_node_are_taken():
    tables = cpu_tables(machine(nodes=4, caches=4, cores=4, threads=1))
    free = cpus("0-1,4,8,16-19,20-21,24,28,32-35,48-55")
    assert take_best_fit(tables, free, 10) == cpus("0-1,48-55")
