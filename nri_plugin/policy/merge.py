"""The Topology Manager: merge the hint sets of all providers into one hint, and admit it or reject it.

The kubelet takes each combination of one hint of each hint set and intersects the masks. The result is preferred when
all these hints are preferred and all their masks are equal. So the preferred results are the masks that every hint set
prefers, and other intersections matter only when there is none. Both follow from the set of masks of each hint set, so
the merge is exact without listing the combinations.

Source: kubelet v1.36 pkg/kubelet/cm/topologymanager/policy.go and policy_*.go.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import add, mul, sub

from nri_plugin.model import bits
from nri_plugin.model.errors import TopologyAffinityError
from nri_plugin.model.options import TopologyManagerPolicy
from nri_plugin.model.refusals import HintNotAdmitted
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.hints import HintRule, HintSet, Provider
from nri_plugin.policy.search import STEP_BUDGET, StepBudget
from nri_plugin.policy.search.intersections import best_agreed, best_intersection, narrowest_size
from nri_plugin.policy.search.mask_order import Distances, MaskOrder, TieBreak, band


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
    """The hint that the policy makes of all hint sets.

    Exact for any hint sets on machines of up to `hints.LISTED_NODES` nodes. With rules on larger ones it
    is exact within the step budget of the searches; past it, the best hint found so far, and it says so.

    Args:
        policy: the topology policy.
        nodes: all NUMA nodes of the machine.
        providers: the hint sets of each provider.
        distances: among masks of one size the closer wins before the lower (prefer-closest-numa-nodes).
        tie_break: among masks equal in that the smaller rank wins before the lower mask.
    """
    if policy is TopologyManagerPolicy.NONE:
        return MergedHint(None, preferred=False)
    hint_sets = [hint_set for provider in providers for hint_set in provider or ()]
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
        return _merge_single(nodes.mask, hint_sets, MaskOrder(None, tie_break))
    order = MaskOrder(distances, tie_break)
    if any(hint_set.rule for hint_set in hint_sets):
        return _merge_searching(nodes.mask, hint_sets, order)
    return _merge_listed(nodes.mask, hint_sets, order)


def _merge_listed(all_nodes: int, hint_sets: Sequence[HintSet], order: MaskOrder) -> MergedHint:
    """The merge of hint sets that are lists: a mask that all prefer, else the best of all intersections."""
    agreed = _agreed_in_lists(all_nodes, hint_sets)
    if agreed:
        return MergedHint(NodeMask(_narrowest_best(agreed, order)), preferred=True)
    # The narrowest mask of a hint set is the least that its resource needs, so no useful size is below their maximum. The
    # kubelet compares intersections by their distance from that size.
    target = max(map(_narrowest, hint_sets))
    masks = possible_intersections(all_nodes, hint_sets)
    size = min({mask.bit_count() for mask in masks}, key=lambda size: band(size, target), default=0)
    best = min((mask for mask in masks if mask.bit_count() == size), key=order.of, default=all_nodes)
    return MergedHint(NodeMask(best), preferred=False)


def _agreed_in_lists(all_nodes: int, hint_sets: Sequence[HintSet]) -> set[int]:
    """Masks that every hint set prefers, all nodes if all prefer anywhere."""
    # A hint set that prefers "anywhere" agrees with each mask that another one prefers.
    choosy = [hint_set.preferred for hint_set in hint_sets if True not in hint_set.anywhere]
    if choosy:
        return {mask & all_nodes for mask in choosy[0].intersection(*choosy[1:])} - {0}
    return {mask & all_nodes for hint_set in hint_sets for mask in hint_set.preferred} - {0} | {all_nodes}


def _merge_searching(all_nodes: int, hint_sets: Sequence[HintSet], order: MaskOrder) -> MergedHint:
    """The merge of hint sets of which some are rules."""
    # When no set is preferred by all, a second search follows: a quarter of the steps is kept for it.
    first = StepBudget(STEP_BUDGET * 3 // 4)
    first.reserve = STEP_BUDGET // 4
    agreed = _agreed(all_nodes, hint_sets, order, first)
    if agreed:
        mask = _narrowest_best(agreed, order)
        return MergedHint(NodeMask(mask), preferred=True, exact=_is_exact(hint_sets, mask, order, first))
    # Nothing is preferred by all: the best intersection, with the steps that are left.
    rest = StepBudget(first.reserve + max(0, first.left))
    target = max(_narrowest(hint_set, rest) for hint_set in hint_sets)
    mask = best_intersection(all_nodes, hint_sets, target, order, rest) or all_nodes
    exact = _is_exact(hint_sets, mask, order, rest) and not first.is_spent
    return MergedHint(NodeMask(mask), preferred=False, exact=exact)


def _narrowest_best(masks: Collection[int], order: MaskOrder) -> int:
    if order.is_by_mask:
        return min(masks, key=lambda mask: (mask.bit_count(), mask))
    return min(masks, key=lambda mask: (mask.bit_count(), order.of(mask)))


def _is_exact(hint_sets: Sequence[HintSet], mask: int, order: MaskOrder, budget: StepBudget) -> bool:
    """Whether no search was cut short, and the tie break could be followed where it counted."""
    if budget.is_spent or not all(hint_set.exact for hint_set in hint_sets):
        return False
    return order.tie_break is None or mask.bit_count() == 1 or order.tie_break.is_additive


def _merge_single(all_nodes: int, hint_sets: Sequence[HintSet], order: MaskOrder) -> MergedHint:
    """The merge under single-numa-node: only preferred hints of one node, or for anywhere, count."""
    agreed = [
        mask
        for mask in _agreed_nodes(all_nodes, hint_sets)
        if any(hint_set.names(mask) for hint_set in hint_sets)
    ]
    if agreed:
        mask = min(agreed, key=order.of)
        # On a machine of one node the kubelet reports no affinity instead of that node.
        return MergedHint(NodeMask(mask) if mask != all_nodes else None, preferred=True)
    return MergedHint(None, preferred=all(True in hint_set.anywhere for hint_set in hint_sets))


def _agreed_nodes(all_nodes: int, hint_sets: Sequence[HintSet]) -> list[int]:
    """Masks of one node that every hint set prefers."""
    masks = [1 << node for node in bits.iterate(all_nodes)]
    return [mask for mask in masks if all(hint_set.prefers(mask) for hint_set in hint_sets)]


def _agreed(all_nodes: int, hint_sets: Sequence[HintSet], order: MaskOrder, budget: StepBudget) -> set[int]:
    """Masks that every hint set prefers: all listed ones, and the best of those that no hint set lists."""
    listed = {mask for hint_set in hint_sets for mask in hint_set.preferred}
    agreed = {mask & all_nodes for mask in listed if all(hint_set.prefers(mask) for hint_set in hint_sets)}
    rules = [hint_set.rule for hint_set in hint_sets if hint_set.rule and True not in hint_set.anywhere]
    if all(True in hint_set.anywhere or hint_set.rule for hint_set in hint_sets):
        agreed |= _agreed_in_rules(all_nodes, hint_sets, rules, order, budget) if rules else {all_nodes}
    return agreed - {0}


def _agreed_in_rules(
    all_nodes: int,
    hint_sets: Sequence[HintSet],
    rules: Sequence[HintRule],
    order: MaskOrder,
    budget: StepBudget,
) -> set[int]:
    """Preferred members of all rules: every one of a single node, else the best."""
    if all(rule.preferred_size == 1 or rule.fewest_sockets for rule in rules):
        single = set(_agreed_nodes(all_nodes, hint_sets))
        if single:
            return single
    found = best_agreed(rules, order, budget)
    return set() if found is None else {found & all_nodes}


def _narrowest(hint_set: HintSet, budget: StepBudget | None = None) -> int:
    sizes = [mask.bit_count() for mask in hint_set.masks]
    if hint_set.rule is not None:
        sizes.append(narrowest_size(hint_set.rule, budget))
    return min(sizes, default=0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A hint that the merge can give.

    Attributes:
        nodes: mask of NUMA nodes.
        preferred: whether all hint sets prefer it.
    """

    nodes: int
    preferred: bool


