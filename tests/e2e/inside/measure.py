"""Figures of a real container runtime on this machine: what the plugin costs a creation, and how a pool is rewritten.

With and without the plugin take turns, pod by pod, on one start of the runtime, so that both meet the same machine.
Printed and never judged: a busy machine makes them larger, the ratios less so.
"""

import statistics
import time
from collections.abc import Callable

from .agent import Agent
from .containerd import Containerd, version
from .foreign import write
from .kubepods import make_kubepods
from .node import Node
from .observe import CGROUPS, cpuset_directory, format_list, machine_cpus
from .pods import ContainerSpec, PodSpec, burstable
from .report import tell

_PODS, _IN_A_POD = 20, 10
_SHARED, _PODS_SHARED = 100, 10


def creations(node: Node) -> None:
    """200 containers without and 200 with the plugin, in 20 pods each; only CreateContainer counts."""
    took: dict[str, list[float]] = {"without the plugin": [], "with the plugin": []}
    rounds = 4
    for turn in range(rounds):
        _create_pods(node, f"bare-{turn}", _PODS // rounds, took["without the plugin"])
        node.agent.start()
        _create_pods(node, f"seen-{turn}", _PODS // rounds, took["with the plugin"])
        node.agent.stop()
    for name, seconds in took.items():
        node.figure(f"CreateContainer {name}, p50 ms", round(1000 * _at(seconds, 50), 2))
        node.figure(f"CreateContainer {name}, p99 ms", round(1000 * _at(seconds, 99), 2))
    without, with_it = took.values()
    for percent in (50, 99):
        ratio = _at(with_it, percent) / _at(without, percent)
        node.figure(f"CreateContainer with / without the plugin, p{percent}", round(ratio, 2))
    node.figure("CreateContainer calls in each", len(without))


def pool_rewrites(node: Node) -> None:
    """The cpusets of 100 running containers, file by file and by update calls of the runtime."""
    each = _SHARED // _PODS_SHARED
    pods = [node.run(_crowd(f"pool-{number}", each)) for number in range(_PODS_SHARED)]
    ids = [identity for pod in pods for identity in pod.ids.values()]
    files = [cpuset_directory(node.pid(identity)) / "cpuset.cpus" for identity in ids]
    every = format_list(machine_cpus())
    fewer = format_list(machine_cpus() - {max(machine_cpus())})

    def direct(cpus: str) -> None:
        for file in files:
            write(file, cpus)

    def updated(cpus: str) -> None:
        for identity in ids:
            node.cri.call("UpdateContainerResources", container_id=identity, linux={"cpuset_cpus": cpus})

    for name, change in (("direct writes", direct), ("updates by the runtime", updated)):
        seconds = [_timed(change, cpus) for cpus in (fewer, every) * 3]
        node.figure(f"{len(ids)} cpusets by {name}, median ms", round(1000 * statistics.median(seconds), 2))


def _create_pods(node: Node, name: str, pods: int, took: list[float]) -> None:
    for number in range(pods):
        spec = _crowd(f"{name}-{number}", _IN_A_POD)
        pod = node.sandbox(spec)
        for container in spec.containers:
            began = time.monotonic()
            node.create(pod, container)
            took.append(time.monotonic() - began)
        node.remove(pod)


def _crowd(name: str, count: int) -> PodSpec:
    template = burstable(name, 10).containers[0]
    return PodSpec(
        name,
        "burstable",
        tuple(ContainerSpec(f"c{number}", template.cpu_milli) for number in range(count)),
    )


def _timed(change: Callable[[str], None], cpus: str) -> float:
    began = time.monotonic()
    change(cpus)
    return time.monotonic() - began


def _at(seconds: list[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    tell("runtime", version=version())
    if not (CGROUPS / "cpuset").is_dir():
        make_kubepods()
    runtime = Containerd()
    runtime.start()
    measured = Node(runtime, Agent(runtime, {"reservedSystemCPUs": "0"}))
    creations(measured)
    pool_rewrites(measured)
    measured.remove_all()
    runtime.stop()
