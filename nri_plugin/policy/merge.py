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
from nri_plugin.policy.family_search import lowest_preferred, narrowest_size
from nri_plugin.policy.hints import Provider, Wish
from nri_plugin.policy.intersections import possible_intersections

Distance = Callable[[int], int]
"""Sum of distances over all ordered pairs of a mask's nodes; compared between masks of one size only."""


@dataclass(frozen=True, slots=True)
class MergedHint:
    """Where a container, or a pod, should go.

    Attributes:
        affinity: NUMA nodes, None for "anywhere".
        preferred: whether it is as narrow as the requests allow on an empty machine, for all alike.
    """

    affinity: NodeMask | None
    preferred: bool


def admits(policy: TopologyManagerPolicy, merged: MergedHint) -> bool:
    """Whether the policy lets a container start with that hint."""
    return merged.preferred or policy in {TopologyManagerPolicy.NONE, TopologyManagerPolicy.BEST_EFFORT}


def merge(
    policy: TopologyManagerPolicy,
    nodes: NodeMask,
    providers: Sequence[Provider],
    *,
    distance: Distance | None = None,
) -> MergedHint:
    """The hint that the policy makes of all wishes.

    Exact for any wishes on machines of up to `hints.LISTED_NODES` nodes, and for listed hints and
    single-node outcomes on any machine. With families on larger machines it is exact within the
    step budget of the searches; past it, not preferred, on all nodes that every wish can use.

    Args:
        policy: the topology policy.
        nodes: all NUMA nodes of the machine.
        providers: the wishes of each provider.
        distance: among masks of one size the closer wins before the lower (prefer-closest-numa-nodes).
    """
    if policy is TopologyManagerPolicy.NONE:
        return MergedHint(None, preferred=False)
    wishes = [wish for provider in providers for wish in provider or ()]
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        return _merge_single(nodes.mask, wishes)
    preferred = _best_preferred(nodes.mask, wishes, distance)
    if preferred is not None:
        return MergedHint(NodeMask(preferred), preferred=True)
    return MergedHint(NodeMask(_best_other(nodes.mask, wishes, distance)), preferred=False)


def _merge_single(all_nodes: int, wishes: Sequence[Wish]) -> MergedHint:
    """Only preferred hints of one node, or of none in particular, count; all nodes means "anywhere"."""
    for node in bits.iterate(all_nodes):
        mask = 1 << node
        if all(wish.prefers(mask) for wish in wishes) and any(wish.names(mask) for wish in wishes):
            return MergedHint(NodeMask(mask) if mask != all_nodes else None, preferred=True)
    return MergedHint(None, preferred=all(True in wish.anywhere for wish in wishes))


def _best_preferred(all_nodes: int, wishes: Sequence[Wish], distance: Distance | None) -> int | None:
    """The narrowest, then closest, then lowest mask that every wish prefers; None if there is none."""
    listed = {mask for wish in wishes for mask in wish.preferred}
    agreed = {mask & all_nodes for mask in listed if all(wish.prefers(mask) for wish in wishes)}
    if all(True in wish.anywhere for wish in wishes):
        agreed.add(all_nodes)
    families = [wish.family for wish in wishes if wish.family and True not in wish.anywhere]
    if families and all(True in wish.anywhere or wish.family for wish in wishes):
        found = lowest_preferred(families)
        agreed |= set() if found is None else {found & all_nodes}
    agreed.discard(0)
    return min(agreed, key=lambda mask: (mask.bit_count(), _far(distance, mask), mask), default=None)


def _best_other(all_nodes: int, wishes: Sequence[Wish], distance: Distance | None) -> int:
    """The best intersection when none is preferred; all nodes when all intersections are empty.

    Widths are judged against the widest of the narrowest masks: that width first, then narrower
    ones, the widest of them first, then wider ones, the narrowest first.
    """
    target = max((_narrowest(wish) for wish in wishes), default=0)
    if any(wish.family for wish in wishes):
        return best_intersection(all_nodes, wishes, target) or all_nodes
    masks = possible_intersections(all_nodes, wishes)
    return min(masks, key=lambda mask: _rank(mask, target, distance), default=all_nodes)


def _narrowest(wish: Wish) -> int:
    sizes = [mask.bit_count() for mask in wish.masks]
    if wish.family is not None:
        sizes.append(narrowest_size(wish.family))
    return min(sizes, default=0)


def _rank(mask: int, target: int, distance: Distance | None) -> tuple[int, int, int, int]:
    size = mask.bit_count()
    if size == target:
        band, order = 0, size
    elif size < target:
        band, order = 1, -size
    else:
        band, order = 2, size
    return band, order, _far(distance, mask), mask


def _far(distance: Distance | None, mask: int) -> int:
    return distance(mask) if distance else 0
