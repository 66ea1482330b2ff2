"""The kubelet's two ways to choose CPUs: packed, and distributed across NUMA nodes.

Both take CPUs from `available` only, and exactly as many as asked for, or refuse the request. Both work on masks that are
made once for a machine (`CPUTables`), and report each step to a `Note`, so that an explanation shows the real
steps.

`take_packed` takes whole units first, and the fullest place first, so that free CPUs stay in large pieces:

    whole NUMA nodes and sockets -> (whole and part caches) -> whole cores -> single CPUs

`take_distributed` takes equal shares of the fewest NUMA nodes that have them.

Source: kubelet v1.36 pkg/kubelet/cm/cpumanager/cpu_assignment.go (takeByTopologyNUMAPacked,
    takeByTopologyNUMADistributed).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from itertools import combinations
from math import floor, sqrt
from operator import or_

from nri_plugin.model import bits
from nri_plugin.model.errors import InsufficientCPUsError
from nri_plugin.model.options import UncoreCacheRule
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from nri_plugin.policy.hints import LISTED_NODES

# ----------------------------------------------------------------------------------------------------
# Notes about a choice.
#
# A note says either where CPUs are taken from next, with the CPUs available there, or which CPUs one step took.


class AssignmentStage(StrEnum):
    """The step of the assignment that a note is about."""

    NODES_OF_HINT = "nodes-of-hint"
    SOCKETS_OF_HINT = "sockets-of-hint"
    SHARE_OF_DEVICES = "share-of-devices"
    EQUAL_SHARE = "equal-share"
    ANYWHERE = "anywhere"

    WHOLE_NODE = "whole-numa-node"
    WHOLE_SOCKET = "whole-socket"
    WHOLE_CACHE = "whole-uncore-cache"
    PART_OF_CACHE = "part-of-uncore-cache"
    WHOLE_CORE = "whole-core"
    SINGLE_CPUS = "single-cpus"
    BY_NUMBER = "by-number"
    BEST_FIT = "best-fit"
    ONE_CACHE = "one-uncore-cache"
    WHOLE_QUEUES = "whole-queues"


PLACES = frozenset(
    {
        AssignmentStage.NODES_OF_HINT,
        AssignmentStage.SOCKETS_OF_HINT,
        AssignmentStage.SHARE_OF_DEVICES,
        AssignmentStage.EQUAL_SHARE,
        AssignmentStage.ANYWHERE,
    }
)
"""Stages that name the CPUs to take from next; the others name CPUs that were taken."""

Note = Callable[[AssignmentStage, int], None]
"""Is called with a stage, and the mask of CPUs available or taken."""


# ----------------------------------------------------------------------------------------------------
# The machine in masks.
#
# Each group of CPUs is a mask, so the number of free CPUs in it is one `&` and one popcount. The tables depend on the
# `Topology` alone: they are made once and given to each decision.


@dataclass(frozen=True, slots=True)
class CPUTables:
    """Masks and counters of one machine.

    The tuples of groups ascend by id; a group is in the tuple of each outer group that it shares a
    CPU with, and there stands for all its CPUs. Nodes without CPUs are left out.

    Attributes:
        online: all CPUs.
        nodes: (NUMA node id, CPUs).
        node_sets: CPUs of each NUMA node, in the order of `nodes`.
        sockets: CPUs of each socket.
        sockets_in: by CPUs of a NUMA node, the sockets in it.
        nodes_in: by CPUs of a socket, the NUMA nodes in it.
        caches_in: by CPUs of a NUMA node, the uncore caches in it.
        cores_in: by CPUs of a socket or NUMA node, the cores in it.
        cores_in_cache: by CPUs of an uncore cache, the cores in it.
        cores: CPUs of each core.
        nodes_first: whole NUMA nodes are tried before whole sockets, because there are not fewer sockets.
        cpus_per_core: average rounded down, the kubelet's idea of a whole core.
        cpus_per_socket: average rounded down, the kubelet's idea of a whole socket.
        cpus_per_cache: average rounded down.
        nodes_per_socket: average rounded down; 0 where there are more sockets than NUMA nodes.
        smallest_unit: CPUs of the smallest NUMA node or socket.
        without_l3: CPUs without an L3 where others have one. They are one entry of `cores_in_cache`, as in the topology.
        cores_by_l3: as `cores_in_cache`, but each core without an L3 is by itself.
        queues: (CPUs, those that the interrupt comes to) of each queue that CPUs share.
    """

    online: int
    nodes: tuple[tuple[int, int], ...]
    node_sets: tuple[int, ...]
    sockets: tuple[int, ...]
    sockets_in: Mapping[int, tuple[int, ...]]
    nodes_in: Mapping[int, tuple[int, ...]]
    caches_in: Mapping[int, tuple[int, ...]]
    cores_in: Mapping[int, tuple[int, ...]]
    cores_in_cache: Mapping[int, tuple[int, ...]]
    cores: tuple[int, ...]
    nodes_first: bool
    cpus_per_core: int
    cpus_per_socket: int
    cpus_per_cache: int
    nodes_per_socket: int
    smallest_unit: int
    without_l3: int
    cores_by_l3: Mapping[int, tuple[int, ...]]
    queues: tuple[tuple[int, int], ...] = ()

    def siblings_of(self, cpus: int) -> int:
        """All threads of all cores that have a thread in `cpus`."""
        return _union([core for core in self.cores if core & cpus])

    def whole_cores_in(self, cpus: int) -> int:
        """Those of `cpus` that are all threads of their core."""
        return _union([core for core in self.cores if not core & ~cpus])

    def caches_of(self, cpus: int) -> int:
        """All CPUs of all uncore caches that have a CPU in `cpus`, and those of its cores without an L3."""
        return _union([cache for cache in self.cores_by_l3 if cache & cpus])

    def cpus_in(self, nodes: int) -> int:
        """CPUs of the NUMA nodes in the mask `nodes`."""
        mask = 0  # a plain loop: the search of hints ranks thousands of masks by this
        for node, cpus in self.nodes:
            if nodes >> node & 1:
                mask |= cpus
        return mask

    def sockets_of(self, nodes: int) -> int:
        """All CPUs of all sockets that share a CPU with the NUMA nodes in the mask `nodes`."""
        cpus = self.cpus_in(nodes)
        return _union([socket for socket in self.sockets if socket & cpus])

    def nodes_of(self, cpus: int) -> int:
        """Mask of the NUMA nodes that hold at least one of `cpus`."""
        return bits.from_ids(node for node, of_node in self.nodes if of_node & cpus)


def _union(masks: Sequence[int]) -> int:
    return reduce(or_, masks, 0)


def cpu_tables(topology: Topology) -> CPUTables:
    """The tables of a machine; CPU-less NUMA nodes take no part in choosing CPUs.

    Differs: the kubelet takes the socket's number for the cache of a CPU without an L3, so such CPUs count as one
        cache, together with those of the L3 of that number; here: where other CPUs have an L3, each core without one
        is by itself, and none is taken as a cache or a part of one. Why: they share no L3. Option: none.
    """
    nodes = tuple((int(node.id), node.cpus.mask) for node in topology.nodes if node.cpus)
    node_sets = tuple(cpus for _, cpus in nodes)
    sockets = tuple(cpus.mask for _, cpus in topology.sockets)
    caches = tuple(cpus.mask for _, cpus in topology.caches)
    cores = tuple(cpus.mask for _, cpus in topology.cores)
    total, without_l3 = len(topology.online), topology.without_l3.mask
    cores_in_cache = _inside(caches, cores)
    cores_by_l3 = {cache: of for cache, of in cores_in_cache.items() if not cache & without_l3}
    with_l3 = _average((topology.online - topology.without_l3).mask.bit_count(), len(cores_by_l3))
    cores_by_l3 |= {core: (core,) for core in cores if core & without_l3}
    return CPUTables(
        online=topology.online.mask,
        nodes=nodes,
        node_sets=node_sets,
        sockets=sockets,
        sockets_in=_inside(node_sets, sockets),
        nodes_in=_inside(sockets, node_sets),
        caches_in=_inside(node_sets, caches),
        cores_in=_inside((*node_sets, *sockets), cores),
        cores_in_cache=cores_in_cache,
        cores=cores,
        nodes_first=len(sockets) >= len(nodes),
        cpus_per_core=_average(total, len(cores)),
        cpus_per_socket=_average(total, len(sockets)),
        cpus_per_cache=with_l3,
        nodes_per_socket=_average(len(nodes), len(sockets)),
        smallest_unit=min((unit.bit_count() for unit in (*node_sets, *sockets)), default=0),
        without_l3=without_l3,
        cores_by_l3=cores_by_l3,
        queues=tuple((queue.cpus.mask, queue.delivered.mask) for queue in topology.queues),
    )


def _inside(outer: Iterable[int], inner: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    return {group: tuple(part for part in inner if part & group) for group in outer}


def _average(total: int, groups: int) -> int:
    return total // groups if groups else 0


# ----------------------------------------------------------------------------------------------------
# Packed.


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
        available: CPUs to choose from.
        count: how many CPUs.
        prefer_uncore_cache: keep to one uncore cache where whole caches or one rest fit
            (the option prefer-align-cpus-by-uncorecache).
        cache_rule: in which order caches are tried, and when one is used.
        spread: leave out the stage of whole cores and take the rest by CPU number inside the
            fullest socket (the sorting that the option distribute-cpus-across-cores selects).
        note: called at each step.

    Raises:
        InsufficientCPUsError: fewer CPUs are available than requested.

    Differs: the kubelet treats a socket or core as free when its free CPUs equal the machine's average, and
        then takes all of it, on uneven machines also CPUs of other containers; here: the unit must also be
        wholly available. Why: no CPU is given to two containers. Option: none.
    Differs: the kubelet lists a NUMA node whose CPUs belong to several sockets once for each, where there are
        more nodes than sockets, and so counts its CPUs twice and gives fewer than requested; here: each node
        counts once. Why: a container gets as many CPUs as it requests. Option: none.
    """
    if count <= 0:
        return CPUSet()
    taker = _Taker(tables, available.mask & tables.online, count, note)
    if taker.free.bit_count() < count:
        raise InsufficientCPUsError(count, len(available))
    # From the largest unit to the smallest: each stage takes the units that fit in the rest of the need.
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


