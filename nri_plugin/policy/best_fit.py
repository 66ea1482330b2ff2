"""The best fit (uncoreCacheFit: best): the choice of CPUs that leaves the largest holes free.

The kubelet takes the fullest place first and goes on to the next place with the rest. So it may split a request over two
caches although a third one holds all of it. The best fit compares all choices. Of these it takes the first by

    1 NUMA nodes        the fewest
    2 uncore caches     the fewest
    3 cores split       the fewest of which the container gets some threads and not all
    4 holes used        the smallest: of the free CPUs of each cache that it uses, the largest number as small as
                        possible, then the next; so the large holes survive for larger requests
    5 nodes used        the same for the free CPUs of each NUMA node
    6 numbers           the lowest nodes, then the lowest caches
    7 cores opened      none, where a core that is in use already has enough free threads
    8 cores             whole ones and then parts, each time the lowest in the lowest cache

A hole is the set of free CPUs of one cache. Example: 4 CPUs are wanted, and caches 0 to 2 have 8, 6 and 4 free CPUs. By
number the first whole cores are those of cache 0. The best fit takes cache 2, and leaves holes of 8 and 6.

The choice is exact, and no set of CPUs is ever listed. It is made from the outside in, and each step reduces what the
next one has to compare:

    nodes     sets of the fewest NUMA nodes that hold the request; nodes with equal caches count as one (node_sets)
    caches    on each such set, the fewest caches: by size, else by a search over sets (choose_caches)
    cores     in these caches, how many whole cores and parts: cores are counted by class (plan)
    CPUs      the lowest cores that make up these numbers (take_cores)

The number of node sets and of cache sets is bounded. Machines of today stay far below both bounds; beyond them
the tightest sets by size are taken. The code below goes from the inside out, since each part uses the one before.

Differs: the kubelet takes the fullest place first, and splits a request over caches although another one
    holds all of it; here: `uncoreCacheFit: best` compares all choices and takes the tightest fit. Why: large
    groups of available CPUs survive. Option: `uncoreCacheFit: first` (the default).
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
# A core is split when a container gets some of its threads and not all. How many cores must be split depends only on how
# many there are of each class, (threads, free threads). So cores are counted, and no core is tried by itself.
#
# The number is exact where the thread numbers of the machine's cores divide each other. That is so where all threads
# are online, and for any offline threads of SMT 2. Elsewhere (SMT 4 with cores of 4 and 3 online threads) whole cores of
# the larger class may leave a rest that the smaller class would have avoided.

CoreClass = tuple[int, int]
"""(threads, free threads) of a core. The core is whole where both are equal, else it is a part."""

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
    """The fewest split cores for `need` CPUs, and then no opened one if possible.

    Args:
        classes: all classes, larger cores and freer ones first.
        counts: cores of each class; they must hold `need` CPUs.
        need: CPUs.
    """
    # Whole cores go first, the largest first. A choice without some whole core has smaller cores or parts in its place;
    # exchanging these for the core splits no further core.
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
    # A whole core that is left has more threads than are still needed, else it would have been taken. So one split core
    # is enough: a part with as many free threads, and a whole core is opened only where no part has them.
    if has_whole_left:
        return CorePlan(whole, need, 1, opens=not any(number and free >= need for free, number in parts))
    # Every whole core is taken, so the rest comes from parts.
    return CorePlan(whole, need, _pieces(parts, need), opens=False)


def _pieces(parts: Iterable[tuple[int, int]], need: int) -> int:
    """How many parts give `need` CPUs, the freest first."""
    pieces = 0
    for free, number in sorted(parts, reverse=True):
        taken = min(number, -(-need // free))
        pieces += taken
        need = max(0, need - taken * free)
    return pieces


def take_cores(cores: Sequence[int], free: int, chosen: CorePlan) -> int:
    """The CPUs of a plan out of `cores`, each time the first that fits.

    Args:
        cores: masks in the order of preference.
        free: mask of the free CPUs.
        chosen: the plan for these cores.
    """
    quota = dict(chosen.whole)
    taken = 0
    for core in cores:
        size = core.bit_count()
        if quota.get(size) and not core & ~free:
            quota[size] -= 1
            taken |= core
    return taken | _take_parts([core & free & ~taken for core in cores], cores, chosen)


def _take_parts(left: Sequence[int], cores: Sequence[int], chosen: CorePlan) -> int:
    """The rest of a plan: the freest parts, and the last CPUs from the tightest part that has enough.

    Args:
        left: free CPUs of each core that are not taken yet.
        cores: the cores, in the same order.
        chosen: the plan.
    """
    # Sorting is stable: of parts with as many free threads the first stays first.
    usable = [part for part, core in zip(left, cores, strict=True) if chosen.opens or part != core]
    usable.sort(key=int.bit_count)
    rest, taken = chosen.rest, 0
    while rest:
        tight = next((part for part in usable if part.bit_count() >= rest), None)
        if tight is not None:
            return taken | lowest_bits(tight, rest)
        # No part has enough alone: the freest one leaves the smallest rest, so the fewest cores are split.
        part = usable.pop()
        taken |= part
        rest -= part.bit_count()
    return taken


# ----------------------------------------------------------------------------------------------------
# Caches on given NUMA nodes.
#
# The best choice has the fewest caches, then splits the fewest cores, then uses the smallest holes, then has the lowest
# numbers.
#
# By size alone the choice is simple. With the fewest caches no cache can be spared, so the CPUs that stay free in the
# chosen caches are fewer than any of these caches had. No large hole is among them: the holes that survive are those of
# the caches left out. So the largest cache is left out whenever the smaller ones suffice, and so on (`_tightest`).
#
# That choice may split more cores than another set of as many caches. It splits the fewest if it splits no core, or as
# many as all caches together must. Only otherwise the sets of caches are searched (`_Sets`), in bounded steps.

STEPS = 4_000
"""How many sets of caches are tried before the choice by size is kept; about 10 ms on the machine of the bench."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The hole of an uncore cache: its free CPUs on the NUMA nodes that are looked at.

    Attributes:
        number: its place in the order of caches.
        cpus: mask of these CPUs.
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
        """The sizes of its holes, the largest first. The smaller choice leaves the larger holes."""
        return tuple(sorted((cache.free for cache in self.caches), reverse=True))


