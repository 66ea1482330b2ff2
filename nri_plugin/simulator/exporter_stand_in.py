"""Stands in for the exporter: tells the agent on `exporter.sock` which devices the played kubelet has given.

The wire is that of `nri_plugin.facts`. What the real exporter would answer from a kubelet that lists the same
devices is compared in the tests. Facts of pods are left out, as where the cluster cannot be watched.
"""

import json
import socketserver
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from nri_plugin.facts import LINE_BYTES
from nri_plugin.nodemask import NodeMask
from nri_plugin.simulator.device_manager import DeviceManager, Given

QUESTION_S = 1.0


def answer(manager: DeviceManager, pod: str, container: str) -> dict[str, Any]:
    """What is known of a container of the pod `NAMESPACE/NAME`; empty where the kubelet does not know it."""
    containers = manager.containers(pod)
    if container not in containers:
        return {}
    everyone = [entry for given in containers.values() for entry in _entries(manager, given)]
    return {"devices": _merged(_entries(manager, containers[container])), "pod_devices": _merged(everyone)}


class ExporterStandIn:
    """Answers from the moment it is made until `close`."""

    def __init__(self, path: Path, manager: DeviceManager) -> None:
        self._server = _Server(str(path), manager)
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), name="exporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, manager: DeviceManager) -> None:
        self.manager = manager
        super().__init__(path, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    timeout = QUESTION_S
    server: _Server

    def handle(self) -> None:
        """One question, one answer."""
        with suppress(OSError, ValueError, KeyError):
            question = json.loads(self.rfile.readline(LINE_BYTES))
            found = answer(
                self.server.manager, f"{question['namespace']}/{question['name']}", question["container"]
            )
            self.wfile.write(json.dumps(found).encode() + b"\n")


def _entries(manager: DeviceManager, given: Given) -> list[dict[str, Any]]:
    return [
        {
            "resource": device.resource,
            "ids": [device.id],
            "nodes": [int(number) for number in device.nodes],
            **_totals(manager.totals(device.resource)),
        }
        for device in manager.placed(given)
    ]


def _merged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each resource and set of NUMA nodes, resources in the order of the first."""
    merged: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
    for entry in entries:
        key = (entry["resource"], tuple(entry["nodes"]))
        known = merged.setdefault(key, {**entry, "ids": []})
        known["ids"] += entry["ids"]
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in merged))}
    return [entry for _, entry in sorted(merged.items(), key=lambda item: order[item[0][0]])]


def _totals(counts: Iterable[tuple[NodeMask, int]]) -> dict[str, dict[str, int]]:
    """The entry's `totals`; left out where all devices of the resource are nowhere."""
    known = {str(nodes): count for nodes, count in counts}
    return {"totals": known} if known else {}
