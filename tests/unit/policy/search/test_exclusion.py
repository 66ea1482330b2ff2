"""Which nodes hint sets can exclude."""

from itertools import product

import pytest

from nri_plugin.policy.hints import HintRule, Need
from nri_plugin.policy.search import BudgetSpentError, StepBudget
from nri_plugin.policy.search.closest import Constraint, can_exclude, constraints_of, uses_of_excluding

FOUR = 0b1111


def rule(amount, *have, required=0, at_least=1):
    return HintRule(FOUR, required, (Need(amount, dict(enumerate(have))),), 1, at_least)


def possible(nodes, *rules, size=1, steps=1_000):
    return can_exclude(nodes, rules, constraints_of(FOUR, size, rules), StepBudget(steps))


def test_a_rule_can_spare_what_it_has_beyond_its_need():
    (constraint,) = constraints_of(FOUR, 1, [rule(5, 4, 3, 2, 1)])
    assert constraint == Constraint(5, ({0: 4, 1: 3, 2: 2, 3: 1},))


def test_what_a_node_has_beyond_the_need_does_not_count():
    (constraint,) = constraints_of(FOUR, 1, [rule(3, 9, 3, 0, 0)])
    assert constraint == Constraint(3, ({0: 3, 1: 3, 2: 0, 3: 0},))


def test_a_need_that_any_nodes_of_that_size_meet_is_no_limit():
    assert constraints_of(FOUR, 3, [rule(6, 4, 3, 2, 1)]) == []
    assert constraints_of(FOUR, 2, [rule(6, 4, 3, 2, 1)]) != []
    assert constraints_of(FOUR, 1, [rule(0, 0, 0, 0, 0)]) == []


def test_nodes_that_not_all_can_use_are_never_left():
    assert constraints_of(0b0011, 1, [rule(3, 4, 0, 2, 1)]) == []
    (constraint,) = constraints_of(0b0011, 1, [rule(4, 4, 0, 2, 1)])
    assert constraint == Constraint(3, ({0: 4, 1: 0},))


def test_one_limit_of_several_rules_is_its_own_sum():
    assert len(constraints_of(FOUR, 1, [rule(5, 4, 3, 2, 1), rule(0)])) == 1


def test_a_number_of_nodes_is_a_limit_too():
    (constraint,) = constraints_of(FOUR, 1, [rule(0, at_least=2)])
    assert constraint == Constraint(2, ({0: 1, 1: 1, 2: 1, 3: 1},))
    assert constraints_of(FOUR, 2, [rule(0, at_least=2)]) == []


def test_with_several_rules_the_last_limit_is_all_together_weighted_alike():
    *_, both = constraints_of(FOUR, 1, [rule(4, 4, 2, 0, 0), rule(2, 0, 0, 1, 2)])
    assert both == Constraint(2 * 2 + 4 * 1, ({0: 8, 1: 4, 2: 0, 3: 0}, {0: 0, 1: 0, 2: 4, 3: 8}))
    one = HintRule(FOUR, 0, (Need(4, {0: 4, 1: 2}), Need(2, {2: 1, 3: 2})), 1)
    assert len(constraints_of(FOUR, 1, [one])) == 2


def test_a_node_is_left_by_a_rule_that_does_not_require_it():
    rules = [rule(5, 4, 3, 2, 1, required=0b1), rule(5, 4, 3, 2, 1, required=0b11)]
    constraints = constraints_of(FOUR, 1, rules)[:-1]
    assert uses_of_excluding(0, rules, constraints) == set()
    assert uses_of_excluding(1, rules, constraints) == {(3, 0)}
    assert uses_of_excluding(2, rules, constraints) == {(2, 0), (0, 2)}


def test_each_node_must_be_left_by_somebody():
    tight = rule(6, 4, 3, 2, 1)
    assert possible([0], tight)
    assert not possible([0, 1], tight)
    assert possible([0, 1], tight, tight)
    assert not possible([0, 1, 2, 3], tight, tight)


def test_a_node_that_all_require_cannot_be_left():
    assert possible([0], rule(1, 1, 1, 1, 1, required=0b1)) is False


def test_what_costs_a_rule_nothing_can_always_be_left():
    assert possible([0, 1], rule(4, 4, 3, 2, 1), rule(3, 0, 0, 2, 1), steps=0)


