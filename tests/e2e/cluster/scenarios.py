"""Scenarios on the control plane alone: nodes are played, everything else that answers is the real program.

The name of a scenario is its function's, its title the first line of the docstring. What is judged comes from the API
server, from kubectl and from the audit log.
"""

import http.client
import json
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.lab.writing import write_whole
from tests.kube_api_exchanges import crd
from tests.kube_api_player import RECORDER, compared, played, recorded
from tests.kube_api_server import KubeAPI

from .acting import (
    bound,
    create,
    events,
    gc_sees_the_kind,
    grant,
    node_of,
    plugin_configuration,
    pods,
    refused_by_a_server_that_starts,
    rendered_chart,
    runs_on,
    scheduled,
    start_extender,
)
from .burst import Burst
from .components import PLUGINS, foreign_program
from .control_plane import ControlPlane, Object
from .stage import DEPLOY, EXPORTER, NRT_GROUP, Stage, pod_object

Scenario = Callable[[Stage], None]
SCENARIOS: dict[str, Scenario] = {}

ALIGNED = {"topologyManagerPolicy": "single-numa-node"}
STARTUP_TAINT = "nri-pin/agent-not-ready"
_EDITOR = """#!/bin/sh
sed -i 's/^    available: .*/    available: "1"/' "$1"
"""
_QUIET_S = 5.0
"""How long is looked that nothing more happens."""


def scenario(function: Scenario) -> Scenario:
    """Put it on the list."""
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


def install(stage: Stage) -> None:
    """What the guide says first."""
    stage.cluster.kubectl("apply", "-f", str(DEPLOY / "crd.yaml"), "-f", str(DEPLOY / "export-rbac.yaml"))
    stage.cluster.until(lambda: stage.cluster.found(NRT_GROUP), "the kind is served")


@scenario
def manifests_are_applied(stage: Stage) -> None:
    """kubectl takes every manifest, twice, and kustomize after the plain DaemonSet."""
    kubectl = stage.cluster.kubectl
    folder = DEPLOY / "kustomize"
    for file in sorted(DEPLOY.glob("*.yaml")):
        told = kubectl("apply", "-f", str(file))
        stage.hold("Warning" not in told, f"{file.name} is applied without a warning", told)
        again = kubectl("apply", "-f", str(file))
        changed = [line for line in again.splitlines() if not line.endswith(" unchanged")]
        stage.hold(not changed, f"{file.name} applied again changes nothing", changed)
    for name in ("base", "cluster"):
        told = kubectl("apply", "-k", str(folder / name))
        stage.hold("Warning" not in told, f"kustomize/{name} is applied over it without a warning", told)
    stage.until(
        lambda: "NonStructuralSchema" not in kubectl("get", "crd", "noderesourcetopologies.topology.node.k8s.io", "-o", "json")
        and stage.cluster.found(NRT_GROUP),
        "the kind is served",
    )  # fmt: skip
    kubectl("delete", "-k", str(folder / "cluster"), "--ignore-not-found", "--wait=true")
    install(stage)


@scenario
def what_is_placed_is_published(stage: Stage) -> None:
    """The object of a node follows what the agent places, and the Node owns it."""
    install(stage)
    node = stage.played_node("published")
    node.export(stage.account(node.name))
    obj = stage.until(lambda: stage.topology(node.name), "the object is there")
    stage.until(lambda: stage.available(node.name) == ["6", "8"], "all CPUs but the reserved are available")
    uid = stage.cluster.get(f"/api/v1/nodes/{node.name}")["metadata"]["uid"]
    owners = obj["metadata"].get("ownerReferences")
    stage.hold(owners and owners[0]["uid"] == uid, "the Node owns the object", owners)
    managers = [row["manager"] for row in obj["metadata"]["managedFields"]]
    stage.hold(managers == ["nri-pin"], "one manager has written it", managers)
    bound(stage, node.name, "big", cpu=4)
    sandbox = node.pod("default", "big", 4)
    cpus = node.create(sandbox, 4)
    stage.hold(cpus == "2-5", "the agent gives the first four CPUs that are not reserved", cpus)
    began = time.monotonic()
    stage.until(lambda: stage.available(node.name) == ["2", "8"], "the object accounts for the pod")
    stage.figure("from creation to the object", f"{time.monotonic() - began:.2f} s")
    attributes = {row["name"]: row["value"] for row in (stage.topology(node.name) or {})["attributes"]}
    stage.hold(attributes["nri-pin/accounted-pods"], "the object names the pods it accounts for", attributes)
    told = stage.cluster.kubectl("get", "node-res-topo", node.name, "-o", "wide")
    stage.hold(node.name in told, "kubectl lists it by its short name", told)
    node.remove(sandbox)
    stage.until(lambda: stage.available(node.name) == ["6", "8"], "its CPUs are available again")
    stage.until(lambda: _is_quiet(stage, node.name), "nothing is written while nothing changes")


