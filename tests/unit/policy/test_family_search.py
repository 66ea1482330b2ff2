"""Searching families of masks."""

from nri_plugin import bits
from nri_plugin.policy.family_search import Budget, lowest_preferred, narrowest_size
from nri_plugin.policy.hints import Family, Need

NODES = range(64)
ALL = bits.from_ids(NODES)


def family(amount, by_node=None, **changes):
    fields = {"nodes": ALL, "required": 0, "preferred_size": 2} | changes
    return Family(needs=(Need(amount, by_node or dict.fromkeys(NODES, 10)),), **fields)


def test_the_lowest_mask_of_the_preferred_size_is_found_among_64_nodes():
    assert lowest_preferred([family(20)]) == 0b11
    assert lowest_preferred([family(20, {60: 10, 61: 1, 62: 10, 63: 10})]) == 1 << 60 | 1 << 62


def test_required_nodes_are_part_of_it():
    assert lowest_preferred([family(20, required=1 << 40)]) == 1 << 40 | 1


def test_all_families_must_prefer_the_mask():
    left = family(10, {5: 5, 6: 5, 7: 5})
    right = family(10, {6: 5, 7: 5, 8: 5})
    assert lowest_preferred([left, right]) == 1 << 6 | 1 << 7


def test_families_that_prefer_different_sizes_prefer_nothing_together():
    assert lowest_preferred([family(20), family(30, preferred_size=3)]) is None


def test_nothing_is_preferred_when_the_preferred_size_is_too_small():
    assert lowest_preferred([family(21)]) is None
    assert lowest_preferred([family(1, preferred_size=1, at_least=2)]) is None


def test_the_narrowest_size_is_what_the_largest_nodes_take():
    assert narrowest_size(family(25)) == 3
    assert narrowest_size(family(0)) == 1
    assert narrowest_size(family(0, at_least=2)) == 2
    assert narrowest_size(family(641)) == 0


def test_two_needs_may_take_more_nodes_than_either():
    odd, even = {n: n % 2 for n in NODES}, {n: 1 - n % 2 for n in NODES}
    both = Family(ALL, 0, (Need(2, odd), Need(2, even)), preferred_size=4)
    assert narrowest_size(both) == 4
    assert lowest_preferred([both]) == 0b1111


def test_past_the_budget_nothing_is_called_preferred_and_the_size_is_a_lower_bound():
    assert lowest_preferred([family(20)], Budget(3)) is None
    assert narrowest_size(family(25), Budget(3)) == 3
