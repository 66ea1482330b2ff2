"""Branch and bound, against trying all sets."""

from itertools import combinations

import pytest

from nri_plugin.model import bits
from nri_plugin.policy.search import STEP_BUDGET, BudgetSpentError, StepBudget
from nri_plugin.policy.search.closest import BranchAndBound
from nri_plugin.policy.search.levels import NodeChoices, Selection
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


def choices(nodes, uses=None):
    """Selecting a node costs its weight and its bit; excluding it uses what `uses` says."""
    return {
        node: NodeChoices(
            (((weight(node) << 20) + (1 << node), (0,) if uses else ()),),
            ((uses[node],) if uses else (),),
        )
        for node in nodes
    }


def cost_of(machine, taken):
    pairs = sum(machine.rows[a][b] + machine.rows[b][a] for a, b in combinations(taken, 2))
    return (sum(map(weight, taken)) + pairs << 20) + bits.from_ids(taken)


def searching(machine, of, count, limits=(), below=EVERYTHING, steps=100_000):
    return BranchAndBound(Selection(of, count, limits, 1 << 20, 20, StepBudget(steps)), machine.rows, below)


def found(*args, **more):
    search = searching(*args, **more)
    search.search()
    return search.best


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_the_cheapest_set_is_found(name, count):
    machine = MACHINES[name]
    best = min(cost_of(machine, taken) for taken in combinations(machine.rows, count))
    assert found(machine, choices(machine.rows), count) == best


def test_nodes_that_are_no_items_are_not_taken():
    machine = MACHINES["ring of sockets"]
    some = [0, 4, 5, 9, 10, 13]
    best = min(cost_of(machine, taken) for taken in combinations(some, 3))
    assert found(machine, choices(some), 3) == best


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
    assert found(machine, choices(machine.rows, uses), 4, (limit,)) == best


def test_only_what_is_below_the_bound_counts():
    machine = MACHINES["ring of nodes"]
    best = found(machine, choices(machine.rows), 3)
    assert found(machine, choices(machine.rows), 3, below=best + 1) == best
    assert found(machine, choices(machine.rows), 3, below=best) is None


def test_more_nodes_than_there_are_cannot_be_taken():
    machine = MACHINES["ring of nodes"]
    assert found(machine, choices([0, 1]), 3) is None


@pytest.mark.parametrize(("each", "count"), [(3, 2), (8, 2), (8, 6)])
def test_nodes_that_nothing_can_be_done_with_end_the_search(each, count):
    machine = ring(5, each)
    nothing = choices(machine.rows, {node: 50 + node * 3 % 7 for node in machine.rows})
    assert found(machine, nothing, count, (10,)) is None


def test_what_was_found_before_the_budget_ran_out_stays():
    machine = MACHINES["ring of nodes"]
    problem = Selection(choices(machine.rows), 3, (), 1 << 20, 20, StepBudget(100_000))
    whole = BranchAndBound(problem, machine.rows, EVERYTHING)
    prepared = 100_000 - problem.budget.left
    whole.search()
    steps = 100_000 - prepared - problem.budget.left
    best = []
    for share in (0, 2, 5, 8):
        part = searching(machine, choices(machine.rows), 3, steps=prepared + steps * share // 10)
        with pytest.raises(BudgetSpentError):
            part.search()
        best.append(part.best)
    assert best[0] is None
    found_so_far = [cost for cost in best if cost is not None]
    assert found_so_far
    assert found_so_far == sorted(found_so_far, reverse=True)
    assert found_so_far[-1] >= whole.best


def test_sixteen_nodes_with_any_distances_are_searched_within_the_usual_budget():
    """The largest machine without levels for which every hint is exact."""
    rows = {a: {b: 10 if a == b else 11 + (a * b + 7 * (a ^ b)) % 23 for b in range(16)} for a in range(16)}
    for count in range(1, 16):
        assert found(Distances(rows), choices(range(16)), count, steps=STEP_BUDGET) is not None
