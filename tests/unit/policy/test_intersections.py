"""Intersections of listed masks."""

import pytest

from nri_plugin.policy import merge
from nri_plugin.policy.hints import Hint, HintSet
from nri_plugin.policy.merge import possible_intersections


def hint_set(*masks):
    return HintSet("r", tuple(Hint(mask, preferred=False) for mask in masks))


def test_each_hint_set_gives_one_mask():
    assert possible_intersections(0b111, [hint_set(0b011, 0b110), hint_set(0b010, 0b101)]) == {
        0b010,
        0b001,
        0b100,
    }


def test_empty_intersections_are_left_out():
    assert possible_intersections(0b11, [hint_set(0b01), hint_set(0b10)]) == set()


def test_anywhere_stands_for_all_nodes():
    assert possible_intersections(0b11, [hint_set(0b01, None), HintSet("s", None), HintSet("t", ())]) == {
        0b01,
        0b11,
    }


def test_many_long_lists_give_the_same_as_their_closure():
    every = hint_set(*range(1, 256))
    assert possible_intersections(255, [every, every, every]) == set(range(1, 256))


def test_counting_handles_sparse_node_ids():
    masks = [mask for mask in range(1, 1 << 12) if mask & ~0b1111_0000_1111 == 0]
    found = possible_intersections(0b1111_0000_1111, [hint_set(*masks), hint_set(0b1000_0000_0001, *masks)])
    assert found == set(masks)


@pytest.mark.parametrize(
    ("nodes", "limit", "hint_sets", "counted", "rule"),
    [
        (2, 4, [(1, 2), (1, 3)], False, "as many pairs as the limit are folded"),
        (2, 4, [(1, 2), (1, 2, 3)], True, "more are counted"),
        (2, 4, [(1, 2), (1, 2, 3), (1,)], True, "the worst two lists decide"),
        (2, 4, [(1, 2), (None,), (1, 2, 3)], True, "anywhere makes no difference"),
        (2, 4, [(1, 2), (3,), (1, 2, 3)], True, "nor does all nodes"),
        (2, 0, [(1, 2)], False, "one list has no pairs"),
        (2, -1, [(1, 2)], True, "none, not fewer"),
        (12, 4, [(1, 2), (1, 2, 3)], True, "on twelve nodes too"),
        (13, 4, [(1, 2), (1, 2, 3)], False, "never on more"),
    ],
)
def test_supersets_are_counted_where_lists_are_long_and_nodes_few(
    monkeypatch, nodes, limit, hint_sets, counted, rule
):
    counting = []
    by_counting = merge._by_counting
    monkeypatch.setattr(merge, "FOLD_LIMIT", limit)
    monkeypatch.setattr(merge, "_by_counting", lambda *of: counting.append(of) or by_counting(*of))
    found = possible_intersections((1 << nodes) - 1, [hint_set(*masks) for masks in hint_sets])
    assert bool(counting) is counted, rule
    assert found <= {1, 2, 3}
