"""The best of the sets of one size that a merge could end in, by distance and tie break.

A set is possible when the nodes in common outside of it can be left out by somebody: with one family, by
that one; with several, each node by one of them at least (`family_intersections.py`). Distance, rank and
mask are put into one number that adds up over nodes and pairs of nodes, so that one search finds the
best in all three. It is made without the needs first: where there is room, that is the answer.

On machines built in levels (`joints.py`) bounds (`prices.py`) leave few ways (`ways.py`) to look at: up to
64 nodes the budget has been enough for every hint. With levels on two planes (`planes.py`) it is for all
up to 32 nodes but some of best-fit, and for 9 of 10 and more on 64. On all others it is branch and bound
(`apart.py`), which ends with the budget more often than not past some 20 nodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.policy.apart import Apart
from nri_plugin.policy.budget import Budget, BudgetSpentError
from nri_plugin.policy.clusters import Layout
from nri_plugin.policy.hints import Family
from nri_plugin.policy.joints import NEVER, joints_of
from nri_plugin.policy.leaving import Limit, limits_of, ways_to_leave
from nri_plugin.policy.order import Order
from nri_plugin.policy.planes import Turns
from nri_plugin.policy.prices import Prices
from nri_plugin.policy.tie_break import Share, TieBreak
from nri_plugin.policy.ways import Chooser, Item, Way


@dataclass(frozen=True, slots=True)
class Region:
    """Sets of `size` nodes out of `common`.

    Attributes:
        common: mask of the nodes to choose from.
        size: how many.
        families: which can do without the others.
        holds: whether a set of that size is possible.
    """

    common: int
    size: int
    families: tuple[Family, ...]
    holds: Callable[[int], bool]


def closest(region: Region, order: Order, known: int, budget: Budget) -> int:
    """The best set of the region; past the budget the best found so far, `known` or better."""
    if region.common.bit_count() == region.size:
        return known
    search = _Search(region, order, known, budget)
    try:
        if not search.settles([]):
            search.settles(limits_of(region.common, region.size, region.families))
    except BudgetSpentError:
        pass
    return search.best


class _Search:
    """Looks for the best set of a region.

    Attributes:
        best: the best possible set found so far.
    """

    def __init__(self, region: Region, order: Order, known: int, budget: Budget) -> None:
        self.best = known
        self._region = region
        self._order = order
        self._budget = budget
        self._width = region.common.bit_length()
        self._unit = order.span << self._width
        self._turns: dict[int, Turns] = {}

    def settles(self, limits: Sequence[Limit]) -> bool:
        """Whether no possible set is better than `best`, as far as `limits` know what is possible.

        Raises:
            BudgetSpentError: the budget ran out.
        """
        rule = self._order.tie_break
        if not rule or not rule.goal:
            return self._cheapest(limits, 0, 0)
        is_short = self._may_be_short(rule)
        found = [self._cheapest(limits, 0, rule.short)] if is_short else []
        return all([*found, self._cheapest(limits, rule.goal, 0)])

    def _may_be_short(self, rule: TieBreak) -> bool:
        """Whether a possible set may have fewer CPUs than the tie break counts."""
        (family, *others) = self._region.families
        return bool(others) or not any(
            need.amount >= rule.goal
            and all(
                need.by_node.get(node, 0) <= rule.shares(node)[-1].gain
                for node in bits.iterate(self._region.common)
            )
            for need in family.needs
        )

    def _cheapest(self, limits: Sequence[Limit], goal: int, further: int) -> bool:
        """Whether no set by shares that reach `goal` is better than `best`, which is the best of them if possible."""
        layout = self._order.layout_of(self._region.common)
        chooser = self._chooser(limits, goal)
        if len(layout.clusters) > 1:
            return self._in_many(chooser, layout, further)
        prices = Prices(chooser, joints_of(layout.clusters[0], chooser.nodes), self._width)
        turns = self._turns.setdefault(goal, self._all_turns(layout))
        chooser.plane = layout.plane
        found: list[int] = []

        def least(number: int, slack: int) -> int:
            chooser.pull = layout.crossing * (self._region.size - 2 * number) * self._unit
            aside = further + layout.crossing * self._order.span * number * number
            found.append(self._in_one(prices, aside, slack) + (aside << self._width))
            return found[-1] >> self._width

        def known() -> int:
            best = self._cost(self.best)
            return best >> self._width if min(found, default=best) >= best else -NEVER

        turns.take(least, known)
        return known() > -NEVER

    def _all_turns(self, layout: Layout) -> Turns:
        """As many nodes may be on the plane as there are, and as there must be because others are too few."""
        others = (self._region.common & ~layout.plane).bit_count()
        most = (self._region.common & layout.plane).bit_count()
        size = self._region.size
        return Turns(max(0, size - others), min(size, most), layout.crossing * self._order.span)

    def _chooser(self, limits: Sequence[Limit], goal: int) -> Chooser:
        items = {node: self._item(node, limits, goal) for node in bits.iterate(self._region.common)}
        spares = [limit.spare for limit in limits] + ([-goal] if goal else [])
        return Chooser(items, self._region.size, spares, self._unit, self._budget)

    def _in_one(self, prices: Prices, aside: int, slack: int) -> int:
        """What sets cost at least on a machine built in levels, `aside` left aside.

        A set that costs that is `best` then, if it is possible.
        """
        if not prices.prices:
            offer = prices.offer()
            self._improves(offer.nodes)
            return prices.least() << self._width | offer.nodes
        least = prices.improve(self._value(aside), self._improves, slack)
        known = self._value(aside)
        if least > known:
            return least << self._width
        best = prices.chooser.ways_of(prices.joints, prices.bound(known)).get(self._region.size)
        if best is None:
            return known + 1 << self._width
        self._improves(best[0].cost)
        return best[0].cost

    def _value(self, further: int) -> int:
        """What the best set so far costs, its mask left aside."""
        return (self._cost(self.best) >> self._width) - further

    def _in_many(self, chooser: Chooser, layout: Layout, further: int) -> bool:
        """The same on any other machine."""
        apart = Apart(chooser, layout, self._cost(self.best) - (further << self._width))
        try:
            apart.search()
        finally:
            is_possible = apart.best is None or self._improves(apart.best.cost)
        return is_possible

    def _improves(self, cost: int) -> bool:
        """Whether the set that costs that is possible; it is the best then, unless there was a better one."""
        mask = cost & (1 << self._width) - 1
        if self._region.holds(mask):
            self.best = min(self.best, mask, key=self._order.of)
            return True
        return False

    def _cost(self, mask: int) -> int:
        far, rank, _ = self._order.of(mask)
        return far * self._unit + (rank << self._width) + mask

    def _item(self, node: int, limits: Sequence[Limit], goal: int) -> Item:
        rows, rule = self._order.distances, self._order.tie_break
        own = (rows.rows[node][node] if rows else 0) * self._unit + (1 << node)
        shares = rule.shares(node) if rule else [Share(0, 0)]
        nothing = (0,) * len(limits)
        taken = [
            Way(own + (rank << self._width), (*nothing, -gain) if goal else nothing)
            for rank, gain in (shares if goal else shares[:1])
        ]
        none = (0,) if goal else ()
        left = ways_to_leave(node, self._region.families, limits)
        return Item(tuple(taken), tuple(Way(0, use + none) for use in left))
