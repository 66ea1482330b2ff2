"""What scenarios on a real node do again and again: install the agent, run pods, look at their processes from outside."""

import functools
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nri_plugin.model import bits

from .acting import create, rendered_chart
from .control_plane import Object
from .guest_node import GuestNode
from .stage import Stage, pod_object

NAMESPACE = "nri-pin"
MEMORY = "64Mi"
"""Of a container: what the OCI runtime itself needs to start it, and some."""

SLEEP = ["/bin/sleep", "1000000"]
PATIENCE_S = 600.0
"""An emulated node is slow; nobody waits so long but in vain."""

_AGENT_LABEL = "app.kubernetes.io/component=agent"
_PODS = "/api/v1/namespaces/default/pods"

CONFIG: dict[str, Any] = {"topologyManagerPolicy": "single-numa-node"}
EXPORTER: dict[str, Any] = {"enabled": True}


def agent_by_chart(
    stage: Stage, *, config: Object | None = None, exporter: Object | None = None, **values: Any
) -> GuestNode:
    """A ready node whose agent and exporter are pods of the chart's DaemonSet."""
    node = stage.guests.node()
    cluster = stage.cluster
    whole = {"config": {**CONFIG, **(config or {})}, "exporter": {**EXPORTER, **(exporter or {})}, **values}
    file = stage.folder / "chart.json"
    chart = rendered_chart(stage, podSecurity={"createNamespace": True}, **whole)
    for container in (one for obj in chart if obj["kind"] == "DaemonSet" for one in _containers(obj)):
        if probe := container.get("startupProbe"):  # an emulated CPU may need longer until the agent answers
            probe["failureThreshold"] = int(PATIENCE_S / probe["periodSeconds"])
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": in_order(chart)}))
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    cluster.kubectl("label", "node", node.name, "nri-pin/enabled=true", "--overwrite")
    agent_is_ready(stage)
    return node


def _containers(obj: Object) -> list[Object]:
    found: list[Object] = obj["spec"]["template"]["spec"]["containers"]
    return found


def in_order(objects: Sequence[Object]) -> list[Object]:
    """Namespaces and kinds before what needs them."""
    first = ("Namespace", "CustomResourceDefinition", "ServiceAccount")
    return sorted(objects, key=lambda one: first.index(one["kind"]) if one["kind"] in first else len(first))


