"""The pods of a churn, drawn by a seed."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.e2e.node_rig.nodes import IMAGE

from .records import milli

Object = dict[str, Any]
FOREVER = "sleep 100000"
NO_CONTROLLER_RUNS = "00000000-0000-4000-8000-{:012d}"


def amounts(cpu: object, memory: str = "48Mi", *, limits: bool = True) -> Object:
    """Requests, and limits that are the same."""
    requests = {"cpu": str(cpu), "memory": memory}
    return {"requests": requests, "limits": dict(requests)} if limits else {"requests": requests}


def container(name: str, resources: Object | None = None, command: str = FOREVER, **more: Any) -> Object:
    """A container that runs a command."""
    return {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", command],
            "resources": resources or {}, **more}  # fmt: skip


class Draw:
    """Args:
    random_: decides everything.
    config: of nri-pin.
    largest: more CPUs than this may need a second NUMA node.
    """

    def __init__(self, random_: random.Random, config: Mapping[str, Any], largest: int) -> None:
        self.random, self.largest = random_, largest
        self.has_whole_cores = "full-pcpus-only" in config["cpuManagerPolicyOptions"]

    def one(self, *values: Any) -> Any:
        return self.random.choice(values)

    def happens(self, share: float) -> bool:
        return self.random.random() < share

    def cpus(self, most: int = 6) -> int:
        """A number of CPUs; mostly of whole cores where others are refused."""
        count = self.random.randint(1, min(most, self.largest))
        if self.has_whole_cores and self.happens(0.9):
            count = max(2, count // 2 * 2)
        return count

    def some(self, names: str, least: int, most: int = 4) -> list[Object]:
        """Guaranteed containers."""
        return [
            container(name, amounts(self.cpus(most)))
            for name in names[: self.random.randint(least, len(names))]
        ]


def guaranteed(draw: Draw) -> Object:
    return {"containers": [container("a", amounts(draw.cpus()))]}


def several(draw: Draw) -> Object:
    found = draw.some("abcd", 2, 3)
    if draw.happens(0.4):
        found.append(container("f", amounts(draw.one("500m", "100m", "1500m"))))
    return {"containers": found}


def init(draw: Draw) -> Object:
    before = [
        container(f"i{number}", amounts(draw.cpus(4)), f"sleep {draw.one(0, 0.3, 1, 2)}")
        for number in range(draw.one(1, 2))
    ]
    return {"initContainers": before, "containers": draw.some("ab", 1)}


def sidecar(draw: Draw) -> Object:
    size = draw.one(1, 2, "200m") if not draw.has_whole_cores else draw.one(2, "200m")
    before = [container("s0", amounts(size), restartPolicy="Always")]
    if draw.happens(0.6):
        before.append(container("i1", amounts(draw.cpus(4)), f"sleep {draw.one(0, 0.5, 1.5)}"))
    if draw.happens(0.4):
        before.append(
            container("s2", amounts("200m"), draw.one(FOREVER, "sleep 3; exit 1"), restartPolicy="Always")
        )
    return {"initContainers": before, "containers": draw.some("ab", 1, 3)}


def fractional(draw: Draw) -> Object:
    return {"containers": [container("a", amounts(draw.one("1500m", "500m", "2500m")))]}


def burstable(draw: Draw) -> Object:
    found = [
        container("a", amounts("200m", limits=False)),
        container("b", {"requests": {"cpu": "100m"}, "limits": {"cpu": "2"}}),
    ]
    return {"containers": found[: draw.one(1, 2)]}


def best_effort(_draw: Draw) -> Object:
    return {"containers": [container("a")]}


def pod_level(draw: Draw) -> Object:
    """Resources of the pod as a whole; a container with its own, and others that share the rest."""
    total = draw.cpus() + 2
    if draw.has_whole_cores:
        total = max(4, total // 2 * 2)
    own = draw.one(0, 1, 2) if not draw.has_whole_cores else draw.one(0, 2)
    found = [container("own", amounts(own))] if own else []
    found += [container("sh")] + [container("sh2")] * draw.happens(0.4)
    before = [container("sc", restartPolicy="Always")] * draw.happens(0.4)
    return {
        "resources": amounts(min(total, draw.largest), "256Mi"),
        "containers": found,
        "initContainers": before,
    }


def too_big(draw: Draw) -> Object:
    """More than one NUMA node has left, mostly."""
    if draw.happens(0.5):
        return {"containers": [container("a", amounts(draw.largest + draw.one(-1, 1, 2, 4)))]}
    found = [container(name, amounts(draw.cpus(most))) for name, most in (("a", 4), ("b", 6))]
    return {"containers": [*found, container("c", amounts(draw.largest))]}


def crashing(draw: Draw) -> Object:
    command = f"sleep {draw.one(0.2, 1, 2, 4)}; exit {draw.one(0, 1)}"
    return {
        "containers": [container("a", amounts(draw.cpus(4)), command), *draw.some("b", draw.one(0, 1), 2)]
    }


def job(draw: Draw) -> Object:
    found = [container("a", amounts(draw.cpus(4)), f"sleep {draw.one(0, 1, 3)}")]
    if draw.happens(0.3):
        found.append(container("b", amounts(draw.cpus(2)), "sleep 2"))
    return {"restartPolicy": draw.one("Never", "OnFailure"), "containers": found}


def mixed(draw: Draw) -> Object:
    """Burstable as a whole, so that nothing is exclusive."""
    return {
        "containers": [container("a", amounts(draw.cpus(4))), container("b", amounts("100m", limits=False))]
    }


KINDS: dict[str, tuple[int, Callable[[Draw], Object]]] = {
    "guaranteed": (3, guaranteed), "several": (3, several), "init": (2, init), "sidecar": (3, sidecar),
    "fractional": (1, fractional), "burstable": (1, burstable), "best-effort": (1, best_effort), "pod-level": (2, pod_level),
    "too-big": (1, too_big), "crashing": (3, crashing), "job": (2, job), "mixed": (1, mixed),
}  # fmt: skip
"""By name: how often it is drawn, and what makes the spec."""

STATIC_KINDS = ("guaranteed", "several", "sidecar", "burstable")
RESIZED_KINDS = ("guaranteed", "several", "fractional", "sidecar", "init", "crashing")


def request_milli(spec: Object) -> int:
    """Thousandths of a CPU that the scheduler and the kubelet count for a pod."""
    if spec.get("resources"):
        return _milli(spec)
    before = spec.get("initContainers", [])
    sidecars = sum(_milli(one) for one in before if one.get("restartPolicy"))
    running = sum(map(_milli, spec["containers"])) + sidecars
    return max([running, *(_milli(one) + sidecars for one in before if not one.get("restartPolicy"))])


def _milli(one: Object) -> int:
    return milli(one.get("resources", {}).get("requests", {}).get("cpu", 0))


def pod(name: str, spec: Object, owner: int | None = None) -> Object:
    """The object; `owner`: a number of a controller that nobody plays, so that what depends on one is tried, too."""
    meta: Object = {"name": name, "namespace": "default"}
    if owner is not None:
        meta["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"owner-{owner}", "controller": True,
             "uid": NO_CONTROLLER_RUNS.format(owner)}
        ]  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"automountServiceAccountToken": False, **spec},
    }
