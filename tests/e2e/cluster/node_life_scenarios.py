"""Scenarios on a real node about its life and the agent's: installed, upgraded, killed, drained, rebooted, migrated.

What is judged comes from kubectl, from cgroup files and from /proc of the guest, never from the agent.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nri_plugin.model import bits
from tests.agent_process import REPOSITORY
from tests.e2e.lab.shell import run

from .acting import create, refused_by_a_server_that_starts
from .guest_node import PREVIOUS, GuestNode
from .node_acting import (
    NAMESPACE,
    PATIENCE_S,
    SLEEP,
    agent_by_chart,
    agent_is_ready,
    agents,
    available,
    cpus_of,
    end,
    guaranteed,
    has_cpus,
    is_running,
    judge_exclusive,
    overlaps,
    restarts_of,
    shared,
    start,
)
from .node_scenarios import NODE_SCENARIOS, node_scenario
from .stage import DEPLOY, NRT_GROUP, Stage

__all__ = ["NODE_SCENARIOS"]

_EXTENDERS = ("scale", "deployment/nri-pin-extender", "--replicas")
_LEFT_NODE = {"get nodes 404", "patch noderesourcetopologies 409"} | {
    f"{verb} {what} {status}"
    for verb, what in (
        ("get", "nodes"),
        ("list", "nodes"),
        ("watch", "nodes"),
        ("list", "pods"),
        ("watch", "pods"),
    )
    for status in (401, 403)
}
"""What an exporter may be refused whose Node was deleted: its token is bound to it."""


@node_scenario
def the_daemonset_is_installed_in_three_ways(stage: Stage) -> None:
    """Plain, by kustomize over it, and by helm: each time the real image runs, and a pod keeps its CPUs throughout."""
    node = stage.guests.node()
    kubectl = stage.cluster.kubectl
    remove_agent(stage)
    kubectl("apply", "-f", str(DEPLOY / "daemonset.yaml"))
    kubectl("label", "node", node.name, "nri-pin/enabled=true", "--overwrite")
    agent_is_ready(stage)
    kept, _ = start(stage, guaranteed("kept", 3), shared("beside"))
    stage.until(lambda: has_cpus(node, kept, 3), "the pod has its CPUs", PATIENCE_S)
    before = judge_exclusive(stage, node, "under the plain DaemonSet")
    kubectl("apply", "-k", str(DEPLOY / "kustomize" / "cluster"))
    kubectl("-n", NAMESPACE, *_EXTENDERS, "0")  # an emulated node starts one thing at a time
    agent_is_ready(stage)
    stage.hold(len(agents(stage)[0]["spec"]["containers"]) == 2, "kustomize adds the exporter")
    stage.until(lambda: stage.topology(node.name), "the exporter publishes", 120)
    after = judge_exclusive(stage, node, "after kustomize was applied over it")
    stage.hold(after == before, "the pod keeps its CPUs", (before, after))
    kubectl("-n", NAMESPACE, *_EXTENDERS, "1")
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/nri-pin-extender"
    stage.until(
        lambda: (stage.cluster.found(path) or {}).get("status", {}).get("readyReplicas") == 1,
        "its image serves as the extender, too", PATIENCE_S,
    )  # fmt: skip
    remove_agent(stage)
    values = stage.folder / "helm.json"
    values.write_text(json.dumps({"exporter": {"enabled": True}}))
    words: list[str | Path] = [
        "install",
        "nri-pin",
        DEPLOY / "chart",
        "-n",
        NAMESPACE,
        "-f",
        values,
        "--create-namespace",
    ]
    own: list[str | Path] = ["--kubeconfig", stage.cluster.admin]
    told = run([REPOSITORY / "hack" / "helm", *words, *own])
    stage.hold("STATUS: deployed" in told, "helm installs the chart", told[-500:])
    kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=privileged")
    agent_is_ready(stage)
    after = judge_exclusive(stage, node, "after helm has installed the chart")
    stage.hold(after == before, "the pod keeps its CPUs", (before, after))
    start(stage, guaranteed("new", 2))
    judge_exclusive(stage, node, "with a new pod")
    upgrade = [
        "upgrade",
        "nri-pin",
        DEPLOY / "chart",
        "-n",
        NAMESPACE,
        "--reuse-values",
        "--set",
        "agent.release=true",
    ]
    run([REPOSITORY / "hack" / "helm", *upgrade, *own])
    agent_is_ready(stage)
    free = {"kept", "beside", "new"}
    stage.hold(
        released(stage, node) >= free, "with agent.release every pod may run on all CPUs", cpus_of(node)
    )
    run([REPOSITORY / "hack" / "helm", "uninstall", "nri-pin", "-n", NAMESPACE, *own])
    stage.until(lambda: not agents(stage), "helm uninstalls it", PATIENCE_S)
    stage.hold(released(stage, node) >= free, "and they still do afterwards", cpus_of(node))
    end(stage, "kept", "beside", "new")
    remove_agent(stage)
    stage.expected |= {
        f"{verb} {what} 403"
        for verb in ("get", "list", "watch")
        for what in ("nodes", "pods", "noderesourcetopologies")
    }


def released(stage: Stage, node: GuestNode) -> set[str]:
    """The pods whose processes may all run on every CPU of the machine."""
    everything = node.all_cpus()
    names = {
        pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in stage.cluster.get("/api/v1/pods")["items"]
    }
    bound = {
        pod
        for (pod, _), sets in cpus_of(node).items()
        if {bits.parse_list(one) for one in sets} != {everything}
    }
    return {names[pod] for pod, _ in cpus_of(node) if pod in names and pod not in bound}


def remove_agent(stage: Stage) -> None:
    """Take away whatever was installed, and wait until its pods are gone."""
    kubectl = stage.cluster.kubectl
    for manifest in (("-k", DEPLOY / "kustomize" / "cluster"), ("-f", DEPLOY / "daemonset.yaml")):
        kubectl("delete", manifest[0], str(manifest[1]), "--ignore-not-found", "--wait=false")
    stage.until(
        lambda: not stage.cluster.found(f"/api/v1/namespaces/{NAMESPACE}"), "nothing is installed", PATIENCE_S
    )
    stage.until(lambda: not stage.cluster.found(NRT_GROUP), "nor is the kind", 120)


@node_scenario
def the_agent_is_upgraded_and_rolled_back(stage: Stage) -> None:
    """The image of the product before its last change takes over from this one and gives back, while pods run and are made."""
    node = agent_by_chart(stage)
    start(stage, guaranteed("first", 3), shared("beside"))
    before = judge_exclusive(stage, node, "before")
    kubectl = stage.cluster.kubectl
    for step, tag in (("back", PREVIOUS), ("forth", "0.1.0")):
        kubectl("-n", NAMESPACE, "set", "image", "ds/nri-pin", f"agent=nri-pin:{tag}")
        agent_is_ready(stage)
        found = {row["name"]: row["image"] for row in agents(stage)[0]["spec"]["containers"]}
        stage.hold(found["agent"] == f"nri-pin:{tag}", f"the image {tag} runs", found)
        start(stage, guaranteed(f"after-{step}", 2))
        after = judge_exclusive(stage, node, f"after the step {step}")
        stage.hold(before.items() <= after.items(), "what ran keeps its CPUs", (before, after))
        before = after
    stage.hold(restarts_of(stage, "first") == 0, "nothing was restarted")
    end(stage, "first", "beside", "after-back", "after-forth")


@node_scenario
def every_program_is_killed_under_churn(stage: Stage) -> None:
    """kubelet, containerd, agent, exporter and API server are killed in turn while pods come and go; nobody is moved."""
    node = agent_by_chart(stage)
    start(stage, guaranteed("steady", 3), shared("beside"))
    steady = judge_exclusive(stage, node, "before")["steady/c0"]
    kills: dict[str, Callable[[], None]] = {
        "kubelet": lambda: restart_kubelet(node),
        "containerd": lambda: restart_containerd(node),
        "agent": lambda: node.kill_process("nri-pin run"),
        "exporter": lambda: node.kill_process("nri-pin export"),
        "API server": lambda: restart_api_server(stage),
    }
    for number, (name, kill) in enumerate(kills.items()):
        obj = guaranteed(f"churn-{number}", 2)
        create(stage, obj)
        kill()
        stage.until(
            lambda number=number: is_running(stage, f"churn-{number}"),
            f"a pod runs that was made as the {name} was killed",
            PATIENCE_S,
        )
        agent_is_ready(stage)
        found = judge_exclusive(stage, node, f"after the {name} was killed")
        stage.hold(found.get("steady/c0") == steady, f"who ran stays where it was: {name}", (steady, found))
        end(stage, f"churn-{number}")
    stage.hold(restarts_of(stage, "steady") == 0, "its container was not restarted")
    end(stage, "steady", "beside")
    stage.expected |= refused_by_a_server_that_starts()


def restart_kubelet(node: GuestNode) -> None:
    """Kill it, and start it again."""
    node.kill("kubelet")
    node.start_kubelet()


def restart_containerd(node: GuestNode) -> None:
    """Kill it, and start it again."""
    node.kill("containerd")
    node.start_containerd()


def restart_api_server(stage: Stage) -> None:
    """Kill it, and start it again."""
    stage.cluster.processes.end("kube-apiserver", signal.SIGKILL)
    stage.cluster.start_api_server()


@node_scenario
def a_node_is_drained_deleted_and_registered_again(stage: Stage) -> None:
    """kubectl drain empties the node, its object goes with it, and the Node that comes back works and owns a new one."""
    node = agent_by_chart(stage)
    start(stage, guaranteed("drained", 3))
    kubectl = stage.cluster.kubectl
    kubectl("drain", node.name, "--ignore-daemonsets", "--force", "--grace-period=0", "--timeout=110s")
    stage.until(lambda: available(stage, node) == 14, "all CPUs are available after the drain", 120)
    stage.hold(len(agents(stage)) == 1, "the agent stays")
    uid = stage.cluster.get(f"/api/v1/nodes/{node.name}")["metadata"]["uid"]
    kubectl("delete", "node", node.name)
    restart_kubelet(node)
    stage.until(node.is_ready, "the kubelet registers again", PATIENCE_S)
    kubectl("label", "node", node.name, "nri-pin/enabled=true", "--overwrite")
    agent_is_ready(stage)
    again = stage.cluster.get(f"/api/v1/nodes/{node.name}")["metadata"]["uid"]
    stage.hold(again != uid, "it is another Node")
    stage.until(
        lambda: [one["uid"] for one in (stage.topology(node.name) or {}).get("metadata", {}).get("ownerReferences", ())] == [again],
        "the new Node owns the object", PATIENCE_S,
    )  # fmt: skip
    (later,) = start(stage, guaranteed("later", 4))
    stage.until(  # the Node came without its label, so the DaemonSet may have replaced the agent meanwhile
        lambda: has_cpus(node, later, 4), "a new pod has its CPUs once the agent is there", PATIENCE_S
    )
    judge_exclusive(stage, node, "on the node that came back")
    end(stage, "later")
    stage.expected |= _LEFT_NODE


@node_scenario
def a_node_reboots_with_pods_that_wait(stage: Stage) -> None:
    """After the power was cut the node starts its pods again: shared ones may come before the agent, and nobody overlaps in the end."""
    node = agent_by_chart(stage)
    names = ("one", "other", "beside")
    start(
        stage,
        *(tells_its_start(obj) for obj in (guaranteed("one", 4), guaranteed("other", 3), shared("beside"))),
    )
    judge_exclusive(stage, node, "before the reboot")
    before = {name: container_ids(stage, name) for name in names}
    node = stage.guests.reboot()
    for name in names:
        stage.until(
            lambda name=name: is_running(stage, name) and not container_ids(stage, name) & before[name],
            f"{name} runs again", PATIENCE_S,
        )  # fmt: skip
    agent_is_ready(stage)
    placed = judge_exclusive(stage, node, "after the reboot")
    stage.hold(set(placed) == {"one/c0", "other/c0"}, "both have CPUs of their own again", placed)
    stage.figure("CPUs after the reboot", json.dumps(placed))
    stage.figure("CPUs of the first instructions", json.dumps(starts(node)))
    end(stage, *names)
    stage.expected |= {"get nodes 404"}


@node_scenario
def a_node_joins_with_the_startup_taint(stage: Stage) -> None:
    """Pods that wait for a node which registers with the startup taint come after its agent: each begins on its own CPUs."""
    node = agent_by_chart(stage, exporter={"startupTaint": True})
    stage.cluster.kubectl("delete", "node", node.name)
    objects = (guaranteed("one", 4), guaranteed("other", 3), shared("beside"))
    for obj in objects:
        create(stage, tells_its_start(obj))
    node = stage.guests.reboot(
        registerWithTaints=[{"key": "nri-pin/agent-not-ready", "effect": "NoSchedule"}]
    )
    waiting = [
        one
        for one in stage.cluster.get("/api/v1/namespaces/default/pods")["items"]
        if "nodeName" not in one["spec"]
    ]
    stage.hold(
        len(waiting) == len(objects),
        "all pods wait while the node is ready and its agent is not",
        len(waiting),
    )
    stage.cluster.kubectl("label", "node", node.name, "nri-pin/enabled=true", "--overwrite")
    for obj in objects:
        name = str(obj["metadata"]["name"])
        stage.until(lambda name=name: is_running(stage, name), f"{name} runs", PATIENCE_S)
    agent_is_ready(stage)
    placed = judge_exclusive(stage, node, "once they run")
    first = starts(node)
    wrong = {
        name: (first.get(name), cpus)
        for name, cpus in placed.items()
        if first.get(name.partition("/")[0]) != cpus
    }
    stage.hold(not wrong, "each Guaranteed container began on the CPUs that it has", wrong)
    end(stage, *(str(obj["metadata"]["name"]) for obj in objects))
    stage.expected |= _LEFT_NODE


def container_ids(stage: Stage, pod: str) -> set[str]:
    """The ids of a pod's containers, as the kubelet tells them."""
    status = stage.cluster.get(f"/api/v1/namespaces/default/pods/{pod}")["status"]
    return {str(row.get("containerID")) for row in status.get("containerStatuses", ())}


