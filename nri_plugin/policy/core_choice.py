"""Which cores inside given caches: as few as possible are split between containers.

A core is split when a container gets some of its threads and not all. Cores are
counted by class, (threads, free threads): only these numbers decide how many
must be split, so nothing is ever tried out core by core. The count is exact
where the thread numbers of the machine's cores divide each other, which holds
wherever all threads are online and for any offline threads of SMT 2.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nri_plugin.policy.cpu_assignment import lowest_bits

CoreClass = tuple[int, int]
"""(threads, free threads) of a core."""

Counts = tuple[int, ...]
"""How many cores there are of each class, in the order of `core_classes`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a number of CPUs is made up of cores.

    Attributes:
        whole: by threads, how many wholly free cores are taken whole.
        rest: CPUs that must come from split cores.
        split: how many cores that splits, at least.
        opens: whether one of them was wholly free before.
    """

    whole: dict[int, int]
    rest: int
    split: int
    opens: bool


def core_classes(cores: Iterable[int]) -> tuple[CoreClass, ...]:
    """Every class a core of this machine can be in, larger cores and freer ones first."""
    sizes = sorted({core.bit_count() for core in cores}, reverse=True)
    return tuple((size, free) for size in sizes for free in range(size, 0, -1))


def count_cores(classes: Sequence[CoreClass], cores: Iterable[int], free: int) -> Counts:
    """The cores that have CPUs in `free`, by class."""
    found = dict.fromkeys(classes, 0)
    for core in cores:
        part = core & free
        if part:
            found[core.bit_count(), part.bit_count()] += 1
    return tuple(found.values())


def plan(classes: Sequence[CoreClass], counts: Counts, need: int) -> Plan:
    """The fewest split cores for `need` CPUs, and then none opened if that can be.

    The counts must hold `need` CPUs. Whole cores go first, the largest first: whatever else is taken
    in the place of a whole core, of smaller cores or of parts, can be exchanged for it.
    """
    whole: dict[int, int] = {}
    parts: list[tuple[int, int]] = []
    has_whole_left = False
    for (size, free), number in zip(classes, counts, strict=True):
        if free < size:
            parts.append((free, number))
            continue
        whole[size] = taken = min(number, need // size)
        need -= taken * size
        has_whole_left |= taken < number
    if not need:
        return Plan(whole, 0, 0, opens=False)
    if has_whole_left:  # its threads are more than the need, else it had been taken
        return Plan(whole, need, 1, opens=not any(number and free >= need for free, number in parts))
    return Plan(whole, need, _pieces(parts, need), opens=False)


def _pieces(parts: Iterable[tuple[int, int]], need: int) -> int:
    """How many part-free cores give `need` CPUs, the freest first."""
    pieces = 0
    for free, number in sorted(parts, reverse=True):
        taken = min(number, -(-need // free))
        pieces += taken
        need = max(0, need - taken * free)
    return pieces


def take_cores(cores: Sequence[int], free: int, chosen: Plan) -> int:
    """The CPUs of a plan out of `cores`, each time the first that will do."""
    quota = dict(chosen.whole)
    taken = 0
    for core in cores:
        size = core.bit_count()
        if quota.get(size) and not core & ~free:
            quota[size] -= 1
            taken |= core
    return taken | _take_parts([core & free & ~taken for core in cores], cores, chosen)


def _take_parts(left: Sequence[int], cores: Sequence[int], chosen: Plan) -> int:
    """The rest of a plan: the freest part-free cores, of which the last is the tightest that will do."""
    usable = [part for part, core in zip(left, cores, strict=True) if chosen.opens or part != core]
    usable.sort(key=int.bit_count)
    rest, taken = chosen.rest, 0
    while rest:
        tight = next((part for part in usable if part.bit_count() >= rest), None)
        if tight is not None:
            return taken | lowest_bits(tight, rest)
        part = usable.pop()
        taken |= part
        rest -= part.bit_count()
    return taken
