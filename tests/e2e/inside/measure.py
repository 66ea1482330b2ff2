"""Figures of a real container runtime on this machine: what the plugin costs a creation, and how a pool is rewritten.

Printed and never judged: a busy machine makes them larger, the ratios less so.
"""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .agent import Agent
from .containerd import Containerd, version
from .foreign import write
from .kubepods import make_kubepods
from .node import Node
from .observe import CGROUPS, cpuset_directory, format_list, machine_cpus
from .pods import ContainerSpec, PodSpec, burstable
from .report import tell
from .runtime import NRI_SOCKET
from .waiting import wait_for

_PODS, _IN_A_POD = 20, 10
_SHARED, _PODS_SHARED = 100, 10
_WITHOUT, _WITH, _OTHER = "without the plugin", "with the plugin", "with the other plugin"
_OTHER_PLUGIN = Path("/out/plugin")
"""A plugin that takes the path of the NRI socket as its only word; not there where nobody asked for it."""


def creations(node: Node) -> None:
    """200 containers in 20 pods, twice without and twice with each plugin; only CreateContainer counts.

    Pods stay, with everything in them running, until all 20 are there, so the last creation meets 199 containers on
    either side. The sides cannot alternate pod by pod, for a plugin takes on whatever runs when it joins; they go on
    one start of the runtime in an order and back, such as without, with, with, without, so what changes steadily in
    its course (a store that grows, a machine that warms up) is the same for all. A pod that is not counted goes first.

    As many containers as the machine has CPUs beside the reserved one, but one a pod at most, are given a CPU of
    their own, and all other containers leave it; the rest share. A machine of 2 CPUs has room for one of these in
    200, which p99 cannot show: what exclusive CPUs cost a creation is to be measured on one of 20 CPUs or more.
    """
    sides = (_WITHOUT, _WITH, *([_OTHER] if _OTHER_PLUGIN.exists() else []))
    took: dict[str, list[float]] = {side: [] for side in sides}
    _create_pods(node, [_crowd("warm", _IN_A_POD)], [])
    for turn, side in enumerate((*sides, *reversed(sides))):
        with _plugin(node, side):
            _create_pods(node, one_side(turn, len(machine_cpus()) - 1), took[side])
    for name, seconds in took.items():
        node.figure(f"CreateContainer {name}, p50 ms", round(1000 * _at(seconds, 50), 2))
        node.figure(f"CreateContainer {name}, p99 ms", round(1000 * _at(seconds, 99), 2))
    for side in sides[1:]:
        for percent in (50, 99):
            ratio = _at(took[side], percent) / _at(took[_WITHOUT], percent)
            what = side.replace("with ", "with / without ", 1)
            node.figure(f"CreateContainer {what}, p{percent}", round(ratio, 2))
    node.figure("CreateContainer calls in each", len(took[_WITH]))
    node.figure("containers at once", _PODS * _IN_A_POD)
    node.figure("of these with CPUs of their own", min(_PODS, len(machine_cpus()) - 1))


@contextmanager
def _plugin(node: Node, side: str) -> Iterator[None]:
    """The plugin of that side, joined and later ended."""
    if side == _WITHOUT:
        yield
    elif side == _WITH:
        node.agent.start()
        yield
        node.agent.stop()
    else:
        joined = node.agent.times_joined()
        with subprocess.Popen([_OTHER_PLUGIN, NRI_SOCKET]) as process:
            wait_for(
                lambda: node.agent.times_joined() > joined, 300, "the runtime has taken the other plugin"
            )
            yield
            process.terminate()


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
