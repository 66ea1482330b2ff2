"""The exporter's side of `exporter.sock`: devices of a container from the kubelet, and facts of its pod from the cluster.

The runtime waits for the answer, and with it every pod of the node. So the kubelet is asked with a time limit below
that of the agent, and only if its answer matters; figures that seldom change are cached. No request goes to the cluster:
the facts come from the watch of the node's pods.

`nri_plugin.core.decision` describes the wire format; both sides are tested against each other.
"""

import logging
import os
import socketserver
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from socket import SHUT_RDWR
from threading import Thread
from typing import Any

import msgspec

from nri_plugin.core.decision import LINE_BYTES
from nri_plugin.exporter.pod_resources import (
    Allocatable,
    ContainerDevices,
    KubeletClient,
    PodResources,
    numa_ids,
)
from nri_plugin.model.errors import HostError, KubeletError
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.device_hints import device_totals
from nri_plugin.process.logs import say
from nri_plugin.process.loop import start_thread

# Devices


Totals = Mapping[str, Sequence[tuple[NodeMask, int]]]
"""Numbers of devices, by resource and by the NUMA nodes that they are near."""


def answer(pod: PodResources, container: str, totals: Totals) -> dict[str, Any]:
    """Return the answer for one container, or for the pod where `container` is empty; empty if the kubelet does not know it.

    The totals are beside the devices of the container and of the pod, not beside those of each other container: a line
    has no room for 128 copies.
    """
    mine = next((one for one in pod.containers if one.name == container), None)
    if mine is None and container:
        return {}
    everyone = [device for one in pod.containers for device in one.devices]
    others = {
        one.name: _entries(one.devices, {}) for one in pod.containers if one is not mine and one.devices
    }
    return {
        **({"devices": _entries(mine.devices, totals)} if mine is not None else {}),
        "pod_devices": _entries(everyone, totals),
        **({"devices_by_container": others} if others else {}),
    }


def totals_of(allocatable: Allocatable) -> dict[str, tuple[tuple[NodeMask, int], ...]]:
    """Return the numbers of the node's devices that are near NUMA nodes, by resource."""
    places: dict[str, list[tuple[NodeMask, int]]] = {}
    for device in allocatable.devices:
        place = NodeMask.from_ids(numa_ids(device)), len(device.device_ids)
        places.setdefault(device.resource_name, []).append(place)
    totals = {name: device_totals(of_resource) for name, of_resource in places.items()}
    return {name: known for name, known in totals.items() if known}


def _entries(devices: Iterable[ContainerDevices], totals: Totals) -> list[dict[str, Any]]:
    """Return an entry for each resource and set of NUMA nodes; resources in the order of their first device."""
    ids: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for device in devices:
        ids.setdefault((device.resource_name, tuple(numa_ids(device))), []).extend(device.device_ids)
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in ids))}
    entries = []
    for (name, nodes), members in sorted(ids.items(), key=lambda item: order[item[0][0]]):
        entry: dict[str, Any] = {"resource": name, "ids": members, "nodes": list(nodes)}
        if totals.get(name):
            entry["totals"] = {str(nodes): count for nodes, count in totals[name]}
        entries.append(entry)
    return entries


# Answers


KUBELET_S = 0.08
"""Time limit for the questions to the kubelet of one answer together, below the 100 ms of the agent."""

TOTALS_S = 10.0
"""How long totals stay valid. Device plugins come and go in minutes."""

MOST_CLIENTS = 32
"""Clients at a time. The agent asks one question at a time; each client takes a thread and a descriptor."""

REQUEST_S = 1.0
"""Time limit for a request, which is one line."""

NOT_KNOWN = b"{}\n"


Answer = Mapping[str, object]
Facts = Callable[[str, str, str], Answer | None]
"""Returns the facts of a pod by namespace, name and uid; None if it is unknown."""

OfPod = Callable[[str, str, str], bool]
"""Returns whether something is known of a pod, by namespace, name and uid."""


def never(_namespace: str, _name: str, _uid: str) -> bool:
    """Return that it is not."""
    return False


class FactsRequest(msgspec.Struct):
    """One request of the agent.

    Attributes:
        pod: the uid.
        container: empty in a request about the pod alone.
        devices: whether they are asked for.
    """

    pod: str
    namespace: str
    name: str
    container: str
    devices: bool = True


