"""NUMA nodes sorted into clusters that nobody outside can tell apart by distance.

Two nodes belong together when every third node is as far from the one as from the other. Such nodes
act as one towards all others, so whole clusters are compared the same way, and so on: what is left in
the end is one tree on machines built in levels (nodes in sockets, sockets in boards), and many small
trees on machines whose distances follow no order. Inside a cluster all parts are equally far apart, so
only how many nodes are taken of each part decides how far the taken ones are from each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Rows = Mapping[int, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes that are equally far from each node outside.

    Attributes:
        nodes: their mask.
        parts: what it consists of; none for a single node.
        apart: distance there and back between nodes of different parts.
    """

    nodes: int
    parts: tuple["Cluster", ...] = ()
    apart: int = 0


@dataclass(frozen=True)
class Layout:
    """The largest clusters of a machine.

    Attributes:
        clusters: they hold each node once; a single one on a machine built in levels.
        apart: by two of their positions, the distance there and back between their nodes.
        plane: mask of the nodes on one of two planes (`planes.py`).
        crossing: how much farther, there and back, nodes on different planes are from each other.
    """

    clusters: tuple[Cluster, ...]
    apart: tuple[tuple[int, ...], ...]
    plane: int = 0
    crossing: int = 0


def layout(rows: Rows) -> Layout:
    """The clusters of a machine with these distances; there and back may differ."""
    nodes = sorted(rows)
    clusters = [Cluster(1 << node) for node in nodes]
    apart = [[rows[one][other] + rows[other][one] for other in nodes] for one in nodes]
    while True:
        groups = _alike(apart)
        if len(groups) == len(clusters):
            return Layout(tuple(clusters), tuple(map(tuple, apart)))
        clusters = [_joined([clusters[n] for n in group], _between(apart, group)) for group in groups]
        apart = [[apart[one[0]][other[0]] for other in groups] for one in groups]


def _joined(clusters: Sequence[Cluster], apart: int) -> Cluster:
    if len(clusters) == 1:
        return clusters[0]
    return Cluster(sum(cluster.nodes for cluster in clusters), tuple(clusters), apart)


def _between(apart: Sequence[Sequence[int]], group: Sequence[int]) -> int:
    return apart[group[0]][group[-1]]


def _alike(apart: Sequence[Sequence[int]]) -> list[list[int]]:
    """Positions in groups whose rows agree everywhere else; the groups by their first position.

    All pairs of a group are equally far apart: with that distance in place of the one to itself,
    rows that agree everywhere else are the same.
    """
    group_of: dict[int, list[int]] = {}
    by_row: dict[tuple[int, ...], list[int]] = {}
    for position, row in enumerate(apart):
        for distance in sorted({other for number, other in enumerate(row) if number != position}):
            alike = by_row.setdefault((distance, *row[:position], distance, *row[position + 1 :]), [position])
            if alike[0] != position:
                alike.append(position)
                group_of[position] = group_of[alike[0]] = alike
    groups = [group_of.get(position, [position]) for position in range(len(apart))]
    return [group for position, group in enumerate(groups) if group[0] == position]
