"""Allocations that the current configuration or machine would not have made.

A changed policy or option applies to new containers and moves none. An operator wants to know which containers to restart
to apply it, and why.
"""

from collections.abc import Iterator, Mapping

from nri_plugin.core.hint_providers import tables_of
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.state import Allocation, State, named
from nri_plugin.policy.memory_state import memory_machine


def unsatisfied(node: Node, state: State) -> list[str]:
    """One sentence for each allocation and each reason, in the order of the allocations; empty when all satisfy it."""
    return [
        f"{named(state.pods, key)} {reason}"
        for key, allocation in state.allocations.items()
        for reason in (*_cpu_reasons(node, allocation), *_memory_reasons(node, allocation))
    ]


def _cpu_reasons(node: Node, held: Allocation) -> Iterator[str]:
    if not held.cpus:
        return
    options, tables = node.options, tables_of(node)
    if options.cpu_manager_policy is CPUManagerPolicy.NONE:
        yield f"keeps exclusive CPUs {held.cpus}, cpuManagerPolicy none promises none"
        return
    reserved = held.cpus & node.reserved
    if reserved:
        yield f"has CPUs {reserved}, which are reserved"
    online = held.cpus & node.topology.online
    if options.full_pcpus_only and tables.whole_cores_in(online.mask) != online.mask:
        yield f"has no whole cores ({held.cpus}), full-pcpus-only gives nothing else"
    nodes = node.topology.nodes_of(held.cpus)
    if (
        options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE
        and len(nodes | held.mems) > 1
    ):
        yield f"is on NUMA nodes {nodes | held.mems}, single-numa-node allows one"
    if (
        options.topology_manager_policy is TopologyManagerPolicy.RESTRICTED
        and not held.preferred
        and held.affinity
    ):
        yield f"is on NUMA nodes {nodes} without a preferred hint, restricted refuses that"
    caches = sum(1 for cache in tables.cores_in_cache if cache & online.mask)
    if options.strict_uncore_cache and caches > 1:
        yield f"is on {caches} uncore caches, strictUncoreCache allows one"


def _memory_reasons(node: Node, held: Allocation) -> Iterator[str]:
    is_static = node.options.memory_manager_policy is MemoryManagerPolicy.STATIC
    if held.memory and not is_static:
        yield f"keeps its memory on NUMA nodes {held.mems}, memoryManagerPolicy None binds none"
    gone = held.mems - node.topology.nodes_with_memory
    if gone:
        yield f"is bound to NUMA nodes {gone}, which have no memory"


def allocatable_memory(node: Node) -> Mapping[tuple[int, str], int]:
    """Bytes that containers can be allocated, by (NUMA node, resource); empty under memoryManagerPolicy None."""
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return {}
    machine = memory_machine(node.topology, node.options.reserved_memory)
    return {
        (number, resource): size
        for resource, by_node in machine.allocatable.items()
        for number, size in by_node.items()
    }


def overcommitted(state: State, allocatable: Mapping[tuple[int, str], int]) -> list[str]:
    """One sentence for each set of NUMA nodes on which more memory is allocated than there is.

    A node may have less memory than before: modules were removed, huge pages were reserved, more is reserved for the
    system. Allocations stay, because their containers run on that memory.
    """
    if not allocatable:
        return []
    blocks = [
        (block.nodes, block.resource, block.size_bytes, key)
        for key, held in state.allocations.items()
        for block in held.memory
    ]
    found = []
    for nodes, resource in dict.fromkeys((nodes, resource) for nodes, resource, _, _ in blocks):
        inside = [(size, key) for on, kind, size, key in blocks if kind == resource and on <= nodes]
        taken = sum(size for size, _ in inside)
        there = sum(allocatable.get((number, resource), 0) for number in nodes)
        if taken > there:
            holders = ", ".join(dict.fromkeys(named(state.pods, key) for _, key in inside))
            found.append(
                f"NUMA nodes {nodes}: {taken} bytes of {resource} are allocated and {there} are allocatable; "
                f"restart some of {holders}"
            )
    return found
