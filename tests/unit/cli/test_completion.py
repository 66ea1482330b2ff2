import os
import pty
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

import click
import click.testing
import pytest
from click.shell_completion import CompletionItem

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli import completion, main
from nri_plugin.cli.completion import SHELLS
from nri_plugin.cli.main import COMMANDS, run_command_line
from nri_plugin.cli.main import COMPLETION_VARIABLE as VARIABLE
from nri_plugin.core.requests import QOSClass
from nri_plugin.model.records import CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.state import State

PATIENCE_S = 30.0
BIN = str(Path(sys.executable).parent)


def complete(*words: str) -> list[tuple[str, str]]:
    """What is offered for the last of these words, as (type, value)."""
    *args, incomplete = words
    completer = SHELLS["bash"](main.group, {}, "nri-pin", VARIABLE)
    found: list[CompletionItem] = completer.get_completions(args, incomplete)
    return [(item.type, item.value) for item in found]


def plain(*words: str) -> list[str]:
    return [value for kind, value in complete(*words) if kind == "plain"]


def test_commands_are_completed_without_being_imported() -> None:
    assert plain("") == list(COMMANDS)
    assert plain("s") == ["simulate", "state"]
    assert {"show", "verify"} <= set(plain("state", ""))
    code = "import sys; from nri_plugin.cli.main import run_command_line as r\ntry: r([])\nfinally: print(*sys.modules)"
    environment = {**os.environ, VARIABLE: "bash_complete", "COMP_WORDS": "nri-pin s", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.startswith("plain,simulate\nplain,state\n")
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {entry.target.partition(":")[0] for entry in COMMANDS.values()} & loaded <= {
        "nri_plugin.cli.main",
        "nri_plugin.cli.completion",
    }


def test_options_and_their_choices_are_completed() -> None:
    assert "--machine" in plain("topology", "--m")
    assert plain("state", "show", "-o", "") == ["text", "wide", "json", "yaml", "name"]
    assert plain("run", "--state") == ["--state-dir"]
    assert plain("run", "--bogus") == []


@pytest.mark.parametrize(
    "words",
    [
        ("topology", "--machine", "gb2"),
        ("topology", "--machine", "=", "gb2"),
        ("explain", "--machine", "gb2"),
    ],
)
def test_machines_are_completed_by_name(words: tuple[str, ...]) -> None:
    assert plain(*words) == ["gb200-34-numa"]


def test_what_is_no_name_of_ours_is_a_file_or_a_folder() -> None:
    assert complete("topology", "--machine", "./mine") == [("file", "./mine")]
    assert complete("release", "--state-dir", "/r") == [("dir", "/r")]
    assert complete("doctor", "--config", "") == [("file", "")]


def test_a_machine_comes_before_a_scenario_and_not_after_it() -> None:
    first = plain("simulate", "")
    assert {"gb200-34-numa", "devices"} <= set(first)
    assert "gb200-34-numa" not in plain("simulate", "demo", "")
    assert "devices" in plain("simulate", "demo", "")


@pytest.mark.parametrize(
    "words", [("bogus", ""), ("state", "bogus", ""), ("--bogus", ""), ("topology", "--bogus", "")]
)
def test_words_that_make_no_sense_end_in_no_error(words: tuple[str, ...]) -> None:
    complete(*words)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    pod = PodRecord("u1", "s1", "web", "shop", QOSClass.GUARANTEED, "/kubepods/podu1")
    record = ContainerRecord(
        "c1", "u1", "app", Phase.RUNNING, CgroupRef("/kubepods/podu1", "/kubepods/podu1/c1")
    )
    CheckpointFile(str(tmp_path), durable=False).save(State({"u1": pod}, {"c1": record}, {}))
    return tmp_path


def test_containers_are_those_of_the_checkpoint(state_dir: Path, tmp_path: Path) -> None:
    assert plain("explain", "--state-dir", str(state_dir), "sh") == ["shop/web/app"]
    assert plain("state", "show", "--state-dir", str(state_dir), "--container", "") == ["app"]
    assert plain("explain", "--state-dir", str(tmp_path / "none"), "sh") == []
    (state_dir / "state.json").write_text("damaged")
    assert plain("explain", "--state-dir", str(state_dir), "sh") == []


def test_a_container_is_completed_from_its_last_parts_where_they_name_only_one(tmp_path: Path) -> None:
    pods = {
        uid: PodRecord(uid, f"s{uid}", name, "ml", QOSClass.GUARANTEED, f"/kubepods/pod{uid}")
        for uid, name in (("u1", "job-0"), ("u2", "job-1"))
    }
    rows = [("c1", "u1", "train"), ("c2", "u1", "tell"), ("c3", "u2", "tell")]
    records = {
        key: ContainerRecord(key, uid, name, Phase.RUNNING, CgroupRef(f"/kubepods/pod{uid}"))
        for key, uid, name in rows
    }
    CheckpointFile(str(tmp_path), durable=False).save(State(pods, records, {}))
    ask = ("explain", "--state-dir", str(tmp_path))
    assert plain(*ask, "t") == ["train"]
    assert sorted(plain(*ask, "job")) == ["job-0/tell", "job-0/train", "job-1/tell"]
    assert sorted(plain(*ask, "")) == ["ml/job-0/tell", "ml/job-0/train", "ml/job-1/tell"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_its_script_and_its_answers(shell: str, capsys) -> None:
    assert run_command_line(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert VARIABLE in script
    assert f"{shell}_complete" in script
    environment = {
        **os.environ,
        VARIABLE: f"{shell}_complete",
        "COMP_WORDS": "nri-pin doc",
        "COMP_CWORD": "1",
    }
    if shell == "fish":
        environment["COMP_CWORD"] = "doc"
    done = subprocess.run(
        [sys.executable, "-m", "nri_plugin"], capture_output=True, text=True, env=environment, check=False
    )
    assert "doctor" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_starts_no_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(subprocess, "run", never)
    assert click.testing.CliRunner().invoke(completion.command, ["bash"]).exit_code == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash; apt-get install bash")
def test_a_real_bash_completes_commands_options_and_machines() -> None:
    """Typed as by a person: words with TAB, then `echo` before them, so that the line is printed and not run."""
    typed = b"nri-pin topo\t--machine gb200\t-o js\t\x01echo typed: \n"
    printed = type_into_bash(b"source <(nri-pin completion bash)\n" + typed)
    assert "typed: nri-pin topology --machine gb200-34-numa -o json" in printed


def type_into_bash(keys: bytes) -> str:
    """Everything an interactive bash printed."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(PATH=f"{BIN}:{os.environ['PATH']}", PS1="$ ", TERM="dumb", INPUTRC="/dev/null")
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    os.write(terminal, keys + b"exit\n")
    printed = b""
    while select.select([terminal], [], [], PATIENCE_S)[0]:
        try:
            printed += os.read(terminal, 65536)
        except OSError:  # what a terminal says when nobody is left
            break
    os.close(terminal)
    os.waitpid(child, 0)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode("utf-8", "replace"))
