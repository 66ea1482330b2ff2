"""A real kubectl finds nothing odd about the tests' API server, nor about what deploy/ asks of one."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_plugin.cli.kubectl.nodes import OBJECTS
from tests.fake_kubectl import Cluster, agent_object, pod_object
from tests.kube_api_server import KubeAPI

DEPLOY = Path(__file__).parents[2] / "deploy"
PATIENCE_S = 60
pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="needs kubectl on the PATH; then run hack/test tests/deploy"
)


def monitoring_kind(kind: str) -> dict[str, object]:
    """The definition of a kind of the Prometheus operator that takes any fields."""
    plural = kind.lower() + "s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
            },
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


Kubectl = Callable[..., str]


@pytest.fixture
def api() -> Iterator[KubeAPI]:
    server = KubeAPI()
    yield server
    server.close()


@pytest.fixture
def kubectl(api: KubeAPI, tmp_path: Path) -> Kubectl:
    config = api.kubeconfig(tmp_path)

    def run(*words: str, text: str = "", fails: bool = False) -> str:
        command = ["kubectl", "--kubeconfig", str(config), "--cache-dir", str(tmp_path / "cache"), *words]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment,
            check=False,
        )
        assert (done.returncode != 0) is fails, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    return run


def topology(**fields: object) -> str:
    obj = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", **fields}
    return json.dumps({"metadata": {"name": "n1"}, "zones": []} | obj)


def test_every_manifest_passes_a_dry_run(kubectl: Kubectl) -> None:
    for path in sorted(DEPLOY.glob("*.yaml")):
        assert "created (server dry run)" in kubectl("apply", "--dry-run=server", "-f", str(path)), path


@pytest.mark.parametrize("folder", ["base", "cluster"])
def test_every_kustomization_passes_a_dry_run(kubectl: Kubectl, folder: str) -> None:
    told = kubectl("apply", "--dry-run=server", "-k", str(DEPLOY / "kustomize" / folder))
    assert "daemonset.apps/nri-pin created (server dry run)" in told
    assert "error" not in told.lower()


def test_monitoring_passes_where_the_prometheus_operator_is(kubectl: Kubectl, api: KubeAPI) -> None:
    for kind in ("PodMonitor", "PrometheusRule"):
        api.define(monitoring_kind(kind))
    told = kubectl("apply", "--dry-run=server", "-k", str(DEPLOY / "kustomize" / "monitoring"))
    for kind in ("podmonitor", "prometheusrule"):
        assert f"{kind}.monitoring.coreos.com/nri-pin created (server dry run)" in told


def test_a_defined_kind_can_be_applied_read_patched_and_deleted(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(DEPLOY / "crd.yaml"))
    assert "No resources found" in kubectl("get", "node-res-topo")
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", text=topology())
    attribute = {"name": "a", "value": "b"}
    kubectl("patch", "node-res-topo", "n1", "--type=merge", "-p", json.dumps({"attributes": [attribute]}))
    assert json.loads(kubectl("get", "node-res-topo", "n1", "-o", "json"))["attributes"] == [attribute]
    assert '"n1" deleted' in kubectl("delete", "node-res-topo", "n1")
    assert '"n1" not found' in kubectl("get", "node-res-topo", "n1", fails=True)


def test_a_wrong_object_is_refused_with_its_field(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(DEPLOY / "crd.yaml"))
    assert 'unknown field "bogus"' in kubectl("apply", "-f", "-", text=topology(bogus=1), fails=True)
    zone = {"name": "node-0"}
    assert "zones[0].type: Required value" in kubectl(
        "apply", "-f", "-", text=topology(zones=[zone]), fails=True
    )


def test_another_manager_is_told_of_the_conflict(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(DEPLOY / "crd.yaml"))
    mine = ("apply", "--server-side", "--field-manager", "us", "-f", "-")
    kubectl(*mine, text=topology())
    theirs = topology(zones=[{"name": "node-0", "type": "Node"}])
    text = kubectl("apply", "--server-side", "-f", "-", text=theirs, fails=True)
    assert 'conflict with "us": .zones' in text


def objects_of(cluster: Cluster) -> Iterator[dict[str, object]]:
    """What the stand-in holds, as objects that an API server takes; it sets the status of pods itself."""
    for name in {pod["metadata"]["namespace"] for pod in cluster.pods}:
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    for name in cluster.nodes:
        yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    for pod in cluster.pods:
        yield {"apiVersion": "v1", "kind": "Pod", **pod}


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """`kubectl-nri_pin` as kubectl runs it."""

    def run(config: Path, *words: str) -> tuple[int, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(tmp_path), "KUBECONFIG": str(config)}
        done = subprocess.run(
            ["kubectl", "nri-pin", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_kubectl_runs_the_plugin_and_answers_as_the_stand_in_does(
    api: KubeAPI, kubectl: Kubectl, plugin: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    folder = tmp_path / "fake"
    folder.mkdir()
    cluster = Cluster(folder)
    cluster.nodes, cluster.topologies = ["a", "b"], None
    cluster.pods = [agent_object("a"), agent_object("b"), pod_object("db-0", "a"), pod_object("waits")]
    cluster.save()
    for obj in objects_of(cluster):
        api.put(obj)

    def answers(*words: str) -> tuple[str, str]:
        """Of the stand-in, and of the real kubectl."""
        fake = subprocess.run(
            [str(folder / "kubectl"), "get", *words, "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
        )
        real = kubectl("get", *words, "-o", "json", fails=fake.returncode != 0)
        return fake.stdout + fake.stderr, real

    def names(text: str) -> list[str]:
        return sorted(one["metadata"]["name"] for one in json.loads(text)["items"])

    agents = ("pods", "--all-namespaces", "--selector", "app.kubernetes.io/name=nri-pin")
    for words in (agents, (*agents, "--field-selector", "spec.nodeName=b"), ("pods", "--namespace", "shop")):
        fake, real = map(names, answers(*words))
        assert fake == real, words
    for words in (("pod", "nobody", "--namespace", "shop"), ("node", "none"), (OBJECTS,)):
        fake, real = answers(*words)
        assert fake == real, words

    config = api.kubeconfig(tmp_path)
    kubectl("apply", "-f", str(DEPLOY / "crd.yaml"))
    kubectl("apply", "-f", "-", text=topology(metadata={"name": "c"}))
    code, text = plugin(config, "nodes", "-o", "name")
    assert (code, text.split()) == (1, ["node/a", "node/b", "node/c"])  # this server has no exec
    assert "no answer" in plugin(config, "nodes")[1]
    assert plugin(config, "show", "nobody", "-n", "shop") == (1, 'kubectl nri-pin: pods "nobody" not found\n')
    assert "shop/waits is on no node yet" in plugin(config, "show", "shop/waits")[1]
