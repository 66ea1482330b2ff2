"""Churn on machines with split caches: who is spread over more uncore caches than it needs.

Containers come and go by a fixed seed; both rules see the same containers come and the same ones go.
A container is counted when the CPUs it is given lie in more caches than an empty machine would need.

First fit is the kubelet's rule with prefer-align-cpus-by-uncorecache. Two settings: without the Topology
Manager, where the fit alone makes the difference, and with its policy best-effort, where the rules pick
the NUMA node too: topologyTieBreak packed, as the kubelet, against best-fit.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from nri_plugin.model.options import Options, TopologyManagerPolicy, TopologyTieBreak, UncoreCacheFit
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import CPUTables, cpu_tables
from nri_plugin.policy.cpu_policy import allocate_cpus, cpu_hint_sets
from nri_plugin.policy.merge import merge
from nri_plugin.policy.search.mask_order import tie_break
from nri_plugin.simulator.machine.machine import build_topology, shipped
from tests.bench.svg import Line, Panel, chart

UTILISATION = (60, 70, 80, 90)
SEEDS, QUICK_SEEDS = 50, 10
WARM_UP = 100
COUNTED = 200
SIZES = (1, 1, 2, 2, 2, 3, 4, 4, 4, 6, 8, 8, 12, 16)
"""CPUs asked for, each as likely: mostly small, some as large as a cache, few larger."""

STUDENT_95 = {QUICK_SEEDS: 2.262, SEEDS: 2.010}
"""Two-sided 95 % quantile of Student's distribution, by the number of values."""

POLICIES = (TopologyManagerPolicy.NONE, TopologyManagerPolicy.BEST_EFFORT)

Take = Callable[[CPUTables, CPUSet, int], CPUSet]
Spread = tuple[float, float, float]
"""Per cent of the containers that span more uncore caches than they need, more NUMA nodes, more of either."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and half the width of its 95 % interval."""

    value: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        return cls(fmean(values), STUDENT_95[len(values)] * stdev(values) / math.sqrt(len(values)))

    def __str__(self) -> str:
        return f"{self.value:6.2f} +-{self.half:5.2f}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One machine at one utilisation under one topology policy.

    Attributes:
        policy: of the Topology Manager.
        machine: its name.
        utilisation: per cent of the CPUs that are exclusive, at most.
        first: per cent that span too many caches with first fit.
        best: with best fit.
        difference: best - first, seed by seed; below zero is better.
        nodes: per cent that span too many NUMA nodes, first fit and best fit.
        either: per cent that span too many caches or too many nodes, first fit and best fit.
        either_difference: best - first of these, seed by seed.
    """

    policy: TopologyManagerPolicy
    machine: str
    utilisation: int
    first: Mean
    best: Mean
    difference: Mean
    nodes: tuple[float, float]
    either: tuple[float, float]
    either_difference: Mean

    @property
    def fewer(self) -> str:
        """How much fewer with best fit, per cent of first fit."""
        return f"{100 * (1 - self.best.value / self.first.value):.0f}" if self.first.value else "-"

    @property
    def verdict(self) -> str:
        """By caches alone."""
        return _verdict(self.difference)

    @property
    def either_verdict(self) -> str:
        """By caches and nodes."""
        return _verdict(self.either_difference)


def _verdict(difference: Mean) -> str:
    """Whether zero is outside the interval of the difference."""
    if difference.value - difference.half > 0:
        return "WORSE"
    return "fewer" if difference.value + difference.half < 0 else "alike"


def cells(seeds: int = SEEDS) -> Iterator[Cell]:
    """Every policy, machine and utilisation."""
    for policy in POLICIES:
        for name, tables in machines().items():
            for utilisation in UTILISATION:
                runs = [
                    [_run(tables, utilisation, seed, take) for seed in range(seeds)] for take in rules(policy)
                ]
                yield _cell(policy, name, utilisation, *runs)


def machines() -> dict[str, CPUTables]:
    """The shipped machines on which some NUMA node has CPUs of two caches."""
    tables = {name: cpu_tables(build_topology(of)) for name, of in shipped().items()}
    return {
        name: one for name, one in tables.items() if any(len(caches) > 1 for caches in one.caches_in.values())
    }


def rules(policy: TopologyManagerPolicy) -> tuple[Take, Take]:
    """First fit and best fit."""
    first = Options(topology_manager_policy=policy, prefer_align_cpus_by_uncore_cache=True)
    best = Options(
        topology_manager_policy=policy,
        uncore_cache_fit=UncoreCacheFit.BEST,
        topology_tie_break=TopologyTieBreak.BEST_FIT,
    )
    return partial(_take, first), partial(_take, best)


def _take(options: Options, tables: CPUTables, available: CPUSet, count: int) -> CPUSet:
    """The product's own steps: hints, merge, assignment."""
    hint = merge(
        options.topology_manager_policy,
        NodeMask(tables.nodes_of(tables.online)),
        [cpu_hint_sets(tables, count, available)],
        tie_break=tie_break(options.topology_tie_break, tables, available, count),
    )
    return allocate_cpus(tables, count, available, hint.affinity, options=options)


def _cell(
    policy: TopologyManagerPolicy,
    name: str,
    utilisation: int,
    first: Sequence[Spread],
    best: Sequence[Spread],
) -> Cell:
    def change(kind: int) -> Mean:
        return Mean.of([one[kind] - other[kind] for one, other in zip(best, first, strict=True)])

    def means(kind: int) -> tuple[float, float]:
        return fmean(run[kind] for run in first), fmean(run[kind] for run in best)

    caches = [Mean.of([run[0] for run in runs]) for runs in (first, best)]
    return Cell(policy, name, utilisation, caches[0], caches[1], change(0), means(1), means(2), change(2))