def _is_quiet(stage: Stage, node: str) -> bool:
    """Whether nothing is written for a while: what was done last may still be on its way when this begins."""
    writes = len(stage.writes(node))
    time.sleep(_QUIET_S)
    return len(stage.writes(node)) == writes


@scenario
def refusals_are_events(stage: Stage) -> None:
    """A refused container shows in kubectl describe pod, whatever characters its pod's name has."""
    install(stage)
    node = stage.played_node("refusing", **ALIGNED)
    node.export(stage.account(node.name))
    stage.until(lambda: stage.topology(node.name), "the object is there")
    long = "l" + "o" * 248 + "ng.x"
    for name in ("wide", "with.dots.in.it", long):
        bound(stage, node.name, name, cpu=10)
        told = node.create(node.pod("default", name, 10), 10)
        stage.hold(told.startswith("refused"), "the agent refuses it", told)
        found = stage.until(lambda name=name: events(stage, name), f"an event about {name[:20]} is there")
        stage.hold(found[0]["type"] == "Warning", "it is a warning", found[0])
        described = stage.cluster.kubectl("describe", "pod", name)
        stage.hold("nri-pin/export" in described, "kubectl describe pod shows it", described[-600:])
    created = [one.status for one in stage.asked() if one.what == "events" and one.user == EXPORTER]
    stage.hold(set(created) == {201}, "every event is accepted", created)


@scenario
def foreign_edits_are_taken_back(stage: Stage) -> None:
    """What kubectl edit, patch, apply and delete do to the object is put right, and later figures are published."""
    install(stage)
    node = stage.played_node("edited")
    node.export(stage.account(node.name))
    stage.until(lambda: stage.available(node.name) == ["6", "8"], "the object is there")
    editor = stage.folder / "editor"
    editor.write_text(_EDITOR)
    editor.chmod(0o755)
    kubectl = stage.cluster.kubectl
    writes = len(stage.writes(node.name))
    told = kubectl("edit", "node-res-topo", node.name, KUBE_EDITOR=str(editor))
    stage.hold("edited" in told, "kubectl edit changes it", told)
    stage.until(lambda: stage.available(node.name) == ["6", "8"], "an edit is taken back")
    stage.hold(len(stage.writes(node.name)) > writes, "the exporter wrote it", writes)
    kubectl("patch", "node-res-topo", node.name, "--type=merge", "-p", '{"attributes": []}')
    stage.until(lambda: (stage.topology(node.name) or {}).get("attributes"), "a patch is taken back")
    foreign = {**(stage.topology(node.name) or {}), "zones": []}
    foreign["metadata"] = {"name": node.name}
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=json.dumps(foreign))
    stage.until(lambda: stage.available(node.name) == ["6", "8"], "a forced apply is taken back")
    bound(stage, node.name, "edited-pod", cpu=2)
    sandbox = node.pod("default", "edited-pod", 2)
    node.create(sandbox, 2)
    stage.until(lambda: sum(map(int, stage.available(node.name))) == 12, "the next figures are published")
    uid = (stage.topology(node.name) or {})["metadata"]["uid"]
    kubectl("delete", "node-res-topo", node.name)
    stage.until(
        lambda: (found := stage.topology(node.name)) and found["metadata"]["uid"] != uid,
        "a deleted object comes back",
    )
    stage.hold(
        sum(map(int, stage.available(node.name))) == 12, "with its figures", stage.available(node.name)
    )
    stage.expected |= {"patch noderesourcetopologies 409"}


