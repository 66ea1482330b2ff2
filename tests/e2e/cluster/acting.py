"""What scenarios do again and again: pods, rights, the extender beside a scheduler."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.agent_process import REPOSITORY
from tests.e2e.lab.shell import run

from .control_plane import Object, free_ports, listens, scheduler_command
from .stage import DEPLOY, NRT_GROUP, PlayedNode, Stage, pod_object

EXTENDER = "nri-pin-extender"


def bound(stage: Stage, node: str, name: str, cpu: int) -> Object:
    """A pod that the cluster already holds for that node."""
    return create(stage, pod_object(name, cpu=cpu, node=node))


def create(stage: Stage, obj: Object, path: str = "/api/v1/namespaces/default/pods") -> Object:
    status, answer = stage.cluster.ask("POST", path, obj)
    assert status == 201, answer
    stage.cleanup(
        "delete",
        obj["kind"],
        obj["metadata"]["name"],
        "--force",
        "--grace-period=0",
        "--ignore-not-found",
        "--wait=false",
    )
    return answer


def events(stage: Stage, pod: str) -> list[Object]:
    path = f"/apis/events.k8s.io/v1/namespaces/default/events?fieldSelector=regarding.name={pod}"
    return (stage.cluster.found(path) or {}).get("items", [])


def pods(stage: Stage, labels: str) -> list[Object]:
    return stage.cluster.get(f"/api/v1/namespaces/default/pods?labelSelector={labels}")["items"]


def node_of(stage: Stage, pod: str) -> str:
    return (
        (stage.cluster.found(f"/api/v1/namespaces/default/pods/{pod}") or {})
        .get("spec", {})
        .get("nodeName", "")
    )


def scheduled(stage: Stage, name: str, cpu: int) -> str:
    """Let kube-scheduler place a pod; returns the node."""
    began = time.monotonic()
    create(stage, pod_object(name, cpu=cpu, schedulerName="numa"))
    placed = stage.until(lambda: node_of(stage, name), f"{name} is scheduled")
    stage.figure(f"from creation to binding of {name}", f"{time.monotonic() - began:.2f} s")
    return str(placed)


def runs_on(stage: Stage, nodes: dict[str, PlayedNode], node: str, name: str, cpu: int) -> None:
    """Play the kubelet: the pod that was scheduled is created there, and runs."""
    told = nodes[node].create(nodes[node].pod("default", name, cpu), cpu)
    stage.hold("refused" not in told, f"the agent of {node} does as the scheduler thought", told)
    running = {"phase": "Running", "startTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    stage.cluster.ask(
        "PATCH",
        f"/api/v1/namespaces/default/pods/{name}/status",
        {"status": running},
        "application/merge-patch+json",
    )


def gc_sees_the_kind(stage: Stage, obj: Object) -> None:
    """The garbage collector looks for new kinds every 30 s: wait until it deletes an object without an owner."""
    stray = {
        "apiVersion": obj["apiVersion"], "kind": obj["kind"], "zones": [],
        "metadata": {"name": "stray", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "nobody", "uid": "11111111-2222-3333-4444-555555555555"}]},
    }  # fmt: skip
    status, answer = stage.cluster.ask("POST", NRT_GROUP, stray)
    assert status == 201, answer
    stage.until(lambda: not stage.topology("stray"), "the garbage collector knows the kind", patience_s=150)


_EXPORTER = {"kind": "ServiceAccount", "name": "nri-pin-export", "namespace": "nri-pin"}


def refused_by_a_server_that_starts() -> set[str]:
    """It knows neither accounts nor roles nor kinds at once; clients come again."""
    kinds = ("pods", "nodes", "noderesourcetopologies")
    asked = [f"{verb} {kind}" for verb in ("get", "list", "watch") for kind in kinds]
    asked += ["patch noderesourcetopologies", "create events"]
    return {f"{words} {status}" for words in asked for status in (401, 403, 404, 409, 429, 500, 503)}


def grant(stage: Stage, name: str, rules: list[Object], whom: Object = _EXPORTER) -> None:
    """Further rights, of the exporter's account as the chart grants them, or of somebody else."""
    group = "rbac.authorization.k8s.io"
    objects = [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": [whom],
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        },
    ]  # fmt: skip
    stage.apply(objects)


