"""The process of `nri-pin extender`: watches of the cluster, and an HTTP server for kube-scheduler.

Two threads follow NodeResourceTopology objects and pods, and feed the cache. Requests are answered
under the lock of the cache. Objects are decoded before the lock is taken.
"""

import gc
import logging
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from nri_plugin.extender.answers import Binder, Extender, ScoreScale
from nri_plugin.extender.cache import (
    Accounting,
    ExtenderCache,
    Object,
    Unreadable,
    pod_key,
    read_pod,
    read_topology,
)
from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring
from nri_plugin.extender.forms import BindingArgs
from nri_plugin.kube.api_client import (
    NODE_RESOURCE_TOPOLOGIES,
    PODS,
    APIResource,
    KubeClient,
)
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.kube.pod_demand import PodDemand
from nri_plugin.kube.watch import NOT_FOUND, Follower, Sink, WatchBackoff
from nri_plugin.model.errors import ConfigError, KubeAPIError
from nri_plugin.process.figures import figure
from nri_plugin.process.http_server import (
    PROMETHEUS_TEXT,
    Certificates,
    Limits,
    ListenAddress,
    Page,
    Post,
    Routes,
    Server,
)
from nri_plugin.process.logs import LOGGER_NAME, Repeats, say, say_trace
from nri_plugin.process.loop import start_thread

# Watches


WATCH_STOP_S = 0.1
"""How long to wait for the thread of a watch at the end. It nearly always waits for the API server, and no data is lost
if it does not end."""


class _CacheSink:
    """Feeds the cache under its lock; logs when watching begins to fail and when it works again, not every attempt.

    Args:
        cache: is fed.
        lock: guards the cache; objects are read before it is taken.
        log: for failures and their end.
        what: the kind of object.
    """

    def __init__(
        self,
        cache: ExtenderCache,
        lock: AbstractContextManager[object],
        log: logging.Logger,
        what: APIResource,
    ) -> None:
        self._cache, self._lock, self._log, self._what = cache, lock, log, str(what)
        self._trouble = ""
        self._rejected: Repeats[str] = Repeats()

    def _works(self) -> None:
        if self._trouble:
            say(self._log, logging.INFO, "followed again", what=self._what)
        self._trouble = ""

    def _fails(self, trouble: str, level: int = logging.WARNING) -> None:
        if trouble != self._trouble:
            say(self._log, level, "cannot be followed", what=self._what, err=trouble)
        self._trouble = trouble


class TopologySink(_CacheSink):
    """Receives NodeResourceTopology objects. A cluster that does not know the kind has none, which is no failure."""

    def listed(self, objects: Sequence[NodeResourceTopology | Unreadable]) -> None:
        """Take the whole list, as `read_topology` returns it."""
        self._works()
        for one in objects:
            self._warn(one)
        with self._lock:
            self._cache.on_topologies_listed(objects)

    def changed(self, obj: Object) -> None:
        """Take a new or changed object."""
        topology = read_topology(obj)
        self._warn(topology)
        with self._lock:
            self._cache.on_topology(topology)

    def _warn(self, topology: NodeResourceTopology | Unreadable) -> None:
        """Name the node of an object that is not used, once for each reason and while."""
        if isinstance(topology, Unreadable) and self._rejected.is_first(
            topology.name, topology.why, time.monotonic()
        ):
            text = "the node's object is not used, so every pod passes the node"
            say(self._log, logging.WARNING, text, node=topology.name, err=topology.why)

    def deleted(self, obj: Object) -> None:
        """Take a deletion."""
        with self._lock:
            self._cache.on_topology_deleted(str((obj.get("metadata") or {}).get("name") or ""))

    def failed(self, error: KubeAPIError) -> None:
        """Log the failure; without the kind every node passes."""
        if error.status != NOT_FOUND:
            self._fails(str(error))
            return
        self._fails("no such kind in this cluster; every node passes until there is", logging.INFO)
        with self._lock:
            self._cache.on_topologies_listed(())


