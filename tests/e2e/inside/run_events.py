"""Run (r): what a real containerd tells a plugin of pods' lives, for the test of the embedded runtime.

The recording is `/out/events.json`; `tests/vectors/nri/README.md` says where it is kept.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from .agent import PYTHON, Agent
from .containerd import Containerd, version
from .cri import CRIError
from .event_script import LARGER, SIZES, STEPS
from .kubepods import make_kubepods
from .node import Node, Pod
from .observe import CGROUPS
from .pods import ContainerSpec, PodSpec
from .report import play, tell
from .waiting import wait_for

_LINES, _RECORDING = Path("/out/lines.jsonl"), Path("/out/events.json")
_SOCKET = "/run/nri/nri.sock"
_RECORDER = f"{__package__}.event_recorder"
_SOURCE = Path(__file__).parents[2]
_LIMIT_S = 60
_SILENCE_S = 1.5
"""After an end the runtime sends events by itself; all of a step have come when none comes for so long."""


class Recording:
    """Takes the steps of the script, one method each, and keeps the events that came with each of them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._plugin: subprocess.Popen[bytes] | None = None
        self._pods: dict[str, Pod] = {}
        self._instances: dict[tuple[str, str], list[str]] = {}
        self._created = 0
        self.steps: list[dict[str, Any]] = []

    def take(self, *step: str) -> None:
        """Take one step."""
        before = len(_lines())
        failed = ""
        try:
            getattr(self, "_" + step[0].replace("-", "_"))(*step[1:])
        except CRIError as error:
            failed = str(error)
        self.steps.append({"step": list(step), "failed": bool(failed), "events": _settled()[before:]})
        tell("figure", scenario=self._node.scenario, what=" ".join(step), value=failed or "done")

    def _connect(self) -> None:
        before = len(_lines())
        # The client's packages are for another Python.
        environment = {**os.environ, "PYTHONPATH": str(_SOURCE)}
        self._plugin = subprocess.Popen([PYTHON, "-m", _RECORDER, _SOCKET, str(_LINES)], env=environment)
        wait_for(lambda: len(_lines()) > before, _LIMIT_S, "the recorder is synchronized")

    def _disconnect(self) -> None:
        assert self._plugin
        self._plugin.terminate()
        self._plugin.wait(_LIMIT_S)

    def _restart(self) -> None:
        self._node.runtime.stop()
        self._node.runtime.start()

    def _run(self, pod: str) -> None:
        # The kubelet tells the runtime the peak of the pod, which is that of its app container here.
        self._pods[pod] = self._node.sandbox(PodSpec(pod, "burstable", (_container("main"),)))

    def _create(self, pod: str, name: str) -> None:
        self._created += 1
        identity = self._node.create(self._pods[pod], _container(name), attempt=self._created)
        self._instances.setdefault((pod, name), []).append(identity)

    def _start(self, pod: str, name: str) -> None:
        self._node.cri.call("StartContainer", container_id=self._instances[pod, name][-1])

    def _exit(self, pod: str, name: str) -> None:
        """Its process ends by itself, and the runtime notices."""
        identity = self._instances[pod, name][-1]
        os.kill(self._node.pid(identity), signal.SIGKILL)

        def has_ended() -> bool:
            status = self._node.cri.call("ContainerStatus", container_id=identity)["status"]
            return bool(status["state"] == "CONTAINER_EXITED" or status["state"] == 2)

        wait_for(has_ended, _LIMIT_S, f"{pod}/{name} has ended")

    def _resize(self, pod: str, name: str) -> None:
        milli, size = LARGER
        asked = {
            "cpu_shares": milli * 1024 // 1000,
            "cpu_period": 100_000,
            "cpu_quota": milli * 100,
            "memory_limit_in_bytes": size,
        }
        self._node.cri.call(
            "UpdateContainerResources", container_id=self._instances[pod, name][-1], linux=asked
        )

    def _stop(self, pod: str, name: str) -> None:
        self._node.cri.call("StopContainer", container_id=self._instances[pod, name][-1], timeout=0)

    def _remove(self, pod: str, name: str) -> None:
        """The oldest instance goes first."""
        self._node.cri.call("RemoveContainer", container_id=self._instances[pod, name].pop(0))

    def _stop_pod(self, pod: str) -> None:
        self._node.cri.call("StopPodSandbox", pod_sandbox_id=self._pods[pod].sandbox)

    def _remove_pod(self, pod: str) -> None:
        self._node.cri.call("RemovePodSandbox", pod_sandbox_id=self._pods[pod].sandbox)


def _container(name: str) -> ContainerSpec:
    milli, size = SIZES[name]
    return ContainerSpec(name, milli, memory_bytes=size, limit_milli=milli)


def _lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _LINES.read_text().splitlines()] if _LINES.exists() else []


def _settled() -> list[dict[str, Any]]:
    seen, since = -1, time.monotonic()

    def is_silent() -> bool:
        nonlocal seen, since
        now = len(_lines())
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > _SILENCE_S

    wait_for(is_silent, _LIMIT_S, "no more events come")
    return _lines()


def lives_are_recorded(node: Node) -> None:
    """All steps of the script."""
    recording = Recording(node)
    for step in STEPS:
        recording.take(*step)
    told = {"containerd": version(), "steps": recording.steps}
    _RECORDING.write_text(json.dumps(told, indent=1) + "\n")
    failed = [one["step"] for one in recording.steps if one["failed"]]
    node.equal(
        "the two that fail on purpose have failed",
        failed,
        [["create", "refused", "main"], ["start", "broken", "main"]],
    )


if __name__ == "__main__":
    tell("runtime", version=version())
    if not (CGROUPS / "cpuset").is_dir():
        make_kubepods()
    runtime = Containerd()
    runtime.start()
    recorded = Node(runtime, Agent(runtime, {}))
    play(recorded, (lives_are_recorded,), recorded)
    runtime.stop()
