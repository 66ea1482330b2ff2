"""`nri-pin extender`: watches of the cluster on one side, an HTTP server for kube-scheduler on the other.

Two threads follow NodeResourceTopology objects and pods that have a node, and feed the cache. Requests are answered
under the lock that also guards the cache; objects are decoded before the lock is taken.
"""

import gc
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from nri_plugin.extender.answers import Binder, Extender, ScoreScale
from nri_plugin.extender.cache import Accounting, ExtenderCache, LockedCache, Object, read_pod, read_topology
from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring
from nri_plugin.kube.api_client import (
    NODE_RESOURCE_TOPOLOGIES,
    NOTHING,
    PODS,
    APIResource,
    KubeClient,
    Parameters,
)
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.kube.pod_demand import PodDemand
from nri_plugin.kube.watch import NOT_FOUND, Follower, Sink, WatchBackoff
from nri_plugin.model.errors import ConfigError, KubeAPIError
from nri_plugin.process.http_connections import Certificates, Limits
from nri_plugin.process.http_messages import PROMETHEUS_TEXT, Page, Post, Routes
from nri_plugin.process.http_server import ListenAddress, Server
from nri_plugin.process.logs import LOGGER_NAME, say, say_trace

# Watches


BOUND_PODS = {"fieldSelector": "spec.nodeName!="}

WATCH_STOP_S = 0.1
"""A watch waits for the API server nearly all the time, and nothing is lost if its thread is left behind."""


@dataclass(slots=True)
class FollowState:
    """Logs when following a kind of object fails and when it works again, not at every attempt."""

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

    def __init__(self, cache: LockedCache, state: FollowState) -> None:
        self._cache, self._state = cache, state

    def listed(self, objects: Sequence[NodeResourceTopology | str]) -> None:
        """Take the whole list, already read."""
        self._state.well()
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
            self._state.failing(
                "no such kind in this cluster; every node passes until there is", logging.INFO
            )
            self._cache.on_topologies_listed(())
        else:
            self._state.failing(str(error))


class PodSink:
    """Hands pods that have a node on."""

    def __init__(self, cache: LockedCache, state: FollowState) -> None:
        self._cache, self._state = cache, state

    def listed(self, objects: Sequence[PodDemand | None]) -> None:
        """Take the whole list, already read."""
        self._state.well()
        self._cache.on_pods_read(objects)

    def changed(self, obj: Object) -> None:
        """New or changed."""
        self._cache.on_pod(obj)

    def deleted(self, obj: Object) -> None:
        """Gone."""
        self._cache.on_pod_deleted(obj)

    def failed(self, error: KubeAPIError) -> None:
        """Not now."""
        self._state.failing(str(error))


