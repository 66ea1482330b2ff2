"""Where memory fits: the Memory Manager's hints.

One NUMA node holds either allocations of its own or allocations over one
group of nodes, never both. All resources of a request share one list of masks.

Source: kubelet v1.36 pkg/kubelet/cm/memorymanager/policy_static.go (calculateHints, regenerateHints).
"""

from collections.abc import Mapping, Sequence

from nri_plugin import bits
from nri_plugin.policy.budget import Budget
from nri_plugin.policy.family_search import narrowest_size
from nri_plugin.policy.hints import (
    LISTED_NODES,
    Family,
    Hint,
    Need,
    Provider,
    Wish,
    masks_in_order,
    sums_by_mask,
)
from nri_plugin.policy.memory_reuse import NO_REUSE, Reuse
from nri_plugin.policy.memory_state import MemoryState
from nri_plugin.policy.shortfall import by_numa_node
from nri_plugin.quantity import format_bytes, round_down
from nri_plugin.state import MemoryBlock


def memory_wishes(
    state: MemoryState,
    request: Mapping[str, int],
    *,
    held: Sequence[MemoryBlock] = (),
    reuse: Reuse = NO_REUSE,
) -> Provider:
    """Where the requested memory fits, one wish for each resource, all with the same hints.

    When nothing fits the wishes have no preference: the request then passes the merge and is
    refused by the allocation, as the kubelet has it.

    Args:
        state: what is promised so far.
        request: bytes by resource, zero amounts included; an empty request has no preference.
        held: blocks the container already has: then these are hinted at, and no preference when the
            request has changed.
        reuse: what the pod's init containers left.
    """
    if held:
        return _held_wishes(request, held)
    if not request:
        return None
    budget = Budget()
    hints, family = memory_hints(state, request, reuse, budget)
    listed = hints if hints or family else None
    exact = not budget.is_spent
    return tuple(Wish(name, listed, family, _why(state, name, size), exact) for name, size in request.items())


def _held_wishes(request: Mapping[str, int], held: Sequence[MemoryBlock]) -> Provider:
    if len(held) != len(request) or any(request.get(b.resource) != b.size_bytes for b in held):
        return None
    return tuple(Wish(b.resource, (Hint(b.nodes.mask, preferred=True),)) for b in held)


def memory_hints(
    state: MemoryState, request: Mapping[str, int], reuse: Reuse, budget: Budget | None = None
) -> tuple[tuple[Hint, ...], Family | None]:
    """The masks with enough free memory: listed, and beyond eight NUMA nodes partly as a family.

    A hint is preferred when no smaller mask has enough allocatable memory, promised or not; past the
    budget when none does that is known.
    """
    nodes = state.machine.nodes
    narrowest = _narrowest(state, request, budget)
    if len(nodes) <= LISTED_NODES:
        masks, in_use = _with_room(state, request, masks_in_order(nodes), reuse), state.in_use
        groups = frozenset(state.group.values())  # any other mask with a node in use is barred
        allowed = [
            pair
            for pair in masks
            if not pair[0] & in_use or (pair[0] in groups and not is_barred(state, pair[0]))
        ]
        return tuple(Hint(mask, size == narrowest) for mask, size in allowed), None
    masks = _special_masks(state, request, reuse)
    hints = tuple(Hint(mask, size == narrowest) for mask, size in masks if not is_barred(state, mask))
    return hints, _family(state, request, narrowest)


def _narrowest(state: MemoryState, request: Mapping[str, int], budget: Budget | None) -> int:
    """Nodes that the request takes on a machine with nothing promised; 0 when even all are too few."""
    nodes = state.machine.nodes
    needs = tuple(Need(size, state.machine.allocatable_of(name)) for name, size in request.items())
    return narrowest_size(Family(bits.from_ids(nodes), 0, needs, 0), budget)


def is_barred(state: MemoryState, mask: int) -> bool:
    """Whether a group forbids the mask: one node that is grouped, or several of which one is in other use."""
    return any(state.assignments[node] and state.group[node] != mask for node in bits.iterate(mask))


def _with_room(
    state: MemoryState, request: Mapping[str, int], masks: Sequence[tuple[int, int]], reuse: Reuse
) -> Sequence[tuple[int, int]]:
    """Those of `masks`, over few nodes, that have enough free or reusable of everything, as far as they have it at all."""
    for name, size in request.items():
        free = sums_by_mask(state.free(name))
        reusable = {mask: amount for (mask, resource), amount in reuse.items() if resource == name}
        if reusable:
            total = sums_by_mask(state.machine.allocatable_of(name))
            free |= {mask: min(free[mask] + amount, total[mask]) for mask, amount in reusable.items()}
        masks = [pair for pair in masks if free[pair[0]] >= size]
    return masks


def _special_masks(state: MemoryState, request: Mapping[str, int], reuse: Reuse) -> list[tuple[int, int]]:
    """Masks with room that no family describes: ungrouped nodes, groups, and what can be reused."""
    masks = set(state.group.values()) | {mask for mask, _ in reuse}
    for name, size in request.items():
        masks = {mask for mask in masks if _room(state, name, mask, reuse) >= size}
    return sorted(((mask, mask.bit_count()) for mask in masks), key=lambda pair: (pair[1], pair[0]))


def _room(state: MemoryState, name: str, mask: int, reuse: Reuse) -> int:
    """What is free or reusable on the nodes of `mask`, as far as they have it at all."""
    free, allocatable = state.free(name), state.machine.allocatable_of(name)
    nodes = list(bits.iterate(mask))
    return min(
        sum(free[node] for node in nodes) + reuse.get((mask, name), 0),
        sum(allocatable[node] for node in nodes),
    )


def _family(state: MemoryState, request: Mapping[str, int], narrowest: int) -> Family | None:
    """All masks of two or more nodes that have no blocks yet."""
    unused = bits.from_ids(node for node in state.machine.nodes if not state.assignments[node])
    needs = tuple(Need(size, state.free(name)) for name, size in request.items())
    family = Family(unused, 0, needs, narrowest, at_least=2)
    return family if unused in family else None


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
