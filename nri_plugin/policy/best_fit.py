"""Which CPUs a container gets: the best fit instead of the kubelet's order.

Among all choices of the CPUs asked for, the one that comes first by

    1 NUMA nodes        the fewest
    2 uncore caches     the fewest
    3 cores split       the fewest that it gets some threads of, but not all
    4 holes used        the smallest: of the free CPUs of each cache it uses, the largest as small as
                        can be, then the next; so the large holes survive for those who need them
    5 nodes used        the same for the free CPUs of each NUMA node
    6 numbers           the lowest nodes, then the lowest caches
    7 cores opened      none, where a core that is in use already will do
    8 cores             whole ones and then parts, each time the lowest in the lowest cache

Exact, and never an enumeration of CPUs: nodes and caches that hold the same are one class, and
cores are counted. The number of node sets and of cache sets looked at is bounded; only machines
with far more of either than any built today come near it, and then the tightest by size are taken.

Differs: the kubelet takes the fullest place first and splits a request over caches
    although another would have held it whole.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, groupby, islice
from operator import or_

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import InsufficientCPUsError, UncoreCacheAlignmentError
from nri_plugin.policy.cache_choice import Cache, Choice, choose_caches, fewest_caches
from nri_plugin.policy.core_choice import Counts, core_classes, count_cores, plan, take_cores
from nri_plugin.policy.tables import CPUTables
from nri_plugin.policy.taking import Note, Stage

NODE_SETS = 256
"""Sets of NUMA nodes looked at; of eight nodes there are at most 70 of one size."""


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
        note(Stage.BEST_FIT, cpus)
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
        note(Stage.ONE_CACHE, cpus.mask)
    return cpus


@dataclass(frozen=True, slots=True)
class _Node:
    """What is free on a NUMA node.

    Attributes:
        number: its place in the order of nodes.
        cpus: all its CPUs.
        free: how many of them are free, never 0.
        caches: what is free in its caches.
        alike: equal for nodes that offer the same.
    """

    number: int
    cpus: int
    free: int
    caches: tuple[Cache, ...]
    alike: tuple[tuple[int, Counts], ...]


def node_sets(nodes: Sequence[_Node], size: int, need: int) -> Iterator[tuple[_Node, ...]]:
    """Every set of `size` nodes that holds `need`, but of those that offer the same only the lowest.

    Fewer nodes than `size` must not hold it. The larger a node the later it is used, so the first set is the tightest.
    """
    ordered = sorted(nodes, key=lambda node: (-node.free, node.alike, node.number))
    groups = [list(members) for _, members in groupby(ordered, key=lambda node: (node.free, node.alike))]
    yield from _sets(groups, size, need)


def _sets(groups: Sequence[Sequence[_Node]], size: int, need: int) -> Iterator[tuple[_Node, ...]]:
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

    def _nodes_as_caches(self, nodes: Sequence[_Node], count: int) -> Choice:
        """The best choice where each node is one cache: no set of nodes need be listed."""
        of_node = {node.number: cache for node in nodes for cache in node.caches}
        renamed = [replace(cache, number=number) for number, cache in of_node.items()]
        found = choose_caches(self.classes, renamed, count)
        return replace(found, caches=tuple(of_node[cache.number] for cache in found.caches))

    def _nodes(self) -> list[_Node]:
        nodes = []
        for number, cpus in enumerate(self.tables.node_sets):
            free = (cpus & self.free).bit_count()
            if free:
                caches = self._caches_on(cpus, self.tables.caches_in[cpus])
                is_apart = all(cache & ~cpus == 0 for cache in self.tables.caches_in[cpus])
                alike = sorted((cache.free, cache.cores) for cache in caches) if is_apart else [(-number, ())]
                nodes.append(_Node(number, cpus, free, caches, tuple(alike)))
        return nodes

    def _caches(self, nodes: Sequence[_Node]) -> tuple[Cache, ...]:
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


def _rank(found: tuple[Choice, Sequence[_Node]]) -> tuple[object, ...]:
    choice, nodes = found
    free = sorted((node.free for node in nodes), reverse=True)
    numbers = sorted(node.number for node in nodes)
    return choice.split, choice.sizes, free, numbers, [cache.number for cache in choice.caches]
