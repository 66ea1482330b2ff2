"""The whole extender beside an API server: watches on one side, a scheduler on the other."""

import http.client
import json
import logging
import select
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from nri_plugin.extender.process import (
    BODIES,
    CONNECTIONS,
    NAMES_BODY_BYTES,
    NODES,
    ClusterFeed,
    ExtenderOptions,
    ExtenderProcess,
    api_binder,
)
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.kube.watch import WatchBackoff
from nri_plugin.model.errors import ConfigError
from tests.certificates import client_context, made_certificate, needs_openssl
from tests.kube_api_exchanges import crd
from tests.kube_builders import container, nrt_object, pod_object

SMALL = {0: {"cpu": "2", "memory": "8Gi"}}
POD = pod_object(container(cpu="4", memory="1Gi"))
LOG = logging.getLogger("test-extender")


class Informed:
    """A process whose cache can be waited for."""

    def __init__(self, api, folder, *, binds=False, **options):
        client = KubeClient.connected(str(api.kubeconfig(folder)))
        self.context = None
        if binds:
            certificate, key = made_certificate(folder, "extender")
            scheduler, scheduler_key = made_certificate(folder, "scheduler")
            self.context = client_context(certificate, scheduler, scheduler_key)
            options |= {"offers_bind": True, "certificate": certificate, "key": key, "client_ca": scheduler}
        self.feed = ClusterFeed(client, LOG, backoff=lambda: WatchBackoff(0.01, 0.02))
        self.process = ExtenderProcess(
            ExtenderOptions(address=("127.0.0.1", 0), **options),
            self.feed,
            api_binder(client) if binds else None,
        )
        self.told = threading.Condition()
        for sink in (self.process.topologies, self.process.pods):
            for name in ("listed", "changed", "deleted", "failed"):
                setattr(sink, name, self.noticed(getattr(sink, name)))
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
        port = self.process.server.port
        if self.context is None:
            made = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        else:
            made = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=self.context)
        with closing(made) as connection:
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


def test_the_node_of_an_object_that_is_too_large_is_named_until_it_is_gone(api, extender):
    api.define(crd())
    api.put(nrt_object("a", {zone: {f"v/{zone}-{n}": "1" for n in range(200)} for zone in range(3)}))
    named = b'nri_pin_extender_rejected_node{node="a"} 1\n'
    extender.wait_for(lambda: named in extender.ask("GET", "/metrics")[1])
    assert extender.passes("a") == ["a"]
    api.put(nrt_object("a", SMALL))
    extender.wait_for(lambda: extender.passes("a") == [])
    assert named not in extender.ask("GET", "/metrics")[1]


def test_the_charge_of_a_pod_that_was_not_bound_ends_with_the_pod(api, extender):
    api.define(crd())
    api.put(nrt_object("a", {0: {"cpu": "4", "memory": "8Gi"}}))
    extender.wait_for(lambda: extender.ask("GET", "/readyz")[0] == 200)
    api.wait_for_watches(2)
    first, second = (
        json.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["a"]}).encode()
        for pod in pods_in(api, ["p1", "p2"], cpu="3")
    )
    extender.wait_for(lambda: json.loads(extender.ask("POST", "/filter", first)[1])["NodeNames"] == ["a"])
    assert json.loads(extender.ask("POST", "/filter", second)[1])["NodeNames"] == []
    with closing(http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=60)) as connection:
        connection.request("DELETE", "/api/v1/namespaces/ns/pods/p1")
        assert connection.getresponse().status == 200
    extender.wait_for(lambda: json.loads(extender.ask("POST", "/filter", second)[1])["NodeNames"] == ["a"])


class Nothing:
    def start(self, topologies, pods):
        pass

    def stop(self):
        pass


@pytest.mark.parametrize(
    "given", [{}, {"certificate": Path("c"), "key": Path("k")}, {"client_ca": Path("ca")}]
)
def test_a_binder_asks_its_clients_for_a_certificate_or_does_not_start(given):
    options = ExtenderOptions(address=("127.0.0.1", 0), offers_bind=True, **given)
    with pytest.raises(ConfigError, match="TLS and a client CA are needed; give --tls-cert"):
        ExtenderProcess(options, Nothing(), binder=Nothing())


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


@needs_openssl
def test_a_burst_of_pods_is_bound_each_to_the_numa_node_it_was_counted_on(api, tmp_path):
    """Nobody has told yet what the first pod took, and the second is sent to the other NUMA node."""
    api.define(crd())
    api.put(nrt_object("a", {0: {"cpu": "4", "memory": "8Gi"}, 1: {"cpu": "4", "memory": "8Gi"}}))
    one = Informed(api, tmp_path, binds=True, sends_to_numa_node=True)
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


