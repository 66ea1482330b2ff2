"""The least cost of taking some nodes of a cluster, against trying all sets."""

from itertools import combinations

import pytest

from nri_plugin import bits
from nri_plugin.policy.clusters import Cluster, layout
from nri_plugin.policy.joints import NEVER, Joint, inside, joints_of, outside

LEVELS = {a: {b: 10 if a == b else 12 if a // 2 == b // 2 else 30 for b in range(7)} for a in range(7)}
TREE = layout(LEVELS).clusters[0]
COSTS = {node: (node % 3, 100 + 7 * (node * node % 5)) for node in range(7)}


def cost_of(taken, nodes, unit=1):
    pairs = sum(2 * LEVELS[a][b] * unit for a, b in combinations(taken, 2))
    return pairs + sum(COSTS[node][node in taken] for node in nodes)


def test_a_single_node_is_a_joint_of_its_own():
    assert joints_of(Cluster(0b100), 0b111) == [Joint(0b100)]


def test_parts_come_before_their_wholes_and_the_last_is_all():
    joints = joints_of(TREE, 0b1111111)
    assert joints[-1].nodes == 0b1111111
    for place, joint in enumerate(joints):
        if joint.one >= 0:
            assert max(joint.one, joint.other) < place
            assert joints[joint.one].nodes | joints[joint.other].nodes == joint.nodes
    assert len(joints) == 2 * 7 - 1


def test_nodes_that_are_not_there_leave_no_joints():
    joints = joints_of(TREE, 0b1010010)
    assert joints[-1].nodes == 0b1010010
    assert len(joints) == 2 * 3 - 1


@pytest.mark.parametrize("nodes", [0b1111111, 0b0110101])
@pytest.mark.parametrize("unit", [1, 5])
def test_the_least_cost_is_that_of_the_cheapest_set(nodes, unit):
    joints = joints_of(TREE, nodes)
    ids = list(bits.iterate(nodes))
    (*_, row) = inside(joints, COSTS, unit, len(ids))
    assert row == [
        2 * min(cost_of(taken, ids, unit) for taken in combinations(ids, count))
        for count in range(len(ids) + 1)
    ]


def test_rows_end_at_the_number_that_is_wanted():
    joints = joints_of(TREE, 0b1111111)
    whole, part = inside(joints, COSTS, 1, 7), inside(joints, COSTS, 1, 1)
    assert part == [row[:2] for row in whole]


def test_a_node_that_cannot_be_left_is_taken():
    costs = COSTS | {4: (NEVER, 500)}
    (*_, row) = inside(joints_of(TREE, 0b1111111), costs, 1, 2)
    assert row[0] >= NEVER
    assert row[1] == 2 * (500 + sum(node % 3 for node in range(7)) - 1)


@pytest.mark.parametrize("count", [2, 4])
def test_what_the_others_cost_completes_what_a_joint_costs(count):
    joints = joints_of(TREE, 0b1111111)
    rows = inside(joints, COSTS, 3, count)
    rest = outside(joints, rows, 3, count)
    for joint, row, others in zip(joints, rows, rest, strict=True):
        size = joint.nodes.bit_count()
        for taken in range(min(size, count) + 1):
            best = min(
                (
                    cost_of(nodes, range(7), 3)
                    for nodes in combinations(range(7), count)
                    if sum(joint.nodes >> node & 1 for node in nodes) == taken
                ),
                default=None,
            )
            whole = row[taken] + others[taken]
            assert whole == 2 * best if best is not None else whole >= NEVER