@scenario
def a_node_is_registered_again(stage: Stage) -> None:
    """The object goes with its Node by the garbage collector, and stays with the Node that comes after it."""
    install(stage)
    node = stage.played_node("again")
    node.export(stage.account(""))  # a token that is bound to the Node would end with it
    first = stage.until(lambda: stage.topology(node.name), "the object is there")
    gc_sees_the_kind(stage, first)
    stage.cluster.kubectl("delete", "node", node.name)
    stage.until(
        lambda: not stage.topology(node.name), "the garbage collector deletes the object with its Node"
    )
    before = len(stage.writes(node.name))
    time.sleep(_QUIET_S)
    stage.hold(not stage.topology(node.name), "it stays away while there is no Node")
    stage.hold(len(stage.writes(node.name)) == before, "nothing is written meanwhile")
    node.register()
    stage.until(lambda: stage.topology(node.name), "the object comes back after the Node")
    obj = stage.topology(node.name) or {}
    uid = stage.cluster.get(f"/api/v1/nodes/{node.name}")["metadata"]["uid"]
    stage.hold(obj["metadata"]["ownerReferences"][0]["uid"] == uid, "the new Node owns it", obj["metadata"])
    time.sleep(_QUIET_S)
    still = (stage.topology(node.name) or {}).get("metadata", {}).get("uid")
    stage.hold(still == obj["metadata"]["uid"], "it is not deleted again")
    # what is judged: registered again within the same second, so that the exporter hears of no absence
    stage.cluster.ask("DELETE", f"/api/v1/nodes/{node.name}")
    node.register()
    uid = stage.cluster.get(f"/api/v1/nodes/{node.name}")["metadata"]["uid"]
    stage.until(
        lambda: (
            (found := stage.topology(node.name)) and found["metadata"]["ownerReferences"][0]["uid"] == uid
        ),
        "a Node that is replaced at once owns it soon",
    )
    deletions = [
        one
        for one in stage.asked()
        if (one.verb, one.what, one.name) == ("delete", "noderesourcetopologies", node.name)
    ]
    stage.hold(
        len(deletions) <= 2, "the garbage collector deletes it once for each Node", list(map(str, deletions))
    )
    stage.expected |= {"get nodes 404", "patch noderesourcetopologies 409"}


@scenario
def tokens_expire(stage: Stage) -> None:
    """An exporter whose token has expired publishes once the file holds a new one, and a running one takes the renewed."""
    install(stage)
    node = stage.played_node("tokens")
    uid = stage.cluster.get("/api/v1/namespaces/nri-pin/serviceaccounts/nri-pin-export")["metadata"]["uid"]

    def token(valid_s: float) -> str:
        return stage.cluster.authority.token("nri-pin", "nri-pin-export", uid, valid_s=valid_s)

    file = stage.folder / "renewed.token"
    file.write_text(token(-30))
    node.export(stage.cluster.authority.token_kubeconfig("renewed", stage.cluster.server, file))
    refused = f"export-{node.name}"
    stage.until(
        lambda: "401" in stage.log(refused) or "Unauthorized" in stage.log(refused),
        "the log names the refusal",
    )
    stage.hold(not stage.topology(node.name), "nothing is published with an expired token")
    write_whole(file, token(20))  # what is read empty once is not read again
    ends = time.monotonic() + 20
    stage.until(lambda: stage.topology(node.name), "it publishes once the file is renewed", patience_s=150)
    stage.cluster.until(
        lambda: time.monotonic() > ends + 12, "the second token has expired"
    )  # and no cache knows it
    bound(stage, node.name, "late", cpu=2)
    sandbox = node.pod("default", "late", 2)
    node.create(sandbox, 2)
    stage.until(
        lambda: stage.log(refused).count("401") + stage.log(refused).count("Unauthorized") > 1,
        "it is refused again",
    )
    write_whole(file, token(600))
    stage.until(
        lambda: sum(map(int, stage.available(node.name))) == 12, "it publishes with the third", patience_s=150
    )