def candidates(
    policy: TopologyManagerPolicy,
    nodes: NodeMask,
    providers: Sequence[Provider],
    *,
    distances: Distances | None = None,
    tie_break: TieBreak | None = None,
) -> list[Candidate]:
    """The hints that `merge` with the same arguments chooses from, the best first; slower than a merge.

    Empty under policy `none`. On machines of more than eight NUMA nodes only single nodes are listed, and only where
    all hint sets prefer one.
    """
    hint_sets = [hint_set for provider in providers for hint_set in provider or ()]
    order = MaskOrder(distances, tie_break)
    if policy is TopologyManagerPolicy.NONE:
        return []
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE or any(hint_set.rule for hint_set in hint_sets):
        single = [
            one
            for one in _agreed_nodes(nodes.mask, hint_sets)
            if any(hint_set.names(one) for hint_set in hint_sets)
        ]
        return [Candidate(mask, preferred=True) for mask in sorted(single, key=order.of)]
    agreed = _agreed_in_lists(nodes.mask, hint_sets)
    first = sorted(agreed, key=lambda mask: (mask.bit_count(), order.of(mask)))
    target = max(map(_narrowest, hint_sets), default=0)
    others = possible_intersections(nodes.mask, hint_sets) - agreed
    rest = sorted(others, key=lambda mask: (band(mask.bit_count(), target), order.of(mask)))
    return [Candidate(mask, mask in agreed) for mask in (*first, *rest)]


