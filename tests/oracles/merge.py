"""The merge, slowly: every combination of one hint of each wish, and the best of them."""

from collections.abc import Sequence
from itertools import product

HintPair = tuple[int | None, bool]


def merged(
    policy: str, all_nodes: int, wishes: Sequence[Sequence[HintPair] | None]
) -> tuple[int | None, bool]:
    """(mask, preferred); each wish is a list of (mask or None, preferred), None for no preference."""
    if policy == "none":
        return None, False
    lists = [_filled(wish) for wish in wishes]
    if policy == "single-numa-node":
        lists = [[h for h in hints if h[1] and (h[0] is None or h[0].bit_count() == 1)] for hints in lists]
    outcomes = {_intersected(all_nodes, combination) for combination in product(*lists)}
    outcomes = {(mask, preferred) for mask, preferred in outcomes if mask}
    narrowest = [min((m.bit_count() for m, _ in hints if m is not None), default=0) for hints in lists]
    target = max(narrowest, default=0)
    mask, preferred = min(outcomes, key=lambda o: _key(*o, target), default=(all_nodes, False))
    if policy == "single-numa-node" and mask == all_nodes:
        return None, preferred
    return mask, preferred


def _filled(wish: Sequence[HintPair] | None) -> Sequence[HintPair]:
    if wish is None:
        return [(None, True)]
    return wish or [(None, False)]


def _intersected(all_nodes: int, combination: Sequence[HintPair]) -> tuple[int, bool]:
    masks = [mask for mask, _ in combination if mask is not None]
    result = all_nodes
    for mask in masks:
        result &= mask
    return result, all(preferred for _, preferred in combination) and len(set(masks)) <= 1


def _key(mask: int, preferred: bool, target: int) -> tuple[int, ...]:
    size = mask.bit_count()
    if preferred:
        return 0, 0, size, mask
    if size == target:
        return 1, 0, size, mask
    if size < target:
        return 1, 1, -size, mask
    return 1, 2, size, mask