def fewest_caches(caches: Sequence[Cache], need: int) -> int:
    """How many of the caches, which hold `need` CPUs together, it takes to hold them."""
    largest = sorted((cache.free for cache in caches), reverse=True)
    return next(number for number, total in enumerate(accumulate(largest), 1) if total >= need)


def choose_caches(
    classes: Sequence[CoreClass], caches: Sequence[Cache], need: int, steps: int = STEPS
) -> Choice:
    """The best of `caches` for `need` CPUs, which all of them hold together; `steps` bounds the search."""
    # Of equal sizes the highest number comes first: it is left out first, so the lowest numbers are chosen.
    ordered = sorted(caches, key=lambda cache: (-cache.free, -cache.number))
    number = fewest_caches(ordered, need)
    by_size = _choice(classes, _tightest(ordered, number, need), need)
    # More caches give more cores to choose from, so no choice splits fewer cores than all caches together.
    if not by_size.split or by_size.split == _choice(classes, ordered, need).split:
        return by_size
    found = _Sets(classes, ordered, number, need, steps).best()
    return by_size if found is None else _choice(classes, found, need)


def _choice(classes: Sequence[CoreClass], caches: Sequence[Cache], need: int) -> Choice:
    counts = tuple(map(sum, zip(*(cache.cores for cache in caches), strict=True)))
    ascending = tuple(sorted(caches, key=lambda cache: cache.number))
    return Choice(ascending, plan(classes, counts, need).split)