# ----------------------------------------------------------------------------------------------------
# The possible intersections of hint sets that are lists.


FOLD_LIMIT = 2048
"""Up to this many pairs it is quicker to intersect them one by one than to count supersets."""

COUNT_NODES = 12
"""Above this many nodes supersets are not counted: the table has two to that power entries."""


def possible_intersections(all_nodes: int, hint_sets: Iterable[HintSet]) -> set[int]:
    """The non-empty intersections of one listed mask of each hint set; "anywhere" stands for all nodes."""
    choices = [_choices(all_nodes, hint_set) for hint_set in hint_sets]
    # A hint set with all nodes as its only mask changes no intersection.
    choices = [choice for choice in choices if choice != {all_nodes}]
    if all_nodes.bit_count() <= COUNT_NODES and _pairs(choices) > FOLD_LIMIT:
        return _by_counting(all_nodes, choices)
    reached = {all_nodes}
    for choice in choices:
        reached = {one & other for one in reached for other in choice}
    return reached - {0}


def _choices(all_nodes: int, hint_set: HintSet) -> set[int]:
    masks = {mask & all_nodes for mask in hint_set.masks}
    return masks | {all_nodes} if hint_set.anywhere else masks


def _pairs(choices: Sequence[set[int]]) -> int:
    return max((len(one) * len(other) for one, other in pairwise(choices)), default=0)


def _by_counting(all_nodes: int, choices: Sequence[set[int]]) -> set[int]:
    """The intersections, from how many picks have an intersection that contains a given mask.

    That number is the product over the hint sets of how many of their masks contain it. Inclusion and exclusion
    turns it into the number of picks whose intersection is the mask itself.
    """
    nodes = list(bits.iterate(all_nodes))
    masks = _subsets(nodes)
    # by mask: how many picks have an intersection that contains it
    index = {mask: number for number, mask in enumerate(masks)}
    containing = [1] * len(masks)
    for choice in choices:
        table = [0] * len(masks)
        for mask in choice:
            table[index[mask]] = 1
        containing = list(map(mul, containing, _over_supersets(table, len(nodes), add)))
    # and from that, how many have exactly this intersection
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
# Admission.


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
        policy: the topology policy; `none` ignores all hints and admits "anywhere".
        nodes: all NUMA nodes of the machine.
        providers: hint sets for the container's request, or for the pod's totals in pod scope; the
            kubelet's order is devices, CPU, memory.
        distances: see `merge`.
        tie_break: see `merge`.

    Raises:
        TopologyAffinityError: the policy does not admit the merged hint.
    """
    merged = merge(policy, nodes, providers, distances=distances, tie_break=tie_break)
    if not admits(policy, merged):
        raise TopologyAffinityError(
            HintNotAdmitted(
                policy,
                policy is TopologyManagerPolicy.SINGLE_NUMA_NODE,
                "" if merged.affinity is None else str(merged.affinity),
            ),
            findings=_findings(providers),
            exact=merged.exact,
        )
    return merged


def _findings(providers: Sequence[Provider]) -> tuple[str, ...]:
    """The findings of the providers in their own words; equal words are quoted once."""
    hint_sets = (hint_set for provider in providers for hint_set in provider or ())
    return tuple(dict.fromkeys(hint_set.why for hint_set in hint_sets if hint_set.why))
