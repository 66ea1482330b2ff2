"""The best fit, slowly: every set of the size wanted is ranked by looking at each CPU."""

from collections.abc import Sequence
from itertools import combinations

from tests.oracles.assignment import CACHE, CORE, CPU, NODE, Row


class Ranking:
    """Ranks choices out of `free`; the smaller, the better."""

    def __init__(self, rows: Sequence[Row], free: set[int]) -> None:
        self.row = {row[CPU]: row for row in rows}
        self.free = free

    def of(self, chosen: set[int]) -> tuple[object, ...]:
        nodes, caches, cores = (self.units(column, chosen) for column in (NODE, CACHE, CORE))
        near = {cpu for cpu in self.free if self.row[cpu][NODE] in nodes}
        split = [core for core in cores if not self.members(CORE, core) <= chosen]
        opened = [core for core in split if self.members(CORE, core) <= self.free]
        return (
            len(nodes),
            len(caches),
            len(split),
            self.sizes(CACHE, caches, near),
            self.sizes(NODE, nodes, near),
            sorted(nodes),
            sorted(caches),
            len(opened),
        )

    def units(self, column: int, cpus: set[int]) -> set[int]:
        return {self.row[cpu][column] for cpu in cpus}

    def members(self, column: int, number: int) -> set[int]:
        return {cpu for cpu, row in self.row.items() if row[column] == number}

    def sizes(self, column: int, units: set[int], free: set[int]) -> list[int]:
        return sorted((len(self.members(column, unit) & free) for unit in units), reverse=True)


def best_rank(rows: Sequence[Row], free: set[int], count: int) -> tuple[object, ...]:
    """The rank of the best choice of `count` CPUs; `free` must have as many."""
    ranking = Ranking(rows, free)
    return min(ranking.of(set(chosen)) for chosen in combinations(sorted(free), count))
