import importlib
import logging
import subprocess
import sys

import click
import pytest

from nri_plugin import __version__
from nri_plugin.cli import main as cli
from nri_plugin.cli.main import COMMANDS, CommandEntry, run_command_line
from nri_plugin.model.errors import ConfigError
from nri_plugin.process.logs import LOGGER_NAME


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Puts one command `odd` that does what the test says beside the others."""

    def use(action) -> None:
        odd = click.command("odd")(action)
        module = type(sys)("odd_command")
        module.command = odd
        monkeypatch.setitem(sys.modules, "odd_command", module)
        monkeypatch.setattr(
            cli.group, "entries", {**COMMANDS, "odd": CommandEntry("odd_command:command", "Odd.")}
        )

    return use


def helps() -> list[tuple[str, ...]]:
    """The words of every command, those of groups included."""
    words: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = cli.group.get_command(click.Context(cli.group), name)
        words += (
            [(name, below) for below in command.list_commands(click.Context(command))]
            if isinstance(command, click.Group)
            else [(name,)]
        )
    return words


def test_what_help_says_beside_examples_and_tables_fits_80_columns(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in [("explain",), ("replay",), ("release",), ("state", "import"), ("run",)]:
        run_command_line([*words, "--help"])
        lines = capsys.readouterr().out.splitlines()
        assert [line for line in lines if len(line) > 80 and not line.startswith("    nri-pin ")] == []


def test_every_command_has_help_and_examples(capsys) -> None:
    for words in helps():
        assert run_command_line([*words, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.casefold().startswith(
            f"usage: nri-pin {' '.join(words)}"
        )  # run reads its arguments without click
        assert "Examples:" in out, words


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = "import sys; from nri_plugin.cli.main import run_command_line as r; r(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {entry.target.partition(":")[0] for entry in COMMANDS.values()} & loaded == {"nri_plugin.cli.main"}
    assert "rich" not in loaded


def test_the_version_is_the_packages(capsys) -> None:
    assert run_command_line(["--version"]) == 0
    assert capsys.readouterr().out == f"nri-pin {__version__}\n"


def test_no_command_shows_the_help_and_is_a_usage_error(capsys) -> None:
    assert run_command_line([]) == 2
    assert "Usage: nri-pin" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["bogus"], "nri-pin: no such command 'bogus'; see nri-pin --help\n"),
        (["--bogus"], "nri-pin: no such option '--bogus'; see nri-pin --help\n"),
        (["rnu"], "nri-pin: no such command 'rnu', did you mean 'run'; see nri-pin --help\n"),
        (
            ["history"],
            "nri-pin: no such command 'history', did you mean 'state history'; see nri-pin --help\n",
        ),
        (["import"], "nri-pin: no such command 'import', did you mean 'state import'; see nri-pin --help\n"),
        (
            ["state", "shwo"],
            "nri-pin: no such command 'shwo', did you mean 'show'; see nri-pin state --help\n",
        ),
        (
            ["topology", "--lst"],
            "nri-pin: no such option '--lst', did you mean '--list' or '--state'; see nri-pin topology --help\n",
        ),
        (
            ["completion"],
            "nri-pin: missing argument 'SHELL', choose from bash, zsh, fish; see nri-pin completion --help\n",
        ),
        (
            ["doctor", "--runtime-config", "/nonexistent.toml"],
            (
                "nri-pin: --runtime-config /nonexistent.toml: the node has no such file; leave it out to look for it; "
                "see nri-pin doctor --help\n"
            ),
        ),
        (
            ["state", "history", "-n", "x"],
            "nri-pin: invalid value for '-n' / '--last': 'x' is no whole number; see nri-pin state history --help\n",
        ),
        (
            ["top", "-n", "x"],
            "nri-pin: invalid value for '-n' / '--interval': 'x' is no number; see nri-pin top --help\n",
        ),
        (["install"], "nri-pin: expected one of --plugin-dir and --systemd; see nri-pin install --help\n"),
    ],
)
def test_wrong_usage_is_one_line_and_ends_with_two(args, error: str, capsys) -> None:
    assert run_command_line(args) == 2
    assert capsys.readouterr().err == error


@pytest.mark.parametrize(
    "text", ["DIR/state.json: is damaged", "Pods names no machine", "NUMA node 9 is not there"]
)
def test_a_path_or_a_name_that_comes_first_stays_as_it_is_written(text: str) -> None:
    assert cli.one_line(click.ClickException(text)) == text


def test_lines_to_copy_into_a_file_stay_lines() -> None:
    text = "a.yaml: no configuration; write these\nlines to it:\n  one: 1\n  two: 2"
    told = "a.yaml: no configuration; write these lines to it:\n  one: 1\n  two: 2"
    assert cli.one_line(click.ClickException(text)) == told


def test_a_number_that_a_command_returns_is_the_exit_code(failing) -> None:
    failing(lambda: 3)
    assert run_command_line(["odd"]) == 3
    failing(lambda: True)
    assert run_command_line(["odd"]) == 0
    failing(lambda: click.get_current_context().exit(4))
    assert run_command_line(["odd"]) == 4


def test_an_abort_ends_as_an_interrupt(failing) -> None:
    def action() -> None:
        raise click.Abort

    failing(action)
    assert run_command_line(["odd"]) == cli.EXIT_INTERRUPTED


def test_run_reaches_the_agent_on_the_long_way_too(monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger(LOGGER_NAME), "handlers", [])  # whatever ran before in this process
    with pytest.raises(ConfigError, match=r"/nonexistent/config\.yaml: no configuration"):
        run_command_line(["run", "--config", "/nonexistent/config.yaml"])


def test_the_format_option_has_one_name_and_a_default(capsys) -> None:
    output = importlib.import_module("nri_plugin.cli.output")
    command = click.command()(output.format_option()(lambda output_format: click.echo(f"as {output_format}")))
    for args, expected in [([], "text"), (["-o", "json"], "json")]:
        command.main(args, standalone_mode=False)
        assert capsys.readouterr().out == f"as {expected}\n"
    with pytest.raises(click.UsageError):
        command.main(["-o", "xml"], standalone_mode=False)


def test_no_color_is_respected(monkeypatch) -> None:
    output = importlib.import_module("nri_plugin.cli.output")
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.wants_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.wants_colour()


@pytest.mark.parametrize(
    "words", [[], *([name] for name in COMMANDS), ["state", "show"], ["state", "verify"]], ids=" ".join
)
def test_every_help_has_an_example_and_says_what_a_value_is(words: list[str], capsys) -> None:
    assert run_command_line([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert " ".join(["nri-pin", *words]) in text.partition("Examples:")[2]
    assert " TEXT" not in text


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        (["--help"], {"yaml", "msgspec", "nri_plugin.host", "nri_plugin.agent"}),
        (
            ["state", "show", "--state-dir", "/nonexistent"],
            {"yaml", "nri_plugin.agent.serving.handler", "nri_plugin.simulator"},
        ),
    ],
    ids=["help", "state show"],
)
def test_what_is_asked_often_starts_without_what_it_does_not_need(words: list[str], spared: set[str]) -> None:
    code = f"import sys; from nri_plugin.__main__ import main\nmain({words!r})\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert (
        spared | {"rich", "google.protobuf", "asyncio", "grpc", "prometheus_client", "cgroupspy"}
    ) & loaded == set()
