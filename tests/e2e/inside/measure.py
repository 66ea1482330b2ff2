"""Figures of a real container runtime on this machine: what the plugin costs a creation, and how a pool is rewritten.

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
_WITHOUT, _WITH = "without the plugin", "with the plugin"
_SIDES = (_WITHOUT, _WITH, _WITH, _WITHOUT)


def creations(node: Node) -> None:
    """200 containers in 20 pods, twice without and twice with the plugin; only CreateContainer counts.

    Pods stay, with everything in them running, until all 20 are there, so the last creation meets 199 containers on
    either side. The sides cannot alternate pod by pod, for a plugin takes on whatever runs when it joins; they go on
    one start of the runtime in the order without, with, with, without, so what changes steadily in its course (a
    store that grows, a machine that warms up) is the same for both. A pod that is not counted goes first.

    As many containers as the machine has CPUs beside the reserved one, but one a pod at most, are given a CPU of
    their own, and all other containers leave it; the rest share. A machine of 2 CPUs has room for one of these in
    200, which p99 cannot show: what exclusive CPUs cost a creation is to be measured on one of 20 CPUs or more.
    """
    took: dict[str, list[float]] = {_WITHOUT: [], _WITH: []}
    _create_pods(node, [_crowd("warm", _IN_A_POD)], [])
    for turn, side in enumerate(_SIDES):
        if side == _WITH:
            node.agent.start()
        _create_pods(node, one_side(turn, len(machine_cpus()) - 1), took[side])
        if side == _WITH:
            node.agent.stop()
    for name, seconds in took.items():
        node.figure(f"CreateContainer {name}, p50 ms", round(1000 * _at(seconds, 50), 2))
        node.figure(f"CreateContainer {name}, p99 ms", round(1000 * _at(seconds, 99), 2))
    for percent in (50, 99):
        ratio = _at(took[_WITH], percent) / _at(took[_WITHOUT], percent)
        node.figure(f"CreateContainer with / without the plugin, p{percent}", round(ratio, 2))
    node.figure("CreateContainer calls in each", len(took[_WITH]))
    node.figure("containers at once", _PODS * _IN_A_POD)
    node.figure("of these with CPUs of their own", min(_PODS, len(machine_cpus()) - 1))


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


def _create_pods(node: Node, specs: list[PodSpec], took: list[float]) -> None:
    """Make and start all, note what each creation took, and remove them when the last is there."""
    pods = []
    for spec in specs:
        pods.append(pod := node.sandbox(spec))
        for container in spec.containers:
            began = time.monotonic()
            node.create(pod, container)
            took.append(time.monotonic() - began)
            node.start(pod, container.name)
    for pod in pods:
        node.remove(pod)


def one_side(turn: int, exclusive: int) -> list[PodSpec]:
    """20 pods; those with an exclusive container are spread evenly among the others."""
    wanted = min(_PODS, exclusive)
    guaranteed = {(2 * number + 1) * _PODS // (2 * wanted) for number in range(wanted)}
    return [
        _mixed(f"turn{turn}-{number}") if number in guaranteed else _crowd(f"turn{turn}-{number}", _IN_A_POD)
        for number in range(_PODS)
    ]


def _mixed(name: str) -> PodSpec:
    """A Guaranteed pod: its last container asks for a whole CPU, the others for too little to have one."""
    shares = (*(10 for _ in range(_IN_A_POD - 1)), 1000)
    containers = tuple(ContainerSpec(f"c{number}", milli) for number, milli in enumerate(shares))
    return PodSpec(name, "guaranteed", containers)


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
