"""What following the API says, and when."""

import logging
import threading

from nri_plugin.extender.cache import Unreadable, read_topology
from nri_plugin.extender.process import PodSink, TopologySink
from nri_plugin.kube.api_client import PODS
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology
from nri_plugin.kube.pod_demand import PodDemand
from nri_plugin.model.errors import KubeAPIError


class Cache:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


def sink_of(made, caplog):
    log = logging.getLogger("watches")
    caplog.set_level(logging.INFO, "watches")
    cache = Cache()
    return made(cache, threading.Lock(), log, PODS), cache


def test_trouble_is_said_once_and_its_end_once(caplog):
    sink, cache = sink_of(PodSink, caplog)
    for _ in range(3):
        sink.failed(KubeAPIError("GET /x", "no answer"))
    sink.listed([])
    sink.listed([])
    assert [record.getMessage() for record in caplog.records] == ["cannot be followed", "followed again"]
    assert cache.calls == [("on_pods_listed", [])] * 2


def test_a_cluster_without_the_kind_has_no_topologies_and_no_trouble(caplog):
    sink, cache = sink_of(TopologySink, caplog)
    sink.failed(KubeAPIError("GET /x", "not found", status=404))
    sink.failed(KubeAPIError("GET /x", "not found", status=404))
    assert cache.calls == [("on_topologies_listed", ())] * 2
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_other_failures_leave_what_is_known(caplog):
    sink, cache = sink_of(TopologySink, caplog)
    sink.failed(KubeAPIError("GET /x", "broken", status=500))
    assert cache.calls == []


def test_the_node_of_an_object_that_is_not_used_is_named_once_for_each_reason(caplog):
    sink, _ = sink_of(TopologySink, caplog)
    for zones in (3, 3, [{}], 3):
        sink.changed({"metadata": {"name": "n"}, "zones": zones})
    sink.listed([read_topology({"metadata": {"name": "m"}, "zones": 3})])
    assert [record.fields["node"] for record in caplog.records] == ["n", "n", "n", "m"]


def test_objects_are_handed_on(caplog):
    sink, cache = sink_of(TopologySink, caplog)
    sink.changed({"metadata": {"name": "n"}})
    sink.changed({"metadata": {"name": "n"}, "zones": 3})
    sink.deleted({"metadata": {"name": "n"}})
    pods, pod_cache = sink_of(PodSink, caplog)
    pods.changed({"metadata": {"name": "p"}})
    pods.deleted({"spec": 3})
    read = NodeResourceTopology("n")
    refused = Unreadable("n", "NodeResourceTopology: Expected `array | null`, got `int` - at `$.zones`")
    assert cache.calls == [("on_topology", read), ("on_topology", refused), ("on_topology_deleted", "n")]
    assert pod_cache.calls == [("on_pod", PodDemand("", "p")), ("on_pod_deleted", "/")]
