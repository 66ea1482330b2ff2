"""The best ways of taking 0, 1, 2... nodes out of a cluster.

What a choice costs is one number, so made that less is better in every respect (`order.py`). What it
uses up is a tuple of numbers, one for each limit that must not be overstepped. Of all ways to take the
same number of nodes only those are kept that no cheaper one matches in every use; and where whatever
happens outside the cluster can no longer overstep a limit, its use does not count any more. So with
limits that are far away one way remains, and with limits that are near few are feasible.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add, le
from typing import NamedTuple

from nri_plugin import bits
from nri_plugin.policy.budget import Budget
from nri_plugin.policy.clusters import Cluster


class Way(NamedTuple):
    """Something that can be done with one or more nodes.

    Attributes:
        cost: the less the better; the costs of disjoint sets of nodes add up, beside their distance.
        use: by limit, what it takes of it.
    """

    cost: int
    use: tuple[int, ...]


Ways = dict[int, list[Way]]
"""By how many nodes are taken: the ways worth keeping, by ascending cost."""


@dataclass(frozen=True, slots=True)
class Item:
    """A node, and what can be done with it: one way of `taken`, or one of `left`."""

    taken: tuple[Way, ...]
    left: tuple[Way, ...]


class Chooser:
    """Takes `count` nodes out of `items`, within `limits`.

    Attributes:
        items: by node.
        count: how many nodes are to be taken in all.
        limits: what all uses may add up to.
        unit: cost of one unit of distance.
        budget: counts each pair of ways looked at.
    """

    def __init__(
        self, items: Mapping[int, Item], count: int, limits: Sequence[int], unit: int, budget: Budget
    ) -> None:
        self.items = items
        self.count = count
        self.limits = tuple(limits)
        self.unit = unit
        self.budget = budget
        self.nodes = bits.from_ids(items)
        self._extremes = [
            {node: _extremes(item, number) for node, item in items.items()} for number in range(len(limits))
        ]
        self._floors = [
            min(0, limit - sum(max(0, one.most_left, one.most_taken) for one in by_node.values()))
            for limit, by_node in zip(limits, self._extremes, strict=True)
        ]

    def ways_of(self, cluster: Cluster) -> Ways:
        """The ways with the nodes of a cluster; those that are no items are not there."""
        if not cluster.parts:
            item = self.items[bits.lowest(cluster.nodes)]
            return self._kept(cluster.nodes, {0: [*item.left], 1: [*item.taken]})
        parts = [
            (part.nodes & self.nodes, self.ways_of(part)) for part in cluster.parts if part.nodes & self.nodes
        ]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            rest = parts[len(parts) & ~1 :]
            parts = [self._pair(one, other, cluster.apart * self.unit) for one, other in pairs] + rest
        return parts[0][1]

    def least_use_outside(self, nodes: int) -> list[tuple[int, ...]]:
        """By how many nodes outside of the mask are taken: what all those use at least of each limit."""
        rooms = [_Room.outside(by_node, nodes).least for by_node in self._extremes]
        outside = (self.nodes & ~nodes).bit_count()
        return [tuple(room[count] for room in rooms) for count in range(outside + 1)]

    def _pair(self, one: tuple[int, Ways], other: tuple[int, Ways], apart: int) -> tuple[int, Ways]:
        nodes = one[0] | other[0]
        outside = len(self.items) - nodes.bit_count()
        ways: Ways = {}
        for few, these in one[1].items():
            for more, those in other[1].items():
                if self.count - outside <= few + more <= self.count:
                    self.budget.step(len(these) * len(those))
                    ways.setdefault(few + more, []).extend(_products(these, those, few * more * apart))
        return nodes, self._kept(nodes, ways)

    def _kept(self, nodes: int, ways: Ways) -> Ways:
        if not self.limits:
            return {count: [min(found)] for count, found in ways.items() if found}
        rooms = [_Room.outside(by_node, nodes) for by_node in self._extremes]
        kept = {}
        for count, found in ways.items():
            taken_outside = self.count - count
            if 0 <= taken_outside <= len(self.items) - nodes.bit_count():
                kept[count] = _undominated(self._possible(found, rooms, taken_outside))
        return {count: found for count, found in kept.items() if found}

    def _possible(self, ways: Iterable[Way], rooms: Sequence["_Room"], outside: int) -> list[Way]:
        """Those that can stay within the limits; a use that cannot overstep its limit any more sinks."""
        least = [limit - room.least[outside] for limit, room in zip(self.limits, rooms, strict=True)]
        most = [limit - room.most[outside] for limit, room in zip(self.limits, rooms, strict=True)]
        found = []
        for cost, use in ways:
            if all(map(le, use, least)):
                sunk = zip(use, most, self._floors, strict=True)
                found.append(Way(cost, tuple(floor if used <= safe else used for used, safe, floor in sunk)))
        return found


def _products(these: Sequence[Way], those: Sequence[Way], apart: int) -> Iterable[Way]:
    return [
        Way(cost + more + apart, tuple(map(add, use, used))) for cost, use in these for more, used in those
    ]


def _undominated(ways: list[Way]) -> list[Way]:
    """Those that no cheaper one matches in every use."""
    kept: list[Way] = []
    for way in sorted(ways):
        if not any(all(map(le, other.use, way.use)) for other in kept):
            kept.append(way)
    return kept


class _Extremes(NamedTuple):
    """What one node uses of one limit: at least and at most, left and taken."""

    least_left: int
    least_taken: int
    most_left: int
    most_taken: int


def _extremes(item: Item, limit: int) -> _Extremes:
    """For bounds only: a node that must be taken counts as taken either way."""
    taken = [way.use[limit] for way in item.taken]
    left = [way.use[limit] for way in item.left] or taken
    return _Extremes(min(left), min(taken), max(left), max(taken))


@dataclass(frozen=True, slots=True)
class _Room:
    """What the nodes outside a cluster use of one limit.

    Attributes:
        least: by how many of them are taken, a lower bound.
        most: likewise an upper bound.
    """

    least: Sequence[int]
    most: Sequence[int]

    @classmethod
    def outside(cls, by_node: Mapping[int, _Extremes], nodes: int) -> "_Room":
        others = [of_node for node, of_node in by_node.items() if not nodes >> node & 1]
        least = sorted(one.least_taken - one.least_left for one in others)
        most = sorted((one.most_taken - one.most_left for one in others), reverse=True)
        return cls(
            list(accumulate(least, initial=sum(one.least_left for one in others))),
            list(accumulate(most, initial=sum(one.most_left for one in others))),
        )
