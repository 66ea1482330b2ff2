"""The best fit (uncoreCacheFit: best): the choice of CPUs that leaves the largest holes free.

Among all choices of the requested CPUs, it is the one that comes first by

    1 NUMA nodes        the fewest
    2 uncore caches     the fewest
    3 cores split       the fewest that it gets some threads of, but not all
    4 holes used        the smallest: of the free CPUs of each cache it uses, the largest as small as
                        can be, then the next; so the large holes survive for larger requests
    5 nodes used        the same for the free CPUs of each NUMA node
    6 numbers           the lowest nodes, then the lowest caches
    7 cores opened      none, where a core that is in use already will do
    8 cores             whole ones and then parts, each time the lowest in the lowest cache

The search is exact and never enumerates CPUs: nodes and caches that hold the same are one class, and cores are
counted. The number of node sets and of cache sets is bounded. Machines of today stay far below both bounds; beyond them
the tightest sets by size are taken.

The parts follow the order from the inside out: cores in given caches, caches on given nodes, nodes.

Differs: the kubelet takes the fullest place first and splits a request over caches
    although another would have held it whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, groupby, islice
from operator import add, or_

from nri_plugin.model.errors import InsufficientCPUsError, UncoreCacheAlignmentError
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import AssignmentStage, CPUTables, Note, lowest_bits

# ----------------------------------------------------------------------------------------------------
# Cores in given caches: split as few as possible.
#
# A core is split when a container gets some of its threads and not all. How many must be split depends only on how many
# cores there are of each class, (threads, free threads), so no core is tried by itself. The number is exact where
# the thread numbers of the machine's cores divide each other: where all threads are online, and for
# any offline threads of SMT 2.


CoreClass = tuple[int, int]
"""(threads, free threads) of a core."""

Counts = tuple[int, ...]
"""How many cores there are of each class, in the order of `core_classes`."""


@dataclass(frozen=True, slots=True)
class CorePlan:
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


def plan(classes: Sequence[CoreClass], counts: Counts, need: int) -> CorePlan:
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
        return CorePlan(whole, 0, 0, opens=False)
    if has_whole_left:  # its threads are more than the need, else it had been taken
        return CorePlan(whole, need, 1, opens=not any(number and free >= need for free, number in parts))
    return CorePlan(whole, need, _pieces(parts, need), opens=False)


def _pieces(parts: Iterable[tuple[int, int]], need: int) -> int:
    """How many part-free cores give `need` CPUs, the freest first."""
    pieces = 0
    for free, number in sorted(parts, reverse=True):
        taken = min(number, -(-need // free))
        pieces += taken
        need = max(0, need - taken * free)
    return pieces


def take_cores(cores: Sequence[int], free: int, chosen: CorePlan) -> int:
    """The CPUs of a plan out of `cores`, each time the first that will do."""
    quota = dict(chosen.whole)
    taken = 0
    for core in cores:
        size = core.bit_count()
        if quota.get(size) and not core & ~free:
            quota[size] -= 1
            taken |= core
    return taken | _take_parts([core & free & ~taken for core in cores], cores, chosen)


def _take_parts(left: Sequence[int], cores: Sequence[int], chosen: CorePlan) -> int:
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


# ----------------------------------------------------------------------------------------------------
# Caches on given NUMA nodes.
#
# The best choice has the fewest caches, then splits the fewest cores, then leaves the largest holes (a hole is what is
# free in a cache), then has the lowest numbers.
#
# With the fewest caches each of them is needed, so what remains free in them is less than any of them held: which holes
# survive depends on the sizes alone. So "leave the largest out while the others suffice" is the best choice by size.
# Only where it splits more cores than all caches together must, the sets of caches are searched, merged by what they
# hold, in a bounded number of steps.


STEPS = 4_000
"""How many sets of caches are tried before the choice by size is kept; about 10 ms on the machine of the bench."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What is free in an uncore cache.

    Attributes:
        number: its place in the order of caches.
        cpus: mask of its free CPUs on the NUMA nodes in question.
        free: their number, never 0.
        cores: the same by class of core.
    """

    number: int
    cpus: int
    free: int
    cores: Counts


@dataclass(frozen=True, slots=True)
class Choice:
    """Caches chosen, by ascending number; `split` is the number of cores that must be split there."""

    caches: tuple[Cache, ...]
    split: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The holes it uses, the largest first: the smaller, the larger are those left alone."""
        return tuple(sorted((cache.free for cache in self.caches), reverse=True))


