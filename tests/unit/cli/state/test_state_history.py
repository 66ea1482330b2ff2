"""`nri-pin state history`: what was decided for whom."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer

import pytest
from click.testing import CliRunner, Result

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.state.history import KINDS
from nri_plugin.cli.state.state import command
from nri_plugin.core.decision import Decision
from nri_plugin.core.drift import CpusetsObserved, Observed, Target
from nri_plugin.core.engine import decide
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.recording import reader
from nri_plugin.recording.file import head_lines, line_of, node_line, outcome_of
from nri_plugin.recording.rows import Event
from nri_plugin.wire.nri import events as nri
from tests.builders import container, cpu_resources, pod
from tests.builders import node as a_node
from tests.unit.cli.explain.test_explain_pods import LEVEL, ROWS, WHOLE, created

NODE = a_node()
PATIENCE_S = 30.0
START = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
DB, WEB, BIG = pod("db-0", cpu=2, namespace="shop"), pod("web-0", "Burstable"), pod("big-0", cpu=50)
RECORD = container(DB, "db", cpu=2)


def lived(events: Sequence[Event], at: datetime = START, state: State | None = None) -> tuple[bytes, State]:
    """The recording of a life, an event a minute."""
    state = state or State()
    text = head_lines(NODE, state, at)
    for number, event in enumerate(events, 1):
        decision = decide(NODE, state, event)
        refusal = str(decision.refusal or "")
        text += line_of(event, at + timedelta(minutes=number), f"op{number}", outcome_of(decision, refusal))
        state = state if refusal else decision.state
    return text, state


LIFE: list[Event] = [
    nri.RunPodSandbox(DB),
    nri.CreateContainer(DB, RECORD),
    nri.PostStartContainer(DB, RECORD),
    nri.CreateContainer(WEB, container(WEB, "web", cpu=0.5)),
    nri.CreateContainer(BIG, container(BIG, "big", cpu=50)),
    nri.UpdateContainer(DB, RECORD, cpu_resources(4)),
    nri.PostUpdateContainer(DB, RECORD),
    nri.StopPodSandbox(DB),
]


@contextmanager
def ended_after(process: "subprocess.Popen[bytes]", seconds: float) -> Iterator[None]:
    """Only a test that fails waits so long."""
    timer = Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Site:
    """A state directory with a history."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "history").mkdir(parents=True)
        self.file = folder / "history/recording.jsonl"

    def history(self, *words: str) -> Result:
        return CliRunner().invoke(command, ["history", "--state-dir", str(self.folder), *words])

    def told(self, *words: str) -> list[tuple[str, str, str]]:
        lines = self.history("-o", "json", "-n", "0", *words).output.splitlines()
        rows = [json.loads(line) for line in lines]
        return [(row["what"], row["name"], row["text"]) for row in rows if row["what"] != "checkpoint"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "state")
    made.file.write_bytes(lived(LIFE)[0])
    return made


