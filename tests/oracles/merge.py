"""The merge, slowly: every combination of one hint of each hint set, and the best of them.

Written from `kubelet-semantics`, items 24 to 28: how hint sets become lists, what a combination gives, and
how two outcomes compare. `rank` is a further comparison of our own, after distance and before the mask.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import product

HintPair = tuple[int | None, bool]
Rows = Mapping[int, Mapping[int, int]]


def merged(
    policy: str,
    all_nodes: int,
    hint_sets: Sequence[Sequence[HintPair] | None],
    rows: Rows | None = None,
    rank: Callable[[int], int] = lambda mask: 0,
) -> tuple[int | None, bool]:
    """(mask, preferred); each hint set is a list of (mask or None, preferred), None for no preference."""
    if policy == "none":
        return None, False
    lists = [_filled(hint_set) for hint_set in hint_sets]
    if policy == "single-numa-node":
        lists = [[h for h in hints if h[1] and (h[0] is None or h[0].bit_count() == 1)] for hints in lists]
        rows = None
    outcomes = {(mask, preferred) for mask, preferred in by_folding(all_nodes, lists) if mask}
    narrowest = [min((m.bit_count() for m, _ in hints if m is not None), default=0) for hints in lists]
    target = max(narrowest, default=0)
    mask, preferred = min(
        outcomes,
        key=lambda outcome: (
            *_band(*outcome, target),
            average(rows, outcome[0]),
            rank(outcome[0]),
            outcome[0],
        ),
        default=(all_nodes, False),
    )
    if policy == "single-numa-node" and mask == all_nodes:
        return None, preferred
    return mask, preferred


def members_of(mask: int) -> list[int]:
    return [node for node in range(mask.bit_length()) if mask >> node & 1]


def average(rows: Rows | None, mask: int) -> Fraction:
    """Mean distance over all ordered pairs of the mask's nodes, each with itself included."""
    if rows is None:
        return Fraction(0)
    nodes = members_of(mask)
    return Fraction(sum(rows[one][other] for one in nodes for other in nodes), len(nodes) ** 2)


def _filled(hint_set: Sequence[HintPair] | None) -> Sequence[HintPair]:
    if hint_set is None:
        return [(None, True)]
    return hint_set or [(None, False)]


def by_product(all_nodes: int, lists: Sequence[Sequence[HintPair]]) -> set[tuple[int, bool]]:
    """What all combinations give, one by one."""
    return {_intersected(all_nodes, combination) for combination in product(*lists)}


def _intersected(all_nodes: int, combination: Sequence[HintPair]) -> tuple[int, bool]:
    masks = [mask for mask, _ in combination if mask is not None]
    result = all_nodes
    for mask in masks:
        result &= mask
    return result, all(preferred for _, preferred in combination) and len(set(masks)) <= 1


def by_folding(all_nodes: int, lists: Sequence[Sequence[HintPair]]) -> set[tuple[int, bool]]:
    """The same, one hint set after the other, and what came out alike so far only once.

    Of the masks picked so far it counts whether there was none (None), always the same one, or several (0).
    """
    reached = {(all_nodes, True, None)}
    for hints in lists:
        reached = {
            (result & (all_nodes if mask is None else mask), preferred and also, _same(picked, mask))
            for result, preferred, picked in reached
            for mask, also in hints
        }
    return {(result, preferred and picked != 0) for result, preferred, picked in reached}


def _same(picked: int | None, mask: int | None) -> int | None:
    if mask is None or picked is None:
        return picked if mask is None else mask
    return mask if picked == mask else 0


def _band(mask: int, preferred: bool, target: int) -> tuple[int, ...]:
    size = mask.bit_count()
    if preferred:
        return 0, 0, size
    if size == target:
        return 1, 0, size
    if size < target:
        return 1, 1, -size
    return 1, 2, size
