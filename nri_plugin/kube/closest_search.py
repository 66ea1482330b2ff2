"""The smallest, and of those the closest, set of NUMA nodes that together hold a request.

Invariant: the answer equals that of trying all sets of a size in lexicographic order of positions, and sizes
ascending, as long as the search ends within `STEPS`; no set is tried that cannot hold the request or cannot be
closer than the best found. Past the steps the best set found stands.

Positions are places in the list, not ids. Distances are sums over all ordered pairs, a node with itself included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

STEPS = 20_000
"""Sets looked at before the search contents itself: about 50 ms; 16 NUMA nodes need fewer."""

Costs = tuple[tuple[int, ...], ...]
Needs = Sequence[tuple[int, Sequence[int]]]
"""Per resource: the amount and what each position has."""


@dataclass(frozen=True, slots=True)
class Found:
    """A set of positions, ascending, the sum of its distances, and whether nothing better was left untried."""

    positions: tuple[int, ...]
    total: int
    exact: bool = True


def closest_set(eligible: Sequence[int], needs: Needs, costs: Costs) -> Found | None:
    """The first of the closest of the smallest sets that hold all needs; None when all together do not."""
    for size in range(1, len(eligible) + 1):
        if not _can_hold(eligible, needs, size):
            continue
        found = _Search(eligible, needs, costs, size).run()
        if found is not None:
            return found
    return None


@lru_cache(maxsize=4096)
def least_total(costs: Costs, size: int) -> int:
    """The smallest sum of distances over all sets of `size` nodes, whether they hold anything or not."""
    found = _Search(range(len(costs)), (), costs, size).run()
    return found.total if found is not None else 0


def total_distance(positions: Sequence[int], costs: Costs) -> int:
    """Sum over all ordered pairs, self included."""
    return sum(costs[one][other] for one in positions for other in positions)


def _can_hold(eligible: Sequence[int], needs: Needs, size: int) -> bool:
    return all(
        sum(sorted((have[p] for p in eligible), reverse=True)[:size]) >= amount for amount, have in needs
    )


class _Search:
    """Depth first, positions ascending; a branch is left when it cannot hold or cannot be closer."""

    def __init__(self, eligible: Sequence[int], needs: Needs, costs: Costs, size: int) -> None:
        self.eligible, self.size, self.costs = tuple(eligible), size, costs
        self.needs = tuple(needs)
        self.links = tuple(
            tuple(costs[a][b] + costs[b][a] for b in range(len(costs))) for a in range(len(costs))
        )
        apart = [self.links[a][b] for a in self.eligible for b in self.eligible if a != b]
        self.least_link = min(apart, default=0)
        self.best: Found | None = None
        self.steps = 0

    def run(self) -> Found | None:
        self._extend((), 0, 0, tuple(amount for amount, _ in self.needs))
        if self.best is not None and self.steps >= STEPS:
            return Found(self.best.positions, self.best.total, exact=False)
        return self.best

    def _extend(self, chosen: tuple[int, ...], start: int, total: int, left: tuple[int, ...]) -> None:
        missing = self.size - len(chosen)
        if not missing:
            if all(amount <= 0 for amount in left) and (self.best is None or total < self.best.total):
                self.best = Found(chosen, total)
            return
        if self.steps >= STEPS and self.best is not None:
            return
        self.steps += 1
        if not self._is_worth_it(chosen, start, total, left, missing):
            return
        for index in range(start, len(self.eligible) - missing + 1):
            position = self.eligible[index]
            grown = total + self.costs[position][position] + sum(self.links[position][one] for one in chosen)
            rest = tuple(amount - have[position] for amount, (_, have) in zip(left, self.needs, strict=True))
            self._extend((*chosen, position), index + 1, grown, rest)

    def _is_worth_it(
        self, chosen: tuple[int, ...], start: int, total: int, left: tuple[int, ...], missing: int
    ) -> bool:
        rest = self.eligible[start:]
        for amount, (_, have) in zip(left, self.needs, strict=True):
            if amount > 0 and sum(sorted((have[p] for p in rest), reverse=True)[:missing]) < amount:
                return False
        if self.best is None:
            return True
        reach = sorted(self.costs[p][p] + sum(self.links[p][one] for one in chosen) for p in rest)[:missing]
        return total + sum(reach) + missing * (missing - 1) // 2 * self.least_link < self.best.total
