"""How long a decision takes, without wire and disk."""

import gc
import time
from collections.abc import Iterator

from nri_plugin.core.engine import decide
from nri_plugin.model.options import Node, Options, TopologyManagerPolicy
from nri_plugin.model.records import PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.machine import build_topology, parse
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod, Resources
from tests.bench.figures import Figure, microseconds

SIZES = (64, 256, 512)
NUMA_NODES = (2, 4, 8)
SHARED = 100
LARGEST = 255
"""CPUs that shares alone can ask for."""


def figures(rounds: int) -> Iterator[Figure]:
    """p50 and p99 of CreateContainer decisions on machines of each size, small and large requests."""
    for cpus in SIZES:
        for nodes in NUMA_NODES:
            for cache in (False, True):
                yield _one(cpus, nodes, cache, rounds)


def _one(cpus: int, nodes: int, cache: bool, rounds: int) -> Figure:
    rule = "uncore" if cache else "packed"
    what = f"decision, {cpus} CPUs, {nodes} NUMA nodes, {rule}"
    return timed(what, _node(cpus, nodes, cache), rounds)


def timed(what: str, node: Node, rounds: int) -> Figure:
    """CreateContainer on a busy node, for requests of five sizes in turn."""
    cpus = len(node.topology.online)
    state = _busy(node)
    sizes = (7, cpus * 3 // 8 + 1, 2, 1, cpus // 4) if cpus >= 64 else (1, 2, 3, 1, 2)
    wanted = [_pair(number, min(cpu, LARGEST)) for number, cpu in enumerate(sizes)]
    for of, container in wanted:  # what is worked out once per machine is not a decision's time
        decide(node, state, nri.CreateContainer(of, container))
    took = []
    gc.collect()
    gc.disable()  # as the agent does while a container waits
    for turn in range(rounds):
        of, container = wanted[turn % len(wanted)]
        before = state.with_pod(
            PodRecord(f"uid{turn}", f"sandbox{turn}")
        )  # a new state: one remembers its answers
        began = time.perf_counter_ns()
        decide(node, before, nri.CreateContainer(of, container))
        took.append(time.perf_counter_ns() - began)
    gc.enable()
    return microseconds(what, took)


def _node(cpus: int, nodes: int, cache: bool) -> Node:
    cores = cpus // nodes // 2 // 2
    text = f"pack:2 numa:{nodes // 2}(memory=64GiB) l3:2 core:{cores} pu:2(indexes=core)"
    options = Options(
        topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT, prefer_align_cpus_by_uncore_cache=cache
    )
    return Node(build_topology(parse(text, "bench")), options, CPUSet.of(0, 1))


def _busy(node: Node) -> State:
    """About a third of the CPUs exclusive in scattered places, and a hundred shared containers."""
    state = State()
    for number in range(len(node.topology.online) // 12):
        of, container = _pair(1000 + number, 4 if number % 2 else 3)
        state = decide(node, state, nri.CreateContainer(of, container)).state
    for number in range(SHARED):
        of, container = _pair(5000 + number, 0)
        state = decide(node, state, nri.CreateContainer(of, container)).state
        state = decide(node, state, nri.StartContainer(of, container)).state
    return state


def _pair(number: int, cpu: int) -> tuple[Pod, Container]:
    """A pod of one container: Guaranteed with exclusive CPUs, BestEffort without any."""
    parent = f"/kubepods/poduid{number}" if cpu else f"/kubepods/besteffort/poduid{number}"
    of = Pod(f"sandbox{number}", f"pod{number}", f"uid{number}", cgroup_parent=parent, pid=1)
    resources = Resources(cpu_shares=max(2, cpu * 1024))
    path = f"{parent}/{number}"
    return of, Container(f"container{number}", of.id, "app", resources=resources, cgroups_path=path)
