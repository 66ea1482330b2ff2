"""The cheapest selection on a machine built in levels, against trying all sets."""

from itertools import combinations

import pytest

from nri_plugin.policy.search import BudgetSpentError, StepBudget
from nri_plugin.policy.search import levels as module
from nri_plugin.policy.search.levels import LevelSearch, NodeChoices, Selection, distance_tree

WIDTH = 9
UNIT = 1 << WIDTH
LEVELS = {a: {b: 10 if a == b else 12 if a // 3 == b // 3 else 30 for b in range(9)} for a in range(9)}
FLAT = {a: dict.fromkeys(range(9), 0) for a in range(9)}
TREE = distance_tree(LEVELS)
USES = {node: (node * 5 % 7, node * node % 5) for node in range(9)}
LIMITS = [(0, 0), (4, 3), (9, 20), (20, 6), (12, 8), (99, 7), (99, 99)]


def choices(forced=()):
    """Excluding a node takes its uses; those that are forced cannot be excluded."""
    return {
        node: NodeChoices(((1 << node, (0, 0)),), () if node in forced else (USES[node],))
        for node in range(9)
    }


def searching(count, limits, of=None, steps=100_000, tree=TREE):
    return LevelSearch(Selection(of or choices(), count, limits, UNIT, WIDTH, StepBudget(steps)), tree)


def cost_of(taken, rows=LEVELS):
    pairs = sum(rows[a][b] + rows[b][a] for a, b in combinations(taken, 2))
    return pairs * UNIT + sum(1 << node for node in taken)


def uses_of(taken):
    left = [USES[node] for node in range(9) if node not in taken]
    return tuple(sum(use[n] for use in left) for n in range(2))


def possible(count, limits, forced=()):
    for taken in combinations(range(9), count):
        if set(forced) <= set(taken) and all(map(int.__le__, uses_of(taken), limits)):
            yield taken


def members(mask):
    return [node for node in range(9) if mask >> node & 1]


def nothing(mask):
    pass


SOLVABLE = [limits for limits in LIMITS if list(possible(5, limits))]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("count", [1, 4, 6])
@pytest.mark.parametrize("rows", [LEVELS, FLAT], ids=["levels", "flat"])
def test_the_cheapest_selection_is_found_whatever_was_known(rows, limits, count):
    costs = sorted(cost_of(taken, rows) for taken in possible(count, limits))
    for known in costs and (costs[0], costs[-1]):
        for raised in (False, True):
            search = searching(count, limits, tree=distance_tree(rows))
            if raised:
                search.improve(known >> WIDTH, nothing)
            assert search.cheapest(known >> WIDTH) == costs[0]


def test_nothing_is_found_below_the_cheapest():
    best = min(map(cost_of, possible(4, (12, 8))))
    assert searching(4, (12, 8)).cheapest((best >> WIDTH) - 1) is None


def test_where_no_selection_fits_none_is_found():
    assert searching(4, (0, 0)).cheapest(10**6) is None


@pytest.mark.parametrize("forced", [(8,), (0, 7)])
def test_what_cannot_be_excluded_is_selected(forced):
    best = min(map(cost_of, possible(4, (20, 15), forced)))
    assert searching(4, (20, 15), choices(forced)).cheapest(10**6) == best


def test_of_several_ways_to_select_a_node_the_one_that_fits_is_chosen():
    of = {
        node: NodeChoices(((1 << node, (0,)), ((1 << node) + 3 * UNIT, (-node,))), ((0,),))
        for node in range(9)
    }
    assert searching(2, (-9,), of).cheapest(10**6) == cost_of((4, 5)) + 6 * UNIT
    assert searching(2, (-16,), of).cheapest(10**6) is None


def test_without_charges_the_relaxation_is_the_cheapest_selection_of_all():
    relaxed = searching(4, (12, 8)).relaxed
    best = min(map(cost_of, combinations(range(9), 4)))
    assert relaxed.nodes == best & (1 << WIDTH) - 1
    assert relaxed.uses == uses_of(members(relaxed.nodes))


@pytest.mark.parametrize("limits", SOLVABLE)
def test_the_lower_bound_is_no_higher_than_any_selection_within_the_capacities(limits):
    costs = [cost_of(taken) >> WIDTH for taken in possible(5, limits)]
    search = searching(5, limits)
    free = search.lower_bound
    search.improve(max(costs), nothing)
    assert free <= search.lower_bound <= min(costs)


def test_good_multipliers_raise_the_lower_bound():
    costs = [cost_of(taken) >> WIDTH for taken in possible(5, (6, 99))]
    search = searching(5, (6, 99))
    free = search.lower_bound
    search.improve(max(costs), nothing)
    assert search.lower_bound > free
    assert max(search.multipliers) > 0


def test_constraints_that_the_cheapest_selection_keeps_have_no_multiplier():
    search = searching(4, (99, 99))
    search.improve(10**6, nothing)
    assert search.multipliers == [0, 0]


def test_more_multipliers_do_not_lower_the_bound(monkeypatch):
    known = max(map(cost_of, possible(5, (8, 99)))) >> WIDTH
    bounds = []
    for most in (1, 2, 12):
        monkeypatch.setattr(module, "MULTIPLIERS_TRIED", most)
        search = searching(5, (8, 99))
        search.improve(known, nothing)
        bounds.append(search.lower_bound)
    assert bounds[2] >= bounds[0]


@pytest.mark.parametrize("limits", SOLVABLE)
def test_selections_that_turn_up_keep_within_the_capacities(limits):
    found = []
    searching(5, limits).improve(10**6, found.append)
    assert all(all(map(int.__le__, uses_of(members(mask)), limits)) for mask in found)
    assert all(mask.bit_count() == 5 for mask in found)


def test_a_search_stops_when_nothing_better_is_possible():
    search = searching(5, (8, 99))
    search.improve(0, nothing)
    assert search.multipliers == [0, 0]


def test_every_pair_of_labels_is_a_step():
    search = searching(4, (12, 8), steps=80)
    with pytest.raises(BudgetSpentError):
        search.cheapest(10**6)
