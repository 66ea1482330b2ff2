"""Ways of taking nodes out of a cluster within limits, against trying all sets."""

from itertools import combinations

import pytest

from nri_plugin.policy.search.bounds import Bound, Chooser, Item, Way
from nri_plugin.policy.search.budget import STEP_BUDGET, Budget, BudgetSpentError
from nri_plugin.policy.search.clusters import joints_of, layout

LEVELS = {a: {b: 10 if a == b else 12 if a // 3 == b // 3 else 30 for b in range(9)} for a in range(9)}
JOINTS = joints_of(layout(LEVELS).clusters[0], (1 << 9) - 1)
USES = {node: (node * 5 % 7, node * node % 5) for node in range(9)}
UNIT = 1 << 9


def items(uses=USES, forced=()):
    return {
        node: Item((Way(1 << node, (0, 0)),), () if node in forced else (Way(0, uses[node]),))
        for node in range(9)
    }


def cost_of(taken):
    pairs = sum(LEVELS[a][b] + LEVELS[b][a] for a, b in combinations(taken, 2))
    return pairs * UNIT + sum(1 << node for node in taken)


def possible(count, limits, forced=()):
    for taken in combinations(range(9), count):
        left = [USES[node] for node in range(9) if node not in taken]
        used = [sum(use[n] for use in left) for n in range(2)]
        if set(forced) <= set(taken) and all(map(int.__le__, used, limits)):
            yield taken


def cheapest(of, count, limits, bound=None, steps=100_000):
    chooser = Chooser(of, count, limits, UNIT, Budget(steps))
    found = chooser.ways_of(JOINTS, bound).get(count)
    return found and found[0].cost


LIMITS = [(0, 0), (4, 3), (9, 20), (20, 6), (12, 8), (99, 7), (99, 99)]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("count", [1, 4, 6])
def test_the_cheapest_way_within_the_limits_is_found(count, limits):
    best = min(map(cost_of, possible(count, limits)), default=None)
    assert cheapest(items(), count, limits) == best


@pytest.mark.parametrize("forced", [(8,), (0, 7)])
def test_what_cannot_be_left_is_taken(forced):
    best = min(map(cost_of, possible(4, (20, 15), forced)))
    assert cheapest(items(forced=forced), 4, (20, 15)) == best


def test_without_limits_one_way_is_left_for_each_number():
    free = {node: Item((Way(1 << node, ()), Way(5 << node, ())), (Way(0, ()),)) for node in range(9)}
    ways = Chooser(free, 3, (), UNIT, Budget()).ways_of(JOINTS)
    assert ways == {3: [Way(cost_of((0, 1, 2)), ())]}


def test_of_several_ways_to_take_a_node_the_one_that_fits_is_chosen():
    choices = {
        node: Item((Way(1 << node, (0,)), Way((1 << node) + 3 * UNIT, (-node,))), (Way(0, (0,)),))
        for node in range(9)
    }
    chooser = Chooser(choices, 2, (-9,), UNIT, Budget())
    assert chooser.ways_of(JOINTS)[2][0].cost == cost_of((4, 5)) + 6 * UNIT
    assert Chooser(choices, 2, (-16,), UNIT, Budget()).ways_of(JOINTS) == {}


def test_a_bound_lets_only_good_ways_pass():
    rows = [[[0] * 10] * joint.nodes.bit_count() for joint in JOINTS]
    best = cheapest(items(), 4, (12, 8))

    def below(limit):
        return cheapest(items(), 4, (12, 8), bound=Bound((0, 0), 3, 9, 8, rows, limit << 3))

    assert below(best >> 9) == best
    assert below((best >> 9) - 1) is None


def test_use_is_paid_for_at_the_price_of_its_limit():
    bound = Bound((2, 5), 3, 9, 11, [[[7, 4], [1, 3, 6]]], 100)
    (way,) = bound.priced([Way((6 << 9) + 1, (10, 1))])
    assert way.paid == 6 * 8 + 2 * 10 + 5 * 1
    assert bound.at(0, 0) == (11, [93, 96])
    assert bound.at(0) == (11, [99, 97, 94])


def test_ways_that_cannot_stay_within_the_limits_are_dropped_where_there_are_many():
    budget = Budget()
    Chooser(items(), 4, (14, 9), UNIT, budget).ways_of(JOINTS)
    assert STEP_BUDGET - budget.left == 103


def test_every_pair_of_ways_is_a_step():
    with pytest.raises(BudgetSpentError):
        cheapest(items(), 4, (12, 8), steps=20)


def test_what_the_nodes_outside_use_at_least_falls_with_each_one_taken():
    chooser = Chooser(items(), 4, (12, 8), UNIT, Budget())
    inside = 0b111111000
    assert chooser.least_use_outside(inside) == [(8, 5), (3, 1), (0, 0), (0, 0)]