def fewest_caches(caches: Sequence[Cache], need: int) -> int:
    """How many caches it takes; they must hold `need` together."""
    largest = sorted((cache.free for cache in caches), reverse=True)
    return next(number for number, total in enumerate(accumulate(largest), 1) if total >= need)


def choose_caches(
    classes: Sequence[CoreClass], caches: Sequence[Cache], need: int, steps: int = STEPS
) -> Choice:
    """The best caches for `need` CPUs, which they must hold together."""
    ordered = sorted(caches, key=lambda cache: (-cache.free, -cache.number))
    number = fewest_caches(ordered, need)
    by_size = _choice(classes, _tightest(ordered, number, need), need)
    if not by_size.split or by_size.split == _choice(classes, ordered, need).split:
        return by_size
    found = _Sets(classes, ordered, number, need, steps).best()
    return by_size if found is None else _choice(classes, found, need)


def _choice(classes: Sequence[CoreClass], caches: Sequence[Cache], need: int) -> Choice:
    counts = tuple(map(sum, zip(*(cache.cores for cache in caches), strict=True)))
    ascending = tuple(sorted(caches, key=lambda cache: cache.number))
    return Choice(ascending, plan(classes, counts, need).split)


def _tightest(ordered: Sequence[Cache], number: int, need: int) -> list[Cache]:
    """Each cache is left out, from the largest on, while those behind it suffice."""
    sums = [0, *accumulate(cache.free for cache in ordered)]
    chosen: list[Cache] = []
    for place, cache in enumerate(ordered, 1):
        upto = place + number - len(chosen)
        is_enough_behind = upto <= len(ordered) and sums[upto] - sums[place] >= need
        if not is_enough_behind:
            chosen.append(cache)
            need -= cache.free
    return chosen


class _Sets:
    """All sets of `number` caches that hold the need, those of equal content merged.

    A set's rank is one number, the sum of its caches' ranks: sizes above (how many there are of each,
    the largest size uppermost), members below (the lowest uppermost, subtracted). Smaller is better,
    and adding the same cache to two sets keeps their order; so of sets that hold the same only the
    best must be kept.
    """

    def __init__(
        self, classes: Sequence[CoreClass], ordered: Sequence[Cache], number: int, need: int, steps: int
    ) -> None:
        self.classes = classes
        self.ordered = ordered
        self.number = number
        self.need = need
        self.steps = steps
        self.sums = [0, *accumulate(cache.free for cache in ordered)]
        ascending = sorted(ordered, key=lambda cache: cache.number)
        self.bit = {cache.number: 1 << len(ordered) - 1 - place for place, cache in enumerate(ascending)}
        self.level = {free: level for level, free in enumerate(sorted({cache.free for cache in ordered}))}

    def best(self) -> list[Cache] | None:
        """The best set; None when it takes too many steps to tell."""
        sets: dict[tuple[int, int, Counts], int] = {(0, 0, (0,) * len(self.classes)): 0}
        for place, cache in enumerate(self.ordered, 1):
            self.steps -= len(sets)
            if self.steps < 0:
                return None
            sets = self._grown(sets, place, cache)
        rank = min(
            (plan(self.classes, counts, self.need).split, rank) for (_, _, counts), rank in sets.items()
        )
        return [cache for cache in self.ordered if self.bit[cache.number] & -rank[1]]

    def _grown(
        self, sets: dict[tuple[int, int, Counts], int], place: int, cache: Cache
    ) -> dict[tuple[int, int, Counts], int]:
        """The sets with and without a further cache that can still become large enough."""
        own = self._rank(cache)
        grown: dict[tuple[int, int, Counts], int] = {}
        for (size, free, counts), rank in sets.items():
            if self._can(place, size, free):
                _keep(grown, (size, free, counts), rank)
            if size < self.number and self._can(place, size + 1, free + cache.free):
                more = tuple(map(add, counts, cache.cores))
                _keep(grown, (size + 1, free + cache.free, more), rank + own)
        return grown

    def _can(self, place: int, size: int, free: int) -> bool:
        upto = place + self.number - size
        return upto <= len(self.ordered) and free + self.sums[upto] - self.sums[place] >= self.need

    def _rank(self, cache: Cache) -> int:
        width = len(self.ordered)
        size = 1 << self.level[cache.free] * width.bit_length()
        return (size << width) - self.bit[cache.number]


