"""Which CPUs a container gets when they are spread evenly over NUMA nodes: distribute-cpus-across-numa.

The fewest nodes that can hold equal shares are used, and of their combinations
the one that leaves the free CPUs of all nodes most even. What does not divide
goes one group of CPUs at a time to some of the chosen nodes, again so that the
rest stays even. Where no combination works the request is packed.

Source: kubelet v1.36 pkg/kubelet/cm/cpumanager/cpu_assignment.go (takeByTopologyNUMADistributed).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import floor, sqrt

from nri_plugin.cpuset import CPUSet
from nri_plugin.policy.cpu_assignment import take_packed
from nri_plugin.policy.hints import LISTED_NODES
from nri_plugin.policy.tables import CPUTables
from nri_plugin.policy.taking import Note, Stage

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
        available: CPUs on offer.
        count: how many are wanted; no multiple of `group` is packed.
        group: every share is a multiple of this (the threads of a core under full-pcpus-only).
        spread: how CPUs are chosen inside a node, see `take_packed`.
        note: told of each step.

    Raises:
        InsufficientCPUsError: fewer CPUs are available than asked for.

    Differs: the kubelet goes on overwriting the combination it remembers, and never ends where a
        remainder of whole groups does not fit; here the one that was scored is used, and one without
        room for its remainder is passed over. Beyond eight NUMA nodes, where it would try every
        combination of every size, the nodes with most free CPUs are chosen.
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
            note(Stage.EQUAL_SHARE, there)
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
    """One way to share out the request.

    Attributes:
        uneven: standard deviation of what stays free on the nodes.
        shares: the way.
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
    ways = [
        _Candidate(_unevenness(rest | after), even.shares + extra)
        for takers in _takers(able, rest)
        for after, extra in _round_robin(takers, rest, remainder, group)
    ]
    if ways:
        yield min(ways, key=lambda way: way.uneven)


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
    """What stays free of the takers, and who gets which groups in turn; nothing when it does not fit."""
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
