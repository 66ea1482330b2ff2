"""The two searches of the merge: the best set that all hint sets prefer, and the best intersection.

The page of theory is in the docstring of the package. Both searches go through sizes. For each size they look for the
lowest set (`lowest_member`), which also shows whether there is any, and leave the best set to `closest`. The narrowest size
of a rule is found here too: hint providers need it to tell which of their hints are preferred.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, combinations, islice, product
from math import prod
from operator import sub

from nri_plugin.model import bits
from nri_plugin.policy.hints import HintRule, HintSet, Need
from nri_plugin.policy.search import BudgetSpentError, StepBudget
from nri_plugin.policy.search.closest import (
    Constraint,
    SearchSpace,
    can_exclude,
    closest,
    constraints_of,
    uses_of_excluding,
)
from nri_plugin.policy.search.mask_order import MaskOrder, band

# ----------------------------------------------------------------------------------------------------
# The lowest set of a rule.
#
# The search decides on nodes from the highest down, and leaves a node out before it puts it in. So it visits masks by
# ascending value, and the first that fits is the lowest. A branch ends when even the best of the nodes left cannot
# meet some need. With one need that bound is exact, so the search never goes back. With several it also
# watches their sum.


def narrowest_size(rule: HintRule, budget: StepBudget | None = None) -> int:
    """The smallest size of a member (a lower bound of it past the budget); 0 for an empty rule."""
    budget = budget or StepBudget()
    sizes = [_size_for(need, rule) for need in _with_sum(rule.needs)]
    first = max([rule.at_least, rule.required.bit_count(), *sizes])
    try:
        for size in range(first, rule.nodes.bit_count() + 1):
            if lowest_member(rule, size, budget) is not None:
                return size
    except BudgetSpentError:
        return first
    return 0


def _size_for(need: Need, rule: HintRule) -> int:
    """How many nodes this need alone takes; more than there are when it cannot be met."""
    have = sorted((need.by_node.get(node, 0) for node in bits.iterate(rule.nodes)), reverse=True)
    totals = enumerate(accumulate(have), 1)
    return next((size for size, total in totals if total >= need.amount), len(have) + 1)


def lowest_member(
    rule: HintRule, size: int, budget: StepBudget, accept: Callable[[int], bool] | None = None
) -> int | None:
    """The lowest mask of exactly `size` nodes in the rule, `at_least` aside, that `accept` lets pass.

    Raises:
        BudgetSpentError: `budget` ran out first.
    """
    fixed = rule.required
    if fixed & ~rule.nodes or fixed.bit_count() > size:
        return None
    nodes = list(bits.iterate(rule.nodes & ~fixed))
    # The sum of all needs is one more need. Nodes may have enough of each resource alone, and too little of the sum: this
    # ends branches that each need alone would keep.
    needs = _with_sum(rule.needs)
    amounts = [tuple(need.by_node.get(node, 0) for need in needs) for node in nodes]
    left = tuple(
        need.amount - sum(need.by_node.get(node, 0) for node in bits.iterate(fixed)) for need in needs
    )
    # Required nodes are in from the start. The search is for the other nodes, and for the amounts still missing.
    search = _LowestSearch(nodes, amounts, len(needs), budget, accept)
    return search.lowest(len(nodes), size - fixed.bit_count(), left, fixed)


def _with_sum(needs: Sequence[Need]) -> Sequence[Need]:
    """The needs, and one more that they imply: their sum, each weighted alike.

    Nodes that have much of one resource only may meet each need on its own, but not the sum. The amount of a node beyond
    a need does not count.
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


def roomiest(rule: HintRule, size: int) -> int:
    """The `size` nodes with most of all needs, each weighted alike; often a member of the rule, not always."""
    needs = _with_sum(rule.needs)[-1:]
    rest = list(bits.iterate(rule.nodes & ~rule.required))
    rest.sort(key=lambda node: sum(-need.by_node.get(node, 0) for need in needs))
    more = max(0, size - rule.required.bit_count())
    return rule.required | bits.from_ids(rest[:more])


class _LowestSearch:
    """Lowest mask of a given size that meets all needs, over nodes in ascending order."""

    def __init__(
        self,
        nodes: Sequence[int],
        amounts: Sequence[tuple[int, ...]],
        needs: int,
        budget: StepBudget,
        accept: Callable[[int], bool] | None,
    ) -> None:
        self.nodes = nodes
        self.amounts = amounts
        self.budget = budget
        self.accept = accept
        self.best = _best_sums(amounts, needs)

    def lowest(self, upto: int, size: int, left: tuple[int, ...], mask: int) -> int | None:
        """`mask` with the lowest `size` of the first `upto` nodes that have the amounts `left`."""
        # Depth first without recursion, as 64 nodes make deep branches. `next_up` is the branch in hand, which leaves the
        # highest node out. `later` holds branches that put it in: they lead to higher masks, so they wait.
        next_up = [(upto, size, left, mask)]
        later: list[tuple[int, int, tuple[int, ...], int]] = []
        while next_up or later:
            if not next_up:
                next_up.append(self._put_in(*later.pop()))
            upto, size, left, mask = next_up.pop()
            self.budget.step()
            if not self.can(upto, size, left):
                continue  # no selection of the first `upto` nodes has the amounts left
            if size:
                later.append((upto, size, left, mask))
                next_up.append((upto - 1, size, left, mask))
            elif self.accept is None or self.accept(mask):
                return mask
        return None

    def _put_in(
        self, upto: int, size: int, left: tuple[int, ...], mask: int
    ) -> tuple[int, int, tuple[int, ...], int]:
        """The branch in which the last of the first `upto` nodes is in."""
        rest = tuple(map(sub, left, self.amounts[upto - 1]))
        return upto - 1, size - 1, rest, mask | 1 << self.nodes[upto - 1]

    def can(self, upto: int, size: int, left: tuple[int, ...]) -> bool:
        """Whether `size` of the first `upto` nodes could have the amounts `left`, each need on its own."""
        return size <= upto and all(
            best[size] >= need for best, need in zip(self.best[upto], left, strict=True)
        )


