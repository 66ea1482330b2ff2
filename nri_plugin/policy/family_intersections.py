"""The best intersection of one mask of each wish, where some wishes are families.

A mask is an intersection when each family has a member that contains it and
every other node is missing from one of these members at least. So, for a mask,
the other nodes are dealt out: each to one family that can do without it.
Masks are tried in the order of preference; the first that works is the answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from nri_plugin import bits
from nri_plugin.policy.family_search import Budget, BudgetSpentError, lowest_member
from nri_plugin.policy.hints import Family, Need, Wish


def best_intersection(
    all_nodes: int, wishes: Sequence[Wish], target: int, budget: Budget | None = None
) -> int:
    """The best intersection of one mask of each wish; 0 when all are empty.

    Best is: of size `target`, else narrower and then the widest, else wider and then the narrowest;
    the lowest mask of that size. Past the budget: the widest set of nodes that some pick of the
    listed masks leaves to all families in common.
    """
    budget = budget or Budget()
    picks = [_Pick(within, families, budget) for within, families in _picks(all_nodes, wishes)]
    try:
        for size in _sizes(target, all_nodes.bit_count()):
            found = [mask for mask in (pick.lowest(size) for pick in picks) if mask]
            if found:
                return min(found)
    except BudgetSpentError:
        pass
    return max((pick.common for pick in picks), key=int.bit_count, default=0)


def _sizes(target: int, largest: int) -> list[int]:
    return [*range(min(target, largest), 0, -1), *range(target + 1, largest + 1)]


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

    @property
    def common(self) -> int:
        """Nodes of `within` that all families can use."""
        mask = self.within
        for family in self.families:
            mask &= family.nodes
        return mask

    def lowest(self, size: int) -> int:
        """The lowest intersection of `size` nodes, 0 if there is none."""
        if not self.families:
            return self.within if self.within.bit_count() == size else 0
        if any(family.nodes not in family for family in self.families):
            return 0
        return lowest_member(self._outline, size, self.budget, self._works) or 0

    @cached_property
    def _outline(self) -> Family:
        """A family that holds all intersections, and more: what is left out costs a family something.

        What all families together can spare bounds what all nodes outside the mask cost, each at
        the family for which it is cheapest. Put the other way round, a mask must hold the rest.
        """
        common, outline = self.common, [_Outline.of(family) for family in self.families]
        forced = common
        for family in self.families:
            forced &= family.required
        scale = prod(one.scale for one in outline)
        cost = {
            node: min(
                one.cost.get(node, 0) * (scale // one.scale)
                for one in outline
                if not one.family.required >> node & 1
            )
            for node in bits.iterate(common & ~forced)
        }
        spare = sum(one.spare * (scale // one.scale) for one in outline)
        return Family(common, forced, (Need(sum(cost.values()) - spare, cost),), 0)

    def _works(self, mask: int) -> bool:
        contested = list(bits.iterate(self.common & ~mask))
        spare = [_Spare.of(family) for family in self.families]
        if sum(one.most(contested) for one in spare) < len(contested):
            return False
        return self._deal(contested, spare)

    def _deal(self, contested: Sequence[int], spare: Sequence["_Spare"]) -> bool:
        """Whether each contested node can be left out of some member."""
        self.budget.step()
        if not contested:
            return True
        for number, one in enumerate(spare):
            less = one.without(contested[-1])
            if less and self._deal(contested[:-1], [*spare[:number], less, *spare[number + 1 :]]):
                return True
        return False


@dataclass(frozen=True, slots=True)
class _Outline:
    """A family's needs as one: each weighted alike, so that meeting one in full is worth `scale`.

    What a node has beyond a need does not count.

    Attributes:
        family: whose.
        scale: of the amounts.
        cost: by node, what leaving it out takes away.
        spare: what the largest member can lose.
    """

    family: Family
    scale: int
    cost: Mapping[int, int]
    spare: int

    @classmethod
    def of(cls, family: Family) -> "_Outline":
        asked = [need for need in family.needs if need.amount > 0]
        scale = prod(need.amount for need in asked)
        cost = {
            node: sum(min(need.by_node.get(node, 0), need.amount) * (scale // need.amount) for need in asked)
            for node in bits.iterate(family.nodes)
        }
        return cls(family, scale, cost, sum(cost.values()) - scale * len(asked))


@dataclass(frozen=True, slots=True)
class _Spare:
    """What a family's largest member can still lose: per need an amount, and a number of nodes."""

    family: Family
    amounts: tuple[int, ...]
    nodes: int

    @classmethod
    def of(cls, family: Family) -> "_Spare":
        amounts = tuple(
            sum(need.by_node.get(node, 0) for node in bits.iterate(family.nodes)) - need.amount
            for need in family.needs
        )
        return cls(family, amounts, family.nodes.bit_count() - family.at_least)

    def without(self, node: int) -> "_Spare | None":
        """What is left when `node` goes; None when it cannot."""
        if self.family.required >> node & 1 or not self.nodes:
            return None
        needs = zip(self.amounts, self.family.needs, strict=True)
        left = tuple(amount - need.by_node.get(node, 0) for amount, need in needs)
        return _Spare(self.family, left, self.nodes - 1) if min(left, default=0) >= 0 else None

    def most(self, nodes: Iterable[int]) -> int:
        """An upper bound of how many of `nodes` can go."""
        open_nodes = [node for node in nodes if not self.family.required >> node & 1]
        bounds = [self.nodes, len(open_nodes)]
        for amount, need in zip(self.amounts, self.family.needs, strict=True):
            smallest = sorted(need.by_node.get(node, 0) for node in open_nodes)
            bounds.append(sum(total <= amount for total in accumulate(smallest)))
        return min(bounds)
