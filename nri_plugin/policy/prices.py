"""Lower bounds by prices: what a set costs at least when what it uses up is paid for.

Instead of keeping within a limit one may pay for each unit used of it, and be paid for each unit there
is. The cheapest set then, whatever it uses, costs no more than the cheapest set within the limit; with a
good price hardly less. It is found at once (`joints.py`), and on the way to a good price sets turn up
that keep within the limit and are cheap.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nri_plugin.policy.joints import NEVER, Joint, Row, inside, outside
from nri_plugin.policy.ways import Bound, Chooser, Way, paid

FINE = 16
"""Prices count in fractions of the smallest cost, two to this power."""

TRIES = 12
"""So many prices are tried for each limit; more hardly raise the bound."""


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


class Prices:
    """Looks for prices of a chooser's limits, which all nodes of one cluster pay.

    Attributes:
        prices: by limit.
    """

    def __init__(self, chooser: Chooser, joints: Sequence[Joint], width: int) -> None:
        self.prices = [0] * len(chooser.limits)
        self._unit = chooser.unit << FINE
        self._chooser = chooser
        self._joints = joints
        self._width = width

    def offer(self) -> Offer | None:
        """The cheapest set at the present prices; None when there is none."""
        best = self._rows()[-1][self._chooser.count] // 2
        if best >= NEVER // 2:
            return None
        nodes = best & (1 << self._width) - 1
        ways = [
            min(item.taken if nodes >> node & 1 else item.left, key=self._paid)
            for node, item in self._chooser.items.items()
        ]
        return Offer(
            nodes, best >> self._width, tuple(map(sum, zip(*(way.use for way in ways), strict=True)))
        )

    def improve(self, known: int, tried: Callable[[int], object]) -> None:
        """Find better prices, limit by limit, the last first; each set that turns up is `tried`.

        Args:
            known: what a set within the limits costs.
            tried: called with each set.
        """
        for number in reversed(range(len(self.prices))):
            self._improve(number, known, tried)

    def _improve(self, number: int, known: int, tried: Callable[[int], object]) -> None:
        """Each set costs more or less in proportion to the price; the cheapest at each price is looked for.

        That is the least of many straight lines. Its highest point is where a set that uses too much and
        one that does not are equally cheap and no third is cheaper.
        """
        short, limit = self.offer(), self._chooser.limits[number]
        if short is None or short.use[number] <= limit:
            return
        enough = Offer(0, (known << FINE) + self._paid_back(), (limit,) * len(self.prices))
        enough_at_nothing = enough.paid
        short_at_nothing = short.paid
        for _ in range(TRIES):
            used = short.use[number]
            price = (enough_at_nothing - short_at_nothing) // (used - enough.use[number])
            self.prices[number] = price
            found = self.offer()
            assert found is not None
            tried(found.nodes)
            if found.paid >= short_at_nothing + price * used:
                return
            if found.use[number] > limit:
                short, short_at_nothing = found, found.paid - price * found.use[number]
            else:
                enough, enough_at_nothing = found, found.paid - price * found.use[number]

    def bound(self, known: int) -> Bound:
        """Lets those ways pass that may be part of a set which costs no more than `known`."""
        rows = outside(self._joints, self._rows(), self._unit, self._chooser.count)
        return Bound(
            prices=tuple(self.prices),
            fine=FINE,
            width=self._width,
            unit=self._unit >> self._width,
            rows=[[twice >> self._width + 1 for twice in row] for row in rows],
            limit=(known << FINE) + self._paid_back(),
        )

    def _rows(self) -> list[Row]:
        chooser = self._chooser
        chooser.budget.step(len(self._joints))
        costs = {
            node: (self._least(item.left), self._least(item.taken)) for node, item in chooser.items.items()
        }
        return inside(self._joints, costs, self._unit, chooser.count)

    def _least(self, ways: Sequence[Way]) -> int:
        """The cheapest of a node's ways, its own bit included as far as it is taken."""
        if not ways:
            return NEVER
        return (min(map(self._paid, ways)) << self._width) + (ways[0].cost & (1 << self._width) - 1)

    def _paid(self, way: Way) -> int:
        return paid(way, self.prices, FINE, self._width)

    def _paid_back(self) -> int:
        return sum(price * limit for price, limit in zip(self.prices, self._chooser.limits, strict=True))
