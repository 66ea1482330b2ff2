"""The smallest and closest set."""

from nri_plugin.extender import nodes
from nri_plugin.extender.nodes import ClosestSet, closest_set, least_total

FLAT = tuple(tuple(10 if a == b else 20 for b in range(4)) for a in range(4))
PAIRS = ((10, 30, 12, 30), (30, 10, 30, 12), (12, 30, 10, 30), (30, 12, 30, 10))


def test_the_first_of_equals_is_taken():
    assert closest_set(range(4), [(5, [3, 3, 3, 3])], FLAT) == ClosestSet((0, 1), 60)


def test_the_closest_goes_before_the_first():
    assert closest_set(range(4), [(5, [1, 3, 3, 3])], PAIRS) == ClosestSet((1, 3), 44)


def test_fewer_go_before_closer():
    assert closest_set(range(4), [(5, [3, 3, 3, 5])], PAIRS) == ClosestSet((3,), 10)


def test_only_eligible_zones_are_taken_and_all_may_be_too_few():
    assert closest_set([0, 3], [(5, [3, 3, 3, 3])], PAIRS) == ClosestSet((0, 3), 80)
    assert closest_set([0, 3], [(7, [3, 3, 3, 3])], PAIRS) is None


def test_the_least_distance_is_over_all_sets():
    assert [least_total(PAIRS, size) for size in (1, 2)] == [10, 44]


def test_64_numa_nodes_are_settled_within_the_steps():
    costs = tuple(tuple(10 + (a ^ b) for b in range(64)) for a in range(64))
    found = closest_set(range(64), [(8, [1] * 64), (8, [1] * 64)], costs)
    assert found is not None
    assert found.positions == tuple(range(8))


def test_past_the_steps_the_best_found_stands(monkeypatch):
    monkeypatch.setattr(nodes, "STEPS", 3)
    found = closest_set(range(4), [(5, [1, 3, 3, 3])], PAIRS)
    assert found is not None
    assert len(found.positions) == 2


def test_nodes_that_are_half_full_in_different_ways_are_settled_within_the_steps():
    cpus = [place * 7 % 11 for place in range(32)]
    memory = [10 - one for one in cpus]
    costs = tuple(tuple(10 if a == b else 20 for b in range(32)) for a in range(32))
    found = closest_set(range(32), [(55, cpus), (55, memory)], costs)
    assert found is not None
    assert len(found.positions) == 11


def test_where_none_was_found_within_the_steps_some_set_that_holds_everything_is_taken(monkeypatch):
    monkeypatch.setattr(nodes, "STEPS", 1)
    needs = [(6, [1, 3, 3, 3]), (4, [4, 0, 2, 2])]
    found = closest_set(range(4), needs, PAIRS)
    assert found is not None
    assert all(sum(have[p] for p in found.positions) >= amount for amount, have in needs)
    assert found.total == sum(PAIRS[a][b] for a in found.positions for b in found.positions)
    assert closest_set(range(4), [(6, [1, 3, 3, 3]), (9, [4, 0, 2, 2])], PAIRS) is None
