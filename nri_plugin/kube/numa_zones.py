"""NUMA nodes as a scheduler counts them: what is available on each, and taking from them.

Zones keep the object's order and are found by id, never by position: ids may have gaps and stand in any order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nri_plugin.kube.noderesourcetopology import NodeResourceTopology, numa_id_of
from nri_plugin.kube.pod_demand import Amounts, is_affine, is_host_level

ALWAYS_ALLOCATABLE = frozenset({"cpu", "memory", "pods", "ephemeral-storage"})
UNKNOWN_COST = 255
"""Source: scheduler-plugins, the highest distance a firmware table can hold."""


@dataclass(frozen=True, slots=True)
class NUMAZone:
    """One NUMA node.

    Attributes:
        id: of the NUMA node.
        available: thousandths by resource name; a resource not named is not there.
        costs: distance by NUMA node id.
    """

    id: int
    available: Mapping[str, int]
    costs: Mapping[int, int]


Zones = tuple[NUMAZone, ...]


def numa_zones(topology: NodeResourceTopology) -> Zones:
    """The zones that are NUMA nodes, in the object's order."""
    return tuple(
        NUMAZone(
            numa_id,
            {resource.name: resource.available_milli for resource in zone.resources},
            {other: cost for name, cost in zone.costs if (other := numa_id_of(name)) is not None},
        )
        for zone in topology.zones
        if (numa_id := zone.numa_id) is not None
    )


def is_free_of_charge(name: str, *, is_guaranteed: bool) -> bool:
    """Whether any amount suits: nobody binds CPUs and memory of a pod that is not Guaranteed."""
    return is_affine(name) and not is_guaranteed


def lists_none(zones: Zones, names: Iterable[str]) -> bool:
    """Whether no zone lists any of the names."""
    return not any(name in zone.available for zone in zones for name in names)


def fitting(
    request: Amounts, zones: Zones, allocatable: Amounts | None, *, is_guaranteed: bool
) -> frozenset[int] | None:
    """Ids of the NUMA nodes that hold the whole request; None when it needs none in particular.

    Args:
        request: what is asked for.
        zones: what is there.
        allocatable: of the node; None where unknown, then the scheduler's own filter has judged that.
        is_guaranteed: of the pod.
    """
    found: frozenset[int] | None = None
    for name, amount in request.items():
        if not amount:
            continue
        if allocatable is not None and name not in ALWAYS_ALLOCATABLE and name not in allocatable:
            return frozenset()
        listing = [zone for zone in zones if name in zone.available]
        if not listing and is_host_level(name):
            continue
        is_free = is_free_of_charge(name, is_guaranteed=is_guaranteed)
        suiting = frozenset(zone.id for zone in listing if is_free or zone.available[name] >= amount)
        found = suiting if found is None else found & suiting
    return found


def take_from_one(
    zones: Zones, numa_id: int, request: Amounts, *, is_guaranteed: bool
) -> tuple[Zones, Sequence[str]]:
    """The zones after one NUMA node gave the request, and the names of what went below zero."""
    taken = {
        name: amount
        for name, amount in request.items()
        if amount and not is_free_of_charge(name, is_guaranteed=is_guaranteed)
    }
    after = tuple(_less(zone, taken) if zone.id == numa_id else zone for zone in zones)
    short = [
        name for zone in after if zone.id == numa_id for name in taken if zone.available.get(name, 0) < 0
    ]
    return after, short


def drain(zones: Zones, positions: Sequence[int], request: Amounts) -> Zones:
    """The zones after those at `positions` gave the request together, each all it has before the next."""
    left = {name: amount for name, amount in request.items() if amount}
    after = list(zones)
    for position in positions:
        zone = zones[position]
        given = {name: min(left[name], have) for name, have in zone.available.items() if name in left}
        given = {name: max(0, amount) for name, amount in given.items()}
        after[position] = _less(zone, given)
        left = {name: amount - given.get(name, 0) for name, amount in left.items()}
    return tuple(after)


def charge_everywhere(zones: Zones, charges: Amounts) -> Zones:
    """Every zone less the whole charge, at least zero: wherever it lands, it was counted.

    Source: scheduler-plugins, the over-reserve cache.
    """
    return tuple(
        replace(
            zone,
            available={
                name: max(0, have - charges.get(name, 0)) if name in charges else have
                for name, have in zone.available.items()
            },
        )
        for zone in zones
    )


def _less(zone: NUMAZone, amounts: Amounts) -> NUMAZone:
    available = {name: have - amounts.get(name, 0) for name, have in zone.available.items()}
    return replace(zone, available=available)
