"""Memory hints, slowly: every set of nodes, and every rule asked of it."""

from collections.abc import Mapping
from itertools import combinations


def hints(
    free: Mapping[str, Mapping[int, int]],
    allocatable: Mapping[str, Mapping[int, int]],
    assignments: Mapping[int, int],
    groups: Mapping[int, frozenset[int]],
    request: Mapping[str, int],
) -> list[tuple[frozenset[int], bool]]:
    """(nodes, preferred), by size and then by ascending ids."""
    nodes = sorted(assignments)
    sets = [frozenset(c) for size in range(1, len(nodes) + 1) for c in combinations(nodes, size)]
    could = [len(s) for s in sets if all(_sum(allocatable[r], s) >= size for r, size in request.items())]
    smallest = min(could, default=len(nodes))
    return [
        (s, len(s) == smallest)
        for s in sets
        if all(_sum(free[r], s) >= size for r, size in request.items()) and _allowed(s, assignments, groups)
    ]


def _sum(by_node: Mapping[int, int], nodes: frozenset[int]) -> int:
    return sum(by_node[node] for node in nodes)


def _allowed(
    nodes: frozenset[int], assignments: Mapping[int, int], groups: Mapping[int, frozenset[int]]
) -> bool:
    if len(nodes) == 1:
        return len(groups[next(iter(nodes))]) == 1
    return all(assignments[node] == 0 or groups[node] == nodes for node in nodes)
