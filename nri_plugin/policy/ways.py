"""The best ways of taking 0, 1, 2... nodes out of a cluster, when taking and leaving use things up.

What a choice costs is one number, so made that less is better in every respect (`closest.py`). What it
uses up is a tuple of numbers, one for each limit that must not be overstepped. Of all ways to take the
same number of nodes only those are kept that no cheaper one matches in every use; and where whatever
happens outside the cluster can no longer overstep a limit, all uses of it are alike. So with limits that
are far away one way remains, and with limits that are near few are feasible.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add, le, mul, sub
from typing import NamedTuple

from nri_plugin import bits
from nri_plugin.policy.budget import Budget
from nri_plugin.policy.joints import Joint


class Way(NamedTuple):
    """Something that can be done with one or more nodes.

    Attributes:
        cost: the less the better; the costs of disjoint sets of nodes add up, beside their distance.
        use: by limit, what it takes of it; less, where it can no longer overstep it.
        paid: what it costs when its use is paid for (`prices.py`); adds up like the cost.
    """

    cost: int
    use: tuple[int, ...]
    paid: int = 0


Ways = dict[int, list[Way]]
"""By how many nodes are taken: the ways worth keeping, by ascending cost."""


MANY = 40
"""More ways than these are worth finding out which of them can stay within the limits."""


class Item(NamedTuple):
    """A node, and what can be done with it: one way of `taken`, or one of `left`."""

    taken: tuple[Way, ...]
    left: tuple[Way, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """Tells ways that can lead to something good enough, by what they cost when uses are paid for.

    Attributes:
        prices: by limit, what one unit of use costs.
        fine: costs are counted in fractions then, two to this power.
        width: lowest bits of a cost that are its mask, and are not paid for.
        unit: what one unit of distance costs then.
        rows: by joint, by how many nodes it takes: what the others cost at least then; for a bunch one
            row for its first node, for its first two, and so on.
        limit: what a whole may cost then.
    """

    prices: tuple[int, ...]
    fine: int
    width: int
    unit: int
    rows: Sequence[Sequence[Sequence[int]]]
    limit: int

    def priced(self, ways: Iterable[Way], pull: int = 0) -> list[Way]:
        """Ways of one node with what they cost then, and `pull` more."""
        return [
            Way(cost + pull, use, (cost + pull >> self.width << self.fine) + sum(map(mul, self.prices, use)))
            for cost, use, _ in ways
        ]

    def at(self, place: int, part: int = -1) -> "Room":
        """What ways of the joint at `place` may cost, or of some of its nodes if it is a bunch."""
        return Room(self.unit, [self.limit - others for others in self.rows[place][part]])


class Room(NamedTuple):
    """What may be paid for ways of a joint that are to be part of a good whole.

    Attributes:
        unit: what one unit of distance costs.
        most: by how many nodes are taken.
    """

    unit: int
    most: list[int]


class Chooser:
    """Takes `count` nodes out of `items`, within `limits`.

    Attributes:
        items: by node.
        count: how many nodes are to be taken in all.
        limits: what all uses may add up to.
        unit: cost of one unit of distance.
        budget: counts each pair of ways looked at.
        nodes: mask of the items.
        plane: mask of the nodes that cost more to take than `items` say (`planes.py`).
        pull: how much more.
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
        self.plane = self.pull = 0
        self._least = [_Extreme(items, number, min) for number in range(len(limits))]
        self._most = [_Extreme(items, number, max) for number in range(len(limits))]
        self._floors = [
            min(0, limit - of_limit.largest()) for limit, of_limit in zip(limits, self._most, strict=True)
        ]

    def ways_of(self, joints: Sequence[Joint], bound: Bound | None = None) -> Ways:
        """The ways with the nodes of the last joint that may be part of a whole, and of a good one.

        Args:
            joints: parts before their wholes.
            bound: tells what is good; None for any.
        """
        found: list[Ways] = []
        for place, joint in enumerate(joints):
            if joint.one < 0:
                found.append(self._of_bunch(place, joint, bound))
            else:
                room = bound.at(place) if bound else None
                ways = self._joined(joint.nodes, joint.apart, found[joint.one], found[joint.other], room)
                found.append(self._kept(joint.nodes, ways))
        return found[-1]

    def _of_bunch(self, place: int, bunch: Joint, bound: Bound | None) -> Ways:
        """Its nodes are joined one by one."""
        ways: Ways = {0: [Way(0, (0,) * len(self.limits))]}
        some = 0
        for part, node in enumerate(bits.iterate(bunch.nodes)):
            some |= 1 << node
            taken, left = self.items[node]
            pull = self.pull if self.plane >> node & 1 else 0
            if bound:
                further = {0: bound.priced(left), 1: bound.priced(taken, pull)}
                ways = self._joined(some, bunch.apart, ways, further, bound.at(place, part))
            else:
                further = {0: [*left], 1: [way._replace(cost=way.cost + pull) for way in taken]}
                ways = self._joined(some, bunch.apart, ways, further, None)
            ways = self._kept(some, ways)
        return ways

    def least_use_outside(self, nodes: int) -> list[tuple[int, ...]]:
        """By how many nodes outside of the mask are taken: what all those use at least of each limit."""
        return list(zip(*(of_limit.outside(nodes) for of_limit in self._least), strict=True))

    def _joined(self, nodes: int, apart: int, one: Ways, other: Ways, room: Room | None) -> Ways:
        outside = len(self.items) - nodes.bit_count()
        ways: Ways = {}
        for few, these in one.items():
            for more, those in other.items():
                if self.count - outside <= few + more <= self.count:
                    self.budget.step(len(these) * len(those))
                    far = few * more * apart
                    if room is None:
                        found = _products(these, those, far * self.unit)
                    else:
                        left = room.most[few + more] - far * room.unit
                        found = _good_products(these, those, far * self.unit, far * room.unit, left)
                    ways.setdefault(few + more, []).extend(found)
        return ways

    def _kept(self, nodes: int, ways: Ways) -> Ways:
        if not self.limits:
            return {count: [min(found)] for count, found in ways.items() if found}
        if nodes == self.nodes or sum(map(len, ways.values())) > MANY:
            least = self.least_use_outside(nodes)
            most = list(zip(*(of_limit.outside(nodes) for of_limit in self._most), strict=True))
            ways = {
                count: self._fitting(found, least[self.count - count], most[self.count - count])
                for count, found in ways.items()
                if 0 <= self.count - count < len(least)
            }
        return {
            count: _undominated(found) if len(found) > 1 else found for count, found in ways.items() if found
        }

    def _fitting(self, ways: Iterable[Way], least: tuple[int, ...], most: tuple[int, ...]) -> list[Way]:
        """Those that can stay within the limits, given what all other nodes use at least and at most."""
        room = tuple(map(sub, self.limits, least))
        safe = tuple(map(sub, self.limits, most))
        return [
            Way(cost, tuple(map(_sunk, use, safe, self._floors)), paid)
            for cost, use, paid in ways
            if all(map(le, use, room))
        ]


