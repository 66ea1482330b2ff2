"""Branch and bound over clusters, against trying all sets."""

from itertools import combinations

import pytest

from nri_plugin.model import bits
from nri_plugin.policy.search.bounds import Chooser, Item, Way
from nri_plugin.policy.search.budget import Budget, BudgetSpentError
from nri_plugin.policy.search.closest import Apart
from nri_plugin.policy.search.mask_order import Distances
from tests.unit.policy.rings import ring

SOCKETS = (0, 1, 1, 1, 2, 3, 3, 4, 5)
"""Sockets of unequal size, the near ones late."""


def irregular():
    """Sockets differently far from each other."""

    def far(one, other):
        if one == other:
            return 10
        a, b = sorted((SOCKETS[one], SOCKETS[other]))
        return 12 if a == b else 60 - 4 * (a + b) + 7 * a * b % 9

    nodes = range(len(SOCKETS))
    return Distances({one: {other: far(one, other) for other in nodes} for one in nodes})


MACHINES = {"ring of sockets": ring(5, 3), "ring of nodes": ring(7, 1), "irregular": irregular()}
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


@pytest.mark.parametrize(("each", "count"), [(3, 2), (8, 2), (8, 6)])
def test_a_cluster_of_which_nothing_can_be_done_ends_the_search(each, count):
    machine = ring(5, each)
    nothing = items(machine.rows, {node: 50 + node * 3 % 7 for node in machine.rows})
    assert found(machine, nothing, count, (10,)) is None


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


def steps_of(machine, of, count, limits=(), below=EVERYTHING):
    budget = Budget(1 << 30)
    Apart(Chooser(of, count, limits, 1 << 20, budget), machine.layout, below).search()
    return (1 << 30) - budget.left


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("ring of sockets", [186, 229, 343, 372, 416, 80, 80, 80, 1126, 456, 321, 116]),
        ("ring of nodes", [281, 287, 342, 358, 309, 22, 362, 358, 358, 358, 332, 278]),
        ("irregular", [223, 299, 344, 322, 364, 38, 306, 328, 328, 328, 278, 84]),
    ],
)
def test_so_much_is_looked_at(name, steps):
    """Other numbers mean that branches are cut elsewhere: look whether that is meant."""
    machine = MACHINES[name]
    uses = {node: node % 4 for node in machine.rows}
    of, limited = items(machine.rows), items(machine.rows, uses)
    assert [
        *(steps_of(machine, of, count) for count in (1, 2, 3, 4, 6)),
        *(steps_of(machine, limited, 4, (limit,)) for limit in (0, 3, 9, 14, 40)),
        steps_of(machine, of, 3, below=found(machine, of, 3) + 1),
        steps_of(machine, of, 3, below=found(machine, of, 3)),
    ] == steps


def test_so_much_is_looked_at_where_nothing_can_be_done_with_some_clusters():
    machine = ring(5, 8)
    nothing = items(machine.rows, {node: 50 + node * 3 % 7 for node in machine.rows})
    assert steps_of(machine, nothing, 2, (10,)) == 310
