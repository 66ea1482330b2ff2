"""Kubernetes events on pods: what was refused, what drifted, and what runs without the CPUs it should have.

A refused container is tried again and again by the kubelet: the same words about the same container are said again
after `AGAIN_S`, then after pauses that double up to `LONGEST_AGAIN_S`, and all events together are held to `BURST`, refilled one every `REFILL_S`. What is left out is counted.

Events are created as events.k8s.io/v1, which is strict: it demands `eventTime`, `action`, `reportingController` and
`reportingInstance`, refuses invalid names and counts lengths in bytes. The API server stores the same object as a
core/v1 Event, which is what `kubectl describe pod` lists.

Source: kubernetes v1.35 pkg/apis/core/validation/events.go.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nri_plugin.kube.pod_facts import PodObject

CONTROLLER = "nri-pin/export"
AGAIN_S = 300.0
LONGEST_AGAIN_S = 4800.0
BURST = 25
REFILL_S = 5.0
"""Source: client-go's event correlator lets 25 through at once and then one every 5 minutes, for one source and object."""

LONGEST_NOTE = 1024
LONGEST_REASON = LONGEST_INSTANCE = 128
"""Bytes of UTF-8; the API server refuses longer ones."""

LONGEST_NAME = 253
"""Characters of an object's name, and of `generateName`. Source: RFC 1123 subdomains as Kubernetes reads them."""

UNKNOWN_POD = PodObject()

UNPLACED, DRIFT = "Unplaced", "Drift"


@dataclass(frozen=True, slots=True)
class Happening:
    """What is to be said about a container.

    Attributes:
        reason: one word; the kubelet's where it has one.
        note: the sentence.
    """

    pod_uid: str
    namespace: str
    pod: str
    container: str
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class _Said:
    """Words that are not said again before `until`, and are forgotten once they were not heard for a pause more."""

    until: float
    pause_s: float


class EventRate:
    """Says which happenings are told.

    Args:
        clock: seconds that only grow.

    Attributes:
        left_out: how many were not told for want of room; repetitions are not counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[Happening, _Said] = {}
        self._room, self._filled_at = float(BURST), clock()
        self.left_out = 0

    def takes(self, happening: Happening) -> bool:
        """Whether to tell it now."""
        now = self._clock()
        self._said = {key: said for key, said in self._said.items() if now < said.until + said.pause_s}
        before = self._said.get(happening)
        if before and now < before.until:
            return False
        self._room = min(float(BURST), self._room + (now - self._filled_at) / REFILL_S)
        self._filled_at = now
        if self._room < 1.0:
            self.left_out += 1
            return False
        self._room -= 1.0
        pause_s = min(2.0 * before.pause_s, LONGEST_AGAIN_S) if before else AGAIN_S
        self._said[happening] = _Said(now + pause_s, pause_s)
        return True


def event_object(
    happening: Happening, node_name: str, now: str, pod: PodObject = UNKNOWN_POD
) -> dict[str, Any]:
    """The event to create.

    Args:
        happening: what is told.
        node_name: reports it.
        now: RFC 3339 with microseconds.
        pod: what the cluster holds of the pod.
    """
    regarding = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": happening.namespace,
        "name": happening.pod,
        "uid": happening.pod_uid,
        "resourceVersion": pod.resource_version,
        "fieldPath": _field_path(pod, happening.container),
    }
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": _name_prefix(happening.pod), "namespace": happening.namespace},
        "eventTime": now,
        "type": "Warning",
        "reason": _cut(happening.reason, LONGEST_REASON),
        "action": "Placing",
        "note": _cut(f"container {happening.container}: {happening.note}", LONGEST_NOTE),
        "reportingController": CONTROLLER,
        "reportingInstance": _cut(node_name, LONGEST_INSTANCE),
        "regarding": {name: value for name, value in regarding.items() if value},
    }


def _name_prefix(pod: str) -> str:
    """`generateName` for events on a pod: its name and a hyphen, valid for every pod name.

    The server validates the prefix by itself, where a trailing hyphen is allowed and a trailing dot is not, then cuts
    it to 58 characters and adds 5. A name that was cut must not end in a dot, for no label may begin with a hyphen.
    """
    return f"{pod[: LONGEST_NAME - 1].rstrip('-.')}-"


def _field_path(pod: PodObject, container: str) -> str:
    """Where the pod's object lists the container, as the kubelet's events say it; empty where that is not known."""
    listed_in = pod.list_by_container.get(container)
    return f"spec.{listed_in}{{{container}}}" if listed_in else ""


def _cut(text: str, limit: int) -> str:
    """The text in at most `limit` bytes of UTF-8."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return f"{encoded[: limit - 3].decode(errors='ignore')}..."


def told(happenings: Iterator[Happening], rate: EventRate) -> list[Happening]:
    """Those to tell now, in their order."""
    return [happening for happening in happenings if happening.pod and rate.takes(happening)]
