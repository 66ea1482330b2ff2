"""Where recordings are written: bounds, torn ends, what a failure costs."""

from datetime import UTC, datetime
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from msgspec.structs import replace

from nri_plugin.core.engine import decide
from nri_plugin.model.errors import HostError
from nri_plugin.model.state import State
from nri_plugin.recording.file import (
    CURRENT,
    PREVIOUS,
    BoundedRecording,
    RecordingFile,
    Situation,
    line_of,
    outcome_of,
)
from nri_plugin.recording.reader import read
from nri_plugin.wire.nri.events import CreateContainer, RemovePodSandbox, RunPodSandbox, Synchronize
from tests.builders import container, machine, node, pod

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NODE = node(machine())
LIMIT = 32 << 10


class Writer:
    """Decides events and writes them."""

    def __init__(self, file: RecordingFile, state: State | None = None) -> None:
        self.file, self.state, self.count = file, state or State(), 0

    def happen(self, *events: object) -> None:
        for event in events:
            decision = decide(NODE, self.state, event)  # type: ignore[arg-type]
            line = line_of(event, NOW, "", outcome_of(decision, str(decision.refusal or "")))  # type: ignore[arg-type]
            before, self.state = self.state, decision.state
            self.file.append(line, Situation(NODE, before, NOW))
            self.count += 1

    def pod(self, name: str) -> None:
        one = pod(name, cpu=1)
        self.happen(RunPodSandbox(one), CreateContainer(one, container(one, cpu=1)), RemovePodSandbox(one))


def test_two_segments_stay_within_the_limit_and_tell_the_latest(tmp_path: Path) -> None:
    writer = Writer(BoundedRecording(str(tmp_path / "h"), LIMIT))
    for number in range(100):
        writer.pod(f"p{number}")
    kept = sorted(path.name for path in (tmp_path / "h").iterdir())
    assert kept == [CURRENT, PREVIOUS]
    assert sum(path.stat().st_size for path in (tmp_path / "h").iterdir()) <= LIMIT
    recording = read(str(tmp_path / "h"))
    moments = list(recording.moments())
    assert recording.problems == []
    assert moments[-1].event.pod.name == "p99"  # type: ignore[union-attr]
    assert moments[-1].state_after == writer.state
    assert 20 < len(moments) < writer.count
    assert {entry.why for entry in recording.entries() if entry.why} == {"full"}


def test_another_life_goes_on_in_the_same_segment(tmp_path: Path) -> None:
    for name in ("p1", "p2"):
        writer = Writer(BoundedRecording(str(tmp_path), LIMIT))
        writer.pod(name)
        writer.file.close()
    recording = read(str(tmp_path))
    assert len(list(recording.moments())) == 6
    assert [entry.why for entry in recording.entries() if entry.why] == ["start", "start"]


def test_a_torn_end_is_ended_before_anything_follows(tmp_path: Path) -> None:
    path = tmp_path / "tape"
    first = Writer(RecordingFile(str(path)))
    first.pod("p1")
    path.write_bytes(path.read_bytes()[:-5])
    second = Writer(RecordingFile(str(path)))
    second.pod("p2")
    recording = read(str(path))
    assert len(list(recording.moments())) == 2 + 3
    assert len(recording.problems) == 1


def test_after_lost_lines_it_begins_anew(tmp_path: Path) -> None:
    writer = Writer(RecordingFile(str(tmp_path / "tape")))
    writer.pod("p1")
    writer.file.lose()
    writer.pod("p2")
    recording = read(str(tmp_path / "tape"))
    assert [entry.why for entry in recording.entries() if entry.why] == ["start", "gap"]


def test_a_directory_that_went_away_costs_one_line(tmp_path: Path) -> None:
    history = tmp_path / "state" / "h"
    (tmp_path / "state").mkdir()
    writer = Writer(BoundedRecording(str(history), LIMIT))
    writer.pod("p1")
    for path in history.iterdir():
        path.unlink()
    history.rmdir()
    (tmp_path / "state").rename(tmp_path / "moved")
    writer.file.lose()
    with pytest.raises(HostError, match="cannot be written: No such file"):
        writer.pod("p2")
    (tmp_path / "moved").rename(tmp_path / "state")
    writer.pod("p3")
    assert len(list(read(str(history)).moments())) == 3


def test_a_limit_too_small_for_what_is_allocated_grows_with_it(tmp_path: Path) -> None:
    writer = Writer(BoundedRecording(str(tmp_path), 1 << 10))
    for number in range(20):
        writer.pod(f"p{number}")
    recording = read(str(tmp_path))
    assert list(recording.moments())[-1].state_after == writer.state
    assert recording.problems == []


def full_node(pods: int, containers: int) -> Synchronize:
    """What a runtime lists on it; ids and uids are as long as real ones, and as random."""
    random = Random(1)
    sandboxes, inside = [], []
    for _ in range(pods):
        one = replace(
            pod(str(UUID(int=random.getrandbits(128))), "Burstable"), id=f"{random.getrandbits(256):064x}"
        )
        sandboxes.append(one)
        for number in range(containers):
            made = container(one, f"c{number}", cpu=0.5, cpus="0,9-16,25-31,64-127")
            inside.append(
                replace(
                    made, id=f"{random.getrandbits(256):064x}", cgroups_path=f"{one.cgroup_parent}/{made.id}"
                )
            )
    return Synchronize(tuple(sandboxes), tuple(inside))


@pytest.mark.parametrize(("pods", "limit", "at_most"), [(600, 4 << 20, 4 << 20), (2000, 4 << 20, 9 << 20)])
def test_a_full_node_has_a_history_with_the_default_limit(
    tmp_path: Path, pods: int, limit: int, at_most: int
) -> None:
    writer = Writer(BoundedRecording(str(tmp_path), limit))
    writer.happen(full_node(pods, 5))
    writer.file.lose()
    for number in range(20):
        writer.pod(f"p{number}")
    writer.file.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= at_most
    recording = read(str(tmp_path))
    entries = list(recording.entries())
    assert recording.problems == []
    assert sum(1 for entry in entries if entry.event is not None) >= 60
    begun = next(entry.state for entry in reversed(entries) if entry.state is not None)
    assert len(begun.containers) >= pods * 5


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    (tmp_path / "tape").symlink_to(tmp_path / "secret")
    with pytest.raises(HostError, match="cannot be written"):
        RecordingFile(str(tmp_path / "tape")).check()


def test_an_older_recording_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "tape"
    path.touch(mode=0o644)
    file = RecordingFile(str(path))
    file.check()
    file.close()
    assert path.stat().st_mode & 0o777 == 0o600
