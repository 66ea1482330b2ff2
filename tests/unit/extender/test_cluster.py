"""A cluster that remembers its answers."""

import pytest

from nri_plugin.extender import cluster_scores
from nri_plugin.extender.cluster import PASS, POD, SHAPES, ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring, Strategy
from tests.kube_builders import container, node_row, pod, topology
from tests.oracles.one_node import score

SMALL = topology("a", {0: {"cpu": "2", "memory": "1Gi"}})
LARGE = topology("b", {0: {"cpu": "8", "memory": "1Gi"}, 1: {"cpu": "1", "memory": "1Gi"}}, scope="pod")
ASKED = pod(container("i", cpu="4", memory="1Mi"))


def cluster(**nodes):
    made = ClusterAnswers(Scoring())
    for name, one in nodes.items():
        made.put(name, *node_row(one))
    return made


def test_a_code_says_which_container_or_that_it_is_the_pod():
    asked = pod(container("x", cpu="1", memory="1Mi"), container("y", cpu="9", memory="1Mi"))
    assert cluster(a=SMALL, b=LARGE).codes(["b", "a", "nobody"], asked).tolist() == [POD, 2, PASS]


def test_a_changed_node_is_asked_again_and_no_other(monkeypatch):
    one = cluster(a=SMALL, b=LARGE)
    assert one.codes(["a", "b"], ASKED).tolist() == [1, PASS]
    asked = []
    ask = one._ask_codes
    monkeypatch.setattr(one, "_ask_codes", lambda batch, pod: asked.append(len(batch)) or ask(batch, pod))
    assert one.codes(["b", "a"], ASKED).tolist() == [PASS, 1]
    assert asked == []
    one.put("a", *node_row(LARGE))
    assert one.codes(["b", "a"], ASKED).tolist() == [PASS, PASS]
    assert asked == [1]


def test_a_node_that_went_passes_and_its_row_serves_another():
    one = cluster(a=SMALL)
    one.forget("a")
    assert one.codes(["a"], ASKED).tolist() == [PASS]
    one.put("c", *node_row(SMALL))
    assert one.codes(["a", "c"], ASKED).tolist() == [PASS, 1]
    assert len(one.table.row_by_node) == 1


def test_names_that_are_only_asked_for_take_no_room():
    one = cluster(a=SMALL)
    one.codes([f"other-{n}" for n in range(1000)], ASKED)
    assert one.table.row_by_node.keys() == {"a"}


def test_a_thousand_nodes_of_growing_width_keep_what_they_said():
    one = ClusterAnswers(Scoring())
    names = [f"n{n}" for n in range(1000)]
    for number, name in enumerate(names):
        zones = {z: {"cpu": str(number % 7), "memory": "1Gi"} for z in range(1 + number % 9)}
        one.put(name, *node_row(topology(name, zones)))
    assert one.codes(names, ASKED).tolist() == [PASS if n % 7 >= 4 else 1 for n in range(1000)]


def test_only_so_many_shapes_are_kept():
    one = cluster(a=SMALL)
    for number in range(SHAPES + 10):
        one.codes(["a"], pod(container(cpu=str(number), memory="1Mi")))
    assert len(one._kept) == SHAPES


def test_more_sets_than_columns_are_searched_one_by_one():
    zones = {n: {"cpu": "1", "memory": "1Gi"} for n in range(34)}
    one = cluster(a=topology("a", zones, topologyManagerMaxNUMANodes="64"))
    assert one.scores(["a"], pod(container(cpu="5", memory="1Gi"))).tolist() == [100 - 5]


def test_what_containers_take_comes_from_the_lowest_id_first():
    large = {"cpu": "8", "memory": "8Gi"}
    one = cluster(a=topology("a", {1: large, 0: {"cpu": "4", "memory": "8Gi"}}))
    first, second = container("x", cpu="3", memory="1Mi"), container("y", cpu="8", memory="1Mi")
    assert one.codes(["a"], pod(first, second)).tolist() == [PASS]


def test_sets_are_drained_by_id_whatever_their_order():
    zones = {9: {"cpu": "3", "memory": "8Gi", "hugepages-1Gi": "1Gi"}, 4: {"cpu": "4", "memory": "8Gi"}}
    one = cluster(a=topology("a", zones))
    both = container("x", cpu="5", memory="1Mi")
    rest = container("y", cpu="2", memory="1Mi")
    rest["resources"]["requests"]["hugepages-1Gi"] = "1Gi"
    assert one.scores(["a"], pod(both, rest)).tolist() == [82]


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("amount", ["10Ei", "1e30"])
def test_a_pod_that_wants_more_than_there_can_be_fits_nowhere_and_is_scored(strategy, amount):
    asked = pod(container("i", cpu="1", memory=amount), container("j", cpu="1", memory=amount))
    one = ClusterAnswers(Scoring(strategy))
    for name, node in {"a": SMALL, "b": LARGE}.items():
        one.put(name, *node_row(node))
    assert one.codes(["a", "b"], asked).tolist() == [1, POD]
    assert one.scores(["a", "b"], asked).tolist() == [
        score(asked, node, Scoring(strategy)) for node in (SMALL, LARGE)
    ]


def test_one_node_of_many_zones_does_not_have_the_others_searched_one_by_one(monkeypatch):
    searched = []
    search = cluster_scores.closest_set
    monkeypatch.setattr(
        cluster_scores,
        "closest_set",
        lambda eligible, *rest: searched.append(eligible) or search(eligible, *rest),
    )
    one = ClusterAnswers(Scoring())
    for name, zones in {"small": 8, "large": 100}.items():
        one.put(name, *node_row(topology(name, {z: {"cpu": "2", "memory": "1Gi"} for z in range(zones)})))
    assert one.scores(["small", "large"], pod(container(cpu="9", memory="1Mi"))).tolist() == [46, 46]
    assert [len(eligible) for eligible in searched] == [100]


def test_a_node_that_tells_other_distances_every_time_leaves_no_trace():
    one, asked = ClusterAnswers(Scoring()), pod(container(cpu="3", memory="1Mi"))
    two = {
        0: {"cpu": "2", "memory": "1Gi"},
        1: {"cpu": "2", "memory": "1Gi"},
        2: {"cpu": "2", "memory": "1Gi"},
    }
    near = {0: [10, 11, 12], 1: [11, 10, 12], 2: [12, 12, 10]}
    one.put("steady", *node_row(topology("steady", two, costs=near)))
    for turn in range(2000):
        far = {number: [20 + turn, 20, 21] for number in two}
        one.put("restless", *node_row(topology("restless", two, costs=far)))
        if turn % 500 == 0:
            assert one.scores(["steady"], asked).tolist() == [82]
    assert len(one.table.costs) == 2
    assert one.scores(["steady", "restless"], asked).tolist() == [82, 82]
