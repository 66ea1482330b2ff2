"""Placement vectors."""

import pytest

from nri_plugin.extender.numa_placement import Placed, encoded, placement


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "!"), (63, "e"), (64, "f!"), (127, "fe"), (128, "g!"), (64 + 64 * 25, "gf!")],
)
def test_numbers_are_written_in_89_characters(number, text):
    assert encoded([number]) == text


def test_the_fullest_numa_node_is_left_out_and_the_lowest_of_equals():
    placed = [Placed("n", f"p{at}", "c", at % 2) for at in range(4)]
    metadata, vectors = placement(placed, 2)
    assert metadata == "npv0v001::ve=leb89::cc=4::nn=2::bn=0"
    assert list(vectors) == [1]


def test_nothing_placed_says_so():
    assert placement([], 4) == ("npv0v001::ve=leb89::cc=0::nn=4::bn=0", {})
