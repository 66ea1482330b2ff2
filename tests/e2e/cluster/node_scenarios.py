"""Scenarios on a real node: a guest with containerd and the kubelet, where agent and exporter are pods of the real image.

What is judged comes from kubectl, from cgroup files and from /proc of the guest, never from the agent.
"""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

from nri_plugin.model import bits
from tests.agent_process import REPOSITORY
from tests.e2e.lab.shell import run

from .acting import create, events, pods, refused_by_a_server_that_starts
from .guest_node import PREVIOUS, GuestNode
from .node_acting import (
    MEMORY,
    NAMESPACE,
    PATIENCE_S,
    agent_by_chart,
    agent_is_ready,
    agents,
    cpus_of,
    describe,
    end,
    guaranteed,
    is_running,
    judge_exclusive,
    shared,
    start,
)
from .stage import DEPLOY, NRT_GROUP, Stage

Scenario = Callable[[Stage], None]
NODE_SCENARIOS: dict[str, Scenario] = {}

_FILLERS = ("fill-1", "fill-2", "fill-3")
"""Pods of three CPUs on the three NUMA nodes that have four: two, one, one and one CPUs are left."""


def node_scenario(function: Scenario) -> Scenario:
    """Put it on the list."""
    NODE_SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


@node_scenario
def guaranteed_pods_are_pinned(stage: Stage) -> None:
    """Guaranteed, Burstable and BestEffort pods that the kubelet starts run where they should, as /proc and cgroups show."""
    node = agent_by_chart(stage)
    for image in node.images:
        stage.figure(f"image {image.reference.rpartition('/')[2]}", f"{image.size_mib} MiB")
    four, _two, burstable, nothing = start(
        stage, guaranteed("four", 4), guaranteed("two", 1, 1), shared("burstable", {"cpu": "500m"}), shared("nothing")
    )  # fmt: skip
    placed = judge_exclusive(stage, node, "with four pods")
    stage.hold(set(placed) == {"four/c0", "two/c0", "two/c1"}, "three containers have exclusive CPUs", placed)
    homes = [
        mask for mask in map(bits.parse_list, node.numa_nodes()) if bits.parse_list(placed["four/c0"]) & mask
    ]
    stage.hold(len(homes) == 1, "four CPUs are of one NUMA node", placed)
    row = next(row for row in node.processes() if row["pod"] == four)
    stage.hold(
        row["cpuset.cpus"] == row["cpuset.cpus.effective"] == row["cpus"],
        "its cgroup and its process agree",
        row,
    )
    exclusive = sum(map(bits.parse_list, placed.values()))
    pool = bits.format_list(node.all_cpus() & ~exclusive)
    for name, uid in (("burstable", burstable), ("nothing", nothing)):
        found = {cpus for (pod, _), sets in cpus_of(node).items() if pod == uid for cpus in sets}
        stage.hold(found == {pool}, f"the pod {name} runs on all other CPUs", (found, pool))
    stage.until(lambda: available(stage, node) == 14 - 6, "the object of the node accounts for them", 120)
    end(stage, "four")
    stage.until(lambda: available(stage, node) == 14 - 2, "CPUs of a pod that ended are available again", 120)
    judge_exclusive(stage, node, "after one has ended")
    end(stage, "two", "burstable", "nothing")


@node_scenario
def pods_are_pinned_by_the_agent_alone(stage: Stage) -> None:
    """Guaranteed pods that the kubelet starts have their CPUs to themselves where no exporter tells the agent of them."""
    node = agent_by_chart(stage, exporter={"enabled": False})
    names = ("four", "two", "burstable", "nothing")
    start(
        stage,
        guaranteed(names[0], 4),
        guaranteed(names[1], 1, 1),
        shared(names[2], {"cpu": "500m"}),
        shared(names[3]),
    )
    placed = judge_exclusive(stage, node, "with four pods")
    stage.figure("CPUs", json.dumps(placed))
    end(stage, *names)


def available(stage: Stage, node: GuestNode) -> int:
    """Available CPUs of the node, by its object."""
    return sum(map(int, stage.available(node.name)))