def _keep(sets: dict[tuple[int, int, Counts], int], holds: tuple[int, int, Counts], rank: int) -> None:
    if rank < sets.get(holds, rank + 1):
        sets[holds] = rank


# ----------------------------------------------------------------------------------------------------
# NUMA nodes, and the choice.

NODE_SETS = 256
"""How many sets of NUMA nodes are tried; of eight nodes there are at most 70 of one size."""


def take_best_fit(tables: CPUTables, available: CPUSet, count: int, *, note: Note | None = None) -> CPUSet:
    """`count` CPUs out of `available`; nothing for a count of zero or less. `note` is told of the caches.

    Raises:
        InsufficientCPUsError: fewer CPUs are available than asked for.
    """
    if count <= 0:
        return CPUSet()
    machine = _Machine(tables, available.mask & tables.online)
    if machine.free.bit_count() < count:
        raise InsufficientCPUsError(count, len(available))
    cpus = machine.take(machine.best(count).caches, count)
    if note:
        note(AssignmentStage.BEST_FIT, cpus)
    return CPUSet(cpus)


def take_in_one_cache(
    tables: CPUTables, available: CPUSet, count: int, *, note: Note | None = None
) -> CPUSet:
    """The best fit in one uncore cache (the option strictUncoreCache); `note` is told which.

    Raises:
        InsufficientCPUsError: fewer CPUs are available than asked for.
        UncoreCacheAlignmentError: no cache has that many; says how many the largest hole has.
    """
    cpus = take_best_fit(tables, available, count)
    if sum(1 for cache in tables.cores_in_cache if cache & cpus.mask) <= 1:
        return _noted(cpus, note)
    holes = [available.mask & cache for cache in tables.cores_in_cache]
    tight = min((hole for hole in holes if hole.bit_count() >= count), key=int.bit_count, default=0)
    if not tight:  # else a cache wider than a NUMA node has room where no node has it
        raise UncoreCacheAlignmentError(
            count, max(map(int.bit_count, holes)), max(map(int.bit_count, tables.cores_in_cache))
        )
    return _noted(take_best_fit(tables, CPUSet(tight), count), note)


def _noted(cpus: CPUSet, note: Note | None) -> CPUSet:
    if note:
        note(AssignmentStage.ONE_CACHE, cpus.mask)
    return cpus


@dataclass(frozen=True, slots=True)
class _NodeSpace:
    """What is free on a NUMA node.

    Attributes:
        number: its place in the order of nodes.
        cpus: all its CPUs.
        free: how many of them are free, never 0.
        caches: what is free in its caches.
        alike: equal for nodes with the same free CPUs.
    """

    number: int
    cpus: int
    free: int
    caches: tuple[Cache, ...]
    alike: tuple[tuple[int, Counts], ...]


def node_sets(nodes: Sequence[_NodeSpace], size: int, need: int) -> Iterator[tuple[_NodeSpace, ...]]:
    """Every set of `size` nodes that holds `need`, but of equal ones only the lowest.

    Fewer nodes than `size` must not hold it. The larger a node the later it is used, so the first set is the tightest.
    """
    ordered = sorted(nodes, key=lambda node: (-node.free, node.alike, node.number))
    groups = [list(members) for _, members in groupby(ordered, key=lambda node: (node.free, node.alike))]
    yield from _sets(groups, size, need)