def agent_is_ready(stage: Stage) -> None:
    """Wait until the newest agent runs on the node."""

    def ready() -> bool:
        found = stage.cluster.found(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/nri-pin") or {}
        status, generation = found.get("status", {}), found.get("metadata", {}).get("generation")
        return (
            status.get("observedGeneration") == generation
            and status.get("desiredNumberScheduled") == 1
            and status.get("updatedNumberScheduled") == status.get("numberReady") == 1
            and len(agents(stage)) == 1
        )

    stage.until(ready, "the agent's pod runs", patience_s=PATIENCE_S)


def agents(stage: Stage) -> list[Object]:
    """The pods of the agent."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={_AGENT_LABEL}"
    return (stage.cluster.found(path) or {}).get("items", [])


def guaranteed(name: str, *cpus: int, node: str = "", memory: str = MEMORY, **spec: Any) -> Object:
    """A Guaranteed pod with a container for each number of CPUs, which sleeps."""
    obj = pod_object(name, cpu=cpus[0], memory=memory, node=node, **spec)
    first = obj["spec"]["containers"][0]
    obj["spec"]["containers"] = [
        {
            **first, "command": SLEEP, "name": f"c{number}",
            "resources": {kind: {"cpu": str(cpu), "memory": memory} for kind in ("requests", "limits")},
        }
        for number, cpu in enumerate(cpus)
    ]  # fmt: skip
    return obj


def shared(name: str, requests: Object | None = None) -> Object:
    """A Burstable pod, or one that asks for nothing, which sleeps."""
    container = {
        "name": "c0",
        "image": "localhost/test:1",
        "command": SLEEP,
        "resources": {"requests": requests or {}},
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def start(stage: Stage, *objects: Object) -> list[str]:
    """Create pods and wait until they run; returns their uids."""
    uids = [create(stage, obj)["metadata"]["uid"] for obj in objects]
    for obj in objects:
        name = obj["metadata"]["name"]
        stage.until(lambda name=name: is_running(stage, name), f"{name} runs", patience_s=PATIENCE_S)
    return uids


def is_running(stage: Stage, name: str) -> bool:
    """Whether all containers of a pod run."""
    status = (stage.cluster.found(f"{_PODS}/{name}") or {}).get("status", {})
    rows = status.get("containerStatuses", ())
    return status.get("phase") == "Running" and bool(rows) and all("running" in row["state"] for row in rows)


def end(stage: Stage, *names: str) -> None:
    """Delete pods and wait until the kubelet has ended them."""
    stage.cluster.kubectl("delete", "pod", *names, "--ignore-not-found", "--wait=false")
    for name in names:
        stage.until(
            lambda name=name: not stage.cluster.found(f"{_PODS}/{name}"),
            f"{name} is gone",
            patience_s=PATIENCE_S,
        )


def cpus_of(node: GuestNode) -> dict[tuple[str, str], set[str]]:
    """The CPUs on which the processes of each container may run, by the pod's uid and the container's id."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in node.processes():
        found.setdefault((row["pod"], row["container"]), set()).add(row["cpus"])
    return found


def has_cpus(node: GuestNode, uid: str, count: int) -> bool:
    """Whether every process of a pod may run on so many CPUs."""
    found = [cpus for (pod, _), sets in cpus_of(node).items() if pod == uid for cpus in sets]
    return bool(found) and {bits.parse_list(cpus).bit_count() for cpus in found} == {count}


@dataclass(frozen=True, slots=True)
class Looked:
    """All processes of the node at one time.

    Attributes:
        named: name and number of CPUs of each Guaranteed container with whole CPUs, by its id.
        seen: the CPUs of each container, by its id.
    """

    named: dict[str, tuple[str, int]]
    seen: dict[str, int]

    @property
    def exclusive(self) -> dict[str, int]:
        """The CPUs of those that are to have them alone."""
        return {container: mask for container, mask in self.seen.items() if container in self.named}

    def overlaps(self) -> list[str]:
        """Those that share them."""
        return [
            f"{self.named[one][0]} {bits.format_list(mask)} and {self.named.get(other, (other, 0))[0]} {bits.format_list(theirs)}"
            for one, mask in self.exclusive.items()
            for other, theirs in self.seen.items()
            if one != other and mask & theirs
        ]


def look(stage: Stage, node: GuestNode) -> Looked:
    """Look at all processes; what a container is to have comes from the kubelet's status."""
    named: dict[str, tuple[str, int]] = {}
    for pod in stage.cluster.get("/api/v1/pods")["items"]:
        for row in pod["status"].get("containerStatuses", ()):
            cpus = _whole_cpus(row)  # what it has: a resize that waits is in the spec only
            if pod["status"].get("qosClass") == "Guaranteed" and cpus and "containerID" in row:
                name = f"{pod['metadata']['name']}/{row['name']}"
                named[row["containerID"].rpartition("/")[2]] = (name, cpus)
    seen = {
        container: functools.reduce(operator.or_, map(bits.parse_list, sets))
        for (_, container), sets in cpus_of(node).items()
    }
    return Looked(named, seen)


def overlaps(stage: Stage, node: GuestNode) -> list[str]:
    """The exclusive CPUs that are shared just now."""
    return look(stage, node).overlaps()


def judge_exclusive(stage: Stage, node: GuestNode, when: str) -> dict[str, str]:
    """Hold that no process shares the CPUs of a Guaranteed container with whole CPUs, as the kubelet's status counts them.

    Returns:
        The CPUs of each of them, by `POD/CONTAINER`.
    """
    looked = look(stage, node)
    named, exclusive = looked.named, looked.exclusive
    shared_ones = looked.overlaps()
    stage.hold(not shared_ones, f"no exclusive CPU is shared {when}", shared_ones)
    wrong = [
        (named[one], bits.format_list(mask))
        for one, mask in exclusive.items()
        if mask.bit_count() != named[one][1]
    ]
    stage.hold(not wrong, f"every Guaranteed container has as many CPUs as it asked for {when}", wrong)
    stage.looks += 1
    stage.shared_exclusive += len(shared_ones)
    return {named[one][0]: bits.format_list(mask) for one, mask in exclusive.items()}


def _whole_cpus(container: Object) -> int:
    cpu = container.get("resources", {}).get("requests", {}).get("cpu", "")
    return int(cpu) if cpu.isdigit() else 0


def describe(stage: Stage, pod: str) -> str:
    """What kubectl describe says about a pod."""
    return stage.cluster.kubectl("describe", "pod", pod)


def available(stage: Stage, node: GuestNode) -> int:
    """Available CPUs of the node, by its object."""
    return sum(map(int, stage.available(node.name)))


def restarts_of(stage: Stage, pod: str) -> int:
    """How often the pod's containers were restarted."""
    status = stage.cluster.get(f"/api/v1/namespaces/default/pods/{pod}")["status"]
    return sum(row["restartCount"] for row in status["containerStatuses"])
