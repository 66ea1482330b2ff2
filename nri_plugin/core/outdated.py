"""Allocations that the current configuration or machine would not have made.

A changed policy or option applies to new containers and moves none. An operator wants to know which containers to restart
to apply it, and why.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.core.hint_providers import memory_machine_of, tables_of
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.records import Allocation, named
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State


class OutdatedKind(StrEnum):
    """The rule that an allocation does not satisfy; the value is the sentence about its CPUs or NUMA nodes `{ids}`."""

    CPU_POLICY_NONE = "keeps exclusive CPUs {ids}, cpuManagerPolicy none allocates none"
    RESERVED = "has CPUs {ids}, which are reserved"
    NO_WHOLE_CORES = "has no whole cores ({ids}), full-pcpus-only gives nothing else"
    SEVERAL_NODES = "is on NUMA nodes {ids}, single-numa-node allows one"
    NOT_PREFERRED = "is on NUMA nodes {ids} without a preferred hint, restricted refuses that"
    SEVERAL_CACHES = "is on {caches} uncore caches, strictUncoreCache allows one"
    MEMORY_POLICY_NONE = "keeps its memory on NUMA nodes {ids}, memoryManagerPolicy None binds none"
    NO_MEMORY = "is bound to NUMA nodes {ids}, which have no memory"


@dataclass(frozen=True, slots=True)
class Outdated:
    """An allocation that the current configuration or machine would not have made, and one reason.

    Attributes:
        name: NAMESPACE/POD/CONTAINER; the key of the allocation where the pod is not known.
        kind: the reason.
        ids: the CPUs or NUMA nodes that it is about.
        caches: the number of uncore caches; 0 for other reasons.
    """

    name: str
    kind: OutdatedKind
    ids: CPUSet | NodeMask
    caches: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.kind.format(ids=self.ids, caches=self.caches)}"


@dataclass(frozen=True, slots=True)
class Overcommitted:
    """NUMA nodes on which more memory is allocated than there is.

    Attributes:
        nodes: the NUMA nodes of a group.
        resource: `memory` or `hugepages-SIZE`.
        allocated_bytes: allocated on these nodes.
        allocatable_bytes: what they have for containers.
        holders: NAMESPACE/POD/CONTAINER of the allocations.
    """

    nodes: NodeMask
    resource: str
    allocated_bytes: int
    allocatable_bytes: int
    holders: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"NUMA nodes {self.nodes}: {self.allocated_bytes} bytes of {self.resource} are allocated and "
            f"{self.allocatable_bytes} are allocatable; restart some of {', '.join(self.holders)}"
        )


def outdated(node: Node, state: State) -> list[Outdated]:
    """Each reason for each allocation, in the order of the allocations; empty when all satisfy the configuration."""
    return [
        reason
        for key, held in state.allocations.items()
        for reasons in (_cpu_reasons, _memory_reasons)
        for reason in reasons(node, named(state.pods, key), held)
    ]


def _cpu_reasons(node: Node, name: str, held: Allocation) -> Iterator[Outdated]:
    if not held.cpus or held.claim:
        return  # no restart would change the CPUs of a resource claim
    options, tables = node.options, tables_of(node)
    if options.cpu_manager_policy is CPUManagerPolicy.NONE:
        yield Outdated(name, OutdatedKind.CPU_POLICY_NONE, held.cpus)
        return
    reserved = held.cpus & node.reserved
    if reserved:
        yield Outdated(name, OutdatedKind.RESERVED, reserved)
    online = held.cpus & node.topology.online
    if options.full_pcpus_only and tables.whole_cores_in(online.mask) != online.mask:
        yield Outdated(name, OutdatedKind.NO_WHOLE_CORES, held.cpus)
    policy, nodes = options.topology_manager_policy, node.topology.nodes_of(held.cpus)
    if policy is TopologyManagerPolicy.SINGLE_NUMA_NODE and len(nodes | held.mems) > 1:
        yield Outdated(name, OutdatedKind.SEVERAL_NODES, nodes | held.mems)
    if policy is TopologyManagerPolicy.RESTRICTED and not held.preferred and held.affinity:
        yield Outdated(name, OutdatedKind.NOT_PREFERRED, nodes)
    caches = sum(1 for cache in tables.cores_by_l3 if cache & online.mask)
    if options.strict_uncore_cache and caches > 1:
        yield Outdated(name, OutdatedKind.SEVERAL_CACHES, held.cpus, caches)


def _memory_reasons(node: Node, name: str, held: Allocation) -> Iterator[Outdated]:
    if held.memory and node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        yield Outdated(name, OutdatedKind.MEMORY_POLICY_NONE, held.mems)
    gone = held.mems - node.topology.nodes_with_memory
    if gone:
        yield Outdated(name, OutdatedKind.NO_MEMORY, gone)


def allocatable_memory(node: Node) -> Mapping[tuple[int, str], int]:
    """Bytes that containers can be allocated, by (NUMA node, resource); empty under memoryManagerPolicy None."""
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return {}
    return {
        (number, resource): size
        for resource, by_node in memory_machine_of(node).allocatable.items()
        for number, size in by_node.items()
    }


def overcommitted(state: State, allocatable: Mapping[tuple[int, str], int]) -> list[Overcommitted]:
    """Each set of NUMA nodes on which more memory is allocated than there is.

    A node may have less memory than before: modules were removed, huge pages were reserved, more is reserved for the
    system. Allocations stay, because their containers run on that memory.

    Args:
        state: the allocations.
        allocatable: bytes by (NUMA node, resource); empty where that is not known, and then nothing is found.
    """
    if not allocatable:
        return []
    blocks = [(block, key) for key, held in state.allocations.items() for block in held.memory]
    found = []
    for nodes, resource in dict.fromkeys((block.nodes, block.resource) for block, _ in blocks):
        # Blocks on fewer of these nodes take from the same memory.
        inside = [(one, key) for one, key in blocks if one.resource == resource and one.nodes <= nodes]
        allocated = sum(block.size_bytes for block, _ in inside)
        there = sum(allocatable.get((number, resource), 0) for number in nodes)
        if allocated > there:
            holders = dict.fromkeys(named(state.pods, key) for _, key in inside)
            found.append(Overcommitted(nodes, resource, allocated, there, tuple(holders)))
    return found
