"""Which CPUs a container gets: the kubelet's packed order.

The result is always inside `available` and has exactly the size asked for, or
the request is refused. Whole units are taken first, the fullest place first,
so that what stays free stays in as large pieces as possible:

    whole NUMA nodes and sockets -> (whole and part caches) -> whole cores -> single CPUs

Source: kubelet v1.36 pkg/kubelet/cm/cpumanager/cpu_assignment.go (takeByTopologyNUMAPacked).
"""

from collections.abc import Iterable, Iterator, Mapping

from nri_plugin.cpuset import CPUSet
from nri_plugin.errors import InsufficientCPUsError
from nri_plugin.options import UncoreCacheRule
from nri_plugin.policy.tables import CPUTables
from nri_plugin.policy.taking import Note, Stage


def take_packed(
    tables: CPUTables,
    available: CPUSet,
    count: int,
    *,
    prefer_uncore_cache: bool = False,
    cache_rule: UncoreCacheRule = UncoreCacheRule.KUBELET,
    spread: bool = False,
    note: Note | None = None,
) -> CPUSet:
    """`count` CPUs out of `available`; nothing for a count of zero or less.

    Args:
        tables: the machine.
        available: CPUs on offer.
        count: how many are wanted.
        prefer_uncore_cache: keep to one uncore cache where whole caches or one rest fit
            (the option prefer-align-cpus-by-uncorecache).
        cache_rule: in which order caches are tried, and when one is used.
        spread: leave out the stage of whole cores and take the rest by CPU number inside the
            fullest socket (the sorting that the option distribute-cpus-across-cores selects).
        note: told of each step.

    Raises:
        InsufficientCPUsError: fewer CPUs are available than asked for.

    Differs: the kubelet calls a socket or core free when its free CPUs equal the machine's average
        and then takes all of it, which on uneven machines hands out CPUs of others. Here the unit
        must also be wholly available.
    """
    if count <= 0:
        return CPUSet()
    taker = _Taker(tables, available.mask & tables.online, count, note)
    if taker.free.bit_count() < count:
        raise InsufficientCPUsError(count, len(available))
    taker.take_whole_nodes_and_sockets()
    if prefer_uncore_cache and cache_rule is UncoreCacheRule.KEP_4800:
        taker.take_caches_by_number()
    elif prefer_uncore_cache:
        taker.take_caches()
    if not spread:
        taker.take_whole_cores()
    taker.take_rest(spread=spread)
    return CPUSet(taker.taken)


def lowest_bits(mask: int, count: int) -> int:
    """The `count` lowest members of `mask`."""
    rest = mask
    for _ in range(count):
        rest &= rest - 1
    return mask ^ rest