@node_scenario
def the_daemonset_is_installed_in_three_ways(stage: Stage) -> None:
    """Plain, by kustomize over it, and by helm: each time the real image runs, and a pod keeps its CPUs throughout."""
    node = stage.guests.node()
    kubectl = stage.cluster.kubectl
    remove_agent(stage)
    kubectl("apply", "-f", str(DEPLOY / "daemonset.yaml"))
    kubectl("label", "node", node.name, "nri-pin/enabled=true", "--overwrite")
    agent_is_ready(stage)
    start(stage, guaranteed("kept", 3), shared("beside"))
    before = judge_exclusive(stage, node, "under the plain DaemonSet")
    kubectl("apply", "-k", str(DEPLOY / "kustomize" / "cluster"))
    agent_is_ready(stage)
    stage.hold(len(agents(stage)[0]["spec"]["containers"]) == 2, "kustomize adds the exporter")
    stage.until(lambda: stage.topology(node.name), "the exporter publishes", 120)
    after = judge_exclusive(stage, node, "after kustomize was applied over it")
    stage.hold(after == before, "the pod keeps its CPUs", (before, after))
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
    run([REPOSITORY / "hack" / "helm", "uninstall", "nri-pin", "-n", NAMESPACE, *own])
    end(stage, "kept", "beside", "new")
    remove_agent(stage)


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
def refusals_are_described(stage: Stage) -> None:
    """Each kind of refusal stands in kubectl describe pod with its reason; a refused pod starts once there is room."""
    node = agent_by_chart(stage, config={"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}})
    refused(stage, node, guaranteed("wide", 6, node=node.name), "TopologyAffinityError")
    refused(stage, node, guaranteed("odd", 3, node=node.name), "SMTAlignmentError")
    agent_by_chart(stage, config={"topologyManagerPolicy": "best-effort", "kubeReserved": {"cpu": "4"}})
    refused(stage, node, guaranteed("large", 13, node=node.name), "UnexpectedAdmissionError")
    agent_by_chart(stage)
    start(stage, *(guaranteed(name, 3) for name in _FILLERS))
    create(stage, guaranteed("waits", 4, node=node.name))
    stage.until(
        lambda: "TopologyAffinityError" in describe(stage, "waits"), "four CPUs are refused", PATIENCE_S
    )
    judge_exclusive(stage, node, "while a pod waits")
    end(stage, _FILLERS[0])
    stage.until(
        lambda: is_running(stage, "waits"), "the pod that waited runs once a NUMA node is free", PATIENCE_S
    )
    judge_exclusive(stage, node, "once it runs")
    end(stage, "waits", *_FILLERS)


def refused(stage: Stage, node: GuestNode, obj: dict[str, object], reason: str) -> None:
    """Hold that the kubelet itself tells the agent's reason, and that nothing of the pod runs."""
    name = str(obj["metadata"]["name"])  # type: ignore[index]
    uid = create(stage, obj)["metadata"]["uid"]

    def kubelets_line() -> str:
        events = describe(stage, name).partition("Events:")[2].splitlines()
        return next((line for line in events if "kubelet" in line and reason in line), "")

    line = stage.until(
        kubelets_line, f"describe pod {name} has the kubelet's event with {reason}", PATIENCE_S
    )
    stage.seen.append(f"kubectl describe pod {name}: {' '.join(line.split())[:600]}")
    stage.hold(uid not in {row["pod"] for row in node.processes()}, f"nothing of {name} runs")
    end(stage, name)


@node_scenario
def a_deployment_whose_pods_are_refused(stage: Stage) -> None:
    """Under fail-pod a Deployment's refused pods fail with the kubelet's reason, few of them, until one finds room."""
    node = agent_by_chart(stage, exporter={"onRefusal": "fail-pod"})
    start(stage, *(guaranteed(name, 3) for name in _FILLERS))
    template = {"metadata": {"labels": {"app": "tried"}}, "spec": guaranteed("x", 4)["spec"]}
    del template["spec"]["terminationGracePeriodSeconds"]
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "tried"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "tried"}, "spec": spec}
    create(stage, deployment, "/apis/apps/v1/namespaces/default/deployments")

    def failed() -> list[dict[str, str]]:
        return [pod["status"] for pod in pods(stage, "app=tried") if pod["status"].get("phase") == "Failed"]

    stage.until(failed, "a refused pod is Failed", PATIENCE_S)
    stage.hold(
        {one.get("reason") for one in failed()} == {"TopologyAffinityError"}, "with the reason", failed()
    )
    began = time.monotonic()
    stage.until(
        lambda: len(pods(stage, "app=tried")) > len(failed()), "its controller has made the next one", 120
    )
    stage.cluster.until(lambda: time.monotonic() > began + 60, "a minute has passed")
    stage.hold(len(failed()) <= 5, "few pods fail in a minute", len(failed()))
    stage.figure("pods that failed", str(len(failed())))
    end(stage, _FILLERS[0])

    def runs() -> bool:
        return any(is_running(stage, pod["metadata"]["name"]) for pod in pods(stage, "app=tried"))

    stage.until(runs, "one runs once a NUMA node is free", PATIENCE_S)
    judge_exclusive(stage, node, "with the Deployment's pod")
    stage.cluster.kubectl("delete", "deployment", "tried", "--wait=false")
    stage.until(lambda: not pods(stage, "app=tried"), "the Deployment is gone", PATIENCE_S)
    end(stage, *_FILLERS)


