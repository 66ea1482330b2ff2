"""Scenarios on a real node about pods and their CPUs: a guest with containerd and the kubelet, where agent and exporter are pods of the real image.

What is judged comes from kubectl, from cgroup files and from /proc of the guest, never from the agent.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from nri_plugin.model import bits
from tests.e2e.lab.shell import LabError

from .acting import create, events, pods
from .components import UPDATER, foreign_program
from .guest_node import HOST, GuestNode
from .node_acting import (
    MEMORY,
    PATIENCE_S,
    agent_by_chart,
    agents,
    available,
    cpus_of,
    describe,
    end,
    guaranteed,
    is_running,
    judge_exclusive,
    restarts_of,
    shared,
    start,
)
from .stage import NRT_GROUP, Stage

Scenario = Callable[[Stage], None]
NODE_SCENARIOS: dict[str, Scenario] = {}

_FILLERS = ("fill-1", "fill-2", "fill-3")
"""Pods of three CPUs on the three NUMA nodes that have four: two, one, one and one CPUs are left."""

_TRIES = 8
_METRICS_PORT = 9465
_VIEW = "as-another-sees-it"


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
    stage.expected |= {"patch pods/status 409"}  # the kubelet wrote a status since the exporter read the pod
    start(stage, *(guaranteed(name, 3) for name in _FILLERS))
    template = {"metadata": {"labels": {"app": "tried"}}, "spec": guaranteed("x", 4)["spec"]}
    del template["spec"]["terminationGracePeriodSeconds"]
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "tried"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "tried"}, "spec": spec}
    create(stage, deployment, "/apis/apps/v1/namespaces/default/deployments")

    def failed() -> list[dict[str, Any]]:
        return [pod for pod in pods(stage, "app=tried") if pod["status"].get("phase") == "Failed"]

    def refused_ones() -> list[dict[str, Any]]:
        return [pod for pod in failed() if pod["status"].get("reason") == "TopologyAffinityError"]

    stage.until(refused_ones, "a refused pod is Failed, with the reason", PATIENCE_S)
    first = refused_ones()[0]["metadata"]
    began = time.monotonic()
    stage.until(
        lambda: len(pods(stage, "app=tried")) > len(failed()), "its controller has made the next one", 120
    )
    stage.cluster.until(lambda: time.monotonic() > began + 60, "a minute has passed")
    reasons = Counter(pod["status"].get("reason") for pod in failed())
    stage.hold(
        reasons["TopologyAffinityError"] <= 5, "few refused pods are set to Failed in a minute", reasons
    )
    # The kubelet counts the requests of a failed pod until it has ended it, and the scheduler does not.
    own = {*reasons} - {"TopologyAffinityError", "OutOfcpu"}
    stage.hold(not own, "the kubelet fails the next ones for want of CPUs alone", reasons)
    stage.figure("pods that the kubelet failed while it ended a refused one", str(reasons["OutOfcpu"]))
    # The kubelet's status manager writes its own status each 10 s, and retries a container every 11 to 15 s.
    (now,) = [pod["status"] for pod in pods(stage, "app=tried") if pod["metadata"]["name"] == first["name"]]
    stage.hold(now.get("phase") == "Failed", "the first pod that failed is Failed a minute later", now)
    states = [next(iter(one.get("state") or {"none": None})) for one in now.get("containerStatuses") or ()]
    stage.hold("waiting" not in states, "the kubelet has ended it", states)
    stage.hold(first["uid"] not in {row["pod"] for row in node.processes()}, "nothing of it runs")
    stage.figure("refused pods that failed", str(len(refused_ones())))
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
    uid, outside = started_with_facts(stage, node, obj, shared("outside"))
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


def started_with_facts(stage: Stage, node: GuestNode, *objects: dict[str, object]) -> list[str]:
    """Start pods until the exporter has answered each question about them in time; returns their uids.

    The agent waits a tenth of a second for an answer, and then decides without. An emulated node may need longer.
    """
    names = [str(obj["metadata"]["name"]) for obj in objects]  # type: ignore[index]
    for tried in range(1, _TRIES + 1):
        before = unanswered(stage, node)
        uids = start(stage, *objects)
        judge_exclusive(stage, node, f"whether the facts came in time or not, try {tried}")
        if unanswered(stage, node) == before:
            stage.figure("tries until the facts came in time", str(tried))
            return uids
        end(stage, *names)
        stage.until(
            lambda uids=uids: not {row["pod"] for row in node.processes()} & set(uids),
            "they have ended",
            PATIENCE_S,
        )
    raise LabError(f"the exporter was late in each of {_TRIES} tries")


def unanswered(stage: Stage, node: GuestNode) -> int:
    """How often the agent has decided without an answer of the exporter, by its metrics."""
    address = agents(stage)[0]["status"]["podIP"]
    lines = node.run(
        f"python3 -S -c 'import urllib.request as r; print(r.urlopen(\"http://{address}:{_METRICS_PORT}/metrics\").read().decode())'"
    )
    rows = [line for line in lines if line.startswith("nri_pin_exporter_answers_total{")]
    return sum(int(float(row.split()[-1])) for row in rows if 'result="answered"' not in row)


@node_scenario
def another_exporter_reads_what_the_agent_gave(stage: Stage) -> None:
    """The unmodified topology updater of node-feature-discovery reads PodResources from nri-pin, and sees the same CPUs as we publish."""
    node = agent_by_chart(stage)
    start(stage, guaranteed("four", 4), guaranteed("two", 1, 1))
    judge_exclusive(stage, node, "before it reads")
    stage.until(lambda: available(stage, node) == 14 - 6, "our object accounts for them", PATIENCE_S)
    view = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _VIEW}}
    create(stage, view, "/api/v1/nodes")  # it takes the object of another name, and leaves ours alone
    node.put(foreign_program(UPDATER, stage.cluster.programs.parent), "/root/updater")
    server = f"https://{HOST}:{stage.cluster.port}"
    node.put(
        stage.cluster.authority.kubeconfig("admin-outside", server, group="system:masters"), "/root/admin"
    )
    node.run(
        f"cd /root && chmod +x updater && NODE_NAME={_VIEW} GOMAXPROCS=2 timeout 500 /root/updater -oneshot -metrics=0 -grpc-health=0"
        " -podresources-socket=/run/nri-pin/exporter/pod-resources.sock -kubelet-config-uri=file:///var/lib/kubelet/config.yaml"
        " -kubeconfig=/root/admin -config= -sleep-interval=1s >>/out/updater.log 2>&1"
    )
    ours, theirs = (cpus_by_zone(stage, name) for name in (node.name, _VIEW))
    stage.figure("available CPUs by NUMA node, nri-pin's and theirs", f"{ours} and {theirs}")
    stage.hold(ours == theirs, "both say how many CPUs of each NUMA node are available", (ours, theirs))
    stage.cluster.ask("DELETE", f"{NRT_GROUP}/{_VIEW}")
    end(stage, "four", "two")


def cpus_by_zone(stage: Stage, node: str) -> dict[str, int]:
    """Available CPUs by the number of the NUMA node, of the object of that name."""
    zones = (stage.topology(node) or {}).get("zones", ())
    return {
        zone["name"].rpartition("-")[2]: int(one["available"])
        for zone in zones for one in zone["resources"] if one["name"] == "cpu"
    }  # fmt: skip


@node_scenario
def resize_in_place(stage: Stage) -> None:
    """kubectl resizes a running pod: it grows around its CPUs, shrinks to them, and a refused growth changes nothing."""
    node = agent_by_chart(stage)
    # pods of the scenario before are gone from the API server a little earlier than from the node
    stage.until(lambda: available(stage, node) == 14, "all CPUs are available", PATIENCE_S)
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
