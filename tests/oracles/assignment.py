"""Packed choice of CPUs, slowly: sets of numbers and one rule after another.

Written from the rules, not from the fast code: every order is worked out by looking at each CPU.
"""

from collections.abc import Callable, Sequence

Row = Sequence[int]
"""cpu, core, socket, NUMA node, uncore cache."""

CPU, CORE, SOCKET, NODE, CACHE = range(5)


class Machine:
    """Rows, and what is still free of them."""

    def __init__(self, rows: Sequence[Row], available: set[int], need: int) -> None:
        self.rows = {row[CPU]: row for row in rows}
        self.free = {cpu for cpu in available if cpu in self.rows}
        self.need = need
        self.result: set[int] = set()

    def all_of(self, column: int, number: int) -> set[int]:
        return {cpu for cpu, row in self.rows.items() if row[column] == number}

    def free_of(self, column: int, number: int) -> set[int]:
        return self.all_of(column, number) & self.free

    def ids(self, column: int) -> set[int]:
        return {row[column] for row in self.rows.values()}

    def average(self, column: int) -> int:
        return len(self.rows) // len(self.ids(column))

    def give(self, cpus: set[int]) -> None:
        assert cpus <= self.free
        self.result |= cpus
        self.free -= cpus
        self.need -= len(cpus)

    def fullest_first(self, column: int, within: Callable[[Row], bool] = lambda _: True) -> list[int]:
        """Ids that have a free CPU for which `within` holds: fewest free CPUs first, then lowest id."""
        ids = {self.rows[cpu][column] for cpu in self.free if within(self.rows[cpu])}
        return sorted(ids, key=lambda number: (len(self.free_of(column, number)), number))

    def order(self, column: int) -> list[int]:
        """The walk over the units of one level."""
        nodes_first = len(self.ids(SOCKET)) >= len(self.ids(NODE))
        outer = NODE if nodes_first else SOCKET
        if column == outer:
            return self.fullest_first(column)
        if column in {NODE, SOCKET}:
            above = outer
        elif column == CACHE:
            above = NODE
        else:
            above = SOCKET if nodes_first else NODE
        walk = []
        for unit in self.order(above):
            walk += self.fullest_first(column, lambda row, unit=unit: row[above] == unit)
        return walk

    def whole(self, column: int, *, by_average: bool) -> None:
        for unit in self.order(column):
            members = self.all_of(column, unit)
            is_free = members <= self.free and (not by_average or len(members) == self.average(column))
            if is_free and len(members) <= self.need:
                self.give(members)

    def caches(self) -> None:
        for cache in self.order(CACHE):
            if self.need >= self.average(CACHE):
                self.whole(CACHE, by_average=False)
            if self.need:
                self.part_of_cache(cache)
            if not self.need:
                return

    def part_of_cache(self, cache: int) -> None:
        threads = self.average(CORE)
        cores = sorted({self.rows[cpu][CORE] for cpu in self.free_of(CACHE, cache)})
        wanted = (self.need + threads - 1) // threads
        cpus = {cpu for core in cores[:wanted] for cpu in self.free_of(CORE, core)}
        if threads > 1 and self.need % 2 == 1 and len(cpus) > self.need:
            cpus.remove(max(cpus))
        if len(cpus) == self.need:
            self.give(cpus)

    def singles(self, column: int) -> None:
        for unit in self.order(column):
            for cpu in sorted(self.free_of(column, unit)):
                if self.need:
                    self.give({cpu})


def packed(
    rows: Sequence[Row], available: set[int], count: int, *, by_cache: bool, spread: bool = False
) -> set[int] | None:
    """The CPUs chosen; None when there are too few."""
    machine = Machine(rows, available, count)
    if count <= 0:
        return set()
    if len(machine.free) < count:
        return None
    nodes_first = len(machine.ids(SOCKET)) >= len(machine.ids(NODE))
    for column in (NODE, SOCKET) if nodes_first else (SOCKET, NODE):
        machine.whole(column, by_average=column == SOCKET)
    if by_cache and machine.need:
        machine.caches()
    if machine.need and not spread:
        machine.whole(CORE, by_average=True)
    machine.singles(SOCKET if spread else CORE)
    return machine.result
