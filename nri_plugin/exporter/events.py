"""Kubernetes events on pods: refusals, drift, and unplaced containers.

The kubelet retries a refused container again and again. The same note about the same container is repeated after
`AGAIN_S`, then after pauses that double up to `LONGEST_AGAIN_S`. All events together are limited to `BURST`, plus one
every `REFILL_S`. Events above the limit are counted.

Events are created as events.k8s.io/v1, whose validation is strict: it requires `eventTime`, `action`, `reportingController` and
`reportingInstance`, refuses invalid names and counts lengths in bytes. The API server stores the same object as a
core/v1 Event, which `kubectl describe pod` lists.

The event of a refused pod also says what becomes of the pod (`nri_plugin.exporter.refused_pods`).

Source: kubernetes v1.35 pkg/apis/core/validation/events.go.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nri_plugin.agent.observing.status_client import AgentStatus, DriftRow, RefusalRow
from nri_plugin.exporter.refused_pods import (
    FAILED,
    OTHER_REASON,
    REASONS,
    RefusedPods,
    Reject,
    refusal_of,
)
from nri_plugin.kube.api_client import EVENTS, KubeClient
from nri_plugin.kube.pod_facts import PodObject, PodsHere
from nri_plugin.model.errors import KubeAPIError
from nri_plugin.model.records import ContainerRecord
from nri_plugin.model.state import State
from nri_plugin.process.logs import say

# Events


CONTROLLER = "nri-pin/export"
AGAIN_S = 300.0
LONGEST_AGAIN_S = 4800.0
BURST = 25
REFILL_S = 5.0
"""Source: client-go's event correlator sends 25 at once and then one every 5 minutes, for one source and object."""

LONGEST_NOTE = 1024
LONGEST_REASON = LONGEST_INSTANCE = 128
"""Bytes of UTF-8; the API server refuses longer ones."""

CUT_MARK = "..."

LONGEST_NAME = 253
"""Characters of an object's name, and of `generateName`. Source: RFC 1123 subdomains, as in Kubernetes."""

UNKNOWN_POD = PodObject()

UNPLACED, DRIFT, INCOMPLETE = "Unplaced", "Drift", "IncompletePod"


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An event to create about a container, or about a pod.

    Attributes:
        container: empty for the pod as a whole.
        reason: one word; the kubelet's if it has one.
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
    """A note that is not repeated before `until`, and is forgotten one pause later."""

    until: float
    pause_s: float


class EventRate:
    """Decides which events are created.

    Args:
        clock: seconds that only grow.

    Attributes:
        left_out: the number of events above the limit; repetitions are not counted.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[PodEvent, _Said] = {}
        self._room, self._filled_at = float(BURST), clock()
        self.left_out = 0

    def takes(self, event: PodEvent) -> bool:
        """Whether to create the event now; never for an event whose pod has no name."""
        if not event.pod:
            return False
        # Forget old notes here, so that the table is bounded by the notes of the longest pause.
        now = self._clock()
        self._said = {key: said for key, said in self._said.items() if now < said.until + said.pause_s}
        before = self._said.get(event)
        if before and now < before.until:
            return False
        self._room = min(float(BURST), self._room + (now - self._filled_at) / REFILL_S)
        self._filled_at = now
        if self._room < 1.0:
            self.left_out += 1
            return False
        self._room -= 1.0
        pause_s = min(2.0 * before.pause_s, LONGEST_AGAIN_S) if before else AGAIN_S
        self._said[event] = _Said(now + pause_s, pause_s)
        return True


def event_object(event: PodEvent, node_name: str, now: str, pod: PodObject = UNKNOWN_POD) -> dict[str, Any]:
    """Return the event to create.

    Args:
        event: its content.
        node_name: the reporting node.
        now: RFC 3339 with microseconds.
        pod: from the cluster's object of the pod.
    """
    regarding = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": event.namespace,
        "name": event.pod,
        "uid": event.pod_uid,
        "resourceVersion": pod.resource_version,
        "fieldPath": _field_path(pod, event.container),
    }
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": _name_prefix(event.pod), "namespace": event.namespace},
        "eventTime": now,
        "type": "Warning",
        "reason": _cut(event.reason, LONGEST_REASON),
        "action": "Placing",
        "note": _cut(
            f"container {event.container}: {event.note}" if event.container else event.note, LONGEST_NOTE
        ),
        "reportingController": CONTROLLER,
        "reportingInstance": _cut(node_name, LONGEST_INSTANCE),
        "regarding": {name: value for name, value in regarding.items() if value},
    }


def with_advice(row: RefusalRow, advice: str) -> str:
    """Return the note for a refusal: the refusal is cut before the advice is, which is short."""
    beside = len(f"container {row.container}: {advice}".encode())
    return f"{_cut(row.detail, max(LONGEST_NOTE - beside, len(CUT_MARK)))}{advice}"


def _name_prefix(pod: str) -> str:
    """Return `generateName` for events on a pod: its name and a hyphen, valid for every pod name.

    The server validates the prefix alone, where a trailing hyphen is valid and a trailing dot is not. Then it cuts the
    prefix to 58 characters and adds 5. A cut name must not end in a dot, because no label may begin with a hyphen.
    """
    return f"{pod[: LONGEST_NAME - 1].rstrip('-.')}-"


def _field_path(pod: PodObject, container: str) -> str:
    """Return the container's place in the pod's object, in the form of the kubelet's events; empty if it is not known."""
    listed_in = pod.list_by_container.get(container)
    return f"spec.{listed_in}{{{container}}}" if listed_in else ""


