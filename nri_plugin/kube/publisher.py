"""Publishes one object: what is new, not too often, never the same twice, and again after a failure.

Plain calls; the caller has the thread and the clock, asks `due_s` and calls `publish`.

An object is ours once we have applied it: then fields that another manager changes are taken back. An object that we
never applied belongs to another exporter and is left alone, unless `take_over` says otherwise.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from nri_plugin.errors import KubeAPIError
from nri_plugin.kube.api_client import KubeClient, Object
from nri_plugin.kube.backoff import Backoff
from nri_plugin.kube.resources import Resource

CONFLICT = 409

PAUSE_S = 1.0
"""Between two writes: schedulers look at most once per pod, and etcd keeps every version."""

CALM_S = 60.0
"""An object that nobody else changed or deleted for so long is not contested any more."""


class Publisher:
    """Keeps one object of the cluster as it should be.

    Invariant: an object is sent only when it differs from the one last accepted, and no sooner than `pause_s` after the
    last attempt, or the pause that failures or the server ask for. When others change or delete it again and again, the
    same content is sent again after pauses that grow; new content does not wait for them.

    Args:
        client: of the cluster.
        resource: the kind of the object.
        manager: in whose name its fields are owned.
        clock: seconds that only grow.
        take_over: take fields of an object that is not ours, instead of failing.
        pause_s: between two writes.
        backoff: how long to wait after failures.

    Attributes:
        writes: how many writes were accepted.
        failures: how many were not.
        taken_back_from: the managers whose fields the last accepted write took back; empty for none.
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
        self._written: Object | None = None
        self._uid = self._version = ""
        self._not_before = self._again_at = self._calm_at = clock()
        self._contest = Backoff()
        self.writes = 0
        self.failures = 0
        self.taken_back_from = ""

    def want(self, obj: Mapping[str, Any]) -> None:
        """This is what the cluster should hold from now on."""
        self._wanted = dict(obj)

    def noticed(self, obj: Mapping[str, Any], fields: Iterable[str], *, is_gone: bool = False) -> bool:
        """The cluster holds this, or nothing; where `fields` or owners are not as accepted the object is due again.

        What is older than the last write is passed over: it was ours, or we have written over it. A list without the
        object may have been made before the first write.

        Args:
            obj: as it is there, or was last; only `metadata.resourceVersion` counts where it is gone.
            fields: which are compared.
            is_gone: the cluster held nothing at that version.

        Returns:
            Whether it is due again.
        """
        accepted = self._accepted
        if accepted is None:
            return False
        version = _metadata(obj).get("resourceVersion", "")
        if version.isdecimal() and self._version.isdecimal() and int(version) <= int(self._version):
            return False
        is_as_accepted = (
            not is_gone
            and all(obj.get(field) == accepted.get(field) for field in fields)
            and _owner_uids(accepted) <= _owner_uids(obj)
        )
        if not is_as_accepted:
            self._accepted = None
            now = self._clock()
            if now >= self._calm_at:
                self._contest.reset()
                self._again_at = now
            else:
                self._again_at = now + self._contest.next_s()
            self._calm_at = self._again_at + CALM_S
        return not is_as_accepted

    def due_s(self) -> float | None:
        """Seconds until `publish` has something to do: 0 for now, None for nothing at all."""
        if self._wanted is None or self._wanted == self._accepted:
            return None
        is_repeated = self._wanted == self._written
        not_before = max(self._not_before, self._again_at) if is_repeated else self._not_before
        return max(0.0, not_before - self._clock())

    def publish(self) -> None:
        """Send what is wanted.

        Raises:
            KubeAPIError: it was not accepted; it stays due, after a pause. Status 404: the cluster does not know the
                kind; 409: it belongs to another manager.
        """
        wanted = self._wanted
        if wanted is None:
            return
        self.taken_back_from = ""
        try:
            stored = self._applied(wanted)
        except KubeAPIError as error:
            self.failures += 1
            self._not_before = self._clock() + self._backoff.next_s(error.retry_after_s)
            raise
        self.writes += 1
        self._accepted = self._written = wanted
        metadata = _metadata(stored)
        self._uid, self._version = str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))
        self._backoff.reset()
        self._not_before = self._clock() + self._pause_s

    def _applied(self, wanted: Object) -> Object:
        """Apply the object, with force where another manager has changed an object that is ours.

        The version that was found to be ours goes with the forced write: if somebody wrote after that, it is refused.
        """
        try:
            return self._client.apply(self._resource, wanted, self._manager, force=self._take_over)
        except KubeAPIError as error:
            others = owners_of(error)
            found = self._found(wanted) if others else None
            if found is None or not self._is_ours(found):
                raise
        metadata = {**wanted["metadata"], "resourceVersion": _metadata(found).get("resourceVersion")}
        stored = self._client.apply(
            self._resource, {**wanted, "metadata": metadata}, self._manager, force=True
        )
        self.taken_back_from = others
        return stored

    def _found(self, wanted: Object) -> Object | None:
        """The object as it is there; None where it cannot be read."""
        with suppress(KubeAPIError):
            return self._client.get(self._resource, wanted["metadata"]["name"])
        return None

    def _is_ours(self, found: Object) -> bool:
        """Whether we have applied it: the server lists our manager, or it is the object we wrote last.

        The first is true after a restart, too; the second where others have changed every single field of ours.
        """
        metadata = _metadata(found)
        entries = metadata.get("managedFields") or ()
        has_applied = any(
            (entry.get("manager"), entry.get("operation")) == (self._manager, "Apply") for entry in entries
        )
        return has_applied or (self._uid != "" and metadata.get("uid") == self._uid)


def _metadata(obj: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return (obj or {}).get("metadata") or {}


def _owner_uids(obj: Mapping[str, Any]) -> set[str]:
    return {str(reference.get("uid")) for reference in _metadata(obj).get("ownerReferences") or ()}


def owners_of(error: KubeAPIError) -> str:
    """Who else writes the object, as a conflict names them; empty for other errors."""
    if error.status != CONFLICT:
        return ""
    return ", ".join(sorted({text.split('"')[1] for _, text in error.causes if text.count('"') == 2}))
