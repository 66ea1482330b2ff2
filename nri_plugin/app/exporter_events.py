"""Turns what the agent tells into events on pods: refusals, and containers that run unplaced."""

import logging
import time
from collections.abc import Callable, Iterator

from nri_plugin.app.logs import say
from nri_plugin.app.status_rows import Status
from nri_plugin.errors import KubeAPIError
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.kube.pod_events import UNPLACED, EventRate, Happening, event_object, told
from nri_plugin.kube.resources import EVENTS


class Announcer:
    """Creates an event for each thing that is new.

    What was there when this began has been told before, or is too old to be told.

    Args:
        client: of the cluster.
        node_name: in whose name.
        log: for trouble, once until it is over.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        client: KubeClient,
        node_name: str,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._node_name, self._log = client, node_name, log
        self._rate = EventRate(clock)
        self._last_refusal: int | None = None
        self._unplaced: frozenset[str] = frozenset()
        self._trouble = ""

    def announce(self, status: Status) -> None:
        """Tell what is new; what cannot be told is said in the log and not tried again."""
        is_first = self._last_refusal is None
        new = list(self._news(status))
        if is_first:
            return
        for happening in told(iter(new), self._rate):
            self._create(happening)

    def _news(self, status: Status) -> Iterator[Happening]:
        last = self._last_refusal or 0
        newest = status.refusals[-1].number if status.refusals else 0
        if newest < last:  # the agent began to count anew
            last = 0
        for row in status.refusals:
            if row.number > last:
                yield Happening(row.pod_uid, row.namespace, row.pod, row.container, row.reason, row.detail)
        self._last_refusal = newest
        unplaced = {record.id: record for record in status.state.containers.values() if record.unplaced}
        for container_id in sorted(unplaced.keys() - self._unplaced):
            record = unplaced[container_id]
            pod = status.state.pods.get(record.pod_uid)
            if pod is not None:
                note = f"runs in the shared pool: {record.unplaced}"
                yield Happening(pod.uid, pod.namespace, pod.name, record.name, UNPLACED, note)
        self._unplaced = frozenset(unplaced)

    def _create(self, happening: Happening) -> None:
        now = time.time()
        text = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1e6):06d}Z"
        try:
            self._client.create(EVENTS, event_object(happening, self._node_name, text), happening.namespace)
            trouble = ""
        except KubeAPIError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            say(self._log, logging.WARNING, "event not created", pod=happening.pod, err=trouble)
        self._trouble = trouble