def test_entries_fit_into_a_narrow_terminal(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = site.history("--what", "refused").output.partition("\n\n")[0].splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 60


def test_each_decision_is_one_entry_and_what_decides_nothing_is_none(site: Site) -> None:
    told = site.told()
    assert [(what, name) for what, name, _ in told] == [
        ("started", ""),
        ("placed", "shop/db-0/db"),
        ("shared", "default/web-0/web"),
        ("refused", "default/big-0/big"),
        ("resizing", "shop/db-0/db"),
        ("resized", "shop/db-0/db"),
        ("released", "shop/db-0/db"),
    ]
    assert told[1][2] == "CPUs 2-3"
    assert "requested=50, available=12" in told[3][2]
    assert told[4][2] == "CPUs 2-3 -> 2-5"
    assert told[6][2] == "CPUs 2-5"


def test_the_creation_that_placed_a_whole_pod_tells_which_containers_are_not_created(tmp_path: Path) -> None:
    site = Site(tmp_path / "state")
    life = [created("mesh", ROWS, WHOLE), created("db", ROWS, WHOLE)]
    text, state = head_lines(LEVEL, State(), START), State()
    for event in life:
        decision = decide(LEVEL, state, event)
        text += line_of(event, START, "op", outcome_of(decision, ""))
        state = decision.state
    site.file.write_bytes(text)
    assert [row for row in site.told() if row[0] == "placed"] == [
        ("placed", "default/p1/mesh", "CPUs 6-7, pod shared pool"),
        ("placed", "default/p1", "CPUs 2-7, of the pod as a whole"),
        ("placed", "default/p1/db", "CPUs 2-5, allocated, not created"),
        ("placed", "default/p1/log", "CPUs 6-7, pod shared pool, allocated, not created"),
        ("placed", "default/p1/db", "CPUs 2-5"),
    ]


def test_a_restart_and_what_the_agent_still_knew_are_told(site: Site) -> None:
    first, state = lived(LIFE[:3])
    second, _ = lived([nri.Synchronize((DB,), (RECORD,))], START + timedelta(hours=1), state)
    site.file.write_bytes(first + second)
    assert [(what, text) for what, _, text in site.told()][-2:] == [
        ("started", "the agent, with 1 allocations and 1 containers"),
        ("synchronized", "1 pods and 1 containers in the runtime"),
    ]


def test_an_event_that_makes_no_sense_costs_the_rest_and_is_named(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confused(*_: object) -> Decision:
        raise KeyError("what")

    monkeypatch.setattr(reader, "decide", confused)
    result = site.history()
    assert result.exit_code == 0
    assert "started" in result.stdout
    assert "db-0" not in result.stdout
    assert "cannot be decided again: KeyError" in result.stderr


def test_drift_tells_what_was_found_and_its_cause(site: Site) -> None:
    text, state = lived(LIFE[:3])
    (record,) = state.containers.values()
    seen = Observed(Target(record.cgroup, record.id), CPUSet.parse("0-15"), CPUSet.parse("0-15"))
    site.file.write_bytes(text + lived([CpusetsObserved((seen,))], START + timedelta(hours=1), state)[0])
    assert site.told()[-1] == ("drift", "shop/db-0/db", "found CPUs 0-15 (all-cpus), put right")


def test_another_node_is_told_by_its_difference(site: Site) -> None:
    site.file.write_bytes(
        lived(LIFE[:1])[0] + node_line(a_node(reserved="0-3"), START + timedelta(minutes=9))
    )
    assert site.told()[-1] == ("machine", "", "another one: reserved CPUs: 0-1 -> 0-3")


def test_both_segments_are_told_and_a_full_one_is_no_restart(site: Site) -> None:
    first, state = lived(LIFE[:3])
    (site.folder / "history/recording.previous.jsonl").write_bytes(first)
    second, _ = lived(LIFE[3:4], START + timedelta(hours=1), state)
    site.file.write_bytes(second.replace(b'"why":"start"', b'"why":"full"', 1))
    assert [what for what, _, _ in site.told()] == ["started", "placed", "shared"]


FILTERS: dict[str, tuple[list[str], list[str]]] = {
    "a container": (["-c", "web"], ["shared"]),
    "a container by its full name": (["-c", "shop/db-*/db"], ["placed", "resizing", "resized", "released"]),
    "a kind": (["--what", "refused"], ["refused"]),
    "two kinds": (["--what", "refused", "--what", "placed"], ["placed", "refused"]),
    "the last minutes of two hours": (["--since", "@age"], ["refused", "resizing", "resized", "released"]),
    "since a time": (["--since", (START + timedelta(minutes=7)).isoformat()], ["resized", "released"]),
    "nobody": (["-c", "nobody"], []),
}


@pytest.mark.parametrize(("words", "kinds"), FILTERS.values(), ids=FILTERS)
def test_only_what_is_asked_for_is_told(site: Site, words: list[str], kinds: list[str]) -> None:
    age_s = (
        datetime.now(UTC) - START
    ).total_seconds() - 4.5 * 60  # of this moment: other tests take their time
    words = [word.replace("@age", f"{age_s:.0f}s") for word in words]
    assert [what for what, _, _ in site.told(*words)] == kinds
    assert site.history(*words).exit_code == 0


def test_the_last_ones_are_told_and_how_many_came_before(site: Site) -> None:
    lines = site.history("-n", "2").output.splitlines()
    assert lines[0] == "5 earlier ones; -n 0 shows all"
    assert [line.split()[2] for line in lines[1:]] == ["resized", "released"]


def test_checkpoints_are_listed_with_times_generations_and_checksums(site: Site) -> None:
    file = CheckpointFile(str(site.folder), NODE, durable=False)
    file.save(State())
    file.save(State())
    (site.folder / "state.json.damaged-1").write_text("what was this")
    os.utime(site.folder / "state.json.damaged-1", (0, 0))
    output = site.history("-n", "1").output
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line.startswith("state.json")}
    assert rows["state.json"][3] == "2"
    assert rows["state.json.previous"][3] == "1"
    text = (site.folder / "state.json").read_text()
    assert rows["state.json"][5] == text.rpartition("crc32:")[2][:8]
    assert "state.json.damaged-1: cannot be used: it does not begin as" in output
    told = [json.loads(line) for line in site.history("-o", "json").output.splitlines()]
    assert [row["verdict"] for row in told if row["what"] == "checkpoint"][:2] == ["sound", "sound"]


def test_lines_fit_the_terminal(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, site.history().output.splitlines())) <= 80


