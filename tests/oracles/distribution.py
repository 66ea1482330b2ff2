"""Equal shares over NUMA nodes, slowly: every combination tried, as the rules of distribute-cpus-across-numa say.

Written from the rules, not from the fast code. A remembered combination is a copy, unlike the reference's.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import ceil, floor, sqrt

from tests.oracles.assignment import NODE, Machine, Row, packed


def distributed(
    rows: Sequence[Row], available: set[int], count: int, *, group: int, spread: bool = False
) -> set[int] | None:
    """The CPUs chosen; None when there are too few.

    Raises:
        NeverReturnsError: the reference would go on for ever.
    """
    machine = Machine(rows, available, count)
    if count <= 0 or count % group:
        return packed(rows, available, count, by_cache=False, spread=spread)
    if len(machine.free) < count:
        return None
    plan = _plan(machine, count, group)
    if plan is None:
        return packed(rows, available, count, by_cache=False, spread=spread)
    for node, share in plan:
        chosen = packed(rows, machine.free_of(NODE, node), share, by_cache=False, spread=spread)
        machine.give(chosen or set())
    return machine.result


class NeverReturnsError(Exception):
    """What is left over fits by number of CPUs, not by whole groups."""


def _plan(machine: Machine, count: int, group: int) -> list[tuple[int, int]] | None:
    nodes = machine.order(NODE)
    free = {node: len(machine.free_of(NODE, node)) for node in nodes}
    groups = count // group
    groups_a_node = ceil(ceil(len(machine.rows) / group) / len(machine.ids(NODE)))
    for size in range(ceil(groups / groups_a_node), min(groups, len(nodes)) + 1):
        best, chosen = None, None
        for combination in combinations(nodes, size):
            if sum(free[node] // group for node in combination) < groups:
                continue
            score, shares = _best_of(combination, free, count, group)
            if shares is not None and (best is None or score < best):
                best, chosen = score, shares
        if chosen is not None:
            return chosen
    return None


def _best_of(
    combination: tuple[int, ...], free: dict[int, int], count: int, group: int
) -> tuple[float, list[tuple[int, int]] | None]:
    share = count // len(combination) // group * group
    if any(free[node] < share for node in combination):
        return 0, None
    left = {node: amount - share * (node in combination) for node, amount in free.items()}
    shares = [(node, share) for node in combination]
    over = count - share * len(combination)
    if not over:
        return _unevenness(left), shares
    best, chosen = None, None
    for takers in _subsets([node for node in combination if left[node] >= group]):
        if sum(left[node] for node in takers) < over:
            continue
        after, turns = _in_turn(takers, left, over, group)
        if best is None or _unevenness(after) < best:
            best, chosen = _unevenness(after), shares + turns
    return best or 0, chosen


def _subsets(nodes: list[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(nodes), 0, -1):
        yield from combinations(nodes, size)


def _in_turn(
    takers: tuple[int, ...], left: dict[int, int], over: int, group: int
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    after, turns = dict(left), []
    while over:
        before = over
        for node in takers:
            if over and after[node] >= group:
                after[node] -= group
                over -= group
                turns.append((node, group))
        if over == before:
            raise NeverReturnsError
    return after, turns


def _unevenness(left: dict[int, int]) -> float:
    mean = _to_thousandths(sum(left.values()) / len(left))
    return _to_thousandths(sqrt(sum((amount - mean) ** 2 for amount in left.values()) / len(left)))


def _to_thousandths(value: float) -> float:
    return floor(value * 1000 + 0.5) / 1000