def tells_its_start(obj: dict[str, Any]) -> dict[str, Any]:
    """The pod, whose containers write the CPUs of their first instruction to the node's `/out/starts`; it is started again."""
    obj["spec"] |= {
        "restartPolicy": "Always",
        "volumes": [{"name": "out", "hostPath": {"path": "/out/starts", "type": "DirectoryOrCreate"}}],
    }
    for container in obj["spec"]["containers"]:
        name = obj["metadata"]["name"]
        script = f"grep Cpus_allowed_list /proc/self/status >/out/{name}; exec {' '.join(SLEEP)}"
        container |= {
            "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "out", "mountPath": "/out"}],
        }
    return obj


def starts(node: GuestNode) -> dict[str, str]:
    """The CPUs of the first instruction of each pod that told them."""
    rows = [line.partition(":Cpus_allowed_list:") for line in node.run("cd /out/starts && grep -H . *")]
    return {name: cpus.strip() for name, _, cpus in rows}


@node_scenario
def the_kubelets_static_policy_is_left_and_taken_up_again(stage: Stage) -> None:
    """By the guide's steps pods that the kubelet pinned keep their CPUs under nri-pin, and again under the kubelet."""
    node = agent_by_chart(stage)
    kubectl = stage.cluster.kubectl
    leave_label(stage, node)
    static = {"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node"}
    node.kill("kubelet", "TERM")
    node.run("rm -rf /run/nri-pin /var/lib/kubelet/cpu_manager_state")
    node.start_kubelet(**static)
    node.until_ready()
    start(stage, guaranteed("moved", 3), shared("beside"))
    before = judge_exclusive(stage, node, "under the kubelet's static policy")
    kubectl("cordon", node.name)
    host_command(stage, node, "state", "import", "/host/var/lib/kubelet", "--state-dir", "/host/run/nri-pin")
    node.kill("kubelet", "TERM")
    node.run("mkdir -p /root/kept && mv /var/lib/kubelet/cpu_manager_state /root/kept/")
    node.start_kubelet()
    node.until_ready()
    kubectl("label", "node", node.name, "nri-pin/enabled=true", "--overwrite")
    agent_is_ready(stage)
    kubectl("uncordon", node.name)
    start(stage, guaranteed("ours", 2))
    after = judge_exclusive(stage, node, "under nri-pin")
    stage.hold(before.items() <= after.items(), "the kubelet's pod keeps its CPUs", (before, after))
    kubectl("cordon", node.name)
    leave_label(stage, node)
    next_file = json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "kubeReserved": {"cpu": "2"},
            **static,
        }
    )
    node.run(f"echo '{next_file}' >/root/next.json")
    host_command(
        stage, node, "state", "export", "/host/var/lib/kubelet", "--config", "/host/root/next.json", "--force",
        "--state-dir", "/host/run/nri-pin",
    )  # fmt: skip
    node.kill("kubelet", "TERM")
    node.run("mv /run/nri-pin /run/nri-pin.left")
    node.start_kubelet(**static)
    node.until_ready()
    kubectl("uncordon", node.name)
    start(stage, guaranteed("theirs", 2))
    stage.until(  # the kubelet moves shared containers away only when its manager looks again, every ten seconds
        lambda: not overlaps(stage, node), "the kubelet keeps others off its exclusive CPUs", PATIENCE_S
    )
    again = judge_exclusive(stage, node, "under the kubelet again")
    stage.hold(after.items() <= again.items(), "nobody's CPUs have changed", (after, again))
    stage.hold(restarts_of(stage, "moved") == 0, "nothing was restarted")
    end(stage, "moved", "ours", "theirs", "beside")
    node.kill("kubelet", "TERM")
    node.run("rm -f /var/lib/kubelet/cpu_manager_state")
    node.start_kubelet()
    node.until_ready()


