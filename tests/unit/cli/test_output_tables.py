"""Tables that fold instead of growing too wide."""

from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.cli.output import fold, folded, table

ROWS = [("NAME", "CPUS"), ("a", "0-3,8-11,16-19"), ("  bb", "7")]


def test_what_fits_is_one_line_a_row() -> None:
    assert table(ROWS, 40, (1,)) == ["NAME  CPUS", "a     0-3,8-11,16-19", "  bb  7"]
    assert table(ROWS, None) == table(ROWS, 40, (1,))


def test_lists_are_folded_after_a_comma() -> None:
    assert table(ROWS, 15, (1,)) == ["NAME  CPUS", "a     0-3,8-11,", "      16-19", "  bb  7"]


def test_what_may_not_be_folded_stays_whole() -> None:
    assert table(ROWS, 15) == table(ROWS, None)


def test_a_folded_name_keeps_its_indent() -> None:
    assert fold("  setup (stopped)", 8) == ["  setup ", "  (stopp", "  ed)"]


def test_a_sentence_goes_on_where_its_first_line_began() -> None:
    assert fold("whole cores, on one machine", 15) == ["whole cores,", "on one machine"]


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=40), st.integers(8, 60))
def test_folding_loses_nothing(numbers: list[int], width: int) -> None:
    cell = ",".join(map(str, numbers))
    lines = fold(cell, width)
    assert "".join(lines) == cell
    assert max(map(len, lines)) <= width


def test_a_line_goes_on_indented() -> None:
    assert folded("label  one two three", 14, 4) == ["label  one two", "    three"]


def test_a_long_list_in_a_line_is_broken_after_its_commas() -> None:
    assert folded("pool  0-3,8-11,16-19,24-27", 16, 6) == ["pool  0-3,8-11,", "      16-19,", "      24-27"]