class PodSink(_CacheSink):
    """Receives pods: those with a node are charged, and a charge ends with its pod, whether it got a node or not."""

    def listed(self, objects: Sequence[PodDemand | None]) -> None:
        """Take the whole list, as `read_pod` returns it."""
        self._works()
        with self._lock:
            self._cache.on_pods_listed(objects)

    def changed(self, obj: Object) -> None:
        """Take a new or changed pod."""
        pod = read_pod(obj)
        with self._lock:
            self._cache.on_pod(pod)

    def deleted(self, obj: Object) -> None:
        """Take a deletion."""
        with self._lock:
            self._cache.on_pod_deleted(pod_key(obj))

    def failed(self, error: KubeAPIError) -> None:
        """Log the failure."""
        self._fails(str(error))


class ClusterFeed:
    """Both watches, each in its thread.

    Args:
        client: may list and watch both kinds.
        log: for failures of following, and their end.
        with_pods: whether pods are charged.
        backoff: makes the pauses after failures, which also delay the detection of a kind that is defined later.

    Attributes:
        faults: the number of unexpected errors.
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
        self.faults = 0

    def start(self, topologies: TopologySink, pods: PodSink) -> None:
        """Start both watches."""
        self._follow(NODE_RESOURCE_TOPOLOGIES, topologies, read_topology)
        if self._with_pods:
            self._follow(PODS, pods, read_pod)

    def stop(self) -> None:
        """End. Threads that wait for the API server get a short time to end."""
        self._done.set()
        for thread in self._threads:
            thread.join(WATCH_STOP_S)

    def _follow(self, resource: APIResource, sink: Sink, read: Callable[[Object], object]) -> None:
        follower = Follower(
            self._client,
            resource,
            sink,
            self._done.wait,
            backoff=self._backoff(),
            read=read,
            fault=self._fault,
        )
        thread = threading.Thread(target=follower.run, name=f"watch {resource}", daemon=True)
        start_thread(thread)
        self._threads.append(thread)

    def _fault(self, what: str) -> None:
        self.faults += 1
        say_trace(self._log, "watch failed unexpectedly; listing again", what=what)


def api_binder(client: KubeClient) -> Binder:
    """Return a function that creates bindings; the API server copies their annotations to the pod.

    The function raises `KubeAPIError` if the pod is gone, already bound, or another pod of the name, or if there was no
    answer. The client must have the right to create `pods/binding`.
    """

    def bind(args: BindingArgs, annotations: Mapping[str, str]) -> None:
        metadata: dict[str, object] = {
            "name": args.pod_name,
            "namespace": args.pod_namespace,
            "uid": args.pod_uid,
        }
        if annotations:
            metadata["annotations"] = dict(annotations)
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": args.node},
        }
        client.send("POST", PODS.path(args.pod_name, args.pod_namespace, "binding"), body=binding)

    return bind


# The process


SWITCH_INTERVAL_S = 0.001
"""Longest time that a request waits for a thread that reads an object. The interpreter's default is five times as long."""

YOUNG_ONLY = (50_000, 20, 10_000)
"""Thresholds of the garbage collector. Objects of a thousand nodes are a million Python objects without cycles, and a full
collection would delay every answer."""


NODES = 5_000
"""Source: Kubernetes, "Considerations for large clusters": no more than 5,000 nodes."""

NAME_BYTES = 256
"""A node's name in a request: a DNS subdomain of at most 253 characters, two quotes, a comma."""

POD_BYTES = 9 << 19
"""4.5 MiB: etcd accepts objects of 1.5 MiB, and their JSON is up to three times as long (many short fields)."""

NAMES_BODY_BYTES = NODES * NAME_BYTES + POD_BYTES
"""Longest request of a scheduler that sends names of nodes (`nodeCacheCapable: true`)."""

OBJECTS_BODY_BYTES = 128 << 20
"""Longest request of a scheduler that sends whole Node objects: 5,000 of 25 KiB."""

BINDING_BODY_BYTES = 4 << 10
"""Names of pod, namespace and node, and a uid."""

BODIES = 4
"""Longest requests in memory at once. A scheduler filters and scores one pod at a time, and binds others meanwhile."""

CONNECTIONS = 32
"""Connections at a time. kube-scheduler keeps one or two, and opens more to bind pods at the same time."""

IDLE_S = 120.0
"""Longer than kube-scheduler keeps an idle connection (90 s), so that it never writes into a closed one."""


