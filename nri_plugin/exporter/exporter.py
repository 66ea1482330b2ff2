"""`nri-pin export`: publishes the agent's allocations as a NodeResourceTopology object, and creates events on pods.

Four threads: one follows the agent's status socket, one watches our object, one watches the pods of the node, and the
main loop publishes. Where the startup taint is kept, a fifth watches the Node. The agent depends on none of them. While the
agent or the cluster is away, the published object stays as it is.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nri_plugin.agent.observing.status_client import AgentStatus, follow, reject_pod
from nri_plugin.exporter.events import Announcer
from nri_plugin.exporter.publication import (
    FORBIDDEN,
    NO_DEVICES,
    PAUSE_S,
    Devices,
    NodeOwner,
    Publisher,
    owners_of,
    published,
)
from nri_plugin.exporter.startup_taint import StartupTaint
from nri_plugin.kube.api_client import (
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PODS,
    APIResource,
    KubeClient,
    Object,
    Parameters,
)
from nri_plugin.kube.noderesourcetopology import to_object
from nri_plugin.kube.pod_facts import PodsHere
from nri_plugin.kube.watch import NOT_FOUND, Follower, Sink, WatchBackoff
from nri_plugin.model.errors import KubeAPIError, NriPinError
from nri_plugin.model.options import Node
from nri_plugin.model.state import State
from nri_plugin.process.logs import LogRateLimit, say, say_trace
from nri_plugin.process.loop import start_thread

MANAGER = "nri-pin"
"""Field manager of the object."""

DEVICES_S = 30.0
"""Longest pause of the main loop, which asks the kubelet for devices each time. Each status of the agent wakes it, too."""

OURS = ("topologyPolicies", "zones", "attributes")
"""The fields of the object that nri-pin owns."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of the command.

    Attributes:
        node_name: the name of this node in the cluster.
        agent_socket: the agent's status socket.
        take_over: take the object from another exporter.
        pause_s: the pause between two writes.
        kubelet_socket: of the kubelet's PodResources API; empty for no devices.
        fails_pods: set a refused pod to Failed instead of leaving it to wait.
        metrics_bind_address: of the metrics server; None for none.
        health_probe_bind_address: of the server for probes; None for none.
        keeps_taint: keep the startup taint on the Node while the agent is away.
    """

    node_name: str
    agent_socket: str
    take_over: bool = False
    pause_s: float = PAUSE_S
    kubelet_socket: str = ""
    fails_pods: bool = False
    metrics_bind_address: tuple[str, int] | None = None
    health_probe_bind_address: tuple[str, int] | None = None
    keeps_taint: bool = False


class Exporter:
    """Publishes until `stop`.

    Args:
        options: of the command.
        client: of the cluster.
        log: for changes, and for failures when they begin and end.
        clock: seconds that only grow.
        devices: returns the kubelet's present devices; None without a kubelet socket.

    Attributes:
        publisher: writes the object.
        pods: the facts of this node's pods.
        announcer: creates events.
        owner: knows the Node, which owns the object.
        taint: keeps the startup taint; None where it is not asked for.
        hears_agent: the agent has sent a status and has not ended since.
        unchanged: the number of statuses that changed nothing in the object.
        published_at: the time of the last accepted write, in seconds since 1970; 0 for never.
        came_round_at: the time of the main loop's last round, on `clock`.
        trouble: why the last write was not accepted; empty if it was.
        faults: the number of unexpected errors.
        is_faulty: the last round of the main loop ended with one.
        threads: the listeners; they are daemon threads.
    """

    def __init__(
        self,
        options: ExportOptions,
        client: KubeClient,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        devices: Callable[[], Devices] | None = None,
    ) -> None:
        self._devices, self._latest_devices, self._clock = devices, NO_DEVICES, clock
        self.hears_agent, self.unchanged, self.published_at = False, 0, 0.0
        self.came_round_at = clock()
        self._latest: AgentStatus | None = None
        self._options, self._client, self._log = options, client, log
        self.publisher = Publisher(
            client,
            NODE_RESOURCE_TOPOLOGIES,
            MANAGER,
            clock,
            take_over=options.take_over,
            pause_s=options.pause_s,
        )
        self.pods = PodsHere(self._pods_lost, self._pods_changed)
        self.announcer = Announcer(
            client,
            options.node_name,
            log,
            clock,
            self.pods,
            fails_pods=options.fails_pods,
            reject=lambda row: reject_pod(
                options.agent_socket, row.pod_uid, row.reason, row.message or row.detail
            ),
        )
        # Other threads put in what came last, and then wake the main loop; signal handlers may do so, too.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._statuses: deque[AgentStatus] = deque(maxlen=1)
        self._seen: deque[tuple[Object, bool]] = deque(maxlen=1)
        self._stopping = threading.Event()
        self.owner = NodeOwner(client, options.node_name, log, clock)
        self.taint = (
            StartupTaint(client, options.node_name, log, clock, self._wake) if options.keeps_taint else None
        )
        self._taken_back = LogRateLimit()
        self.trouble, self.faults, self.is_faulty = "", 0, False
        self._said_observing = False
        self.threads: list[threading.Thread] = []

    def stop(self) -> None:
        """End soon. Signal handlers and all threads may call this."""
        self._stopping.set()
        self._wake()

    def run(self) -> None:
        """Publish until `stop`."""
        sink = _OwnObject(self)
        selector = {"fieldSelector": f"metadata.name={self._options.node_name}"}
        own = self._follower(NODE_RESOURCE_TOPOLOGIES, sink, selector)
        sink.version = lambda: own.version
        here = {"fieldSelector": f"spec.nodeName={self._options.node_name}"}
        pods = self._follower(PODS, self.pods, here)
        listening = (self._keep_listening, ())
        threads: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            listening,
            (own.run, ()),
            (pods.run, ()),
        ]
        if self.taint is not None:
            node = self._follower(NODES, self.taint, selector)
            threads.append((node.run, ()))
        for target, arguments in threads:
            self.threads.append(threading.Thread(target=target, args=arguments, daemon=True))
            start_thread(self.threads[-1])
        backoff = WatchBackoff()
        while not self._stopping.is_set():
            before = self.faults
            try:
                self.step(self._wait())
            except Exception:  # noqa: BLE001 - logged with its trace
                self._fault("publishing")
            try:
                if self.taint is not None:
                    self.taint.step()
            except Exception:  # noqa: BLE001 - logged with its trace
                self._fault("startup taint")
            self.came_round_at = self._clock()
            self.is_faulty = self.faults != before
            if self.is_faulty:
                self._stopping.wait(backoff.next_s())
            else:
                backoff.reset()

    def _follower(self, resource: APIResource, sink: Sink, parameters: Parameters) -> Follower:
        return Follower(
            self._client, resource, sink, self._stopping.wait, parameters=parameters, fault=self._fault
        )

    def _keep_listening(self) -> None:
        """Listen to the agent until `stop`."""
        backoff = WatchBackoff()
        while not self._stopping.is_set():
            try:
                follow(self._options.agent_socket, self.tell, self._stopping.wait, self._log, self.agent_lost)
            except Exception:  # noqa: BLE001 - logged with its trace
                self._fault("agent")
                self._stopping.wait(backoff.next_s())

    def _fault(self, what: str) -> None:
        """Log and count the unexpected error that is being handled."""
        self.faults += 1
        say_trace(self._log, "unexpected error, trying again", what=what)

    def tell(self, status: AgentStatus) -> None:
        """Take a status of the agent."""
        self.hears_agent = True
        if self.taint is not None:
            self.taint.hear(is_ready=status.runtime is not None)
        self._latest = status
        self._statuses.append(status)
        self._wake()

    def agent_lost(self) -> None:
        """Note that the agent is gone."""
        was_heard, self.hears_agent = self.hears_agent, False
        if self.taint is not None and was_heard:
            self.taint.hear(is_ready=False)
            self._wake()

    def seen(self, obj: Object, *, is_gone: bool = False) -> None:
        """Take the cluster's version of the object, or its deletion. Fields that others changed are then restored."""
        self._seen.append((obj, is_gone))
        self._wake()

    def step(self, status: AgentStatus | None) -> None:
        """Process the agent's status and changes by others, and publish if it is due."""
        is_news = status is not None
        status = status or self._latest
        if status is None or self._is_observing(status):
            return
        # Devices and the Node may have changed without news of the agent.
        self.publisher.want(self.object_of(status))
        self.unchanged += is_news and self.publisher.due_s() is None
        if self.publisher.due_s() == 0.0 and not self.owner.is_missing:
            self._publish()
        self.announcer.announce(status)

    def _is_observing(self, status: AgentStatus) -> bool:
        """Return whether the agent only observes; the log says when that begins."""
        if status.observing and not self._said_observing:
            say(
                self._log,
                logging.WARNING,
                "the agent only observes: no object is published, no event is sent and no pod is rejected",
                note="an object that was published before stays until it is deleted",
            )
        self._said_observing = status.observing
        return status.observing

    def object_of(self, status: AgentStatus) -> Object:
        """Return the object for a status of the agent."""
        if self._devices:
            self._latest_devices = self._devices()
        obj = to_object(published(self._options.node_name, status.node, status.state, self._latest_devices))
        self.owner.look()
        if self.owner.reference is not None:
            obj["metadata"]["ownerReferences"] = [self.owner.reference]
        return obj

    def _wait(self) -> AgentStatus | None:
        """Wait for news; return the newest status of the agent, None if there is no new one."""
        with suppress(queue.Empty):
            self._news.get(timeout=self._patience_s())
        while not self._news.empty():
            self._news.get()
        if self._seen:
            seen, is_gone = self._seen.pop()
            if self.publisher.noticed(seen, OURS, is_gone=is_gone) and is_gone:
                self.owner.doubt()
                say(self._log, logging.WARNING, "the object was deleted", node=self._options.node_name)
        return self._statuses.pop() if self._statuses else None

    def _patience_s(self) -> float:
        """Return how long to wait for news. It is limited, because devices change without news and the probe checks this loop."""
        taint_s = self.taint.due_s() if self.taint is not None else None
        longest_s = DEVICES_S if taint_s is None else min(DEVICES_S, taint_s)
        if self._latest is None or self._latest.observing:
            return longest_s
        due_s = (None if self.owner.is_missing else self.publisher.due_s(), self.announcer.due_s())
        return min(self.owner.due_s(), longest_s, *(one for one in due_s if one is not None))

    def view(self) -> tuple[Node, State] | None:
        """Return node and state of the last status; None before the first one and while the agent only observes."""
        latest = self._latest
        return None if latest is None or latest.observing else (latest.node, latest.state)

    def _pods_changed(self) -> None:
        """Wake the main loop where the kubelet has overwritten the phase of a rejected pod."""
        if self.announcer.has_undone():
            self._wake()

    def _wake(self) -> None:
        self._news.put(None)

    def _publish(self) -> None:
        try:
            self.publisher.publish()
        except KubeAPIError as error:
            self._failed(error)
            return
        self.published_at = time.time()
        others = self.publisher.taken_back_from
        if others and self._taken_back.is_due(others, self._clock()):
            say(
                self._log,
                logging.WARNING,
                "another manager changed the object, restored",
                manager=others,
            )
        if self.trouble or self.publisher.writes == 1:
            say(self._log, logging.INFO, "published", node=self._options.node_name)
        self.trouble = ""

    def publish_once(self, status: AgentStatus) -> None:
        """Publish one status.

        Raises:
            NriPinError: it was not accepted; the text tells the remedy.
        """
        if status.observing:
            raise NriPinError(
                "the agent only observes, there is nothing to publish; start it without --observe"
            )
        self.publisher.want(self.object_of(status))
        try:
            self.publisher.publish()
        except KubeAPIError as error:
            raise NriPinError(self._advice(error)) from error

    def _pods_lost(self, error: KubeAPIError) -> None:
        """Log that the facts of pods are missing or outdated."""
        advice = "; kubectl apply -f deploy/export-rbac.yaml" if error.status == FORBIDDEN else ""
        say(
            self._log,
            logging.WARNING,
            "facts of new pods that runtimes do not report are inferred",
            err=f"{error}{advice}",
        )

    def _failed(self, error: KubeAPIError) -> None:
        """Log the failure and the remedy, once."""
        trouble = self._advice(error)
        if trouble != self.trouble:
            say(self._log, logging.WARNING, "not published, will be tried again", err=trouble)
        self.trouble = trouble

    def _advice(self, error: KubeAPIError) -> str:
        """Return the failure and the remedy."""
        if owners_of(error):
            return (
                f"{owners_of(error)} already publishes the NodeResourceTopology of {self._options.node_name}; "
                "stop that exporter, or take the object from it with --take-over"
            )
        if error.status == NOT_FOUND:
            return "the cluster does not know NodeResourceTopology yet; kubectl apply -f deploy/crd.yaml"
        if error.status == FORBIDDEN:
            return f"{error}; kubectl apply -f deploy/export-rbac.yaml"
        return str(error)


class _OwnObject:
    """Receives the cluster's version of our object.

    Attributes:
        version: returns the resource version of the last list.
    """

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self.version: Callable[[], str] = lambda: ""

    def listed(self, objects: Sequence[Object]) -> None:
        """Take all objects of that name: one or none."""
        if objects:
            self._exporter.seen(objects[0])
        else:
            self._exporter.seen({"metadata": {"resourceVersion": self.version()}}, is_gone=True)

    def changed(self, obj: Object) -> None:
        """Take a write, by this manager or another."""
        self._exporter.seen(obj)

    def deleted(self, obj: Object) -> None:
        """Take a deletion; the version is that of the deletion."""
        self._exporter.seen(obj, is_gone=True)

    def failed(self, error: KubeAPIError) -> None:
        """Do nothing: publishing fails for the same reason and logs it."""