class AnswerSource:
    """Answers with devices from the kubelet and facts from the cluster; each is useful without the other.

    Args:
        kubelet: a client of the kubelet; None if there is no kubelet.
        facts: returns the facts of a pod.
        clock: seconds that only grow.
        has_ended: returns whether a pod has ended for sure.
        is_static: returns whether a pod is a static one. A container of it is created all the same: without the API server,
            which it may be itself, its mirror is an old one.
    """

    def __init__(
        self,
        kubelet: KubeletClient | None,
        facts: Facts,
        clock: Callable[[], float] = time.monotonic,
        has_ended: OfPod = never,
        is_static: OfPod = never,
    ) -> None:
        self._kubelet, self._facts, self._clock = kubelet, facts, clock
        self._has_ended, self._is_static = has_ended, is_static
        self._totals: Totals = {}
        self._totals_until = clock()

    def __call__(self, request: FactsRequest) -> Answer:
        """Return the answer; without `devices` if the kubelet does not know the container.

        Raises:
            KubeletError: the kubelet did not answer in time, and there are no facts either.
        """
        facts = self._facts(request.namespace, request.name, request.pod)
        known: dict[str, object] = {"facts": facts} if facts else {}
        pod = request.namespace, request.name, request.pod
        if self._has_ended(*pod) and not (request.container and self._is_static(*pod)):
            known["has_ended"] = True
        if self._kubelet is None or not request.devices:
            return known
        try:
            return {**self._devices(self._kubelet, request), **known}
        except KubeletError as error:
            # That the kubelet does not know the pod is an answer: the agent then uses its other sources of devices.
            if known or error.is_unknown:
                return known
            raise

    def _devices(self, kubelet: KubeletClient, request: FactsRequest) -> Answer:
        until = self._clock() + KUBELET_S
        pod = kubelet.get(request.namespace, request.name, KUBELET_S).pod_resources
        found = answer(pod, request.container, {})
        if not found.get("pod_devices"):
            return found
        # Both questions share the time: an agent that gave up would lose the facts as well.
        left_s = until - self._clock()
        if self._clock() >= self._totals_until and left_s > 0:
            # Without totals the agent prefers the nodes of the given devices, which is nearly the same.
            with suppress(KubeletError):
                self._totals = totals_of(kubelet.allocatable(left_s))
                self._totals_until = self._clock() + TOTALS_S
        return answer(pod, request.container, self._totals)


class FactsSocket:
    """Serves from its creation until `close`.

    Args:
        path: of the socket; a socket that exists there is replaced.
        source: returns answers.
        log: for requests without an answer, at debug level.

    Raises:
        HostError: the socket cannot be made there.
    """

    def __init__(self, path: str, source: Callable[[FactsRequest], Answer], log: logging.Logger) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)
        # The socket must never be accessible to others, not even before a chmod.
        before = os.umask(0o177)
        try:
            self._server = _FactsServer(path, source, log)
        except OSError as error:
            raise HostError(path, f"cannot be listened on: {error.strerror or error}") from None
        finally:
            os.umask(before)
        self._path = path
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), name="facts", daemon=True)
        start_thread(self._thread)

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with suppress(FileNotFoundError):
            os.unlink(self._path)


class _FactsServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, path: str, source: Callable[[FactsRequest], Answer], log: logging.Logger) -> None:
        self.source, self.log = source, log
        self.is_silent_by_client: dict[Any, bool] = {}
        super().__init__(path, _FactsHandler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; where too many clients are connected, the oldest that has asked nothing goes."""
        if len(self.is_silent_by_client) >= MOST_CLIENTS:
            silent = [one for one, is_silent in list(self.is_silent_by_client.items()) if is_silent]
            if not silent:
                self.shutdown_request(request)
                return
            self.is_silent_by_client.pop(silent[0], None)
            with suppress(OSError):
                silent[0].shutdown(SHUT_RDWR)  # its thread closes it
        self.is_silent_by_client[request] = True
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection."""
        self.is_silent_by_client.pop(request, None)
        super().shutdown_request(request)


class _FactsHandler(socketserver.StreamRequestHandler):
    timeout = REQUEST_S
    server: _FactsServer

    def handle(self) -> None:
        """Answer one request; without an answer the connection is closed, and the agent uses its other sources."""
        try:
            question = self.rfile.readline(LINE_BYTES)
            self.server.is_silent_by_client[self.request] = False
            request = msgspec.json.decode(question, type=FactsRequest)
            line = _line(self.server.source(request))
        except (msgspec.DecodeError, KubeletError, OSError) as error:
            say(self.server.log, logging.DEBUG, "question not answered", err=error)
            return
        with suppress(OSError):
            self.wfile.write(line)


def _line(answer: Answer) -> bytes:
    """Encode the answer within `LINE_BYTES`.

    What is too long goes first without the devices of other containers, then without facts, and else empty.
    """
    words = dict(answer)
    for left_out in ("", "devices_by_container", "facts"):
        words.pop(left_out, None)
        line = msgspec.json.encode(words) + b"\n"
        if len(line) <= LINE_BYTES:
            return line
    return NOT_KNOWN
