"""How the time of a whole decision grows with NUMA nodes and CPUs, and what prefer-closest costs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from nri_plugin.model.options import Node, Options, TopologyManagerPolicy, UncoreCacheFit
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import CPUTables, cpu_tables
from nri_plugin.policy.cpu_policy import cpu_hint_sets
from nri_plugin.policy.hints import Provider
from nri_plugin.policy.memory_assignment import memory_hint_sets
from nri_plugin.policy.memory_state import MemoryState, memory_machine, memory_state
from nri_plugin.policy.merge import merge
from nri_plugin.policy.search.mask_order import Distances, distances_of
from nri_plugin.simulator.machine.machine import build_topology, parse
from tests.bench.decisions import timed
from tests.bench.figures import Figure
from tests.bench.svg import Line, Panel, chart

NODES = (2, 4, 8, 16, 32, 64)
CPUS = (16, 64, 256, 1024, 4096)
CPUS_BESIDE_NODES = 256
NODES_BESIDE_CPUS = 8
TIMES_US = (100, 1_000, 10_000, 100_000)

RULES = {
    "kubelet's order": Options(prefer_align_cpus_by_uncore_cache=True),
    "best fit": Options(uncore_cache_fit=UncoreCacheFit.BEST),
    "kubelet's order, closest nodes": Options(
        prefer_align_cpus_by_uncore_cache=True, prefer_closest_numa_nodes=True
    ),
}


def figures(rounds: int) -> Iterator[Figure]:
    """Each rule on machines of 256 CPUs with 2 to 64 nodes, and of 8 nodes with 16 to 4,096 CPUs."""
    sizes = [(CPUS_BESIDE_NODES, nodes) for nodes in NODES] + [(cpus, NODES_BESIDE_CPUS) for cpus in CPUS]
    for rule, options in RULES.items():
        for cpus, nodes in dict.fromkeys(sizes):
            yield timed(name(cpus, nodes, rule), node(cpus, nodes, options), rounds)


def name(cpus: int, nodes: int, rule: str) -> str:
    """What a figure is called."""
    return f"decision, {cpus} CPUs, {nodes} NUMA nodes, {rule}"


def node(cpus: int, nodes: int, options: Options) -> Node:
    """Two sockets, SMT 2, two caches a NUMA node where it has two cores."""
    caches = 2 if cpus // nodes >= 4 else 1
    text = (
        f"2 sockets, {nodes // 2} NUMA nodes each, {caches} L3 each, {cpus // nodes // caches // 2} cores each, "
        "SMT 2\nmemory 64Gi each\ndistances " + ("socket 12 " if nodes > 2 else "") + "remote 32\n"
    )
    best_effort = replace(options, topology_manager_policy=TopologyManagerPolicy.BEST_EFFORT)
    return Node(build_topology(parse(text, "bench")), best_effort, CPUSet.of(0, 1))


def ratios(rounds: int) -> Iterator[str]:
    """The merge alone, of CPU and memory hint sets on a third full machine, with distances and without."""
    yield "merge of 2 providers with prefer-closest-numa-nodes, p50 us and as a multiple of the merge without"
    for nodes in NODES:
        on = node(CPUS_BESIDE_NODES, nodes, Options())
        tables = cpu_tables(on.topology)
        count = CPUS_BESIDE_NODES * 3 // 8 + 1
        free = CPUSet.from_ids(cpu for cpu in on.allocatable if cpu % 3)
        hint_sets = partial(_hint_sets, tables, count, free, memory_state(memory_machine(on.topology)))
        distances = distances_of(on.topology)
        with_it = _merge_us(hint_sets, on, distances, rounds)
        ratio = with_it / _merge_us(hint_sets, on, None, rounds)
        yield f"  {CPUS_BESIDE_NODES} CPUs, {nodes:2} NUMA nodes  {with_it:8.1f}  {ratio:5.2f}"


def _hint_sets(tables: CPUTables, count: int, free: CPUSet, state: MemoryState) -> list[Provider]:
    return [cpu_hint_sets(tables, count, free), memory_hint_sets(state, {"memory": 100 << 30})]


def _merge_us(
    hint_sets: Callable[[], list[Provider]], on: Node, distances: Distances | None, rounds: int
) -> float:
    """Every sample merges hint sets of its own: they remember what a merge has worked out from them."""
    took = []
    for _ in range(rounds):
        providers = hint_sets()
        began = time.perf_counter_ns()
        merge(TopologyManagerPolicy.BEST_EFFORT, on.topology.node_mask, providers, distances=distances)
        took.append(time.perf_counter_ns() - began)
    return median(took) / 1e3


def plot(measured: list[Figure], file: Path) -> None:
    """Two panels: against NUMA nodes and against CPUs."""
    by_name = {figure.what: figure.p50 for figure in measured}

    def panel(title: str, x_name: str, sizes: list[tuple[int, int]], axis: int) -> Panel:
        lines = [Line(rule, [(size[axis], by_name[name(*size, rule)]) for size in sizes]) for rule in RULES]
        ticks = [size[axis] for size in sizes]
        return Panel(title, x_name, "time of a decision, us (p50)", ticks, TIMES_US, lines)

    against_nodes = [(CPUS_BESIDE_NODES, nodes) for nodes in NODES]
    against_cpus = [(cpus, NODES_BESIDE_CPUS) for cpus in CPUS]
    panels = [
        panel(f"{CPUS_BESIDE_NODES} CPUs", "NUMA nodes", against_nodes, 1),
        panel(f"{NODES_BESIDE_CPUS} NUMA nodes", "CPUs", against_cpus, 0),
    ]
    file.write_text(chart("Time of a whole decision", panels), "utf-8")
