"""Kubernetes events on pods: refusals, drift, and unplaced containers.

The kubelet retries a refused container again and again. The same note about the same container is repeated after
`AGAIN_S`, then after pauses that double up to `LONGEST_AGAIN_S`. All events together are limited to `BURST`, plus one
every `REFILL_S`. Events above the limit are counted.

Events are created as events.k8s.io/v1, whose validation is strict: it requires `eventTime`, `action`, `reportingController` and
`reportingInstance`, refuses invalid names and counts lengths in bytes. The API server stores the same object as a
core/v1 Event, which `kubectl describe pod` lists.

A refused pod can also be set to Failed, as the kubelet does with a pod that it does not admit, so that its controller
creates another one. This happens only if no container of the pod has ever run, and only if the pod has not changed since
it was read: the write names the version.

Source: kubernetes v1.35 pkg/apis/core/validation/events.go.
Differs: the kubelet rejects a whole pod before anything of it runs. Here a later container may be refused after others,
    init containers too, have run. Their work is not thrown away: such a pod is left waiting.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nri_plugin.agent.status_client import AgentStatus, DriftRow, RefusalRow
from nri_plugin.kube.api_client import EVENTS, PODS, KubeClient, Object
from nri_plugin.kube.pod_facts import MIRROR, PodObject, PodsHere
from nri_plugin.model.errors import KubeAPIError
from nri_plugin.model.state import ContainerRecord, State
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

LONGEST_NAME = 253
"""Characters of an object's name, and of `generateName`. Source: RFC 1123 subdomains, as in Kubernetes."""

UNKNOWN_POD = PodObject()

UNPLACED, DRIFT, INCOMPLETE = "Unplaced", "Drift", "IncompletePod"


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An event to create about a container.

    Attributes:
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
        "note": _cut(f"container {event.container}: {event.note}", LONGEST_NOTE),
        "reportingController": CONTROLLER,
        "reportingInstance": _cut(node_name, LONGEST_INSTANCE),
        "regarding": {name: value for name, value in regarding.items() if value},
    }


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
    return f"{encoded[: limit - 3].decode(errors='ignore')}..."


# Failing refused pods


REASONS = ("TopologyAffinityError", "SMTAlignmentError")
OTHER_REASON = "UnexpectedAdmissionError"
"""The kubelet's message for all other reasons (kubelet v1.36 cm/topologymanager, cm/admission)."""


def fail_pod(client: KubeClient, node_name: str, row: RefusalRow) -> str:
    """Set a refused pod of this node to Failed; returns why it is left to wait, empty when it was set."""
    try:
        pod = client.get(PODS, row.pod, row.namespace)
        obstacle = why_not(pod, row.pod_uid, node_name)
        if not obstacle:
            patch = rejection(pod, row.reason, row.detail)
            client.merge_patch(PODS, row.pod, patch, namespace=row.namespace, subresource="status")
    except KubeAPIError as error:
        return str(error)
    return obstacle


def why_not(pod: Object, uid: str, node_name: str) -> str:
    """Return why this pod must not be set to Failed; empty if it may."""
    metadata, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
    cases = (
        (
            MIRROR in (metadata.get("annotations") or {}),
            "a static pod has no controller that creates another",
        ),
        (metadata.get("uid") != uid, "another pod of that name exists"),
        (spec.get("nodeName") != node_name, f"it is on node {spec.get('nodeName')}, not {node_name}"),
        (bool(metadata.get("deletionTimestamp")), "it is being deleted"),
        ((status.get("phase") or "Pending") != "Pending", f"its phase is {status.get('phase')}, not Pending"),
        (_has_begun(status), "a container of it has run"),
    )
    return next((words for applies, words in cases if applies), "")


def rejection(pod: Object, reason: str, detail: str) -> dict[str, Any]:
    """Return the patch of the pod's status, valid only for the version that was read.

    Source: kubelet v1.36, rejectPod: phase, reason, and a message with this beginning.
    """
    metadata = {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}
    known = reason if reason in REASONS else OTHER_REASON
    status = {"phase": "Failed", "reason": known, "message": f"Pod was rejected: {detail}"}
    return {"metadata": metadata, "status": status}


def _has_begun(status: Object) -> bool:
    """Whether any container runs or has run."""
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    return any(
        one.get("restartCount") or any(_ran(one.get(part) or {}) for part in ("state", "lastState"))
        for kind in kinds
        for one in status.get(kind) or ()
    )


def _ran(state: Object) -> bool:
    return "running" in state or "terminated" in state


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

    Attributes:
        events: counts by reason and result, `created` or `failed`.
        rejections: counts of pods to set to Failed, by result, `failed-pod` or `left`.
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
    ) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        self.rejections: Counter[str] = Counter()
        self._fails_pods = fails_pods
        self._pods = pods or PodsHere(lambda _: None)
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
        is_first, self._is_first = self._is_first, False
        for event in () if is_first else new:
            if self._rate.takes(event):
                self._create(event)

    def _reject(self, row: RefusalRow) -> str:
        """Set the pod to Failed if that is configured; returns the part of the event's note for a pod that waits."""
        if not self._fails_pods or not row.pod:
            return ""
        obstacle = fail_pod(self._client, self._node_name, row)
        self.rejections["left" if obstacle else "failed-pod"] += 1
        if not obstacle:
            say(self._log, logging.INFO, "pod failed", pod=row.pod, reason=row.reason)
        return f"; the pod is not set to Failed: {obstacle}" if obstacle else ""

    def _news(self, status: AgentStatus) -> Iterator[PodEvent]:
        # The first status only sets the counters: a pod must not be set to Failed for an old refusal.
        for row in _newer(status.refusals, self._last_refusal):
            note = row.detail if self._is_first else f"{row.detail}{self._reject(row)}"
            yield PodEvent(row.pod_uid, row.namespace, row.pod, row.container, row.reason, note)
        self._last_refusal = _newest(status.refusals)
        for drift in _newer(status.drifts, self._last_drift):
            record = status.state.containers.get(drift.container_id)
            yield from _about(status.state, record, DRIFT, _drift_note(drift))
        self._last_drift = _newest(status.drifts)
        unplaced = {record.id: record for record in status.state.containers.values() if record.unplaced}
        for container_id in sorted(unplaced.keys() - self._unplaced):
            record = unplaced[container_id]
            yield from _about(status.state, record, UNPLACED, f"runs in the shared pool: {record.unplaced}")
        self._unplaced = frozenset(unplaced)
        for pod in status.incomplete:
            if pod.pod_uid not in self._incomplete:
                container = pod.refused[0].container
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
