"""NUMA nodes sorted into clusters that nobody outside can tell apart by distance.

Two nodes belong together when every third node is as far from the one as from the other. Such nodes
act as one towards all others, so whole clusters are compared the same way, and so on: what is left in
the end is one tree on machines built in levels (nodes in sockets, sockets in boards), and many small
trees on machines whose distances follow no order. Inside a cluster all parts are equally far apart, so
only how many nodes are taken of each part decides how far the taken ones are from each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, zip_longest
from operator import add
from typing import NamedTuple

from nri_plugin.model import bits

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


# ----------------------------------------------------------------------------------------------------
# A cluster as a tree of joints, and what taking 0, 1, 2... nodes of it costs at least.
#
# The leaves are bunches: nodes that are equally far from each other. How far i of them are apart depends
# on i alone, so the cheapest i are those for which taking costs least more than leaving. All else joins two
# parts. Taking i nodes of one part and j of the other puts i x j pairs apart. As 2ij = (i+j)^2 - i^2 - j^2,
# the cheapest of all splits is a plain sum of two rows, entry by entry, once squares are taken off and put
# back; rows hold twice the cost for that. So a whole machine of 64 nodes takes a fraction of a millisecond.


class Joint(NamedTuple):
    """Nodes of a cluster, in two parts, or a bunch of nodes.

    Attributes:
        nodes: their mask.
        one: position of one part in the list of joints, -1 for a bunch.
        other: position of the other.
        apart: distance there and back between nodes of the two parts, or between any two of a bunch.
    """

    nodes: int
    one: int = -1
    other: int = -1
    apart: int = 0


def joints_of(cluster: Cluster, nodes: int) -> list[Joint]:
    """The joints of a cluster's nodes that are in `nodes`, parts before their wholes."""
    joints: list[Joint] = []
    _add(cluster, nodes, joints)
    return joints


def _add(cluster: Cluster, nodes: int, joints: list[Joint]) -> int:
    """Add the joints of a cluster that has some of `nodes`, and tell where the last one is."""
    parts = [part for part in cluster.parts if part.nodes & nodes]
    places = [_add(part, nodes, joints) for part in parts if (part.nodes & nodes).bit_count() > 1]
    single = cluster.nodes & nodes
    for place in places:
        single &= ~joints[place].nodes
    if single:
        joints.append(Joint(single, apart=cluster.apart))
        places.append(len(joints) - 1)
    while len(places) > 1:
        rest = places[len(places) & ~1 :]
        for one, other in zip(places[::2], places[1::2], strict=False):
            whole = joints[one].nodes | joints[other].nodes
            joints.append(Joint(whole, one, other, cluster.apart))
            rest.append(len(joints) - 1)
        places = rest
    return places[0]


NEVER = 1 << 4096
"""More than anything costs."""

Row = list[int]
"""By how many nodes are taken: twice what that costs at least."""

Costs = Mapping[int, tuple[int, int]]
"""By node, what it costs to leave and to take it."""


def inside(joints: Sequence[Joint], costs: Costs, unit: int, count: int) -> list[Row]:
    """The row of each joint, up to `count` nodes; the last entry of the last one is that of a whole.

    Args:
        joints: parts before their wholes.
        costs: what nodes cost.
        unit: cost of one unit of distance.
        count: how many nodes at most; of all joints together, exactly.
    """
    rows: list[Row] = []
    for place, joint in enumerate(joints, 1):
        apart = joint.apart * unit
        if joint.one < 0:
            rows.append(_of_bunch([costs[node] for node in bits.iterate(joint.nodes)], apart, count))
        else:
            one, other = _less(rows[joint.one], apart), _less(rows[joint.other], apart)
            least = count if place == len(joints) else 0
            rows.append(_less(_cheapest_splits(one, other, least, count), -apart, least))
    return rows


def outside(
    joints: Sequence[Joint], rows: Sequence[Row], costs: Costs, unit: int, count: int
) -> list[list[Row]]:
    """By how many nodes a joint has taken: twice what the others cost at least, up to `count` in all.

    The joint itself left aside, but with the distances between it and the others. For a bunch a row for
    its first node, for its first two, and so on, the last for all of it.
    """
    found: list[list[Row]] = [[] for _ in joints]
    found[-1] = [[NEVER] * count + [0]]
    for place in range(len(joints) - 1, -1, -1):
        joint, (row,) = joints[place], found[place]
        apart = joint.apart * unit
        if joint.one < 0:
            found[place] = _unfolded(row, [costs[node] for node in bits.iterate(joint.nodes)], apart)
            continue
        rest = _less(row, -apart)
        for part, sibling in ((joint.one, joint.other), (joint.other, joint.one)):
            there = _less(rows[sibling], apart)
            least = [min(map(add, there, rest[taken:])) for taken in range(len(rows[part]))]
            found[part] = [_less(least, apart)]
    return found


