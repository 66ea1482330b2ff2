"""What the scheduler is answered."""

import json
import threading

import pytest

from nri_plugin.extender.answers import Extender, ScoreScale, ranks
from nri_plugin.extender.cache import Accounting, ExtenderCache, read_topology
from nri_plugin.extender.cluster import ClusterAnswers
from nri_plugin.extender.cluster_scores import Scoring
from nri_plugin.extender.forms import BindingArgs
from nri_plugin.model.errors import KubeAPIError, KubeObjectError
from tests.kube_builders import container, nrt_object, pod_object, topology

BIG = {0: {"cpu": "8", "memory": "8Gi"}, 1: {"cpu": "8", "memory": "8Gi"}}
SMALL = {0: {"cpu": "2", "memory": "8Gi"}}
POD = pod_object(container(cpu="4", memory="1Gi"))


class Bindings:
    def __init__(self, error=None):
        self.made, self.error = [], error

    def __call__(self, *args):
        if self.error:
            raise self.error
        self.made.append(args)


def extender(nodes=(("big", BIG), ("small", SMALL)), **kwargs):
    cache = ExtenderCache(ClusterAnswers(Scoring()), Accounting(), lambda: 0.0)
    cache.on_topologies_listed(
        [read_topology(one) for one in [nrt_object(name, zones) for name, zones in nodes]]
    )
    cache.on_pods_listed([])
    return Extender(cache, **kwargs)


def asks(*names, pod=POD):
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def binds(node, uid="uid-p"):
    return json.dumps({"PodName": "p", "PodNamespace": "ns", "PodUID": uid, "Node": node}).encode()


def test_nodes_that_cannot_are_named_with_what_was_asked_for():
    answer = json.loads(extender().filter(asks("small", "big", "unknown")))
    assert answer["NodeNames"] == ["big", "unknown"]
    assert answer["FailedNodes"] == {
        "small": "no NUMA node has the requested resources of app container c available: cpu 4, memory 1073741824"
    }


def test_a_pod_as_a_whole_is_named_so():
    one = extender(nodes=())
    one.cache.on_topology(topology("n", SMALL, scope="pod"))
    answer = json.loads(one.filter(asks("n")))
    assert answer["FailedNodes"]["n"].startswith(
        "no NUMA node has the requested resources of the pod available: cpu 4"
    )


def test_a_pod_that_asks_for_thousands_of_resources_is_refused_in_few_words():
    many = {f"vendor.example__r{number:04}": "1" for number in range(2000)}
    answer = json.loads(
        extender().filter(asks("small", pod=pod_object(container(cpu="4", memory="1Gi", **many))))
    )
    text = answer["FailedNodes"]["small"]
    assert "cpu 4" in text
    assert text.endswith("vendor.example/r0005 1, 1994 more")
    assert len(text) < 400


def test_without_any_topology_every_node_passes_with_one_score():
    one = extender(nodes=())
    names = ["a", "b", "c"]
    assert json.loads(one.filter(asks(*names)))["NodeNames"] == names
    assert {row["Score"] for row in json.loads(one.prioritize(asks(*names)))} == {10}


def test_better_nodes_get_more():
    far = {0: {"cpu": "2", "memory": "8Gi"}, 1: {"cpu": "2", "memory": "8Gi"}}
    nodes = [("one", BIG), ("two", far), ("none", SMALL)]
    one = extender(nodes=nodes)
    rows = json.loads(one.prioritize(asks("two", "none", "one")))
    assert [(row["Host"], row["Score"]) for row in rows] == [("two", 9), ("none", 8), ("one", 10)]
    raw = extender(nodes=nodes, scale=ScoreScale.RAW)
    assert [row["Score"] for row in json.loads(raw.prioritize(asks("two", "none", "one")))] == [82, 0, 94]


def test_pods_of_a_burst_find_each_other_on_the_best_node_before_their_bindings_are_seen():
    far = {0: {"cpu": "4", "memory": "8Gi"}, 1: {"cpu": "4", "memory": "8Gi"}}
    one = extender(nodes=[("best", {0: {"cpu": "6", "memory": "8Gi"}}), ("far", far)])
    first, second = (pod_object(container(cpu="6", memory="1Gi"), name=name) for name in "ab")
    for node in ("best", "far"):
        zones = {"best": {0: {"cpu": "6", "memory": "8Gi"}}, "far": far}[node]
        one.cache.on_topology(topology(node, zones, policy="restricted"))
    one.prioritize(asks("best", "far", pod=first))
    rows = json.loads(one.prioritize(asks("best", "far", pod=second)))
    assert [row["Host"] for row in sorted(rows, key=lambda row: -row["Score"])] == ["far", "best"]
    again = json.loads(one.filter(asks("best", "far", pod=first)))
    assert again["NodeNames"] == ["best", "far"]


