"""What the agent's process keeps of its life: bounded beside the checkpoint, whole where somebody asks for it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.recording.reader import read
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.events import CreateContainer
from tests.agent_process import Process, Site, config_text
from tests.builders import container, pod

POD = pod("exclusive", cpu=2)
HUGE = pod("huge", cpu=99)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def live(site: Site, *words: str) -> Process:
    """A start, an admitted and a refused container, an orderly end."""
    process = site.start(*words)
    peer = site.accept()
    peer.synchronize()
    peer.ask(nri.RunPodSandbox(POD))
    peer.ask(CreateContainer(POD, container(POD, cpu=2)))
    peer.ask(CreateContainer(HUGE, container(HUGE, cpu=99)))
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    return process


def test_every_decision_is_kept_beside_the_checkpoint_and_in_the_file_asked_for(site: Site) -> None:
    live(site, "--record", str(site.folder / "day.jsonl"))
    for path in (site.folder / "state", site.folder / "day.jsonl"):
        recording = read(str(path))
        moments = list(recording.moments())
        assert [type(moment.event).__name__ for moment in moments] == [
            "Synchronize",
            "RunPodSandbox",
            "CreateContainer",
            "CreateContainer",
        ]
        assert [moment.outcome.reason for moment in moments[2:]] == ["", "UnexpectedAdmissionError"]
        assert moments[2].outcome.cpus == "2-3"
        assert str(moments[3].decision.refusal) == moments[3].outcome.refusal
        assert all(moment.outcome.took_us for moment in moments)
        assert recording.problems == []


def test_nobody_else_can_read_it(site: Site) -> None:
    live(site, "--record", str(site.folder / "day.jsonl"))
    history = site.folder / "state" / "history"
    assert history.stat().st_mode & 0o777 == 0o700
    for path in (history / "recording.jsonl", site.folder / "day.jsonl"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_restart_and_a_reload_continue_it(site: Site) -> None:
    live(site)
    process = site.start()
    peer = site.accept()
    peer.synchronize()
    site.config.write_text(config_text(site.folder, topologyManagerPolicy="restricted"))
    process.signal(signal.SIGHUP)
    process.wait_for_line("configuration reloaded")
    peer.ask(nri.RunPodSandbox(POD))
    process.signal(signal.SIGTERM)
    process.wait()
    entries = list(read(str(site.folder / "state")).entries())
    assert [entry.why for entry in entries if entry.why] == ["start", "start"]
    (reloaded,) = [entry for entry in entries if entry.node and not entry.why]
    assert reloaded.node
    assert reloaded.node.options.topology_manager_policy == "restricted"
    moments = list(read(str(site.folder / "state")).moments())
    assert str(moments[4].state_before.exclusive) == "2-3"
    assert [str(moment.node.options.topology_manager_policy) for moment in moments[-2:]] == [
        "none",
        "restricted",
    ]


def test_history_of_no_bytes_is_none(site: Site) -> None:
    site.config.write_text(config_text(site.folder, historyBytes="0"))
    live(site)
    assert not (site.folder / "state" / "history").exists()


def test_a_history_that_cannot_be_kept_is_said_and_hurts_nobody(site: Site) -> None:
    (site.folder / "state").mkdir()
    (site.folder / "state" / "history").write_text("in the way")
    process = live(site)
    said = [line for line in process.heard if "history is not kept" in line]
    assert len(said) == 1
    assert "placements are not affected" in said[0]
    assert '"cpus":"2-3"' in site.checkpoint()


def test_a_file_that_holds_something_else_is_refused_at_the_start(site: Site) -> None:
    (site.folder / "notes").write_text("to do")
    (site.folder / "notes").chmod(0o644)
    process = site.start("--record", str(site.folder / "notes"))
    assert process.wait() == 2
    assert "holds something else than a recording" in "".join(process.heard)
    assert (site.folder / "notes").read_text() == "to do"
    assert (site.folder / "notes").stat().st_mode & 0o777 == 0o644
