"""A real kubectl finds nothing odd about the tests' API server, nor about what deploy/ asks of one."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
