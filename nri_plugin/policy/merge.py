"""Merging the wishes of all providers into one hint, exactly, without walking their product.

A merge picks one hint of each wish and intersects the masks. The outcome is
preferred when all picked hints are and all their masks are equal. So the
preferred outcomes are the masks that every wish prefers, and only when there
is none are the possible intersections looked at. Both sets depend on each
wish's set of masks alone: no combination is ever enumerated.

Source: kubelet v1.36 pkg/kubelet/cm/topologymanager/policy.go and policy_*.go.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import add, mul, sub

from nri_plugin.model import bits
from nri_plugin.model.errors import TopologyAffinityError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.hints import Family, Provider, Wish
from nri_plugin.policy.search.budget import STEP_BUDGET, Budget
from nri_plugin.policy.search.hint_sets import best_agreed, best_intersection, narrowest_size
from nri_plugin.policy.search.mask_order import Distances, Order, TieBreak, band

# ----------------------------------------------------------------------------------------------------
# All masks that arise by picking one mask of each wish and intersecting them.


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


# ----------------------------------------------------------------------------------------------------


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
    distances: Distances | None = None,
    tie_break: TieBreak | None = None,
) -> MergedHint:
    """The hint that the policy makes of all wishes.

    Exact for any wishes on machines of up to `hints.LISTED_NODES` nodes. With families on larger ones it
    is exact within the step budget of the searches; past it, the best hint found so far, and it says so.

    Args:
        policy: the topology policy.
        nodes: all NUMA nodes of the machine.
        providers: the wishes of each provider.
        distances: among masks of one size the closer wins before the lower (prefer-closest-numa-nodes).
        tie_break: among masks equal in that the smaller rank wins before the lower mask.
    """
    if policy is TopologyManagerPolicy.NONE:
        return MergedHint(None, preferred=False)
    wishes = [wish for provider in providers for wish in provider or ()]
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        return _merge_single(nodes.mask, wishes, Order(None, tie_break))
    order = Order(distances, tie_break)
    if any(wish.family for wish in wishes):
        return _merge_searching(nodes.mask, wishes, order)
    return _merge_listed(nodes.mask, wishes, order)


def _merge_listed(all_nodes: int, wishes: Sequence[Wish], order: Order) -> MergedHint:
    """All wishes are lists: what all prefer, else the best of all intersections."""
    agreed = _agreed_in_lists(all_nodes, wishes)
    if agreed:
        return MergedHint(NodeMask(_narrowest_best(agreed, order)), preferred=True)
    target = max(map(_narrowest, wishes))
    masks = possible_intersections(all_nodes, wishes)
    size = min({mask.bit_count() for mask in masks}, key=lambda size: band(size, target), default=0)
    best = min((mask for mask in masks if mask.bit_count() == size), key=order.of, default=all_nodes)
    return MergedHint(NodeMask(best), preferred=False)


def _agreed_in_lists(all_nodes: int, wishes: Sequence[Wish]) -> set[int]:
    """Masks that every wish prefers, all nodes if all prefer anywhere."""
    choosy = [wish.preferred for wish in wishes if True not in wish.anywhere]
    if choosy:
        return {mask & all_nodes for mask in choosy[0].intersection(*choosy[1:])} - {0}
    return {mask & all_nodes for wish in wishes for mask in wish.preferred} - {0} | {all_nodes}


def _merge_searching(all_nodes: int, wishes: Sequence[Wish], order: Order) -> MergedHint:
    """The same where some wishes are families: a quarter of the steps is left when nothing is what all prefer."""
    first = Budget(STEP_BUDGET * 3 // 4)
    first.reserve = STEP_BUDGET // 4
    agreed = _agreed(all_nodes, wishes, order, first)
    if agreed:
        mask = _narrowest_best(agreed, order)
        return MergedHint(NodeMask(mask), preferred=True, exact=_is_exact(wishes, mask, order, first))
    rest = Budget(first.reserve + max(0, first.left))
    target = max(_narrowest(wish, rest) for wish in wishes)
    mask = best_intersection(all_nodes, wishes, target, order, rest) or all_nodes
    exact = _is_exact(wishes, mask, order, rest) and not first.is_spent
    return MergedHint(NodeMask(mask), preferred=False, exact=exact)


def _narrowest_best(masks: Collection[int], order: Order) -> int:
    if order.is_by_mask:
        return min(masks, key=lambda mask: (mask.bit_count(), mask))
    return min(masks, key=lambda mask: (mask.bit_count(), order.of(mask)))


def _is_exact(wishes: Sequence[Wish], mask: int, order: Order, budget: Budget) -> bool:
    """Whether no search was cut short, and the tie break could be followed where it counted."""
    if budget.is_spent or not all(wish.exact for wish in wishes):
        return False
    return order.tie_break is None or mask.bit_count() == 1 or order.tie_break.is_additive


def _merge_single(all_nodes: int, wishes: Sequence[Wish], order: Order) -> MergedHint:
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


def _agreed(all_nodes: int, wishes: Sequence[Wish], order: Order, budget: Budget) -> set[int]:
    """Masks that every wish prefers: the listed ones, and the best of those that nobody lists."""
    listed = {mask for wish in wishes for mask in wish.preferred}
    agreed = {mask & all_nodes for mask in listed if all(wish.prefers(mask) for wish in wishes)}
    families = [wish.family for wish in wishes if wish.family and True not in wish.anywhere]
    if all(True in wish.anywhere or wish.family for wish in wishes):
        agreed |= _agreed_in_families(all_nodes, wishes, families, order, budget) if families else {all_nodes}
    return agreed - {0}


def _agreed_in_families(
    all_nodes: int, wishes: Sequence[Wish], families: Sequence[Family], order: Order, budget: Budget
) -> set[int]:
    """Preferred members of all families: every one of a single node, else the best."""
    if all(family.preferred_size == 1 or family.fewest_sockets for family in families):
        single = set(_agreed_nodes(all_nodes, wishes))
        if single:
            return single
    found = best_agreed(families, order, budget)
    return set() if found is None else {found & all_nodes}


def _narrowest(wish: Wish, budget: Budget | None = None) -> int:
    sizes = [mask.bit_count() for mask in wish.masks]
    if wish.family is not None:
        sizes.append(narrowest_size(wish.family, budget))
    return min(sizes, default=0)


@dataclass(frozen=True, slots=True)
class Contender:
    """A hint that a merge may come to, and did not need to."""

    nodes: int
    preferred: bool


def contenders(
    policy: TopologyManagerPolicy,
    nodes: NodeMask,
    providers: Sequence[Provider],
    *,
    distances: Distances | None = None,
    tie_break: TieBreak | None = None,
) -> list[Contender]:
    """What `merge` with the same arguments chooses from, the best first; for people, slower than a merge.

    Empty where nothing is chosen (policy `none`), and where too many sets of nodes would have to be told: on larger
    machines only single nodes are, and only where all prefer one.
    """
    wishes = [wish for provider in providers for wish in provider or ()]
    order = Order(distances, tie_break)
    if policy is TopologyManagerPolicy.NONE:
        return []
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE or any(wish.family for wish in wishes):
        single = [one for one in _agreed_nodes(nodes.mask, wishes) if any(wish.names(one) for wish in wishes)]
        return [Contender(mask, preferred=True) for mask in sorted(single, key=order.of)]
    agreed = _agreed_in_lists(nodes.mask, wishes)
    first = sorted(agreed, key=lambda mask: (mask.bit_count(), order.of(mask)))
    target = max(map(_narrowest, wishes), default=0)
    others = possible_intersections(nodes.mask, wishes) - agreed
    rest = sorted(others, key=lambda mask: (band(mask.bit_count(), target), order.of(mask)))
    return [Contender(mask, mask in agreed) for mask in (*first, *rest)]


# ----------------------------------------------------------------------------------------------------
# One decision of the Topology Manager: merge all wishes, then admit or refuse with the numbers.


def admit(
    policy: TopologyManagerPolicy,
    nodes: NodeMask,
    providers: Sequence[Provider],
    *,
    distances: Distances | None = None,
    tie_break: TieBreak | None = None,
) -> MergedHint:
    """The hint under which a container (or, in pod scope, every container of a pod) is allocated.

    Args:
        policy: the topology policy; `none` asks nobody and admits "anywhere".
        nodes: all NUMA nodes of the machine.
        providers: wishes for the container's request, or for the pod's totals in pod scope; the
            kubelet's order is devices, CPU, memory.
        distances: see `merge`.
        tie_break: see `merge`.

    Raises:
        TopologyAffinityError: the policy does not admit the merged hint.
    """
    merged = merge(policy, nodes, providers, distances=distances, tie_break=tie_break)
    if not admits(policy, merged):
        raise TopologyAffinityError(
            f"resources cannot be allocated with topology locality: policy {policy} needs {_needed(policy)}, {_found(merged)}",
            findings=_findings(providers),
            exact=merged.exact,
        )
    return merged


def _findings(providers: Sequence[Provider]) -> tuple[str, ...]:
    """What each provider found, in its own words; one that says it for several resources is quoted once."""
    wishes = (wish for provider in providers for wish in provider or ())
    return tuple(dict.fromkeys(wish.why for wish in wishes if wish.why))


def _needed(policy: TopologyManagerPolicy) -> str:
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        return "one NUMA node that holds everything"
    return "the fewest NUMA nodes that could hold everything, the same for all resources"


def _found(merged: MergedHint) -> str:
    if merged.affinity is None:
        return "and there is none"
    return f"and the best there is now is NUMA nodes {merged.affinity}"
