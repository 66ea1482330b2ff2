"""nri_plugin.__main__: which start it is, and how errors end."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from nri_plugin import __main__ as entry
from nri_plugin.model.errors import ConfigError, HostError

SOCKET = {"NRI_PLUGIN_SOCKET": "3"}


@pytest.mark.parametrize(
    ("args", "environment", "for_agent"),
    [
        (["run"], {}, []),
        (["run", "--config", "x"], {}, ["--config", "x"]),
        (["run", "--help"], {}, ["--help"]),
        (["state", "run"], {}, None),
        ([], SOCKET, []),
        ([], {}, None),
        (["state", "show"], SOCKET, None),
        (["--version"], SOCKET, None),
    ],
)
def test_the_agents_start_is_told_by_its_first_word_or_by_the_runtimes_socket(
    args, environment, for_agent
) -> None:
    assert entry.agent_arguments(args, environment) == for_agent


def run_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(_args: object, _environment: object) -> int:
        raise error

    monkeypatch.setattr(entry, "start", fail)
    return entry.main([])


def test_a_wrong_configuration_ends_with_two_and_keeps_the_lines_to_add(monkeypatch, capsys) -> None:
    assert run_with(monkeypatch, ConfigError("f:1:1", "wrong", ("add: this",))) == 2
    assert capsys.readouterr().err == "nri-pin: f:1:1: wrong\n  add: this\n"


def test_any_other_error_of_ours_is_one_line_and_ends_with_one(monkeypatch, capsys) -> None:
    assert run_with(monkeypatch, HostError("/x", "gone\nand more")) == 1
    assert capsys.readouterr().err == "nri-pin: /x: gone and more\n"


def test_a_fault_of_ours_is_one_line_that_says_how_to_see_more(monkeypatch, capsys) -> None:
    monkeypatch.delenv(entry.DEBUG_VARIABLE, raising=False)
    assert run_with(monkeypatch, KeyError("x")) == 1
    assert capsys.readouterr().err.startswith(
        "nri-pin: unexpected KeyError: 'x'; run again with NRI_PIN_DEBUG=1"
    )
    monkeypatch.setenv(entry.DEBUG_VARIABLE, "1")
    with pytest.raises(KeyError):
        run_with(monkeypatch, KeyError("x"))


def test_a_full_disk_behind_the_output_is_no_fault_of_ours() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "nri_plugin", "topology", "--list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "nri-pin: the output cannot be written: no space left on device; it is incomplete\n",
    )


def test_an_interrupt_is_no_error_text(monkeypatch, capsys) -> None:
    assert run_with(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""


def test_the_agent_is_called_with_what_follows_run_and_its_code_is_ours(monkeypatch) -> None:
    agent = ModuleType("nri_plugin.agent.agent")
    seen: list[list[str]] = []
    agent.main = lambda args: seen.append(args) or 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nri_plugin.agent.agent", agent)
    monkeypatch.setattr("nri_plugin.agent.agent", agent, raising=False)
    assert entry.main(["run", "--config", "x"]) == 7
    assert seen == [["--config", "x"]]


def start_and_list_modules(code: str) -> SimpleNamespace:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return SimpleNamespace(modules=set(done.stdout.split()))


def test_telling_the_starts_apart_loads_no_command_line_library() -> None:
    loaded = start_and_list_modules("import nri_plugin.__main__").modules
    assert not loaded & {"click", "rich", "asyncio", "yaml", "google.protobuf"}


def test_a_reader_that_goes_away_leaves_no_error_text() -> None:
    done = subprocess.run(
        f"{sys.executable} -m nri_plugin --help | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert done.stderr == ""
