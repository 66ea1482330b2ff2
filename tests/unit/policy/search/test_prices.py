"""Prices of what choices use up."""

from itertools import combinations

import pytest

from nri_plugin.policy.search import bounds as module
from nri_plugin.policy.search import clusters
from nri_plugin.policy.search.bounds import Chooser, Prices
from nri_plugin.policy.search.budget import STEP_BUDGET, Budget
from tests.unit.policy.search.test_ways import JOINTS, LIMITS, UNIT, USES, cost_of, items, possible

WIDTH = 9


def looking(count, limits, uses=USES):
    return Prices(Chooser(items(uses), count, limits, UNIT, Budget(100_000)), JOINTS, WIDTH)


def test_at_no_price_the_cheapest_set_of_all_is_on_offer():
    offer = looking(4, (12, 8)).offer()
    best = min(map(cost_of, combinations(range(9), 4)))
    assert offer.nodes == best & (1 << WIDTH) - 1
    left = [USES[node] for node in range(9) if not best >> node & 1]
    assert offer.use == (sum(a for a, _ in left), sum(b for _, b in left))


@pytest.mark.parametrize("limits", [limits for limits in LIMITS if list(possible(5, limits))])
def test_prices_bound_what_sets_within_the_limits_cost(limits):
    sets = [cost_of(taken) >> WIDTH for taken in possible(5, limits)]
    tried = []
    least = looking(5, limits).improve(max(sets), tried.append)
    assert least <= min(sets)
    assert all(mask.bit_count() == 5 for mask in tried)


def test_good_prices_raise_the_bound():
    sets = [cost_of(taken) >> WIDTH for taken in possible(5, (6, 99))]
    free = min(map(cost_of, combinations(range(9), 5))) >> WIDTH
    prices = looking(5, (6, 99))
    assert free < prices.improve(max(sets), lambda mask: None) <= min(sets)
    assert max(prices.prices) > 0


def test_limits_that_the_cheapest_set_keeps_have_no_price():
    prices = looking(4, (99, 99))
    prices.improve(10**6, lambda mask: None)
    assert prices.prices == [0, 0]


def test_sets_that_use_too_little_and_too_much_close_in_on_a_price(monkeypatch):
    known = max(cost_of(taken) for taken in possible(5, (8, 99))) >> WIDTH
    tries = []
    for most in (1, 2, 12):
        monkeypatch.setattr(module, "TRIES", most)
        tried = []
        prices = looking(5, (8, 99))
        tries.append((prices.improve(known, tried.append), len(tried)))
    assert [count for _, count in tries[:2]] == [1, 2]
    assert tries[2][0] >= tries[0][0]


@pytest.mark.parametrize("limits", LIMITS)
def test_no_way_that_leads_to_a_set_as_good_as_the_known_one_is_held_back(limits):
    sets = sorted(map(cost_of, possible(5, limits)))
    if not sets:
        return
    for known in (sets[0], sets[-1]):
        prices = looking(5, limits)
        prices.improve(known >> WIDTH, lambda mask: None)
        chooser = Chooser(items(), 5, limits, UNIT, Budget(100_000))
        assert chooser.ways_of(JOINTS, prices.bound(known >> WIDTH))[5][0].cost == sets[0]


@pytest.fixture
def solved(monkeypatch):
    """A list that grows by one with each price looked at."""
    found = []

    def inside(*args):
        found.append(args)
        return clusters.inside(*args)

    monkeypatch.setattr(module, "inside", inside)
    return found


@pytest.mark.parametrize(("limits", "prices_tried", "steps"), [((6, 99), 4, 78), ((6, 6), 6, 78)])
def test_few_prices_are_tried_and_they_save_steps(solved, limits, prices_tried, steps):
    known = max(map(cost_of, possible(5, limits))) >> WIDTH
    prices = looking(5, limits)
    assert prices.improve(known, lambda mask: None) == 474
    assert len(solved) == prices_tried
    budget = Budget()
    Chooser(items(), 5, limits, UNIT, budget).ways_of(JOINTS, prices.bound(known))
    assert STEP_BUDGET - budget.left == steps


def test_only_sets_within_the_limits_are_tried():
    tried = []
    looking(5, (8, 99)).improve(10**6, tried.append)
    assert tried
    for mask in tried:
        left = [USES[node] for node in range(9) if not mask >> node & 1]
        assert sum(use for use, _ in left) <= 8


def test_prices_that_are_good_enough_are_not_improved(solved):
    known = min(map(cost_of, possible(5, (8, 99)))) >> WIDTH
    looking(5, (8, 99)).improve(known, lambda mask: None, slack=known)
    assert len(solved) == 1


def test_prices_of_before_are_a_start(solved):
    sets = [cost_of(taken) >> WIDTH for taken in possible(5, (6, 6))]
    prices = looking(5, (6, 6))
    prices.improve(max(sets), lambda mask: None)
    looked_at = len(solved)
    prices.chooser.plane, prices.chooser.pull = 0b1, UNIT
    assert 474 <= prices.improve(max(sets) + 1, lambda mask: None) <= min(sets) + 1
    assert len(solved) - looked_at < looked_at


@pytest.mark.parametrize("pull", [-7, 4, 60])
@pytest.mark.parametrize("limits", LIMITS)
def test_nodes_of_the_plane_cost_more_to_take(limits, pull):
    plane = 0b101100110

    def cost(taken):
        return cost_of(taken) + pull * UNIT * sum(plane >> node & 1 for node in taken)

    sets = sorted(map(cost, possible(5, limits)))
    prices = looking(5, limits)
    prices.chooser.plane, prices.chooser.pull = plane, pull * UNIT
    if not sets:
        return
    assert prices.improve(sets[-1] >> WIDTH, lambda mask: None) <= sets[0] >> WIDTH
    for bound in (None, prices.bound(sets[0] >> WIDTH)):
        assert prices.chooser.ways_of(JOINTS, bound)[5][0].cost == sets[0]


def test_prices_of_before_lead_to_bounds_as_good_as_those_from_nothing():
    """Too low a price of before, or too high a one: of one limit there is one highest bound."""
    limits, plane = (8, 99), 0b101100110
    sets = list(possible(5, limits))
    before = looking(5, limits)
    for pull in (0, 90, -90, 40, -40, 200, 0):
        costs = [cost_of(taken) + pull * UNIT * sum(plane >> n & 1 for n in taken) >> WIDTH for taken in sets]
        anew = looking(5, limits)
        bounds = []
        for prices in (before, anew):
            prices.chooser.plane, prices.chooser.pull = plane, pull * UNIT
            bounds.append(prices.improve(max(costs), lambda mask: None))
        assert bounds[0] == bounds[1] <= min(costs)