@needs_openssl
def test_a_pod_of_another_uid_is_not_bound(api, tmp_path):
    one = Informed(api, tmp_path, binds=True)
    try:
        (pod,) = pods_in(api, ["p1"], cpu="1")
        other = {**pod, "metadata": {**pod["metadata"], "uid": "of-its-namesake"}}
        assert "UID in precondition: of-its-namesake" in schedule(one, other, "a")
        assert not api.store.objects["", "pods", "ns", "p1"]["spec"].get("nodeName")
        assert schedule(one, pod, "a") == ""
    finally:
        one.close()


def answered(one, body, path="/filter"):
    status, text = one.ask("POST", path, body)
    return status, text.decode()


def test_whole_node_objects_are_taken_only_where_that_is_asked_for(api, tmp_path):
    body = json.dumps({"Pod": POD, "Nodes": {"items": [{"metadata": {"name": "a"}}]}}).encode()
    one = Informed(api, tmp_path)
    try:
        status, text = answered(one, body)
        assert (status, json.loads(text)["Nodes"]) == (200, None)
        assert "set nodeCacheCapable: true" in json.loads(text)["Error"]
        assert answered(one, body, "/prioritize")[0] == 400
    finally:
        one.close()
    one = Informed(api, tmp_path, takes_node_objects=True)
    try:
        assert json.loads(answered(one, body)[1])["Nodes"]["items"] == [{"metadata": {"name": "a"}}]
    finally:
        one.close()


@pytest.mark.parametrize(
    ("options", "longest", "at_once"),
    [
        (ExtenderOptions(), NAMES_BODY_BYTES, 4 * NAMES_BODY_BYTES),
        (ExtenderOptions(takes_node_objects=True), 128 << 20, 256 << 20),
        (ExtenderOptions(body_bytes=9 << 20), 9 << 20, 36 << 20),
    ],
)
def test_bodies_are_bounded_each_and_together_by_what_their_form_needs(options, longest, at_once):
    assert (options.longest_body, options.limits.body_bytes) == (longest, at_once)


def test_a_question_about_the_largest_cluster_and_the_largest_pod_is_read(extender):
    pod = pod_object(container(cpu="1", memory="1Gi"))
    pod["spec"]["containers"][0]["env"] = [{"name": f"V{n}", "value": "x" * 200} for n in range(16_000)]
    names = [f"{n:0253}" for n in range(NODES)]
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
    assert 5_000_000 < len(body) <= NAMES_BODY_BYTES
    assert json.loads(extender.ask("POST", "/filter", body)[1])["NodeNames"] == names


def test_what_no_scheduler_sends_is_not_read(extender):
    longest = ExtenderOptions().longest_body
    for path, size in (("/filter", longest + 1), ("/prioritize", longest + 1), ("/bind", (4 << 10) + 1)):
        status, text = answered(extender, b"x" * size, path)
        assert (status, text.partition(";")[0]) == (413, f"{size} bytes of body, at most {size - 1} are read")


def test_bodies_of_many_clients_at_once_do_not_fill_the_memory(extender):
    """More bodies than there is memory for are announced and begun, none is finished."""
    server, longest = extender.process.server, ExtenderOptions().longest_body
    head = b"POST /filter HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % longest
    slow = []
    for _ in range(12):
        slow.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        slow[-1].sendall(head + b"x" * 1000)
    for _ in range(12 - BODIES):
        (closed, *_), _, _ = select.select(slow, [], [], 60)
        assert closed.recv(1) == b""
        slow.remove(closed)
        closed.close()
    assert extender.passes("a") == ["a"]
    for one in slow:
        one.close()


def test_probes_have_a_port_that_slow_clients_of_the_other_do_not_reach(api, tmp_path):
    one = Informed(api, tmp_path, healthz_address=("127.0.0.1", 0))
    slow = []
    try:
        for _ in range(2 * one.process.server.connections.limits.connections):
            slow.append(socket.create_connection(("127.0.0.1", one.process.server.port), timeout=60))
            slow[-1].sendall(b"P")
        with closing(http.client.HTTPConnection("127.0.0.1", one.process.probes.port, timeout=60)) as probe:
            for path, status in (("/healthz", 200), ("/filter", 404), ("/metrics", 404)):
                probe.request("GET", path)
                with probe.getresponse() as answer:
                    assert answer.status == status
                probe.close()
        assert one.passes("a") == ["a"]
        assert len(one.process.server.connections) <= CONNECTIONS
    finally:
        one.close()
        for client in slow:
            client.close()


@pytest.mark.parametrize(
    ("has_tls", "trouble"), [(False, "plain HTTP"), (True, "clients need no certificate")]
)
@needs_openssl
def test_an_open_port_is_said_and_what_closes_it(tmp_path, caplog, has_tls, trouble):
    certificate, key = made_certificate(tmp_path, "extender")
    tls = {"certificate": certificate, "key": key} if has_tls else {}
    process = ExtenderProcess(ExtenderOptions(address=("127.0.0.1", 0), **tls), Nothing(), log=LOG)
    process.warn()
    (record,) = [one for one in caplog.records if one.getMessage() == "the port is open"]
    assert record.fields["err"].startswith(trouble)
    process.server.close()
