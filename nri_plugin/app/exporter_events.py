"""Turns what the agent tells into events on pods: refusals, drift, and containers that run unplaced."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from nri_plugin.app.logs import say
from nri_plugin.app.status_rows import DriftRow, RefusalRow, Status
from nri_plugin.errors import KubeAPIError
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.kube.pod_events import DRIFT, UNPLACED, EventRate, Happening, event_object, told
from nri_plugin.kube.pod_facts import PodsHere
from nri_plugin.kube.pod_rejection import Rejecter
from nri_plugin.kube.resources import EVENTS
from nri_plugin.state import ContainerRecord, State

KNOWN_REASONS = ("TopologyAffinityError", "SMTAlignmentError", "UnexpectedAdmissionError", DRIFT, UNPLACED)
OTHER = "other"
"""Counted for a reason that is not known here: the reasons that are counted are a closed set."""

FORBIDDEN = 403

Cause = tuple[int, str, tuple[str, ...]]
"""Why an event was not created: status, reason word and the fields that the server complained about."""

Row = TypeVar("Row", RefusalRow, DriftRow)


class Announcer:
    """Creates an event for each thing that is new.

    What was there when this began has been told before, or is too old to be told.

    Args:
        client: of the cluster.
        node_name: in whose name.
        log: for trouble, once for each cause until it is over.
        clock: seconds that only grow.
        rejecter: sets refused pods to Failed; None to leave them to wait.
        pods: tells what the cluster holds of the pods that events are about.

    Attributes:
        events: how many by reason and result, `created` or `failed`.
        rejections: how many pods were to be set to Failed, by result, `failed-pod` or `left`.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        rejecter: Rejecter | None = None,
        pods: PodsHere | None = None,
    ) -> None:
        self.events: Counter[tuple[str, str]] = Counter()
        self.rejections: Counter[str] = Counter()
        self._rejecter = rejecter
        self._pods = pods or PodsHere(lambda _: None)
        self._client, self._node_name, self._log = client, node_name, log
        self._rate = EventRate(clock)
        self._is_first = True
        self._last_refusal = self._last_drift = 0
        self._unplaced: frozenset[str] = frozenset()
        self._causes: set[Cause] = set()

    def announce(self, status: Status) -> None:
        """Tell what is new; what cannot be told is said in the log and not tried again."""
        new = list(self._news(status))
        is_first, self._is_first = self._is_first, False
        if is_first:
            return
        for happening in told(iter(new), self._rate):
            self._create(happening)

    def _reject(self, row: RefusalRow) -> str:
        """Fail the pod where that is wanted; what the event says when it is left to wait all the same."""
        if self._rejecter is None or not row.pod:
            return ""
        obstacle = self._rejecter.reject(row.namespace, row.pod, row.pod_uid, row.reason, row.detail)
        self.rejections["left" if obstacle else "failed-pod"] += 1
        if not obstacle:
            say(self._log, logging.INFO, "pod failed", pod=row.pod, reason=row.reason)
        return f"; the pod is not set to Failed: {obstacle}" if obstacle else ""

    def _news(self, status: Status) -> Iterator[Happening]:
        for row in _newer(status.refusals, self._last_refusal):
            note = row.detail if self._is_first else f"{row.detail}{self._reject(row)}"
            yield Happening(row.pod_uid, row.namespace, row.pod, row.container, row.reason, note)
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

    def _create(self, happening: Happening) -> None:
        now = time.time()
        text = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}Z"
        pod = self._pods.object_of(happening.namespace, happening.pod, happening.pod_uid)
        event = event_object(happening, self._node_name, text, pod)
        result = "created"
        try:
            self._client.create(EVENTS, event, happening.namespace)
            self._causes = {cause for cause in self._causes if cause[-1]}
        except KubeAPIError as error:
            result = "failed"
            self._complain(happening, error)
        reason = happening.reason if happening.reason in KNOWN_REASONS else OTHER
        self.events[reason, result] += 1

    def _complain(self, happening: Happening, error: KubeAPIError) -> None:
        """Log the server's words, once for each cause.

        A cause without fields, such as a missing right, is over when an event is created. One with fields is about
        that kind of event: events that differ may succeed all the while.
        """
        cause = (error.status, error.reason, tuple(sorted({field for field, _ in error.causes})))
        if cause in self._causes:
            return
        self._causes.add(cause)
        what_to_do = (
            "; kubectl apply -f deploy/export-rbac.yaml"
            if (error.status, cause[-1]) == (FORBIDDEN, ())
            else ""
        )
        say(
            self._log,
            logging.WARNING,
            "event not created",
            namespace=happening.namespace,
            pod=happening.pod,
            status=error.status or None,
            reason=error.reason,
            err=f"{error}{what_to_do}",
        )


def _newest(rows: Sequence[RefusalRow | DriftRow]) -> int:
    return rows[-1].number if rows else 0


def _newer(rows: Sequence[Row], last: int) -> list[Row]:
    """Those that came after number `last`; all of them where the agent began to count anew."""
    return [row for row in rows if row.number > last or _newest(rows) < last]


def _about(state: State, record: ContainerRecord | None, reason: str, note: str) -> Iterator[Happening]:
    """Nothing of a container that is gone, or that is none: a slice has no pod to tell it of."""
    pod = state.pods.get(record.pod_uid) if record else None
    if record and pod:
        yield Happening(pod.uid, pod.namespace, pod.name, record.name, reason, note)


def _drift_note(row: DriftRow) -> str:
    """The same words for the same drift however often it comes, so that it is not told each time."""
    found = (
        f"its cpuset was {row.found or 'empty'}" if row.found is not None else "its cpuset files were gone"
    )
    done = f"not put right: {row.error}" if row.error else "put right"
    fight = "; somebody keeps changing it" if row.is_fight else ""
    return f"{found} instead of {row.desired} ({row.cause}), {done}{fight}"
