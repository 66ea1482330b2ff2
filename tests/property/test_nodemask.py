"""Laws of NodeMask against frozenset."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model import bits
from nri_plugin.model.sets import NodeMask
from tests.oracles import sets

IDS = st.frozensets(st.integers(0, 200), max_size=40) | st.frozensets(st.integers(0, bits.MAX_ID), max_size=6)


@given(IDS, IDS)
def test_algebra_is_that_of_frozensets(left: frozenset[int], right: frozenset[int]) -> None:
    one, other = NodeMask.from_ids(left), NodeMask.from_ids(right)
    assert set(one & other) == left & right
    assert set(one | other) == left | right
    assert set(one - other) == left - right
    assert set(one ^ other) == left ^ right
    assert (one <= other) is (left <= right)
    assert (one == other) is (left == right)
    assert one.isdisjoint(other) is left.isdisjoint(right)


@given(IDS)
def test_a_set_lists_its_members_in_ascending_order(ids: frozenset[int]) -> None:
    nodes = NodeMask.from_ids(ids)
    assert list(nodes) == sorted(ids)
    assert len(nodes) == len(ids)
    assert bool(nodes) is bool(ids)
    assert bits.lowest(nodes.mask) == min(ids, default=-1)


@given(IDS, st.integers(-2, 250))
def test_membership(ids: frozenset[int], number: int) -> None:
    assert (number in NodeMask.from_ids(ids)) is (number in ids)


@given(IDS)
def test_a_set_is_written_as_the_kernel_writes_it(ids: frozenset[int]) -> None:
    assert str(NodeMask.from_ids(ids)) == sets.to_list(ids)


@given(IDS)
def test_what_is_written_is_read_back(ids: frozenset[int]) -> None:
    nodes = NodeMask.from_ids(ids)
    assert NodeMask.parse(str(nodes)) == nodes
    assert NodeMask.parse(f" {nodes}\n\0") == nodes


@given(IDS, st.randoms(use_true_random=False))
def test_any_order_and_repetition_is_read(ids: frozenset[int], chance: random.Random) -> None:
    text = sets.untidy_list(ids, chance)
    assert set(NodeMask.parse(text)) == sets.from_list(text) == ids


@given(st.text("0123456789-, x\n", max_size=20))
def test_any_text_is_read_or_refused_with_value_error(text: str) -> None:
    try:
        nodes = NodeMask.parse(text)
    except ValueError:
        return
    assert set(nodes) == sets.from_list(text)


@given(IDS, IDS)
def test_equal_sets_have_equal_hashes(left: frozenset[int], right: frozenset[int]) -> None:
    seen = {NodeMask.from_ids(left): "left"}
    assert (NodeMask.from_ids(right) in seen) is (left == right)


@given(st.integers(max_value=-1))
def test_no_negative_mask_becomes_a_set(mask: int) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        NodeMask(mask)