@scenario
def an_exporter_writes_its_own_node_only(stage: Stage) -> None:
    """The chart's admission policy binds an exporter to the object of its node, by the node in its token."""
    install(stage)
    chart = rendered_chart(stage, exporter={"enabled": True}, crd={"install": False})
    told = stage.apply([one for one in chart if one["kind"] != "DaemonSet"])
    stage.hold("Warning" not in told, "the chart is applied without a warning", told)
    own, other = stage.played_node("own"), stage.played_node("other")
    account = stage.account(own.name, "nri-pin")
    own.export(account)
    stage.until(lambda: stage.topology(own.name), "the exporter publishes its own node")
    user = "system:serviceaccount:nri-pin:nri-pin"
    other.export(account)
    stage.until(
        lambda: [one for one in stage.writes(other.name, user) if one.status >= 400],
        "another's object is refused",
    )
    stage.hold(not stage.topology(other.name), "there is no such object")
    said = stage.log(f"export-{other.name}")
    stage.hold("may not write the topology of" in said, "the exporter's log says why", said[-800:])
    stage.expected |= {"patch noderesourcetopologies 422"}


@scenario
def an_exporter_writes_one_taint_only(stage: Stage) -> None:
    """The startup taint goes once the agent is ready and comes back while it is away; of Nodes the exporter may write nothing else."""
    install(stage)
    values = {"exporter": {"enabled": True, "startupTaint": True}, "crd": {"install": False}}
    stage.apply([one for one in rendered_chart(stage, **values) if one["kind"] != "DaemonSet"])
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/nri-pin-export-taint"
    status = stage.until(
        lambda: (found := stage.cluster.get(policy)).get("status", {}).get("observedGeneration") == found["metadata"]["generation"] and found["status"],
        "the admission policy is compiled",
    )  # fmt: skip
    stage.hold(not status["typeChecking"].get("expressionWarnings"), "its types are right", status)
    node, other = stage.played_node("tainted"), stage.played_node("beside")
    account = stage.account(node.name, "nri-pin")
    kubectl, own = stage.cluster.kubectl, ("--kubeconfig", str(account))
    kubectl("taint", "node", node.name, f"{STARTUP_TAINT}=:NoSchedule")
    create(stage, pod_object("waits", cpu=2, nodeSelector={"kubernetes.io/hostname": node.name}))
    stage.until(
        lambda: [one for one in events(stage, "waits") if "untolerated taint" in str(one.get("note"))],
        "kube-scheduler tells that the pod does not tolerate the taint",
    )
    node.export(account, "--startup-taint")
    stage.until(lambda: node_of(stage, "waits") == node.name, "the agent is ready: the pod is scheduled")
    foreign = {"spec": {"taints": [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]}}
    refused = {
        "another taint": ("taint", "node", node.name, "other=:NoSchedule"),
        "a label": ("label", "node", node.name, "other=a"),
        "an annotation": ("annotate", "node", node.name, "other=a"),
        "cordoning": ("patch", "node", node.name, "-p", '{"spec": {"unschedulable": true}}'),
        "another Node's taint": ("patch", "node", other.name, "-p", json.dumps(foreign)),
    }
    for what, words in refused.items():
        told = kubectl(*words, *own, fails=True)
        is_ours = "may only add and remove the taint" in told or "may not write node" in told
        stage.hold(is_ours, f"the admission policy refuses {what}", told)
    stage.end(f"agent-{node.name}")
    stage.until(lambda: STARTUP_TAINT in taints_of(stage, node.name), "the agent is away: the taint is back")
    user = "system:serviceaccount:nri-pin:nri-pin"
    wrote = [
        str(one)
        for one in stage.asked()
        if (one.user, one.verb, one.what, one.status) == (user, "patch", "nodes", 200)
    ]
    stage.hold(len(wrote) == 2, "the exporter wrote the Node twice", wrote)
    stage.hold(STARTUP_TAINT not in taints_of(stage, other.name), "the other Node has none")
    stage.expected |= {"patch nodes 422"}