def _cut(text: str, limit: int) -> str:
    """Cut the text to at most `limit` bytes of UTF-8."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return f"{encoded[: limit - len(CUT_MARK)].decode(errors='ignore')}{CUT_MARK}"


# The announcer


KNOWN_REASONS = (*REASONS, OTHER_REASON, DRIFT, UNPLACED, INCOMPLETE)
OTHER = "other"
"""Label for any other reason: the labels of the metric are a closed set."""

FORBIDDEN = 403

Cause = tuple[int, str, tuple[str, ...]]
"""The cause of a failed creation: status, reason word and the fields that the server named."""

Row = TypeVar("Row", RefusalRow, DriftRow)


class Announcer:
    """Creates an event for each new refusal, drift and unplaced container.

    The first status creates no events: its content was announced before, or is too old.

    Args:
        client: of the cluster.
        node_name: the reporting node.
        log: for failures, once for each cause until it ends.
        clock: seconds that only grow.
        pods: objects of the pods that events are about.
        fails_pods: set refused pods to Failed; otherwise they wait.
        reject: asks the agent to admit no container of a pod any more.

    Attributes:
        events: counts by reason and result, `created` or `failed`.
        rejections: counts of refusals of pods to set to Failed, by `refused_pods.RESULTS`.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        pods: PodsHere | None = None,
        *,
        fails_pods: bool = False,
        reject: Reject = refusal_of,
    ) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        self.rejections: Counter[str] = Counter()
        self._pods = pods or PodsHere(lambda _: None)
        self._refused_pods = (
            RefusedPods(client, node_name, clock, reject=reject, pods=self._pods) if fails_pods else None
        )
        self._client, self._node_name, self._log = client, node_name, log
        self._rate = EventRate(clock)
        self._is_first = True
        self._last_refusal = self._last_drift = 0
        self._unplaced: frozenset[str] = frozenset()
        self._incomplete: frozenset[str] = frozenset()
        self._causes: set[Cause] = set()

    def announce(self, status: AgentStatus) -> None:
        """Create events for new rows of the status. A failure is logged and not tried again."""
        new = list(self._news(status))
        for pod in self._refused_pods.follow() if self._refused_pods else ():
            self._count(FAILED, pod.name, pod.refusal.reason if pod.refusal else "")
        is_first, self._is_first = self._is_first, False
        for event in () if is_first else new:
            if self._rate.takes(event):
                self._create(event)

    def _advice(self, row: RefusalRow) -> str:
        """Set the pod to Failed if that is configured; returns the part of the event's note about that."""
        if self._refused_pods is None or not row.pod:
            return ""
        outcome = self._refused_pods.fail(row)
        # What the first status has was counted by the exporter before this one, unless it is set to Failed only now.
        if outcome.result == FAILED or not self._is_first:
            self._count(outcome.result, row.pod, row.reason)
        return outcome.advice

    def _count(self, result: str, pod: str, reason: str) -> None:
        self.rejections[result] += 1
        if result == FAILED:
            say(self._log, logging.INFO, "pod failed", pod=pod, reason=reason)

    def has_undone(self) -> bool:
        """Whether a pod that was to be set to Failed is not; safe in any thread."""
        return self._refused_pods is not None and bool(self._refused_pods.undone)

    def due_s(self) -> float | None:
        """Return the seconds until such a pod is written again; None for none."""
        return self._refused_pods.due_s() if self._refused_pods else None

    def _news(self, status: AgentStatus) -> Iterator[PodEvent]:
        # A pod of the first status may wait since before this exporter began. The agent knows whether it runs by now.
        refusals = _newer(status.refusals, self._last_refusal)
        if self._refused_pods is not None:
            self._refused_pods.take(status)
        if self._is_first:
            refusals = list({row.pod_uid: row for row in refusals}.values())
        for row in refusals:
            note = with_advice(row, self._advice(row))
            yield PodEvent(row.pod_uid, row.namespace, row.pod, row.container, row.reason, note)
        self._last_refusal = _newest(status.refusals)
        for drift in _newer(status.drifts, self._last_drift):
            record = status.state.containers.get(drift.container_id)
            yield from _about(status.state, record, DRIFT, _drift_note(drift))
        self._last_drift = _newest(status.drifts)
        unplaced = {record.id: record for record in status.state.containers.values() if record.unplaced}
        for container_id in sorted(unplaced.keys() - self._unplaced):
            record = unplaced[container_id]
            held = status.state.allocation_of(record)
            where = f"keeps CPUs {held.cpus}" if held and held.cpus else "runs in the shared pool"
            yield from _about(status.state, record, UNPLACED, f"{where}: {record.unplaced}")
        self._unplaced = frozenset(unplaced)
        for pod in status.incomplete:
            if pod.pod_uid not in self._incomplete:
                container = pod.refused[0].container if pod.refused else ""
                yield PodEvent(pod.pod_uid, pod.namespace, pod.pod, container, INCOMPLETE, str(pod))
        self._incomplete = frozenset(pod.pod_uid for pod in status.incomplete)

    def _create(self, event: PodEvent) -> None:
        now = time.time()
        text = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}Z"
        pod = self._pods.object_of(event.namespace, event.pod, event.pod_uid)
        obj = event_object(event, self._node_name, text, pod)
        result = "created"
        try:
            self._client.create(EVENTS, obj, event.namespace)
            self._causes = {cause for cause in self._causes if cause[-1]}
        except KubeAPIError as error:
            result = "failed"
            self._complain(event, error)
        reason = event.reason if event.reason in KNOWN_REASONS else OTHER
        self.events[reason, result] += 1

    def _complain(self, event: PodEvent, error: KubeAPIError) -> None:
        """Log the server's message, once for each cause.

        A cause without fields, such as a missing right, ends when an event is created. A cause with fields concerns
        that kind of event, while other events may succeed.
        """
        cause = (error.status, error.reason, tuple(sorted({field for field, _ in error.causes})))
        if cause in self._causes:
            return
        self._causes.add(cause)
        advice = (
            "; kubectl apply -f deploy/export-rbac.yaml"
            if (error.status, cause[-1]) == (FORBIDDEN, ())
            else ""
        )
        say(
            self._log,
            logging.WARNING,
            "event not created",
            namespace=event.namespace,
            pod=event.pod,
            status=error.status or None,
            reason=error.reason,
            err=f"{error}{advice}",
        )


def _newest(rows: Sequence[RefusalRow | DriftRow]) -> int:
    return rows[-1].number if rows else 0


def _newer(rows: Sequence[Row], last: int) -> list[Row]:
    """Return the rows after number `last`; all rows if the agent has restarted its count."""
    return [row for row in rows if row.number > last or _newest(rows) < last]


def _about(state: State, record: ContainerRecord | None, reason: str, note: str) -> Iterator[PodEvent]:
    """Yield an event about a container's pod; none if the container is gone or the record is a slice, which has no pod."""
    pod = state.pods.get(record.pod_uid) if record else None
    if record and pod:
        yield PodEvent(pod.uid, pod.namespace, pod.name, record.name, reason, note)


def _drift_note(row: DriftRow) -> str:
    """Return equal notes for equal drift, so that repetitions are recognized."""
    found = (
        f"its cpuset was {row.found or 'empty'}" if row.found is not None else "its cpuset files were gone"
    )
    result = f"not repaired: {row.error}" if row.error else "repaired"
    fight = "; another program keeps changing it" if row.is_fight else ""
    return f"{found} instead of {row.desired} ({row.cause}), {result}{fight}"