def _tightest(ordered: Sequence[Cache], number: int, need: int) -> list[Cache]:
    """The `number` caches with the smallest holes that hold `need`; `ordered` goes from the largest hole down."""
    sums = [0, *accumulate(cache.free for cache in ordered)]
    chosen: list[Cache] = []
    for place, cache in enumerate(ordered, 1):
        # The next caches are the largest that could take the place of this one and of those still to be chosen.
        upto = place + number - len(chosen)
        is_enough_behind = upto <= len(ordered) and sums[upto] - sums[place] >= need
        if not is_enough_behind:
            chosen.append(cache)
            need -= cache.free
    return chosen


Content = tuple[int, int, Counts]
"""Of a set of caches: how many caches, free CPUs, cores of each class. No other property decides how it can grow."""


class _Sets:
    """The search over all sets of `number` caches that hold `need`: cache by cache, each left out or added.

    Of two sets with the same content, the same caches can be added to both, and both then split as many cores. So only
    the one with the better rank is kept, and the number of sets stays small: caches of a machine are much alike.

    The rank of a set is one integer, the sum of the ranks of its caches: so adding the same cache to two sets keeps their
    order. The high bits count the caches of each size, the largest size highest: a set with smaller holes has the smaller
    rank. From that one bit for each member is subtracted, the highest for the lowest number: of sets with equal sizes the
    one with the lowest numbers has the smallest rank.
    """

    def __init__(
        self, classes: Sequence[CoreClass], ordered: Sequence[Cache], number: int, need: int, steps: int
    ) -> None:
        self.classes = classes
        self.ordered = ordered
        self.number = number
        self.need = need
        self.steps = steps
        # by number of first caches: their free CPUs
        self.sums = [0, *accumulate(cache.free for cache in ordered)]
        ascending = sorted(ordered, key=lambda cache: cache.number)
        self.bit = {cache.number: 1 << len(ordered) - 1 - place for place, cache in enumerate(ascending)}
        self.level = {free: level for level, free in enumerate(sorted({cache.free for cache in ordered}))}

    def best(self) -> list[Cache] | None:
        """The best set; None when the search takes too many steps."""
        sets: dict[Content, int] = {(0, 0, (0,) * len(self.classes)): 0}
        for place, cache in enumerate(self.ordered, 1):
            self.steps -= len(sets)
            if self.steps < 0:
                return None
            sets = self._grown(sets, place, cache)
        rank = min(
            (plan(self.classes, counts, self.need).split, rank) for (_, _, counts), rank in sets.items()
        )
        # The rank is a multiple of a higher bit less the members' bits. Negated, its low bits are the members.
        return [cache for cache in self.ordered if self.bit[cache.number] & -rank[1]]

    def _grown(self, sets: dict[Content, int], place: int, cache: Cache) -> dict[Content, int]:
        """The sets without and with the cache, as far as they can still become large enough."""
        own = self._rank(cache)
        grown: dict[Content, int] = {}
        for (size, free, counts), rank in sets.items():
            if self._can_hold_need(place, size, free):
                _keep(grown, (size, free, counts), rank)
            if size < self.number and self._can_hold_need(place, size + 1, free + cache.free):
                more = tuple(map(add, counts, cache.cores))
                _keep(grown, (size + 1, free + cache.free, more), rank + own)
        return grown

    def _can_hold_need(self, place: int, size: int, free: int) -> bool:
        """Whether `size` caches with `free` CPUs hold the need once they grow by the next ones, the largest left."""
        upto = place + self.number - size
        return upto <= len(self.ordered) and free + self.sums[upto] - self.sums[place] >= self.need

    def _rank(self, cache: Cache) -> int:
        width = len(self.ordered)
        size = 1 << self.level[cache.free] * width.bit_length()
        return (size << width) - self.bit[cache.number]


def _keep(sets: dict[Content, int], content: Content, rank: int) -> None:
    if rank < sets.get(content, rank + 1):
        sets[content] = rank


# ----------------------------------------------------------------------------------------------------
# NUMA nodes, and the choice.
#
# The fewest NUMA nodes that hold the request may be several sets of nodes. The best caches are chosen on each set, and the
# results are compared. Nodes with equal caches (`alike`) lead to equal results, so of such nodes the lowest are used.

