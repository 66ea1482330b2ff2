"""The same pods in other orders: how much of a result is luck."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from random import Random

from nri_plugin.errors import ConfigError
from nri_plugin.simulator.machine_source import SourcedMachine
from nri_plugin.simulator.simulate import Played, play, running, totals
from nri_plugin.simulator.simulate_config import Chosen
from nri_plugin.simulator.simulate_plan import Plan
from nri_plugin.simulator.simulate_room import pod_requests
from nri_plugin.simulator.simulation import OrderRow
from nri_plugin.simulator.steps import Run


class Order(StrEnum):
    """In which order pods come."""

    FILE = "file"
    LARGE_FIRST = "large-first"
    """By CPUs, then memory."""
    SMALL_FIRST = "small-first"
    SHUFFLE = "shuffle"


def ordered(plan: Plan, order: Order, seed: int) -> Plan:
    """The plan with its pods in another order.

    Raises:
        ConfigError: the plan has steps that depend on their order.
    """
    if order is Order.FILE:
        return plan
    runs = _runs(plan)
    if order is Order.SHUFFLE:
        Random(seed).shuffle(runs)  # noqa: S311 - nothing secret is shuffled
    else:
        runs.sort(key=_size, reverse=order is Order.LARGE_FIRST)
    return replace(plan, steps=tuple(runs))


def other_orders(
    machine: SourcedMachine, plan: Plan, chosen: Chosen, seeds: Iterable[int], *, seed: int | None = None
) -> Iterator[OrderRow]:
    """A row for the plan as it is, then one for each shuffle.

    Args:
        machine: where.
        plan: in the order that is compared with.
        chosen: with which configuration.
        seeds: of the shuffles.
        seed: of the plan's own order, None where it is none.
    """
    yield _row(play(machine, plan, chosen), seed)
    for one in seeds:
        yield _row(play(machine, ordered(plan, Order.SHUFFLE, one), chosen), one)


def _row(played: Played, seed: int | None) -> OrderRow:
    total = totals(played, running(played))
    return OrderRow(
        seed=seed,
        pods_placed=total.pods_placed,
        containers_exclusive=total.containers_exclusive,
        exclusive_cpus=total.exclusive_cpus,
        aligned_numa_node=total.aligned_numa_node,
        aligned_uncore_cache=total.aligned_uncore_cache,
        fragmentation_numa=total.fragmentation_numa,
    )


def _runs(plan: Plan) -> list[Run]:
    runs = [step for step in plan.steps if isinstance(step, Run)]
    if len(runs) < len(plan.steps):
        raise ConfigError(
            plan.file, "has steps that depend on their order; give it pods alone to try other orders"
        )
    return runs


def _size(run: Run) -> tuple[int, int]:
    requests = pod_requests(run.pod)
    return requests.get("cpu", 0), requests.get("memory", 0)


Spread = tuple[str, float, float, float, float]
"""A figure, in the plan's own order, and over the shuffles its least, its middle and its most."""


def spread(rows: Sequence[OrderRow]) -> list[Spread]:
    """The figures over all orders; the first row is the plan's own."""
    own, *others = rows
    figures: dict[str, Callable[[OrderRow], float]] = {
        "pods placed": lambda row: row.pods_placed,
        "exclusive CPUs": lambda row: row.exclusive_cpus,
        "aligned to a NUMA node": lambda row: row.aligned_numa_node,
        "aligned to an uncore cache": lambda row: row.aligned_uncore_cache,
    }
    found = []
    for name, read in figures.items():
        values = sorted(map(read, others))
        found.append((name, read(own), values[0], values[len(values) // 2], values[-1]))
    return found
