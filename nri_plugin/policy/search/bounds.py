"""Lower bounds by prices: what a set costs at least when what it uses up is paid for.

Instead of keeping within a limit one may pay for each unit used of it, and be paid for each unit there
is. The cheapest set then, whatever it uses, costs no more than the cheapest set within the limit; with a
good price hardly less. It is found at once (`joints.py`), and on the way to a good price sets turn up
that keep within the limit and are cheap.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add, le, mul, sub
from typing import NamedTuple

from nri_plugin.model import bits
from nri_plugin.policy.search.budget import Budget
from nri_plugin.policy.search.clusters import NEVER, Costs, Joint, Row, inside, outside

# ----------------------------------------------------------------------------------------------------
# The best ways of taking 0, 1, 2... nodes out of a cluster, when taking and leaving use things up.
#
# What a choice costs is one number, so made that less is better in every respect (`closest.py`). What it
# uses up is a tuple of numbers, one for each limit that must not be overstepped. Of all ways to take the
# same number of nodes only those are kept that no cheaper one matches in every use; and where whatever
# happens outside the cluster can no longer overstep a limit, all uses of it are alike. So with limits that
# are far away one way remains, and with limits that are near few are feasible.


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


# ----------------------------------------------------------------------------------------------------


TRIES = 12
"""So many prices are tried for each limit; more hardly raise the bound."""


Paid = tuple[int, tuple[int, ...]]
"""What a way costs, and what it uses."""

Choice = tuple[Paid, Paid]
"""Of a node: the best way to leave it, and to take it."""


class Offer(NamedTuple):
    """The cheapest set at some prices.

    Attributes:
        nodes: the set.
        paid: what it costs, uses included; in fractions.
        use: what it uses, by limit.
    """

    nodes: int
    paid: int
    use: tuple[int, ...]


class _Line(NamedTuple):
    """What a set costs by the price of one limit: `paid` at none, and `use` more for each unit."""

    paid: int
    use: int


class Prices:
    """Looks for prices of a chooser's limits, which all nodes of one cluster pay.

    Some set within the limits is known, so that there always is a cheapest one.

    Attributes:
        chooser: the nodes and limits.
        joints: of the nodes, parts before their wholes.
        prices: by limit.
    """

    def __init__(self, chooser: Chooser, joints: Sequence[Joint], width: int) -> None:
        self.prices = [0] * len(chooser.limits)
        self._fine = 16 + max((limit.bit_length() for limit in chooser.limits), default=0)
        self._unit = chooser.unit << self._fine
        self.chooser = chooser
        self.joints = joints
        self._width = width
        self._chosen: dict[tuple[int, ...], dict[int, Choice]] = {}
        self._at: dict[tuple[int, ...], list[Row]] = {}
        self._nodes = [
            (node, self._fractions(item.left), self._fractions(item.taken))
            for node, item in chooser.items.items()
        ]

    def offer(self) -> Offer:
        """The cheapest set at the present prices."""
        choices, rows = self._choices(), self._rows()
        best = rows[-1][-1] // 2
        nodes = best & (1 << self._width) - 1
        uses = [choice[nodes >> node & 1][1] for node, choice in choices.items()]
        return Offer(nodes, best >> self._width, tuple(map(sum, zip(*uses, strict=True))))

    def improve(self, known: int, tried: Callable[[int], object], slack: int = 0) -> int:
        """Find better prices, limit by limit, the last first; each set that turns up is `tried`.

        Args:
            known: what a set within the limits costs, its mask left aside.
            tried: called with each set.
            slack: prices that are good to within that are good enough.

        Returns:
            What sets within the limits cost at least, their masks left aside.
        """
        for number in reversed(range(len(self.prices))):
            least = self.least()
            if least > known - slack:
                return least
            self._improve(number, known + slack, tried)
        return self.least()

    def least(self) -> int:
        """What sets within the limits cost at least, at the present prices."""
        return -((self._paid_back() - self.offer().paid) >> self._fine)

    def _improve(self, number: int, known: int, tried: Callable[[int], object]) -> None:
        """Each set costs more or less in proportion to the price; the cheapest at each price is looked for.

        That is the least of many straight lines. Its highest point is where a set that uses too much and
        one that does not are equally cheap and no third is cheaper.
        """
        limit, before = self.chooser.limits[number], self.prices[number]
        others = self._paid_back() - before * limit
        enough, short = _Line((known << self._fine) + others, limit), self._line(number, tried)
        for lower in (before * 7 // 8, before * 5 // 8, 0) if before else ():
            if short.use < limit:
                enough, self.prices[number] = short, lower
                short = self._line(number, tried)
        for _ in range(TRIES):
            if short.use <= limit:
                return
            price = (enough.paid - short.paid) // (short.use - enough.use)
            self.prices[number] = price
            found = self._line(number, tried)
            if found.paid + price * found.use >= short.paid + price * short.use:
                return
            if found.use >= limit:
                short = found
            else:
                enough = found

    def _line(self, number: int, tried: Callable[[int], object]) -> "_Line":
        """The cheapest set at the present prices, by the price of one limit; it is `tried` if it keeps within all."""
        found = self.offer()
        if all(map(le, found.use, self.chooser.limits)):
            tried(found.nodes)
        return _Line(found.paid - self.prices[number] * found.use[number], found.use[number])

    def bound(self, known: int) -> Bound:
        """Lets those ways pass that may be part of a set which costs no more than `known`."""
        found = outside(self.joints, self._rows(), self._costs(), self._unit, self.chooser.count)
        return Bound(
            prices=tuple(self.prices),
            fine=self._fine,
            width=self._width,
            unit=self._unit >> self._width,
            rows=[[[twice >> self._width + 1 for twice in row] for row in rows] for rows in found],
            limit=(known << self._fine) + self._paid_back(),
        )

    def _choices(self) -> dict[int, Choice]:
        """The cheapest of what can be done with each node at the present prices."""
        prices = tuple(self.prices)
        if prices not in self._chosen:
            self.chooser.budget.step(sum(len(left) + len(taken) for _, left, taken in self._nodes))
            self._chosen[prices] = {
                node: (self._cheapest(left), self._cheapest(taken)) for node, left, taken in self._nodes
            }
        return self._chosen[prices]

    def _rows(self) -> list[Row]:
        """What joints cost at the present prices."""
        prices = (*self.prices, self.chooser.pull)
        if prices not in self._at:
            self.chooser.budget.step(2 * len(self._nodes))
            self._at[prices] = inside(self.joints, self._costs(), self._unit, self.chooser.count)
        return self._at[prices]

    def _costs(self) -> Costs:
        plane, pull = self.chooser.plane, self.chooser.pull << self._fine
        return {
            node: (
                left << self._width,
                (taken << self._width) + (1 << node) + (pull if plane >> node & 1 else 0),
            )
            for node, ((left, _), (taken, _)) in self._choices().items()
        }

    def _fractions(self, ways: Sequence[Way]) -> list[Paid]:
        """The costs of ways in fractions, masks left aside, and their uses."""
        return [(way.cost >> self._width << self._fine, way.use) for way in ways]

    def _cheapest(self, ways: Sequence[Paid]) -> Paid:
        """What the cheapest of a node's ways costs when its use is paid for, and that use."""
        prices = self.prices
        return min([(cost + sum(map(mul, prices, use)), use) for cost, use in ways], default=(NEVER, ()))

    def _paid_back(self) -> int:
        return sum(price * limit for price, limit in zip(self.prices, self.chooser.limits, strict=True))
