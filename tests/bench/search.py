"""The merge on machines with more NUMA nodes than hints can be listed for: time, and share of exact answers.

Two tables. One of free providers with random offers, for distances of every kind. One of the CPU and memory
providers on machines that are partly full: built in levels, shipped, and recorded ones.
"""

import gc
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median

from nri_plugin.host.sysfs import read_topology
from nri_plugin.model import bits
from nri_plugin.model.options import TopologyManagerPolicy, TopologyTieBreak
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.topology import Topology
from nri_plugin.policy.hints import HintRule, HintSet, Need, smallest_size
from nri_plugin.policy.merge import MergedHint, merge
from nri_plugin.policy.search.mask_order import Distances, tie_break
from nri_plugin.simulator.machine.machine import build_topology, shipped
from tests.bench.fillings import Filled, fillings, levels
from tests.oracles.recordings import RecordedFiles, read_recording

SIZES = (12, 16, 24, 32, 48, 64)
PROVIDERS = 3
CASES = 60
QUICK_CASES = 12
FEW_NODES = 8
ON_A_NODE = 16


Result = tuple[float, bool]
"""Milliseconds of CPU time, and whether the hint was exact."""


@dataclass(frozen=True, slots=True)
class Row:
    """Merges on machines of one size and kind of distances; milliseconds of CPU time."""

    nodes: int
    distances: str
    exact_percent: float
    p50_ms: float
    worst_ms: float


def rows(cases: int = CASES) -> Iterator[Row]:
    """No distances, distances in levels as machines have them, and random ones."""
    for nodes in SIZES:
        for kind in ("none", "hierarchical", "random"):
            rng = random.Random(f"{nodes} {kind}")
            yield Row(nodes, kind, *_summary([_one(nodes, kind, rng) for _ in range(cases)]))


def table(found: list[Row], cases: int = CASES) -> str:
    """For eyes."""
    head = f"merge of {PROVIDERS} providers beyond 8 NUMA nodes, best-effort, {cases} random fillings each"
    lines = [
        head,
        "(CPU time; not exact: the hint says so, a better one may exist)",
        f"{'nodes':>5}  {'distances':14} {'exact':>7} {'p50 ms':>8} {'worst ms':>9}",
    ]
    lines += [
        f"{row.nodes:5}  {row.distances:14} {row.exact_percent:5.0f} % {row.p50_ms:8.2f} {row.worst_ms:9.2f}"
        for row in found
    ]
    return "\n".join(lines)


def machines(cases: int = CASES) -> Iterator[str]:
    """A line for each machine and tie break; those of few nodes together."""
    yield f"merge of CPU and memory hint sets, closest nodes preferred, best-effort, {cases} random fillings each"
    yield f"{'':32} {'nodes':>5}  {'tie break':9} {'exact':>7} {'p50 ms':>8} {'worst ms':>9}"
    for rule in TopologyTieBreak:
        few: list[Result] = []
        for name, topology in _topologies():
            results = [_merged(filled, rule) for filled in fillings(topology, cases, name)]
            if len(topology.node_ids) <= FEW_NODES:
                few += results
            else:
                yield _line(name, str(len(topology.node_ids)), rule, results)
        yield _line("all others, shipped and recorded", f"1-{FEW_NODES}", rule, few)


def _topologies() -> Iterator[tuple[str, Topology]]:
    for nodes in (10, *SIZES):
        yield f"{nodes} nodes in levels", levels(nodes)
    for nodes in (32, 64):
        yield f"{nodes} nodes on two planes", levels(nodes, crossing=4)
    for name, text in shipped().items():
        yield name, build_topology(text)
    recorded = Path(os.environ.get("NRI_PIN_MACHINES") or "/nowhere")
    for file in sorted(recorded.glob("*.json.gz")):
        yield file.name.removesuffix(".json.gz"), read_topology(RecordedFiles(read_recording(file)))


def _merged(filled: Filled, rule: TopologyTieBreak) -> Result:
    broken = tie_break(rule, filled.tables, filled.free, filled.count)
    if filled.distances is not None:
        _ = filled.distances.tree  # worked out once per machine
    return _timed(
        lambda: merge(
            TopologyManagerPolicy.BEST_EFFORT,
            filled.nodes,
            filled.hint_sets,
            distances=filled.distances,
            tie_break=broken,
        )
    )


def _timed(merged: Callable[[], MergedHint]) -> Result:
    """Garbage is not looked for meanwhile: the agent does that by the clock, beside decisions."""
    gc.disable()
    began = time.thread_time()
    hint = merged()
    took = (time.thread_time() - began) * 1e3
    gc.enable()
    return took, hint.exact


def _line(name: str, nodes: str, rule: TopologyTieBreak, results: Iterable[Result]) -> str:
    exact, p50, worst = _summary(list(results))
    return f"{name:32} {nodes:>5}  {rule.value:9} {exact:5.0f} % {p50:8.2f} {worst:9.2f}"


def _summary(results: list[Result]) -> tuple[float, float, float]:
    """Share of exact answers in percent, median and worst time."""
    took = [ms for ms, _ in results]
    return 100 * sum(is_exact for _, is_exact in results) / len(results), median(took), max(took)


def _one(nodes: int, kind: str, rng: random.Random) -> Result:
    hint_sets = [_hint_set(nodes, str(number), rng) for number in range(PROVIDERS)]
    distances = _distances(nodes, kind, rng) if kind != "none" else None
    if distances is not None:
        _ = distances.tree  # worked out once per machine
    every = NodeMask((1 << nodes) - 1)
    return _timed(
        lambda: merge(TopologyManagerPolicy.BEST_EFFORT, every, [tuple(hint_sets)], distances=distances)
    )


def _hint_set(nodes: int, name: str, rng: random.Random) -> HintSet:
    free = {node: rng.randint(0, ON_A_NODE) for node in range(nodes)}
    most = list(accumulate(sorted(free.values(), reverse=True)))
    amount = rng.randint(1, max(1, most[rng.randrange(nodes // 2)]))
    narrowest = smallest_size(dict.fromkeys(free, ON_A_NODE), amount) or nodes
    return HintSet(name, (), HintRule(bits.from_ids(free), 0, (Need(amount, free),), narrowest))


def _distances(nodes: int, kind: str, rng: random.Random) -> Distances:
    """Levels of 4, 16 and more nodes, or anything from 11 to 60."""
    rows_ = {node: {node: 10} for node in range(nodes)}
    for one in range(nodes):
        for other in range(one):
            level = 12 if one // 4 == other // 4 else 20 if one // 16 == other // 16 else 32
            rows_[one][other] = rows_[other][one] = level if kind == "hierarchical" else rng.randint(11, 60)
    return Distances(rows_)