def test_dealing_turns_back_where_it_went_wrong():
    big, small = rule(7, 5, 5, 2, 2), rule(9, 5, 5, 2, 2)
    assert possible([0, 2, 3], big, small)
    assert possible([0, 1, 2, 3], big, small) is False


def test_the_dearest_node_is_dealt_first():
    alike = HintRule((1 << 6) - 1, 0, (Need(12, dict(enumerate([4, 4, 6, 6, 1, 1]))),), 1)
    rules = [alike, alike]
    constraints = constraints_of((1 << 6) - 1, 1, rules)
    assert [constraint.capacity for constraint in constraints[:2]] == [10, 10]
    assert can_exclude(range(4), rules, constraints, StepBudget(4)) is True


def test_what_all_together_cannot_spare_is_seen_at_once():
    tight = rule(6, 4, 3, 2, 1)
    assert possible([0, 1, 2], tight, tight, steps=1) is False


def test_the_same_situation_is_not_tried_twice():
    nodes = range(16)
    alike = HintRule((1 << 16) - 1, 0, (Need(17, dict.fromkeys(nodes, 2)),), 1)
    rules = [alike, alike]
    constraints = constraints_of((1 << 16) - 1, 1, rules)[:2]
    budget = StepBudget(2_000)
    assert not can_exclude(nodes, rules, constraints, budget)
    assert budget.left > 1_500


def test_dealing_stops_when_the_budget_is_spent():
    tight = rule(6, 4, 3, 2, 1)
    with pytest.raises(BudgetSpentError):
        possible([0, 1], tight, tight, steps=1)


def test_as_many_nodes_as_the_kernel_knows_can_be_dealt_out():
    nodes = range(1024)
    alike = HintRule((1 << 1024) - 1, 0, (Need(2, dict.fromkeys(nodes, 1)),), 1)
    constraints = constraints_of((1 << 1024) - 1, 1, [alike, alike])
    assert can_exclude(nodes, [alike, alike], constraints, StepBudget(1_100))


def of_formula(seed):
    """Two or three rules of six nodes, and nodes to be left out."""
    rules = [
        HintRule(
            (1 << 6) - 1,
            1 << seed % 6 if seed % 7 == number else 0,
            (
                Need(
                    7 + (seed + 3 * number) % 5, {node: (node * (3 + number) + seed) % 6 for node in range(6)}
                ),
            ),
            1,
        )
        for number in range(2 + seed % 2)
    ]
    return rules, [node for node in range(6) if (node + seed) % 4]


def left_by_trying(nodes, rules):
    """Whether some way to deal the nodes out leaves each rule what it needs."""
    return any(
        all(
            not left & rule.required and all(need.is_met_by(rule.nodes & ~left) for need in rule.needs)
            for number, rule in enumerate(rules)
            for left in [sum(1 << node for node, by in zip(nodes, dealt, strict=True) if by == number)]
        )
        for dealt in product(range(len(rules)), repeat=len(nodes))
    )


@pytest.mark.parametrize("seed", range(40))
def test_nodes_can_be_left_as_trying_every_way_tells(seed):
    rules, nodes = of_formula(seed)
    constraints = constraints_of((1 << 6) - 1, 1, rules)
    assert can_exclude(nodes, rules, constraints, StepBudget(1_000)) is left_by_trying(nodes, rules)


def test_so_much_is_looked_at():
    """Other numbers mean that dealing is given up elsewhere: look whether that is meant."""
    steps = []
    for seed in range(40):
        rules, nodes = of_formula(seed)
        budget = StepBudget(1_000)
        can_exclude(nodes, rules, constraints_of((1 << 6) - 1, 1, rules), budget)
        steps.append(1_000 - budget.left)
    assert steps == [
        1,
        4,
        3,
        1,
        2,
        4,
        1,
        4,
        3,
        1,
        4,
        4,
        2,
        4,
        3,
        3,
        2,
        4,
        1,
        4,
        3,
        3,
        4,
        4,
        1,
        4,
        3,
        3,
        2,
        4,
        1,
        4,
        3,
        1,
        1,
        4,
        1,
        5,
        3,
        1,
    ]
