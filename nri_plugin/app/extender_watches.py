"""What the extender follows in the API: NodeResourceTopology objects, and pods that have a node."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nri_plugin.app.logs import say, say_trace
from nri_plugin.errors import KubeAPIError
from nri_plugin.kube.api_client import NOTHING, KubeClient, Parameters
from nri_plugin.kube.backoff import Backoff
from nri_plugin.kube.extender_cache import Object, read_pod, read_topology
from nri_plugin.kube.extender_feed import LockedCache
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.kube.pod_demand import PodDemand
from nri_plugin.kube.resources import NODE_RESOURCE_TOPOLOGIES, PODS, Resource
from nri_plugin.kube.watch import NOT_FOUND, Follower, Sink

BOUND_PODS = {"fieldSelector": "spec.nodeName!="}

STOP_S = 0.1
"""A watch waits for the API server nearly all the time; it holds nothing that would be lost with it."""


@dataclass(slots=True)
class Told:
    """Says a thing when it begins and when it ends, not all the while."""

    log: logging.Logger
    what: str
    trouble: str = ""

    def well(self) -> None:
        """It works."""
        if self.trouble:
            say(self.log, logging.INFO, "followed again", what=self.what)
        self.trouble = ""

    def failing(self, trouble: str, level: int = logging.WARNING) -> None:
        """It does not."""
        if trouble != self.trouble:
            say(self.log, level, "cannot be followed", what=self.what, err=trouble)
        self.trouble = trouble


class TopologySink:
    """Hands NodeResourceTopology objects on. A cluster that does not know the kind has none: that is no fault."""

    def __init__(self, cache: LockedCache, told: Told) -> None:
        self._cache, self._told = cache, told

    def listed(self, objects: Sequence[NodeResourceTopology | str]) -> None:
        """These are all, read already."""
        self._told.well()
        self._cache.on_topologies_listed(objects)

    def changed(self, obj: Object) -> None:
        """New or changed."""
        self._cache.on_nrt(obj)

    def deleted(self, obj: Object) -> None:
        """Gone."""
        self._cache.on_nrt_deleted(str((obj.get("metadata") or {}).get("name") or ""))

    def failed(self, error: KubeAPIError) -> None:
        """Not now; without the kind every node passes."""
        if error.status == NOT_FOUND:
            self._told.failing("no such kind in this cluster; every node passes until there is", logging.INFO)
            self._cache.on_topologies_listed(())
        else:
            self._told.failing(str(error))


class PodSink:
    """Hands pods that have a node on."""

    def __init__(self, cache: LockedCache, told: Told) -> None:
        self._cache, self._told = cache, told

    def listed(self, objects: Sequence[PodDemand | None]) -> None:
        """These are all, read already."""
        self._told.well()
        self._cache.on_pods_read(objects)

    def changed(self, obj: Object) -> None:
        """New or changed."""
        self._cache.on_pod(obj)

    def deleted(self, obj: Object) -> None:
        """Gone."""
        self._cache.on_pod_deleted(obj)

    def failed(self, error: KubeAPIError) -> None:
        """Not now."""
        self._told.failing(str(error))


class ClusterFeed:
    """Both watches, each in its thread.

    Args:
        client: may list and watch both kinds.
        log: told when following fails and when it works again.
        with_pods: whether pods are charged.
        backoff: how long to wait after a failure; also how late a kind defined later is noticed.
    """

    def __init__(
        self,
        client: KubeClient,
        log: logging.Logger,
        *,
        with_pods: bool = True,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self._client, self._log, self._with_pods, self._backoff = client, log, with_pods, backoff
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, cache: LockedCache) -> None:
        """Begin."""
        topologies = TopologySink(cache, Told(self._log, str(NODE_RESOURCE_TOPOLOGIES)))
        self._follow(NODE_RESOURCE_TOPOLOGIES, topologies, NOTHING, read_topology)
        if self._with_pods:
            self._follow(PODS, PodSink(cache, Told(self._log, str(PODS))), BOUND_PODS, read_pod)

    def stop(self) -> None:
        """End; a thread that waits for the API server is not waited for long."""
        self._done.set()
        for thread in self._threads:
            thread.join(STOP_S)

    def _follow(
        self, resource: Resource, sink: Sink, parameters: Parameters, read: Callable[[Object], object]
    ) -> None:
        follower = Follower(
            self._client,
            resource,
            sink,
            self._done.wait,
            parameters=parameters,
            backoff=self._backoff(),
            read=read,
        )
        thread = threading.Thread(
            target=self._keep_following, args=(follower, resource), name=f"watch {resource}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def _keep_following(self, follower: Follower, resource: Resource) -> None:
        """Begin anew after a fault of ours: a thread that ended would let what is known grow old unnoticed."""
        backoff = self._backoff()
        while not self._done.is_set():
            try:
                follower.run()
            except Exception:  # noqa: BLE001 - said, with where it happened
                say_trace(self._log, "following failed, beginning anew", what=str(resource))
                follower.forget()
                self._done.wait(backoff.next_s())
