"""Two comparisons: the same pods under two configurations, and the same pods in other orders.

`compare` reports the gravest difference for each container, and figures of both simulations. `other_orders` plays
shuffled pods, which shows how much of a result is luck.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.source import SourcedMachine
from nri_plugin.simulator.scenario.steps import Run
from nri_plugin.simulator.simulate.config import Chosen
from nri_plugin.simulator.simulate.node import pod_requests
from nri_plugin.simulator.simulate.plan import PodPlan
from nri_plugin.simulator.simulate.simulate import Played, play, running, totals
from nri_plugin.simulator.simulate.simulation import (
    Configuration,
    ContainerStatus,
    OrderRow,
    SimulatedContainer,
    Simulation,
)

# Orders of pods


class PodOrder(StrEnum):
    """The order in which pods come."""

    FILE = "file"
    LARGE_FIRST = "large-first"
    """By CPUs, then memory."""
    SMALL_FIRST = "small-first"
    SHUFFLE = "shuffle"


def ordered(plan: PodPlan, order: PodOrder, seed: int) -> PodPlan:
    """The plan with its pods in another order.

    Raises:
        ConfigError: the plan has steps that depend on their order.
    """
    if order is PodOrder.FILE:
        return plan
    runs = _runs_of_orders(plan)
    if order is PodOrder.SHUFFLE:
        Random(seed).shuffle(runs)  # noqa: S311 - nothing secret is shuffled
    else:
        runs.sort(key=_size, reverse=order is PodOrder.LARGE_FIRST)
    return replace(plan, steps=tuple(runs))


def other_orders(
    machine: SourcedMachine, plan: PodPlan, chosen: Chosen, seeds: Iterable[int], *, seed: int | None = None
) -> Iterator[OrderRow]:
    """A row for the plan as it is, then one for each shuffle.

    Args:
        machine: the machine.
        plan: in the order to compare with.
        chosen: the configuration.
        seeds: of the shuffles.
        seed: of the plan's own order; None if it is not shuffled.
    """
    yield _row(play(machine, plan, chosen), seed)
    for one in seeds:
        yield _row(play(machine, ordered(plan, PodOrder.SHUFFLE, one), chosen), one)


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


def _runs_of_orders(plan: PodPlan) -> list[Run]:
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
"""Name of a figure, its value in the plan's own order, and minimum, median and maximum over the shuffles."""


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


# Two configurations


@dataclass(frozen=True, slots=True)
class ContainerDifference:
    """A container that the two configurations treat differently.

    Attributes:
        key: `NAMESPACE/POD/CONTAINER`.
        what: the gravest of `placed` (one refuses it), `kind` (not as many CPUs of its own), `cpus`, `mems`, `devices`
            and `reason` (of the refusal).
        before: with the first configuration, in words.
        after: with the second.
    """

    key: str
    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Sum:
    """One figure with both configurations.

    Attributes:
        better: 1 or 2, the one that does better; 0 for neither.
        is_share: a number from 0 to 1; else a count.
    """

    name: str
    before: float
    after: float
    better: int = 0
    is_share: bool = False


@dataclass(frozen=True, slots=True)
class SimulationComparison:
    """What differs between two simulations.

    Attributes:
        configuration: (key, with the first, with the second) of what the configurations say differently.
        containers: in the order of the scenario.
        alike: how many containers get the same.
        sums: figures, all of them.
    """

    configuration: tuple[tuple[str, str, str], ...]
    containers: tuple[ContainerDifference, ...]
    alike: int
    sums: tuple[Sum, ...]


def compare(first: Simulation, second: Simulation) -> SimulationComparison:
    """Compare two simulations of the same pods on the same machine."""
    before, after = _outcomes(first), _outcomes(second)
    keys = list(dict.fromkeys([*before, *after]))
    found = [_difference(key, before.get(key), after.get(key)) for key in keys]
    differing = tuple(one for one in found if one is not None)
    return SimulationComparison(
        configuration=tuple(_said_differently(first.configuration, second.configuration)),
        containers=differing,
        alike=len(keys) - len(differing),
        sums=tuple(_sums(first, second)),
    )