def _fullest_first_of(units: Iterable[int], free: int) -> list[int]:
    return sorted([unit for unit in units if unit & free], key=lambda unit: (unit & free).bit_count())


def _nested(outer: Iterable[int], inner_of: Mapping[int, tuple[int, ...]], free: int) -> Iterator[int]:
    for unit in outer:
        there = unit & free
        yield from _fullest_first_of([inner for inner in inner_of[unit] if inner & there], free)


class _Taker:
    """A choice in progress: `need` CPUs are still to be taken from `free`."""

    __slots__ = ("free", "need", "note", "tables", "taken")

    def __init__(self, tables: CPUTables, free: int, need: int, note: Note | None) -> None:
        self.tables = tables
        self.note = note
        self.free = free
        self.need = need
        self.taken = 0

    def take(self, cpus: int, stage: AssignmentStage) -> None:
        if self.note:
            self.note(stage, cpus)
        self.taken |= cpus
        self.free &= ~cpus
        self.need -= cpus.bit_count()

    def take_each_whole(
        self, units: Iterable[int], stage: AssignmentStage, average: int | None = None
    ) -> None:
        """Take each unit that is wholly free and not larger than the need.

        With `average` a unit counts as free only when it also has that many CPUs. That is the kubelet's test for
        sockets and cores.
        """
        for unit in units:
            if not self.need:
                return
            size = unit.bit_count()
            if size <= self.need and unit & ~self.free == 0 and average in (None, size):
                self.take(unit, stage)

    # Orders: fewest free CPUs first, then lowest id, because groups ascend by id and sorting is stable.

    def fullest_first(self, units: Iterable[int]) -> list[int]:
        return _fullest_first_of(units, self.free)

    def nested(self, outer: Iterable[int], inner_of: Mapping[int, tuple[int, ...]]) -> Iterator[int]:
        """The inner units with a free CPU in each outer unit; one that reaches beyond it counts as a whole.

        The order is that of the moment of this call, also where a later part of it is asked for after units were taken.
        """
        return _nested(outer, inner_of, self.free)

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
        found = self.nested(self.nodes(), self.tables.caches_in)
        return [cache for cache in found if not cache & self.tables.without_l3]

    def cores(self) -> Iterator[int]:
        outer = self.sockets() if self.tables.nodes_first else self.nodes()
        return self.nested(outer, self.tables.cores_in)

    # Stages: each makes its order once, when it begins.

    def take_whole_nodes_and_sockets(self) -> None:
        average = self.tables.cpus_per_socket
        if self.need < self.tables.smallest_unit:
            return
        if self.tables.nodes_first:
            self.take_each_whole(self.nodes(), AssignmentStage.WHOLE_NODE)
            self.take_each_whole(self.sockets(), AssignmentStage.WHOLE_SOCKET, average)
        else:
            self.take_each_whole(self.sockets(), AssignmentStage.WHOLE_SOCKET, average)
            self.take_each_whole(self.nodes(), AssignmentStage.WHOLE_NODE)

    def take_caches(self) -> None:
        """Whole caches while the need is large, then the rest from one cache if it fits exactly.

        The kubelet tries whole caches again at each step of its scan. That never finds another one, because the
        need has only become smaller.
        """
        order = self.caches() if self.need else []
        if self.need >= self.tables.cpus_per_cache:
            self.take_each_whole(order, AssignmentStage.WHOLE_CACHE)
        for cache in order:
            if not self.need:
                return
            self.take_part_of_cache(cache)

    def take_caches_by_number(self) -> None:
        """One pass over the caches, by number; nothing where no NUMA node has CPUs of two of them.

        A cache that is wholly free and not larger than the need is taken whole. Otherwise the need is taken from the
        first cache that has enough.

        Source: KEP-4800, the text; the kubelet goes by fullest places instead.
        """
        tables = self.tables
        caches = [cache for cache in tables.cores_in_cache if not cache & tables.without_l3]
        if all(sum(1 for cache in caches if cache & node) < 2 for node in tables.node_sets):
            return
        for cache in caches:
            room = cache & self.free
            if not self.need:
                return
            if room == cache and cache.bit_count() <= self.need:
                self.take(cache, AssignmentStage.WHOLE_CACHE)
            elif room.bit_count() >= self.need:
                self.take(take_packed(tables, CPUSet(room), self.need).mask, AssignmentStage.PART_OF_CACHE)

    def take_part_of_cache(self, cache: int) -> None:
        """Take the free CPUs of the lowest cores of `cache`, if they are exactly as many as needed.

        Where the need is odd, the highest CPU is dropped if there is one too many.
        """
        threads = self.tables.cpus_per_core
        # the kubelet counts cores here and not CPUs: a core with one free thread counts as a whole one
        wanted_cores = -(-self.need // threads)
        cpus = 0
        for core in self.tables.cores_in_cache[cache]:
            if wanted_cores and core & cache & self.free:
                cpus |= core & self.free
                wanted_cores -= 1
        if threads > 1 and self.need % 2 and cpus.bit_count() > self.need:
            cpus &= ~(1 << cpus.bit_length() - 1)
        if cpus.bit_count() == self.need:
            self.take(cpus, AssignmentStage.PART_OF_CACHE)

    def take_whole_cores(self) -> None:
        if self.need:
            self.take_each_whole(self.cores(), AssignmentStage.WHOLE_CORE, self.tables.cpus_per_core)

    def take_rest(self, *, spread: bool) -> None:
        """Single CPUs: fill cores in use first (packed), or go by CPU number in each socket (spread).

        Going by number reaches other cores first only where the threads of a core do not have neighboring numbers.

        Source: kubelet v1.37.2. Kubernetes 1.38 goes round the cores of a socket (kubernetes/kubernetes PR 140766).
        """
        if not self.need:
            return
        units = iter(self.sockets() if spread else self.cores())
        stage = AssignmentStage.BY_NUMBER if spread else AssignmentStage.SINGLE_CPUS
        while self.need:
            part = next(units) & self.free
            size = part.bit_count()
            self.take(part if size <= self.need else lowest_bits(part, self.need), stage)


# ----------------------------------------------------------------------------------------------------
# Distributed across NUMA nodes (distribute-cpus-across-numa).
#
# The request is divided among the fewest nodes that have equal shares. Of their combinations the one wins that leaves the
# free CPUs of all nodes most even. A remainder goes one group of CPUs at a time to some of the chosen nodes,
# again so that the rest stays even. Where no combination works, the request is packed.
#
# Source: kubelet v1.36 pkg/kubelet/cm/cpumanager/cpu_assignment.go (takeByTopologyNUMADistributed).


Shares = tuple[tuple[int, int], ...]
"""(CPUs of a NUMA node, how many of them), in the order in which they are taken."""


def take_distributed(
    tables: CPUTables,
    available: CPUSet,
    count: int,
    *,
    group: int = 1,
    spread: bool = False,
    note: Note | None = None,
) -> CPUSet:
    """`count` CPUs out of `available` in equal shares; nothing for a count of zero or less.

    Args:
        tables: the machine.
        available: CPUs to choose from.
        count: how many are wanted; no multiple of `group` is packed.
        group: every share is a multiple of this (the threads of a core under full-pcpus-only).
        spread: how CPUs are chosen inside a node, see `take_packed`.
        note: told of each step.

    Raises:
        InsufficientCPUsError: fewer CPUs are available than asked for.

    Differs: the kubelet goes on overwriting the combination of NUMA nodes that it remembers, up to 1.37 never
        ends where a remainder of whole groups does not fit, and beyond eight NUMA nodes tries every
        combination of every size; here: the combination that was scored is used, one without room for its remainder is passed
        over, and beyond eight NUMA nodes the nodes with most free CPUs are chosen. Why: the answer has to be
        the best one found, and to come in bounded time. Option: none.
    """
    if count <= 0 or count % group:
        return take_packed(tables, available, count, spread=spread, note=note)
    free = available.mask & tables.online
    plan = _plan(tables, free, count, group)
    if plan is None:
        return take_packed(tables, available, count, spread=spread, note=note)
    return _carried_out(tables, free, plan, spread=spread, note=note)


def _carried_out(tables: CPUTables, free: int, plan: Shares, *, spread: bool, note: Note | None) -> CPUSet:
    """The CPUs of a plan, node by node, share by share."""
    taken = 0
    for node, count in plan:
        there = node & free & ~taken
        if note:
            note(AssignmentStage.EQUAL_SHARE, there)
        taken |= take_packed(tables, CPUSet(there), count, spread=spread, note=note).mask
    return CPUSet(taken)


def _plan(tables: CPUTables, free: int, count: int, group: int) -> Shares | None:
    """The shares over the fewest nodes that can hold them, a group on each at least; None when none can."""
    nodes = _fullest_first(tables, free)
    left = {node: (node & free).bit_count() for node in nodes}
    for size in range(_fewest(tables, count, group), min(count // group, len(nodes)) + 1):
        choices = combinations(nodes, size) if len(nodes) <= LISTED_NODES else iter([_roomiest(left, size)])
        best = min(_candidates(choices, left, count, group), key=lambda plan: plan.uneven, default=None)
        if best is not None:
            return best.shares
    return None


def _fullest_first(tables: CPUTables, free: int) -> list[int]:
    """Nodes with free CPUs in the kubelet's order: fewest free first, inside the fullest socket."""

    def filled(units: Sequence[int]) -> list[int]:
        return sorted([unit for unit in units if unit & free], key=lambda unit: (unit & free).bit_count())

    if tables.nodes_first:
        return filled(tables.node_sets)
    nodes = [node for socket in filled(tables.sockets) for node in filled(tables.nodes_in[socket])]
    return list(dict.fromkeys(nodes))


def _fewest(tables: CPUTables, count: int, group: int) -> int:
    """How many nodes of the average size `count` CPUs take, whatever is free."""
    cpus_per_node = -(-tables.online.bit_count() // len(tables.nodes))
    groups_per_node = -(-cpus_per_node // group)
    return -(-count // group // groups_per_node)


def _roomiest(left: dict[int, int], size: int) -> tuple[int, ...]:
    """The nodes with most free CPUs: with equal shares they leave the rest most even."""
    return tuple(sorted(left, key=lambda node: left[node], reverse=True)[:size])


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One division of the request among NUMA nodes.

    Attributes:
        uneven: standard deviation of the CPUs that stay free on the nodes.
        shares: CPUs of each node.
    """

    uneven: float
    shares: Shares


def _candidates(
    choices: Iterator[tuple[int, ...]], left: dict[int, int], count: int, group: int
) -> Iterator[_Candidate]:
    """One for each choice of nodes that can hold its shares; the order decides between equals."""
    for nodes in choices:
        share = count // len(nodes) // group * group
        if all(left[node] >= share for node in nodes):
            rest = left | {node: left[node] - share for node in nodes}
            remainder = (count - share * len(nodes)) // group
            shares = tuple((node, share) for node in nodes)
            yield from _with_remainder(_Candidate(_unevenness(rest), shares), nodes, rest, remainder, group)


def _with_remainder(
    even: _Candidate, nodes: tuple[int, ...], rest: dict[int, int], remainder: int, group: int
) -> Iterator[_Candidate]:
    """The best way to add `remainder` groups: over as many of the nodes as leaves the rest most even."""
    if not remainder:
        yield even
        return
    able = [node for node in nodes if rest[node] >= group]
    candidates = [
        _Candidate(_unevenness(rest | after), even.shares + extra)
        for takers in _takers(able, rest)
        for after, extra in _round_robin(takers, rest, remainder, group)
    ]
    if candidates:
        yield min(candidates, key=lambda candidate: candidate.uneven)


def _takers(able: list[int], rest: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """Sets of nodes that may share the remainder, the largest first."""
    if len(able) > LISTED_NODES:
        yield tuple(sorted(able, key=lambda node: rest[node], reverse=True))
        return
    for size in range(len(able), 0, -1):
        yield from combinations(able, size)


def _round_robin(
    takers: tuple[int, ...], rest: dict[int, int], remainder: int, group: int
) -> Iterator[tuple[dict[int, int], Shares]]:
    """The free CPUs that the takers leave, and the groups of each in turn; nothing when the remainder does not fit."""
    if sum(rest[node] // group for node in takers) < remainder:
        return
    after = {node: rest[node] for node in takers}
    extra: list[tuple[int, int]] = []
    while len(extra) < remainder:
        for node in takers:
            if after[node] >= group and len(extra) < remainder:
                after[node] -= group
                extra.append((node, group))
    yield after, tuple(extra)


def _unevenness(left: dict[int, int]) -> float:
    """Population standard deviation, with the kubelet's rounding of mean and result to 3 decimals."""
    mean = _rounded(sum(left.values()) / len(left))
    return _rounded(sqrt(sum((value - mean) ** 2 for value in left.values()) / len(left)))


def _rounded(value: float) -> float:
    return floor(value * 1000 + 0.5) / 1000
