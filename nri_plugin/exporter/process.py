"""The exporter's process: sockets on the node, threads, signals and HTTP servers.

Two sockets are served on the node: PodResources for monitoring, and devices and facts of pods for the agent. Both are in
a separate folder of the agent's state directory. The exporter can write only to that folder, so a compromised exporter
cannot change the checkpoint. Only the exporter mounts the kubelet's socket.
"""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nri_plugin.exporter.exporter import Exporter, ExportOptions
from nri_plugin.exporter.facts_socket import AnswerSource, Facts, FactsSocket, OfPod, never
from nri_plugin.exporter.pod_resources import KubeletClient, PodResourcesServer, View, devices_of
from nri_plugin.exporter.publication import Devices
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.model.errors import HostError, KubeletError
from nri_plugin.process.logs import say

if TYPE_CHECKING:
    from nri_plugin.process.http_server import Server


FOLDER = "exporter"
POD_RESOURCES_SOCKET = "pod-resources.sock"
FACTS_SOCKET = "exporter.sock"


class LocalSockets:
    """The sockets, from `open` to `close`.

    Args:
        kubelet_socket: of the kubelet's PodResources API; empty to do without devices and PodResources.
        agent_socket: of the agent. The sockets are in the folder `exporter` beside it, which is created if it is missing.
        log: for failures when they begin and end.
    """

    def __init__(self, kubelet_socket: str, agent_socket: str, log: logging.Logger) -> None:
        self._kubelet = KubeletClient(kubelet_socket) if kubelet_socket else None
        self._log = log
        self._folder = os.path.join(os.path.dirname(os.path.abspath(agent_socket)), FOLDER)
        self._servers: list[PodResourcesServer | FactsSocket] = []
        self._known = Devices()
        self._trouble = ""

    def open(self, view: View, facts_of: Facts, has_ended: OfPod = never, is_static: OfPod = never) -> None:
        """Start serving. The object is published even if this fails.

        Args:
            view: returns the agent's allocations.
            facts_of: returns a pod's facts.
            has_ended: returns whether a pod has ended for sure.
            is_static: returns whether a pod is a static one.
        """
        facts, resources = (os.path.join(self._folder, name) for name in (FACTS_SOCKET, POD_RESOURCES_SOCKET))
        try:
            _made(self._folder)
            source = AnswerSource(self._kubelet, facts_of, has_ended=has_ended, is_static=is_static)
            self._servers.append(FactsSocket(facts, source, self._log))
            if self._kubelet:
                self._servers.append(PodResourcesServer(resources, self._kubelet, view))
        except HostError as error:
            say(self._log, logging.WARNING, "a local socket is missing", err=error)
            return
        say(
            self._log,
            logging.INFO,
            "answering",
            facts=facts,
            pod_resources=resources if self._kubelet else None,
        )

    def devices(self) -> Devices:
        """Return the kubelet's devices; the last known devices while it does not answer."""
        if self._kubelet is None:
            return self._known
        try:
            self._known = devices_of(self._kubelet.allocatable(), self._kubelet.list())
            trouble = ""
        except KubeletError as error:
            trouble = str(error)
        if trouble != self._trouble and trouble:
            say(self._log, logging.WARNING, "devices are not updated", err=trouble)
        self._trouble = trouble
        return self._known

    def close(self) -> None:
        """Stop serving."""
        for server in self._servers:
            server.close()
        if self._kubelet is not None:
            self._kubelet.close()


def _made(folder: str) -> None:
    """Create the folder with the mode of a kubelet's folder. The sockets themselves belong to root.

    Raises:
        HostError: it is missing and cannot be created.
    """
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        return
    except OSError as error:
        raise HostError(folder, f"cannot be made: {error.strerror or error}") from None


def serve(options: ExportOptions, client: KubeClient, log: logging.Logger) -> None:
    """Publish until SIGTERM or SIGINT."""
    local = LocalSockets(options.kubelet_socket, options.agent_socket, log)
    exporter = Exporter(options, client, log, devices=local.devices if options.kubelet_socket else None)
    pods = exporter.pods
    local.open(exporter.view, pods.facts, pods.has_ended, pods.is_static)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: exporter.stop())
    say(log, logging.INFO, "exporting", node=options.node_name, agent=options.agent_socket)
    servers = serve_http(options, exporter, log)
    exporter.run()
    for server in servers:
        server.close()
    local.close()
    client.close()


def serve_http(
    options: ExportOptions,
    exporter: Exporter,
    log: logging.Logger,
    clock: Callable[[], float] = time.monotonic,
) -> "Sequence[Server]":
    """Metrics, and probes on a port of their own, if addresses are given; their modules are loaded only then.

    Raises:
        ConfigError: an address is wrong.
    """
    if options.metrics_bind_address is None and options.health_probe_bind_address is None:
        return ()
    from nri_plugin.exporter import monitoring
    from nri_plugin.process.http_server import ListenAddress, Routes, Server

    probes = monitoring.probe_pages(exporter, clock)
    servers = []
    if options.health_probe_bind_address is not None:
        place = ListenAddress("--health-probe-bind-address", options.health_probe_bind_address, "probes")
        servers.append(Server(place, Routes(probes), log, keeps_trying=True))
    if options.metrics_bind_address is not None:
        place = ListenAddress("--metrics-bind-address", options.metrics_bind_address, "metrics")
        pages = {"/metrics": lambda: monitoring.metrics_page(exporter), **probes}
        servers.append(Server(place, Routes(pages), log, keeps_trying=True))
    return servers
