"""Kubernetes events on pods: what was refused, what drifted, and what runs without the CPUs it should have.

A refused container is tried again and again by the kubelet: the same words about the same container are said again
after `AGAIN_S`, then after pauses that double up to `LONGEST_AGAIN_S`, and all events together are held to `BURST`, refilled one every `REFILL_S`. What is left out is counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

CONTROLLER = "nri-pin/export"
AGAIN_S = 300.0
LONGEST_AGAIN_S = 4800.0
BURST = 25
REFILL_S = 5.0
"""Source: client-go's event correlator lets 25 through at once and then one every 5 minutes, for one source and object."""

LONGEST_NOTE = 1024
"""Source: events.k8s.io/v1, the API server refuses longer ones."""

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


def event_object(happening: Happening, node_name: str, now: str) -> dict[str, Any]:
    """The event to create; `now` is RFC 3339 with microseconds."""
    note = f"container {happening.container}: {happening.note}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{happening.pod}.", "namespace": happening.namespace},
        "eventTime": now,
        "type": "Warning",
        "reason": happening.reason,
        "action": "Placing",
        "note": note if len(note) <= LONGEST_NOTE else f"{note[: LONGEST_NOTE - 3]}...",
        "reportingController": CONTROLLER,
        "reportingInstance": node_name,
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": happening.namespace,
            "name": happening.pod,
            "uid": happening.pod_uid,
            "fieldPath": f"spec.containers{{{happening.container}}}",
        },
    }


def told(happenings: Iterator[Happening], rate: EventRate) -> list[Happening]:
    """Those to tell now, in their order."""
    return [happening for happening in happenings if happening.pod and rate.takes(happening)]