def _sets(groups: Sequence[Sequence[_NodeSpace]], size: int, need: int) -> Iterator[tuple[_NodeSpace, ...]]:
    if not size:
        yield ()
        return
    alike, others = groups[0], groups[1:]
    largest = [node.free for members in others for node in members]
    for taken in range(min(size, len(alike)) + 1):
        rest = need - taken * alike[0].free
        if sum(largest[: size - taken]) >= rest:
            for tail in _sets(others, size - taken, rest):
                yield (*alike[:taken], *tail)


class _Machine:
    """A machine and what is free on it, counted."""

    def __init__(self, tables: CPUTables, free: int) -> None:
        self.tables = tables
        self.free = free
        self.classes = core_classes(tables.cores)
        self.numbers = {cache: number for number, cache in enumerate(tables.cores_in_cache)}

    def best(self, count: int) -> Choice:
        """The best caches on the best nodes."""
        nodes = self._nodes()
        totals = accumulate(sorted((node.free for node in nodes), reverse=True))
        size = next(number for number, total in enumerate(totals, 1) if total >= count)
        if size > 1 and all(len(node.caches) == 1 and node.alike[0][0] > 0 for node in nodes):
            return self._nodes_as_caches(nodes, count)
        sets = [(of, self._caches(of)) for of in islice(node_sets(nodes, size, count), NODE_SETS)]
        fewest = [fewest_caches(caches, count) for _, caches in sets]
        least = min(fewest)
        found = [
            (choose_caches(self.classes, caches, count), of)
            for number, (of, caches) in zip(fewest, sets, strict=True)
            if number == least
        ]
        return min(found, key=_rank)[0]

    def _nodes_as_caches(self, nodes: Sequence[_NodeSpace], count: int) -> Choice:
        """The best choice where each node is one cache: no set of nodes need be listed."""
        of_node = {node.number: cache for node in nodes for cache in node.caches}
        renamed = [replace(cache, number=number) for number, cache in of_node.items()]
        found = choose_caches(self.classes, renamed, count)
        return replace(found, caches=tuple(of_node[cache.number] for cache in found.caches))

    def _nodes(self) -> list[_NodeSpace]:
        nodes = []
        for number, cpus in enumerate(self.tables.node_sets):
            free = (cpus & self.free).bit_count()
            if free:
                caches = self._caches_on(cpus, self.tables.caches_in[cpus])
                is_apart = all(cache & ~cpus == 0 for cache in self.tables.caches_in[cpus])
                alike = sorted((cache.free, cache.cores) for cache in caches) if is_apart else [(-number, ())]
                nodes.append(_NodeSpace(number, cpus, free, caches, tuple(alike)))
        return nodes

    def _caches(self, nodes: Sequence[_NodeSpace]) -> tuple[Cache, ...]:
        if len(nodes) == 1:
            return nodes[0].caches
        masks = {mask for node in nodes for mask in self.tables.caches_in[node.cpus]}
        return self._caches_on(reduce(or_, (node.cpus for node in nodes)), masks)

    def _caches_on(self, nodes: int, masks: Iterable[int]) -> tuple[Cache, ...]:
        """What is free in these caches on the nodes with these CPUs."""
        found = []
        for mask in masks:
            cpus = mask & nodes & self.free
            if cpus:
                cores = count_cores(self.classes, self.tables.cores_in_cache[mask], cpus)
                found.append(Cache(self.numbers[mask], cpus, cpus.bit_count(), cores))
        return tuple(found)

    def take(self, caches: Sequence[Cache], count: int) -> int:
        """The CPUs, from the cores of the chosen caches, cache by cache."""
        masks = tuple(self.numbers)
        cores = list(
            dict.fromkeys(core for of in caches for core in self.tables.cores_in_cache[masks[of.number]])
        )
        cpus = reduce(or_, (cache.cpus for cache in caches))
        counts = tuple(map(sum, zip(*(cache.cores for cache in caches), strict=True)))
        return take_cores(cores, cpus, plan(self.classes, counts, count))


def _rank(found: tuple[Choice, Sequence[_NodeSpace]]) -> tuple[object, ...]:
    choice, nodes = found
    free = sorted((node.free for node in nodes), reverse=True)
    numbers = sorted(node.number for node in nodes)
    return choice.split, choice.sizes, free, numbers, [cache.number for cache in choice.caches]
