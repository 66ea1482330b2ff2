"""Which of equally good NUMA node masks is taken."""

import pytest

from nri_plugin.model.options import TopologyManagerPolicy, TopologyTieBreak
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.hints import Hint, HintSet
from nri_plugin.policy.merge import merge
from nri_plugin.policy.search.mask_order import Distances, Share, tie_break
from tests.topology_rows import topology_of_rows
from tests.unit.policy.shapes import machine

PACKED, SPREAD, BEST_FIT = TopologyTieBreak
POLICIES = (TopologyManagerPolicy.BEST_EFFORT, TopologyManagerPolicy.SINGLE_NUMA_NODE)
FOUR = cpu_tables(machine(nodes=4, caches=2, cores=4, threads=1))
"""32 CPUs; nodes 0-7, 8-15, 16-23, 24-31 with two caches of 4."""
SIXTEEN = cpu_tables(machine(nodes=16, caches=1, cores=4, threads=1))


def chosen(rule, available, count, policy=POLICIES[0], tables=FOUR):
    free = CPUSet.parse(available)
    nodes = NodeMask(tables.nodes_of(tables.online))
    hint_sets = cpu_hint_sets(tables, count, free)
    return str(merge(policy, nodes, [hint_sets], tie_break=tie_break(rule, tables, free, count)).affinity)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("rule", "available", "count", "expected", "why"),
    [
        (PACKED, "0-3,8-15,16-18,24-31", 3, "0", "the lowest"),
        (SPREAD, "0-3,8-15,16-18,24-31", 3, "1", "the emptiest, the lowest of equal ones"),
        (BEST_FIT, "0-3,8-15,16-18,24-31", 3, "2", "the tightest"),
        (BEST_FIT, "0-3,8-15,16-18,24-31", 4, "0", "the tightest that holds it"),
        (BEST_FIT, "0-1,4-5,8-15,16-21", 4, "2", "one cache before a tighter node"),
    ],
)
def test_one_of_several_single_nodes(policy, rule, available, count, expected, why):
    assert chosen(rule, available, count, policy) == expected, why


def test_sets_of_nodes_are_chosen_like_single_ones():
    available = "0-7,8-14,16-23,24-29"
    assert [chosen(rule, available, 12) for rule in TopologyTieBreak] == ["0-1", "0,2", "0,3"]


def test_distance_decides_before_the_rule():
    rows = {one: {other: 10 if one == other else 20 for other in range(4)} for one in range(4)}
    rows[2][2] = 9
    hint_set = (HintSet("r", (Hint(1, True), Hint(2, True), Hint(4, True))),)
    spread = tie_break(SPREAD, FOUR, CPUSet.parse("8-15"), 1)
    nodes = NodeMask(0b111)
    assert merge(POLICIES[0], nodes, [hint_set], tie_break=spread).affinity == NodeMask(2)
    assert merge(
        POLICIES[0], nodes, [hint_set], distances=Distances(rows), tie_break=spread
    ).affinity == NodeMask(4)


def test_beyond_eight_nodes_single_nodes_are_told_apart_too():
    available = "0-3,20-21,40-42"
    assert [chosen(rule, available, 2, tables=SIXTEEN) for rule in TopologyTieBreak] == ["0", "0", "5"]


def test_beyond_eight_nodes_sets_of_nodes_are_told_apart_too():
    available = "0-2,4-7,8-10,16-19,24-27"
    assert [chosen(rule, available, 7, tables=SIXTEEN) for rule in TopologyTieBreak] == ["0-1", "1,4", "0-1"]
    assert [chosen(rule, available, 6, tables=SIXTEEN) for rule in TopologyTieBreak] == ["0-1", "1,4", "0,2"]


def test_a_mask_with_too_few_cpus_comes_behind_all_others():
    rank = tie_break(BEST_FIT, FOUR, CPUSet.parse("0-2,8-15"), 4)
    assert rank.rank(0b0001) > rank.rank(0b0010)


def test_the_rank_of_a_mask_is_what_the_shares_of_its_nodes_add_up_to():
    """Nodes 0-2 have three, two and no CPUs available, in caches of 2 and 1, 2, none; 33 is more than all CPUs."""
    free = CPUSet.parse("0-1,4,8-9")
    best = tie_break(BEST_FIT, FOUR, free, 4)
    assert best.shares(0) == [Share(3, 0), Share(36, 2), Share(69, 3)]
    assert best.shares(1) == [Share(2, 0), Share(35, 2)]
    assert best.shares(2) == [Share(0, 0)]
    assert best.shares(9) == [Share(0, 0)], "a node without CPUs"
    assert (best.goal, best.short, best.span) == (4, 9 * 33, 18 * 33)
    assert best.rank(0b011) == 36 + 35
    assert best.rank(0b001) == best.short + 3
    spread = tie_break(SPREAD, FOUR, free, 4)
    assert spread.shares(0) == [Share(-3, 0)]
    assert spread.goal == 0
    assert spread.rank(0b011) == -5


def test_shares_add_up_unless_an_available_cpu_lies_in_a_cache_over_two_nodes():
    rows = [(cpu, cpu, 0, cpu // 4, (0, 0, 1, 1, 1, 1, 2, 2)[cpu]) for cpu in range(8)]
    across = cpu_tables(topology_of_rows(rows))

    def is_additive(rule, free):
        return tie_break(rule, across, CPUSet.parse(free), 2).is_additive

    assert is_additive(BEST_FIT, "0-7") is False
    assert is_additive(BEST_FIT, "0-3,6-7") is True
    assert is_additive(BEST_FIT, "0-1,4-7") is True
    assert is_additive(SPREAD, "0-7") is True


@pytest.mark.parametrize("rule", TopologyTieBreak)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_wished_node_decides_between_equally_good_nodes_before_the_rule(rule, policy):
    free = CPUSet.parse("0-3,8-15,16-18,24-31")
    nodes = NodeMask(FOUR.nodes_of(FOUR.online))
    hint_sets = cpu_hint_sets(FOUR, 3, free)
    wished = tie_break(rule, FOUR, free, 3, 1 << 3)
    assert merge(policy, nodes, [hint_sets], tie_break=wished).affinity == NodeMask.of(3)


def test_a_wished_node_never_makes_a_hint_wider():
    free = CPUSet.parse("0-7,8-10")
    nodes = NodeMask(FOUR.nodes_of(FOUR.online))
    hint_sets = cpu_hint_sets(FOUR, 6, free)
    wished = tie_break(PACKED, FOUR, free, 6, 1 << 1)
    assert merge(POLICIES[0], nodes, [hint_sets], tie_break=wished).affinity == NodeMask.of(0)


def test_shares_of_a_wished_node_are_below_all_others():
    wished = tie_break(PACKED, FOUR, CPUSet.parse("0-31"), 4, 1 << 2)
    assert [wished.shares(node)[0].rank for node in range(4)].index(wished.shares(2)[0].rank) == 2
    assert wished.rank(0b0100) < wished.rank(0b0010) == wished.rank(0b0001) == 0
    assert wished.span >= wished.rank(0b0010) - wished.rank(0b0100)
