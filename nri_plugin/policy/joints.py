"""A cluster as a tree of joints, two parts each, and what taking 0, 1, 2... nodes of it costs at least.

Taking i nodes of one part and j of the other puts i x j pairs apart. As 2ij = (i+j)^2 - i^2 - j^2, the
cheapest of all splits is a plain sum of two rows, entry by entry, once squares are taken off and put
back; rows hold twice the cost for that. So a whole machine of 64 nodes takes a fraction of a millisecond.
"""

from collections.abc import Mapping, Sequence
from operator import add
from typing import NamedTuple

from nri_plugin import bits
from nri_plugin.policy.clusters import Cluster


class Joint(NamedTuple):
    """Nodes of a cluster, in two parts, or one node.

    Attributes:
        nodes: their mask.
        one: position of one part in the list of joints, -1 for a single node.
        other: position of the other.
        apart: distance there and back between nodes of the two parts.
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
    if not cluster.parts:
        joints.append(Joint(cluster.nodes))
        return len(joints) - 1
    places = [_add(part, nodes, joints) for part in cluster.parts if part.nodes & nodes]
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


def inside(joints: Sequence[Joint], costs: Mapping[int, tuple[int, int]], unit: int, count: int) -> list[Row]:
    """The row of each joint, up to `count` nodes.

    Args:
        joints: parts before their wholes.
        costs: by node, what it costs to leave and to take it.
        unit: cost of one unit of distance.
        count: how many nodes at most.
    """
    rows: list[Row] = []
    for joint in joints:
        apart = joint.apart * unit
        if joint.one < 0:
            rows.append([2 * cost for cost in costs[bits.lowest(joint.nodes)]][: count + 1])
        elif len(rows[joint.one]) == len(rows[joint.other]) == 2 <= count:
            rows.append(_of_two(rows[joint.one], rows[joint.other], apart))
        else:
            one, other = _less(rows[joint.one], apart), _less(rows[joint.other], apart)
            rows.append(_less(_cheapest_splits(one, other, count), -apart))
    return rows


def outside(joints: Sequence[Joint], rows: Sequence[Row], unit: int, count: int) -> list[Row]:
    """By how many nodes a joint has taken: twice what the others cost at least, up to `count` in all.

    The joint itself left aside, but with the distances between it and the others.
    """
    found: list[Row] = [[] for _ in joints]
    found[-1] = [NEVER] * count + [0]
    for place in range(len(joints) - 1, -1, -1):
        joint = joints[place]
        if joint.one >= 0:
            apart = joint.apart * unit
            rest = _less(found[place], -apart)
            for part, sibling in ((joint.one, joint.other), (joint.other, joint.one)):
                there = _less(rows[sibling], apart)
                least = [min(map(add, there, rest[taken:])) for taken in range(len(rows[part]))]
                found[part] = _less(least, apart)
    return found


def _of_two(one: Row, other: Row, apart: int) -> Row:
    """What the general way comes to for two nodes, without its detours."""
    return [one[0] + other[0], min(one[0] + other[1], one[1] + other[0]), one[1] + other[1] + 2 * apart]


def _less(row: Row, apart: int) -> Row:
    return [cost - apart * taken * taken for taken, cost in enumerate(row)] if apart else row


def _cheapest_splits(one: Row, other: Row, count: int) -> Row:
    """The cheapest sum of an entry of each, by the sum of their positions."""
    back = other[::-1]
    last = len(other) - 1
    return [
        min(map(add, one[max(0, taken - last) :], back[max(0, last - taken) :]))
        for taken in range(min(count, len(one) - 1 + last) + 1)
    ]
