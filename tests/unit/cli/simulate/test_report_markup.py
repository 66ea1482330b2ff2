"""HTML that names cannot break out of."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.cli.simulate.report_marks import (
    Markup,
    element,
    escape,
    joined,
    raw_element,
    script_json,
    showable,
)


def test_text_is_escaped_and_markup_is_not() -> None:
    assert element("p", "a<b", Markup("<i></i>")) == "<p>a&lt;b<i></i></p>"


def test_pieces_of_markup_are_text_again_once_they_were_formatted() -> None:
    assert joined([f"{Markup('<i>')}"]) == "&lt;i&gt;"


def test_attributes_are_quoted_and_escaped() -> None:
    assert element("td", data_v="\"'><", class_="x") == '<td data-v="&quot;&#39;&gt;&lt;" class="x"></td>'


@pytest.mark.parametrize(
    ("value", "written"),
    [(True, "<p hidden></p>"), (False, "<p></p>"), (None, "<p></p>"), (0, '<p hidden="0"></p>')],
)
def test_attributes_without_value_and_without_meaning(value: bool | int | None, written: str) -> None:
    assert element("p", hidden=value) == written


def test_an_empty_class_is_left_out_and_other_empty_values_are_not() -> None:
    assert element("p", class_="", data_v="") == '<p data-v=""></p>'


def test_void_elements_have_no_end_and_shapes_have_one() -> None:
    assert element("wbr") + element("rect") == "<wbr><rect></rect>"


@pytest.mark.parametrize(
    "character", ["\x00", "\x1b", "\x7f", "\u2028", "\u202e", "\u2066", "\ud800", "\uffff"]
)
def test_what_cannot_be_shown_is_replaced(character: str) -> None:
    assert showable(f"a{character}b") == "a\ufffdb"


@given(st.text())
def test_no_text_leaves_a_character_that_means_something(text: str) -> None:
    written = escape(text)
    assert not set(written) & set("<>\"'")
    written.encode()


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_in_a_script_is_the_same_json_and_no_markup(value: object) -> None:
    written = script_json(value)
    assert json.loads(written) == value
    assert not set(written) & set("<>&\u2028\u2029")
    assert raw_element("script", written) == f"<script>{written}</script>"


@pytest.mark.parametrize("content", ["a</style>b", "a</STYLE b", "<!-- a"])
def test_content_that_would_end_its_element_is_refused(content: str) -> None:
    with pytest.raises(ValueError, match="would end it early"):
        raw_element("style", content)