@node_scenario
def pods_with_resources_of_their_own(stage: Stage) -> None:
    """A pod that sets spec.resources has its CPUs as a whole: one container exclusive ones, the other the rest."""
    gates = {"PodLevelResourceManagers": True}
    node = agent_by_chart(stage, config={"featureGates": gates, "topologyManagerScope": "pod"})
    obj = guaranteed("whole", 2)
    amounts = {"cpu": "4", "memory": "160Mi"}
    obj["spec"]["resources"] = {"requests": amounts, "limits": amounts}
    other = shared("x")["spec"]["containers"][0]
    obj["spec"]["containers"].append({**other, "name": "rest"})
    (uid, outside) = start(stage, obj, shared("outside"))
    ids = {
        row["name"]: row["containerID"].rpartition("/")[2]
        for row in stage.cluster.get("/api/v1/namespaces/default/pods/whole")["status"]["containerStatuses"]
    }
    seen = {key: bits.parse_list(next(iter(sets))) for key, sets in cpus_of(node).items() if len(sets) == 1}
    own, rest = seen[uid, ids["c0"]], seen[uid, ids["rest"]]
    stage.hold(
        own.bit_count() == 2 and rest.bit_count() == 2 and not own & rest, "two and two CPUs", (own, rest)
    )
    homes = [mask for mask in map(bits.parse_list, node.numa_nodes()) if (own | rest) & mask]
    stage.hold(len(homes) == 1, "all four are of one NUMA node", bits.format_list(own | rest))
    others = [mask for (pod, _), mask in seen.items() if pod != uid]
    stage.hold(not any(mask & (own | rest) for mask in others), "nobody else runs on them", others)
    stage.hold(any(pod == outside for pod, _ in seen), "another pod was looked at")
    end(stage, "whole", "outside")


@node_scenario
def resize_in_place(stage: Stage) -> None:
    """kubectl resizes a running pod: it grows around its CPUs, shrinks to them, and a refused growth changes nothing."""
    node = agent_by_chart(stage)
    start(stage, guaranteed("first", 2), shared("beside"))  # the NUMA node of the reserved CPUs has no more
    start(stage, guaranteed("sized", 2))
    first = judge_exclusive(stage, node, "before the resize")["sized/c0"]
    restarts = restarts_of(stage, "sized")
    resize(stage, "sized", 4)
    grown = stage.until(lambda: sized(stage, node, 4), "the pod has four CPUs", PATIENCE_S)
    stage.hold(
        bits.parse_list(first) & ~bits.parse_list(grown) == 0, "its first CPUs are among them", (first, grown)
    )
    judge_exclusive(stage, node, "after it has grown")
    resize(stage, "sized", 2)
    shrunk = stage.until(lambda: sized(stage, node, 2), "the pod has two CPUs", PATIENCE_S)
    stage.hold(shrunk == first, "they are those of its start", (first, shrunk))
    resize(stage, "sized", 8)
    told = stage.until(
        lambda: resize_refused(stage, "sized"), "the kubelet tells why eight CPUs are refused", PATIENCE_S
    )
    stage.seen.append(f"a resize that is refused, as the kubelet tells it: {told[:600]}")
    stage.hold(sized(stage, node, 2) == first, "it keeps its CPUs", cpus_of(node))
    resize(stage, "sized", 3)
    stage.until(lambda: sized(stage, node, 3), "a size that fits is taken afterwards", PATIENCE_S)
    judge_exclusive(stage, node, "after a refused resize")
    stage.hold(restarts_of(stage, "sized") == restarts == 0, "nothing was restarted")
    end(stage, "first", "sized", "beside")


def resize(stage: Stage, pod: str, cpus: int) -> None:
    """Ask for another number of CPUs."""
    amounts = {"cpu": str(cpus), "memory": MEMORY}
    patch = {"spec": {"containers": [{"name": "c0", "resources": {"requests": amounts, "limits": amounts}}]}}
    stage.cluster.kubectl("patch", "pod", pod, "--subresource", "resize", "-p", json.dumps(patch))


def resize_refused(stage: Stage, pod: str) -> str:
    """What the kubelet tells about a resize that the runtime refused; empty where it tells nothing."""
    status = stage.cluster.get(f"/api/v1/namespaces/default/pods/{pod}")["status"]
    conditions = [
        one.get("message", "") for one in status.get("conditions", ()) if one["type"].startswith("PodResize")
    ]
    notes = [str(one.get("note", "")) for one in events(stage, pod)]
    return next(
        (" ".join(text.split()) for text in (*conditions, *notes) if "cannot grow" in text or "NUMA" in text),
        "",
    )