def _sunk(used: int, safe: int, floor: int) -> int:
    return floor if used <= safe else used


def _products(these: Sequence[Way], those: Sequence[Way], apart: int) -> Iterable[Way]:
    return [
        Way(cost + more + apart, tuple(map(add, use, used)))
        for cost, use, _ in these
        for more, used, _ in those
    ]


def _good_products(
    these: Sequence[Way], those: Sequence[Way], apart: int, paid_apart: int, left: int
) -> Iterable[Way]:
    """Those for which `left` can pay, the distance between them already paid for."""
    return [
        Way(cost + more + apart, tuple(map(add, use, used)), paid + further + paid_apart)
        for cost, use, paid in these
        for more, used, further in those
        if paid + further <= left
    ]


def _undominated(ways: list[Way]) -> list[Way]:
    """Those that no cheaper one matches in every use."""
    kept: list[Way] = []
    for way in sorted(ways):
        if not any(all(map(le, other.use, way.use)) for other in kept):
            kept.append(way)
    return kept


class _Extreme:
    """What each node uses of one limit, at least or at most.

    Attributes:
        left: (what it uses when left, its bit).
        steps: (how much more when taken, its bit), the best first.
    """

    def __init__(self, items: Mapping[int, Item], limit: int, best: Callable[[list[int]], int]) -> None:
        self.left: list[tuple[int, int]] = []
        self.steps: list[tuple[int, int]] = []
        for node, item in items.items():
            taken = best([way.use[limit] for way in item.taken])
            # a node that cannot be left counts as taken either way, which keeps this a bound
            left = best([way.use[limit] for way in item.left] or [taken])
            self.left.append((left, 1 << node))
            self.steps.append((taken - left, 1 << node))
        self.steps.sort(key=lambda step: step[0], reverse=best is max)

    def outside(self, nodes: int) -> Iterable[int]:
        """By how many nodes outside of the mask are taken: what all those use."""
        left = sum([used for used, bit in self.left if not nodes & bit])
        return accumulate([more for more, bit in self.steps if not nodes & bit], initial=left)

    def largest(self) -> int:
        """No set of nodes uses more."""
        more = {bit: step for step, bit in self.steps}
        return sum(max(0, left, left + more[bit]) for left, bit in self.left)
