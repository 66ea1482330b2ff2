"""Lower bounds by prices: what a set costs at least when what it uses up is paid for.

Instead of keeping within a limit one may pay for each unit used of it, and be paid for each unit there
is. The cheapest set then, whatever it uses, costs no more than the cheapest set within the limit; with a
good price hardly less. It is found at once (`joints.py`), and on the way to a good price sets turn up
that keep within the limit and are cheap.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import mul
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


class Prices:
    """Looks for prices of a chooser's limits, which all nodes of one cluster pay.

    Some set within the limits is known, so that there always is a cheapest one.

    Attributes:
        prices: by limit.
    """

    def __init__(self, chooser: Chooser, joints: Sequence[Joint], width: int) -> None:
        self.prices = [0] * len(chooser.limits)
        self._fine = 16 + max((limit.bit_length() for limit in chooser.limits), default=0)
        self._unit = chooser.unit << self._fine
        self._chooser = chooser
        self._joints = joints
        self._width = width
        self._steps = len(joints) + sum(len(item.taken) + len(item.left) for item in chooser.items.values())
        self._at: dict[tuple[int, ...], tuple[list[Row], dict[int, Choice]]] = {}
        self._outside: dict[tuple[int, ...], list[list[Row]]] = {}
        self._nodes = [
            (node, self._fractions(item.left), self._fractions(item.taken))
            for node, item in chooser.items.items()
        ]

    def offer(self) -> Offer:
        """The cheapest set at the present prices."""
        rows, choices = self._solved()
        best = rows[-1][-1] // 2
        nodes = best & (1 << self._width) - 1
        uses = [choice[nodes >> node & 1][1] for node, choice in choices.items()]
        return Offer(nodes, best >> self._width, tuple(map(sum, zip(*uses, strict=True))))

    def improve(self, known: int, tried: Callable[[int], object]) -> int:
        """Find better prices, limit by limit, the last first; each set that turns up is `tried`.

        Args:
            known: what a set within the limits costs, its mask left aside.
            tried: called with each set.

        Returns:
            What sets within the limits cost at least, their masks left aside.
        """
        for number in reversed(range(len(self.prices))):
            self._improve(number, known, tried)
        return -((self._paid_back() - self.offer().paid) >> self._fine)

    def _improve(self, number: int, known: int, tried: Callable[[int], object]) -> None:
        """Each set costs more or less in proportion to the price; the cheapest at each price is looked for.

        That is the least of many straight lines. Its highest point is where a set that uses too much and
        one that does not are equally cheap and no third is cheaper.
        """
        short, limit = self.offer(), self._chooser.limits[number]
        if short.use[number] <= limit:
            return
        enough = Offer(0, (known << self._fine) + self._paid_back(), (limit,) * len(self.prices))
        enough_at_nothing = enough.paid
        short_at_nothing = short.paid
        for _ in range(TRIES):
            used = short.use[number]
            price = (enough_at_nothing - short_at_nothing) // (used - enough.use[number])
            self.prices[number] = price
            found = self.offer()
            tried(found.nodes)
            if found.paid >= short_at_nothing + price * used:
                return
            if found.use[number] > limit:
                short, short_at_nothing = found, found.paid - price * found.use[number]
            else:
                enough, enough_at_nothing = found, found.paid - price * found.use[number]

    def bound(self, known: int) -> Bound:
        """Lets those ways pass that may be part of a set which costs no more than `known`."""
        prices = tuple(self.prices)
        if prices not in self._outside:
            rows, choices = self._solved()
            found = outside(self._joints, rows, self._costs(choices), self._unit, self._chooser.count)
            self._outside[prices] = [
                [[twice >> self._width + 1 for twice in row] for row in rows] for rows in found
            ]
        return Bound(
            prices=prices,
            fine=self._fine,
            width=self._width,
            unit=self._unit >> self._width,
            rows=self._outside[prices],
            limit=(known << self._fine) + self._paid_back(),
        )

    def _solved(self) -> tuple[list[Row], dict[int, Choice]]:
        """At the present prices: what joints cost, and the cheapest of what can be done with each node."""
        prices = tuple(self.prices)
        if prices not in self._at:
            self._chooser.budget.step(self._steps)
            choices = {node: (self._least(left), self._least(taken)) for node, left, taken in self._nodes}
            rows = inside(self._joints, self._costs(choices), self._unit, self._chooser.count)
            self._at[prices] = rows, choices
        return self._at[prices]

    def _costs(self, choices: Mapping[int, Choice]) -> Costs:
        return {
            node: (left << self._width, (taken << self._width) + (1 << node))
            for node, ((left, _), (taken, _)) in choices.items()
        }

    def _fractions(self, ways: Sequence[Way]) -> list[Paid]:
        """The costs of ways in fractions, masks left aside, and their uses."""
        return [(way.cost >> self._width << self._fine, way.use) for way in ways]

    def _least(self, ways: Sequence[Paid]) -> Paid:
        """What the cheapest of a node's ways costs when its use is paid for, and that use."""
        prices = self.prices
        return min([(cost + sum(map(mul, prices, use)), use) for cost, use in ways], default=(NEVER, ()))

    def _paid_back(self) -> int:
        return sum(price * limit for price, limit in zip(self.prices, self._chooser.limits, strict=True))