class ClusterFeed:
    """Both watches, each in its thread.

    Args:
        client: may list and watch both kinds.
        log: for failures of following, and their end.
        with_pods: whether pods are charged.
        backoff: how long to wait after a failure; also how late a kind defined later is noticed.
    """

    def __init__(
        self,
        client: KubeClient,
        log: logging.Logger,
        *,
        with_pods: bool = True,
        backoff: Callable[[], WatchBackoff] = WatchBackoff,
    ) -> None:
        self._client, self._log, self._with_pods, self._backoff = client, log, with_pods, backoff
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, cache: LockedCache) -> None:
        """Begin."""
        topologies = TopologySink(cache, FollowState(self._log, str(NODE_RESOURCE_TOPOLOGIES)))
        self._follow(NODE_RESOURCE_TOPOLOGIES, topologies, NOTHING, read_topology)
        if self._with_pods:
            self._follow(PODS, PodSink(cache, FollowState(self._log, str(PODS))), BOUND_PODS, read_pod)

    def stop(self) -> None:
        """End; a thread that waits for the API server is not waited for long."""
        self._done.set()
        for thread in self._threads:
            thread.join(WATCH_STOP_S)

    def _follow(
        self, resource: APIResource, sink: Sink, parameters: Parameters, read: Callable[[Object], object]
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

    def _keep_following(self, follower: Follower, resource: APIResource) -> None:
        """Begin again after an internal error: if the thread ended, the cache would grow stale unnoticed."""
        backoff = self._backoff()
        while not self._done.is_set():
            try:
                follower.run()
            except Exception:  # noqa: BLE001 - said, with where it happened
                say_trace(self._log, "following failed, beginning anew", what=str(resource))
                follower.forget()
                self._done.wait(backoff.next_s())


class KubeBinder:
    """Creates bindings; the API server copies their annotations to the pod.

    Args:
        client: may create `pods/binding`.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def bind(self, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Bind the pod of this uid.

        Raises:
            KubeAPIError: the pod is gone, bound already or another of the name, or there was no answer.
        """
        metadata: dict[str, object] = {"name": name, "namespace": namespace, "uid": uid}
        if annotations:
            metadata["annotations"] = dict(annotations)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._client.send("POST", PODS.path(name, namespace, "binding"), body=binding)


# The process


SWITCH_INTERVAL_S = 0.001
"""A request waits at most this long for a thread that reads an object; the interpreter's default is five times as long."""

YOUNG_ONLY = (50_000, 20, 10_000)
"""Objects of a thousand nodes are a million Python objects without cycles; a full collection would delay every answer."""


NODES = 5_000
"""Source: Kubernetes, "Considerations for large clusters": no more than 5,000 nodes."""

NAME_BYTES = 256
"""Of a node in a request: a DNS subdomain of at most 253 characters, two quotes, a comma."""

POD_BYTES = 9 << 19
"""4.5 MiB: etcd takes objects of 1.5 MiB, and their JSON is up to three times as long (many short fields)."""

NAMES_BODY_BYTES = NODES * NAME_BYTES + POD_BYTES
"""Longest request of a scheduler that sends names of nodes (`nodeCacheCapable: true`)."""

OBJECTS_BODY_BYTES = 128 << 20
"""Longest request of one that sends whole Node objects: 5,000 of 25 KiB."""

BINDING_BODY_BYTES = 4 << 10
"""Names of pod, namespace and node, and a uid."""

BODIES = 4
"""Longest requests in memory at once. A scheduler asks one thing at a time, and scores and binds beside it."""

STRANGERS = 32
"""kube-scheduler keeps one or two connections, and opens more to bind pods at once."""

STRANGERS_OF_ONE = 16

IDLE_S = 120.0
"""Longer than kube-scheduler keeps an idle connection (90 s), so that it never writes into one we just closed."""


@dataclass(frozen=True, slots=True)
class ExtenderOptions:
    """The options of the command; see `nri-pin extender --help`.

    Attributes:
        body_bytes: longest request; None for what the form needs.
        takes_node_objects: requests may carry whole Node objects.
        healthz_address: where probes ask; None for nowhere.
    """

    address: tuple[str, int] = ("", 8888)
    scoring: Scoring = field(default_factory=Scoring)
    scale: ScoreScale = ScoreScale.RANK
    accounting: Accounting = field(default_factory=Accounting)
    sidecars_stay: bool = True
    offers_bind: bool = False
    sends_to_numa_node: bool = False
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    body_bytes: int | None = None
    takes_node_objects: bool = False
    healthz_address: tuple[str, int] | None = None

    @property
    def longest_body(self) -> int:
        """Bytes of the longest request that is read."""
        return self.body_bytes or (OBJECTS_BODY_BYTES if self.takes_node_objects else NAMES_BODY_BYTES)

    @property
    def limits(self) -> Limits:
        """Limits of all clients together; of requests with whole Node objects, two at once."""
        bodies = 2 if self.takes_node_objects else BODIES
        return Limits(STRANGERS, STRANGERS_OF_ONE, IDLE_S, max(bodies * self.longest_body, 1 << 20))


STOP_S = 5.0
"""Requests that are being answered when the process ends have so long."""

NEEDS_CERTIFICATES = (
    "who may ask for a binding decides where pods run, so TLS and a client CA are needed; "
    "give --tls-cert, --tls-key and --tls-client-ca, or leave binding to kube-scheduler"
)


class ClusterSource(Protocol):
    """What brings objects: a client that lists, watches and reconnects, in threads of its own."""

    def start(self, cache: LockedCache) -> None:
        """Start the watches that feed `cache`."""

    def stop(self) -> None:
        """End."""


class ExtenderProcess:
    """The parts, put together; `serve` answers until `stop`.

    Raises:
        ConfigError: the address or the certificates are wrong, or binding is offered without client certificates.
    """

    def __init__(
        self,
        options: ExtenderOptions,
        feed: ClusterSource,
        binder: Binder | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: logging.Logger | None = None,
    ) -> None:
        if options.offers_bind and (options.certificate is None or options.client_ca is None):
            raise ConfigError("--bind", NEEDS_CERTIFICATES)
        self._lock = threading.Lock()
        cluster = ClusterAnswers(options.scoring, sidecars_stay=options.sidecars_stay)
        self._cache = ExtenderCache(cluster, options.accounting, clock)
        self._extender = Extender(
            self._cache,
            options.scale,
            binder if options.offers_bind else None,
            sends_to_numa_node=options.sends_to_numa_node,
            takes_node_objects=options.takes_node_objects,
        )
        self.cache = LockedCache(self._cache, self._lock)
        self._feed = feed
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._log = log or logging.getLogger(LOGGER_NAME)
        probes = {"/healthz": lambda: Page(b"ok\n"), "/readyz": self._ready}
        place = ListenAddress("--listen", options.address, "extender")
        routes = Routes({"/metrics": self._metrics, **probes}, self._posts(options.longest_body))
        self._certificates = _certificates(options)
        self.server = Server(place, routes, self._log, options.limits, certificates=self._certificates)
        self.probes = None
        if options.healthz_address is not None:
            place = ListenAddress("--health-probe-bind-address", options.healthz_address, "probes")
            self.probes = Server(place, Routes(probes), self._log, keeps_trying=True)

    def warn(self) -> None:
        """Log a warning if the port is open to anyone."""
        if self._certificates is None:
            trouble = "plain HTTP: anyone on the way can read and change answers"
        elif not self._certificates.ask_clients:
            trouble = "no certificate is asked of clients"
        else:
            return
        advice = f"{trouble}, and anyone who reaches the port can ask; give --tls-cert, --tls-key and --tls-client-ca"
        say(self._log, logging.WARNING, "the port is open", err=advice)

    def serve(self) -> None:
        """Answer until `stop`."""
        self._feed.start(self.cache)
        self._stopping.wait()
        self.server.close(STOP_S)
        self._feed.stop()
        if self.probes is not None:
            self.probes.close()
        self._stopped.set()

    def end(self) -> None:
        """Report not ready, answer open requests, and end; `serve` returns after that."""
        self._stopping.set()

    def stop(self) -> None:
        """End, and wait for it."""
        self.end()
        self._stopped.wait(2 * STOP_S)

    def _posts(self, longest: int) -> dict[str, Post]:
        advice = "set nodeCacheCapable: true in kube-scheduler's configuration, or raise --max-body-mib"
        return {
            "/filter": Post(self._locked(self._extender.filter), longest, advice),
            "/prioritize": Post(self._locked(self._extender.prioritize), longest, advice),
            "/bind": Post(lambda body: self._extender.bind(body, self._lock), BINDING_BODY_BYTES),
        }

    def _locked(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        def locked(body: bytes) -> bytes:
            with self._lock:
                return answer(body)

        return locked

    def _ready(self) -> Page:
        if self._stopping.is_set():
            return Page(b"stopping\n", 503)
        if not self._cache.is_ready:
            return Page(b"waiting for the first list of the API server\n", 503)
        return Page(b"ok\n")

    def _metrics(self) -> Page:
        with self._lock:
            counters, charged = self._cache.counters, self._cache.charged_pods()
            nodes = len(self._cache.cluster.table.row_by_node)
        is_stale = self._certificates is not None and self._certificates.is_stale
        lines = [
            ("nri_pin_extender_certificate_stale", "gauge", int(is_stale)),
            ("nri_pin_extender_nodes", "gauge", nodes),
            ("nri_pin_extender_charged_pods", "gauge", charged),
            ("nri_pin_extender_expired_charges_total", "counter", counters.expired_charges),
            ("nri_pin_extender_rejected_objects_total", "counter", counters.rejected_objects),
        ]
        text = "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, kind, value in lines)
        return Page(text.encode(), content_type=PROMETHEUS_TEXT)


def run(process: ExtenderProcess) -> int:
    """Serve until SIGTERM or SIGINT."""

    def end(*_: object) -> None:
        # In another thread: the main thread may have been interrupted while it holds the lock that `end` takes.
        threading.Thread(target=process.end, name="end").start()

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*YOUNG_ONLY)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    process.warn()
    process.serve()
    return 0


def _certificates(options: ExtenderOptions) -> Certificates | None:
    if options.certificate is None or options.key is None:
        return None
    return Certificates(options.certificate, options.key, options.client_ca)
