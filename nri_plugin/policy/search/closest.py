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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import prod
from operator import add, le, sub

from nri_plugin.model import bits
from nri_plugin.policy.hints import Family, Need
from nri_plugin.policy.search.bounds import Chooser, Item, Prices, Way
from nri_plugin.policy.search.budget import Budget, BudgetSpentError
from nri_plugin.policy.search.clusters import NEVER, Layout, Turns, joints_of
from nri_plugin.policy.search.mask_order import Order, Share, TieBreak

# ----------------------------------------------------------------------------------------------------
# Which nodes families can do without.
#
# Several families meet in a set of nodes when each has a member around it, and each other node is missing
# from one of these members at least. So the others are dealt out: each to one family that leaves it out.
# What a family can spare of a need, it can leave out.


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


# ----------------------------------------------------------------------------------------------------
# Choosing out of clusters that are unequally far from each other: branch and bound.
#
# Clusters are decided on one after the other: how many of its nodes, and which way. What is chosen makes
# each node of the clusters to come dearer by its distance from there. A branch is cut when even the
# cheapest rest, each of its nodes next to its nearest others, cannot beat the best choice found so far.


class Apart:
    """Looks for the cheapest way to take the chooser's count out of all clusters of a layout.

    Attributes:
        best: the cheapest found so far; None when there is none below the bound given.
    """

    def __init__(self, chooser: Chooser, layout: Layout, below: int) -> None:
        self.best: Way | None = None
        self._below = below
        self._chooser = chooser
        some = [place for place, cluster in enumerate(layout.clusters) if cluster.nodes & chooser.nodes]
        places = sorted(
            some, key=lambda place: sum(sorted(layout.apart[place][n] for n in some)[: chooser.count])
        )
        self._ways = [chooser.ways_of(joints_of(layout.clusters[place], chooser.nodes)) for place in places]
        self._apart = [[layout.apart[one][other] * chooser.unit for other in places] for one in places]
        self._largest = [max(ways, default=0) for ways in self._ways]
        self._remaining = list(accumulate(reversed(self._largest), initial=0))[::-1]
        self._near = cache(self._nearest)
        self._least_use = cache(self._least_uses)
        self._before = list(accumulate((layout.clusters[place].nodes for place in places), initial=0))

    def search(self) -> None:
        """Find `best`; what is found so far stays there when it is interrupted.

        Raises:
            BudgetSpentError: the chooser's budget ran out.
        """
        uses = (0,) * len(self._chooser.limits)
        self._decide(0, self._chooser.count, Way(0, uses), [0] * len(self._ways))

    def _decide(self, place: int, left: int, so_far: Way, dearer: Sequence[int]) -> None:
        """Decide on the clusters from `place` on; each of their nodes costs `dearer` beside its own cost."""
        self._chooser.budget.step(1 + self._remaining[place])
        if not self._fits(place, left, so_far) or not self._is_promising(place, left, so_far.cost, dearer):
            return
        if place == len(self._ways):
            self.best, self._below = so_far, so_far.cost
            return
        for count in sorted((count for count in self._ways[place] if count <= left), reverse=True):
            apart = self._apart[place]
            further = [more + count * far for more, far in zip(dearer, apart, strict=True)]
            for way in self._ways[place][count]:
                cost = so_far.cost + way.cost + count * dearer[place]
                use = tuple(map(add, so_far.use, way.use))
                self._decide(place + 1, left - count, Way(cost, use), further)

    def _fits(self, place: int, left: int, so_far: Way) -> bool:
        if not self._chooser.limits:
            return True
        least = self._least_use(place)
        return left < len(least) and all(map(le, map(add, so_far.use, least[left]), self._chooser.limits))

    def _is_promising(self, place: int, left: int, cost: int, dearer: Sequence[int]) -> bool:
        """Whether `left` nodes can be taken from `place` on and beat the best."""
        least = self._least_cost(place, left, dearer)
        return least is not None and cost + least < self._below

    def _least_cost(self, place: int, left: int, dearer: Sequence[int]) -> int | None:
        """A lower bound of what `left` nodes from `place` on cost; None when there are not so many."""
        near = self._near(place)
        single: list[int] = []
        totals = {0: 0}
        for other in range(place, len(self._ways)):
            costs = list(self._costs(other, left, dearer[other], near[other - place]))
            if self._largest[other] == 1:
                single += [cost for _, cost in costs]
            else:
                totals = _cheapest(totals, costs, left)
        cheapest = list(accumulate(sorted(single)[:left], initial=0))
        sums = [so_far + cheapest[left - n] for n, so_far in totals.items() if left - n < len(cheapest)]
        return min(sums, default=None)

    def _costs(self, place: int, left: int, dearer: int, near: Sequence[int]) -> Iterable[tuple[int, int]]:
        """(how many of a cluster, at least what these cost): half of the way to the nearest others each."""
        for count, ways in self._ways[place].items():
            if 0 < count <= left < count + len(near):
                yield count, ways[0].cost + count * dearer + count * near[left - count] // 2

    def _nearest(self, place: int) -> list[list[int]]:
        """For a node of each cluster from `place` on: how far the nearest 0, 1, 2... of the others are in all."""
        self._chooser.budget.step(8 * (len(self._ways) - place))
        found = []
        for one in range(place, len(self._ways)):
            far = self._apart[one][place:one] + self._apart[one][one + 1 :]
            sizes = self._largest[place:one] + self._largest[one + 1 :]
            others = [far for far, size in zip(far, sizes, strict=True) for _ in range(size)]
            found.append(list(accumulate(sorted(others)[: self._chooser.count], initial=0)))
        return found

    def _least_uses(self, place: int) -> list[tuple[int, ...]]:
        """By how many nodes of the clusters from `place` on are taken: what these use at least of each limit."""
        return self._chooser.least_use_outside(self._before[place])


def _cheapest(totals: Mapping[int, int], costs: Iterable[tuple[int, int]], most: int) -> dict[int, int]:
    """What each number of nodes costs at least, once some of `costs` or none may be added."""
    found = dict(totals)
    for number, cost in totals.items():
        for more, further in costs:
            count = number + more
            if count <= most:
                found[count] = min(found.get(count, cost + further), cost + further)
    return found


# ----------------------------------------------------------------------------------------------------


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
