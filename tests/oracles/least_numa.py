"""Every set of every size, one by one: what the search must come to."""

import itertools
from collections.abc import Sequence


def closest_set(eligible: Sequence[int], needs, costs) -> tuple[tuple[int, ...], int] | None:
    """The first of the closest of the smallest sets, and its sum of distances."""
    for size in range(1, len(eligible) + 1):
        best = None
        for positions in itertools.combinations(eligible, size):
            if any(sum(have[p] for p in positions) < amount for amount, have in needs):
                continue
            total = sum(costs[a][b] for a in positions for b in positions)
            if best is None or total < best[1]:
                best = positions, total
        if best is not None:
            return best
    return None


def least_total(costs, size: int) -> int:
    """The least sum of distances of any set of a size."""
    sets = itertools.combinations(range(len(costs)), size)
    return min(sum(costs[a][b] for a in one for b in one) for one in sets)
