"""Short lives of every seed a minute has time for, and that the judge would notice."""

from pathlib import Path

import pytest

from nri_plugin.agent.cpusets import CpusetWriter
from nri_plugin.agent.repair.watches import LostRemovals
from nri_plugin.agent.serving.checkpoint_saver import CheckpointSaver
from nri_plugin.agent.serving.handler import Handler
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.core import drift, engine, pool, synchronize
from nri_plugin.recording.reader import changes, read
from tests.chaos.__main__ import report
from tests.chaos.churn import churn
from tests.chaos.faults import Fault
from tests.chaos.life import Life, Tally


def test_nothing_is_lost_moved_or_shared_whatever_fails() -> None:
    tally = Tally()
    missing = set(Fault)
    for seed in range(60):
        Life(seed, tally).play(250)
        rare = {Fault.CGROUP_ERROR, Fault.STALL, Fault.NO_THREAD}
        missing = {fault for fault in Fault if not tally.injected[fault]} - rare
        if seed >= 12 and not missing:
            break
    assert tally.broken == {}, report(tally)
    assert tally.unsaved > 0
    assert not missing


def test_what_it_recorded_is_decided_the_same_again(tmp_path: Path) -> None:
    for seed in range(6):
        path = str(tmp_path / f"life-{seed}")
        Life(seed, Tally(), record=path).play(200)
        recording, former, count = read(path), None, 0
        for moment in recording.moments():
            assert [*changes(moment, former)] == []
            former, count = moment, count + 1
        assert recording.problems == []
        assert count > 150


def test_an_agent_that_forgets_is_found_out() -> None:
    tally = Tally()
    for seed in range(4):
        Life(seed, tally, forgets=True).play(200)
    assert {"lost", "overlap"} <= set(tally.broken)
    assert tally.stories


def _forget(*_arguments: object, **_named: object) -> tuple[()]:
    """Something that an agent leaves out."""
    return ()


@pytest.mark.parametrize(
    ("owner", "left_out", "noticed"),
    [
        (CpusetWriter, "undo", "stale"),
        (CpusetWriter, "apply", "stale"),
        (CheckpointFile, "_save", "unsaved"),
        (CheckpointFile, "_keep_previous", "unsaved"),
        (engine, "own_write", "stale"),
        (pool, "_floor", "overlap"),
        (CheckpointSaver, "look", "unsaved"),
        (drift, "_off_exclusive", "overlap"),
    ],
    ids=[
        "what was half written is not put back",
        "nothing is written before the answer",
        "nothing is saved",
        "no generation is kept",
        "a start is not looked at",
        "no floor for those born unseen",
        "nobody looks whether the checkpoint is still there",
        "unknown containers are left where they are",
    ],
)
def test_an_agent_that_leaves_something_out_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: object, left_out: str, noticed: str
) -> None:
    monkeypatch.setattr(owner, left_out, _forget)
    tally = Tally()
    for seed in range(90):
        Life(seed, tally).play(250)
        if tally.broken[noticed]:
            return
    pytest.fail(report(tally))


def test_an_older_checkpoint_that_wins_over_what_runs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synchronize, "_without_outdated", lambda _node, state, _unseen: state)
    tally = Tally()
    for seed in (220, *range(400)):  # the first is one that shows it
        Life(seed, tally).play(250)
        if tally.broken["moved"]:
            return
    pytest.fail(report(tally))


def test_nothing_stays_of_pods_whose_removal_is_not_reported() -> None:
    lines, broken = churn(1, 3_000)
    assert broken == 0, "\n".join(lines)


def test_records_that_stay_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LostRemovals, "__call__", lambda _self, _now: False)
    _, broken = churn(1, 3_000)
    assert broken


def test_memory_that_grows_with_the_events_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    account = Handler.account
    monkeypatch.setattr(engine, "seen", seen, raising=False)
    monkeypatch.setattr(
        Handler, "account", lambda self: seen.append(f"event {len(seen):200}") or account(self)
    )
    lines, broken = churn(1, 3_000)
    assert broken, "\n".join(lines)


def test_the_report_has_a_row_for_each_fault() -> None:
    tally = Tally()
    Life(1, tally).play(50)
    rows = [line for line in report(tally).splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(Fault)
