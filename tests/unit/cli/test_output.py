import json
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nri_plugin.cli.output import UNLIMITED, columns, fold_words, output_encoding, render, table, wants_colour
from nri_plugin.model.records import CgroupRef, Phase
from nri_plugin.model.sets import CPUSet


class Out:
    def __init__(self, *, terminal: bool) -> None:
        self.terminal = terminal

    encoding = "utf-8"

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("terminal", "environment", "colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"COLUMNS": "120"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_that_show_them(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], colour: bool
) -> None:
    monkeypatch.setattr(sys, "stdout", Out(terminal=terminal))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_colour() is colour


def test_a_row_is_one_line() -> None:
    rows = [("NAME", "CPUS"), ("a", "0-3,8-11,16-19"), ("  bb", "7")]
    assert table(rows) == ["NAME  CPUS", "a     0-3,8-11,16-19", "  bb  7"]


@given(st.text("ab, ", max_size=80), st.integers(0, 60))
def test_folding_loses_nothing(text: str, width: int) -> None:
    for indent in ("", "    "):
        lines = fold_words(text, width, indent)
        assert "".join("".join(lines).split()) == "".join(text.split())
        assert max(map(len, lines)) <= max(width, 2 * len(indent), 1)


def test_what_is_piped_has_no_width_but_the_one_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Out(terminal=False))
    assert columns() == UNLIMITED
    monkeypatch.setenv("COLUMNS", "60")
    assert columns() == 60
    monkeypatch.setenv("COLUMNS", "wide")
    assert columns() == UNLIMITED


@pytest.mark.parametrize(
    ("environment", "encoding"),
    [
        ({}, "utf-8"),
        ({"LC_ALL": "C"}, "ascii"),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, "ascii"),
        ({"LANG": "C"}, "ascii"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "ascii"),  # as Python leaves it
        ({"LC_CTYPE": "C.UTF-8"}, "utf-8"),
        ({"LC_CTYPE": "de_DE.UTF-8", "LANG": "C"}, "utf-8"),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, "utf-8"),
    ],
)
def test_pictures_keep_to_ascii_in_the_locale_c(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], encoding: str
) -> None:
    monkeypatch.setattr(sys, "stdout", Out(terminal=True))
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert output_encoding() == encoding


def test_records_are_rendered_by_their_fields() -> None:
    held = {3: [CPUSet.parse("1-3"), None], "phase": Phase.RUNNING, "cgroup": CgroupRef("/p", "/p/c")}
    facts = {"3": ["1-3", None], "phase": "running", "cgroup": {"parent": "/p", "path": "/p/c"}}
    assert json.loads(render(held, "json")) == yaml.safe_load(render(held, "yaml")) == facts
    assert render({"a": [1]}, "json", is_one_of_many=True) == '{"a": [1]}'