def start_extender(stage: Stage, *, binds: bool = False) -> None:
    """The extender with TLS, and a scheduler named `numa` beside the cluster's own, with the guide's configuration.

    Args:
        binds: the extender binds pods, too.
    """
    values: dict[str, Any] = {"enabled": True}
    if binds:
        values |= {"replicas": 1, "bind": {"enabled": True}, "tlsSecret": "tls", "clientCASecret": "tls"}
    chart = rendered_chart(stage, extender=values, crd={"install": False})
    ours = [one for one in chart if one["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")]
    stage.apply([one for one in ours if one["metadata"]["name"] == EXTENDER])
    keys = stage.cluster.authority
    certificate, key = keys.certificate("extender", hosts=("IP:127.0.0.1",))
    client, client_key = keys.certificate("scheduler-of-extender", user="kube-scheduler")
    port = free_ports(1)[0]
    stage.start(
        "extender",
        [
            sys.executable, "-P", "-m", "nri_plugin", "extender", "--listen", f"127.0.0.1:{port}",
            "--kubeconfig", stage.account("", EXTENDER), "--tls-cert", certificate, "--tls-key", key,
            "--tls-client-ca", keys.ca, *(["--bind"] if binds else []),
        ],
    )  # fmt: skip
    config = guide_configuration()
    extender = config["extenders"][0]
    extender["urlPrefix"] = f"https://127.0.0.1:{port}"
    extender["tlsConfig"] = {"caFile": str(keys.ca), "certFile": str(client), "keyFile": str(client_key)}
    if binds:
        extender["bindVerb"] = "bind"
    extender["httpTimeout"] = "30s"  # the guide's two seconds are for a machine that is not busy otherwise
    stage.until(lambda: listens(port), "the extender listens")
    configuration = stage.cluster.scheduler_configuration(
        "numa", {**config, "profiles": [{"schedulerName": "numa"}]}
    )
    stage.start("scheduler", scheduler_command(stage.cluster.programs, configuration))


def plugin_configuration(stage: Stage) -> Path:
    """The configuration of a scheduler named `numa` with the unmodified plugin NodeResourceTopologyMatch, and its rights."""
    rule = {"apiGroups": ["topology.node.k8s.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-scheduler"}
    grant(stage, "numa-scheduler", [rule], user)
    name = "NodeResourceTopologyMatch"
    arguments = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": f"{name}Args", "cacheResyncPeriodSeconds": 2,
        "scoringStrategy": {"type": "LeastNUMANodes"},
    }  # fmt: skip
    profile = {
        "schedulerName": "numa",
        "plugins": {"multiPoint": {"enabled": [{"name": name}]}},
        "pluginConfig": [{"name": name, "args": arguments}],
    }
    return stage.cluster.scheduler_configuration(
        "numa-plugin", {"profiles": [profile], "percentageOfNodesToScore": 100}
    )


def guide_configuration() -> dict[str, Any]:
    """The KubeSchedulerConfiguration that the guide shows."""
    text = (DEPLOY / "guide" / "cluster.md").read_text()
    found = re.search(r"```yaml\n(apiVersion: kubescheduler.*?)```", text, re.DOTALL)
    assert found is not None
    whole = yaml.safe_load(found[1])
    return {key: value for key, value in whole.items() if key not in ("apiVersion", "kind")}


def rendered_chart(stage: Stage, **values: Any) -> list[Object]:
    """The objects of the chart in the exporter's namespace, as helm renders them for this cluster's version."""
    file = stage.folder / "values.json"
    file.write_text(json.dumps(values))
    words = [
        "template",
        "nri-pin",
        DEPLOY / "chart",
        "-n",
        "nri-pin",
        "-f",
        file,
        "--api-versions",
        "monitoring.coreos.com/v1",
    ]
    helm = REPOSITORY / "hack" / "helm"
    run([helm, "--path"])  # where it is built first it says so
    return [one for one in yaml.safe_load_all(run([helm, *words])) if one]
