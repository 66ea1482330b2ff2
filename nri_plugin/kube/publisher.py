"""Publishes one object: what is new, not too often, never the same twice, and again after a failure.

Plain calls; whoever owns the thread and the clock asks `due_s` and calls `publish`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nri_plugin.errors import KubeAPIError
from nri_plugin.kube.api_client import KubeClient, Object
from nri_plugin.kube.backoff import Backoff
from nri_plugin.kube.resources import Resource

CONFLICT = 409

PAUSE_S = 1.0
"""Between two writes: schedulers look at most once per pod, and etcd keeps every version."""


class Publisher:
    """Keeps one object of the cluster as it should be.

    Invariant: an object is sent only when it differs from the one last accepted, and no sooner than `pause_s` after the
    last attempt, or the pause that failures or the server ask for.

    Args:
        client: of the cluster.
        resource: the kind of the object.
        manager: in whose name its fields are owned.
        clock: seconds that only grow.
        take_over: take fields that another manager owns, instead of failing.
        pause_s: between two writes.
        backoff: how long to wait after failures.

    Attributes:
        writes: how many writes were accepted.
        failures: how many were not.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        manager: str,
        clock: Callable[[], float],
        *,
        take_over: bool = False,
        pause_s: float = PAUSE_S,
        backoff: Backoff | None = None,
    ) -> None:
        self._client, self._resource, self._manager, self._clock = client, resource, manager, clock
        self._take_over, self._pause_s = take_over, pause_s
        self._backoff = backoff or Backoff()
        self._wanted: Object | None = None
        self._accepted: Object | None = None
        self._version = ""
        self._not_before = clock()
        self.writes = 0
        self.failures = 0

    def want(self, obj: Mapping[str, Any]) -> None:
        """This is what the cluster should hold from now on."""
        self._wanted = dict(obj)

    def noticed(self, obj: Mapping[str, Any] | None, fields: Iterable[str]) -> None:
        """The cluster holds this, or nothing; where `fields` are not as accepted the object is due again.

        What is older than the last write is passed over: it was ours, or we have written over it.
        """
        accepted = self._accepted
        if accepted is None:
            return
        version = str(((obj or {}).get("metadata") or {}).get("resourceVersion", ""))
        if version.isdecimal() and self._version.isdecimal() and int(version) <= int(self._version):
            return
        if obj is None or any(obj.get(field) != accepted.get(field) for field in fields):
            self._accepted = None

    def due_s(self) -> float | None:
        """Seconds until `publish` has something to do: 0 for now, None for nothing at all."""
        if self._wanted is None or self._wanted == self._accepted:
            return None
        return max(0.0, self._not_before - self._clock())

    def publish(self) -> None:
        """Send what is wanted.

        Raises:
            KubeAPIError: it was not accepted; it stays due, after a pause. Status 404: the cluster does not know the
                kind; 409: another manager owns fields of it.
        """
        wanted = self._wanted
        if wanted is None:
            return
        try:
            stored = self._client.apply(self._resource, wanted, self._manager, force=self._take_over)
        except KubeAPIError as error:
            self.failures += 1
            self._not_before = self._clock() + self._backoff.next_s(error.retry_after_s)
            raise
        self.writes += 1
        self._accepted = wanted
        self._version = str((stored.get("metadata") or {}).get("resourceVersion", ""))
        self._backoff.reset()
        self._not_before = self._clock() + self._pause_s


def owners_of(error: KubeAPIError) -> str:
    """Who else writes the object, as a conflict names them; empty for other errors."""
    if error.status != CONFLICT:
        return ""
    return ", ".join(sorted({text.split('"')[1] for _, text in error.causes if text.count('"') == 2}))
