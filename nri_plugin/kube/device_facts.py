"""What the exporter tells the agent of a container's devices, from the kubelet's PodResources answers.

The wire format is described in `nri_plugin.facts`; both sides are tested against each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nri_plugin.kube.pod_resources import Allocatable, ContainerDevices, PodResources, numa_ids
from nri_plugin.nodemask import NodeMask
from nri_plugin.policy.device_hints import device_totals

Totals = Mapping[str, Sequence[tuple[NodeMask, int]]]
"""How many devices there are, by resource and the NUMA nodes they are attached to."""


def answer(pod: PodResources | None, container: str, totals: Totals) -> dict[str, Any]:
    """The answer for one container; without `devices` where the kubelet does not know it."""
    if pod is None:
        return {}
    mine = next((one for one in pod.containers if one.name == container), None)
    if mine is None:
        return {}
    everyone = [device for one in pod.containers for device in one.devices]
    return {"devices": _entries(mine.devices, totals), "pod_devices": _entries(everyone, totals)}


def totals_of(allocatable: Allocatable) -> dict[str, tuple[tuple[NodeMask, int], ...]]:
    """All devices of the node that are attached to NUMA nodes, by resource."""
    places: dict[str, list[tuple[NodeMask, int]]] = {}
    for device in allocatable.devices:
        place = NodeMask.from_ids(numa_ids(device)), len(device.device_ids)
        places.setdefault(device.resource_name, []).append(place)
    totals = {name: device_totals(of_resource) for name, of_resource in places.items()}
    return {name: known for name, known in totals.items() if known}


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
            entry["totals"] = {str(nodes): count for nodes, count in totals[name]}
        entries.append(entry)
    return entries
