"""A scenario that records what the real kubelet asks a runtime for, as a plugin of NRI is told of it.

The recording becomes `tests/vectors/nri/kubelet-VERSION.json.gz`, with which the simulator's kubelet is compared.
"""

import json
from typing import Any

from .guest_node import GuestNode
from .node_acting import SLEEP, end, start
from .node_life_scenarios import NODE_SCENARIOS
from .node_scenarios import node_scenario
from .stage import Stage

__all__ = ["NODE_SCENARIOS"]

_TOLD = "/out/kubelet.jsonl"
_RECORDER = f"env PYTHONPATH=/opt/e2e/src /opt/nri-pin/bin/python3 -m e2e.inside.event_recorder /run/nri/nri.sock {_TOLD} kubelet 20"


@node_scenario
def what_the_kubelet_asks_for_is_recorded(stage: Stage) -> None:
    """Each new pod and container of pods of all classes, as the kubelet describes them to the runtime."""
    node = stage.guests.node()
    objects = recorded_pods()
    names = [obj["metadata"]["name"] for obj in objects]
    node.put(node.payload, "/run/payload.tar.gz")
    node.run("tar -C / -xzf /run/payload.tar.gz")
    node.background("recorder", _RECORDER)
    node.run(f"for try in $(seq 600); do [ -e {_TOLD} ] && exit 0; sleep 0.1; done; exit 1")
    start(stage, *objects)
    events = [json.loads(line) for line in node.run(f"cat {_TOLD}")]
    told = [one for one in events if one["pod"] in names]
    wanted = sum(
        len(obj["spec"]["containers"]) + len(obj["spec"].get("initContainers", ())) + 1 for obj in objects
    )
    stage.hold(len(told) == wanted, "each pod and container was told of once", [one["pod"] for one in told])
    recording = {**_about(stage, node), "pods": objects, "events": told}
    file = node.folder / f"messages-{stage.cluster.version}.json"
    file.write_text(json.dumps(recording, indent=1) + "\n")
    stage.figure("recording", str(file.name))
    node.kill("recorder", "TERM")
    end(stage, *names)


def _about(stage: Stage, node: GuestNode) -> dict[str, object]:
    capacity = stage.cluster.get(f"/api/v1/nodes/{node.name}")["status"]["capacity"]
    sizes = node.run("ls /sys/kernel/mm/hugepages")
    return {
        "kubernetes": stage.cluster.version,
        "memory_kib": int(capacity["memory"].removesuffix("Ki")),
        "page_sizes_kb": sorted(int(name.removeprefix("hugepages-").removesuffix("kB")) for name in sizes),
    }


def recorded_pods() -> list[dict[str, Any]]:
    """Pods of each class, with init containers, a sidecar, odd amounts, labels, annotations, and resources of their own."""
    marks = {"labels": {"app": "web"}, "annotations": {"example.com/why": "recorded"}}
    own = {"cpu": "1500m", "memory": "160Mi"}
    return [
        _pod("guaranteed", [_container("one", both("2", "64Mi")), _container("two", both("300m", "48Mi"))], **marks),
        _pod("burstable", [_container("odd", {"requests": amounts("333m", "33Mi"), "limits": amounts("1777m", "67Mi")}), _container("rest")]),
        _pod("requests", [_container("only", {"requests": {"cpu": "1"}}), _container("limits", {"limits": {"memory": "40Mi"}})]),
        _pod("nothing", [_container("bare")]),
        _pod(
            "stages",
            [_container("main", both("500m", "48Mi"))],
            init=[
                _container("setup", both("1", "64Mi"), command=["/bin/sh", "-c", ":"]),
                _container("beside", both("250m", "48Mi"), restartPolicy="Always"),
            ],
        ),
        _pod("whole", [_container("own", both("500m", "64Mi")), _container("any")], resources={"requests": own, "limits": own}),
    ]  # fmt: skip


def amounts(cpu: str, memory: str) -> dict[str, str]:
    """Amounts of a container."""
    return {"cpu": cpu, "memory": memory}


def both(cpu: str, memory: str) -> dict[str, dict[str, str]]:
    """The same as requests and as limits."""
    return {"requests": amounts(cpu, memory), "limits": amounts(cpu, memory)}


def _container(name: str, resources: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "localhost/test:1", "command": SLEEP, "resources": resources or {}, **more}


def _pod(name: str, containers: list[Any], init: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": containers, "terminationGracePeriodSeconds": 0}
    if init:
        spec["initContainers"] = init
    if "resources" in more:
        spec["resources"] = more.pop("resources")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **more}, "spec": spec}
