"""The cache as a client of the API sees it: told object by object, from any thread."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

from nri_plugin.kube.extender_cache import ExtenderCache, Object, read_topology


class LockedCache:
    """`ExtenderCache` behind a lock that is held for one object at a time.

    Args:
        cache: what is told.
        lock: the one that is also held while a question is answered.
    """

    def __init__(self, cache: ExtenderCache, lock: AbstractContextManager[object]) -> None:
        self._cache, self._lock = cache, lock

    def on_nrt(self, obj: Object) -> None:
        """A NodeResourceTopology came or changed. It is read before the lock is taken."""
        topology = read_topology(obj)
        with self._lock:
            self._cache.on_topology(topology)

    def on_nrt_deleted(self, name: str) -> None:
        """A NodeResourceTopology went."""
        with self._lock:
            self._cache.on_nrt_deleted(name)

    def on_nrt_listed(self, objects: Iterable[Object]) -> None:
        """All there are, after a reconnect: what is not among them went meanwhile."""
        with self._lock:
            self._cache.on_nrt_listed(objects)

    def on_pod(self, obj: Object) -> None:
        """A pod came or changed."""
        with self._lock:
            self._cache.on_pod(obj)

    def on_pod_deleted(self, obj: Object) -> None:
        """A pod went."""
        with self._lock:
            self._cache.on_pod_deleted(obj)

    def on_pods_listed(self, objects: Iterable[Object]) -> None:
        """All there are, after a reconnect: what is not among them went meanwhile."""
        with self._lock:
            self._cache.on_pods_listed(objects)

    def on_synced(self, what: str) -> None:
        """A first list is complete: `nrt` or `pods`; without the CRD, `nrt` is complete at once."""
        with self._lock:
            self._cache.on_synced(what)
