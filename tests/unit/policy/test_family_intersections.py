"""Intersections where some wishes are families."""

from nri_plugin import bits
from nri_plugin.policy.budget import Budget
from nri_plugin.policy.distances import Distances
from nri_plugin.policy.family_intersections import best_intersection
from nri_plugin.policy.hints import Family, Hint, Need, Wish
from nri_plugin.policy.order import Order

NODES = range(34)
ALL = bits.from_ids(NODES)


def wish(amount, each=10, **changes):
    fields = {"nodes": ALL, "required": 0, "preferred_size": 1} | changes
    return Wish("r", (), Family(needs=(Need(amount, dict.fromkeys(NODES, each)),), **fields))


BY_MASK = Order()


def best(wishes, target, order=BY_MASK, steps=20_000):
    return best_intersection(ALL, wishes, target, order, Budget(steps))


def test_one_family_gives_its_lowest_member():
    assert best([wish(25)], 3) == 0b111


def test_two_families_may_meet_in_fewer_nodes_than_either_has():
    assert best([wish(25), wish(5)], 1) == 0b1


def test_needs_that_cannot_do_without_the_same_nodes_widen_the_result():
    whole = wish(10 * len(NODES))
    assert best([whole, whole], 2) == ALL


def test_a_node_that_all_require_is_in_the_intersection():
    assert best([wish(5, required=0b1000), wish(5, required=0b1000)], 1) == 0b1000
    assert best([wish(5, required=0b1000), wish(5, required=0b0100)], 1) == 0b0001


def test_listed_masks_and_families_are_combined():
    listed = Wish("device", (Hint(0b1100, True), Hint(1 << 20, True)))
    assert best([listed, wish(15)], 2) == 0b1100
    assert best([listed, wish(15)], 1) == 0b0100


def test_nothing_in_common_is_nothing():
    left, right = wish(5, nodes=0b0011), wish(5, nodes=0b1100)
    assert best([left, right], 1) == 0


CHAIN = Order(Distances({one: {other: 10 + abs(one - other) for other in NODES} for one in NODES}))
"""Nodes in a row."""


def test_the_closest_intersection_wins():
    needs = (Need(30, {3: 10, 9: 10, 10: 10, 20: 10}),)
    only = Wish("r", (), Family(ALL, 0, needs, 1))
    assert best([only, only], 2) == 1 << 3 | 1 << 9
    assert best([only, only], 2, CHAIN) == 1 << 9 | 1 << 10


def test_listed_masks_are_told_apart_by_distance_too():
    listed = Wish("device", (Hint(0b1001, True), Hint(0b1100, True)))
    assert best([listed, wish(15)], 2) == 0b1001
    assert best([listed, wish(15)], 2, CHAIN) == 0b1100


def test_past_the_budget_a_set_that_does_for_one_family_is_the_answer():
    left, right = wish(5, nodes=0b0111), wish(5, nodes=0b1110)
    assert best([left, right], 1, steps=0) == 0b0010
    assert best([left, right], 2, steps=0) == 0b0110


def test_past_the_budget_it_is_what_all_can_use_where_nothing_does_for_one_alone():
    left, right = wish(30, nodes=0b0111), wish(30, nodes=0b1110)
    assert best([left, right], 1, steps=0) == 0b0110


def test_past_the_budget_nothing_in_common_is_still_nothing():
    assert best([wish(5, nodes=0b0011), wish(5, nodes=0b1100)], 1, steps=0) == 0
    assert best([wish(5, nodes=0b0011), wish(25, nodes=0b0011)], 1, steps=0) == 0


def test_past_the_budget_listed_masks_that_nobody_else_can_use_are_passed_over():
    either = Wish("r", (Hint(0b1, True),), wish(5, nodes=0b0011).family)
    assert best([either, wish(5, nodes=0b0010)], 1, steps=0) == 0b0010
