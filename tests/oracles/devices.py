"""Preferred devices, slowly: every set, judged by the order the contract states."""

from collections.abc import Mapping, Sequence
from itertools import combinations


def preferred(
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    nodes_by_device: Mapping[str, frozenset[int]],
    links: Mapping[tuple[str, str], int],
    affinity: frozenset[int] | None,
) -> tuple[str, ...]:
    def weight(a: str, b: str) -> int:
        return links.get((a, b), 0) + links.get((b, a), 0)

    def near(device: str, nodes: frozenset[int]) -> bool:
        return not nodes_by_device.get(device) or bool(nodes_by_device[device] & nodes)

    def width(chosen: Sequence[str]) -> int:
        every = sorted(frozenset().union(*nodes_by_device.values()))
        return next(
            size
            for size in range(len(every) + 1)
            for nodes in combinations(every, size)
            if all(near(device, frozenset(nodes)) for device in chosen)
        )

    def rank(chosen: Sequence[str]) -> tuple[object, ...]:
        inside = sum(weight(a, b) for a, b in combinations(chosen, 2))
        cut = sum(weight(a, b) for a in chosen for b in available if b not in chosen)
        on_affinity = 0 if affinity is None else sum(near(device, affinity) for device in chosen)
        return -on_affinity, width(chosen), -inside, cut, [available.index(device) for device in chosen]

    sets = [chosen for chosen in combinations(available, size) if set(must_include) <= set(chosen)]
    return min(sets, key=rank)
