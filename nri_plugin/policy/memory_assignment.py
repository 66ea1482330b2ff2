"""The Memory Manager's static policy: where memory fits, and the nodes on which it is allocated.

Invariant: a NUMA node holds either allocations on this node alone or allocations over one group of nodes, never both. All
resources of a request go to the same nodes. The first part makes hints. The second part allocates under the merged hint,
and refuses a request that does not fit.

Source: kubelet v1.36 pkg/kubelet/cm/memorymanager/policy_static.go (calculateHints, regenerateHints, Allocate).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nri_plugin.model import bits
from nri_plugin.model.errors import AdmissionError, InsufficientMemoryError
from nri_plugin.model.quantity import format_bytes, round_down
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.refusals import MemoryAmount, MemoryNotPreferred, MemoryShortage, MixedMemory
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.hints import (
    LISTED_NODES,
    Hint,
    HintRule,
    HintSet,
    Need,
    Provider,
    by_numa_node,
    masks_in_order,
    sums_by_mask,
)
from nri_plugin.policy.memory_state import NO_REUSE, MemoryState, Reuse
from nri_plugin.policy.merge import MergedHint
from nri_plugin.policy.search import BudgetSpentError, StepBudget
from nri_plugin.policy.search.intersections import lowest_member, narrowest_size, roomiest

# ----------------------------------------------------------------------------------------------------
# Hints.


def memory_hint_sets(
    state: MemoryState,
    request: Mapping[str, int],
    *,
    held: Sequence[MemoryBlock] = (),
    reuse: Reuse = NO_REUSE,
) -> Provider:
    """Where the requested memory fits, one hint set for each resource, all with the same hints.

    When nothing fits, the hint sets have no preference. The request then passes the merge, and the allocation refuses it,
    as in the kubelet.

    Args:
        state: allocations so far.
        request: bytes by resource, zero amounts included; an empty request has no preference.
        held: blocks that the container already has: they are the only hint, and there is no preference when the
            request has changed.
        reuse: memory that the pod's init containers left.
    """
    if held:
        return _held_hint_sets(request, held)
    if not request:
        return None
    # All resources go to the same nodes, so one search serves all hint sets.
    budget = StepBudget()
    hints, rule = memory_hints(state, request, reuse, budget)
    listed = hints if hints or rule else None
    exact = not budget.is_spent
    return tuple(
        HintSet(name, listed, rule, _why(state, name, size), exact) for name, size in request.items()
    )


def _held_hint_sets(request: Mapping[str, int], held: Sequence[MemoryBlock]) -> Provider:
    if len(held) != len(request) or any(request.get(b.resource) != b.size_bytes for b in held):
        return None
    return tuple(HintSet(b.resource, (Hint(b.nodes.mask, preferred=True),)) for b in held)


def memory_hints(
    state: MemoryState, request: Mapping[str, int], reuse: Reuse, budget: StepBudget | None = None
) -> tuple[tuple[Hint, ...], HintRule | None]:
    """The masks with enough free memory: listed, and beyond eight NUMA nodes partly as a rule.

    A hint is preferred when no smaller mask has enough allocatable memory, allocated or not. Past the budget it is
    preferred when no smaller mask is known to have enough.
    """
    nodes = state.machine.nodes
    narrowest = _narrowest(state, request, budget)
    if len(nodes) <= LISTED_NODES:
        masks, in_use = _with_room(state, request, masks_in_order(nodes), reuse), state.in_use
        # A mask with a node in use is barred unless it is a group, so only groups are checked node by node.
        groups = frozenset(state.group.values())
        allowed = [
            pair
            for pair in masks
            if not pair[0] & in_use or (pair[0] in groups and not is_barred(state, pair[0]))
        ]
        return tuple(Hint(mask, size == narrowest) for mask, size in allowed), None
    # A rule is closed upwards, and groups are not: they are listed, and the rule is for nodes without blocks.
    masks = _special_masks(state, request, reuse)
    hints = tuple(Hint(mask, size == narrowest) for mask, size in masks if not is_barred(state, mask))
    return hints, _rule(state, request, narrowest)


def _narrowest(state: MemoryState, request: Mapping[str, int], budget: StepBudget | None) -> int:
    """How many nodes the request takes on an empty machine; 0 when even all are too few."""
    nodes = state.machine.nodes
    needs = tuple(Need(size, state.machine.allocatable_of(name)) for name, size in request.items())
    return narrowest_size(HintRule(bits.from_ids(nodes), 0, needs, 0), budget)


def is_barred(state: MemoryState, mask: int) -> bool:
    """Whether a group forbids the mask: a node of it has blocks over another set of nodes."""
    return any(state.assignments[node] and state.group[node] != mask for node in bits.iterate(mask))


def _with_room(
    state: MemoryState, request: Mapping[str, int], masks: Sequence[tuple[int, int]], reuse: Reuse
) -> Sequence[tuple[int, int]]:
    """Those of `masks` that have enough of each resource, free or reusable; for few nodes only."""
    for name, size in request.items():
        free = sums_by_mask(state.free(name))
        # Reusable memory counts only on exactly the nodes where the init container had it, as in the kubelet.
        reusable = {mask: amount for (mask, resource), amount in reuse.items() if resource == name}
        if reusable:
            total = sums_by_mask(state.machine.allocatable_of(name))
            free |= {mask: min(free[mask] + amount, total[mask]) for mask, amount in reusable.items()}
        masks = [pair for pair in masks if free[pair[0]] >= size]
    return masks


def _special_masks(state: MemoryState, request: Mapping[str, int], reuse: Reuse) -> list[tuple[int, int]]:
    """Masks with room that no rule describes: ungrouped nodes, groups, and nodes with reusable memory."""
    masks = set(state.group.values()) | {mask for mask, _ in reuse}
    for name, size in request.items():
        masks = {mask for mask in masks if _room(state, name, mask, reuse) >= size}
    return sorted(((mask, mask.bit_count()) for mask in masks), key=lambda pair: (pair[1], pair[0]))


def _room(state: MemoryState, name: str, mask: int, reuse: Reuse) -> int:
    """The bytes that are free or reusable on the nodes of `mask`, at most those allocatable there."""
    free, allocatable = state.free(name), state.machine.allocatable_of(name)
    nodes = list(bits.iterate(mask))
    return min(
        sum(free[node] for node in nodes) + reuse.get((mask, name), 0),
        sum(allocatable[node] for node in nodes),
    )


def _rule(state: MemoryState, request: Mapping[str, int], narrowest: int) -> HintRule | None:
    """All masks of two or more nodes that have no blocks yet."""
    unused = bits.from_ids(node for node in state.machine.nodes if not state.assignments[node])
    needs = tuple(Need(size, state.free(name)) for name, size in request.items())
    rule = HintRule(unused, 0, needs, narrowest, at_least=2)
    return rule if unused in rule else None


def _why(state: MemoryState, resource: str, size: int) -> str:
    free = state.free(resource)
    words = {
        node: round_down(have)
        + (f" grouped with {bits.format_list(state.group[node])}" if state.group[node] != 1 << node else "")
        for node, have in free.items()
    }
    where = by_numa_node(words, free, state.machine.allocatable_of(resource))
    total = round_down(sum(free.values()))
    return f"{resource}: {format_bytes(size)} wanted, {total} free ({where})"


# ----------------------------------------------------------------------------------------------------
# Allocation.


@dataclass(frozen=True, slots=True)
class MemoryGrant:
    """Memory allocated to one container.

    Attributes:
        blocks: one for each resource, sorted by resource, all on the same nodes.
        nodes: NUMA nodes of the blocks.
        state: allocations with this one.
    """

    blocks: tuple[MemoryBlock, ...]
    nodes: NodeMask
    state: MemoryState


def allocate_memory(
    state: MemoryState, request: Mapping[str, int], hint: MergedHint, *, reuse: Reuse = NO_REUSE
) -> MemoryGrant:
    """Allocate the requested memory on the hinted nodes, or on the best nodes that include them.

    Args:
        state: allocations so far.
        request: bytes by resource; an empty request allocates nothing.
        hint: the merged hint; a preferred one is never extended to nodes that are not preferred.
        reuse: memory that the pod's init containers left; it is not taken again.

    Raises:
        InsufficientMemoryError: no nodes have enough free memory.
        AdmissionError: the nodes with enough are not preferred although the hint was, or are in use with other
            nodes.
    """
    if not request:
        return MemoryGrant((), NodeMask(), state)
    nodes = _choose(state, request, hint, reuse)
    if nodes.bit_count() > 1 and is_barred(state, nodes):
        raise AdmissionError(_mixed(state, nodes))
    blocks = tuple(MemoryBlock(NodeMask(nodes), name, request[name]) for name in sorted(request))
    taken = [(block, max(0, block.size_bytes - reuse.get((nodes, block.resource), 0))) for block in blocks]
    return MemoryGrant(blocks, NodeMask(nodes), state.with_blocks(taken))


def _choose(state: MemoryState, request: Mapping[str, int], hint: MergedHint, reuse: Reuse) -> int:
    """The hinted nodes if they have the memory free, else the best hint that contains them."""
    within, preferred = (None if hint.affinity is None else hint.affinity.mask), hint.preferred
    # A hint for anywhere names no nodes: the best hint of memory alone takes its place.
    if within is None:
        best = _best(state, request, reuse, 0)
        if preferred and not best.preferred:
            raise AdmissionError(_not_preferred(state, request, best, 0))
        assert best.nodes is not None
        within, preferred = best.nodes, best.preferred
    if all(_free(state, name, within) >= size for name, size in request.items()):
        return within
    # The merged hint may be too narrow for the memory, because other resources fit there. Extend it.
    best = _best(state, request, reuse, within)
    if preferred and not best.preferred:
        raise AdmissionError(_not_preferred(state, request, best, within))
    assert best.nodes is not None
    return best.nodes


def _best(state: MemoryState, request: Mapping[str, int], reuse: Reuse, within: int) -> Hint:
    """The best hint whose nodes include `within`: preferred, then narrowest, then lowest."""
    hints, rule = memory_hints(state, request, reuse)
    fitting = [hint for hint in hints if hint.nodes is not None and within & ~hint.nodes == 0]
    if rule is not None:
        fitting += _lowest_of(rule, within)
    if not fitting:
        raise InsufficientMemoryError(_shortfall(state, request, within))
    return min(fitting, key=lambda hint: (not hint.preferred, (hint.nodes or 0).bit_count(), hint.nodes))


def _lowest_of(rule: HintRule, within: int) -> list[Hint]:
    """The lowest member of the smallest size that contains `within`; no member is narrower than preferred.

    Past the budget the one with most room, of the smallest size where that is a member.
    """
    if within & ~rule.nodes:
        return []
    grown = replace(rule, required=rule.required | within)
    budget = StepBudget()
    first = max(rule.at_least, rule.preferred_size, grown.required.bit_count())
    sizes = range(first, rule.nodes.bit_count() + 1)
    try:
        lowest = (lowest_member(grown, size, budget) for size in sizes)
        mask = next(mask for mask in lowest if mask is not None)
    except BudgetSpentError:
        mask = next(mask for size in sizes if (mask := roomiest(grown, size)) in grown)
    return [Hint(mask, mask.bit_count() == rule.preferred_size)]


def _free(state: MemoryState, resource: str, nodes: int) -> int:
    free = state.free(resource)
    return sum(free.get(node, 0) for node in bits.iterate(nodes))


def _mixed(state: MemoryState, nodes: int) -> MixedMemory:
    groups = {bits.format_list(state.group[node]) for node in bits.iterate(nodes) if state.assignments[node]}
    return MixedMemory(bits.format_list(nodes), tuple(sorted(groups)))


def _not_preferred(
    state: MemoryState, request: Mapping[str, int], best: Hint, hinted: int
) -> MemoryNotPreferred:
    nodes = best.nodes or 0
    return MemoryNotPreferred(
        bits.format_list(hinted), bits.format_list(nodes), _amounts(state, request, nodes)
    )


def _shortfall(state: MemoryState, request: Mapping[str, int], within: int) -> MemoryShortage:
    every = bits.from_ids(state.machine.nodes)
    has_enough = all(_free(state, name, every) >= size for name, size in request.items())
    mixed = _mixed(state, every) if has_enough else None
    return MemoryShortage(bits.format_list(within), _amounts(state, request, every), mixed)


def _amounts(state: MemoryState, request: Mapping[str, int], nodes: int) -> tuple[MemoryAmount, ...]:
    return tuple(
        MemoryAmount(name, size, _free(state, name, nodes), bits.format_list(nodes))
        for name, size in sorted(request.items())
    )
