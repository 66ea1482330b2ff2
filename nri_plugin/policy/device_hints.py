"""Hints of devices: one hint set for each device resource, and CPUs in proportion to devices.

The kubelet allocates devices before the runtime creates the container, so nothing is chosen here: a set of NUMA nodes is a
hint when each device is attached to one of them. That holds for every QoS class.

Invariant: a hint lists only nodes that have devices of the resource, although a larger set would hold the devices
as well.

Source: kubelet v1.36.2 pkg/kubelet/cm/devicemanager/topology_hints.go (generateDeviceTopologyHints,
    deviceNUMANodes).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from operator import or_

from nri_plugin.model import bits
from nri_plugin.model.sets import NO_NODES, NodeMask
from nri_plugin.policy.hints import (
    LISTED_NODES,
    Hint,
    HintRule,
    HintSet,
    Need,
    Provider,
    masks_in_order,
    smallest_size,
)
from nri_plugin.policy.search import BudgetSpentError, StepBudget
from nri_plugin.policy.search.intersections import narrowest_size

NAMED_IDS = 8
"""A refusal names so many device ids, and counts the others."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a container.

    Attributes:
        id: the device plugin's id, or an address on the host such as `0000:3b:00.0`.
        nodes: the NUMA nodes it is attached to, each of them near; empty when unknown: then all nodes are near.
    """

    id: str
    nodes: NodeMask = NO_NODES


@dataclass(frozen=True, slots=True)
class DeviceResource:
    """The devices of one resource that a container has been given.

    Attributes:
        name: the resource, `nvidia.com/gpu`.
        devices: those that the container was given.
        totals: (NUMA nodes, how many devices of the resource are attached to exactly these, given or not);
            empty when that is not known.
    """

    name: str
    devices: tuple[Device, ...]
    totals: tuple[tuple[NodeMask, int], ...] = ()


def device_totals(places: Iterable[tuple[NodeMask, int]]) -> tuple[tuple[NodeMask, int], ...]:
    """The totals of one resource from where its devices are, (NUMA nodes, how many); sorted, nowhere left out."""
    counts: dict[NodeMask, int] = {}
    for nodes, count in places:
        if nodes:
            counts[nodes] = counts.get(nodes, 0) + count
    return tuple(sorted(counts.items(), key=lambda item: (len(item[0]), tuple(item[0]))))


def device_hint_sets(nodes: Sequence[int], resources: Sequence[DeviceResource]) -> Provider:
    """The hint sets for a container's devices; resources of which no device has a known place have none.

    Args:
        nodes: all NUMA nodes of the machine, ascending.
        resources: devices of the container, in the order of the kubelet's providers.
    """
    if not resources:
        return None
    of_machine = NodeMask.from_ids(nodes)
    hint_sets = [_hint_set(of_machine, resource) for resource in resources if resource.devices]
    return tuple(hint_set for hint_set in hint_sets if hint_set is not None) or None


def _hint_set(of_machine: NodeMask, resource: DeviceResource) -> HintSet | None:
    """The sets of device nodes that every device is near; preferred at the size that could hold as many devices.

    Differs: the kubelet knows all devices of a resource; here: where the resource's other devices are not
        known, the given ones count as all there are, and one without a known place is near everywhere. Why:
        the runtime reports only the devices of the container. Option: `exporterSocket`, with the exporter
        running.
    """
    totals = {
        nodes.mask: count for nodes, count in device_totals((n & of_machine, c) for n, c in resource.totals)
    }
    given = [(device.nodes & of_machine).mask for device in resource.devices]
    placed = [mask for mask in given if mask]
    if not placed and not resource.totals:
        return None  # no device of the resource has a place: it does not matter where they are
    if resource.totals and len(placed) < len(given):
        return HintSet(resource.name, (), why=_why(resource))  # a device without a place is near no node
    near = _near_all(reduce(or_, (*placed, *totals)), placed)
    budget = StepBudget()
    narrowest = _narrowest(near, totals, len(placed), budget)
    why = _why(resource)
    nodes = tuple(bits.iterate(near.nodes))
    if len(nodes) > LISTED_NODES:
        return HintSet(
            resource.name, (), replace(near, preferred_size=narrowest), why, exact=not budget.is_spent
        )
    hints = tuple(Hint(mask, size == narrowest) for mask, size in masks_in_order(nodes) if mask in near)
    return HintSet(resource.name, hints, why=why)


def _near_all(nodes: int, placed: Sequence[int]) -> HintRule:
    """All sets of `nodes` that touch each of the masks `placed`."""
    required = bits.from_ids(bits.lowest(mask) for mask in placed if mask.bit_count() == 1)
    open_masks = dict.fromkeys(mask for mask in placed if not mask & required)
    needs = tuple(Need(1, dict.fromkeys(bits.iterate(mask), 1)) for mask in open_masks)
    return HintRule(nodes, required, needs, 0)


def _narrowest(near: HintRule, totals: Mapping[int, int], count: int, budget: StepBudget) -> int:
    """Nodes that `count` devices of the resource take when none of them is in use; more than known past the budget."""
    given = narrowest_size(near, budget)
    if all(mask.bit_count() == 1 for mask in totals):
        by_node = {bits.lowest(mask): number for mask, number in totals.items()}
        return min(given, smallest_size(by_node, count) or given)
    try:
        return next(size for size in range(1, given) if _is_enough(near.nodes, size, totals, count, budget))
    except (StopIteration, BudgetSpentError):
        return given


def _is_enough(nodes: int, size: int, totals: Mapping[int, int], count: int, budget: StepBudget) -> bool:
    """Whether some `size` of the nodes have `count` devices near them; a device between nodes counts once."""
    for members in combinations(bits.iterate(nodes), size):
        budget.step()
        mask = bits.from_ids(members)
        if sum(number for near, number in totals.items() if near & mask) >= count:
            return True
    return False


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


# ----------------------------------------------------------------------------------------------------
# CPUs in proportion to the devices on each NUMA node (deviceProportionalCPUs).
#
# Differs: the kubelet packs CPUs into the nodes of the hint, wherever the devices are; here: with
# `deviceProportionalCPUs` each NUMA node gives CPUs in proportion to its devices. Why: each device has CPUs
# of its own node. Option: `deviceProportionalCPUs: false` (the default).


def devices_by_node(resources: Iterable[DeviceResource]) -> dict[int, int]:
    """How many devices are on each NUMA node; one between several, or nowhere in particular, does not count."""
    counts: dict[int, int] = {}
    for resource in resources:
        for device in resource.devices:
            if len(device.nodes) == 1:
                (node,) = device.nodes
                counts[node] = counts.get(node, 0) + 1
    return counts


def proportional_shares(
    count: int, weight_by_node: Mapping[int, int], room_by_node: Mapping[int, int], *, unit: int = 1
) -> dict[int, int]:
    """How many of `count` CPUs each node gets, as many for one device as for another.

    The shares add up to `count`, or to all the room when that is less; none is above its room. They grow
    by whole units while there is room for one, then by single CPUs, each time at the node that is
    furthest behind; on a tie at the lower node.

    Args:
        count: CPUs wanted.
        weight_by_node: number of devices, above zero; only these nodes get a share.
        room_by_node: CPUs available on each node; nodes that are not in it have none.
        unit: CPUs of a core, so that shares are whole cores.

    Source: the rounding is that of Webster: the next unit goes where the part, rounded, is largest.
    """
    shares = dict.fromkeys(sorted(weight_by_node), 0)
    left = count
    for step in (unit, 1):
        while left >= step:
            roomy = [node for node in shares if room_by_node.get(node, 0) - shares[node] >= step]
            if not roomy:
                break
            node = _furthest_behind(roomy, shares, weight_by_node, step)
            shares[node] += step
            left -= step
    return shares


def _furthest_behind(
    nodes: Iterable[int], shares: Mapping[int, int], weight_by_node: Mapping[int, int], step: int
) -> int:
    """The node for which half a step more is the least for each of its devices."""
    best, *others = nodes
    for node in others:
        mine, its = 2 * shares[node] + step, 2 * shares[best] + step
        if mine * weight_by_node[best] < its * weight_by_node[node]:
            best = node
    return best
