"""Whatever a server or a proxy before it answers for a while: exporter and extender go on, and see what is true afterwards."""

import json
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.exporter.exporter import Exporter, ExportOptions
from nri_plugin.exporter.startup_taint import TAINT
from nri_plugin.extender.process import ClusterFeed, ExtenderOptions, ExtenderProcess
from nri_plugin.kube.api_client import KubeClient
from nri_plugin.kube.watch import WatchBackoff
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine
from tests.kube_api_exchanges import crd
from tests.kube_api_server import KubeAPI
from tests.kube_builders import container, nrt_object, pod_object

PATIENCE_S = 30.0
LOG = logging.getLogger("odd answers")
LOG.propagate = False
ODD = (None, 5, "x", [], {}, True, [None], ["x"], {"x": "y"}, -1, 10**30, "\U0001f600")

RAW = (
    b"",
    b"null",
    b"[]",
    b"5",
    b'"x"',
    b"{}",
    b"[" * 5000,
    b'{"items":[',
    b"\xff",
    b"<html>",
    b'{"items":5}',
)
STATUSES = (200, 200, 200, 204, 302, 400, 401, 403, 404, 409, 410, 429, 500, 503)
PAUSES = ("", "0", "-1", "99999999999", "9" * 400, "soon", "Wed, 21 Oct 2099 07:28:00 GMT")

Answer = tuple[int, dict[str, str], bytes]


def places(obj: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def changed(content: bytes, place: int, odd: object) -> bytes:
    """The answer with one value in it, of any depth, replaced."""
    try:
        obj = json.loads(content)
    except ValueError:
        return content
    paths = list(places(obj))
    path = paths[place % len(paths)]
    if not path:
        return json.dumps(odd).encode()
    inner = obj
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = odd
    return json.dumps(obj).encode()


def spoilings() -> st.SearchStrategy[Callable[[bytes], Answer]]:
    values = st.tuples(st.integers(0, 400), st.sampled_from(ODD)).map(
        lambda drawn: lambda content: (200, {}, changed(content, *drawn))
    )
    whole = st.tuples(st.sampled_from(STATUSES), st.sampled_from(PAUSES), st.sampled_from(RAW)).map(
        lambda drawn: lambda _: (drawn[0], {"Retry-After": drawn[1]}, drawn[2])
    )
    return values | whole


class Cluster:
    """An API server, an exporter with its agent, and an extender; `told` is notified of all that they see."""

    def __init__(self, folder: Path) -> None:
        self.api = KubeAPI([crd()])
        self.api.behaviour.ends_watches_at_once = True
        self.api.put(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"taints": [TAINT]}}
        )
        self.put_pod("before")
        self.told = threading.Condition()
        self.client = KubeClient.connected(str(self.api.kubeconfig(folder)))
        self.node, self.state, self.feed = (
            Node(machine(), Options(), CPUSet.parse("0")),
            State(),
            StatusFeed(),
        )
        self.agent = StatusSocket(folder / "agent.sock", lambda: (self.node, self.state), self.feed)
        options = ExportOptions("n1", str(folder / "agent.sock"), pause_s=0.0, keeps_taint=True)
        self.exporter = Exporter(options, self.client, LOG)
        self.watches = ClusterFeed(self.client, LOG)
        self.extender = ExtenderProcess(ExtenderOptions(address=("127.0.0.1", 0)), self.watches, log=LOG)
        assert self.exporter.taint is not None
        for sink in (self.exporter.pods, self.exporter.taint, self.extender.topologies, self.extender.pods):
            for name in ("listed", "changed", "deleted"):
                setattr(sink, name, self.noticed(getattr(sink, name)))
        runs = (self.exporter.run, self.extender.serve)
        self.threads = [threading.Thread(target=run, daemon=True) for run in runs]

    def noticed(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def told(obj: Any) -> None:
            call(obj)
            with self.told:
                self.told.notify_all()

        return told

    def put_pod(self, name: str) -> None:
        obj = pod_object(container(cpu="2", memory="1Gi"), name=name, node="n1", phase="Running")
        self.api.put({"apiVersion": "v1", "kind": "Pod", **obj})

    def unseen(self, name: str) -> list[str]:
        """What the parts do not see as it is: the pod, the nodes and the exporter's object."""
        stored = (
            self.api.store.objects.get(("topology.node.k8s.io", "noderesourcetopologies", "", "n1")) or {}
        )
        amounts = {row["available"] for zone in stored.get("zones", ()) for row in zone["resources"]}
        cache, pods = self.extender._cache, self.api.store.objects
        uids = [pods["", "pods", "ns", one]["metadata"]["uid"] for one in ("before", name)]
        seen = {
            "exporter: allocation": "5" in amounts,
            "exporter: pod": self.exporter.pods.facts("ns", name, uids[1]) is not None,
            "extender: pods": cache._node_by_pod.keys() >= set(uids),
            "extender: nodes": bool(cache.zones("n1") and cache.zones("n2")),
        }
        return [what for what, is_seen in seen.items() if not is_seen]

    def close(self) -> None:
        self.exporter.stop()
        self.extender.stop()
        self.agent.close()
        self.api.close()
        for one in self.threads:
            one.join(PATIENCE_S)
            assert not one.is_alive()
        self.client.close()


@contextmanager
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="t") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatchBackoff, "next_s", lambda *_: 0.005)
        made = Cluster(Path(folder))
        try:
            yield made
        finally:
            made.close()


@given(st.lists(spoilings(), min_size=1, max_size=40))
@settings(max_examples=20)
def test_odd_answers_end_no_watch_and_what_is_true_afterwards_is_seen(spoiled):
    with cluster() as one:
        is_over = threading.Event()

        def ended(content: bytes) -> Answer:
            is_over.set()
            return 200, {}, content

        one.api.behaviour.spoil_next = [*spoiled, ended]
        for thread in one.threads:
            thread.start()
        one.feed.wake()
        for number in range(3):
            one.put_pod(f"while-{number}")
        assert is_over.wait(PATIENCE_S)
        one.state = State(allocations={"u/app": Allocation(CPUSet.parse("1-2"))})
        one.feed.wake()
        one.put_pod("after")
        one.api.put(nrt_object("n2", {0: {"cpu": "4"}}))
        # What an answer said in the right form and wrongly is believed until the next list.
        one.api.store.compact()
        with one.told:
            assert one.told.wait_for(lambda: not one.unseen("after"), PATIENCE_S), one.unseen("after")
        threads = [*one.exporter.threads, *one.watches._threads, *one.threads]
        assert all(thread.is_alive() for thread in threads)
