"""The tree of distances of a machine built in levels."""

from nri_plugin.policy.search.levels import DistanceGroup, distance_tree


def rows(*table):
    return {one: dict(enumerate(row)) for one, row in enumerate(table)}


def leaf(*nodes):
    return tuple(DistanceGroup(1 << node) for node in nodes)


def test_nodes_equally_far_from_all_others_are_one_group():
    found = distance_tree(rows([10, 20, 20], [20, 10, 20], [20, 20, 10]))
    assert found == DistanceGroup(0b111, leaf(0, 1, 2), 40)


def test_levels_make_a_tree():
    found = distance_tree(rows([10, 12, 32, 32], [12, 10, 32, 32], [32, 32, 10, 12], [32, 32, 12, 10]))
    pairs = DistanceGroup(0b0011, leaf(0, 1), 24), DistanceGroup(0b1100, leaf(2, 3), 24)
    assert found == DistanceGroup(0b1111, pairs, 64)


def test_the_way_there_and_the_way_back_count_together():
    assert distance_tree(rows([10, 15], [25, 10])) == DistanceGroup(0b11, leaf(0, 1), 40)


def test_a_node_in_the_middle_of_a_row_is_no_twin_of_its_neighbours():
    found = distance_tree(rows([10, 20, 30], [20, 10, 20], [30, 20, 10]))
    assert found == DistanceGroup(0b111, (DistanceGroup(0b101, leaf(0, 2), 60), *leaf(1)), 40)


def test_a_machine_of_which_no_two_nodes_are_alike_has_no_tree():
    found = distance_tree(rows([10, 11, 12, 13], [11, 10, 14, 15], [12, 14, 10, 16], [13, 15, 16, 10]))
    assert found is None


def test_sockets_in_a_ring_are_groups_that_differ():
    socket = [0, 0, 1, 1, 2, 2, 3, 3]
    hops = [[10, 20, 30, 20], [20, 10, 20, 30], [30, 20, 10, 20], [20, 30, 20, 10]]
    found = distance_tree(
        rows(*[[10 if a == b else hops[socket[a]][socket[b]] + 2 for b in range(8)] for a in range(8)])
    )
    assert found.nodes == 0b11111111
    assert [part.nodes for part in found.parts] == [0b00110011, 0b11001100], "opposite ones first"


def test_ids_may_have_gaps():
    assert distance_tree({3: {3: 10, 70: 21}, 70: {3: 21, 70: 10}}).nodes == 1 << 3 | 1 << 70


def test_rows_may_come_in_any_order():
    table = rows([10, 11, 12], [11, 10, 13], [12, 13, 10])
    assert distance_tree(dict(reversed(table.items()))) == distance_tree(table)


def test_one_node_is_a_group():
    assert distance_tree({0: {0: 10}}) == DistanceGroup(1)


def test_a_machine_that_is_built_in_levels_only_in_part_has_no_tree():
    """Two pairs whose nodes are alike, and the pairs and two more nodes follow no order."""
    place = [0, 0, 1, 1, 2, 3]
    far = [[20, 31, 42, 53], [31, 20, 54, 45], [42, 54, 20, 36], [53, 45, 36, 20]]
    assert distance_tree(rows(*[[far[one][other] for other in place] for one in place])) is None
