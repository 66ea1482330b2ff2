"""The manual pages say what --help says, in roff."""

import re
from pathlib import Path

import pytest

from nri_plugin.__main__ import main
from nri_plugin.agent.arguments import NAMES
from nri_plugin.cli import man

PAGES = {words: man.page(words, command) for words, command in man.pages().items()}
ALL = pytest.mark.parametrize("words", PAGES, ids=" ".join)


def shown(text: str) -> str:
    """The text without its escapes."""
    return text.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


@ALL
def test_every_page_has_its_parts_in_order(words: tuple[str, ...]) -> None:
    sections = re.findall(r"^\.SH (.*)$", PAGES[words], re.MULTILINE)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert words == ("run",) or "EXAMPLES" in sections
    assert sections[-1] == "SEE ALSO"


@ALL
def test_every_option_of_the_help_is_on_the_page(words: tuple[str, ...], capsys) -> None:
    main([*words, "--help"])
    options = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert {one for one in options if one not in shown(PAGES[words])} == set()


def test_the_page_of_the_agent_has_all_its_options() -> None:
    assert [name for name in NAMES if name not in shown(PAGES["run",])] == []


def test_no_line_of_text_is_taken_for_a_request_and_no_backslash_is_lost() -> None:
    assert man._escaped("a\\b\n.x\n'y -z") == "a\\eb\n\\&.x\n\\&'y \\-z"


def test_all_pages_are_written_under_the_names_that_man_looks_for(tmp_path: Path, capsys) -> None:
    assert main(["man", "--write", str(tmp_path / "man1")]) == 0
    assert capsys.readouterr().out == f"wrote {len(PAGES)} pages to {tmp_path}/man1\n"
    names = {path.name for path in (tmp_path / "man1").iterdir()}
    assert {"nri-pin.1", "nri-pin-state-show.1"} <= names
    assert len(names) == len(PAGES)


def test_one_page_is_printed(capsys) -> None:
    assert main(["man", "state", "show"]) == 0
    assert capsys.readouterr().out == PAGES["state", "show"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["no", "such"], "no such command 'no such'"),
        (["state", "--write", "x"], "expected COMMAND or --write, found both"),
    ],
)
def test_wrong_usage_is_said(words: list[str], error: str, capsys) -> None:
    assert main(["man", *words]) == 2
    assert error in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    assert main(["man", "--write", str(tmp_path / "file/man1")]) == 1
    assert "cannot be written: not a directory" in capsys.readouterr().err.lower()
