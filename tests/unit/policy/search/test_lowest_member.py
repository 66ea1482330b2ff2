"""Searching rules of masks."""

from nri_plugin.model import bits
from nri_plugin.policy.hints import HintRule, Need
from nri_plugin.policy.search import StepBudget
from nri_plugin.policy.search.intersections import lowest_member, narrowest_size, roomiest

NODES = range(64)
ALL = bits.from_ids(NODES)


def rule(amount, by_node=None, **changes):
    fields = {"nodes": ALL, "required": 0, "preferred_size": 2} | changes
    return HintRule(needs=(Need(amount, by_node or dict.fromkeys(NODES, 10)),), **fields)


def test_the_lowest_mask_of_a_size_is_found_among_64_nodes():
    assert lowest_member(rule(20), 2, StepBudget()) == 0b11
    assert lowest_member(rule(20, {60: 10, 61: 1, 62: 10, 63: 10}), 2, StepBudget()) == 1 << 60 | 1 << 62


def test_as_many_nodes_as_the_kernel_knows_can_be_searched():
    many = range(1024)
    each = HintRule(bits.from_ids(many), 0, (Need(30, dict.fromkeys(many, 10)),), 3)
    assert lowest_member(each, 3, StepBudget()) == 0b111


def test_required_nodes_are_part_of_it():
    assert lowest_member(rule(20, required=1 << 40), 2, StepBudget()) == 1 << 40 | 1
    assert lowest_member(rule(0, required=0b111), 2, StepBudget()) is None
    assert lowest_member(rule(0, nodes=0b11, required=0b100), 2, StepBudget()) is None


def test_there_is_none_when_the_largest_nodes_are_too_small():
    assert lowest_member(rule(21), 2, StepBudget()) is None


def test_only_what_is_accepted_counts():
    assert lowest_member(rule(20), 2, StepBudget(), lambda mask: mask > 0b110) == 0b1001


def test_the_roomiest_nodes_weigh_all_needs_alike():
    both = HintRule(0b1111, 0, (Need(10, {0: 10, 1: 5, 2: 4}), Need(4, {1: 2, 2: 4, 3: 4})), 2)
    assert roomiest(both, 1) == 0b0100
    assert roomiest(both, 2) == 0b0101
    assert roomiest(rule(20, {9: 10}, required=0b1), 2) == 1 << 9 | 1
    assert roomiest(HintRule(0b1111, 0b1000, (), 1), 2) == 0b1001


def test_the_narrowest_size_is_what_the_largest_nodes_take():
    assert narrowest_size(rule(25)) == 3
    assert narrowest_size(rule(0)) == 1
    assert narrowest_size(rule(0, at_least=2)) == 2
    assert narrowest_size(rule(640)) == 64
    assert narrowest_size(rule(641)) == 0


def test_two_needs_may_take_more_nodes_than_either():
    odd, even = {n: n % 2 for n in NODES}, {n: 1 - n % 2 for n in NODES}
    both = HintRule(ALL, 0, (Need(2, odd), Need(2, even)), preferred_size=4)
    assert narrowest_size(both) == 4
    assert lowest_member(both, 4, StepBudget()) == 0b1111


def test_past_the_budget_the_size_is_a_lower_bound():
    assert narrowest_size(rule(25), StepBudget(3)) == 3


def test_what_cannot_be_is_not_searched():
    assert lowest_member(rule(0, required=0b111), 2, StepBudget(0)) is None
    assert narrowest_size(rule(641), StepBudget(0)) == 0
    assert narrowest_size(rule(5, {0: 1, 1: 1}), StepBudget(0)) == 0


def test_needs_count_alike_and_nothing_else_does_where_the_roomiest_are_told():
    alike = HintRule(0b11, 0, (Need(10, {1: 10}), Need(4, {0: 4})), 1)
    assert roomiest(alike, 1) == 0b01


def test_a_node_that_is_not_named_has_nothing():
    assert roomiest(rule(20, {9: 10, 0: 0}), 2) == 1 << 9 | 1
    assert roomiest(rule(20, {9: 10, 5: 0}), 2) == 1 << 9 | 1
    assert roomiest(rule(20, {9: 10, 0: -1}), 2) == 1 << 9 | 1 << 1


def test_required_nodes_are_among_the_roomiest_however_few_are_wanted():
    assert roomiest(HintRule(0b1111, 0b1000, (), 1), 1) == 0b1000
    assert roomiest(HintRule(0b1111, 0b1100, (), 1), 1) == 0b1100


def of_formula(seed):
    """A rule of twelve nodes with up to three needs, not every node named."""
    needs = tuple(
        Need(
            (1, 3 + seed % 5, 9 + seed % 4, 14)[(seed + number) % 4],
            {
                node: have
                for node in range(12)
                if (have := (node * (7 + number) + seed * (3 + number)) % 11 - 3) > 0
            },
        )
        for number in range(1 + seed % 3)
    )
    return HintRule(0xFFF & ~(seed % 2), 0b100 if seed % 5 == 0 else 0, needs, 2, 1 + seed % 4)


def in_few_words(budget, answer):
    return answer, 10_000 - budget.left


def test_so_much_is_looked_at():
    """Pairs of an answer and its steps; other steps mean that branches are cut elsewhere: look whether that is meant."""
    sizes, masks = [], []
    for seed in range(12):
        budget = StepBudget(10_000)
        sizes.append(in_few_words(budget, narrowest_size(of_formula(seed), budget)))
        budget = StepBudget(10_000)
        masks.append(in_few_words(budget, lowest_member(of_formula(seed), 3, budget)))
    assert sizes == [
        (2, 13),
        (2, 35),
        (4, 86),
        (4, 16),
        (1, 12),
        (4, 34),
        (3, 16),
        (4, 16),
        (2, 15),
        (2, 13),
        (4, 34),
        (4, 16),
    ]
    assert masks == [
        (7, 14),
        (70, 15),
        (None, 69),
        (266, 15),
        (7, 16),
        (None, 13),
        (7, 16),
        (74, 15),
        (19, 16),
        (38, 15),
        (None, 1),
        (26, 15),
    ]
