"""On machines built in levels, and on any of 16 nodes, every hint is exact within the usual number of steps."""

import pytest

from nri_plugin.model.options import TopologyManagerPolicy, TopologyTieBreak
from nri_plugin.policy.merge import merge
from nri_plugin.policy.search.mask_order import tie_break
from nri_plugin.simulator.machine.machine import build_topology, shipped
from tests.bench.fillings import fillings, levels

CASES = 40
SIZES = (9, 10, 12, 16, 24, 32, 34, 48, 64)
MACHINES = (
    {f"{nodes} nodes in levels": levels(nodes) for nodes in SIZES}
    | {f"{nodes} nodes on two planes": levels(nodes, crossing=4) for nodes in (10, 12, 16)}
    | {
        name: topology
        for name, topology in ((name, build_topology(text)) for name, text in shipped().items())
        if len(topology.node_ids) > 1
    }
)
POLICIES = (TopologyManagerPolicy.BEST_EFFORT, TopologyManagerPolicy.RESTRICTED)


@pytest.mark.parametrize("rule", TopologyTieBreak)
@pytest.mark.parametrize("name", MACHINES)
def test_every_hint_is_exact(name, rule):
    for number, filled in enumerate(fillings(MACHINES[name], CASES, name)):
        hint = merge(
            POLICIES[number % 2],
            filled.nodes,
            filled.hint_sets,
            distances=filled.distances,
            tie_break=tie_break(rule, filled.tables, filled.free, filled.count),
        )
        assert hint.exact, number


@pytest.mark.parametrize("name", MACHINES)
def test_hints_are_as_close_as_any_swap_of_one_node_could_make_them(name):
    """A check of large machines that needs no list of all sets: no neighbour of the answer is better."""
    topology = MACHINES[name]
    for filled in fillings(topology, CASES // 4, name):
        hint = merge(POLICIES[0], filled.nodes, filled.hint_sets, distances=filled.distances)
        hint_sets = [hint_set for provider in filled.hint_sets for hint_set in provider or ()]
        if not hint.preferred or filled.distances is None:
            continue
        best = filled.distances.total(hint.affinity.mask), hint.affinity.mask
        for gone in hint.affinity:
            for come in filled.nodes - hint.affinity:
                other = hint.affinity.mask & ~(1 << gone) | 1 << come
                if all(hint_set.prefers(other) for hint_set in hint_sets):
                    assert best < (filled.distances.total(other), other)
