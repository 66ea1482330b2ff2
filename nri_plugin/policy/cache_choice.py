"""Which uncore caches a container goes to, on given NUMA nodes.

The best choice has the fewest caches; then splits the fewest cores; then leaves
the largest holes alone (a hole is what is free in a cache: of the caches chosen,
the largest is as small as possible, then the second largest, and so on); then
has the lowest numbers.

With as few caches as possible each is needed, so what remains free in them is
less than any of them held: which holes survive depends on the sizes alone. That
makes "leave the largest out while the others suffice" the best choice by sizes.
Only where it would split more cores than all caches together must, the sets of
caches are gone through, merged by what they hold, with a bounded number of steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from nri_plugin.policy.core_choice import CoreClass, Counts, plan

STEPS = 4_000
"""Sets of caches looked at before the choice by sizes is kept; about 10 ms on the machine of the bench."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What is free in an uncore cache.

    Attributes:
        number: its place in the order of caches.
        cpus: mask of its free CPUs on the NUMA nodes in question.
        free: their number, never 0.
        cores: the same by class of core.
    """

    number: int
    cpus: int
    free: int
    cores: Counts


@dataclass(frozen=True, slots=True)
class Choice:
    """Caches chosen, by ascending number; `split` is the number of cores that must be split there."""

    caches: tuple[Cache, ...]
    split: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The holes it uses, the largest first: the smaller, the larger are those left alone."""
        return tuple(sorted((cache.free for cache in self.caches), reverse=True))


def fewest_caches(caches: Sequence[Cache], need: int) -> int:
    """How many caches it takes; they must hold `need` together."""
    largest = sorted((cache.free for cache in caches), reverse=True)
    return next(number for number, total in enumerate(accumulate(largest), 1) if total >= need)


def choose_caches(
    classes: Sequence[CoreClass], caches: Sequence[Cache], need: int, steps: int = STEPS
) -> Choice:
    """The best caches for `need` CPUs, which they must hold together."""
    ordered = sorted(caches, key=lambda cache: (-cache.free, -cache.number))
    number = fewest_caches(ordered, need)
    by_size = _choice(classes, _tightest(ordered, number, need), need)
    if not by_size.split or by_size.split == _choice(classes, ordered, need).split:
        return by_size
    found = _Sets(classes, ordered, number, need, steps).best()
    return by_size if found is None else _choice(classes, found, need)


def _choice(classes: Sequence[CoreClass], caches: Sequence[Cache], need: int) -> Choice:
    counts = tuple(map(sum, zip(*(cache.cores for cache in caches), strict=True)))
    ascending = tuple(sorted(caches, key=lambda cache: cache.number))
    return Choice(ascending, plan(classes, counts, need).split)


def _tightest(ordered: Sequence[Cache], number: int, need: int) -> list[Cache]:
    """Each cache is left out, from the largest on, while those behind it suffice."""
    sums = [0, *accumulate(cache.free for cache in ordered)]
    chosen: list[Cache] = []
    for place, cache in enumerate(ordered, 1):
        upto = place + number - len(chosen)
        is_enough_behind = upto <= len(ordered) and sums[upto] - sums[place] >= need
        if not is_enough_behind:
            chosen.append(cache)
            need -= cache.free
    return chosen


class _Sets:
    """All sets of `number` caches that hold the need, those of equal content merged.

    A set's rank is one number, the sum of its caches' ranks: sizes above (how many there are of each,
    the largest size uppermost), members below (the lowest uppermost, subtracted). Smaller is better,
    and adding the same cache to two sets keeps their order; so of sets that hold the same only the
    best must be kept.
    """

    def __init__(
        self, classes: Sequence[CoreClass], ordered: Sequence[Cache], number: int, need: int, steps: int
    ) -> None:
        self.classes = classes
        self.ordered = ordered
        self.number = number
        self.need = need
        self.steps = steps
        self.sums = [0, *accumulate(cache.free for cache in ordered)]
        ascending = sorted(ordered, key=lambda cache: cache.number)
        self.bit = {cache.number: 1 << len(ordered) - 1 - place for place, cache in enumerate(ascending)}
        self.level = {free: level for level, free in enumerate(sorted({cache.free for cache in ordered}))}

    def best(self) -> list[Cache] | None:
        """The best set; None when it takes too many steps to tell."""
        sets: dict[tuple[int, int, Counts], int] = {(0, 0, (0,) * len(self.classes)): 0}
        for place, cache in enumerate(self.ordered, 1):
            self.steps -= len(sets)
            if self.steps < 0:
                return None
            sets = self._grown(sets, place, cache)
        rank = min(
            (plan(self.classes, counts, self.need).split, rank) for (_, _, counts), rank in sets.items()
        )
        return [cache for cache in self.ordered if self.bit[cache.number] & -rank[1]]

    def _grown(
        self, sets: dict[tuple[int, int, Counts], int], place: int, cache: Cache
    ) -> dict[tuple[int, int, Counts], int]:
        """The sets with and without a further cache that can still become large enough."""
        own = self._rank(cache)
        grown: dict[tuple[int, int, Counts], int] = {}
        for (size, free, counts), rank in sets.items():
            if self._can(place, size, free):
                _keep(grown, (size, free, counts), rank)
            if size < self.number and self._can(place, size + 1, free + cache.free):
                more = tuple(map(add, counts, cache.cores))
                _keep(grown, (size + 1, free + cache.free, more), rank + own)
        return grown

    def _can(self, place: int, size: int, free: int) -> bool:
        upto = place + self.number - size
        return upto <= len(self.ordered) and free + self.sums[upto] - self.sums[place] >= self.need

    def _rank(self, cache: Cache) -> int:
        width = len(self.ordered)
        size = 1 << self.level[cache.free] * width.bit_length()
        return (size << width) - self.bit[cache.number]


def _keep(sets: dict[tuple[int, int, Counts], int], holds: tuple[int, int, Counts], rank: int) -> None:
    if rank < sets.get(holds, rank + 1):
        sets[holds] = rank
