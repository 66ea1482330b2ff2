"""Lower bounds by prices: what a set costs at least when what it uses up is paid for.

Instead of keeping within a limit one may pay for each unit used of it, and be paid for each unit there
is. The cheapest set then, whatever it uses, costs no more than the cheapest set within the limit; with a
good price hardly less. It is found at once (`joints.py`), and on the way to a good price sets turn up
that keep within the limit and are cheap.
"""

from collections.abc import Callable, Sequence
from operator import le, mul
from typing import NamedTuple

from nri_plugin.policy.joints import NEVER, Costs, Joint, Row, inside, outside
from nri_plugin.policy.ways import Bound, Chooser, Way

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
