"""Intersections where some wishes are families."""

from nri_plugin import bits
from nri_plugin.policy.family_intersections import best_intersection
from nri_plugin.policy.family_search import Budget
from nri_plugin.policy.hints import Family, Hint, Need, Wish

NODES = range(34)
ALL = bits.from_ids(NODES)


def wish(amount, each=10, **changes):
    fields = {"nodes": ALL, "required": 0, "preferred_size": 1} | changes
    return Wish("r", (), Family(needs=(Need(amount, dict.fromkeys(NODES, each)),), **fields))


def test_one_family_gives_its_lowest_member():
    assert best_intersection(ALL, [wish(25)], 3) == 0b111


def test_two_families_may_meet_in_fewer_nodes_than_either_has():
    assert best_intersection(ALL, [wish(25), wish(5)], 1) == 0b1


def test_needs_that_cannot_do_without_the_same_nodes_widen_the_result():
    whole = wish(10 * len(NODES))
    assert best_intersection(ALL, [whole, whole], 2) == ALL


def test_a_node_that_all_require_is_in_the_intersection():
    assert best_intersection(ALL, [wish(5, required=0b1000), wish(5, required=0b1000)], 1) == 0b1000
    assert best_intersection(ALL, [wish(5, required=0b1000), wish(5, required=0b0100)], 1) == 0b0001


def test_listed_masks_and_families_are_combined():
    listed = Wish("device", (Hint(0b1100, True), Hint(1 << 20, True)))
    assert best_intersection(ALL, [listed, wish(15)], 2) == 0b1100
    assert best_intersection(ALL, [listed, wish(15)], 1) == 0b0100


def test_nothing_in_common_is_nothing():
    left, right = wish(5, nodes=0b0011), wish(5, nodes=0b1100)
    assert best_intersection(ALL, [left, right], 1) == 0


def test_past_the_budget_the_nodes_that_all_can_use_are_the_answer():
    left, right = wish(5, nodes=0b0111), wish(5, nodes=0b1110)
    assert best_intersection(ALL, [left, right], 1, Budget(1)) == 0b0110
