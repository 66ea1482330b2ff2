"""What hack/lab answers to words that select nothing, name nothing, or name a place that cannot be used."""

import errno
import fcntl
import json
import os
import sys
from pathlib import Path

import pytest

from tests.e2e.__main__ import locks_of
from tests.e2e.lab import __main__ as command
from tests.e2e.lab.arguments import parser, report_folder
from tests.e2e.lab.lab_files import REPORTS
from tests.e2e.lab.runs import RUNS
from tests.e2e.lab.selection import selected
from tests.e2e.lab.setting_up import MACHINE_LOCK, take_lock
from tests.e2e.lab.shell import CannotRun

EMBEDDED = "--embedded-only"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = command.main(list(words))
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param(["all", "--scenario", "nosuch"], "no scenario of the lab nosuch", id="scenario"),
        pytest.param(["all", "--machine", "nosuch"], "no machine with scenarios of the lab nosuch", id="machine"),
        pytest.param(["all", "--machine", "split-l3", "--scenario", "two-agents"], "two-agents plays on none of split-l3", id="a pair that never plays"),
        pytest.param(["run", "1 socket", "two-agents", EMBEDDED], "a description is a synthetic string", id="no description"),
        pytest.param(["run", "pack:1 nonsense:3", "two-agents", EMBEDDED], "nonsense", id="a wrong description"),
        pytest.param(["shell", "nosuch"], "no machine nosuch", id="shell"),
        pytest.param(["run", "four-nodes", "two-agents", "two-agents", EMBEDDED], "two scenarios named two-agents", id="the same twice"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused_before_anything_runs(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = told(capsys, *words)
    assert status == 2
    assert reason in said


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ([], REPORTS),
        (["--missing", "--guests", "2"], REPORTS),
        (["--scenario", "two-agents"], Path("/kept/report")),
        ([EMBEDDED], Path("/kept/report")),
        (["--runtime", "containerd-2", "--report", "/elsewhere"], Path("/elsewhere")),
    ],
)
def test_less_than_everything_does_not_replace_the_committed_report(words: list[str], place: Path) -> None:
    commands = dict.fromkeys(
        ("run", "shell", "all", "report", "record", "measure", "floor", "list"), lambda _words: 0
    )
    assert report_folder(parser(commands).parse_args(["all", "--work", "/kept", *words])) == place


def test_a_wrong_machine_and_a_wrong_scenario_are_told_together(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = told(capsys, "run", "nosuch", "norsuch", EMBEDDED)
    assert status == 2
    assert "machine nosuch" in said
    assert "scenario norsuch" in said


def test_a_scenario_that_is_no_text_is_named_by_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe")
    assert f"{path} is not text in UTF-8" in told(capsys, "run", "one-node", str(path), EMBEDDED)[1]
    path.write_text("machine: x\nstep: 1\n")
    assert f"{path}:2:1" in told(capsys, "run", "one-node", str(path), EMBEDDED)[1]


def test_the_kernel_rules_are_selected_by_their_name() -> None:
    assert selected(None, ["cpuset-rules", "two-agents"]) == {
        "cpuset-rules": [],
        "four-nodes": ["two-agents"],
    }


@pytest.mark.parametrize("option", ["--report", "--work"])
def test_a_place_that_cannot_be_made_is_told_before_anything_runs(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    words = {"--work": str(tmp_path / "work"), "--report": str(tmp_path)} | {option: str(tmp_path / "file/x")}
    status, said = told(capsys, "all", EMBEDDED, *(word for pair in words.items() for word in pair))
    assert status == 1
    assert f"nothing can be written to {tmp_path}/file/x" in said
    assert not (tmp_path / "work" / "results").exists()


def test_what_passed_is_kept_reported_and_not_asked_for_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "all",
        EMBEDDED,
        "--scenario",
        "cpuset-rules",
        "--work",
        str(tmp_path),
        "--report",
        str(tmp_path / "new"),
    ]
    assert command.main(words) == 0
    assert (tmp_path / "new" / "report.md").exists()
    capsys.readouterr()
    assert command.main([*words, "--missing"]) == 0
    assert "nothing is missing" in capsys.readouterr().out


def test_what_was_seen_is_written_into_a_new_folder(tmp_path: Path) -> None:
    file = tmp_path / "new" / "seen.json"
    assert command.main(["run", "four-nodes", "two-agents", EMBEDDED, "--json", str(file)]) == 0
    assert json.loads(file.read_text())[0]["scenario"] == "two-agents"


def test_a_machine_that_cannot_measure_says_so_before_it_asks_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot() -> None:
        raise CannotRun("it needs root")

    monkeypatch.setattr(command, "check_machine", cannot)
    monkeypatch.setattr(command, "MACHINE_LOCK", tmp_path / "absent" / "lock")
    assert told(capsys, "measure") == (77, "hack/lab: CANNOT RUN HERE, NOTHING WAS TESTED: it needs root\n")


def test_an_error_of_the_machine_is_an_answer_that_names_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_names: object, _scenarios: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/x/y")

    monkeypatch.setattr(command, "selected", full)
    assert told(capsys, "all") == (1, "hack/lab: /x/y: No space left on device\n")


def test_a_lock_names_who_holds_it_and_keeps_that_while_others_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/lab/__main__.py", "all", "--missing"])
    path = tmp_path / "lock"
    path.write_text("an earlier holder\n")
    with take_lock(path):
        with path.open("a+") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert path.read_text() == f"process {os.getpid()}: hack/lab all --missing\n"


def test_guests_leave_the_machine_to_others(tmp_path: Path) -> None:
    guests = [run for run in RUNS if run.letter == "d"]
    assert locks_of(guests, tmp_path) == [tmp_path / "lock"]
    direct = [run for run in RUNS if run.letter == "a"]
    assert locks_of([*guests, *direct], tmp_path) == [MACHINE_LOCK, tmp_path / "lock"]


def test_damaged_figures_are_told_with_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--work", str(tmp_path), "--report", str(tmp_path)]
    assert command.main(["all", EMBEDDED, "--scenario", "cpuset-rules", *words]) == 0
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "sid.json").write_text("{")
    assert f"a file in {tmp_path}/figures is damaged" in told(capsys, "report", *words)[1]
