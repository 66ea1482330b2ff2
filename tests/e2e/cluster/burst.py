"""Many pods at once on many nodes that are played, and how many of them the kubelet's rule refuses.

A played node admits by the rule of `single-numa-node` alone: the first NUMA node that has the CPUs, or TopologyAffinityError.
Its object follows a second later, as exporters do that are in no hurry. What differs between runs is who schedules.
"""

import random
import threading
import time
from dataclasses import dataclass, field

from nri_plugin.kube.noderesourcetopology import (
    ATTRIBUTE_ACCOUNTED_PODS,
    ATTRIBUTE_FINGERPRINT,
    ATTRIBUTE_FINGERPRINT_METHOD,
    METHOD_EXCLUSIVE,
    fingerprint,
    short_uid,
)

from .control_plane import Object
from .stage import NRT_GROUP, Stage, pod_object

NODES, PODS = 60, 200
_NUMA_NODES, _CPUS = 2, 8
_LATE_S = 1.0
_SEED = 18
_TICK_S = 0.1
_GIVE_UP_S = 180.0
"""Pods that no scheduler places any more do not change."""

_QUIET_S = 20.0
_POLICY = {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "container"}


@dataclass
class _Played:
    """A node: available CPUs of its NUMA nodes, the pods that run, by name and uid, and when its object is to be written."""

    available: list[int] = field(default_factory=lambda: [_CPUS] * _NUMA_NODES)
    pods: list[tuple[str, str]] = field(default_factory=list)
    due: float = 0.0


class Burst:
    """One run with one scheduler.

    Args:
        stage: the cluster; the scheduler is started when the nodes are there.
        scheduler: its name.
    """

    def __init__(self, stage: Stage, scheduler: str) -> None:
        self._stage, self._scheduler = stage, scheduler
        self._ask = stage.cluster.ask
        self._nodes = {f"burst-{number:02}": _Played() for number in range(NODES)}
        self._done: dict[str, str] = {}

    def register(self) -> None:
        """Create the nodes with their objects. The Go plugin reads the objects once, when it starts."""
        for name in self._nodes:
            self._register(name)

    def play(self) -> dict[str, int]:
        """Create pods, and play the kubelets until nothing changes; pods by what became of them."""
        creating = threading.Thread(target=self._create_pods)
        creating.start()
        self._admit_until_quiet()
        creating.join()
        self._clear()
        found = list(self._done.values())
        return {
            "run": found.count("Running"), "refused": found.count("Failed"), "not placed": PODS - len(found),
        }  # fmt: skip

    def _create_pods(self) -> None:
        choose = random.Random(_SEED)
        for number in range(PODS):
            pod = pod_object(
                f"burst-{number:03}", cpu=choose.randint(2, 6), memory="1Mi", schedulerName=self._scheduler
            )
            pod["metadata"]["labels"] = {"app": "burst"}
            self._must("POST", "/api/v1/namespaces/default/pods", pod)

    def _admit_until_quiet(self) -> None:
        began = changed = time.monotonic()
        while (
            len(self._done) < PODS
            and (now := time.monotonic()) < began + _GIVE_UP_S
            and now < changed + _QUIET_S
        ):
            path = "/api/v1/namespaces/default/pods?labelSelector=app=burst"
            for pod in self._stage.cluster.get(path)["items"]:
                name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
                if node in self._nodes and name not in self._done:
                    self._admit(pod, node)
                    changed = time.monotonic()
            self._publish_what_is_due()
            time.sleep(_TICK_S)

    def _admit(self, pod: Object, node: str) -> None:
        played = self._nodes[node]
        wanted = int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        home = next((numa for numa, cpus in enumerate(played.available) if cpus >= wanted), None)
        status = {"phase": "Failed", "reason": "TopologyAffinityError"}
        if home is not None:
            played.available[home] -= wanted
            played.pods.append((pod["metadata"]["name"], pod["metadata"]["uid"]))
            played.due = played.due or time.monotonic() + _LATE_S
            status = {"phase": "Running", "startTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
        code, answer = self._ask("PATCH", path, {"status": status}, "application/merge-patch+json")
        assert code == 200, answer
        self._done[pod["metadata"]["name"]] = status["phase"]

    def _publish_what_is_due(self) -> None:
        for name, played in self._nodes.items():
            if played.due and played.due <= time.monotonic():
                played.due = 0.0
                self._publish(name)

    def _register(self, name: str) -> None:
        total = str(_CPUS * _NUMA_NODES)
        amounts = {"cpu": total, "memory": "16Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        node = {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
        }  # fmt: skip
        self._must("POST", "/api/v1/nodes", node)
        self._publish(name)

    def _publish(self, name: str) -> None:
        played = self._nodes[name]
        told = {
            **_POLICY,
            ATTRIBUTE_FINGERPRINT: fingerprint([("default", pod) for pod, _ in played.pods]),
            ATTRIBUTE_FINGERPRINT_METHOD: METHOD_EXCLUSIVE,
            ATTRIBUTE_ACCOUNTED_PODS: ",".join(sorted(short_uid(uid) for _, uid in played.pods)),
        }
        zones = [
            {
                "name": f"node-{numa}", "type": "Node",
                "resources": [
                    {"name": "cpu", "capacity": str(_CPUS), "allocatable": str(_CPUS), "available": str(available)},
                    {"name": "memory", "capacity": "8Gi", "allocatable": "8Gi", "available": "8Gi"},
                ],
            }
            for numa, available in enumerate(played.available)
        ]  # fmt: skip
        obj = {
            "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name},
            "topologyPolicies": ["SingleNUMANodeContainerLevel"], "attributes": [{"name": key, "value": value} for key, value in told.items()], "zones": zones,
        }  # fmt: skip
        path = f"{NRT_GROUP}/{name}?fieldManager=burst&force=true"
        code, answer = self._ask("PATCH", path, obj, "application/apply-patch+yaml")
        assert code in (200, 201), answer

    def _must(self, method: str, path: str, body: Object) -> None:
        code, answer = self._ask(method, path, body)
        assert code in (200, 201), answer

    def _clear(self) -> None:
        kubectl = self._stage.cluster.kubectl
        kubectl("delete", "pods", "-l", "app=burst", "--force", "--grace-period=0", "--wait=false")
        for name in self._nodes:
            for path in (f"/api/v1/nodes/{name}", f"{NRT_GROUP}/{name}"):
                self._ask("DELETE", path)
        path = "/api/v1/namespaces/default/pods?labelSelector=app=burst"
        self._stage.cluster.until(lambda: not self._stage.cluster.get(path)["items"], "the pods are gone")