class _Taker:
    """The choice under way: `need` CPUs are still to come out of `free`."""

    __slots__ = ("free", "need", "note", "tables", "taken")

    def __init__(self, tables: CPUTables, free: int, need: int, note: Note | None) -> None:
        self.tables = tables
        self.note = note
        self.free = free
        self.need = need
        self.taken = 0

    def take(self, cpus: int, stage: Stage) -> None:
        if self.note:
            self.note(stage, cpus)
        self.taken |= cpus
        self.free &= ~cpus
        self.need -= cpus.bit_count()

    def take_each_whole(self, units: Iterable[int], stage: Stage, average: int | None = None) -> None:
        """Take each unit that is wholly free and not larger than the need; others are passed over.

        With `average` a unit counts as free only when it also has that many CPUs: the kubelet's
        test for sockets and cores, kept wherever its outcome is sound.
        """
        for unit in units:
            size = unit.bit_count()
            if size <= self.need and unit & ~self.free == 0 and average in (None, size):
                self.take(unit, stage)

    # The orders. Fewest free CPUs first, then lowest id: groups ascend by id and sorting is stable.

    def fullest_first(self, units: Iterable[int]) -> list[int]:
        free = self.free
        return sorted([unit for unit in units if unit & free], key=lambda unit: (unit & free).bit_count())

    def nested(self, outer: Iterable[int], inner_of: Mapping[int, tuple[int, ...]]) -> Iterator[int]:
        """What has a free CPU in each outer unit; one that reaches beyond it counts as a whole."""
        for unit in outer:
            there = unit & self.free
            yield from self.fullest_first(inner for inner in inner_of[unit] if inner & there)

    def nodes(self) -> list[int]:
        tables = self.tables
        if tables.nodes_first:
            return self.fullest_first(tables.node_sets)
        return list(self.nested(self.fullest_first(tables.sockets), tables.nodes_in))

    def sockets(self) -> list[int]:
        tables = self.tables
        if not tables.nodes_first:
            return self.fullest_first(tables.sockets)
        return list(self.nested(self.fullest_first(tables.node_sets), tables.sockets_in))

    def caches(self) -> list[int]:
        return list(self.nested(self.nodes(), self.tables.caches_in))

    def cores(self) -> list[int]:
        outer = self.sockets() if self.tables.nodes_first else self.nodes()
        return list(self.nested(outer, self.tables.cores_in))

    # The stages. Each order is worked out once when its stage begins.

    def take_whole_nodes_and_sockets(self) -> None:
        average = self.tables.cpus_per_socket
        if self.tables.nodes_first:
            self.take_each_whole(self.nodes(), Stage.WHOLE_NODE)
            self.take_each_whole(self.sockets(), Stage.WHOLE_SOCKET, average)
        else:
            self.take_each_whole(self.sockets(), Stage.WHOLE_SOCKET, average)
            self.take_each_whole(self.nodes(), Stage.WHOLE_NODE)

    def take_caches(self) -> None:
        """Whole caches while the need is large, then the rest from one cache if it fits exactly.

        The kubelet tries whole caches again at each turn of its scan; that never finds another one,
        because by then the need has only become smaller.
        """
        order = self.caches() if self.need else []
        if self.need >= self.tables.cpus_per_cache:
            self.take_each_whole(order, Stage.WHOLE_CACHE)
        for cache in order:
            if not self.need:
                return
            self.take_part_of_cache(cache)

    def take_caches_by_number(self) -> None:
        """One pass over the caches, by number; nothing where no NUMA node has CPUs of two of them.

        A cache is taken whole where it is wholly free and not larger than the need; else the need is
        taken from it where it fits in; else the next one is looked at.

        Source: KEP-4800, the text; the kubelet goes by fullest places instead.
        """
        tables = self.tables
        if all(len(tables.caches_in[node]) < 2 for node in tables.node_sets):
            return
        for cache in tables.cores_in_cache:
            room = cache & self.free
            if not self.need:
                return
            if room == cache and cache.bit_count() <= self.need:
                self.take(cache, Stage.WHOLE_CACHE)
            elif room.bit_count() >= self.need:
                self.take(take_packed(tables, CPUSet(room), self.need).mask, Stage.PART_OF_CACHE)

    def take_part_of_cache(self, cache: int) -> None:
        """Take the free CPUs of the lowest cores of `cache`, if they are exactly as many as needed.

        A core with any free thread counts as one of the cores needed; where the need is odd one CPU
        too many is dropped, the highest.
        """
        threads = self.tables.cpus_per_core
        wanted_cores = -(-self.need // threads)
        cpus = 0
        for core in self.tables.cores_in_cache[cache]:
            if wanted_cores and core & cache & self.free:
                cpus |= core & self.free
                wanted_cores -= 1
        if threads > 1 and self.need % 2 and cpus.bit_count() > self.need:
            cpus &= ~(1 << cpus.bit_length() - 1)
        if cpus.bit_count() == self.need:
            self.take(cpus, Stage.PART_OF_CACHE)

    def take_whole_cores(self) -> None:
        if self.need:
            self.take_each_whole(self.cores(), Stage.WHOLE_CORE, self.tables.cpus_per_core)

    def take_rest(self, *, spread: bool) -> None:
        """Single CPUs: fill cores in use first (packed), or go by CPU number in each socket (spread)."""
        if not self.need:
            return
        units = iter(self.sockets() if spread else self.cores())
        while self.need:
            part = next(units) & self.free
            size = part.bit_count()
            self.take(part if size <= self.need else lowest_bits(part, self.need), Stage.SINGLE_CPUS)
