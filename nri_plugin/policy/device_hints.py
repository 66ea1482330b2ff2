"""Where a container's devices are: one wish for each device resource, before those for CPU and memory.

The kubelet has given the devices before a runtime is told of the container, so nothing is chosen here:
a set of NUMA nodes is a hint when every device is attached to one of them. That holds for every QoS class.

Source: kubelet v1.36 pkg/kubelet/cm/devicemanager/topology_hints.go.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.nodemask import NO_NODES, NodeMask
from nri_plugin.policy.budget import Budget
from nri_plugin.policy.family_search import narrowest_size
from nri_plugin.policy.hints import (
    LISTED_NODES,
    Family,
    Hint,
    Need,
    Provider,
    Wish,
    masks_in_order,
    smallest_size,
)

NAMED_IDS = 8
"""So many device ids are named in a refusal; the others are counted."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a container.

    Attributes:
        id: the device plugin's id, or an address on the host such as `0000:3b:00.0`.
        nodes: the NUMA nodes it is attached to, any of them near; empty when nobody says: near everywhere.
    """

    id: str
    nodes: NodeMask = NO_NODES


@dataclass(frozen=True, slots=True)
class DeviceResource:
    """The devices of one resource that a container has been given.

    Attributes:
        name: the resource, `nvidia.com/gpu`.
        devices: what was given.
        total_by_node: (NUMA node, how many of the resource are attached to it, given or not); empty
            when that is not known.
    """

    name: str
    devices: tuple[Device, ...]
    total_by_node: tuple[tuple[int, int], ...] = ()


def device_wishes(nodes: Sequence[int], resources: Iterable[DeviceResource]) -> Provider:
    """The wishes for a container's devices; resources of which no device has a known place wish nothing.

    Args:
        nodes: all NUMA nodes of the machine, ascending.
        resources: what the container has been given, in the order of the kubelet's providers.

    Differs: a device without a known place beside others of its resource is near everywhere; the
        kubelet then finds no node set at all that holds what was asked for.
    """
    wishes = [_wish(tuple(nodes), resource) for resource in resources]
    return tuple(wish for wish in wishes if wish is not None) or None


def _wish(nodes: tuple[int, ...], resource: DeviceResource) -> Wish | None:
    """Any set of nodes that every device is near; preferred at the size that could hold as many devices.

    Differs: where it is not known how many devices each node has, the given ones count as all there are.
    """
    every = bits.from_ids(nodes)
    placed = [mask for device in resource.devices if (mask := device.nodes.mask & every)]
    if not placed:
        return None
    required = bits.from_ids(bits.lowest(mask) for mask in placed if mask.bit_count() == 1)
    open_masks = dict.fromkeys(mask for mask in placed if not mask & required)
    needs = tuple(Need(1, dict.fromkeys(bits.iterate(mask), 1)) for mask in open_masks)
    budget = Budget()
    narrowest = _narrowest(Family(every, required, needs, 0), resource, len(placed), budget)
    family, why = Family(every, required, needs, narrowest), _why(resource)
    if len(nodes) > LISTED_NODES:
        return Wish(resource.name, (), family, why, exact=not budget.is_spent)
    hints = tuple(Hint(mask, size == narrowest) for mask, size in masks_in_order(nodes) if mask in family)
    return Wish(resource.name, hints, why=why)


def _narrowest(family: Family, resource: DeviceResource, count: int, budget: Budget) -> int:
    """Nodes that `count` devices of the resource take when none of them is in use."""
    given = narrowest_size(family, budget)
    possible = smallest_size(dict(resource.total_by_node), count)
    return given if possible is None else min(given, possible)


def _why(resource: DeviceResource) -> str:
    named = resource.devices[:NAMED_IDS]
    by_place: dict[str, list[str]] = {}
    for device in named:
        by_place.setdefault(_place(device.nodes), []).append(device.id)
    where = ", ".join(f"{' '.join(ids)} {place}" for place, ids in by_place.items())
    more = f", and {len(resource.devices) - NAMED_IDS} more" if len(resource.devices) > NAMED_IDS else ""
    return f"{resource.name}: given {where}{more}"


def _place(nodes: NodeMask) -> str:
    if not nodes:
        return "anywhere"
    return f"on NUMA node {nodes}" if len(nodes) == 1 else f"between NUMA nodes {nodes}"
