"""Runtime, agent, exporter and API server, each in its own place: what is placed is what the cluster reads."""

import http.client
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.kube.noderesourcetopology import NodeResourceTopology, fingerprint, from_object
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Pod
from tests.agent_process import (
    PATIENCE_S,
    PATIENT_AGENT,
    REPOSITORY,
    Peer,
    Process,
    config_text,
    machine_root,
)
from tests.builders import container, pod
from tests.kube_api_exchanges import crd
from tests.kube_api_server import KubeAPI
from tests.kube_builders import Object
from tests.kube_builders import container as kube_container
from tests.kube_builders import pod_object as kube_pod

KEY = ("topology.node.k8s.io", "noderesourcetopologies", "", "worker-1")
POD = pod("exclusive", cpu=2)


def pod_object(of: Pod, *containers: Object, init: Sequence[Object] = ()) -> Object:
    """The pod as the cluster holds it, on this node."""
    obj = kube_pod(*containers, name=of.name, init=init, node="worker-1", uid=of.uid)
    obj["metadata"]["namespace"] = of.namespace
    return {"apiVersion": "v1", "kind": "Pod", **obj}


class Cluster:
    """Everything there is, in one folder."""

    def __init__(self, folder: Path) -> None:
        machine_root(folder)
        (folder / "config.yaml").write_text(config_text(folder, topologyManagerPolicy="single-numa-node"))
        self.folder = folder
        self.api = KubeAPI([crd()])
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "nri.sock"))
        self.listener.listen()
        self.listener.settimeout(PATIENCE_S)
        self.processes = [self.start("run", "--config", str(folder / "config.yaml"))]
        self.runtime = Peer(self.listener.accept()[0])

    def start(self, *words: str) -> Process:
        environment = {"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"], "NODE_NAME": "worker-1"}
        return Process([*PATIENT_AGENT, *words], environment)

    def export(self, *more: str) -> Process:
        config = str(self.api.kubeconfig(self.folder))
        words = ("--state-dir", str(self.folder / "state"), "--kubeconfig", config, "--min-interval", "0.1")
        self.processes.append(self.start("export", *words, *more))
        return self.processes[-1]

    def reads(self, available: list[int]) -> NodeResourceTopology:
        """The object once its zones have so many CPUs available."""
        store = self.api.store
        with store.changed:
            assert store.changed.wait_for(lambda: self._available() == available, PATIENCE_S), store.objects
            return from_object(store.objects[KEY])

    def _available(self) -> list[int]:
        obj = self.api.store.objects.get(KEY)
        return [zone.resources[0].available_milli // 1000 for zone in from_object(obj).zones] if obj else []

    def follows_pods(self) -> None:
        """Return once a pod that is put now is heard of: the exporter watches them."""
        self.api.wait_for_watches(2)

    def creates(self, of: Pod, name: str) -> str:
        """The CPUs of a container of 2 CPUs."""
        what = container(of, name, cpu=2)
        answer = self.runtime.ask(nri.CreateContainer(of, what)).response
        self.runtime.ask(nri.PostCreateContainer(of, what))
        assert isinstance(answer, nri.CreateContainerResponse)
        assert answer.resources is not None
        return answer.resources.cpus

    def close(self) -> None:
        for process in self.processes:
            process.end()
        self.runtime.sock.close()
        self.listener.close()
        self.api.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_what_the_agent_places_is_what_the_cluster_reads(cluster: Cluster) -> None:
    cluster.runtime.synchronize()
    exporter = cluster.export()
    empty = cluster.reads([6, 8])
    assert empty.topology_policies == ("SingleNUMANodeContainerLevel",)
    cluster.runtime.ask(nri.RunPodSandbox(POD))
    cluster.runtime.ask(nri.CreateContainer(POD, container(POD, cpu=2)))
    full = cluster.reads([4, 8])
    assert full.fingerprint == fingerprint([(POD.namespace, POD.name)])
    cluster.runtime.ask(nri.StopPodSandbox(POD))
    cluster.reads([6, 8])
    exporter.signal(signal.SIGTERM)
    assert exporter.wait() == 0


def test_the_exporter_waits_for_an_agent_that_is_away(cluster: Cluster) -> None:
    cluster.runtime.synchronize()
    agent = cluster.processes[0]
    agent.signal(signal.SIGTERM)
    assert agent.wait() == 0
    exporter = cluster.export()
    exporter.wait_for_line("no connection to the agent")
    cluster.processes.append(cluster.start("run", "--config", str(cluster.folder / "config.yaml")))
    cluster.reads([6, 8])


def test_what_the_cluster_says_of_a_pod_decides_where_its_containers_go(cluster: Cluster) -> None:
    sidecar = pod("sidecar", cpu=4)
    rows = (
        kube_container("mesh", always=True, cpu="2", memory="1Gi"),
        kube_container("web", cpu="2", memory="1Gi"),
    )
    stored = cluster.api.put(pod_object(sidecar, rows[1], init=[rows[0]]))
    sidecar = replace(sidecar, uid=stored["metadata"]["uid"])
    cluster.runtime.synchronize()
    cluster.export()
    cluster.reads([6, 8])
    cluster.follows_pods()
    assert cluster.creates(sidecar, "mesh") == "2-3"
    cluster.runtime.ask(nri.StopContainer(sidecar, container(sidecar, "mesh")))
    assert cluster.creates(sidecar, "web") == "4-5"  # the sidecar has ended, and is known to come back
    unknown = pod("unknown", cpu=4)
    assert cluster.creates(unknown, "mesh") == "6-7"
    cluster.runtime.ask(nri.StopContainer(unknown, container(unknown, "mesh")))
    assert cluster.creates(unknown, "web") == "6-7"


def test_a_pod_that_is_refused_becomes_failed_where_that_is_chosen(cluster: Cluster) -> None:
    wide = pod("wide", cpu=12)
    stored = cluster.api.put(pod_object(wide, kube_container("app", cpu="12", memory="1Gi")))
    wide = replace(wide, uid=stored["metadata"]["uid"])
    cluster.runtime.synchronize()
    cluster.export("--on-refusal", "fail-pod")
    cluster.reads([6, 8])
    key = ("", "pods", wide.namespace, wide.name)
    cluster.runtime.ask(nri.RunPodSandbox(wide))
    answer = cluster.runtime.ask(nri.CreateContainer(wide, container(wide, "app", cpu=12)))
    assert "TopologyAffinityError" in str(answer), answer
    store = cluster.api.store
    with store.changed:
        assert store.changed.wait_for(
            lambda: store.objects[key].get("status", {}).get("phase") == "Failed", PATIENCE_S
        )
    status = store.objects[key]["status"]
    assert status["reason"] == "TopologyAffinityError"
    assert status["message"].startswith(
        "Pod was rejected: Resources cannot be allocated with Topology locality; "
    )
    # The patch has come only after the agent rejected the pod: no container of it is admitted, however small.
    answer = cluster.runtime.ask(nri.CreateContainer(wide, container(wide, "app", cpu=1)))
    assert "the pod is set to Failed" in str(answer), answer
    # The kubelet's status manager writes its own status; the patch that follows has another annotation, so it is an update.
    before = store.objects[key]["metadata"]["annotations"]
    cluster.api.put({**store.objects[key], "status": {"phase": "Pending"}})
    with store.changed:
        assert store.changed.wait_for(
            lambda: store.objects[key]["status"].get("reason") == "TopologyAffinityError", PATIENCE_S
        )
    after = store.objects[key]["metadata"]["annotations"]
    assert before.keys() == after.keys() == {"nri-pin/refused"}
    assert before != after


def test_the_next_pod_of_the_same_owner_waits_and_its_event_says_until_when(cluster: Cluster) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d", "uid": "rs", "controller": True}
    cluster.runtime.synchronize()
    cluster.export("--on-refusal", "fail-pod")
    cluster.reads([6, 8])
    store = cluster.api.store
    for name, text in (
        ("first", "ReplicaSet web-5d creates another"),
        ("second", "so the pod waits until 20"),
    ):
        wide = pod(name, cpu=12)
        obj = pod_object(wide, kube_container("app", cpu="12", memory="1Gi"))
        obj["metadata"]["ownerReferences"] = [owner]
        wide = replace(wide, uid=cluster.api.put(obj)["metadata"]["uid"])
        cluster.runtime.ask(nri.RunPodSandbox(wide))
        cluster.runtime.ask(nri.CreateContainer(wide, container(wide, "app", cpu=12)))
        with store.changed:
            assert store.changed.wait_for(
                lambda text=text: any(text in one.get("note", "") for one in store.objects.values()),
                PATIENCE_S,
            )
    phases = [
        store.objects["", "pods", wide.namespace, name].get("status", {}).get("phase")
        for name in ("first", "second")
    ]
    assert phases[0] == "Failed"
    assert phases[1] != "Failed"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_an_exporter_shows_how_it_does_where_that_is_asked_for(cluster: Cluster) -> None:
    cluster.runtime.synchronize()
    port = free_port()
    exporter = cluster.export("--metrics-bind-address", f"127.0.0.1:{port}")
    exporter.wait_for_line("published")
    assert page(port, "/healthz") == (200, "alive ok\n")
    assert page(port, "/readyz") == (200, "ready ok\n")
    assert 'nri_pin_export_publish_total{result="written"} 1' in page(port, "/metrics")[1]
    cluster.processes[0].signal(signal.SIGTERM)
    exporter.wait_for_line("no connection to the agent")
    assert page(port, "/readyz")[0] == 503
    assert "nri_pin_export_agent_connected 0" in page(port, "/metrics")[1]


def test_an_address_that_is_none_is_refused(cluster: Cluster) -> None:
    exporter = cluster.export("--metrics-bind-address", "nowhere")
    exporter.wait_for_line("'nowhere' is not an address such as :8888 or 127.0.0.1:8888")
    assert exporter.wait() != 0
