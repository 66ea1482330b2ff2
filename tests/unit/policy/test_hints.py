"""Hint sets and their hints."""

from nri_plugin.policy.hints import (
    Hint,
    HintRule,
    HintSet,
    Need,
    hints_in_order,
    masks_in_order,
    smallest_size,
    sums_by_mask,
    sums_in_order,
)


def test_masks_come_by_size_then_by_ascending_nodes():
    assert masks_in_order((0, 2, 3)) == (
        (0b0001, 1), (0b0100, 1), (0b1000, 1), (0b0101, 2), (0b1001, 2), (0b1100, 2), (0b1101, 3),
    )  # fmt: skip


def test_sums_are_those_of_each_set_of_nodes():
    assert sums_by_mask({0: 3, 2: 4}) == {0: 0, 0b001: 3, 0b100: 4, 0b101: 7}


def test_sums_in_order_are_those_of_the_masks_in_order():
    by_node = {0: 3, 2: 4, 5: 9, 6: 1}
    sums = sums_by_mask(by_node)
    assert list(sums_in_order(by_node)) == [sums[mask] for mask, _ in masks_in_order(tuple(by_node))]


def test_hints_in_order_prefer_one_size():
    found = [(hint.nodes, hint.preferred) for hint in hints_in_order((0, 2, 3), 2)]
    assert found == [(mask, size == 2) for mask, size in masks_in_order((0, 2, 3))]


def test_a_set_by_size_knows_what_a_look_at_each_hint_would_tell():
    by_size = hints_in_order((0, 1, 3), 2)
    for hints in (by_size[3:], by_size[4:], by_size[6:], ()):
        made, plain = HintSet.by_size("r", hints, "why"), HintSet("r", hints, why="why")
        assert made == plain
        assert (made.anywhere, made.preferred, made.masks) == (plain.anywhere, plain.preferred, plain.masks)


def test_the_smallest_size_takes_the_largest_nodes():
    assert smallest_size({0: 2, 1: 8, 2: 4}, 12) == 2
    assert smallest_size({0: 2, 1: 8}, 0) == 1
    assert smallest_size({0: 2, 1: 8}, 11) is None


def test_a_rule_holds_the_masks_that_meet_every_need():
    rule = HintRule(0b111, 0b001, (Need(5, {0: 2, 1: 3, 2: 1}), Need(1, {2: 1})), preferred_size=3)
    assert [mask for mask in range(16) if mask in rule] == [0b111]
    assert 0b011 not in rule, "node 2 alone meets the second need"
    assert 0b110 not in rule, "node 0 is required"


def test_a_rule_may_ask_for_a_number_of_nodes():
    rule = HintRule(0b11, 0, (), preferred_size=1, at_least=2)
    assert 0b01 not in rule
    assert 0b11 in rule


def test_no_hint_set_is_anywhere_preferred_and_no_fit_is_anywhere_not_preferred():
    assert HintSet("r", None).anywhere == {True}
    assert HintSet("r", ()).anywhere == {False}
    assert HintSet("r", (), HintRule(1, 0, (), 1)).anywhere == frozenset()
    assert HintSet("r", (Hint(None, True), Hint(1, True))).anywhere == {True}


def test_a_hint_set_prefers_what_it_names_and_anything_when_it_has_no_preference():
    hint_set = HintSet("r", (Hint(0b1, True), Hint(0b11, False)), HintRule(0b1100, 0, (), 2))
    assert [mask for mask in range(16) if hint_set.prefers(mask)] == [0b0001, 0b1100]
    assert HintSet("r", None).prefers(0b1)
    assert not HintSet("r", None).names(0b1)
    assert not HintSet("r", ()).prefers(0b1)


def test_a_rule_prefers_its_narrowest_members_and_those_on_as_few_sockets_where_these_count():
    def preferred(**more):
        rule = HintRule(0b1111, 0, (Need(1, {0: 1, 1: 1, 3: 1}),), 1, **more)
        return [mask for mask in range(16) if rule.prefers(mask)]

    sockets = (0b0011, 0b1100)
    assert preferred() == [0b0001, 0b0010, 0b1000]
    assert preferred(sockets=sockets, fewest_sockets=0) == preferred()
    assert preferred(sockets=sockets, fewest_sockets=1) == [0b0001, 0b0010, 0b0011, 0b1000, 0b1100]
    assert preferred(sockets=sockets, fewest_sockets=2) == [
        0b0001, 0b0010, 0b0101, 0b0110, 0b0111, 0b1000, 0b1001, 0b1010, 0b1011, 0b1101, 0b1110, 0b1111,
    ]  # fmt: skip


def test_unless_told_a_member_has_a_node_sockets_do_not_count_and_nothing_is_said():
    assert 0 not in HintRule(0b1, 0, (), 1)
    assert HintRule(0b1, 0, (), 1).fewest_sockets == 0
    assert HintSet("r", None).why == ""