def _run(tables: CPUTables, utilisation: int, seed: int, take: Take) -> Spread:
    """One life of the machine."""
    rng = random.Random(f"{seed} {utilisation}")
    free = tables.online & ~1  # a CPU for the system
    least_free = tables.online.bit_count() * (100 - utilisation) / 100
    running: list[int] = []
    caches = nodes = either = placed = 0
    while placed < WARM_UP + COUNTED:
        size = rng.choice(SIZES)
        while running and free.bit_count() - size < least_free:
            free |= running.pop(rng.randrange(len(running)))
        if free.bit_count() < size:
            continue
        cpus = take(tables, CPUSet(free), size).mask
        free &= ~cpus
        running.append(cpus)
        placed += 1
        if placed > WARM_UP:
            by_cache = _spans_too_many(tuple(tables.cores_in_cache), cpus)
            by_node = _spans_too_many(tables.node_sets, cpus)
            caches, nodes, either = caches + by_cache, nodes + by_node, either + (by_cache or by_node)
    return 100 * caches / COUNTED, 100 * nodes / COUNTED, 100 * either / COUNTED


def _spans_too_many(units: Sequence[int], cpus: int) -> bool:
    """Whether `cpus` lie in more units than so many CPUs take on an empty machine."""
    needs, left = 0, cpus.bit_count()
    for size in sorted(map(int.bit_count, units), reverse=True):
        if left <= 0:
            break
        left -= size
        needs += 1
    return sum(1 for unit in units if unit & cpus) > needs


def table(found: Sequence[Cell]) -> str:
    """Every cell, and all machines together at each utilisation."""
    lines = [
        "per cent of containers that span more uncore caches than they need: mean and 95 % interval; behind it the same",
        "for NUMA nodes, and for caches or nodes (first fit > best fit). The best fit is asked for the fewest NUMA nodes",
        "first and the fewest caches then. Where no Topology Manager picks the node (none), it may therefore take three",
        "caches of one node where first fit takes two whole ones on two nodes: such a cell is WORSE by caches because it",
        "is better by nodes (tests/unit/policy/test_best_fit.py shows it on eight CPUs). With best-effort both rules",
        "stay on the nodes of the hint, and the difference is the rule's alone.",
    ]
    for policy in POLICIES:
        lines += [
            "",
            f"topologyManagerPolicy: {policy}",
            _row("", "%", "first fit", "best fit", "difference", "fewer"),
        ]
        of_policy = [cell for cell in found if cell.policy is policy]
        lines += [
            _row(one.machine, one.utilisation, one.first, one.best, one.difference, f"{one.fewer:>4} %")
            + f"  {one.verdict}  nodes {one.nodes[0]:.1f} > {one.nodes[1]:.1f}"
            + f"  either {one.either[0]:.1f} > {one.either[1]:.1f} {one.either_verdict}"
            for one in of_policy
        ]
        lines += [*_together(of_policy), *_in_words(of_policy)]
    return "\n".join(lines)


def _together(of_policy: Sequence[Cell]) -> Iterator[str]:
    for utilisation in UTILISATION:
        some = [cell for cell in of_policy if cell.utilisation == utilisation]
        first, best = fmean(cell.first.value for cell in some), fmean(cell.best.value for cell in some)
        fewer = f"{100 * (1 - best / first):4.0f} %" if first else "-"
        worse = sum(cell.verdict == "WORSE" for cell in some)
        yield _row(
            "all machines", utilisation, f"{first:6.2f}", f"{best:6.2f}", f"{best - first:6.2f}", fewer
        ) + (f"  {worse} of {len(some)} significantly worse")


def _in_words(of_policy: Sequence[Cell]) -> Iterator[str]:
    """What the cells come to, the bad ones by name."""
    worse = [cell for cell in of_policy if cell.verdict == "WORSE"]
    names = ", ".join(f"{cell.machine} at {cell.utilisation} %" for cell in worse)
    by_either = sum(cell.either_verdict == "WORSE" for cell in of_policy)
    yield f"significantly worse by caches: {len(worse)} of {len(of_policy)} cells" + (
        f" ({names})" if worse else ""
    )
    yield f"significantly worse by caches or nodes: {by_either} of {len(of_policy)} cells"


def _row(*columns: object) -> str:
    return "{:38} {:>2}  {:15} {:15} {:15} {}".format(*map(str, columns))


def plot(found: Sequence[Cell], file: Path) -> None:
    """A panel for each policy and machine, bars for the intervals."""
    panels = [
        Panel(
            f"{name} ({policy})",
            "utilisation, %",
            "containers on too many caches, %",
            UTILISATION,
            (0, 10, 20, 30, 40),
            [
                _as_line(rule, [one for one in found if (one.policy, one.machine) == (policy, name)])
                for rule in ("first fit", "best fit")
            ],
            is_log=False,
        )
        for name in dict.fromkeys(cell.machine for cell in found)
        for policy in POLICIES
    ]
    file.write_text(chart("Churn: containers on more uncore caches than they need", panels), "utf-8")


def _as_line(rule: str, some: Sequence[Cell]) -> Line:
    means = [cell.first if rule == "first fit" else cell.best for cell in some]
    points = [(cell.utilisation, mean.value) for cell, mean in zip(some, means, strict=True)]
    return Line(rule, points, [mean.half for mean in means])