@node_scenario
def kubectl_nri_pin_asks_the_agent_through_the_kubelet(stage: Stage) -> None:
    """The table of nodes, a pod's CPUs, an explanation and top come by exec from the real agent."""
    node = agent_by_chart(stage)
    (uid,) = start(stage, guaranteed("asked", 2))
    stage.until(lambda: has_cpus(node, uid, 2), "the pod has its CPUs", PATIENCE_S)
    (row,) = json.loads(_kubectl_nri_pin(stage, "nodes", "-o", "json"))["items"]
    stage.hold((row["node"], row["health"]) == (node.name, "OK"), "the node is healthy in the table", row)
    stage.hold(row["published"] == "as the agent", "its object says the same", row)
    shown = json.loads(_kubectl_nri_pin(stage, "show", "asked", "-o", "json"))["containers"]
    seen = {cpus for (pod, _), sets in cpus_of(node).items() if pod == uid for cpus in sets}
    stage.hold({one["cpus"] for one in shown} == seen, "show has the CPUs of /proc", (shown, seen))
    told = _kubectl_nri_pin(stage, "explain", "asked")
    stage.hold("2 exclusive CPUs" in told, "explain tells why", told)
    told = _kubectl_nri_pin(stage, "top", "--all-nodes", "--once")
    stage.hold(f"node/{node.name}" in told and "asked" in told, "top of all nodes has the pod", told)
    wrong = _kubectl_nri_pin(stage, "show", "nobody", code=1)
    stage.hold('pods "nobody" not found' in wrong, "a pod that is not there is said", wrong)
    end(stage, "asked")


