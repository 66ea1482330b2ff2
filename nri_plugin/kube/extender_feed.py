"""The cache as a client of the API sees it: told object by object, from any thread."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from nri_plugin.kube.extender_cache import ExtenderCache, Object, read_topology
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.kube.pod_demand import PodDemand


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

    def on_topologies_listed(self, told: Sequence[NodeResourceTopology | str]) -> None:
        """All there are, after a reconnect: what is not among them went meanwhile; a name where one could not be read."""
        with self._lock:
            self._cache.on_topologies_listed(told)

    def on_pod(self, obj: Object) -> None:
        """A pod came or changed."""
        with self._lock:
            self._cache.on_pod(obj)

    def on_pod_deleted(self, obj: Object) -> None:
        """A pod went."""
        with self._lock:
            self._cache.on_pod_deleted(obj)

    def on_pods_read(self, told: Sequence[PodDemand | None]) -> None:
        """All there are, after a reconnect: what is not among them went meanwhile; None for one that could not be read."""
        with self._lock:
            self._cache.on_pods_read(told)

    def on_synced(self, what: str) -> None:
        """A first list is complete: `nrt` or `pods`; without the CRD, `nrt` is complete at once."""
        with self._lock:
            self._cache.on_synced(what)
