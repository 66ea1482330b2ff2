"""Sets that several rules prefer alike."""

from nri_plugin.policy.hints import HintRule, Need
from nri_plugin.policy.search import StepBudget
from nri_plugin.policy.search.intersections import best_agreed
from nri_plugin.policy.search.mask_order import Distances, MaskOrder
from tests.unit.policy.rings import ring

NODES = range(10)
ALL = (1 << 10) - 1
SOCKETS = tuple(0b11 << 2 * socket for socket in range(5))


def rule(amount, by_node=None, **changes):
    fields = {"nodes": ALL, "required": 0, "preferred_size": 2} | changes
    return HintRule(needs=(Need(amount, by_node or dict.fromkeys(NODES, 10)),), **fields)


def best(*rules, order=None, steps=10_000):
    return best_agreed(rules, order or MaskOrder(), StepBudget(steps))


def test_all_rules_must_prefer_the_set():
    left = rule(10, {5: 5, 6: 5, 7: 5})
    right = rule(10, {6: 5, 7: 5, 8: 5})
    assert best(left, right) == 1 << 6 | 1 << 7


def test_rules_that_prefer_different_sizes_prefer_nothing_together():
    assert best(rule(20), rule(30, preferred_size=3)) is None


def test_nothing_is_preferred_when_the_preferred_size_is_too_small():
    assert best(rule(21)) is None
    assert best(rule(1, preferred_size=2, at_least=3)) is None
    assert best(rule(1), rule(1, at_least=3)) is None


def test_what_one_requires_or_lacks_counts_for_all():
    assert best(rule(20, required=0b1000), rule(20, nodes=ALL & ~1)) == 0b1010


def test_the_closest_set_comes_before_the_lowest():
    only = {1: 10, 2: 10, 7: 10, 8: 10, 9: 10}
    assert best(rule(20, only)) == 0b110
    assert best(rule(20, only), order=MaskOrder(ring())) == 1 << 8 | 1 << 9


def by_socket(amount, fewest, **changes):
    return rule(amount, sockets=SOCKETS, fewest_sockets=fewest, **changes)


def test_with_sockets_more_nodes_on_as_few_sockets_are_preferred_too():
    free = {4: 5, 5: 5, 0: 4, 2: 4}
    assert best(by_socket(10, 1, by_node=free, preferred_size=1)) == 0b110000
    assert best(by_socket(8, 2, by_node=free, preferred_size=1)) == 0b101


def test_the_narrowest_set_comes_before_one_on_whole_sockets():
    assert best(by_socket(10, 1, preferred_size=1)) == 0b1
    assert best(by_socket(20, 1, preferred_size=2), order=MaskOrder(ring())) == 0b11
    assert best(by_socket(20, 1, preferred_size=3)) == 0b11


def test_the_size_that_another_rule_prefers_is_kept():
    assert best(by_socket(10, 1, preferred_size=1), rule(20)) == 0b11
    assert best(by_socket(10, 2, preferred_size=1), rule(20)) == 0b101
    assert best(by_socket(10, 2, preferred_size=5), by_socket(10, 1, preferred_size=6)) is None


def test_of_several_choices_of_sockets_the_closest_wins():
    rows = {
        a: {b: far + (a != b and min(a, b) < 8) for b, far in of.items()} for a, of in ring().rows.items()
    }
    apart = by_socket(20, 1, preferred_size=1)
    assert best(apart) == 0b11
    assert best(apart, order=MaskOrder(Distances(rows))) == 1 << 8 | 1 << 9


def test_where_the_mask_alone_decides_the_lowest_is_not_looked_at_again():
    budget = StepBudget(14)
    assert best_agreed([rule(20)], MaskOrder(), budget) == 0b11
    assert not budget.is_spent


def test_all_sockets_wanted_must_be_touched():
    assert best(by_socket(20, 2, preferred_size=1, required=0b11)) == 0b111


def test_past_the_budget_there_may_be_one_that_was_not_found():
    assert best(rule(20, {8: 10, 9: 10})) == 1 << 8 | 1 << 9
    assert best(rule(20, {8: 10, 9: 10}), steps=0) is None


def test_past_the_budget_the_best_found_so_far_stays():
    budget = StepBudget(30)
    sockets = by_socket(20, 1, preferred_size=3)
    assert best_agreed([sockets], MaskOrder(ring()), budget) == 0b11
    assert budget.is_spent


def test_once_one_is_found_the_reserve_goes_into_the_best():
    ends = rule(20, dict.fromkeys((0, 4, 8, 9), 10))
    for reserve, best_found in ((0, 1 << 0 | 1 << 4), (4_000, 1 << 8 | 1 << 9)):
        budget = StepBudget(30)
        budget.reserve = reserve
        assert best_agreed([ends], MaskOrder(ring()), budget) == best_found
        assert budget.is_spent == (reserve == 0)
    budget = StepBudget(0)
    budget.reserve = 4_000
    assert best_agreed([ends], MaskOrder(ring()), budget) is None
    assert budget.reserve == 4_000


def test_all_nodes_may_be_what_is_preferred():
    assert best(rule(100, preferred_size=10)) == ALL
