"""Choosing out of clusters that are unequally far from each other: branch and bound.

Clusters are decided on one after the other: how many of its nodes, and which way. What is chosen makes
each node of the clusters to come dearer by its distance from there. A branch is cut when even the
cheapest rest, each of its nodes next to its nearest others, cannot beat the best choice found so far.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from operator import add, le

from nri_plugin.policy.clusters import Layout
from nri_plugin.policy.joints import joints_of
from nri_plugin.policy.ways import Chooser, Way


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
