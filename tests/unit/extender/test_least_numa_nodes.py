"""LeastNUMANodes, with the numbers of its design."""

from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.cluster_scores import DistanceBonus, Scoring
from tests.kube_builders import container, node_row, pod, topology

DISTANCES = {0: (10, 20), 1: (20, 10)}
POD = pod(container("c0", cpu="3", memory="1Gi"), container("c1", cpu="3", memory="1Gi"))
CLOSEST = {"nri-pin/topologyManagerPolicyOptions": "prefer-closest-numa-nodes=true"}


def node(first, second, **attributes):
    zones = {0: {"cpu": first, "memory": "16Gi"}, 1: {"cpu": second, "memory": "16Gi"}}
    return topology("n", zones, policy="best-effort", costs=DISTANCES, **attributes)


def scored(one, bonus=DistanceBonus.ALWAYS, asked=POD):
    cluster = ClusterAnswers(Scoring(bonus=bonus))
    cluster.put("n", *node_row(one))
    return cluster.scores(["n"], asked)[0]


def test_worked_example_two_numa_nodes_that_are_closest_score_82():
    assert scored(node("2", "4")) == 82
    assert scored(node("2", "4", **CLOSEST), DistanceBonus.PREFER_CLOSEST) == 82


def test_worked_example_one_numa_node_scores_94():
    assert scored(node("6", "6")) == 94
    assert scored(node("6", "6", **CLOSEST), DistanceBonus.PREFER_CLOSEST) == 94


def test_worked_example_two_numa_nodes_score_76_where_distance_is_not_preferred():
    assert scored(node("2", "4"), DistanceBonus.PREFER_CLOSEST) == 76


def test_worked_example_one_numa_node_scores_88_where_distance_is_not_preferred():
    assert scored(node("6", "6"), DistanceBonus.PREFER_CLOSEST) == 88


def test_two_numa_nodes_that_are_not_the_closest_score_76():
    zones = {n: {"cpu": cpus, "memory": "1Gi"} for n, cpus in enumerate(("2", "1", "2"))}
    costs = {0: (10, 12, 20), 1: (12, 10, 20), 2: (20, 20, 10)}
    assert scored(topology("n", zones, costs=costs), asked=pod(container(cpu="4", memory="1Gi"))) == 76


def test_containers_after_the_first_see_what_it_left():
    assert scored(node("3", "3")) == 94
    assert scored(node("4", "2")) == 82


def test_no_set_of_numa_nodes_scores_nothing_and_nothing_asked_of_them_everything():
    assert scored(node("1", "1")) == 0
    assert scored(node("1", "1"), asked=pod(container(vendor__gpu="1"))) == 100


def test_in_pod_scope_the_total_counts():
    one = topology("n", {0: {"cpu": "4", "memory": "4Gi"}, 1: {"cpu": "4", "memory": "4Gi"}}, scope="pod")
    assert scored(one) == 82


def test_ids_with_gaps_in_any_order_take_from_the_right_zones():
    one = topology("n", {9: {"cpu": "3", "memory": "1Gi"}, 4: {"cpu": "3", "memory": "1Gi"}})
    containers = [container(name, cpu="3", memory="256Mi") for name in "abc"]
    assert scored(one, asked=pod(*containers[:2])) == 94
    assert scored(one, asked=pod(*containers)) == 0


def test_a_zone_that_lacks_one_of_the_resources_is_never_taken():
    zones = {0: {"cpu": "4", "memory": "1Gi", "vendor/gpu": "1"}, 1: {"cpu": "4", "memory": "1Gi"}}
    assert scored(topology("n", zones), asked=pod(container(cpu="6", memory="1Mi", vendor__gpu="1"))) == 0
