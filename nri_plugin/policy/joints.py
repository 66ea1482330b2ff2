"""A cluster as a tree of joints, and what taking 0, 1, 2... nodes of it costs at least.

The leaves are bunches: nodes that are equally far from each other. How far i of them are apart depends
on i alone, so the cheapest i are those for which taking costs least more than leaving. All else joins two
parts. Taking i nodes of one part and j of the other puts i x j pairs apart. As 2ij = (i+j)^2 - i^2 - j^2,
the cheapest of all splits is a plain sum of two rows, entry by entry, once squares are taken off and put
back; rows hold twice the cost for that. So a whole machine of 64 nodes takes a fraction of a millisecond.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest
from operator import add
from typing import NamedTuple

from nri_plugin import bits
from nri_plugin.policy.clusters import Cluster


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
