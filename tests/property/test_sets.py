"""Laws of CPUSet and NodeMask against frozenset, and of the kernel's list format."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.model import bits
from nri_plugin.model.sets import CPUSet, NodeMask
from tests.oracles import sets

each_kind = pytest.mark.parametrize("kind", [CPUSet, NodeMask])

Kind = type[CPUSet] | type[NodeMask]

IDS = st.frozensets(st.integers(0, 200), max_size=40) | st.frozensets(st.integers(0, bits.MAX_ID), max_size=6)


@each_kind
@given(IDS, IDS)
def test_algebra_is_that_of_frozensets(kind: Kind, left: frozenset[int], right: frozenset[int]) -> None:
    one, other = kind.from_ids(left), kind.from_ids(right)
    assert set(one & other) == left & right
    assert set(one | other) == left | right
    assert set(one - other) == left - right
    assert set(one ^ other) == left ^ right
    assert (one <= other) is (left <= right)
    assert (one == other) is (left == right)
    assert one.isdisjoint(other) is left.isdisjoint(right)


@each_kind
@given(IDS)
def test_a_set_lists_its_members_in_ascending_order(kind: Kind, ids: frozenset[int]) -> None:
    members = kind.from_ids(ids)
    assert list(members) == sorted(ids)
    assert len(members) == len(ids)
    assert bool(members) is bool(ids)
    assert bits.lowest(members.mask) == min(ids, default=-1)


@each_kind
@given(IDS, st.integers(-2, 250))
def test_membership(kind: Kind, ids: frozenset[int], number: int) -> None:
    assert (number in kind.from_ids(ids)) is (number in ids)


@each_kind
@given(IDS)
def test_a_set_is_written_as_the_kernel_writes_it(kind: Kind, ids: frozenset[int]) -> None:
    assert str(kind.from_ids(ids)) == sets.to_list(ids)


@each_kind
@given(IDS)
def test_what_is_written_is_read_back(kind: Kind, ids: frozenset[int]) -> None:
    members = kind.from_ids(ids)
    assert kind.parse(str(members)) == members
    assert kind.parse(f" {members}\n\0") == members


@each_kind
@given(IDS, st.randoms(use_true_random=False))
def test_any_order_and_repetition_is_read(kind: Kind, ids: frozenset[int], chance: random.Random) -> None:
    text = sets.untidy_list(ids, chance)
    assert set(kind.parse(text)) == sets.from_list(text) == ids


@each_kind
@given(st.text("0123456789-, x\n", max_size=20))
def test_any_text_is_read_or_refused_with_value_error(kind: Kind, text: str) -> None:
    try:
        members = kind.parse(text)
    except ValueError:
        return
    assert set(members) == sets.from_list(text)


@each_kind
@given(IDS, IDS)
def test_equal_sets_have_equal_hashes(kind: Kind, left: frozenset[int], right: frozenset[int]) -> None:
    seen = {kind.from_ids(left): "left"}
    assert (kind.from_ids(right) in seen) is (left == right)


@each_kind
@given(st.integers(max_value=-1))
def test_no_negative_mask_becomes_a_set(kind: Kind, mask: int) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        kind(mask)
