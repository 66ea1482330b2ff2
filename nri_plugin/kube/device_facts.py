"""What the exporter tells the agent of a container's devices, from the kubelet's PodResources answers.

The wire format is described in `nri_plugin.facts`; both sides are tested against each other.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nri_plugin.kube.pod_resources import Allocatable, ContainerDevices, PodResources, numa_ids

Totals = Mapping[str, Mapping[int, int]]
"""How many devices there are, by resource and NUMA node."""


def answer(pod: PodResources | None, container: str, totals: Totals) -> dict[str, Any]:
    """The answer for one container; without `devices` where the kubelet does not know it."""
    if pod is None:
        return {}
    mine = next((one for one in pod.containers if one.name == container), None)
    if mine is None:
        return {}
    everyone = [device for one in pod.containers for device in one.devices]
    return {"devices": _entries(mine.devices, totals), "pod_devices": _entries(everyone, totals)}


def totals_of(allocatable: Allocatable) -> dict[str, dict[int, int]]:
    """All devices of the node by resource and NUMA node."""
    totals: dict[str, dict[int, int]] = {}
    for device in allocatable.devices:
        for number in numa_ids(device):
            by_node = totals.setdefault(device.resource_name, {})
            by_node[number] = by_node.get(number, 0) + len(device.device_ids)
    return totals


def _entries(devices: Iterable[ContainerDevices], totals: Totals) -> list[dict[str, Any]]:
    """An entry for each resource and set of NUMA nodes, in the order of the first."""
    ids: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for device in devices:
        ids.setdefault((device.resource_name, tuple(numa_ids(device))), []).extend(device.device_ids)
    order = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in ids))}
    entries = []
    for (name, nodes), members in sorted(ids.items(), key=lambda item: order[item[0][0]]):
        entry: dict[str, Any] = {"resource": name, "ids": members, "nodes": list(nodes)}
        if totals.get(name):
            entry["totals"] = {str(number): count for number, count in sorted(totals[name].items())}
        entries.append(entry)
    return entries
