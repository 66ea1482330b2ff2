"""The exporter's stand-in: reports the devices and facts of simulated pods on `exporter.sock`, and delivers devices to containers.

A container gets device nodes, a `PCIDEVICE_*` variable or CDI names. Tests compare the answers with the exporter's.
The form of an answer is documented in `nri_plugin.core.decision`.

Source: kubelet device plugin API v1beta1, ContainerAllocateResponse; the SR-IOV network device plugin.
"""

import json
import re
import socketserver
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

from nri_plugin.core.decision import LINE_BYTES
from nri_plugin.model.records import Amounts, ContainerFacts, PodFacts
from nri_plugin.model.sets import NodeMask
from nri_plugin.simulator.machine.devices import Delivery, PlacedDevice
from nri_plugin.simulator.simulate.device_manager import DeviceManager
from nri_plugin.simulator.simulate.pods import ContainerSpec, ToldFacts

# Facts


def facts_words(facts: PodFacts) -> dict[str, Any]:
    """Facts as the exporter sends them."""
    words = {
        "uid": facts.uid,
        "qos": str(facts.qos),
        "containers": [_container_words(one) for one in facts.containers],
    }
    return words if facts.pod_resources is None else {**words, "pod_resources": _amounts(facts.pod_resources)}


def _container_words(one: ContainerFacts) -> dict[str, Any]:
    return {"name": one.name, "kind": str(one.kind), **_amounts(one.amounts)}


def _amounts(amounts: Amounts) -> Mapping[str, Any]:
    return {
        "cpu_request_milli": amounts.cpu_request_milli,
        "cpu_limit_milli": amounts.cpu_limit_milli,
        "memory_request_bytes": amounts.memory_request_bytes,
        "memory_limit_bytes": amounts.memory_limit_bytes,
        "hugepages": dict(amounts.hugepages),
    }


# Delivery


_OTHER = re.compile(r"[^A-Z0-9]")


def delivered(spec: ContainerSpec, devices: Iterable[PlacedDevice]) -> ContainerSpec:
    """The container with its devices."""
    devices = tuple(devices)
    return replace(
        spec,
        devices=(*spec.devices, *(each.node for each in devices if each.delivery is not Delivery.CDI)),
        env=(*spec.env, *_variables(_by(devices, Delivery.VARIABLE))),
        cdi_devices=(*spec.cdi_devices, *(each.cdi_name for each in _by(devices, Delivery.CDI))),
    )


def _by(devices: Iterable[PlacedDevice], delivery: Delivery) -> tuple[PlacedDevice, ...]:
    return tuple(each for each in devices if each.delivery is delivery)


def _variables(devices: Iterable[PlacedDevice]) -> Iterable[str]:
    addresses: dict[str, list[str]] = {}
    for device in devices:
        addresses.setdefault(device.resource, []).append(device.address)
    for resource, listed in addresses.items():
        yield f"PCIDEVICE_{_OTHER.sub('_', resource.upper())}={','.join(listed)}"


# Answers


QUESTION_S = 1.0


def answer(manager: DeviceManager, pod: str, container: str) -> dict[str, Any]:
    """The answer for a container of the pod `NAMESPACE/NAME`, for the pod alone where `container` is empty.

    It is empty if the kubelet does not know it.
    """
    by_container = {name: manager.placed(given) for name, given in manager.containers(pod).items()}
    if not by_container or (container and container not in by_container):
        return {}
    everyone = [device for placed in by_container.values() for device in placed]
    own = {"devices": _entries(manager, by_container[container])} if container else {}
    found = {**own, "pod_devices": _entries(manager, everyone)}
    others = {
        name: [
            {key: value for key, value in entry.items() if key != "totals"}
            for entry in _entries(manager, placed)
        ]
        for name, placed in by_container.items()
        if placed and name != container
    }
    return {**found, "devices_by_container": others} if others else found


class ExporterStandIn:
    """Serves `exporter.sock` until `close`."""

    def __init__(self, path: Path, manager: DeviceManager, facts: ToldFacts | None = None) -> None:
        self._server = _PodResourcesServer(str(path), manager, facts or ToldFacts())
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,), name="exporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _PodResourcesServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, manager: DeviceManager, facts: ToldFacts) -> None:
        self.manager, self.facts = manager, facts
        super().__init__(path, _PodResourcesHandler)


class _PodResourcesHandler(socketserver.StreamRequestHandler):
    timeout = QUESTION_S
    server: _PodResourcesServer

    def handle(self) -> None:
        """One question, one answer."""
        with suppress(OSError, ValueError, KeyError):
            question = json.loads(self.rfile.readline(LINE_BYTES))
            pod = f"{question['namespace']}/{question['name']}"
            found = answer(self.server.manager, pod, question["container"])
            if (facts := self.server.facts.facts(pod, question["pod"])) is not None:
                found["facts"] = facts_words(facts)
            self.wfile.write(json.dumps(found).encode() + b"\n")


def _entries(manager: DeviceManager, devices: Iterable[PlacedDevice]) -> list[dict[str, Any]]:
    """One entry for each resource and set of NUMA nodes, resources in the order of the first."""
    ids: dict[str, dict[NodeMask, list[str]]] = {}
    for device in devices:
        ids.setdefault(device.resource, {}).setdefault(device.nodes, []).append(device.id)
    entries = []
    for resource, by_nodes in ids.items():
        totals = {str(nodes): count for nodes, count in manager.totals(resource)}
        for nodes, members in by_nodes.items():
            entry = {"resource": resource, "ids": members, "nodes": [int(number) for number in nodes]}
            # left out if no device of the resource is attached to a NUMA node
            entries.append(entry | {"totals": totals} if totals else entry)
    return entries
