"""Machines built in levels, but for two planes: nodes on different planes are farther from each other.

Of k nodes, a on one plane and k - a on the other, a(k - a) pairs cross over. For any number t, that is no
more than a(k - 2t) + t^2, and just that for t = a. With this instead, crossings become a price of the
nodes on one plane, and what is left is a machine built in levels. The best of what is best for each t is
the best of all. What sets cost at least for one t tells how little they can cost for the next, so few
numbers need to be looked at.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from nri_plugin import bits
from nri_plugin.policy.clusters import Layout, Rows, layout
from nri_plugin.policy.joints import NEVER


def layout_in_planes(rows: Rows) -> Layout:
    """The clusters of a machine with these distances; of those on two planes, with crossings left aside."""
    found = layout(rows)
    plane, crossings = _planes(rows) if len(found.clusters) > 1 else (0, [])
    for crossing in crossings:
        rest = layout(_without(rows, plane, crossing))
        if len(rest.clusters) == 1:
            return replace(rest, plane=plane, crossing=crossing)
    return found


def _planes(rows: Rows) -> tuple[int, list[int]]:
    """The one way to lay nodes on two planes with the farthest ones across, and what crossing may cost."""
    apart = {
        one: {other: rows[one][other] + rows[other][one] for other in rows if other != one} for one in rows
    }
    farthest, *others = sorted({far for row in apart.values() for far in row.values()}, reverse=True)
    across = {
        one: bits.from_ids(other for other in row if row[other] == farthest) for one, row in apart.items()
    }
    plane, rest = 0, 1 << min(rows)
    for _ in rows:
        for one in rows:
            plane |= across[one] if rest >> one & 1 else 0
            rest |= across[one] if plane >> one & 1 else 0
    is_one_way = not plane & rest and plane | rest == bits.from_ids(rows)
    return (plane, [farthest - far for far in others]) if is_one_way else (0, [])


def _without(rows: Rows, plane: int, crossing: int) -> Mapping[int, Mapping[int, int]]:
    """The distances there and back without what crossing costs, as distances there."""
    return {
        one: {
            other: (rows[one][other] + rows[other][one] - crossing * ((plane >> one ^ plane >> other) & 1))
            * (one < other)
            for other in rows
        }
        for one in rows
    }


REACH = 2
"""What is found for a number should do for as many before and after it."""


class Turns:
    """The numbers t from `low` to `high`, and what is known of them.

    Attributes:
        least: by number, what sets with so many nodes on the plane cost at least.
    """

    def __init__(self, low: int, high: int, crossing: int) -> None:
        self.least = dict.fromkeys(range(low, high + 1), -NEVER)
        self._crossing = crossing

    def take(self, least: Callable[[int, int], int], known: Callable[[], int]) -> None:
        """Look at the numbers for which a set may cost no more than `known`, the most promising first.

        Args:
            least: of a number, what sets cost at least when each crossing costs what it costs for that
                number; where that is about as much as `known`, the second argument is how exact it need be.
            known: what the best set so far costs.
        """
        rest = set(self.least)
        while rest:
            number = min(rest, key=lambda number: (self.least[number], number))
            if self.least[number] > known():
                return
            rest.remove(number)
            found = least(number, self._crossing * REACH * REACH)
            for other, before in self.least.items():
                self.least[other] = max(before, found - self._crossing * (other - number) ** 2)
