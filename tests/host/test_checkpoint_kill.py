"""A process that saves without pause is killed, again and again; what it leaves must always load."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.checkpoint.file import FILE_NAME, CheckpointFile, Origin, read_checkpoint
from nri_plugin.model.sets import CPUSet

ROUNDS = 12
SAVER = Path(__file__).with_name("checkpoint_saver.py")
REPOSITORY = Path(__file__).parents[2]


def kill_after(directory: Path, saves: int, *, durable: bool, way: str = "replace") -> int:
    """Let the saver work until it has reported `saves` saves, kill it; returns the last one it reported."""
    command = [sys.executable, str(SAVER), str(directory), "durable" if durable else "fast", way]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as saver:
        assert saver.stdout is not None
        for _ in range(saves):
            last = saver.stdout.readline()
            assert last, "the saver ended before it was killed"
        saver.send_signal(signal.SIGKILL)
        rest = saver.stdout.read().splitlines()
    assert saver.returncode == -signal.SIGKILL
    return int(next((line for line in reversed(rest) if line.isdigit()), last))


@pytest.mark.parametrize("way", ["replace", "append"])
@pytest.mark.parametrize("durable", [False, True], ids=["fast", "durable"])
def test_checkpoint_loads_after_every_kill_and_holds_every_save_that_returned(
    tmp_path: Path, durable: bool, way: str
) -> None:
    for number in range(ROUNDS):
        reported = kill_after(tmp_path, 1 + 7 * number, durable=durable, way=way)
        found = CheckpointFile(str(tmp_path)).load()
        assert found.origin is Origin.CURRENT, found.reason
        assert found.state is not None
        checkpoint = read_checkpoint(str(tmp_path / FILE_NAME))
        assert checkpoint is not None
        # The report may have been cut off by the kill: the file is never behind it.
        assert checkpoint.generation >= reported
        assert found.state.allocations["p/c"].cpus == CPUSet.of(checkpoint.generation % 512)


def test_kills_leave_no_more_than_the_next_save_removes(tmp_path: Path) -> None:
    for number in range(4):
        kill_after(tmp_path, 1 + number, durable=False)
    file = CheckpointFile(str(tmp_path), durable=False)
    state = file.load().state
    assert state is not None
    file.save(state)
    file.save(state)
    assert sorted(os.listdir(tmp_path)) == [FILE_NAME, f"{FILE_NAME}.previous"]
