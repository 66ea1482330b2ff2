"""Two comparisons: the same pods under two configurations, and the same pods in other orders.

`compare` reports the gravest difference for each container, and counts of both simulations. `other_orders` plays
shuffled pods, which shows how much the result depends on the order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from operator import attrgetter
from random import Random

from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.source import SourcedMachine
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
from nri_plugin.simulator.simulate.steps import Run

# Orders of pods


class PodOrder(StrEnum):
    """The order in which the pods of a plan are created."""

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
    counted = [each.name for each in fields(OrderRow) if each.name != "seed"]
    return OrderRow(seed, **{name: getattr(total, name) for name in counted})


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


_SPREAD = frozenset({"pods_placed", "exclusive_cpus", "aligned_numa_node", "aligned_uncore_cache"})


def spread(rows: Sequence[OrderRow]) -> list[Spread]:
    """The figures over all orders; the first row is the plan's own."""
    own, *others = rows
    found = []
    for name, field, _ in _COMPARED:
        if field in _SPREAD:
            read = attrgetter(field)
            values = sorted(map(read, others))
            found.append((name, read(own), values[0], values[len(values) // 2], values[-1]))
    return found


# Two configurations


@dataclass(frozen=True, slots=True)
class ContainerDifference:
    """A container that the two configurations treat differently.

    Attributes:
        key: `NAMESPACE/POD/CONTAINER`.
        what: the gravest of `placed` (one refuses it), `kind` (another number of exclusive CPUs), `cpus`, `mems`,
            `devices` and `reason` (of the refusal).
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
    """The differences between two simulations.

    Attributes:
        configuration: (key, with the first, with the second) of the values that differ.
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
    found = (_difference(key, before.get(key), after.get(key)) for key in keys)
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
    """The gravest difference, None if there is none. Containers in the shared pool may have other CPUs."""
    for what, one, other in _aspects(before, after):
        if one != other:
            return ContainerDifference(key, what, _told(before), _told(after))
    return None


def _aspects(
    before: SimulatedContainer | None, after: SimulatedContainer | None
) -> Iterator[tuple[str, object, object]]:
    yield "placed", _runs(before), _runs(after)
    if before is None or after is None:
        return
    yield "kind", before.exclusive, after.exclusive
    yield "kind", before.is_pod_shared, after.is_pod_shared
    yield "cpus", _own_cpus(before), _own_cpus(after)
    yield "mems", before.mems, after.mems
    yield "devices", before.devices, after.devices
    if not _runs(before):
        yield "reason", before.refusal and before.refusal.reason, after.refusal and after.refusal.reason


def _own_cpus(row: SimulatedContainer) -> str:
    """CPUs of the container or of its pod; empty in the shared pool of the node."""
    return row.cpus if row.exclusive or row.is_pod_shared else ""


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
    own = f"shared pool of its pod {row.cpus}" if row.is_pod_shared else own
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


_COMPARED: tuple[tuple[str, str, bool | None], ...] = (
    ("pods placed", "pods_placed", True),
    ("pods placed in part", "pods_partly", False),
    ("pods refused", "pods_refused", False),
    ("containers with own CPUs", "containers_exclusive", None),
    ("exclusive CPUs", "exclusive_cpus", None),
    ("available CPUs", "available_cpus", None),
    ("aligned to a NUMA node", "aligned_numa_node", True),
    ("aligned to a socket", "aligned_socket", True),
    ("aligned to an uncore cache", "aligned_uncore_cache", True),
    ("on whole cores", "aligned_whole_cores", True),
)
"""Counts that are compared: name, field of `Totals`, whether more is better (None for neither)."""


def _sums(first: Simulation, second: Simulation) -> Iterator[Sum]:
    one, other = first.totals, second.totals
    for name, field, more_is_better in _COMPARED:
        yield _sum(name, getattr(one, field), getattr(other, field), more_is_better=more_is_better)
    yield _share("fragmentation by cache", one.fragmentation_numa, other.fragmentation_numa)
    yield _share("fragmentation by core", one.fragmentation_cache, other.fragmentation_cache)
    rooms = {room.shape: room for room in second.capacity}
    for room in first.capacity:
        if room.bounded and room.shape in rooms:
            name = f"more pods of {room.example or room.text}"
            yield _sum(name, room.fits, rooms[room.shape].fits, more_is_better=True)


def _sum(name: str, before: float, after: float, *, more_is_better: bool | None) -> Sum:
    if more_is_better is None or before == after:
        return Sum(name, before, after)
    return Sum(name, before, after, 2 if (after > before) is more_is_better else 1)


def _share(name: str, before: float, after: float) -> Sum:
    return replace(_sum(name, before, after, more_is_better=False), is_share=True)
