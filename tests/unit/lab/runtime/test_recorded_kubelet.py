"""The simulator's kubelet asks the runtime for what a real kubelet asked for, for the same pods.

`hack/cluster run what-the-kubelet-asks-for-is-recorded` makes the recordings: a plugin notes each new pod and container. What
differs has to be in `DIFFERENCES`, with its reason.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nri_plugin
from nri_plugin.simulator.simulate.manifests import Manifests
from nri_plugin.simulator.simulate.pods import ContainerSpec, Driver, PodSpec, RuntimeIdentity
from nri_plugin.wire.nri import events
from tests.e2e.inside.event_recorder import asked
from tests.lab.runtime.messages import container_message, pod_message
from tests.lab.runtime.profile import BEHAVIOURS

RECORDINGS = sorted((Path(__file__).parents[3] / "vectors" / "nri").glob("kubelet-*.json.gz"))
_SANDBOX = "5" * 64
_CONTAINER = "c" * 64

DIFFERENCES = {
    "kubernetes.io/config.seen": "a time",
    "io.kubernetes.cri.podsandbox.image-name": "another image",
    "io.kubernetes.cri.image-name": "another image",
    "io.cri-containerd.kind": "a label of containerd that no decision reads",
    "io.kubernetes.container.hash": "no decision reads it",
    "io.kubernetes.container.restartCount": "no decision reads it",
    "io.kubernetes.container.terminationMessagePath": "no decision reads it",
    "io.kubernetes.container.terminationMessagePolicy": "no decision reads it",
    "io.kubernetes.pod.terminationGracePeriod": "no decision reads it",
}
"""Labels and annotations that are not compared, and why."""

BEST_SCORE = 0
"""containerd of the recorded node gives no container a better oom_score_adj than its own (`restrict_oom_score_adj`)."""


def recorded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def pods_of(recording: dict[str, Any]) -> dict[str, PodSpec]:
    manifests = Manifests()
    for number, obj in enumerate(recording["pods"]):
        manifests.read(obj, (number,))
    return {one.pod.name: one.pod for one in manifests.pods}


def containers_of(pod: PodSpec) -> dict[str, ContainerSpec]:
    return {one.name: one for one, _ in pod.members}


def made(recording: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
    """The line that the simulator makes for the pod or container of a recorded one."""
    memory, sizes = recording["memory_kib"] << 10, tuple(recording["page_sizes_kb"])
    who = RuntimeIdentity(BEHAVIOURS["containerd-2.1"], Driver.CGROUPFS, memory, sizes)
    pod = pods_of(recording)[line["pod"]]
    message, names = pod_message(pod, line["uid"], _SANDBOX, who)
    event: events.NRIEvent = events.RunPodSandbox(message)
    if "container" in line:
        spec = containers_of(pod)[line["container"]]
        container, _ = container_message(pod, message, names, spec, _CONTAINER, who)
        event = events.CreateContainer(message, container)
    (found,) = asked(event)
    return found


def compared(line: dict[str, Any]) -> dict[str, Any]:
    """What is compared of a line."""
    text = json.dumps(line).replace(line["sandbox"], "SANDBOX")
    found: dict[str, Any] = json.loads(text)
    for marks in (found["labels"], found["annotations"]):
        for name in DIFFERENCES.keys() & marks.keys():
            del marks[name]
    if "score" in found:
        found["score"] = max(found["score"], BEST_SCORE)
    return found


def lines() -> Iterator[Any]:
    for path in RECORDINGS:
        recording = recorded(path)
        for line in recording["events"]:
            name = f"{recording['kubernetes']}-{line['pod']}-{line.get('container', 'sandbox')}"
            yield pytest.param(recording, line, id=name)


def test_each_difference_is_one() -> None:
    told = [line["labels"] | line["annotations"] for path in RECORDINGS for line in recorded(path)["events"]]
    assert DIFFERENCES.keys() <= {name for marks in told for name in marks}


def test_no_decision_reads_what_is_not_compared() -> None:
    product = Path(nri_plugin.__file__).parent
    places = [product / part for part in ("core", "policy", "wire", "agent", "model", "host")]
    texts = [file.read_text() for place in places for file in place.rglob("*.py")]
    assert not [name for name in DIFFERENCES for text in texts if name in text]


@pytest.mark.parametrize(("recording", "line"), list(lines()))
def test_the_simulators_kubelet_asks_as_the_real_one(recording: dict[str, Any], line: dict[str, Any]) -> None:
    assert compared(made(recording, line)) == compared(line)
