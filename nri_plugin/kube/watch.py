"""Follow all objects of one kind: a list, then every change, and a new list when changes were missed.

Invariant: between two calls of `listed` the sink has seen every change in order. A call of `listed` has all objects that
exist, so an object that is missing in it is gone.

No failure ends it. Where an object or the sink raises an unexpected error, the error goes to `fault`, and all objects are
listed again.

A pause follows each failure. Pauses grow and are random, so that a thousand nodes that lost the API server together do
not reconnect together.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nri_plugin.kube.api_client import (
    LONGEST_PAUSE_S,
    NOTHING,
    APIResource,
    KubeClient,
    Object,
    Parameters,
)
from nri_plugin.model.errors import KubeAPIError

Draw = Callable[[], float]


class WatchBackoff:
    """Pauses between attempts.

    Invariant: a pause is between half of its limit and its limit. Limits double from `first_s` to `longest_s`. A longer
    pause that the server requested is kept, up to `LONGEST_PAUSE_S`.

    Args:
        first_s: limit of the first pause.
        longest_s: limit of every pause.
        draw: returns random numbers from 0 to 1.
    """

    def __init__(self, first_s: float = 1.0, longest_s: float = 60.0, draw: Draw = random.random) -> None:
        self._first_s, self._longest_s, self._draw = first_s, longest_s, draw
        self._limit_s = first_s

    def next_s(self, asked_for_s: float | None = None) -> float:
        """Return the seconds until the next attempt."""
        pause_s = self._limit_s * (0.5 + 0.5 * self._draw())
        self._limit_s = min(self._limit_s * 2, self._longest_s)
        return max(pause_s, min(asked_for_s or 0.0, LONGEST_PAUSE_S))

    def reset(self) -> None:
        """Start again with a short pause, after a success."""
        self._limit_s = self._first_s


GONE = 410
NOT_FOUND = 404

Pause = Callable[[float], bool]
"""Waits for a number of seconds; returns whether to stop. `threading.Event.wait` is one."""


class Sink(Protocol):
    """Receives objects, in the thread of the follower."""

    def listed(self, objects: Sequence[Any]) -> None:
        """Take all objects that exist, converted by the follower's `read`."""

    def changed(self, obj: Object) -> None:
        """Take a new or changed object."""

    def deleted(self, obj: Object) -> None:
        """Take a deletion; `obj` is the last state of the object."""

    def failed(self, error: KubeAPIError) -> None:
        """Note a failure. The follower tries again; objects stay valid until then.

        Status 404: the cluster does not know the kind of object, or not yet.
        """


class Follower:
    """Follows one kind of object until `pause` says to stop.

    Args:
        client: of the cluster.
        resource: the kind of object.
        sink: receives the objects.
        pause: waits between attempts and returns whether to stop.
        parameters: `fieldSelector` or `labelSelector`.
        backoff: the pauses after failures.
        read: converts each object of a list; see `KubeClient.list`.
        fault: logs and counts the unexpected error that is being handled; it is given the kind of object.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: APIResource,
        sink: Sink,
        pause: Pause,
        *,
        parameters: Parameters = NOTHING,
        backoff: WatchBackoff | None = None,
        read: Callable[[Object], Any] | None = None,
        fault: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._read, self._fault = read, fault
        self._client, self._resource, self._sink, self._pause = client, resource, sink, pause
        self._parameters = parameters
        self._backoff = backoff or WatchBackoff()
        self._version: str | None = None

    @property
    def version(self) -> str:
        """The resource version of the last object; empty before the first list."""
        return self._version or ""

    def run(self) -> None:
        """Follow until `pause` returns True. Failures are reported and tried again."""
        while not self._pause(0.0):
            try:
                wait_s = self._attempt()
            except Exception:  # noqa: BLE001 - without its thread the view would become old unnoticed
                self._fault(str(self._resource))
                self._version = None
                wait_s = self._backoff.next_s()
            if wait_s and self._pause(wait_s):
                return

    def _attempt(self) -> float:
        """List and watch until the watch ends; returns the seconds until the next attempt."""
        try:
            self._once()
        except KubeAPIError as error:
            # The version is too old for the server: list again, without reporting a failure.
            if error.status == GONE:
                self._version = None
                return self._backoff.next_s()
            # After an answer of the server the version may be invalid. Without an answer the watch goes on from it.
            if error.status:
                self._version = None
            self._sink.failed(error)
            return self._backoff.next_s(error.retry_after_s)
        return 0.0

    def _once(self) -> None:
        """List if no version is valid, then watch until the watch ends."""
        if self._version is None:
            objects, self._version = self._client.list(self._resource, self._parameters, self._read)
            self._sink.listed(objects)
        heard = False
        for event in self._client.watch(self._resource, self._version, self._parameters):
            heard = True
            self._backoff.reset()
            self._tell(event)
            if self._pause(0.0):
                return
        # Do not ask a server that ends every watch at once in a tight loop.
        if not heard:
            self._pause(self._backoff.next_s())

    def _tell(self, event: Object) -> None:
        obj = event["object"]
        if event["type"] in ("ADDED", "MODIFIED"):
            self._sink.changed(obj)
        elif event["type"] == "DELETED":
            self._sink.deleted(obj)
        self._version = (obj.get("metadata") or {}).get("resourceVersion") or self._version
