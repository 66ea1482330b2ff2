import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from nri_plugin.agent.serving.checkpoint_saver import CheckpointWriter
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State

LONG = 60.0
"""Seconds that no test waits for: a save that should succeed has this long."""


def state(number: int) -> State:
    return State(allocations={f"p{number}/c": Allocation(CPUSet.of(number))})


class StallingFile:
    """A checkpoint file on a disk that answers only while `answers` is set."""

    path = "/var/lib/nri-pin/state.json"

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.begun = threading.Event()
        self.saved: list[State] = []
        self.failure: CheckpointError | None = None

    def is_intact(self) -> bool:
        return True

    def compact(self) -> None: ...

    def close(self) -> None: ...

    def append(self, state: State) -> None:
        self.begun.set()
        self.answers.wait(LONG)
        if self.failure is not None:
            raise self.failure
        self.saved.append(state)


@contextmanager
def opened(file: CheckpointFile, saved: State | None = None) -> Iterator[CheckpointWriter]:
    writer = CheckpointWriter(file, saved)
    try:
        yield writer
    finally:
        writer.close(timeout_s=5)


@pytest.fixture
def disk() -> StallingFile:
    return StallingFile()


@pytest.fixture
def writer(disk: StallingFile) -> Iterator[CheckpointWriter]:
    with opened(cast("CheckpointFile", disk), state(0)) as open_writer:
        yield open_writer
        disk.answers.set()


def stall(disk: StallingFile, writer: CheckpointWriter, refused: State) -> None:
    """Let a save begin, stall, and run out of time."""
    disk.answers.clear()
    disk.begun.clear()
    with pytest.raises(CheckpointError, match="not on disk in time"):
        writer.save(refused, timeout_s=0)
    disk.begun.wait(LONG)


def test_state_is_on_disk_when_save_returns(disk: StallingFile, writer: CheckpointWriter) -> None:
    writer.save(state(1), LONG)
    assert disk.saved == [state(1)]


def test_states_are_saved_in_order(disk: StallingFile, writer: CheckpointWriter) -> None:
    for number in (1, 2, 3):
        writer.save(state(number), LONG)
    assert disk.saved == [state(1), state(2), state(3)]


def test_failure_of_the_disk_is_the_savers_error(disk: StallingFile, writer: CheckpointWriter) -> None:
    disk.failure = CheckpointError("state.json", "cannot be saved: No space left on device")
    with pytest.raises(CheckpointError, match="No space left"):
        writer.save(state(1), LONG)
    disk.failure = None
    writer.save(state(2), LONG)
    assert disk.saved == [state(2)]


def test_refused_state_does_not_stay_on_a_disk_that_answers_late(
    disk: StallingFile, writer: CheckpointWriter
) -> None:
    writer.save(state(1), LONG)
    stall(disk, writer, state(2))
    disk.answers.set()
    writer.close(LONG)
    assert disk.saved[-1] == state(1)


def test_state_of_before_is_restored_when_the_first_save_of_all_is_late(
    disk: StallingFile, writer: CheckpointWriter
) -> None:
    stall(disk, writer, state(2))
    disk.answers.set()
    writer.close(LONG)
    assert disk.saved[-1] == state(0)


def test_next_save_replaces_the_one_that_was_refused(disk: StallingFile, writer: CheckpointWriter) -> None:
    stall(disk, writer, state(1))
    disk.answers.set()
    writer.save(state(2), LONG)
    assert disk.saved[-1] == state(2)
    writer.close(LONG)
    assert disk.saved[-1] == state(2)


def test_real_file_holds_what_was_saved(tmp_path: Path) -> None:
    file = CheckpointFile(str(tmp_path / "nri-pin"), durable=True)
    with opened(file) as writer:
        writer.save(state(1), LONG)
        assert writer.path == file.path
        assert CheckpointFile(str(tmp_path / "nri-pin")).load().state == state(1)


def test_a_mistake_in_a_save_is_an_error_of_that_save_and_not_the_end_of_all(disk: StallingFile):
    with opened(cast("CheckpointFile", disk)) as writer:
        disk.failure = cast("CheckpointError", RuntimeError("a bug"))
        with pytest.raises(CheckpointError, match="internal error: RuntimeError: a bug"):
            writer.save(state(1), LONG)
        disk.failure = None
        writer.save(state(2), LONG)
    assert disk.saved == [state(2)]
