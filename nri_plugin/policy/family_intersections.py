"""The best intersection of one mask of each wish, where some wishes are families.

A mask is an intersection when each family has a member that contains it and
every other node is missing from one of these members at least. So, for a mask,
the other nodes are dealt out: each to one family that can do without it.
Masks are tried in the order of preference; the first that works is the answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from nri_plugin import bits
from nri_plugin.policy.budget import Budget, BudgetSpentError
from nri_plugin.policy.closest import Region, closest
from nri_plugin.policy.family_search import lowest_member, roomiest
from nri_plugin.policy.hints import Family, Need, Wish
from nri_plugin.policy.leaving import Limit, can_leave, limits_of, ways_to_leave
from nri_plugin.policy.order import Order, band


def best_intersection(
    all_nodes: int, wishes: Sequence[Wish], target: int, order: Order, budget: Budget
) -> int:
    """The best intersection of one mask of each wish; 0 when all are empty.

    Best is: of size `target`, else narrower and then the widest, else wider and then the narrowest;
    by `order` among those of that size. Past the budget: the best found so far.
    """
    picks = [_Pick(within, families, budget) for within, families in _picks(all_nodes, wishes)]
    found = 0
    try:
        for size in _sizes(target, all_nodes.bit_count()):
            for pick in picks:
                found = min(filter(None, (found, pick.best(size, order))), key=order.of, default=0)
            if found:
                return found
    except BudgetSpentError:
        return found or _quickly(picks, target, order)
    return 0


def _quickly(picks: Sequence["_Pick"], target: int, order: Order) -> int:
    """The best of a few sets that are possible: of each pick what all can use, and what does for one alone."""
    sets = [mask for pick in picks for mask in pick.some(target)]
    return min(sets, key=lambda mask: (band(mask.bit_count(), target), order.of(mask)))


def _sizes(target: int, largest: int) -> list[int]:
    return sorted(range(1, largest + 1), key=lambda size: band(size, target))


def _picks(all_nodes: int, wishes: Sequence[Wish]) -> list[tuple[int, tuple[Family, ...]]]:
    """The distinct ways to pick listed masks: (their intersection, families of the other wishes)."""
    picks: dict[tuple[int, tuple[int, ...]], None] = {(all_nodes, ()): None}
    families: dict[int, Family] = {}
    for number, wish in enumerate(wishes):
        masks = {mask & all_nodes for mask in wish.masks} | ({all_nodes} if wish.anywhere else set())
        grown = {(within & mask, chosen): None for within, chosen in picks for mask in masks}
        if wish.family is not None:
            families[number] = wish.family
            grown |= {(within, (*chosen, number)): None for within, chosen in picks}
        picks = {pick: None for pick in grown if pick[0]}
    return [(within, tuple(families[number] for number in chosen)) for within, chosen in picks]


@dataclass(frozen=True)
class _Pick:
    """Listed masks whose intersection is `within`, and a member of each family still to be chosen."""

    within: int
    families: tuple[Family, ...]
    budget: Budget

    @cached_property
    def common(self) -> int:
        """Nodes of `within` that all families can use."""
        mask = self.within
        for family in self.families:
            mask &= family.nodes
        return mask

    def best(self, size: int, order: Order) -> int:
        """The best intersection of `size` nodes, 0 if there is none."""
        if self.common.bit_count() < size or not self._has_any:
            return 0
        if not self.families:
            return self.within if self.within.bit_count() == size else 0
        limits = limits_of(self.common, size, self.families)

        def holds(mask: int) -> bool:
            return self._works(mask, limits)

        lowest = lowest_member(self._outline(limits), size, self.budget, holds)
        if lowest is None or order.is_by_mask:
            return lowest or 0
        return closest(Region(self.common, size, self.families, holds), order, lowest, self.budget)

    def some(self, target: int) -> Iterator[int]:
        """Intersections found without a search: `common`, and sets that do for one family alone.

        The other families may have all nodes then.
        """
        if not self.common or not self._has_any:
            return
        yield self.common
        for family in self.families:
            inside = replace(family, nodes=self.common)
            found = (roomiest(inside, size) for size in _sizes(target, self.common.bit_count()))
            yield from islice((mask for mask in found if mask in inside), 1)

    @property
    def _has_any(self) -> bool:
        """Whether each family has a member."""
        return all(family.nodes in family for family in self.families)

    def _outline(self, limits: Sequence[Limit]) -> Family:
        """A family that holds all intersections, and more.

        What all families together can spare bounds what all nodes outside the mask take, each at the
        family for which it takes least. Put the other way round, a mask must hold the rest.
        """
        takes = {node: ways_to_leave(node, self.families, limits) for node in bits.iterate(self.common)}
        forced = bits.from_ids(node for node, ways in takes.items() if not ways)
        if not limits:
            return Family(self.common, forced, (), 0)
        least = {node: min(use[-1] for use in ways) for node, ways in takes.items() if ways}
        return Family(self.common, forced, (Need(sum(least.values()) - limits[-1].spare, least),), 0)

    def _works(self, mask: int, limits: Sequence[Limit]) -> bool:
        if any(mask in family for family in self.families):
            return True
        return can_leave(bits.iterate(self.common & ~mask), self.families, limits, self.budget)
