"""NUMA nodes in clusters."""

from nri_plugin.policy.search.clusters import Cluster, layout


def rows(*table):
    return {one: dict(enumerate(row)) for one, row in enumerate(table)}


def leaf(*nodes):
    return tuple(Cluster(1 << node) for node in nodes)


def test_nodes_equally_far_from_all_others_are_one_cluster():
    found = layout(rows([10, 20, 20], [20, 10, 20], [20, 20, 10]))
    assert found.clusters == (Cluster(0b111, leaf(0, 1, 2), 40),)
    assert found.apart == ((20,),)


def test_levels_make_a_tree():
    found = layout(rows([10, 12, 32, 32], [12, 10, 32, 32], [32, 32, 10, 12], [32, 32, 12, 10]))
    pairs = Cluster(0b0011, leaf(0, 1), 24), Cluster(0b1100, leaf(2, 3), 24)
    assert found.clusters == (Cluster(0b1111, pairs, 64),)


def test_the_way_there_and_the_way_back_count_together():
    assert layout(rows([10, 15], [25, 10])).clusters == (Cluster(0b11, leaf(0, 1), 40),)


def test_a_node_in_the_middle_of_a_row_is_no_twin_of_its_neighbours():
    found = layout(rows([10, 20, 30], [20, 10, 20], [30, 20, 10]))
    assert found.clusters == (Cluster(0b111, (Cluster(0b101, leaf(0, 2), 60), *leaf(1)), 40),)


def test_what_nobody_is_alike_in_stays_apart():
    found = layout(rows([10, 11, 12, 13], [11, 10, 14, 15], [12, 14, 10, 16], [13, 15, 16, 10]))
    assert found.clusters == leaf(0, 1, 2, 3)
    assert found.apart[1] == (22, 20, 28, 30)


def test_sockets_in_a_ring_are_clusters_that_differ():
    socket = [0, 0, 1, 1, 2, 2, 3, 3]
    hops = [[10, 20, 30, 20], [20, 10, 20, 30], [30, 20, 10, 20], [20, 30, 20, 10]]
    found = layout(
        rows(*[[10 if a == b else hops[socket[a]][socket[b]] + 2 for b in range(8)] for a in range(8)])
    )
    assert [cluster.nodes for cluster in found.clusters] == [0b11111111]
    assert [part.nodes for part in found.clusters[0].parts] == [0b00110011, 0b11001100], "opposite ones first"


def test_ids_may_have_gaps():
    assert layout({3: {3: 10, 70: 21}, 70: {3: 21, 70: 10}}).clusters[0].nodes == 1 << 3 | 1 << 70


def test_rows_may_come_in_any_order():
    table = rows([10, 11, 12], [11, 10, 13], [12, 13, 10])
    assert layout(dict(reversed(table.items()))) == layout(table)


def test_one_node_is_a_cluster():
    assert layout({0: {0: 10}}).clusters == leaf(0)
