"""The lab's report, and the results that it is made of: what counts, what is asked for again, what is damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab import code_state, quiet_report, results
from tests.e2e.lab.boots import Boot, boots, perform_boots
from tests.e2e.lab.cells import MARK, Cell
from tests.e2e.lab.lab_files import scenario_named
from tests.e2e.lab.outcome import Outcome
from tests.e2e.lab.ready import Lab
from tests.e2e.lab.report import as_html, as_markdown, write_report
from tests.e2e.lab.report_page import gather
from tests.e2e.lab.results import Result, keep, kept
from tests.e2e.lab.running import Running
from tests.e2e.lab.runs import RUNS
from tests.e2e.lab.session import column_named, limitation
from tests.e2e.lab.shell import Interrupted, LabError

ABOUT = {
    "date": "2026-01-01 00:00 UTC",
    "checkout": "abc",
    "host": "2 CPUs",
    "load": "1.0",
    "qemu": "QEMU 10",
    "accelerator": "tcg",
}
CONTAINERD = column_named("containerd-2")
NAMES = [f"s{number}" for number in range(10)]


def cell(runtime: str, passed: int = 1, failures: tuple[str, ...] = ()) -> Cell:
    return Cell("one-node", "two-agents", runtime, passed, list(failures))


def about(**values: str) -> dict[str, Any]:
    return ABOUT | {"state": code_state.state_of("one-node", "two-agents")} | values


def head(*found: Result) -> dict[str, str]:
    return dict(gather(found, {}).facts)


def asked(folder: Path) -> list[tuple[str, ...]]:
    return [boot.scenarios for boot in boots({"m": NAMES}, [CONTAINERD], folder)]


def test_the_report_shows_what_passed_failed_and_is_limited() -> None:
    cells = (
        Cell("one-node", "two-agents", "embedded", 4, seconds=1.0),
        Cell("one-node", "two-agents", "containerd-2", 3, ["a < b: seen 1"], 2.0, "no <systemd>"),
    )
    page = gather([Result(cells, ABOUT)], {"containerd 2.1.9": {"p50 ms": 2.5}})
    text, web = as_markdown(page), as_html(page)
    assert "| two agents by mistake | ok 4 / 1 s | not played | not played | FAILED 1 | not played |" in text
    assert "* FAILED one-node, two-agents, containerd-2: a < b: seen 1" in text
    assert "no &lt;systemd&gt; (containerd-2: two-agents)" in web
    assert "| p50 ms | 2.5 |" in text


def test_the_head_counts_what_was_not_played_beside_what_was() -> None:
    page = gather([Result((cell("embedded"), cell("containerd-2", 3, ("no",))), ABOUT)], {})
    every = sum(one != "-" for _, _, rows in page.tables for _, _, row in rows for one in row)
    assert dict(page.facts)["cells"] == f"{every}: 1 passed, 1 failed, {every - 2} not played"


def test_the_head_counts_cells_that_another_state_of_the_code_has_made() -> None:
    found = Result((cell("embedded"),), ABOUT), Result((cell("containerd-2"),), about())
    assert head(*found)["cells of another state of the code"].startswith("1 of 2;")


def test_loads_are_compared_as_numbers() -> None:
    found = [Result((cell("embedded"),), ABOUT | {"load": load}) for load in ("9.9", "10.3", "1.8")]
    assert "load 1.8 to 10.3" in head(*found)["host"]


def test_a_failure_of_the_embedded_runtime_outlives_a_later_pass_as_another_runtime() -> None:
    failed = Result((cell("embedded", failures=("wrong",)),), about(column="containerd-1.7"))
    passed = Result((cell("embedded"),), about(column="containerd-2", date="2026-01-02"))
    text = as_markdown(gather([failed, passed], {}))
    assert "* FAILED one-node, two-agents, embedded: as containerd-1.7: wrong" in text


def test_a_failure_of_older_code_does_not_outlive_a_pass_of_today_s() -> None:
    failed = Result((cell("embedded", failures=("wrong",)),), ABOUT)
    assert "FAILED" not in as_markdown(gather([failed, Result((cell("embedded"),), about())], {}))


def test_a_limitation_of_many_cells_is_said_once() -> None:
    names = ("two-agents", "runtime-restart")
    shown = [Cell("one-node", name, "embedded", 1, limitation="no kernel") for name in names]
    limited = (*shown, Cell("one-node", "two-agents", "containerd-2", 1, limitation="no kernel"))
    remarks = gather([Result(limited, about())], {}).remarks
    assert remarks[0] == "no kernel (containerd-2: two-agents; embedded: runtime-restart, two-agents)"


@pytest.mark.parametrize(
    ("scenario", "runtime", "said"),
    [
        ("drift-by-systemd", "containerd-2", "without systemd"),
        ("drift-by-systemd", "containerd-2-systemd", ""),
        ("drift-by-systemd", "containerd-2-systemd-crun", "below crun's scope"),
        ("drift-by-a-person", "containerd-2-systemd-crun", ""),
    ],
)
def test_a_drift_that_a_runtime_cannot_show_limits_its_cell(scenario: str, runtime: str, said: str) -> None:
    found = limitation(scenario_named(scenario)[1], column_named(runtime))
    assert said in found
    assert bool(said) == bool(found)


def test_what_was_told_in_words_is_in_the_report() -> None:
    shown = Cell("one-node", "two-agents", "containerd-2", 1, figures={"spinners ran on": "2-3 | 4"})
    text = as_markdown(gather([Result((shown,), about())], {}))
    assert "| two-agents | containerd-2 | spinners ran on | 2-3 \\| 4 |" in text


def test_what_passed_before_is_not_booted_again(tmp_path: Path) -> None:
    cells = [Cell("m", "s1", "containerd-2", 1), Cell("m", "s2", "containerd-2", 1, ["it broke"])]
    keep(tmp_path, "m", "containerd-2", [*cells, Cell("m", "s3", "containerd-2", 0)], "tcg")
    (first, second) = boots({"m": NAMES}, [CONTAINERD], None)
    assert (first.scenarios, second.scenarios) == (tuple(NAMES[:6]), tuple(NAMES[6:]))
    assert asked(tmp_path) == [("s0", *NAMES[2:7]), tuple(NAMES[7:])]


def test_what_another_state_of_the_code_passed_is_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, "m", "containerd-2", [Cell("m", "s1", "containerd-2", 1)], "tcg")
    assert "s1" not in asked(tmp_path)[0]
    monkeypatch.setattr(results, "state_of", lambda _machine, _scenario: "another")
    assert "s1" in asked(tmp_path)[0]


def test_the_state_of_the_code_depends_on_scenario_and_machine() -> None:
    found = {
        code_state.state_of(machine, scenario)
        for machine in ("one-node", "four-nodes")
        for scenario in ("two-agents", "runtime-restart", "cpuset-rules")
    }
    assert len(found) == 6


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for text in ('{"about"', "[]", '{"cells": [{}], "about": {}}'):
        (tmp_path / "results" / "m.c.s.json").write_text(text)
        with pytest.raises(LabError, match=r"m\.c\.s\.json is damaged"):
            kept(tmp_path)


def test_what_other_versions_have_noted_in_a_result_is_passed_over(tmp_path: Path) -> None:
    keep(tmp_path, "m", "containerd-2", [Cell("m", "s1", "containerd-2", 1)], "tcg")
    (path,) = (tmp_path / "results").glob("*.json")
    read = json.loads(path.read_text())
    read["cells"][0]["later"] = 1
    path.write_text(json.dumps(read))
    assert [found.scenario for result in kept(tmp_path) for found in result.cells] == ["s1"]


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()
    with pytest.raises(LabError, match=r"report\.md could not be written"):
        write_report([Result((cell("embedded"),), ABOUT)], tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_what_was_broken_off_replaces_no_earlier_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, "m", "containerd-2", [Cell("m", "s1", "containerd-2", 1)], "tcg")
    ours = Running()

    def broken_off(*_arguments: object) -> list[Cell]:
        ours.interrupt()
        return [Cell("m", "s1", "containerd-2", failures=["the guest ended"])]

    monkeypatch.setattr("tests.e2e.lab.boots.RUNNING", ours)
    monkeypatch.setattr("tests.e2e.lab.boots.accelerator", lambda _lab, _root: "tcg")
    monkeypatch.setattr("tests.e2e.lab.boots.session", lambda *_arguments: None)
    monkeypatch.setattr("tests.e2e.lab.boots.perform", broken_off)
    with pytest.raises(Interrupted):
        perform_boots([Boot("m", CONTAINERD, ("s1",), 1)], Lab(tmp_path, {}, {}), 1)
    assert not [found.failures for result in kept(tmp_path) for found in result.cells if found.failures]


def test_what_is_left_out_by_design_is_no_gap_and_has_its_reason() -> None:
    page = gather([Result((cell("embedded"),), ABOUT)], {})
    rows = {scenario: row for _, _, rows in page.tables for scenario, _, row in rows}
    assert rows["cpuset-rules"] == ("not played", "not played", "-", "-", "-", "-")
    assert rows["pod-scope"] == ("not played", "not played", "-", "-", "not played", "-")
    assert "-" not in rows["isolation-none"]
    assert sum(remark.startswith("left out by design: ") for remark in page.remarks) == 2


# --------------------------------------------------------------------- run d of hack/e2e

TITLES = ("d: quiet CPUs in a guest, Linux 6.1", "d: quiet CPUs in a guest, Linux 6.12")


def _hear(outcome: Outcome, kind: str, **values: object) -> None:
    outcome.hear(MARK + json.dumps({"kind": kind, **values}))


def test_a_run_keeps_scenarios_that_ended_and_its_report_shows_them(tmp_path: Path) -> None:
    played: list[Cell] = []
    outcome = Outcome(TITLES[0], tmp_path / "output.log", keep=played.append)
    _hear(outcome, "runtime", version="2.1.9", linux="6.1.0-test")
    for scenario in ("a write is undone", "another | one"):
        _hear(outcome, "begin", scenario=scenario, about="A foreign writer.")
        _hear(outcome, "fact", scenario=scenario, fact="it is", holds=scenario[0:2] == "a ", detail="seen 1")
        _hear(outcome, "figure", scenario=scenario, what="seconds", value=1.5)
        _hear(outcome, "end", scenario=scenario, seconds=12)
    _hear(outcome, "begin", scenario="broken off", about="")
    keep(tmp_path, "quiet-cpus", outcome.run, played, "tcg")
    text = quiet_report.as_markdown(kept(tmp_path), TITLES)
    assert f"* {TITLES[0]}: 6.1.0-test\n* {TITLES[1]}: not played" in text
    assert "| a write is undone | A foreign writer. | ok 1 / 12 s | - |" in text
    assert r"| another \| one | A foreign writer. | FAILED 1 | - |" in text
    assert rf"* another \| one, {TITLES[0]}: it is: seen 1" in text
    assert "| a write is undone | Linux 6.1 | seconds | 1.5 |" in text
    assert "broken off" not in text


def test_a_run_without_results_has_a_report(tmp_path: Path) -> None:
    text = quiet_report.write_quiet_report([], TITLES, tmp_path).read_text()
    assert "## Failures\n\nNone." in text


def test_a_title_is_chosen_by_whole_words() -> None:
    found = [run.title for run in RUNS if run.has_title("Linux 6.1")]
    assert found == [TITLES[0]]