def taints_of(stage: Stage, node: str) -> list[str]:
    """The keys of a Node's taints."""
    return [one["key"] for one in stage.cluster.get(f"/api/v1/nodes/{node}")["spec"].get("taints", ())]


@scenario
def an_api_server_that_dies_is_survived(stage: Stage) -> None:
    """While the API server is away nodes work on; what was placed meanwhile is published once it is back."""
    install(stage)
    node = stage.played_node("survivor")
    node.export(stage.account(node.name))
    stage.until(lambda: stage.available(node.name) == ["6", "8"], "the object is there")
    bound(stage, node.name, "meanwhile", cpu=4)
    sandbox = node.pod("default", "meanwhile", 4)
    stage.cluster.processes.end("kube-apiserver", signal.SIGKILL)
    cpus = node.create(sandbox, 4)
    stage.hold("refused" not in cpus, "a container is placed while the API server is away", cpus)
    stage.cluster.start_api_server()
    began = time.monotonic()
    stage.until(lambda: stage.available(node.name) == ["2", "8"], "it is published once the server is back")
    stage.figure("from the server's return to the object", f"{time.monotonic() - began:.1f} s")
    kubectl = stage.cluster.kubectl
    kubectl("annotate", "node-res-topo", node.name, "a=b")
    kubectl("patch", "node-res-topo", node.name, "--type=merge", "-p", '{"zones": []}')
    stage.until(lambda: stage.available(node.name) == ["2", "8"], "it watches again: an edit is taken back")
    stage.expected |= refused_by_a_server_that_starts()


@scenario
def the_extender_chooses_nodes(stage: Stage) -> None:
    """kube-scheduler, configured as the guide shows, puts pods where one NUMA node holds them, or says why nowhere."""
    install(stage)
    nodes = {name: stage.played_node(name, **ALIGNED) for name in ("full", "split", "roomy")}
    # available afterwards: full 3 + 3, split 4 + 3, roomy 6 + 8
    taken = {"full": (3, 5), "split": (2, 5)}
    for name, amounts in taken.items():
        for number, cpu in enumerate(amounts):
            pod = f"{name}-{number}"
            bound(stage, name, pod, cpu=cpu)
            nodes[name].create(nodes[name].pod("default", pod, cpu), cpu)
    for name, node in nodes.items():
        node.export(stage.account(name))
        stage.until(lambda name=name: stage.topology(name), f"the object of {name} is there")
    found = {name: stage.available(name) for name in nodes}
    stage.hold(
        {name: sorted(map(int, cpus)) for name, cpus in found.items()} == {"full": [3, 3], "split": [3, 4], "roomy": [6, 8]},
        "the nodes have what the scenario needs", found,
    )  # fmt: skip
    start_extender(stage)
    # one NUMA node holds 6 CPUs on roomy only; two of split, or of full, would
    placed = scheduled(stage, "six", cpu=6)
    stage.hold(placed == "roomy", "six CPUs go where one NUMA node has them", placed)
    runs_on(stage, nodes, placed, "six", 6)
    stage.until(
        lambda: sorted(map(int, stage.available("roomy"))) in ([2, 6], [0, 8]), "the object accounts for it"
    )
    placed = scheduled(stage, "five", cpu=5)
    stage.hold(placed == "roomy", "five CPUs go to the same node, whose other NUMA node has them", placed)
    runs_on(stage, nodes, placed, "five", 5)
    stage.until(lambda: max(map(int, stage.available("roomy"))) <= 3, "the object accounts for it")
    placed = scheduled(stage, "four", cpu=4)
    stage.hold(placed == "split", "four CPUs go to the node that has them on one NUMA node", placed)
    runs_on(stage, nodes, placed, "four", 4)
    stage.until(lambda: sorted(map(int, stage.available("split"))) == [0, 3], "the object accounts for it")
    create(stage, pod_object("too-wide", cpu=5, schedulerName="numa"))
    event = stage.until(lambda: events(stage, "too-wide"), "a pod that no NUMA node holds gets an event")
    note = event[0].get("note") or event[0].get("message", "")
    stage.hold("0/3 nodes are available" in note, "it is kube-scheduler's own", note)
    stage.hold("NUMA" in note or "numa" in note, "it names the extender's reason", note)
    before = len(stage.cluster.get("/api/v1/namespaces/default/pods")["items"])
    stage.hold(before >= 8, "all pods are there")
    nodes["roomy"].remove(nodes["roomy"].pods["default/six"])
    stage.cluster.kubectl("delete", "pod", "six", "--force", "--grace-period=0")
    stage.until(
        lambda: node_of(stage, "too-wide") == "roomy",
        "it is scheduled once CPUs are available",
        patience_s=400,
    )


