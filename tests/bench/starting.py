"""How long a person waits before anything happens: the start of commands, against that of the bare interpreter.

Everything is started as a user starts it, by the script that pip made; the rounds of all are mixed, so that whatever
else the machine does falls on all of them.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.core.requests import QOSClass
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from tests.bench.figures import Figure, at, milliseconds
from tests.builders import machine

MOST_ROUNDS = 41
CONTAINERS = 50
SCRIPT = str(Path(sys.executable).with_name("nri-pin"))
BARE = "interpreter alone: python -I -c pass"


def figures(rounds: int) -> Iterator[Figure]:
    """Wall time of each start, and how many bare interpreters that is."""
    with tempfile.TemporaryDirectory(prefix="nri-pin-bench-") as folder:
        _fill(folder)
        took = _mixed(_commands(folder), min(rounds, MOST_ROUNDS))
    bare = at(took[BARE], 0.5)
    for what, times in took.items():
        yield milliseconds(what, times)
        if what != BARE:
            yield Figure(f"{what}: interpreter starts", "x", at(times, 0.5) / bare, None, len(times))


def _commands(folder: str) -> dict[str, Sequence[str]]:
    return {
        BARE: [sys.executable, "-I", "-c", "pass"],
        "nri-pin --help": [SCRIPT, "--help"],
        f"nri-pin state show, {CONTAINERS} containers": [SCRIPT, "state", "show", "--state-dir", folder],
        "nri-pin doctor": [SCRIPT, "doctor"],
        "nri-pin topology --machine gb200-34-numa": [SCRIPT, "topology", "--machine", "gb200-34-numa"],
    }


def _mixed(commands: dict[str, Sequence[str]], rounds: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {what: [] for what in commands}
    for words in commands.values():
        subprocess.run(words, capture_output=True, check=False)  # whatever is written on a first start
    for _ in range(rounds):
        for what, words in commands.items():
            began = time.perf_counter()
            subprocess.run(words, capture_output=True, check=False)
            took[what].append(time.perf_counter() - began)
    return took


def _fill(folder: str) -> None:
    """A checkpoint of a busy node."""
    node = Node(machine(nodes=2, cores=64), Options(), CPUSet.parse("0"))
    pods, containers, allocations = {}, {}, {}
    for number in range(CONTAINERS):
        uid, path = f"u{number}", f"/kubepods/podu{number}"
        pods[uid] = PodRecord(uid, f"s{number}", f"pod-{number}", "default", QOSClass.GUARANTEED, path)
        record = ContainerRecord(
            f"c{number}", uid, "app", Phase.RUNNING, CgroupRef(path, f"{path}/c{number}")
        )
        containers[record.id] = record
        allocations[f"{uid}/app"] = Allocation(CPUSet.from_ids([number + 1]), NodeMask(1))
    CheckpointFile(folder, node, durable=False).save(State(pods, containers, allocations))
