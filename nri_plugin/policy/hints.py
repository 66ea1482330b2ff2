"""Hints: the NUMA node masks on which a request for one resource fits.

On machines of up to eight NUMA nodes a hint set lists its hints in the kubelet's order: by size, then by ascending node
ids. There are at most 255 hints. Each further node would double the list, so a hint set of a larger machine carries a
`HintRule` instead: the amount on each node and the amount needed, by which any mask can be judged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, takewhile
from operator import itemgetter
from typing import NamedTuple, Self

from nri_plugin.model import bits

LISTED_NODES = 8
"""Up to this many NUMA nodes hints are listed. Source: kubelet, default of max-allowable-numa-nodes."""


class Hint(NamedTuple):
    """One way to place a request.

    Attributes:
        nodes: mask of NUMA nodes, None for "anywhere".
        preferred: no smaller mask could ever hold the request.
    """

    nodes: int | None
    preferred: bool


@dataclass(frozen=True, slots=True)
class Need:
    """An amount that the nodes of a mask must have together.

    Attributes:
        amount: the amount requested.
        by_node: the amount that each NUMA node has; nodes that are not in it have none.
    """

    amount: int
    by_node: Mapping[int, int]

    def capped(self, node: int) -> int:
        """The amount that the node has, at most the amount requested: more of it does not count."""
        return min(self.by_node.get(node, 0), self.amount)

    def is_met_by(self, nodes: int) -> bool:
        """Whether the nodes in the mask have enough together."""
        return sum(self.by_node.get(node, 0) for node in bits.iterate(nodes)) >= self.amount


@dataclass(frozen=True)
class HintRule:
    """Hints by rule: all masks inside `nodes` that contain `required`, have `at_least` nodes and meet every need.

    Invariant: adding a node of `nodes` to such a mask (a member) gives a member.

    Attributes:
        nodes: mask of the nodes that may be used.
        required: mask of the nodes that every member contains.
        needs: met by the nodes of each member.
        preferred_size: members of this size are preferred hints.
        at_least: smallest number of nodes of a member.
        sockets: masks of the nodes that touch each socket, where sockets count.
        fewest_sockets: members that touch so many sockets are preferred too; 0 where sockets do not count.
    """

    nodes: int
    required: int
    needs: tuple[Need, ...]
    preferred_size: int
    at_least: int = 1
    sockets: tuple[int, ...] = ()
    fewest_sockets: int = 0

    def __contains__(self, mask: int) -> bool:
        return (
            mask & ~self.nodes == 0
            and self.required & ~mask == 0
            and mask.bit_count() >= self.at_least
            and all(need.is_met_by(mask) for need in self.needs)
        )

    def prefers(self, mask: int) -> bool:
        """Whether `mask` is a preferred member."""
        return (
            mask.bit_count() == self.preferred_size
            or 0 < self.fewest_sockets == sum(1 for nodes in self.sockets if nodes & mask)
        ) and mask in self


@dataclass(frozen=True)
class HintSet:
    """The hints of one provider for one resource.

    Attributes:
        resource: `cpu`, `memory`, `hugepages-SIZE` or a device's resource name.
        hints: the listed hints; None when the provider has no preference; empty (and no `rule`)
            when nothing fits.
        rule: further hints, by rule.
        why: the numbers behind the hints, as text.
        exact: False when fewer of the hints may be preferred, because the search for the smallest number of nodes ran
            out of steps.
    """

    resource: str
    hints: tuple[Hint, ...] | None
    rule: HintRule | None = None
    why: str = ""
    exact: bool = True

    @classmethod
    def by_size(cls, resource: str, hints: tuple[Hint, ...], why: str) -> Self:
        """The set of listed hints of which the preferred ones come first, and none is for anywhere."""
        made = cls(resource, hints, why=why)
        if hints:
            # Known without a look at up to 255 hints.
            preferred = takewhile(itemgetter(1), hints)
            made.__dict__.update(anywhere=frozenset(), preferred=frozenset([nodes for nodes, _ in preferred]))
        return made

    @cached_property
    def anywhere(self) -> frozenset[bool]:
        """The `preferred` of its hints that name no nodes.

        Source: kubelet topologymanager, filterProvidersHints: no preference counts as "anywhere, preferred", a request
            that fits nowhere as "anywhere, not preferred".
        """
        if self.hints is None:
            return frozenset({True})
        if not self.hints and self.rule is None:
            return frozenset({False})
        return frozenset(preferred for nodes, preferred in self.hints if nodes is None)

    @cached_property
    def preferred(self) -> frozenset[int]:
        """Listed masks that are preferred."""
        return frozenset([n for n, preferred in self.hints or () if preferred and n is not None])

    @cached_property
    def masks(self) -> frozenset[int]:
        """All listed masks."""
        return frozenset([n for n, _ in self.hints or () if n is not None])

    def names(self, mask: int) -> bool:
        """Whether `mask` is one of the preferred hints."""
        if mask in self.preferred:
            return True
        return self.rule is not None and self.rule.prefers(mask)

    def prefers(self, mask: int) -> bool:
        """Whether placing the resource on exactly `mask`, or anywhere, is preferred."""
        return True in self.anywhere or self.names(mask)


Provider = tuple[HintSet, ...] | None
"""The hint sets of one provider; None or an empty tuple when it has no preference."""


@lru_cache(maxsize=64)
def masks_in_order(nodes: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(mask, size) of every non-empty set of `nodes`: by size, then by ascending node ids."""
    return tuple(
        (bits.from_ids(members), size)
        for size in range(1, len(nodes) + 1)
        for members in combinations(nodes, size)
    )