def _outcomes(one: Simulation) -> dict[str, SimulatedContainer]:
    """Every container by key: as it is now, or as it was refused or ended."""
    asked = {row.key: row for step in one.steps for row in step.containers}
    return asked | {row.key: row for row in one.containers}


def _difference(
    key: str, before: SimulatedContainer | None, after: SimulatedContainer | None
) -> ContainerDifference | None:
    """The gravest difference; other CPUs of the shared pool are none."""
    told = [_told(row) for row in (before, after)]
    for what, words in _aspects(before, after):
        if words[0] != words[1]:
            return ContainerDifference(key, what, told[0], told[1])
    return None


def _aspects(
    before: SimulatedContainer | None, after: SimulatedContainer | None
) -> Iterator[tuple[str, tuple[object, ...]]]:
    yield "placed", (_runs(before), _runs(after))
    if before is None or after is None:
        return
    yield "kind", (before.exclusive, after.exclusive)
    yield "cpus", (before.exclusive and before.cpus, after.exclusive and after.cpus)
    yield "mems", (before.mems, after.mems)
    yield "devices", (before.devices, after.devices)
    if not _runs(before):
        yield "reason", tuple(row.refusal and row.refusal.reason for row in (before, after))


def _runs(row: SimulatedContainer | None) -> bool:
    return row is not None and row.status in (ContainerStatus.PLACED, ContainerStatus.SHARED)


def _told(row: SimulatedContainer | None) -> str:
    if row is None:
        return "nothing"
    if row.refusal is not None and not _runs(row):
        return f"refused: {row.refusal.reason}"
    if not _runs(row):
        return "not created"
    own = f"{row.exclusive} CPUs {row.cpus}" if row.exclusive else "shared pool"
    return own + (f", memory of NUMA {row.mems}" if row.mems else "")


def _said_differently(first: Configuration, second: Configuration) -> Iterator[tuple[str, str, str]]:
    for key in dict.fromkeys([*first.said, *second.said]):
        one, other = first.said.get(key, ""), second.said.get(key, "")
        if one != other:
            yield key, one or "default", other or "default"
    if first.reserved != second.reserved and first.said.get("reservedSystemCPUs") == second.said.get(
        "reservedSystemCPUs"
    ):
        yield "reserved CPUs", first.reserved or "none", second.reserved or "none"


def _sums(first: Simulation, second: Simulation) -> Iterator[Sum]:
    one, other = first.totals, second.totals
    yield _sum("pods placed", one.pods_placed, other.pods_placed, more_is_better=True)
    yield _sum("pods placed in part", one.pods_partly, other.pods_partly, more_is_better=False)
    yield _sum("pods refused", one.pods_refused, other.pods_refused, more_is_better=False)
    yield _sum("containers with own CPUs", one.containers_exclusive, other.containers_exclusive)
    yield _sum("exclusive CPUs", one.exclusive_cpus, other.exclusive_cpus)
    yield _sum("available CPUs", one.available_cpus, other.available_cpus)
    yield _sum("aligned to a NUMA node", one.aligned_numa_node, other.aligned_numa_node, more_is_better=True)
    yield _sum("aligned to a socket", one.aligned_socket, other.aligned_socket, more_is_better=True)
    yield _sum(
        "aligned to an uncore cache",
        one.aligned_uncore_cache,
        other.aligned_uncore_cache,
        more_is_better=True,
    )
    yield _sum("on whole cores", one.aligned_whole_cores, other.aligned_whole_cores, more_is_better=True)
    yield _share("fragmentation by cache", one.fragmentation_numa, other.fragmentation_numa)
    yield _share("fragmentation by core", one.fragmentation_cache, other.fragmentation_cache)
    rooms = {room.shape: room for room in second.capacity}
    for room in first.capacity:
        if room.bounded and room.shape in rooms:
            name = f"more pods of {room.example or room.text}"
            yield _sum(name, room.fits, rooms[room.shape].fits, more_is_better=True)


def _sum(name: str, before: float, after: float, *, more_is_better: bool | None = None) -> Sum:
    if more_is_better is None or before == after:
        return Sum(name, before, after)
    return Sum(name, before, after, 2 if (after > before) is more_is_better else 1)


def _share(name: str, before: float, after: float) -> Sum:
    return replace(_sum(name, before, after, more_is_better=False), is_share=True)
