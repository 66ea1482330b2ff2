"""The least cost of taking some nodes of a group of nodes, against trying all sets."""

from itertools import combinations

import pytest

from nri_plugin.model import bits
from nri_plugin.policy.search.levels import (
    UNREACHABLE,
    Branch,
    DistanceGroup,
    branches_of,
    cheapest_inside,
    cheapest_outside,
    distance_tree,
)

LEVELS = {a: {b: 10 if a == b else 12 if a // 2 == b // 2 else 30 for b in range(7)} for a in range(7)}
TREE = distance_tree(LEVELS)
COSTS = {node: (node % 3, 100 + 7 * (node * node % 5)) for node in range(7)}


def cost_of(taken, nodes, unit=1):
    pairs = sum(2 * LEVELS[a][b] * unit for a, b in combinations(taken, 2))
    return pairs + sum(COSTS[node][node in taken] for node in nodes)


def test_a_single_node_is_a_branch_of_its_own():
    assert branches_of(DistanceGroup(0b100), 0b111) == [Branch(0b100)]


def test_nodes_equally_far_from_each_other_are_one_leaf():
    flat = distance_tree({a: {b: 10 if a == b else 30 for b in range(5)} for a in range(5)})
    assert branches_of(flat, 0b11011) == [Branch(0b11011, distance=60)]


def test_single_nodes_beside_groups_are_a_leaf_too():
    rows = {a: {b: 10 if a == b else 12 if max(a, b) < 3 else 30 for b in range(6)} for a in range(6)}
    tree = distance_tree(rows)
    assert branches_of(tree, 0b111111) == [
        Branch(0b000111, distance=24),
        Branch(0b111000, distance=60),
        Branch(0b111111, 0, 1, 60),
    ]
    assert branches_of(tree, 0b101010) == [
        Branch(0b101000, distance=60),
        Branch(0b10, distance=60),
        Branch(0b101010, 0, 1, 60),
    ]


def test_parts_come_before_their_wholes_and_the_last_is_all():
    branches = branches_of(TREE, 0b1111111)
    assert branches[-1].nodes == 0b1111111
    for place, branch in enumerate(branches):
        if branch.one >= 0:
            assert max(branch.one, branch.other) < place
            assert branches[branch.one].nodes | branches[branch.other].nodes == branch.nodes
    assert len(branches) == 7


def test_nodes_that_are_not_there_leave_no_branches():
    assert branches_of(TREE, 0b1010010) == [Branch(0b1010010, distance=60)]


@pytest.mark.parametrize("nodes", [0b1111111, 0b0110101])
@pytest.mark.parametrize("unit", [1, 5])
def test_the_least_cost_is_that_of_the_cheapest_set(nodes, unit):
    branches = branches_of(TREE, nodes)
    ids = list(bits.iterate(nodes))
    for count in range(1, len(ids) + 1):
        rows = cheapest_inside(branches, COSTS, unit, count)
        assert rows[-1][-1] == 2 * min(cost_of(taken, ids, unit) for taken in combinations(ids, count))


def test_rows_end_at_the_number_that_is_wanted():
    branches = branches_of(TREE, 0b1111111)
    whole, part = cheapest_inside(branches, COSTS, 1, 7), cheapest_inside(branches, COSTS, 1, 1)
    assert part[:-1] == [row[:2] for row in whole[:-1]]


def test_a_node_that_cannot_be_left_is_taken():
    costs = COSTS | {4: (UNREACHABLE, 500)}
    branches = branches_of(TREE, 0b1111111)
    assert cheapest_inside(branches, costs, 1, 0)[-1][-1] >= UNREACHABLE
    assert cheapest_inside(branches, costs, 1, 1)[-1][-1] == 2 * (
        500 + sum(node % 3 for node in range(7)) - 1
    )


def cheapest(nodes, taken, count):
    """Twice the cost of the best set of `count` that has `taken` of the mask `nodes`."""
    sets = [
        cost_of(those, range(7), 3)
        for those in combinations(range(7), count)
        if sum(nodes >> node & 1 for node in those) == taken
    ]
    return 2 * min(sets) if sets else None


def cost_of_some(branch, some, taken):
    """Twice the least that `taken` of `some` of a leaf's nodes cost."""
    ids = list(bits.iterate(some))
    return min(
        2 * sum(COSTS[node][node in those] for node in ids) + 3 * branch.distance * taken * (taken - 1)
        for those in combinations(ids, taken)
    )


@pytest.mark.parametrize("count", [2, 4])
def test_what_the_others_cost_completes_what_a_branch_costs(count):
    branches = branches_of(TREE, 0b1111111)
    rows = cheapest_inside(branches, COSTS, 3, count)
    rest = cheapest_outside(branches, rows, COSTS, 3, count)
    for branch, row, found in zip(branches[:-1], rows, rest, strict=False):
        for taken in range(min(branch.nodes.bit_count(), count) + 1):
            best, whole = cheapest(branch.nodes, taken, count), row[taken] + found[-1][taken]
            assert whole == best if best is not None else whole >= UNREACHABLE
    assert rest[-1] == [[UNREACHABLE] * count + [0]]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    "rows", [LEVELS, {a: dict.fromkeys(range(7), 25) for a in range(7)}], ids=["levels", "flat"]
)
def test_what_the_others_cost_is_told_for_the_first_nodes_of_a_leaf_too(monkeypatch, rows, count):
    monkeypatch.setitem(globals(), "LEVELS", rows)
    branches = branches_of(distance_tree(rows), 0b1111111)
    rest = cheapest_outside(branches, cheapest_inside(branches, COSTS, 3, count), COSTS, 3, count)
    leaves = [(branch, found) for branch, found in zip(branches, rest, strict=True) if branch.one < 0]
    for branch, found in leaves:
        ids = list(bits.iterate(branch.nodes))
        assert len(found) == len(ids)
        for some in range(1, len(ids) + 1):
            first = bits.from_ids(ids[:some])
            for taken in range(min(some, count) + 1):
                best = cheapest(first, taken, count)
                whole = found[some - 1][taken] + cost_of_some(branch, first, taken)
                assert whole == best if best is not None else whole >= UNREACHABLE
