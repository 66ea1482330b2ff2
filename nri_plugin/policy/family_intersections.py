"""The best intersection of one mask of each wish, where some wishes are families.

A mask is an intersection when each family has a member that contains it and
every other node is missing from one of these members at least. So, for a mask,
the other nodes are dealt out: each to one family that can do without it.
Masks are tried in the order of preference; the first that works is the answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from nri_plugin import bits
from nri_plugin.policy.family_search import Budget, BudgetSpentError
from nri_plugin.policy.hints import Family, Wish


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
        nodes = list(bits.iterate(self.common))
        return self._ascend(nodes, len(nodes), size, 0)

    def _ascend(self, nodes: Sequence[int], upto: int, size: int, mask: int) -> int:
        self.budget.step()
        if size > upto:
            return 0
        if not size:
            return mask if self._works(mask) else 0
        found = self._ascend(nodes, upto - 1, size, mask)
        return found or self._ascend(nodes, upto - 1, size - 1, mask | 1 << nodes[upto - 1])

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