def _of_bunch(costs: Sequence[tuple[int, int]], apart: int, count: int) -> Row:
    """Nodes that are equally far apart: the first to be taken are those with the least to lose."""
    more = sorted([taken - left for left, taken in costs])[:count]
    return [
        2 * cost + apart * taken * (taken - 1)
        for taken, cost in enumerate(accumulate(more, initial=sum([left for left, _ in costs])))
    ]


def _unfolded(row: Row, costs: Sequence[tuple[int, int]], apart: int) -> list[Row]:
    """What all outside the first node of a bunch cost, its first two, ... given that for all of it."""
    rows = [row]
    for place in range(len(costs) - 1, 0, -1):
        left, taken = costs[place]
        further = zip_longest(row, row[1:], fillvalue=NEVER)
        row = [
            min(without + 2 * left, more + 2 * (taken + apart * number))
            for number, (without, more) in enumerate(further)
        ][: place + 1]
        rows.append(row)
    return rows[::-1]


def _less(row: Row, apart: int, first: int = 0) -> Row:
    return [cost - apart * taken * taken for taken, cost in enumerate(row, first)] if apart else row


def _cheapest_splits(one: Row, other: Row, least: int, most: int) -> Row:
    """The cheapest sum of an entry of each, by the sum of their positions, from `least` to `most`."""
    back = other[::-1]
    last = len(other) - 1
    top = min(most, len(one) - 1 + last)
    few = range(least, min(last, top) + 1)
    many = range(max(least, last + 1), top + 1)
    return [
        *[min(map(add, one, back[last - taken :])) for taken in few],
        *[min(map(add, one[taken - last :], back)) for taken in many],
    ]


# ----------------------------------------------------------------------------------------------------
# Machines built in levels, but for two planes: nodes on different planes are farther from each other.
#
# Of k nodes, a on one plane and k - a on the other, a(k - a) pairs cross over. For any number t, that is no
# more than a(k - 2t) + t^2, and just that for t = a. With this instead, crossings become a price of the
# nodes on one plane, and what is left is a machine built in levels. The best of what is best for each t is
# the best of all. What sets cost at least for one t tells how little they can cost for the next, so few
# numbers need to be looked at.


def layout_in_planes(rows: Rows) -> Layout:
    """The clusters of a machine with these distances; of those on two planes, with crossings left aside."""
    found = layout(rows)
    plane, crossings = _planes(rows) if len(found.clusters) > 1 else (0, [])
    for crossing in crossings:
        rest = layout(_without(rows, plane, crossing))
        if len(rest.clusters) == 1:
            return replace(rest, plane=plane, crossing=crossing)
    return found


def _planes(rows: Rows) -> tuple[int, list[int]]:
    """The one way to lay nodes on two planes with the farthest ones across, and what crossing may cost."""
    apart = {
        one: {other: rows[one][other] + rows[other][one] for other in rows if other != one} for one in rows
    }
    farthest, *others = sorted({far for row in apart.values() for far in row.values()}, reverse=True)
    across = {
        one: bits.from_ids(other for other in row if row[other] == farthest) for one, row in apart.items()
    }
    plane, rest = 0, 1 << min(rows)
    for _ in rows:
        for one in rows:
            plane |= across[one] if rest >> one & 1 else 0
            rest |= across[one] if plane >> one & 1 else 0
    is_one_way = not plane & rest and plane | rest == bits.from_ids(rows)
    return (plane, [farthest - far for far in others]) if is_one_way else (0, [])


def _without(rows: Rows, plane: int, crossing: int) -> Mapping[int, Mapping[int, int]]:
    """The distances there and back without what crossing costs, as distances there."""
    return {
        one: {
            other: (rows[one][other] + rows[other][one] - crossing * ((plane >> one ^ plane >> other) & 1))
            * (one < other)
            for other in rows
        }
        for one in rows
    }


REACH = 2
"""What is found for a number should do for as many before and after it."""


class Turns:
    """The numbers t from `low` to `high`, and what is known of them.

    Attributes:
        least: by number, what sets with so many nodes on the plane cost at least.
    """

    def __init__(self, low: int, high: int, crossing: int) -> None:
        self.least = dict.fromkeys(range(low, high + 1), -NEVER)
        self._crossing = crossing

    def take(self, least: Callable[[int, int], int], known: Callable[[], int]) -> None:
        """Look at the numbers for which a set may cost no more than `known`, the most promising first.

        Args:
            least: of a number, what sets cost at least when each crossing costs what it costs for that
                number; where that is about as much as `known`, the second argument is how exact it need be.
            known: what the best set so far costs.
        """
        rest = set(self.least)
        while rest:
            number = min(rest, key=lambda number: (self.least[number], number))
            if self.least[number] > known():
                return
            rest.remove(number)
            found = least(number, self._crossing * REACH * REACH)
            for other, before in self.least.items():
                self.least[other] = max(before, found - self._crossing * (other - number) ** 2)