def _best_sums(amounts: Sequence[tuple[int, ...]], needs: int) -> list[list[list[int]]]:
    """By number of first nodes, by need: the largest total that 0, 1, 2... of those nodes have."""
    # The lists hold negated amounts, because `insort` keeps them ascending.
    descending: list[list[int]] = [[] for _ in range(needs)]
    table = [[[0]] * needs]
    for of_node in amounts:
        for values, amount in zip(descending, of_node, strict=True):
            insort(values, -amount)
        table.append([[0, *(-total for total in accumulate(values))] for values in descending])
    return table


# ----------------------------------------------------------------------------------------------------
# The best intersection of one mask of each hint set, where some hint sets are rules.
#
# A hint set may have listed masks and a rule (memory: groups of nodes are listed, unused nodes are a rule). A pick takes
# from each hint set either one listed mask or the rule. The listed masks leave one set of nodes, `within`. A mask in it is
# an intersection when the rules can exclude all other nodes (`closest.can_exclude`).


def best_intersection(
    all_nodes: int, hint_sets: Sequence[HintSet], target: int, order: MaskOrder, budget: StepBudget
) -> int:
    """The best intersection of one mask of each hint set; 0 when all are empty.

    Best is: of size `target`, else narrower and then the widest, else wider and then the narrowest;
    by `order` among those of that size. Past the budget: the best found so far.
    """
    picks = [_Pick(within, rules, budget) for within, rules in _picks(all_nodes, hint_sets)]
    found = 0
    try:
        # Sizes in the order in which the merge prefers them: the first size with an intersection has the answer.
        for size in _sizes_by_band(target, all_nodes.bit_count()):
            for pick in picks:
                found = min(filter(None, (found, pick.best(size, order))), key=order.of, default=0)
            if found:
                return found
    except BudgetSpentError:
        return found or _quickly(picks, target, order)
    return 0


def _quickly(picks: Sequence["_Pick"], target: int, order: MaskOrder) -> int:
    """The best of a few possible sets, found without a search."""
    sets = [mask for pick in picks for mask in pick.some(target)]
    return min(sets, key=lambda mask: (band(mask.bit_count(), target), order.of(mask)))


def _sizes_by_band(target: int, largest: int) -> list[int]:
    return sorted(range(1, largest + 1), key=lambda size: band(size, target))


def _picks(all_nodes: int, hint_sets: Sequence[HintSet]) -> list[tuple[int, tuple[HintRule, ...]]]:
    """The distinct ways to pick listed masks: (their intersection, rules of the other hint sets)."""
    # A dictionary instead of a set keeps the order, so equal input gives an equal answer after equal steps.
    picks: dict[tuple[int, tuple[int, ...]], None] = {(all_nodes, ()): None}
    rules: dict[int, HintRule] = {}
    for number, hint_set in enumerate(hint_sets):
        masks = {mask & all_nodes for mask in hint_set.masks} | ({all_nodes} if hint_set.anywhere else set())
        grown = {(within & mask, chosen): None for within, chosen in picks for mask in masks}
        if hint_set.rule is not None:
            rules[number] = hint_set.rule
            grown |= {(within, (*chosen, number)): None for within, chosen in picks}
        picks = {pick: None for pick in grown if pick[0]}  # an empty intersection stays empty
    return [(within, tuple(rules[number] for number in chosen)) for within, chosen in picks]


