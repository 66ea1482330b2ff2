"""Follows all objects of one kind: a list, then every change, and a new list when changes were missed.

Invariant: between two calls of `listed` the sink has seen every change in order. A call of `listed` has all objects that
exist, so an object that is missing in it is gone.

A failure is followed by a pause. Pauses grow and are random: a thousand nodes that lost the API server together must not
come back together.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nri_plugin.kube.api_client import NOTHING, APIResource, KubeClient, Object, Parameters
from nri_plugin.model.errors import KubeAPIError

Draw = Callable[[], float]


class WatchBackoff:
    """Pauses between attempts.

    Invariant: a pause is between half of its limit and the limit; limits double from `first_s` to `longest_s`;
    a longer pause that the server asked for is kept.

    Args:
        first_s: limit of the first pause.
        longest_s: limit of any.
        draw: a number from 0 to 1, another each time.
    """

    def __init__(self, first_s: float = 1.0, longest_s: float = 60.0, draw: Draw = random.random) -> None:
        self._first_s, self._longest_s, self._draw = first_s, longest_s, draw
        self._limit_s = first_s

    def next_s(self, asked_for_s: float | None = None) -> float:
        """Seconds until the next attempt."""
        pause_s = self._limit_s * (0.5 + 0.5 * self._draw())
        self._limit_s = min(self._limit_s * 2, self._longest_s)
        return max(pause_s, asked_for_s or 0.0)

    def reset(self) -> None:
        """It worked: begin again with a short pause."""
        self._limit_s = self._first_s


GONE = 410
NOT_FOUND = 404

Pause = Callable[[float], bool]
"""Waits so many seconds; returns whether to stop. `threading.Event.wait` is one."""


class Sink(Protocol):
    """Receives objects, in the thread that follows them."""

    def listed(self, objects: Sequence[Any]) -> None:
        """All objects that exist, read by the follower's `read`."""

    def changed(self, obj: Object) -> None:
        """An object is new or has changed."""

    def deleted(self, obj: Object) -> None:
        """An object is gone; `obj` is its last state."""

    def failed(self, error: KubeAPIError) -> None:
        """Following failed and will be tried again; objects stay valid until then.

        Status 404: the cluster does not know the kind of object (yet).
        """


class Follower:
    """Follows one kind of object until `pause` says to stop.

    Args:
        client: asks the API.
        resource: the kind of object.
        sink: receives the objects.
        pause: waits between attempts and says when to stop.
        parameters: `fieldSelector` or `labelSelector`.
        backoff: how long to wait.
        read: converts each object of a list; see `KubeClient.list`.
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
    ) -> None:
        self._read = read
        self._client, self._resource, self._sink, self._pause = client, resource, sink, pause
        self._parameters = parameters
        self._backoff = backoff or WatchBackoff()
        self._version: str | None = None

    @property
    def version(self) -> str:
        """The resource version of the last object; empty before the first list."""
        return self._version or ""

    def forget(self) -> None:
        """Begin with a list again."""
        self._version = None

    def run(self) -> None:
        """Follow until `pause` says to stop; failures are reported to the sink and tried again."""
        while not self._pause(0.0):
            try:
                self._once()
            except KubeAPIError as error:
                # The version is too old for the server: list again, without reporting a failure.
                if error.status == GONE:
                    self._version = None
                    if not self._pause(self._backoff.next_s()):
                        continue
                    return
                self._sink.failed(error)
                # After an answer of the server the version may be invalid. Without an answer the watch goes on from it.
                if error.status:
                    self._version = None
                if self._pause(self._backoff.next_s(error.retry_after_s)):
                    return

    def _once(self) -> None:
        """One list where none is valid, and one watch until it ends."""
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
        if not heard:  # a server that ends every watch at once must not be asked in a tight loop
            self._pause(self._backoff.next_s())

    def _tell(self, event: Object) -> None:
        obj = event["object"]
        if event["type"] in ("ADDED", "MODIFIED"):
            self._sink.changed(obj)
        elif event["type"] == "DELETED":
            self._sink.deleted(obj)
        self._version = (obj.get("metadata") or {}).get("resourceVersion") or self._version
