"""Running placements that today's configuration would not have made.

Placements are facts: a changed policy or option applies to new containers and moves nobody. But an operator wants to
know whom to restart, and why.
"""

from collections.abc import Iterator

from nri_plugin.hint_providers import tables_of
from nri_plugin.options import CPUManagerPolicy, MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.state import Allocation, State


def unsatisfied(node: Node, state: State) -> list[str]:
    """One sentence for each promise and each reason, in the order of the promises; empty when all satisfy it."""
    return [
        f"{_name(state, key)} {reason}"
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


def _name(state: State, key: str) -> str:
    uid, _, name = key.partition("/")
    pod = state.pods.get(uid)
    return f"{pod.namespace}/{pod.name}/{name}" if pod else key