@lru_cache(maxsize=64)
def hints_in_order(nodes: tuple[int, ...], preferred_size: int) -> tuple[Hint, ...]:
    """A hint for each mask in that order; those of `preferred_size` nodes are preferred."""
    return tuple(Hint(mask, size == preferred_size) for mask, size in masks_in_order(nodes))


def sums_in_order(by_node: Mapping[int, int]) -> Iterable[int]:
    """The total of each mask in that order; for few nodes only."""
    sums = [0]
    for amount in by_node.values():
        sums += [total + amount for total in sums]
    return map(sums.__getitem__, _subsets_in_order(len(by_node)))


@lru_cache(maxsize=LISTED_NODES)
def _subsets_in_order(count: int) -> tuple[int, ...]:
    """The masks of so many positions in that order: the places of their sums."""
    return tuple(mask for mask, _ in masks_in_order(tuple(range(count))))


def sums_by_mask(by_node: Mapping[int, int]) -> dict[int, int]:
    """The total of each set of nodes, the empty one included; for few nodes only."""
    sums = {0: 0}
    for node, amount in by_node.items():
        sums |= {mask | 1 << node: total + amount for mask, total in sums.items()}
    return sums


def smallest_size(by_node: Mapping[int, int], amount: int) -> int | None:
    """How many nodes at least hold `amount` together; never 0; None when all are too small."""
    total = 0
    for size, capacity in enumerate(sorted(by_node.values(), reverse=True), 1):
        total += capacity
        if total >= amount:
            return size
    return None


# ----------------------------------------------------------------------------------------------------
# The text about NUMA nodes in a refusal.

MOST_LISTED = 8
"""A refusal names so many NUMA nodes, and counts the others."""


def by_numa_node(words_by_node: Mapping[int, str], free: Mapping[int, int], total: Mapping[int, int]) -> str:
    """The nodes with their words, without nodes that never have any of the resource.

    Args:
        words_by_node: the text about each node.
        free: the amount that is free on each node; nodes with some come first where the list is cut.
        total: the amount of an empty node.
    """
    nodes = [node for node in words_by_node if total[node]]
    if not nodes:
        return "by NUMA node: none has any"
    rest = ""
    if len(nodes) > MOST_LISTED:
        rest = f", and {len(nodes) - MOST_LISTED} more"
        nodes = sorted(nodes, key=lambda node: (not free[node], node))[:MOST_LISTED]
    return "by NUMA node " + ", ".join([f"{node}: {words_by_node[node]}" for node in nodes]) + rest
