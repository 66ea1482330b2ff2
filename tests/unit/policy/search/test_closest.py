"""The best set of a search space by distance and tie break, against trying all of them."""

from itertools import combinations

import pytest

from nri_plugin.model import bits
from nri_plugin.model.options import TopologyTieBreak
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.hints import HintRule, Need
from nri_plugin.policy.search import StepBudget
from nri_plugin.policy.search.closest import SearchSpace, closest
from nri_plugin.policy.search.mask_order import Distances, MaskOrder, tie_break
from tests.unit.policy.rings import planes, ring
from tests.unit.policy.shapes import machine

NODES = range(10)
ALL = (1 << 10) - 1
TABLES = cpu_tables(machine(10, 2, cores=2, threads=1))
AVAILABLE = CPUSet.parse("0-2,4-5,8-11,12,17-19,22-23,26-30,33,36-39")
LEVELS = Distances({a: {b: 10 if a == b else 12 if a // 4 == b // 4 else 30 for b in NODES} for a in NODES})
MACHINES = {"none": None, "levels": LEVELS, "ring": ring(), "planes": planes()}
ROOM = {0: 5, 1: 1, 2: 3, 3: 4, 4: 0, 5: 4, 6: 3, 7: 3, 8: 1, 9: 5}


def space(size, *needs, required=0):
    rule = HintRule(ALL, required, tuple(Need(amount, by_node) for amount, by_node in needs), size)
    return SearchSpace(ALL, size, (rule,), rule.__contains__)


def by_trying(where, order):
    masks = map(bits.from_ids, combinations(NODES, where.size))
    return sorted(filter(where.is_possible, masks), key=order.of)


RULES = [None, *((rule, n) for rule in (TopologyTieBreak.SPREAD, TopologyTieBreak.BEST_FIT) for n in (5, 30))]


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("amount", [6, 13, 16])
def test_the_best_of_all_sets_is_found_whatever_was_known(name, rule, amount):
    order = MaskOrder(MACHINES[name], rule and tie_break(rule[0], TABLES, AVAILABLE, rule[1]))
    where = space(4, (amount, ROOM), (3, dict.fromkeys(range(0, 10, 2), 1)) if amount == 6 else (0, {}))
    best, *_, worst = by_trying(where, order)
    for known in (best, worst):
        budget = StepBudget(100_000)
        assert closest(where, order, known, budget) == best
        assert not budget.is_spent


def test_what_is_required_is_part_of_it():
    order = MaskOrder(LEVELS)
    where = space(3, (8, ROOM), required=1 << 9)
    assert closest(where, order, 0b1000001001, StepBudget()) == by_trying(where, order)[0]


def test_all_nodes_are_the_only_set_of_their_size():
    budget = StepBudget(0)
    assert closest(space(10, (29, ROOM)), MaskOrder(LEVELS), ALL, budget) == ALL
    assert not budget.is_spent


@pytest.mark.parametrize("name", ["levels", "ring", "planes"])
def test_past_the_budget_the_best_found_so_far_is_the_answer(name):
    order = MaskOrder(MACHINES[name])
    where = space(4, (15, ROOM))
    best, *others = by_trying(where, order)
    ranks = []
    for steps in (0, 100, 400, 1_000, 30_000):
        found = closest(where, order, others[-1], StepBudget(steps))
        assert where.is_possible(found)
        ranks.append(order.of(found))
    assert ranks[0] == order.of(others[-1])
    assert ranks[-1] == order.of(best)
    assert ranks == sorted(ranks, reverse=True)
