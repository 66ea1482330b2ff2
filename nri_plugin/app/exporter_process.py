"""The exporter's process: its sockets, threads, signals and HTTP servers, put together."""

import logging
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nri_plugin.app.exporter import Exporter, ExportOptions
from nri_plugin.app.local_sockets import LocalSockets
from nri_plugin.app.logs import say
from nri_plugin.kube.api_client import KubeClient

if TYPE_CHECKING:
    from nri_plugin.app.http_server import Server


def serve(options: ExportOptions, client: KubeClient, log: logging.Logger) -> None:
    """Publish until SIGTERM or SIGINT."""
    local = LocalSockets(options.kubelet_socket, options.agent_socket, log)
    exporter = Exporter(options, client, log, devices=local.devices if options.kubelet_socket else None)
    local.open(exporter.view, exporter.pods.facts)
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
    """Metrics, and probes on a port of their own, where addresses say so; nothing of them is loaded elsewhere.

    Raises:
        ConfigError: an address is wrong.
    """
    if options.metrics_bind_address is None and options.health_probe_bind_address is None:
        return ()
    from nri_plugin.app import exporter_monitoring as monitoring
    from nri_plugin.app.http_pages import Routes
    from nri_plugin.app.http_server import Place, Server

    probes = monitoring.probe_pages(exporter, clock)
    servers = []
    if options.health_probe_bind_address is not None:
        place = Place("--health-probe-bind-address", options.health_probe_bind_address, "probes")
        servers.append(Server(place, Routes(probes), log, keeps_trying=True))
    if options.metrics_bind_address is not None:
        place = Place("--metrics-bind-address", options.metrics_bind_address, "metrics")
        pages = {"/metrics": monitoring.metrics_page(exporter), **probes}
        servers.append(Server(place, Routes(pages), log, keeps_trying=True))
    return servers
