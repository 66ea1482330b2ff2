"""Branch and bound over clusters, against trying all sets."""

from itertools import combinations

import pytest

from nri_plugin import bits
from nri_plugin.policy.apart import Apart
from nri_plugin.policy.budget import Budget, BudgetSpentError
from nri_plugin.policy.ways import Chooser, Item, Way
from tests.unit.policy.rings import ring

MACHINES = {"ring of sockets": ring(5, 3), "ring of nodes": ring(7, 1)}
EVERYTHING = 1 << 60


def weight(node):
    return 3 * node * node % 7


def items(nodes, uses=None):
    """Taking a node costs its weight and its bit; leaving it out uses what `uses` says."""
    return {
        node: Item(
            (Way((weight(node) << 20) + (1 << node), (0,) if uses else ()),),
            (Way(0, (uses[node],) if uses else ()),),
        )
        for node in nodes
    }


def cost_of(machine, taken):
    pairs = sum(machine.rows[a][b] + machine.rows[b][a] for a, b in combinations(taken, 2))
    return (sum(map(weight, taken)) + pairs << 20) + bits.from_ids(taken)


def found(machine, of, count, limits=(), below=EVERYTHING, steps=100_000):
    apart = Apart(Chooser(of, count, limits, 1 << 20, Budget(steps)), machine.layout, below)
    apart.search()
    return apart.best and apart.best.cost


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_the_cheapest_set_is_found(name, count):
    machine = MACHINES[name]
    best = min(cost_of(machine, taken) for taken in combinations(machine.rows, count))
    assert found(machine, items(machine.rows), count) == best


def test_nodes_that_are_no_items_are_not_taken():
    machine = MACHINES["ring of sockets"]
    some = [0, 4, 5, 9, 10, 13]
    best = min(cost_of(machine, taken) for taken in combinations(some, 3))
    assert found(machine, items(some), 3) == best


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("limit", [0, 3, 9, 14, 40])
def test_limits_are_kept(name, limit):
    machine = MACHINES[name]
    uses = {node: node % 4 for node in machine.rows}
    possible = [
        taken
        for taken in combinations(machine.rows, 4)
        if sum(uses[node] for node in machine.rows if node not in taken) <= limit
    ]
    best = min((cost_of(machine, taken) for taken in possible), default=None)
    assert found(machine, items(machine.rows, uses), 4, (limit,)) == best


def test_only_what_is_below_the_bound_counts():
    machine = MACHINES["ring of nodes"]
    best = found(machine, items(machine.rows), 3)
    assert found(machine, items(machine.rows), 3, below=best + 1) == best
    assert found(machine, items(machine.rows), 3, below=best) is None


def test_more_nodes_than_there_are_cannot_be_taken():
    machine = MACHINES["ring of nodes"]
    assert found(machine, items([0, 1]), 3) is None


@pytest.mark.parametrize("each", [3, 8])
def test_a_cluster_of_which_nothing_can_be_done_ends_the_search(each):
    machine = ring(5, each)
    nothing = items(machine.rows, dict.fromkeys(machine.rows, 50))
    assert found(machine, nothing, 2, (10,)) is None


def test_what_was_found_before_the_budget_ran_out_stays():
    machine = MACHINES["ring of nodes"]

    def searching(steps):
        budget = Budget(steps)
        return Apart(Chooser(items(machine.rows), 3, (), 1 << 20, budget), machine.layout, EVERYTHING), budget

    whole, budget = searching(100_000)
    whole.search()
    part, _ = searching(100_000 - budget.left - 1)
    with pytest.raises(BudgetSpentError):
        part.search()
    assert part.best == whole.best is not None