def _kubectl_nri_pin(stage: Stage, *words: str, code: int = 0) -> str:
    """What the plugin prints; kubectl itself finds it on the PATH."""
    path = f"{stage.cluster.programs}:{Path(sys.executable).parent}:/usr/bin:/bin"
    done = subprocess.run(
        [stage.cluster.programs / "kubectl", "nri-pin", *words],
        env={"HOME": str(stage.folder), "PATH": path, "KUBECONFIG": str(stage.cluster.admin)},
        check=False, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    stage.hold(done.returncode == code, f"kubectl nri-pin {words[0]} ends with {code}", done)
    return done.stdout + done.stderr


def leave_label(stage: Stage, node: GuestNode) -> None:
    """Take the agent from the node, and wait for its end."""
    stage.cluster.kubectl("label", "node", node.name, "nri-pin/enabled-", "--overwrite")
    stage.until(lambda: not agents(stage), "the agent has ended", PATIENCE_S)


def host_command(stage: Stage, node: GuestNode, *words: str) -> None:
    """Run nri-pin in a pod that sees the node's files, as the guide says."""
    told = stage.cluster.kubectl(
        "debug", f"node/{node.name}", "--profile=sysadmin", "--image=nri-pin:0.1.0", "--image-pull-policy=IfNotPresent", "--", "/opt/nri-pin/bin/nri-pin", *words
    )  # fmt: skip
    pod = next(word for word in told.split() if word.startswith("node-debugger-"))
    path = f"/api/v1/namespaces/default/pods/{pod}"
    status = stage.until(
        lambda: (found := (stage.cluster.found(path) or {}).get("status", {})).get("phase") in ("Succeeded", "Failed") and found,
        f"nri-pin {words[0]} {words[1]} has ended", PATIENCE_S,
    )  # fmt: skip
    said = " ".join(node.run(f"cat /var/log/pods/default_{pod}_*/*/*.log"))
    stage.hold(status["phase"] == "Succeeded", f"nri-pin {words[0]} {words[1]} succeeds", said)
    end(stage, pod)