@dataclass(frozen=True, slots=True)
class ExtenderOptions:
    """The options of the command; see `nri-pin extender --help`.

    Attributes:
        body_bytes: longest request; None for the default of the form.
        takes_node_objects: requests may carry whole Node objects.
        healthz_address: of the probes; None for none.
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
        """Bytes of the longest accepted request."""
        return self.body_bytes or (OBJECTS_BODY_BYTES if self.takes_node_objects else NAMES_BODY_BYTES)

    @property
    def limits(self) -> Limits:
        """Limits of all clients together; at most two requests with whole Node objects at once."""
        bodies = 2 if self.takes_node_objects else BODIES
        return Limits(CONNECTIONS, IDLE_S, max(bodies * self.longest_body, 1 << 20))


MOST_REJECTED = 32
"""Nodes that the metrics name, of those whose object is not used."""

STOP_S = 5.0
"""Time for open requests when the process ends."""

NEEDS_CERTIFICATES = (
    "a client that may request a binding decides where pods run, so TLS and a client CA are needed; "
    "give --tls-cert, --tls-key and --tls-client-ca, or leave binding to kube-scheduler"
)


class ExtenderProcess:
    """The parts of the process; `serve` answers until `stop`.

    Raises:
        ConfigError: the address or the certificates are wrong, or binding is offered without client certificates.
    """

    def __init__(
        self,
        options: ExtenderOptions,
        feed: ClusterFeed,
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
        self._feed = feed
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._log = log or logging.getLogger(LOGGER_NAME)
        self.topologies = TopologySink(self._cache, self._lock, self._log, NODE_RESOURCE_TOPOLOGIES)
        self.pods = PodSink(self._cache, self._lock, self._log, PODS)
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
        """Log a warning if any client may use the port."""
        if self._certificates is None:
            trouble = "plain HTTP: others on the network can read and change answers"
        elif not self._certificates.ask_clients:
            trouble = "clients need no certificate"
        else:
            return
        advice = f"{trouble}, and every client that reaches the port may ask; give --tls-cert, --tls-key and --tls-client-ca"
        say(self._log, logging.WARNING, "the port is open", err=advice)

    def serve(self) -> None:
        """Answer until `stop`."""
        self._feed.start(self.topologies, self.pods)
        self._stopping.wait()
        # Open requests need the cache, so the server ends before the watches; probes report until the end.
        self.server.close(STOP_S)
        self._feed.stop()
        if self.probes is not None:
            self.probes.close()
        self._stopped.set()

    def end(self) -> None:
        """Report not ready, answer open requests, and end; then `serve` returns."""
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
            unused = dict.fromkeys(list(self._cache.rejected)[:MOST_REJECTED], 1)
            nodes = len(self._cache.cluster.table.row_by_node)
        is_stale = self._certificates is not None and self._certificates.is_stale
        rows: tuple[tuple[str, str, float | dict[str, int], str], ...] = (
            ("nri_pin_extender_certificate_stale", "New files cannot be used.", int(is_stale), ""),
            ("nri_pin_extender_nodes", "Nodes with an object.", nodes, ""),
            ("nri_pin_extender_charged_pods", "Pods that their node does not account for yet.", charged, ""),
            ("nri_pin_extender_expired_charges_total", "Charges that ended.", counters.expired_charges, ""),
            ("nri_pin_extender_rejected_objects_total", "Not read.", counters.rejected_objects, ""),
            ("nri_pin_extender_faults_total", "Unexpected errors of a watch.", self._feed.faults, ""),
            ("nri_pin_extender_rejected_node", "Nodes whose object is not used.", unused, "node"),
        )
        body = "".join(figure(name, text, value, label) for name, text, value, label in rows)
        return Page(body.encode(), content_type=PROMETHEUS_TEXT)


def run(process: ExtenderProcess) -> int:
    """Serve until SIGTERM or SIGINT."""
    # `end` runs in another thread: the main thread may have been interrupted while it holds the lock that `end` takes. The
    # thread is made now, because later there may be none left.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def end() -> None:
        signals.get()
        process.end()

    start_thread(threading.Thread(target=end, name="end", daemon=True))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*YOUNG_ONLY)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: signals.put(number))
    process.warn()
    process.serve()
    return 0


def _certificates(options: ExtenderOptions) -> Certificates | None:
    if options.certificate is None or options.key is None:
        return None
    return Certificates(options.certificate, options.key, options.client_ca)
