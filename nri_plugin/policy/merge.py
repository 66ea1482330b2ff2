"""Merging the wishes of all providers into one hint, exactly, without walking their product.

A merge picks one hint of each wish and intersects the masks. The outcome is
preferred when all picked hints are and all their masks are equal. So the
preferred outcomes are the masks that every wish prefers, and only when there
is none are the possible intersections looked at. Both sets depend on each
wish's set of masks alone: no combination is ever enumerated.

Source: kubelet v1.36 pkg/kubelet/cm/topologymanager/policy.go and policy_*.go.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.nodemask import NodeMask
from nri_plugin.options import TopologyManagerPolicy
from nri_plugin.policy.family_intersections import best_intersection
from nri_plugin.policy.family_search import Budget, lowest_preferred, narrowest_size
from nri_plugin.policy.hints import Family, Provider, Wish
from nri_plugin.policy.intersections import possible_intersections

Distance = Callable[[int], int]
"""Sum of distances over all ordered pairs of a mask's nodes; compared between masks of one size only."""

TieBreak = Callable[[int], int]
"""Rank of a mask, smaller is better; compared between masks of one size and distance only."""


@dataclass(frozen=True, slots=True)
class MergedHint:
    """Where a container, or a pod, should go.

    Attributes:
        affinity: NUMA nodes, None for "anywhere".
        preferred: whether it is as narrow as the requests allow on an empty machine, for all alike.
        exact: False when a better hint may exist: on a machine too large for lists a search ran out of
            steps, or distances would have to decide between sets of several nodes.
    """

    affinity: NodeMask | None
    preferred: bool
    exact: bool = True


def admits(policy: TopologyManagerPolicy, merged: MergedHint) -> bool:
    """Whether the policy lets a container start with that hint."""
    return merged.preferred or policy in {TopologyManagerPolicy.NONE, TopologyManagerPolicy.BEST_EFFORT}


def merge(
    policy: TopologyManagerPolicy,
    nodes: NodeMask,
    providers: Sequence[Provider],
    *,
    distance: Distance | None = None,
    tie_break: TieBreak | None = None,
) -> MergedHint:
    """The hint that the policy makes of all wishes.

    Exact for any wishes on machines of up to `hints.LISTED_NODES` nodes, and for listed hints and
    single-node outcomes on any machine. With families on larger machines it is exact within the
    step budget of the searches; past it, not preferred, on all nodes that every wish can use, and
    the hint says that it is not exact.

    Args:
        policy: the topology policy.
        nodes: all NUMA nodes of the machine.
        providers: the wishes of each provider.
        distance: among masks of one size the closer wins before the lower (prefer-closest-numa-nodes).
            Families of wider masks than one node do not heed it yet; the hint then is not exact.
        tie_break: among masks equal in that the smaller rank wins before the lower mask. On machines
            whose wishes are families it decides between single nodes only.
    """
    if policy is TopologyManagerPolicy.NONE:
        return MergedHint(None, preferred=False)
    wishes = [wish for provider in providers for wish in provider or ()]
    order = _Order(distance, tie_break)
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        return _merge_single(nodes.mask, wishes, _Order(None, tie_break))
    is_blind = distance is not None and any(wish.family for wish in wishes)
    budget = Budget()
    preferred = _best_preferred(nodes.mask, wishes, order, budget)
    if preferred is not None:
        exact = budget.left >= 0 and not (is_blind and preferred & preferred - 1)
        return MergedHint(NodeMask(preferred), preferred=True, exact=exact)
    rest = Budget()
    other = _best_other(nodes.mask, wishes, order, rest)
    exact = min(budget.left, rest.left) >= 0 and not is_blind
    return MergedHint(NodeMask(other), preferred=False, exact=exact)


@dataclass(frozen=True, slots=True)
class _Order:
    """What decides between masks of one size."""

    distance: Distance | None
    tie_break: TieBreak | None

    def of(self, mask: int) -> tuple[int, int, int]:
        far = self.distance(mask) if self.distance else 0
        return far, self.tie_break(mask) if self.tie_break else 0, mask


def _merge_single(all_nodes: int, wishes: Sequence[Wish], order: _Order) -> MergedHint:
    """Only preferred hints of one node, or of none in particular, count; all nodes means "anywhere"."""
    agreed = [mask for mask in _agreed_nodes(all_nodes, wishes) if any(wish.names(mask) for wish in wishes)]
    if agreed:
        mask = min(agreed, key=order.of)
        return MergedHint(NodeMask(mask) if mask != all_nodes else None, preferred=True)
    return MergedHint(None, preferred=all(True in wish.anywhere for wish in wishes))


def _agreed_nodes(all_nodes: int, wishes: Sequence[Wish]) -> list[int]:
    """Masks of one node that every wish prefers."""
    masks = [1 << node for node in bits.iterate(all_nodes)]
    return [mask for mask in masks if all(wish.prefers(mask) for wish in wishes)]


def _best_preferred(all_nodes: int, wishes: Sequence[Wish], order: _Order, budget: Budget) -> int | None:
    """The narrowest, then best by `order`, of the masks that every wish prefers; None if there is none."""
    listed = {mask for wish in wishes for mask in wish.preferred}
    agreed = {mask & all_nodes for mask in listed if all(wish.prefers(mask) for wish in wishes)}
    if all(True in wish.anywhere for wish in wishes):
        agreed.add(all_nodes)
    families = [wish.family for wish in wishes if wish.family and True not in wish.anywhere]
    if families and all(True in wish.anywhere or wish.family for wish in wishes):
        agreed |= _agreed_in_families(all_nodes, wishes, families, budget)
    agreed.discard(0)
    return min(agreed, key=lambda mask: (mask.bit_count(), order.of(mask)), default=None)


def _agreed_in_families(
    all_nodes: int, wishes: Sequence[Wish], families: Sequence[Family], budget: Budget
) -> set[int]:
    """Preferred members of all families: every one of a single node, else the lowest."""
    if all(family.preferred_size == 1 for family in families):
        return set(_agreed_nodes(all_nodes, wishes))
    found = lowest_preferred(families, budget)
    return set() if found is None else {found & all_nodes}


def _best_other(all_nodes: int, wishes: Sequence[Wish], order: _Order, budget: Budget) -> int:
    """The best intersection when none is preferred; all nodes when all intersections are empty.

    Widths are judged against the widest of the narrowest masks: that width first, then narrower
    ones, the widest of them first, then wider ones, the narrowest first.
    """
    target = max((_narrowest(wish, budget) for wish in wishes), default=0)
    if any(wish.family for wish in wishes):
        return best_intersection(all_nodes, wishes, target, budget) or all_nodes
    masks = possible_intersections(all_nodes, wishes)
    return min(masks, key=lambda mask: (_band(mask.bit_count(), target), order.of(mask)), default=all_nodes)


def _narrowest(wish: Wish, budget: Budget) -> int:
    sizes = [mask.bit_count() for mask in wish.masks]
    if wish.family is not None:
        sizes.append(narrowest_size(wish.family, budget))
    return min(sizes, default=0)


def _band(size: int, target: int) -> tuple[int, int]:
    if size == target:
        return 0, size
    return (1, -size) if size < target else (2, size)
