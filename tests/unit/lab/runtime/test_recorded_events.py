"""The embedded runtime sends the events that a real containerd sent, in its order and with its fields.

`hack/e2e r` makes the recordings: a plugin notes what containerd tells it of the lives in `event_script.py`. A line that differs
has to be in `DIFFERENCES`, with its reason.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.model.records import QOSClass
from nri_plugin.simulator.simulate.pods import ContainerSpec, Driver, PodSpec
from nri_plugin.wire.nri import events
from nri_plugin.wire.nri.messages import Resources
from tests.builders import machine
from tests.e2e.inside.event_recorder import RefusedError, answer_to, noted
from tests.e2e.inside.event_script import LARGER, SIZES, STEPS
from tests.lab.runtime.cgroup_tree import CgroupWriteError
from tests.lab.runtime.runtime import PluginRefusedError
from tests.simulated_node import SimulatedNode

RECORDINGS = Path(__file__).parents[3] / "vectors" / "nri"
PLAYED_AS = {
    "1.7": "containerd-1.7",
    "2.1": "containerd-2.1",
    "2.2": "containerd-2.1",
    "2.3": "containerd-2.4",
}
"""The behaviour of the embedded runtime, by the release of containerd that was recorded."""


DIFFERENCES = {
    ("2.3.4", ("stop-pod", "refused")): (
        "pod_has_pid",
        "since 2.3 it is read while the sandbox's process ends, and was still there in one of three recorded pods",
    )
}
"""Fields that are not compared, by release and step, and why."""


class Played:
    """Takes the steps of the script on the embedded runtime, one method each."""

    def __init__(self, behaviour: str) -> None:
        self.runtime = SimulatedNode(machine(), behaviour, Driver.CGROUPFS, 1).runtime
        self.lines: list[dict[str, Any]] = []

    def ask(self, event: events.NRIEvent) -> events.NRIResponse:
        self.lines += noted(event)
        try:
            return answer_to(event)
        except RefusedError as error:
            raise PluginRefusedError(str(error)) from error

    def take(self, step: list[str]) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the step failed, and the lines of its events."""
        self.lines = []
        try:
            getattr(self, "_" + step[0].replace("-", "_"))(*step[1:])
        except (PluginRefusedError, CgroupWriteError):
            return True, self.lines
        return False, self.lines

    def _connect(self) -> None:
        self.runtime.plugin = self
        self.lines += noted(self.runtime.truth())

    def _disconnect(self) -> None:
        self.runtime.disconnect()

    def _restart(self) -> None:
        self.runtime.restart()

    def _run(self, pod: str) -> None:
        inits, apps = (_container("setup"),), (_container("main"),)
        spec = PodSpec(pod, containers=apps, init_containers=inits, forced_qos=QOSClass.BURSTABLE)
        self.runtime.run_pod(spec, f"{pod}-0000-4000-8000-000000000000")

    def _create(self, pod: str, name: str) -> None:
        self.runtime.create(f"default/{pod}", _container(name))

    def _start(self, pod: str, name: str) -> None:
        self.runtime.start(f"default/{pod}/{name}")

    def _exit(self, pod: str, name: str) -> None:
        self.runtime.stop(f"default/{pod}/{name}")

    _stop = _exit

    def _remove(self, pod: str, name: str) -> None:
        self.runtime.remove(f"default/{pod}/{name}")

    def _resize(self, pod: str, name: str) -> None:
        milli, size = LARGER
        asked = Resources(
            cpu_shares=milli * 1024 // 1000,
            cpu_period_us=100_000,
            cpu_quota_us=milli * 100,
            memory_limit_bytes=size,
        )
        self.runtime.update(f"default/{pod}/{name}", asked)

    def _stop_pod(self, pod: str) -> None:
        self.runtime.stop_pod(f"default/{pod}")

    def _remove_pod(self, pod: str) -> None:
        self.runtime.remove_pod(f"default/{pod}")


def _container(name: str) -> ContainerSpec:
    milli, size = SIZES[name]
    return ContainerSpec(name, milli, milli, size, size)


def recorded() -> list[dict[str, Any]]:
    paths = sorted(RECORDINGS.glob("events-*.json.gz"))
    return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]


@pytest.mark.parametrize("recording", recorded(), ids=lambda one: one["containerd"])
def test_the_embedded_runtime_tells_what_containerd_told(recording: dict[str, Any]) -> None:
    release = ".".join(recording["containerd"].split(".")[:2])
    played = Played(PLAYED_AS[release])
    assert [tuple(one["step"]) for one in recording["steps"]] == list(STEPS)
    for one in recording["steps"]:
        failed, lines = played.take(one["step"])
        field, _ = DIFFERENCES.get((recording["containerd"], tuple(one["step"])), ("", ""))
        seen, wanted = ([line | {field: None} for line in told] for told in (lines, one["events"]))
        assert (one["step"], failed, seen) == (one["step"], one["failed"], wanted)
