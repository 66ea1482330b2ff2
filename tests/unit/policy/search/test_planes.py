"""Machines on two planes."""

from itertools import combinations

import pytest

from nri_plugin.policy.search import clusters as module
from nri_plugin.policy.search.clusters import Turns, layout, layout_in_planes
from tests.unit.policy.rings import planes, ring


def test_what_crossing_costs_is_left_aside():
    found = layout_in_planes(planes(crossing=5).rows)
    assert (found.plane, found.crossing) == (0b1010101010, 2 * 5)
    assert found.clusters == layout(planes(crossing=0).rows).clusters


def test_crossing_may_cost_more_one_way_than_the_other():
    rows = {
        one: {other: far + (2 if one & 1 > other & 1 else 0) for other, far in row.items()}
        for one, row in planes(crossing=5).rows.items()
    }
    found = layout_in_planes(rows)
    assert (found.plane, found.crossing) == (0b1010101010, 12)
    assert len(found.clusters) == 1


def test_machines_built_in_levels_have_no_planes():
    rows = planes(crossing=0).rows
    assert layout_in_planes(rows) == layout(rows)
    assert layout_in_planes({0: {0: 10}}) == layout({0: {0: 10}})


LOOSE = {a: {b: 10 if a == b else 11 + (a + b) * a * b % 7 for b in range(8)} for a in range(8)}
"""No order, and few nodes that are as far from each other as any."""


@pytest.mark.parametrize(
    "rows", [ring(5, 1).rows, ring(7, 2).rows, LOOSE], ids=["odd ring", "long ring", "loose"]
)
def test_other_machines_stay_as_they_are_and_are_soon_told(monkeypatch, rows):
    tried = []

    def counted(distances):
        tried.append(distances)
        return layout(distances)

    monkeypatch.setattr(module, "layout", counted)
    assert layout_in_planes(rows) == layout(rows)
    assert len(layout(rows).clusters) > 1
    assert len(tried) == 1


def test_a_node_as_far_as_none_is_on_neither_plane():
    rows = planes().rows
    middle = {node: {**row, 10: 11} for node, row in rows.items()} | {10: dict.fromkeys(range(11), 11)}
    found = layout_in_planes(middle)
    assert found.plane == found.crossing == 0
    assert len(found.clusters) > 1


SETS = [
    (rest, on_plane) for on_plane in range(2, 9) for rest in (100 - on_plane, 70 + 3 * abs(on_plane - 6), 90)
]
"""What some sets cost beside their crossings, and how many of their ten nodes are on the plane."""


def whole(rest, on_plane, crossing):
    return rest + crossing * on_plane * (10 - on_plane)


@pytest.mark.parametrize("crossing", [0, 1, 3, 8])
def test_the_best_of_all_sets_is_among_the_best_for_some_number(crossing):
    turns, asked, seen = Turns(2, 8, crossing), [], [1000]

    def least(number, exactly):
        assert exactly == 4 * crossing
        asked.append(number)
        cost, best = min(
            (rest + crossing * (on_plane * (10 - 2 * number) + number**2), (rest, on_plane))
            for rest, on_plane in SETS
        )
        seen.append(whole(*best, crossing))
        return cost

    turns.take(least, lambda: min(seen))
    assert min(seen) == min(whole(*one, crossing) for one in SETS)
    assert len(set(asked)) == len(asked) <= 7
    for rest, on_plane in SETS:
        assert turns.least[on_plane] <= whole(rest, on_plane, crossing)


def test_numbers_that_cannot_lead_to_anything_better_are_not_looked_at():
    asked = []

    def least(number, exactly):
        asked.append(number)
        return 1000 + number

    turns = Turns(0, 20, 5)
    turns.take(least, lambda: 900)
    assert all(abs(one - other) ** 2 * 5 > 100 for one, other in combinations(asked, 2))
    assert len(asked) <= 5
    before = list(asked)
    turns.take(least, lambda: 900)
    assert asked == before, "what is known stays known"


def test_what_crossing_costs_is_found_among_all_distances():
    """Three pairs of nodes, one of each on either plane; what is farthest, less what is next, is not the price."""
    nodes = [(group, plane) for group in range(3) for plane in range(2)]

    def far(one, other):
        return 10 if one == other else (24 if one[0] == other[0] else 26) + 10 * (one[1] != other[1])

    rows = {a: {b: far(one, other) for b, other in enumerate(nodes)} for a, one in enumerate(nodes)}
    found = layout_in_planes(rows)
    assert (len(found.clusters), found.crossing) == (1, 20)
    assert found.plane in (0b010101, 0b101010)
