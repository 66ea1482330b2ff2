"""Finding masks in families too large to list: machines of more than eight NUMA nodes.

Masks are tried from the highest node down, "leave it out" before "put it in",
which visits them by ascending value: the first that fits is the lowest. A
branch is cut when even the best of the nodes left cannot meet some need. With
one need that bound is exact and nothing is ever taken back; with several the
sum of all needs is watched too, and the search is bounded by a number of steps,
never by time.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from operator import sub

from nri_plugin import bits
from nri_plugin.policy.budget import Budget, BudgetSpentError
from nri_plugin.policy.hints import Family, Need


def narrowest_size(family: Family, budget: Budget | None = None) -> int:
    """The smallest size of a member (a lower bound of it past the budget); 0 for an empty family."""
    budget = budget or Budget()
    sizes = [_size_for(need, family) for need in _with_sum(family.needs)]
    first = max([family.at_least, family.required.bit_count(), *sizes])
    try:
        for size in range(first, family.nodes.bit_count() + 1):
            if lowest_member(family, size, budget) is not None:
                return size
    except BudgetSpentError:
        return first
    return 0


def _size_for(need: Need, family: Family) -> int:
    """How many nodes this need alone takes; more than there are when it cannot be met."""
    have = sorted((need.by_node.get(node, 0) for node in bits.iterate(family.nodes)), reverse=True)
    totals = enumerate(accumulate(have), 1)
    return next((size for size, total in totals if total >= need.amount), len(have) + 1)


def lowest_member(
    family: Family, size: int, budget: Budget, accept: Callable[[int], bool] | None = None
) -> int | None:
    """The lowest mask of exactly `size` nodes in the family, `at_least` aside, that `accept` lets pass.

    Raises:
        BudgetSpentError: `budget` ran out first.
    """
    fixed = family.required
    if fixed & ~family.nodes or fixed.bit_count() > size:
        return None
    nodes = list(bits.iterate(family.nodes & ~fixed))
    needs = _with_sum(family.needs)
    amounts = [tuple(need.by_node.get(node, 0) for need in needs) for node in nodes]
    left = tuple(
        need.amount - sum(need.by_node.get(node, 0) for node in bits.iterate(fixed)) for need in needs
    )
    search = _Search(nodes, amounts, len(needs), budget, accept)
    return search.lowest(len(nodes), size - fixed.bit_count(), left, fixed)


def _with_sum(needs: Sequence[Need]) -> Sequence[Need]:
    """The needs, and one more that they imply: their sum, each weighted alike.

    Nodes that are good for one need only look enough for each need on its own, but not for the sum.
    What a node has beyond a need does not count in it.
    """
    asked = [need for need in needs if need.amount > 0]
    if len(asked) < 2:
        return needs
    product = prod(need.amount for need in asked)
    nodes = {node for need in asked for node in need.by_node}
    by_node = {
        node: sum(min(need.by_node.get(node, 0), need.amount) * (product // need.amount) for need in asked)
        for node in nodes
    }
    return (*needs, Need(product * len(asked), by_node))


def roomiest(family: Family, size: int) -> int:
    """The `size` nodes that have most, each need weighted alike; often a member of the family, not always."""
    needs = _with_sum(family.needs)[-1:]
    rest = list(bits.iterate(family.nodes & ~family.required))
    rest.sort(key=lambda node: sum(-need.by_node.get(node, 0) for need in needs))
    more = max(0, size - family.required.bit_count())
    return family.required | bits.from_ids(rest[:more])


class _Search:
    """Lowest mask of a given size that meets all needs, over nodes in ascending order."""

    def __init__(
        self,
        nodes: Sequence[int],
        amounts: Sequence[tuple[int, ...]],
        needs: int,
        budget: Budget,
        accept: Callable[[int], bool] | None,
    ) -> None:
        self.nodes = nodes
        self.amounts = amounts
        self.budget = budget
        self.accept = accept
        self.best = _best_sums(amounts, needs)

    def lowest(self, upto: int, size: int, left: tuple[int, ...], mask: int) -> int | None:
        """`mask` with the lowest `size` of the first `upto` nodes that meet what is `left`."""
        open_ends = [(upto, size, left, mask)]
        later: list[tuple[int, int, tuple[int, ...], int]] = []
        while open_ends or later:
            if not open_ends:
                open_ends.append(self._put_in(*later.pop()))
            upto, size, left, mask = open_ends.pop()
            self.budget.step()
            if not self.can(upto, size, left):
                continue
            if size:
                later.append((upto, size, left, mask))
                open_ends.append((upto - 1, size, left, mask))
            elif self.accept is None or self.accept(mask):
                return mask
        return None

    def _put_in(
        self, upto: int, size: int, left: tuple[int, ...], mask: int
    ) -> tuple[int, int, tuple[int, ...], int]:
        """What is still to be done once the last of the first `upto` nodes is in."""
        rest = tuple(map(sub, left, self.amounts[upto - 1]))
        return upto - 1, size - 1, rest, mask | 1 << self.nodes[upto - 1]

    def can(self, upto: int, size: int, left: tuple[int, ...]) -> bool:
        """Whether `size` of the first `upto` nodes could meet what is left, each need on its own."""
        return size <= upto and all(
            best[size] >= need for best, need in zip(self.best[upto], left, strict=True)
        )


def _best_sums(amounts: Sequence[tuple[int, ...]], needs: int) -> list[list[list[int]]]:
    """By number of first nodes, by need: the largest total that 0, 1, 2... of those nodes have."""
    descending: list[list[int]] = [[] for _ in range(needs)]
    table = [[[0]] * needs]
    for of_node in amounts:
        for values, amount in zip(descending, of_node, strict=True):
            insort(values, -amount)
        table.append([[0, *(-total for total in accumulate(values))] for values in descending])
    return table
