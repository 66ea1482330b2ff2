"""The merge on machines with more NUMA nodes than hints can be listed for: time, and share of exact answers."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from nri_plugin import bits
from nri_plugin.nodemask import NodeMask
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.policy.distances import Distances
from nri_plugin.policy.hints import Family, Need, Wish, smallest_size
from nri_plugin.policy.merge import merge

SIZES = (12, 16, 24, 32, 48, 64)
PROVIDERS = 3
CASES = 60
ON_A_NODE = 16


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
            results = [_one(nodes, kind, rng) for _ in range(cases)]
            took = [ms for ms, _ in results]
            exact = 100 * sum(is_exact for _, is_exact in results) / cases
            yield Row(nodes, kind, exact, median(took), max(took))


def table(found: list[Row]) -> str:
    """For eyes."""
    head = f"merge of {PROVIDERS} providers beyond 8 NUMA nodes, best-effort, {CASES} random fillings each"
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


def _one(nodes: int, kind: str, rng: random.Random) -> tuple[float, bool]:
    wishes = [_wish(nodes, str(number), rng) for number in range(PROVIDERS)]
    distances = _distances(nodes, kind, rng) if kind != "none" else None
    began = time.thread_time()
    hint = merge(
        TopologyManagerPolicy.BEST_EFFORT, NodeMask((1 << nodes) - 1), [tuple(wishes)], distances=distances
    )
    return (time.thread_time() - began) * 1e3, hint.exact


def _wish(nodes: int, name: str, rng: random.Random) -> Wish:
    free = {node: rng.randint(0, ON_A_NODE) for node in range(nodes)}
    most = list(accumulate(sorted(free.values(), reverse=True)))
    amount = rng.randint(1, max(1, most[rng.randrange(nodes // 2)]))
    narrowest = smallest_size(dict.fromkeys(free, ON_A_NODE), amount) or nodes
    return Wish(name, (), Family(bits.from_ids(free), 0, (Need(amount, free),), narrowest))


def _distances(nodes: int, kind: str, rng: random.Random) -> Distances:
    """Levels of 4, 16 and more nodes, or anything from 11 to 60."""
    rows_ = {node: {node: 10} for node in range(nodes)}
    for one in range(nodes):
        for other in range(one):
            level = 12 if one // 4 == other // 4 else 20 if one // 16 == other // 16 else 32
            rows_[one][other] = rows_[other][one] = level if kind == "hierarchical" else rng.randint(11, 60)
    return Distances(rows_)