def sized(stage: Stage, node: GuestNode, cpus: int) -> str:
    """The CPUs of the pod `sized` if they are so many, for the kernel and for the kubelet; else nothing."""
    pod = stage.cluster.get("/api/v1/namespaces/default/pods/sized")
    told = pod["status"]["containerStatuses"][0].get("resources", {}).get("requests", {}).get("cpu")
    found = [row["cpus"] for row in node.processes() if row["pod"] == pod["metadata"]["uid"]]
    is_so = found and told == str(cpus) and bits.parse_list(found[0]).bit_count() == cpus
    return found[0] if is_so else ""


def restarts_of(stage: Stage, pod: str) -> int:
    """How often the pod's containers were restarted."""
    status = stage.cluster.get(f"/api/v1/namespaces/default/pods/{pod}")["status"]
    return sum(row["restartCount"] for row in status["containerStatuses"])


@node_scenario
def devices_of_a_device_plugin(stage: Stage) -> None:
    """CPUs are of the NUMA node of the device that the kubelet gave the container, told by a real device plugin."""
    node = agent_by_chart(stage)
    homes = {"near-2": 2, "near-3": 3}
    words = " ".join(f"{name}={numa}" for name, numa in homes.items())
    node.background(
        "devices",
        f"env PYTHONPATH=/opt/e2e/client python3 /opt/node/device_plugin.py lab.example/device {words}",
    )
    path = f"/api/v1/nodes/{node.name}"
    stage.until(
        lambda: (stage.cluster.found(path) or {}).get("status", {}).get("allocatable", {}).get("lab.example/device") == "2",
        "the kubelet offers two devices", PATIENCE_S,
    )  # fmt: skip
    wanted = []
    for number in range(2):
        obj = guaranteed(f"device-{number}", 2)
        for kind in obj["spec"]["containers"][0]["resources"].values():
            kind["lab.example/device"] = "1"
        wanted.append(obj)
    uids = start(stage, *wanted)
    placed = judge_exclusive(stage, node, "beside devices")
    numa = [bits.parse_list(cpus) for cpus in node.numa_nodes()]
    for number, uid in enumerate(uids):
        pid = next(row["pid"] for row in node.processes() if row["pod"] == uid)
        environment = "".join(node.run(f"tr '\\0' '\\n' </proc/{pid}/environ | grep ^DEVICES="))
        device = environment.partition("=")[2]
        cpus = bits.parse_list(placed[f"device-{number}/c0"])
        stage.hold(device in homes and not cpus & ~numa[homes[device]], f"the CPUs are near {device}", placed)
    end(stage, "device-0", "device-1")
    node.kill("devices")


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
    start(stage, guaranteed("later", 4))
    judge_exclusive(stage, node, "on the node that came back")
    end(stage, "later")
    stage.expected |= {"get nodes 404", "patch noderesourcetopologies 409", "get nodes 403", "get nodes 401"}
    stage.expected |= {f"{verb} pods {status}" for verb in ("list", "watch") for status in (401, 403)}


@node_scenario
def a_node_reboots_with_pods_that_wait(stage: Stage) -> None:
    """After the power was cut the node starts its pods again: shared ones may come before the agent, and nobody overlaps in the end."""
    node = agent_by_chart(stage)
    start(stage, guaranteed("one", 4, restartPolicy="Always"), guaranteed("other", 3), shared("beside"))
    judge_exclusive(stage, node, "before the reboot")
    node = stage.guests.reboot()
    for name in ("one", "other", "beside"):
        stage.until(lambda name=name: is_running(stage, name), f"{name} runs again", PATIENCE_S)
    agent_is_ready(stage)
    placed = judge_exclusive(stage, node, "after the reboot")
    stage.figure("CPUs after the reboot", json.dumps(placed))
    end(stage, "one", "other", "beside")
    stage.expected |= {"get nodes 404"}


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
    again = judge_exclusive(stage, node, "under the kubelet again")
    stage.hold(after.items() <= again.items(), "nobody's CPUs have changed", (after, again))
    stage.hold(restarts_of(stage, "moved") == 0, "nothing was restarted")
    end(stage, "moved", "ours", "theirs", "beside")
    node.kill("kubelet", "TERM")
    node.run("rm -f /var/lib/kubelet/cpu_manager_state")
    node.start_kubelet()
    node.until_ready()


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
    stage.hold(status["phase"] == "Succeeded", f"nri-pin {words[0]} {words[1]} succeeds", status)
    end(stage, pod)