NODE_SETS = 256
"""How many sets of NUMA nodes are tried; of eight nodes there are at most 70 of one size."""


def take_best_fit(tables: CPUTables, available: CPUSet, count: int, *, note: Note | None = None) -> CPUSet:
    """`count` CPUs out of `available`; nothing for a count of zero or less. `note` is called once, with the CPUs.

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
    """The best fit in one uncore cache (the option strictUncoreCache); `note` is called once, with the CPUs.

    Raises:
        InsufficientCPUsError: fewer CPUs are available than asked for.
        UncoreCacheAlignmentError: no cache has that many; says how many the largest hole has.
    """
    cpus = take_best_fit(tables, available, count)
    if sum(1 for cache in tables.cores_by_l3 if cache & cpus.mask) <= 1:
        return _noted(cpus, note)
    # The best fit prefers few NUMA nodes to few caches. A cache wider than a NUMA node may hold the request where no
    # cache of one node does: then the tightest such cache is used.
    holes = [available.mask & cache for cache in tables.cores_by_l3]
    tight = min((hole for hole in holes if hole.bit_count() >= count), key=int.bit_count, default=0)
    if not tight:
        raise UncoreCacheAlignmentError(
            count, max(map(int.bit_count, holes)), max(map(int.bit_count, tables.cores_by_l3))
        )
    return _noted(take_best_fit(tables, CPUSet(tight), count), note)


def _noted(cpus: CPUSet, note: Note | None) -> CPUSet:
    if note:
        note(AssignmentStage.ONE_CACHE, cpus.mask)
    return cpus


@dataclass(frozen=True, slots=True)
class _NodeSpace:
    """The free CPUs of a NUMA node.

    Attributes:
        number: its place in the order of nodes.
        cpus: all its CPUs.
        free: how many of them are free, never 0.
        caches: the holes of its caches.
        alike: equal for nodes whose holes have the same sizes and classes of cores.
    """

    number: int
    cpus: int
    free: int
    caches: tuple[Cache, ...]
    alike: tuple[tuple[int, Counts], ...]


def node_sets(nodes: Sequence[_NodeSpace], size: int, need: int) -> Iterator[tuple[_NodeSpace, ...]]:
    """Every set of `size` nodes that holds `need`; of sets of nodes that are alike only the lowest.

    Args:
        nodes: to choose from.
        size: the fewest nodes that hold `need`.
        need: CPUs.

    Yields:
        The set with the smallest nodes first, because the bound on their number cuts off the last ones.
    """
    ordered = sorted(nodes, key=lambda node: (-node.free, node.alike, node.number))
    groups = [list(members) for _, members in groupby(ordered, key=lambda node: (node.free, node.alike))]
    yield from _sets(groups, size, need)


def _sets(groups: Sequence[Sequence[_NodeSpace]], size: int, need: int) -> Iterator[tuple[_NodeSpace, ...]]:
    if not size:
        yield ()
        return
    # Groups go from the largest nodes down. Take none of the first group, then its lowest node, then two, and so on.
    alike, others = groups[0], groups[1:]
    largest = [node.free for members in others for node in members]
    for taken in range(min(size, len(alike)) + 1):
        rest = need - taken * alike[0].free
        # The largest of the other nodes show whether any of their sets can hold the rest.
        if sum(largest[: size - taken]) >= rest:
            for tail in _sets(others, size - taken, rest):
                yield (*alike[:taken], *tail)


class _Machine:
    """A machine, and its free CPUs as nodes, caches and classes of cores.

    Args:
        tables: the machine.
        free: mask of the free CPUs.
    """

    def __init__(self, tables: CPUTables, free: int) -> None:
        self.tables = tables
        self.free = free
        self.classes = core_classes(tables.cores)
        self.numbers = {cache: number for number, cache in enumerate(tables.cores_by_l3)}
        self.caches_in = {cpus: [one for one in self.numbers if one & cpus] for cpus in tables.node_sets}

    def best(self, count: int) -> Choice:
        """The best caches on the best nodes."""
        nodes = self._nodes()
        totals = accumulate(sorted((node.free for node in nodes), reverse=True))
        size = next(number for number, total in enumerate(totals, 1) if total >= count)
        # On machines with a cache for each node the sets of nodes are sets of caches. The choice of caches compares
        # them without listing them; with 32 such nodes there are too many to list.
        if size > 1 and all(len(node.caches) == 1 and node.alike[0][0] > 0 for node in nodes):
            return self._nodes_as_caches(nodes, count)
        sets = [(of, self._caches(of)) for of in islice(node_sets(nodes, size, count), NODE_SETS)]
        # The number of caches is cheap to find, the choice of caches is not: make it only where that number is least.
        fewest = [fewest_caches(caches, count) for _, caches in sets]
        least = min(fewest)
        found = [
            (choose_caches(self.classes, caches, count), of)
            for number, (of, caches) in zip(fewest, sets, strict=True)
            if number == least
        ]
        return min(found, key=_rank)[0]

    def _nodes_as_caches(self, nodes: Sequence[_NodeSpace], count: int) -> Choice:
        """The best choice where each node is one cache."""
        # Nodes decide before caches by their numbers, so caches go by the numbers of their nodes meanwhile.
        of_node = {node.number: cache for node in nodes for cache in node.caches}
        renamed = [replace(cache, number=number) for number, cache in of_node.items()]
        found = choose_caches(self.classes, renamed, count)
        return replace(found, caches=tuple(of_node[cache.number] for cache in found.caches))

    def _nodes(self) -> list[_NodeSpace]:
        nodes = []
        for number, cpus in enumerate(self.tables.node_sets):
            free = (cpus & self.free).bit_count()
            if free:
                caches = self._caches_on(cpus, self.caches_in[cpus])
                # A cache that reaches beyond the node makes it unlike any other: beside which nodes it is used matters.
                is_apart = all(cache & ~cpus == 0 for cache in self.caches_in[cpus])
                alike = sorted((cache.free, cache.cores) for cache in caches) if is_apart else [(-number, ())]
                nodes.append(_NodeSpace(number, cpus, free, caches, tuple(alike)))
        return nodes

    def _caches(self, nodes: Sequence[_NodeSpace]) -> tuple[Cache, ...]:
        """The holes of the caches on a set of nodes; a cache over several of them is one hole."""
        if len(nodes) == 1:
            return nodes[0].caches
        masks = {mask for node in nodes for mask in self.caches_in[node.cpus]}
        return self._caches_on(reduce(or_, (node.cpus for node in nodes)), masks)

    def _caches_on(self, nodes: int, masks: Iterable[int]) -> tuple[Cache, ...]:
        """The holes of the caches `masks` on the nodes with the CPUs `nodes`."""
        found = []
        for mask in masks:
            cpus = mask & nodes & self.free
            if cpus:
                cores = count_cores(self.classes, self.tables.cores_by_l3[mask], cpus)
                found.append(Cache(self.numbers[mask], cpus, cpus.bit_count(), cores))
        return tuple(found)

    def take(self, caches: Sequence[Cache], count: int) -> int:
        """`count` CPUs from the cores of the chosen caches, cache by cache."""
        masks = tuple(self.numbers)
        # A core whose threads report different caches stands in both, and is taken once.
        cores = list(
            dict.fromkeys(core for of in caches for core in self.tables.cores_by_l3[masks[of.number]])
        )
        cpus = reduce(or_, (cache.cpus for cache in caches))
        counts = tuple(map(sum, zip(*(cache.cores for cache in caches), strict=True)))
        return take_cores(cores, cpus, plan(self.classes, counts, count))


def _rank(found: tuple[Choice, Sequence[_NodeSpace]]) -> tuple[object, ...]:
    """The order of choices with as many nodes and caches: lines 3 to 6 of the list at the top."""
    choice, nodes = found
    free = sorted((node.free for node in nodes), reverse=True)
    numbers = sorted(node.number for node in nodes)
    return choice.split, choice.sizes, free, numbers, [cache.number for cache in choice.caches]