def test_the_only_node_that_passes_is_charged_since_no_scores_are_requested_for_it():
    one = extender()
    pods = [pod_object(container(cpu="6", memory="1Gi"), name=name) for name in "abc"]
    answers = [json.loads(one.filter(asks("big", "small", pod=each)))["NodeNames"] for each in pods]
    assert answers == [["big"], [], []]
    one.cache.on_pod_deleted("uid-a")
    assert json.loads(one.filter(asks("big", "small", pod=pods[1])))["NodeNames"] == ["big"]


def test_nothing_is_guessed_among_equals_or_where_only_one_is_asked_about():
    one = extender(nodes=[("a", BIG), ("b", BIG)])
    one.prioritize(asks("a", "b"))
    one.prioritize(asks("a"))
    assert one.cache.charged_pods() == 0


def test_a_pod_that_is_asked_about_again_does_not_stand_in_its_own_way():
    one = extender(nodes=[("big", {0: {"cpu": "4", "memory": "8Gi"}}), ("small", SMALL)])
    one.prioritize(asks("big", "small"))
    assert one.cache.charged_pods() == 1
    assert json.loads(one.filter(asks("big", "small")))["NodeNames"] == ["big"]


def test_what_is_no_question_is_an_error_the_scheduler_sees():
    assert "kube-scheduler" in json.loads(extender().filter(b"{}"))["Error"]
    with pytest.raises(KubeObjectError):
        extender().prioritize(b"{}")
    with pytest.raises(KubeObjectError):
        extender().prioritize(asks("a", pod={"spec": 3}))


def test_a_bound_pod_counts_from_its_binding_on():
    bindings = Bindings()
    one = extender(binder=bindings)
    one.filter(asks("big"))
    assert json.loads(one.bind(binds("big"), threading.Lock())) == {"Error": ""}
    assert bindings.made == [(BindingArgs("p", "ns", "uid-p", "big"), {})]
    assert (
        json.loads(one.filter(asks("big", pod=pod_object(container(cpu="6", memory="1Gi"), name="q"))))[
            "NodeNames"
        ]
        == []
    )


def test_a_binding_that_fails_counts_no_more():
    one = extender(binder=Bindings(KubeAPIError("POST x", "conflict", status=409)))
    one.filter(asks("big"))
    assert "conflict" in json.loads(one.bind(binds("big"), threading.Lock()))["Error"]
    assert one.cache.charged_pods() == 0


def test_the_chosen_numa_node_is_written_and_charged_alone():
    bindings = Bindings()
    one = extender(binder=bindings, sends_to_numa_node=True)
    for name in ("p", "q"):
        asked = pod_object(container(cpu="6", memory="1Gi"), name=name, uid="uid-p")
        asked["metadata"]["name"] = "p"
        asked["metadata"]["uid"] = name
        assert json.loads(one.filter(asks("big", pod=asked)))["NodeNames"] == ["big"]
        one.prioritize(asks("big", "small", pod=asked))
        one.bind(binds("big", uid=name), threading.Lock())
    assert [annotations for _, annotations in bindings.made] == [
        {"nri-pin/numa-node": "0"},
        {"nri-pin/numa-node": "1"},
    ]


def test_a_pod_nobody_asked_about_is_bound_without_being_counted():
    bindings = Bindings()
    one = extender(binder=bindings)
    assert json.loads(one.bind(binds("big"), threading.Lock())) == {"Error": ""}
    assert one.cache.charged_pods() == 0


def test_bind_is_refused_where_it_is_not_offered():
    assert "--bind" in json.loads(extender().bind(binds("big"), threading.Lock()))["Error"]
    assert "field" in json.loads(extender(binder=Bindings()).bind(b"{}", threading.Lock()))["Error"]


def test_ranks_spread_from_ten_down():
    assert ranks([94, 82, 94, 0]) == [10, 9, 10, 8]
    assert ranks([]) == []
    assert ranks(list(range(21)))[::10] == [0, 5, 10]
