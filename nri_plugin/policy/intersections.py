"""All masks that arise by picking one mask of each wish and intersecting them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import add, mul, sub

from nri_plugin import bits
from nri_plugin.policy.hints import Wish

FOLD_LIMIT = 2048
"""Up to this many pairs it is quicker to intersect them one by one than to count supersets."""

COUNT_NODES = 12
"""Above this many nodes supersets are not counted: the table has two to that power entries."""


def possible_intersections(all_nodes: int, wishes: Iterable[Wish]) -> set[int]:
    """The non-empty intersections of one listed mask of each wish; "anywhere" stands for all nodes."""
    choices = [_choices(all_nodes, wish) for wish in wishes]
    choices = [choice for choice in choices if choice != {all_nodes}]
    if all_nodes.bit_count() <= COUNT_NODES and _pairs(choices) > FOLD_LIMIT:
        return _by_counting(all_nodes, choices)
    reached = {all_nodes}
    for choice in choices:
        reached = {one & other for one in reached for other in choice}
    return reached - {0}


def _choices(all_nodes: int, wish: Wish) -> set[int]:
    masks = {mask & all_nodes for mask in wish.masks}
    return masks | {all_nodes} if wish.anywhere else masks


def _pairs(choices: Sequence[set[int]]) -> int:
    return max((len(one) * len(other) for one, other in pairwise(choices)), default=0)


def _by_counting(all_nodes: int, choices: Sequence[set[int]]) -> set[int]:
    """The intersections, from how many picks have an intersection that contains a given mask.

    That number is the product, over the wishes, of their masks that contain it. Inclusion and
    exclusion then gives the number of picks whose intersection is the mask itself.
    """
    nodes = list(bits.iterate(all_nodes))
    masks = _subsets(nodes)
    index = {mask: number for number, mask in enumerate(masks)}
    containing = [1] * len(masks)
    for choice in choices:
        table = [0] * len(masks)
        for mask in choice:
            table[index[mask]] = 1
        containing = list(map(mul, containing, _over_supersets(table, len(nodes), add)))
    exactly = _over_supersets(containing, len(nodes), sub)
    return {mask for mask, picks in zip(masks, exactly, strict=True) if picks and mask}


def _subsets(nodes: Sequence[int]) -> list[int]:
    """Every mask over `nodes`; entry i has the nodes whose position is a bit of i."""
    masks = [0]
    for node in nodes:
        masks += [mask | 1 << node for mask in masks]
    return masks


def _over_supersets(table: list[int], positions: int, combine: Callable[[int, int], int]) -> list[int]:
    """Each entry combined with those of its supersets: summed up by `add`, and that undone by `sub`.

    One position at a time, always the lowest, which then becomes the highest: whole halves are combined
    at once, and after all positions every entry is back in its place.
    """
    for _ in range(positions):
        without, having = table[::2], table[1::2]
        table = [*map(combine, without, having), *having]
    return table
