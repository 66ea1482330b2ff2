"""What holds for every command, whichever it is: found by walking the table, so that new ones are held to it too."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from nri_plugin import __main__ as entry
from nri_plugin import __version__
from nri_plugin.cli import main as cli
from nri_plugin.cli import output
from tests import guides

PATIENCE_S = 30.0
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What else a terminal is told wipes the line that is shown while something takes longer than a second."""

NO_JSON = {
    "run": "its log is JSON with --log-format json",
    "completion": "prints a script",
    "help": "prints the help of another command",
    "extender": "serves",
}
"""Commands without `-o json`, and why."""

SERVING = {"run", "export", "extender"}
"""Commands that go on until they are stopped; their wrong files have tests of their own."""

WRITTEN = {"--keep", "--html", "--record", "--write"}
"""Options whose file is made, not read."""


def leaves(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = dict(leaves(cli.group))
ALL = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


def groups(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every group, the whole program first."""
    yield words
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, (*words, name))


GROUPS = list(groups(cli.group))


@pytest.mark.parametrize("words", [*GROUPS, *COMMANDS], ids=" ".join)
def test_every_help_ends_in_examples_of_that_command(words: tuple[str, ...], capsys) -> None:
    assert entry.main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert text[1:].startswith(f"sage: {' '.join(['nri-pin', *words])}")
    assert " ".join(["nri-pin", *words]) in text.partition("Examples:")[2]
    assert " TEXT" not in text


@pytest.mark.parametrize("words", [words for words in COMMANDS if words != ("run",)], ids=" ".join)
def test_every_option_says_what_it_is_for(words: tuple[str, ...]) -> None:
    options = [one for one in COMMANDS[words].params if isinstance(one, click.Option) and not one.hidden]
    assert [option.name for option in options if not option.help] == []


@ALL
def test_every_command_is_in_a_guide_beside_the_reference(words: tuple[str, ...]) -> None:
    texts = [path.read_text("utf-8") for path in guides.operators_documents() if path != guides.COMMANDS]
    asked = [*texts, *(guides.section(guides.COMMANDS, one) for one in ("Conventions", "Shell completion"))]
    assert any(re.search(rf"nri-pin {' '.join(words)}\b", text) for text in asked)


@ALL
def test_every_answer_can_be_had_as_json(words: tuple[str, ...]) -> None:
    formats = [one for one in COMMANDS[words].params if "--output" in one.opts]
    if " ".join(words) in NO_JSON:
        return
    (option,) = formats
    assert {"-o", "--output"} <= set(option.opts)
    assert isinstance(option.type, click.Choice)
    assert "json" in option.type.choices


@ALL
def test_a_wrong_option_is_one_line_with_the_next_step(words: tuple[str, ...], capsys) -> None:
    assert entry.main([*words, "--no-such-option"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    is_one_line(told.err)
    assert f"see {' '.join(['nri-pin', *words])} --help" in told.err


def file_options() -> Iterator[tuple[tuple[str, ...], str]]:
    """Every option that takes a file or a folder to read."""
    for words, command in COMMANDS.items():
        if " ".join(words) in SERVING:
            continue
        for parameter in command.params:
            stands_for = set(re.findall("[A-Z]+", parameter.metavar or ""))
            is_path = isinstance(parameter.type, click.Path) or stands_for & {"FILE", "DIR", "CONFIG"}
            if isinstance(parameter, click.Option) and is_path and not WRITTEN & set(parameter.opts):
                yield words, parameter.opts[-1]


def required(command: click.Command, missing: str) -> list[str]:
    """Something for every argument and option that has to be there."""
    found: list[str] = []
    for parameter in command.params:
        if not parameter.required:
            continue
        value = parameter.type.choices[0] if isinstance(parameter.type, click.Choice) else missing
        found += [parameter.opts[-1], value] if isinstance(parameter, click.Option) else [value]
    return found


@pytest.mark.parametrize(
    ("words", "option"), list(file_options()), ids=lambda one: one if isinstance(one, str) else " ".join(one)
)
def test_a_file_that_is_not_there_is_one_line_with_the_next_step(
    words: tuple[str, ...], option: str, capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = str(tmp_path / "none" / "file")
    needed = required(COMMANDS[words], missing)
    code = entry.main([*words, *needed, *([] if option in needed else [option, missing])])
    told = capsys.readouterr()
    assert code in (1, 2)
    if told.err or code == 2:
        is_one_line(told.err)
        assert not told.out


@ALL
def test_an_argument_too_many_is_one_line(words: tuple[str, ...], capsys) -> None:
    command = COMMANDS[words]
    if any(parameter.nargs == -1 for parameter in command.params):
        return
    count = sum(isinstance(parameter, click.Argument) for parameter in command.params)
    assert entry.main([*words, *["/nonexistent/x"] * (count + 1)]) == 2
    is_one_line(capsys.readouterr().err)


def is_one_line(text: str) -> None:
    """An error: one line of the program, a sentence in lower case or a name first, and no trace of Python.

    What follows a configuration's first error (further ones, lines to write) stands indented below.
    """
    first, *below = text.splitlines()
    assert re.match(r"nri-pin: ([^A-Z]|[A-Z]\w+Error: )", first), text
    assert all(line.startswith("  ") for line in below), text
    assert "Traceback" not in text
    assert not text.startswith("nri-pin: unexpected ")  # what is not foreseen


def test_exit_codes_are_those_of_the_guide() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \|$", guides.section(guides.COMMANDS, "Exit codes"), re.MULTILINE)
    told = {int(code): words for code, words in rows}
    assert set(told) == {0, 1, 2, 70, 130}
    assert (entry.EXIT_FAILURE, entry.EXIT_USAGE, entry.EXIT_INTERRUPTED) == (1, 2, 130)
    assert cli.EXIT_INTERRUPTED == 130


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "start", interrupted)
    assert entry.main(["topology"]) == 130


@pytest.mark.parametrize(
    "words", [("doctor",), ("topology",), ("topology", "--machine", "demo")], ids=" ".join
)
def test_no_color_is_heard_on_a_terminal(words: tuple[str, ...]) -> None:
    assert COLOUR.search(printed_on_terminal(words, {}))
    assert not COLOUR.search(printed_on_terminal(words, {"NO_COLOR": "1"}))


@pytest.mark.parametrize("words", [("doctor",), ("topology",)], ids=" ".join)
def test_a_pipe_gets_no_colours(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "nri_plugin", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "TERM": "xterm"}
    )
    assert "\x1b[" not in done.stdout


def printed_on_terminal(words: tuple[str, ...], environment: dict[str, str]) -> str:
    """What the command writes when its standard output is a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.pop("NO_COLOR", None)
        os.environ.update(environment, TERM="xterm-256color")
        os.execv(sys.executable, [sys.executable, "-m", "nri_plugin", *words])
    printed = b""
    while select.select([terminal], [], [], PATIENCE_S)[0]:
        try:
            printed += os.read(terminal, 65536)
        except OSError:  # what a terminal says when nobody is left
            break
    os.close(terminal)
    os.waitpid(child, 0)
    return printed.decode("utf-8", "replace")


def test_yaml_is_the_same_answer_as_json(capsys) -> None:
    for words in (["topology", "laptop"], ["explain", "--machine", "laptop", "--cpu", "2"], ["version"]):
        code = entry.main([*words, "-o", "json"])
        facts = json.loads(capsys.readouterr().out)
        assert entry.main([*words, "--output=yaml"]) == code
        assert yaml.safe_load(capsys.readouterr().out) == facts, words


def test_a_stream_of_answers_is_a_stream_of_yaml_documents() -> None:
    texts = [output.render({"a": number}, "yaml", is_one_of_many=True) for number in (1, 2)]
    assert list(yaml.safe_load_all("\n".join(texts))) == [{"a": 1}, {"a": 2}]


def test_version_and_help_are_commands_as_those_of_kubectl(capsys) -> None:
    assert entry.main(["version"]) == 0
    assert capsys.readouterr().out == f"nri-pin {__version__}\n"
    assert entry.main(["help", "state", "show"]) == 0
    assert capsys.readouterr().out.startswith("Usage: nri-pin state show")
    assert entry.main(["help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: nri-pin")