@scenario
def the_extender_prefers_fewer_numa_nodes(stage: Stage) -> None:
    """Where no node is excluded (best-effort), LeastNUMANodes decides among many pods at once."""
    install(stage)
    nodes = {name: stage.played_node(name, topologyManagerPolicy="best-effort") for name in ("near", "far")}
    for number, cpu in enumerate((4, 6)):  # far: 4 + 2 left, 5 CPUs need two NUMA nodes
        bound(stage, "far", f"far-{number}", cpu=cpu)
        nodes["far"].create(nodes["far"].pod("default", f"far-{number}", cpu), cpu)
    for name, node in nodes.items():
        node.export(stage.account(name))
        stage.until(lambda name=name: stage.topology(name), f"the object of {name} is there")
    stage.hold(True, f"available: {stage.available('near')} and {stage.available('far')}")
    start_extender(stage)
    placed = scheduled(stage, "close", cpu=4)
    stage.hold(placed in nodes, "a pod is scheduled", placed)
    need = 5
    create(stage, pod_object("one-numa", cpu=need, schedulerName="numa"))
    placed = stage.until(lambda: node_of(stage, "one-numa"), "five CPUs are scheduled")
    stage.hold(placed == "near", "five CPUs go where they need one NUMA node, not two", placed)


@scenario
def refused_pods_of_a_controller_are_braked(stage: Stage) -> None:
    """With --on-refusal fail-pod a Deployment's refused pods fail and come again after growing pauses."""
    install(stage)
    rights = {"pods": "get", "pods/status": "patch"}
    role = [{"apiGroups": [""], "resources": [what], "verbs": [verb]} for what, verb in rights.items()]
    grant(stage, "fail-pods", role)
    node = stage.played_node("braking", **ALIGNED)
    node.export(stage.account(node.name), "--on-refusal", "fail-pod")
    stage.until(lambda: stage.topology(node.name), "the object is there")
    template = pod_object("x", cpu=10)
    spec = {**template["spec"], "nodeName": node.name}
    del spec["terminationGracePeriodSeconds"]
    create(
        stage,
        {
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "refused"},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "refused"}},
                     "template": {"metadata": {"labels": {"app": "refused"}}, "spec": spec}},
        },
        "/apis/apps/v1/namespaces/default/replicasets",
    )  # fmt: skip
    stage.cleanup("delete", "replicaset", "refused", "--now")
    ends, tried = time.monotonic() + 25, set()
    while time.monotonic() < ends:
        for pod in pods(stage, "app=refused"):
            name = pod["metadata"]["name"]
            if name not in tried and pod.get("status", {}).get("phase") == "Pending":
                tried.add(name)
                node.create(node.pod("default", name, 10), 10)
        time.sleep(0.5)
    found = pods(stage, "app=refused")
    failed = [pod for pod in found if pod["status"].get("phase") == "Failed"]
    stage.hold(failed, "a refused pod is Failed", [pod["status"] for pod in found])
    stage.hold(
        {pod["status"].get("reason") for pod in failed} == {"TopologyAffinityError"},
        "with the kubelet's reason",
    )
    stage.hold(len(failed) <= 3, "at most three fail within 25 s", len(failed))
    stage.hold(len(found) == len(failed) + 1, "one waits", len(found))
    patched = [one.status for one in stage.asked() if one.user == EXPORTER and one.what == "pods/status"]
    stage.hold(set(patched) == {200}, "every write of the status is accepted", patched)


