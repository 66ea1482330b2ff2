"""Which NUMA nodes a container's memory is promised on: the Memory Manager's static policy.

Source: kubelet v1.36 pkg/kubelet/cm/memorymanager/policy_static.go (Allocate and what it calls).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nri_plugin import bits
from nri_plugin.errors import AdmissionError, InsufficientMemoryError
from nri_plugin.nodemask import NodeMask
from nri_plugin.policy.budget import Budget, BudgetSpentError
from nri_plugin.policy.family_search import lowest_member, roomiest
from nri_plugin.policy.hints import Family, Hint
from nri_plugin.policy.memory_hints import is_barred, memory_hints
from nri_plugin.policy.memory_reuse import NO_REUSE, Reuse
from nri_plugin.policy.memory_state import MemoryState
from nri_plugin.policy.merge import MergedHint
from nri_plugin.quantity import format_bytes
from nri_plugin.state import MemoryBlock


@dataclass(frozen=True, slots=True)
class MemoryGrant:
    """Memory promised to one container.

    Attributes:
        blocks: one for each resource, sorted by resource, all on the same nodes.
        nodes: where its memory is bound.
        state: what is promised now.
    """

    blocks: tuple[MemoryBlock, ...]
    nodes: NodeMask
    state: MemoryState


def allocate_memory(
    state: MemoryState, request: Mapping[str, int], hint: MergedHint, *, reuse: Reuse = NO_REUSE
) -> MemoryGrant:
    """Promise the requested memory on the hinted nodes, or on the best nodes that include them.

    Args:
        state: what is promised so far.
        request: bytes by resource; an empty request promises nothing.
        hint: the merged hint; a preferred one is never stretched to nodes that are not.
        reuse: what the pod's init containers left; that much is not taken again.

    Raises:
        InsufficientMemoryError: no nodes have enough free memory.
        AdmissionError: those that have are not preferred although the hint was, or are in use
            with other nodes.
    """
    if not request:
        return MemoryGrant((), NodeMask(), state)
    nodes = _choose(state, request, hint, reuse)
    if nodes.bit_count() > 1 and is_barred(state, nodes):
        raise AdmissionError(_barred(state, nodes))
    blocks = tuple(MemoryBlock(NodeMask(nodes), name, request[name]) for name in sorted(request))
    taken = [(block, max(0, block.size_bytes - reuse.get((nodes, block.resource), 0))) for block in blocks]
    return MemoryGrant(blocks, NodeMask(nodes), state.with_blocks(taken))


def _choose(state: MemoryState, request: Mapping[str, int], hint: MergedHint, reuse: Reuse) -> int:
    """The hinted nodes if they have the memory free, else the best hint that contains them."""
    within, preferred = (None if hint.affinity is None else hint.affinity.mask), hint.preferred
    if within is None:
        best = _best(state, request, reuse, 0)
        if preferred and not best.preferred:
            raise AdmissionError(_not_preferred(state, request, best, "anywhere"))
        assert best.nodes is not None
        within, preferred = best.nodes, best.preferred
    if all(_free(state, name, within) >= size for name, size in request.items()):
        return within
    best = _best(state, request, reuse, within)
    if preferred and not best.preferred:
        raise AdmissionError(_not_preferred(state, request, best, f"NUMA nodes {bits.format_list(within)}"))
    assert best.nodes is not None
    return best.nodes


def _best(state: MemoryState, request: Mapping[str, int], reuse: Reuse, within: int) -> Hint:
    """The best hint whose nodes include `within`: preferred, then narrowest, then lowest."""
    hints, family = memory_hints(state, request, reuse)
    fitting = [hint for hint in hints if hint.nodes is not None and within & ~hint.nodes == 0]
    if family is not None:
        fitting += _lowest_of(family, within)
    if not fitting:
        raise InsufficientMemoryError(_shortfall(state, request, within))
    return min(fitting, key=lambda hint: (not hint.preferred, (hint.nodes or 0).bit_count(), hint.nodes))


def _lowest_of(family: Family, within: int) -> list[Hint]:
    """The lowest member of the smallest size that contains `within`; no member is narrower than preferred.

    Past the budget the one with most room, of the smallest size where that is a member.
    """
    if within & ~family.nodes:
        return []
    grown = replace(family, required=family.required | within)
    budget = Budget()
    first = max(family.at_least, family.preferred_size, grown.required.bit_count())
    sizes = range(first, family.nodes.bit_count() + 1)
    try:
        lowest = (lowest_member(grown, size, budget) for size in sizes)
        mask = next(mask for mask in lowest if mask is not None)
    except BudgetSpentError:
        mask = next(mask for size in sizes if (mask := roomiest(grown, size)) in grown)
    return [Hint(mask, mask.bit_count() == family.preferred_size)]


def _free(state: MemoryState, resource: str, nodes: int) -> int:
    free = state.free(resource)
    return sum(free.get(node, 0) for node in bits.iterate(nodes))


def _barred(state: MemoryState, nodes: int) -> str:
    groups = {bits.format_list(state.group[n]) for n in bits.iterate(nodes) if state.assignments[n]}
    return (
        f"memory on NUMA nodes {bits.format_list(nodes)} together would mix with allocations on "
        f"{' and '.join(sorted(groups))}; a node serves one group of nodes at a time"
    )


def _not_preferred(state: MemoryState, request: Mapping[str, int], best: Hint, asked: str) -> str:
    return (
        f"memory was promised a preferred place on {asked}, but only NUMA nodes "
        f"{bits.format_list(best.nodes or 0)} have enough free: {_amounts(state, request, best.nodes or 0)}"
    )


def _shortfall(state: MemoryState, request: Mapping[str, int], within: int) -> str:
    where = f"that include {bits.format_list(within)} " if within else ""
    every = bits.from_ids(state.machine.nodes)
    text = f"no NUMA nodes {where}have enough free memory: {_amounts(state, request, every)}"
    has_enough = all(_free(state, name, every) >= size for name, size in request.items())
    return f"{text}; {_barred(state, every)}" if has_enough else text


def _amounts(state: MemoryState, request: Mapping[str, int], nodes: int) -> str:
    parts = (
        f"{name}: {format_bytes(size)} wanted, {format_bytes(_free(state, name, nodes))} free on "
        f"{bits.format_list(nodes)}"
        for name, size in sorted(request.items())
    )
    return "; ".join(parts)
