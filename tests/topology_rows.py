"""Machines from rows of numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from nri_plugin.model.sets import CoreID, CPUSet, NUMANodeID, SocketID, UncoreCacheID
from nri_plugin.model.topology import NUMANode, Topology

GroupID = TypeVar("GroupID", CoreID, SocketID, UncoreCacheID, NUMANodeID)


def topology_of_rows(
    rows: Iterable[Sequence[int]],
    *,
    memory_bytes: Mapping[int, int] | None = None,
    distances: Mapping[int, Sequence[int]] | None = None,
) -> Topology:
    """A machine from rows `(cpu, core, socket, numa node, uncore cache)`.

    Args:
        rows: one per online CPU.
        memory_bytes: by node id; nodes named only here have no CPUs.
        distances: by node id, in ascending order of node ids.
    """
    table = [tuple(row) for row in rows]
    memory = memory_bytes or {}
    cpus_by_node = {NUMANodeID(n): CPUSet() for n in memory} | dict(_groups(table, 3, NUMANodeID))
    nodes = tuple(
        NUMANode(
            node,
            cpus,
            memory.get(node),
            distances=tuple(distances[node]) if distances and node in distances else None,
        )
        for node, cpus in sorted(cpus_by_node.items())
    )
    return Topology(
        online=CPUSet.from_ids(row[0] for row in table),
        cores=_groups(table, 1, CoreID),
        sockets=_groups(table, 2, SocketID),
        nodes=nodes,
        caches=_groups(table, 4, UncoreCacheID),
    )


def _groups(
    table: Sequence[tuple[int, ...]], column: int, make: Callable[[int], GroupID]
) -> tuple[tuple[GroupID, CPUSet], ...]:
    masks: dict[int, int] = {}
    for row in table:
        masks[row[column]] = masks.get(row[column], 0) | 1 << row[0]
    return tuple((make(number), CPUSet(mask)) for number, mask in sorted(masks.items()))