def test_a_torn_last_line_costs_nothing_but_itself(site: Site) -> None:
    site.file.write_bytes(site.file.read_bytes()[:-20])
    result = site.history()
    assert result.exit_code == 0
    assert "released" not in result.stdout
    assert "is torn" in result.stderr


def test_without_a_recording_the_checkpoints_are_still_told(tmp_path: Path) -> None:
    CheckpointFile(str(tmp_path), NODE, durable=False).save(State())
    result = CliRunner().invoke(command, ["history", "--state-dir", str(tmp_path)])
    assert result.exit_code == 0
    assert "state.json" in result.stdout
    assert "history" in result.stderr


WRONG: dict[str, tuple[list[str], int, str]] = {
    "no such directory": (["--state-dir", "@/nowhere"], 2, "name the agent's --state-dir"),
    "nothing in it": (["--state-dir", "@"], 1, "history: is not there"),
    "no recording": (["--recording", "@/file"], 1, "is no head of a recording"),
    "no time": (["--state-dir", "@", "--since", "soon"], 2, "--since takes an age"),
    "before all time": (["--state-dir", "@", "--since", "99999999999999d"], 2, "--since takes an age"),
    "no such thing": (
        ["--state-dir", "@", "--what", "refuse"],
        2,
        "'refuse' is not one of 'placed', 'shared'",
    ),
}


@pytest.mark.parametrize(("words", "code", "text"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_told_is_said(tmp_path: Path, words: list[str], code: int, text: str) -> None:
    (tmp_path / "file").write_text("nothing\n")
    words = [word.replace("@", str(tmp_path)) for word in words]
    result = CliRunner().invoke(command, ["history", *words])
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_nothing_found_is_said(site: Site) -> None:
    result = site.history("--container", "nobody")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "none of the 7 entries matches" in result.stderr


def test_what_happens_is_of_a_known_kind(site: Site) -> None:
    told = [json.loads(line)["what"] for line in site.history("-o", "json", "-n", "0").stdout.splitlines()]
    assert set(told) <= {*KINDS, "checkpoint"}


def test_it_follows_what_happens(site: Site) -> None:
    words = ["state", "history", "--state-dir", str(site.folder), "--follow", "-o", "json"]
    text, state = lived(LIFE)
    with (
        subprocess.Popen([sys.executable, "-m", "nri_plugin", *words], stdout=subprocess.PIPE) as process,
        ended_after(process, PATIENCE_S),
    ):
        assert process.stdout is not None
        before = [json.loads(process.stdout.readline())["what"] for _ in range(7)]
        assert before[-1] == "released"
        again = lived(
            [nri.RunPodSandbox(DB), nri.CreateContainer(DB, RECORD)], START + timedelta(hours=1), state
        )
        site.file.write_bytes(text + again[0])
        assert json.loads(process.stdout.readline())["what"] == "started"
        assert json.loads(process.stdout.readline())["text"] == "CPUs 2-3"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
