"""Distances between NUMA nodes, on the two tables of KEP-3545."""

import pytest

from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.hints import Hint, HintSet
from nri_plugin.policy.merge import merge
from nri_plugin.policy.search.mask_order import Distances, MaskOrder, distances_of
from tests.topology_rows import topology_of_rows


def table(*rows):
    return Distances({node: dict(enumerate(row)) for node, row in enumerate(rows)})


NEAR = [[10, 11, 12, 12], [11, 10, 12, 12], [12, 12, 10, 11], [12, 12, 11, 10]]
FOUR = table(*NEAR)
"""KEP-3545: one socket of four NUMA nodes in two pairs."""
FAR = [30, 30, 30, 30]
EIGHT = table(*[row + FAR for row in NEAR], *[FAR + row for row in NEAR])
"""KEP-3545: two such sockets."""


@pytest.mark.parametrize(
    ("distances", "nodes", "total"),
    [
        (FOUR, (0, 1), 42),
        (FOUR, (0, 2), 44),
        (FOUR, (3,), 10),
        (FOUR, (), 0),
        (EIGHT, (0, 4), 80),
        (EIGHT, (0, 1, 2), 100),
    ],
)
def test_the_total_is_over_all_ordered_pairs(distances, nodes, total):
    assert distances.total(NodeMask.of(*nodes).mask) == total


@pytest.mark.parametrize(
    ("one", "other", "closer"),
    [
        ((0, 4), (0, 1, 2), (0, 4)),
        ((0, 3), (2, 3), (2, 3)),
        ((2, 3), (0, 1), (0, 1)),
        ((0, 2), (1, 2), (0, 2)),
    ],
    ids=[
        "2 at 20 beat 3 at 11.11",
        "closer wins",
        "equally close: the lower",
        "the lower, by its highest node",
    ],
)
def test_fewer_nodes_come_before_closer_ones(one, other, closer):
    order = MaskOrder(EIGHT)
    masks = [NodeMask.of(*nodes).mask for nodes in (one, other)]
    for pair in (masks, masks[::-1]):
        best = min(pair, key=lambda mask: (mask.bit_count(), order.of(mask)))
        assert best == NodeMask.of(*closer).mask


def test_the_merge_prefers_closer_nodes_only_when_told():
    hint_set = (HintSet("cpu", tuple(Hint(mask, preferred=True) for mask in (0b101, 0b110, 0b1100))),)
    nodes, policy = NodeMask(0b1111), TopologyManagerPolicy.RESTRICTED
    assert merge(policy, nodes, [hint_set]).affinity == NodeMask(0b101)
    assert merge(policy, nodes, [hint_set], distances=FOUR).affinity == NodeMask(0b1100)


def test_node_ids_may_have_gaps():
    rows = [(0, 0, 0, 1, 0), (1, 1, 0, 4, 0)]
    found = distances_of(topology_of_rows(rows, distances={1: [10, 21], 4: [22, 10]}))
    assert found is not None
    assert found.total(1 << 1 | 1 << 4) == 10 + 21 + 22 + 10


@pytest.mark.parametrize("known", [{}, {0: [10, 21]}, {0: [10, 21], 1: [21]}])
def test_a_machine_that_does_not_tell_all_of_them_has_none(known):
    rows = [(0, 0, 0, 0, 0), (1, 1, 0, 1, 0)]
    assert distances_of(topology_of_rows(rows, distances=known)) is None