@scenario
def two_hundred_pods_at_once(stage: Stage) -> None:
    """200 pods on 60 played nodes at once: with no topology, the extender, its --bind, and the unmodified Go plugin fewer are refused."""
    install(stage)
    refused = {"no topology": _burst(stage, "no topology", "default-scheduler")}
    for words, binds in (("the extender", False), ("the extender with --bind", True)):
        refused[words] = _burst(stage, words, "numa", partial(start_extender, stage, binds=binds))
        stage.end("scheduler")
        stage.end("extender")
    program = foreign_program(PLUGINS, stage.cluster.programs.parent)
    command = [program, f"--config={plugin_configuration(stage)}", "--secure-port=0", "-v=2"]
    refused["the Go plugin"] = _burst(
        stage, "the Go plugin", "numa", partial(stage.start, "scheduler", command)
    )
    stage.hold(refused["the extender"] < refused["no topology"], "the extender spares refusals", refused)
    stage.hold(
        refused["the extender with --bind"] <= refused["the extender"], "with --bind no more are", refused
    )
    stage.expected |= {
        "create pods/binding 404"
    }  # pods that fit nowhere are deleted while they are tried again
    stage.hold(
        refused["the Go plugin"] < refused["no topology"], "the Go plugin spares them by our objects", refused
    )


def _burst(stage: Stage, words: str, scheduler: str, starts: Callable[[], None] = lambda: None) -> int:
    """Play it; the pods that were refused."""
    burst = Burst(stage, scheduler)
    burst.register()
    starts()
    began = time.monotonic()
    found = burst.play()
    stage.figure(f"{words}, 200 pods", ", ".join(f"{count} {what}" for what, count in found.items()))
    stage.figure(f"{words}, the burst took", f"{time.monotonic() - began:.0f} s")
    stage.hold(found["run"] > 0, f"pods run with {words}", found)
    return found["refused"]


@scenario
def the_stand_in_answers_as_the_real_server(stage: Stage) -> None:
    """A real API server and the tests' own answer the recorded requests as the recording says."""
    bare = ControlPlane(stage.folder / "bare", stage.cluster.programs)
    try:
        bare.up(bare=True)
        bare.kubectl("create", "-f", str(DEPLOY / "crd.yaml"))
        bare.until(lambda: bare.found(NRT_GROUP), "the kind is served")
        exchanges = recorded()
        questions = [exchange["request"] for exchange in exchanges]
        real = [answer for _, answer in played(partial(bare.ask, agent=RECORDER), questions)]
    finally:
        bare.down()
    stand_in = KubeAPI([crd()])
    try:
        own = [answer for _, answer in played(partial(_asked_plainly, stand_in), questions)]
    finally:
        stand_in.close()
    rows = list(zip(exchanges, real, own, strict=True))
    stage.figure("requests", str(len(rows)))
    for who, answers in (("the real server", real), ("the stand-in", own)):
        wrong = [
            f"{who}: {exchange['request']['note']}: {_difference(exchange['answer'], answer)}"
            for exchange, answer in zip(exchanges, answers, strict=True)
            if compared(exchange["request"]["note"], answer)
            != compared(exchange["request"]["note"], exchange["answer"])
        ]
        stage.seen += wrong
        stage.hold(not wrong, f"{who} answers every request as recorded", "; ".join(wrong)[:1500])


def _difference(recorded_answer: Object, answer: Object) -> str:
    keys = sorted({*recorded_answer, *answer})
    parts = [key for key in keys if recorded_answer.get(key) != answer.get(key)]
    return ", ".join(
        f"{key} {recorded_answer.get(key)!r} recorded, {answer.get(key)!r} now" for key in parts
    )[:600]


def _asked_plainly(
    server: KubeAPI, method: str, path: str, body: bytes | None, kind: str | None
) -> tuple[int, Any]:
    """One request to the tests' own API server."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    headers = {"User-Agent": RECORDER} | ({"Content-Type": kind} if kind else {})
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, json.loads(text) if text.startswith("{") else text
