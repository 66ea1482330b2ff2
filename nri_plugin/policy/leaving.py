"""Which nodes families can do without.

Several families meet in a set of nodes when each has a member around it, and each other node is missing
from one of these members at least. So the others are dealt out: each to one family that leaves it out.
What a family can spare of a need, it can leave out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import sub

from nri_plugin import bits
from nri_plugin.policy.budget import Budget
from nri_plugin.policy.hints import Family, Need


@dataclass(frozen=True, slots=True)
class Limit:
    """What may be left out in all.

    Attributes:
        spare: how much.
        uses: by family, by node, what leaving the node out of that family takes of it.
    """

    spare: int
    uses: tuple[dict[int, int], ...]


def limits_of(common: int, size: int, families: Sequence[Family]) -> list[Limit]:
    """What each family can spare of each need, where `size` nodes of `common` may not be enough for it.

    What a node has beyond a need does not count. With several families a last limit follows from the
    others: all together, weighted alike. It bounds what a node takes that any of the families may leave out.
    """
    asked = [
        (number, need)
        for number, family in enumerate(families)
        for need in (*family.needs, Need(family.at_least, dict.fromkeys(bits.iterate(family.nodes), 1)))
        if _can_matter(need, family.nodes, common, size)
    ]
    nodes = list(bits.iterate(common))
    limits = []
    for number, need in asked:
        uses = [dict.fromkeys(nodes, 0)] * len(families)
        uses[number] = {node: need.capped(node) for node in nodes}
        limits.append(Limit(_all_of(need, families[number].nodes) - need.amount, tuple(uses)))
    product = prod(need.amount for _, need in asked)
    weights = [product // need.amount for _, need in asked]
    return [*limits, _sum_of(limits, weights)] if len(limits) > 1 and len(families) > 1 else limits


def _can_matter(need: Need, nodes: int, common: int, size: int) -> bool:
    """Whether leaving out all but `size` nodes could break the need."""
    largest = sorted((need.capped(node) for node in bits.iterate(common)), reverse=True)
    left_out = sum(largest[: common.bit_count() - size])
    return _all_of(need, nodes) - left_out < need.amount


def _all_of(need: Need, nodes: int) -> int:
    return sum(need.capped(node) for node in bits.iterate(nodes))


def _sum_of(limits: Sequence[Limit], weights: Sequence[int]) -> Limit:
    pairs = list(zip(limits, weights, strict=True))
    uses = [
        {node: sum(weight * limit.uses[number][node] for limit, weight in pairs) for node in of_family}
        for number, of_family in enumerate(limits[0].uses)
    ]
    return Limit(sum(weight * limit.spare for limit, weight in pairs), tuple(uses))


def ways_to_leave(node: int, families: Sequence[Family], limits: Sequence[Limit]) -> set[tuple[int, ...]]:
    """What it takes of each limit when one of the families leaves the node out; empty when none can."""
    return {
        tuple(limit.uses[number][node] for limit in limits)
        for number, family in enumerate(families)
        if not family.required >> node & 1
    }


def can_leave(
    nodes: Iterable[int], families: Sequence[Family], limits: Sequence[Limit], budget: Budget
) -> bool:
    """Whether each of `nodes` can be left out by a family.

    Raises:
        BudgetSpentError: the budget ran out.
    """
    ways = [ways_to_leave(node, families, limits) for node in nodes]
    if not all(ways):
        return False
    costly = [sorted(of_node) for of_node in ways if all(map(any, of_node))]
    costly.sort(key=lambda of_node: -min(use[-1] for use in of_node))
    return _are_dealt(costly, tuple(limit.spare for limit in limits), budget)


def _are_dealt(ways: Sequence[Sequence[tuple[int, ...]]], spare: tuple[int, ...], budget: Budget) -> bool:
    """Whether a way can be found for each node; what is left then is not looked at twice."""
    least = [min(use[-1] for use in of_node) for of_node in ways]
    rest = list(accumulate(reversed(least)))[::-1]
    seen: set[tuple[int, tuple[int, ...]]] = set()
    open_ends = [(0, spare)]
    while open_ends:
        place, left = open_ends.pop()
        if place == len(ways):
            return True
        budget.step()
        if rest[place] <= left[-1] and (place, left) not in seen:
            seen.add((place, left))
            further = [tuple(map(sub, left, use)) for use in reversed(ways[place])]
            open_ends += [(place + 1, after) for after in further if min(after) >= 0]
    return False
