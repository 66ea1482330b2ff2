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

from nri_plugin import bits
from nri_plugin.policy.hints import Family, Need

STEP_BUDGET = 4_000
"""Steps of one search; about 10 ms on the machine of the first bench."""


class BudgetSpentError(Exception):
    """The step budget of a search ran out; caught by the searches, never seen outside."""


class Budget:
    """Counts the steps of one search."""

    __slots__ = ("left",)

    def __init__(self, steps: int = STEP_BUDGET) -> None:
        self.left = steps

    def step(self) -> None:
        """Count one step.

        Raises:
            BudgetSpentError: there are none left.
        """
        self.left -= 1
        if self.left < 0:
            raise BudgetSpentError


def lowest_preferred(families: Sequence[Family], budget: Budget | None = None) -> int | None:
    """The lowest mask that is a preferred member of every family; None if there is none.

    Past the budget the answer is None too: the outcome is then at worst called not preferred.
    """
    size = families[0].preferred_size
    if any(family.preferred_size != size or size < family.at_least for family in families):
        return None
    try:
        return lowest_member(_conjunction(families), size, budget or Budget())
    except BudgetSpentError:
        return None


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


def _conjunction(families: Sequence[Family]) -> Family:
    """The masks that are in every family, `at_least` aside."""
    nodes, required = families[0].nodes, 0
    needs: list[Need] = []
    for family in families:
        nodes &= family.nodes
        required |= family.required
        needs += [need for need in family.needs if need not in needs]
    return Family(nodes, required, tuple(needs), families[0].preferred_size)


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
    search = _Search(nodes, amounts, budget, accept)
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


class _Search:
    """Lowest mask of a given size that meets all needs, over nodes in ascending order."""

    def __init__(
        self,
        nodes: Sequence[int],
        amounts: Sequence[tuple[int, ...]],
        budget: Budget,
        accept: Callable[[int], bool] | None,
    ) -> None:
        self.nodes = nodes
        self.amounts = amounts
        self.budget = budget
        self.accept = accept
        self.best = _best_sums(amounts)

    def lowest(self, upto: int, size: int, left: tuple[int, ...], mask: int) -> int | None:
        """`mask` with the lowest `size` of the first `upto` nodes that meet what is `left`."""
        self.budget.step()
        if not self.can(upto, size, left):
            return None
        if not size:
            return mask if self.accept is None or self.accept(mask) else None
        without = self.lowest(upto - 1, size, left, mask)
        if without is not None:
            return without
        rest = tuple(need - amount for need, amount in zip(left, self.amounts[upto - 1], strict=True))
        return self.lowest(upto - 1, size - 1, rest, mask | 1 << self.nodes[upto - 1])

    def can(self, upto: int, size: int, left: tuple[int, ...]) -> bool:
        """Whether `size` of the first `upto` nodes could meet what is left, each need on its own."""
        if not 0 <= size <= upto:
            return False
        return all(best[size] >= need for best, need in zip(self.best[upto], left, strict=False))


def _best_sums(amounts: Sequence[tuple[int, ...]]) -> list[list[list[int]]]:
    """By number of first nodes, by need: the largest total that 0, 1, 2... of those nodes have."""
    needs = len(amounts[0]) if amounts else 0
    descending: list[list[int]] = [[] for _ in range(needs)]
    table = [[[0]] * needs]
    for of_node in amounts:
        for values, amount in zip(descending, of_node, strict=True):
            insort(values, -amount)
        table.append([[0, *(-total for total in accumulate(values))] for values in descending])
    return table
