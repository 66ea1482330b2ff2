"""Sets of ids done slowly: Python's own frozensets, and the kernel list format by walking."""

import random
from collections.abc import Iterable


def to_list(ids: Iterable[int]) -> str:
    """One id at a time: extend the last run, or begin another."""
    runs: list[list[int]] = []
    for number in sorted(set(ids)):
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def from_list(text: str) -> frozenset[int]:
    ids: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        first, _, last = item.partition("-")
        ids.update(range(int(first), int(last or first) + 1))
    return frozenset(ids)


def untidy_list(ids: Iterable[int], chance: random.Random) -> str:
    """Another list of the same ids: shuffled, cut anywhere, some said twice."""
    pieces = [f"{number}" if chance.random() < 0.5 else f"{number}-{number}" for number in ids]
    pieces += [to_list(piece) for piece in [sorted(ids)[: chance.randint(1, 9)]] if piece]
    pieces = [item for piece in pieces for item in piece.split(",")]
    chance.shuffle(pieces)
    return ",".join(pieces)
