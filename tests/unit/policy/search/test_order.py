"""What decides between masks of one size."""

from nri_plugin.model.options import TopologyTieBreak
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.search.mask_order import Distances, MaskOrder, band, tie_break
from tests.unit.policy.shapes import machine

TWO = cpu_tables(machine(2, 1, cores=2, threads=1))
FAR = Distances({0: {0: 10, 1: 21}, 1: {0: 20, 1: 11}})
SPREAD = tie_break(TopologyTieBreak.SPREAD, TWO, CPUSet.parse("0,2-3"), 1)


def test_distance_comes_first_then_the_rank_then_the_mask():
    assert MaskOrder(FAR, SPREAD).of(0b11) == (62, -3, 0b11)
    assert MaskOrder(None, SPREAD).of(0b10) == (0, -2, 0b10)
    assert MaskOrder().of(0b10) == (0, 0, 0b10)


def test_the_mask_alone_decides_where_nothing_else_is_asked_for():
    assert MaskOrder().is_by_mask
    assert not MaskOrder(FAR).is_by_mask
    assert not MaskOrder(None, SPREAD).is_by_mask


def test_without_distances_all_nodes_are_equally_far_apart():
    group = MaskOrder().distance_tree(0b1101)
    assert (group.nodes, group.distance, len(group.parts)) == (0b1101, 0, 3)
    assert MaskOrder(FAR).distance_tree(0b1) is FAR.tree


def test_no_two_ranks_are_as_far_apart_as_the_span():
    ranks = [SPREAD.rank(mask) for mask in range(4)]
    assert MaskOrder(None, SPREAD).span > max(ranks) - min(ranks)
    assert MaskOrder(None, SPREAD).span == SPREAD.span + 1
    assert MaskOrder(FAR).span == 1


def test_sizes_go_from_the_target_down_then_up():
    assert sorted(range(1, 7), key=lambda size: band(size, 3)) == [3, 2, 1, 4, 5, 6]