@dataclass(frozen=True)
class _Pick:
    """Listed masks whose intersection is `within`, and a member of each rule still to be chosen."""

    within: int
    rules: tuple[HintRule, ...]
    budget: StepBudget

    @cached_property
    def common(self) -> int:
        """Nodes of `within` that all rules can use."""
        mask = self.within
        for rule in self.rules:
            mask &= rule.nodes
        return mask

    def best(self, size: int, order: MaskOrder) -> int:
        """The best intersection of `size` nodes, 0 if there is none."""
        if self.common.bit_count() < size or not self._has_any:
            return 0
        if not self.rules:
            return self.within if self.within.bit_count() == size else 0
        constraints = constraints_of(self.common, size, self.rules)

        def is_possible(mask: int) -> bool:
            return self._is_possible(mask, constraints)

        # The outline is a rule with all intersections among its members, and few other masks. So `lowest_member` can
        # search it, and checks each member that it finds.
        lowest = lowest_member(self._outline(constraints), size, self.budget, is_possible)
        if lowest is None or order.is_by_mask:
            return lowest or 0
        return closest(SearchSpace(self.common, size, self.rules, is_possible), order, lowest, self.budget)

    def some(self, target: int) -> Iterator[int]:
        """Intersections found without a search: `common`, and members of one rule alone.

        A member of one rule is an intersection, because the other rules may keep all of their nodes.
        """
        if not self.common or not self._has_any:
            return
        yield self.common
        for rule in self.rules:
            inside = replace(rule, nodes=self.common)
            found = (roomiest(inside, size) for size in _sizes_by_band(target, self.common.bit_count()))
            yield from islice((mask for mask in found if mask in inside), 1)

    @property
    def _has_any(self) -> bool:
        """Whether each rule has a member."""
        return all(rule.nodes in rule for rule in self.rules)

    def _outline(self, constraints: Sequence[Constraint]) -> HintRule:
        """A rule with all intersections among its members, and other masks.

        By the last constraint the excluded nodes may use its capacity at most, each where it uses least. So the nodes
        of an intersection must hold the rest of the sum over all nodes: that is a need.
        """
        takes = {node: uses_of_excluding(node, self.rules, constraints) for node in bits.iterate(self.common)}
        forced = bits.from_ids(node for node, choices in takes.items() if not choices)
        if not constraints:
            return HintRule(self.common, forced, (), 0)
        least = {node: min(use[-1] for use in choices) for node, choices in takes.items() if choices}
        return HintRule(
            self.common, forced, (Need(sum(least.values()) - constraints[-1].capacity, least),), 0
        )

    def _is_possible(self, mask: int, constraints: Sequence[Constraint]) -> bool:
        # a member of one rule is an intersection: the other rules keep all of their nodes
        if any(mask in rule for rule in self.rules):
            return True
        return can_exclude(bits.iterate(self.common & ~mask), self.rules, constraints, self.budget)


# ----------------------------------------------------------------------------------------------------
# The best set that all rules prefer.
#
# A rule prefers its members of one size. With align-by-socket it also prefers members that touch the fewest sockets,
# whatever their size. Each choice of these sockets makes a smaller rule whose members are all preferred. A set that all
# rules prefer is then a member of several rules at once, and their conjunction is one rule again.


def best_agreed(rules: Sequence[HintRule], order: MaskOrder, budget: StepBudget) -> int | None:
    """The narrowest, then best, of the sets that every rule prefers; None if there is none.

    Past the budget: the best found so far, or None although there may be one.
    """
    for size in _preferred_sizes(rules):
        found: list[int] = []
        try:
            for parts in product(*(list(_preferred(rule, size)) for rule in rules)):
                budget.step()
                # Of the sizes only the first with a set counts, but at one size each choice of sockets may have a set.
                found += _best_in(_conjunction(parts), size, order, budget)
        except BudgetSpentError:
            pass  # the best found so far is the answer
        if found:
            return min(found, key=order.of)
    return None


def _preferred_sizes(rules: Sequence[HintRule]) -> list[int]:
    """Those that each rule may prefer a member of, ascending."""
    fixed = {rule.preferred_size for rule in rules if not rule.fewest_sockets}
    largest = min(rule.nodes.bit_count() for rule in rules)
    return [size for size in range(1, largest + 1) if fixed <= {size}]


def _preferred(rule: HintRule, size: int) -> Iterator[HintRule]:
    """Rules whose members of `size` nodes are those that `rule` prefers."""
    if size == rule.preferred_size:
        yield rule
        return
    for sockets in combinations(rule.sockets, rule.fewest_sockets):
        others = [nodes for nodes in rule.sockets if nodes not in sockets]
        touched = tuple(Need(1, dict.fromkeys(bits.iterate(nodes), 1)) for nodes in sockets)
        nodes = rule.nodes
        for other in others:
            nodes &= ~other
        yield replace(rule, nodes=nodes, needs=rule.needs + touched)


def _conjunction(rules: Sequence[HintRule]) -> HintRule:
    """The masks that are in every rule."""
    nodes, required = rules[0].nodes, 0
    needs: list[Need] = []
    for rule in rules:
        nodes &= rule.nodes
        required |= rule.required
        needs += [need for need in rule.needs if need not in needs]
    return HintRule(nodes, required, tuple(needs), 0, max(rule.at_least for rule in rules))


def _best_in(rule: HintRule, size: int, order: MaskOrder, budget: StepBudget) -> list[int]:
    """The best member of `size` nodes, if there is one."""
    lowest = lowest_member(rule, size, budget) if size >= rule.at_least else None
    if lowest is None or order.is_by_mask:
        return [] if lowest is None else [lowest]
    # There is a set that all prefer, so no intersection will be searched: its share of the steps is free for this search.
    budget.release()
    return [closest(SearchSpace(rule.nodes, size, (rule,), rule.__contains__), order, lowest, budget)]
