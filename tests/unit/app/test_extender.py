"""The whole extender beside an API server: watches on one side, a scheduler on the other."""

import http.client
import json
import logging
import threading
from contextlib import closing

import pytest

from nri_plugin.app.extender import ExtenderOptions, ExtenderProcess
from nri_plugin.app.extender_watches import ClusterFeed
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.kube.backoff import Backoff
from nri_plugin.kube.extender_binder import KubeBinder
from tests.kube_api_exchanges import crd
from tests.kube_api_server import KubeAPI
from tests.kube_builders import container, nrt_object, pod_object

SMALL = {0: {"cpu": "2", "memory": "8Gi"}}
POD = pod_object(container(cpu="4", memory="1Gi"))
LOG = logging.getLogger("test-extender")


class Informed:
    """A process whose cache can be waited for."""

    def __init__(self, api, folder, *, binds=False, **options):
        client = KubeClient.connected(str(api.kubeconfig(folder)))
        self.feed = ClusterFeed(client, LOG, backoff=lambda: Backoff(0.01, 0.02))
        self.process = ExtenderProcess(
            ExtenderOptions(address=("127.0.0.1", 0), **options),
            self.feed,
            KubeBinder(client) if binds else None,
        )
        self.told = threading.Condition()
        for name in (
            "on_nrt",
            "on_nrt_deleted",
            "on_topologies_listed",
            "on_pod",
            "on_pod_deleted",
            "on_pods_read",
        ):
            setattr(self.process.cache, name, self.noticed(getattr(self.process.cache, name)))
        self.client = client
        self.serving = threading.Thread(target=self.process.serve, daemon=True)
        self.serving.start()

    def noticed(self, call):
        def told(*args):
            call(*args)
            with self.told:
                self.told.notify_all()

        return told

    def wait_for(self, is_so):
        with self.told:
            assert self.told.wait_for(is_so, 20)

    def passes(self, *names):
        return json.loads(self.ask("POST", "/filter", question(names))[1])["NodeNames"]

    def ask(self, method, path, body=None):
        port = self.process.server.server_port
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def close(self):
        self.process.stop()
        self.client.close()
        self.serving.join(30)


def question(names):
    return json.dumps({"Pod": POD, "Nodes": None, "NodeNames": names}).encode()


@pytest.fixture
def api():
    server = KubeAPI()
    yield server
    server.close()


@pytest.fixture
def extender(api, tmp_path):
    one = Informed(api, tmp_path)
    yield one
    one.close()


def test_without_the_kind_all_is_ready_and_passes_and_a_kind_defined_later_is_picked_up(api, extender):
    extender.wait_for(lambda: extender.ask("GET", "/readyz")[0] == 200)
    assert extender.passes("a", "b") == ["a", "b"]
    api.define(crd())
    api.put(nrt_object("a", SMALL))
    extender.wait_for(lambda: extender.passes("a", "b") == ["b"])


def test_changes_of_nodes_and_pods_arrive(api, extender):
    api.define(crd())
    api.put(nrt_object("a", {0: {"cpu": "8", "memory": "8Gi"}}))
    extender.wait_for(lambda: extender.ask("GET", "/readyz")[0] == 200)
    api.wait_for_watches(2)
    assert extender.passes("a") == ["a"]
    api.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            **pod_object(container(cpu="6", memory="1Gi"), name="x", node="a"),
        }
    )
    extender.wait_for(lambda: extender.passes("a") == [])
    api.put(nrt_object("a", {0: {"cpu": "16", "memory": "8Gi"}}))
    extender.wait_for(lambda: extender.passes("a") == ["a"])


class Nothing:
    def start(self, cache):
        pass

    def stop(self):
        pass


@pytest.mark.parametrize(("offers", "lets"), [(True, True), (False, False)])
def test_a_binder_that_asks_nobody_for_a_certificate_says_so(offers, lets):
    options = ExtenderOptions(address=("127.0.0.1", 0), offers_bind=offers)
    process = ExtenderProcess(options, Nothing(), binder=Nothing())
    assert process.lets_anybody_bind is lets
    process.server.server_close()


def test_it_is_alive_before_it_is_ready_and_says_what_it_counts(api, tmp_path):
    api.behaviour.fail_next = [(500, {})] * 1000
    one = Informed(api, tmp_path)
    try:
        assert one.ask("GET", "/healthz") == (200, b"ok\n")
        assert one.ask("GET", "/readyz")[0] == 503
        assert b"nri_pin_extender_charged_pods 0\n" in one.ask("GET", "/metrics")[1]
    finally:
        one.close()


def pods_in(api, names, cpu):
    """Pods that wait for a node, as the API server has them."""
    kind = {"apiVersion": "v1", "kind": "Pod"}
    return [api.put({**kind, **pod_object(container(cpu=cpu, memory="1Gi"), name=name)}) for name in names]


def schedule(one, pod, node):
    """What kube-scheduler asks for one pod; the answer to bind."""
    one.ask("POST", "/filter", json.dumps({"Pod": pod, "Nodes": None, "NodeNames": [node]}).encode())
    one.ask("POST", "/prioritize", json.dumps({"Pod": pod, "Nodes": None, "NodeNames": [node]}).encode())
    meta = pod["metadata"]
    args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return json.loads(one.ask("POST", "/bind", json.dumps(args).encode())[1])["Error"]


def test_a_burst_of_pods_is_bound_each_to_the_numa_node_it_was_counted_on(api, tmp_path):
    """Nobody has told yet what the first pod took, and the second is sent to the other NUMA node."""
    api.define(crd())
    api.put(nrt_object("a", {0: {"cpu": "4", "memory": "8Gi"}, 1: {"cpu": "4", "memory": "8Gi"}}))
    one = Informed(api, tmp_path, binds=True, offers_bind=True, sends_to_numa_node=True)
    try:
        one.wait_for(lambda: one.ask("GET", "/readyz")[0] == 200)
        pods = pods_in(api, ["p1", "p2", "p3"], cpu="4")
        assert [schedule(one, pod, "a") for pod in pods[:2]] == ["", ""]
        stored = [api.store.objects["", "pods", "ns", name] for name in ("p1", "p2")]
        assert [pod["spec"]["nodeName"] for pod in stored] == ["a", "a"]
        assert [pod["metadata"]["annotations"] for pod in stored] == [
            {"nri-pin/numa-node": "0"},
            {"nri-pin/numa-node": "1"},
        ]
        named = json.dumps({"Pod": pods[2], "Nodes": None, "NodeNames": ["a"]}).encode()
        assert json.loads(one.ask("POST", "/filter", named)[1])["NodeNames"] == []
        assert 'already assigned to node "a"' in schedule(one, pods[0], "a")
        assert json.loads(one.ask("POST", "/filter", named)[1])["NodeNames"] == []
    finally:
        one.close()


def test_a_pod_of_another_uid_is_not_bound(api, tmp_path):
    one = Informed(api, tmp_path, binds=True, offers_bind=True)
    try:
        (pod,) = pods_in(api, ["p1"], cpu="1")
        other = {**pod, "metadata": {**pod["metadata"], "uid": "of-its-namesake"}}
        assert "UID in precondition: of-its-namesake" in schedule(one, other, "a")
        assert not api.store.objects["", "pods", "ns", "p1"]["spec"].get("nodeName")
        assert schedule(one, pod, "a") == ""
    finally:
        one.close()
