"""Memory of each NUMA node: what is allocatable, what is allocated, and which nodes form a group.

The state is derived from the blocks of all containers, in the order in which they were allocated. The last part is about
memory that the ended init containers of a pod leave to its later containers.

Differs: the kubelet keeps a NUMA node in the group of the last block on it, also where that block is of a pod that
    was refused or has ended, as long as another block is there; here: the groups follow from the blocks of the
    pods that run. Why: no pod holds such a group, and requests that fit would be bound elsewhere or refused.
    Option: none.

Source: kubelet v1.36 pkg/kubelet/cm/memorymanager/policy_static.go (updatePodReusableMemory,
    updateInitContainersMemoryBlocks) and state/.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from nri_plugin.model import bits
from nri_plugin.model.options import ReservedMemory
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.topology import NUMANode, Topology

MEMORY = "memory"
"""The resource name of ordinary memory; huge pages are `hugepages-SIZE`."""


@dataclass(frozen=True)
class MemoryMachine:
    """The memory of each NUMA node, without allocations.

    Attributes:
        nodes: ids of all NUMA nodes, ascending.
        total: bytes by resource, then by node.
        reserved: bytes kept for the system, by resource, then by node.
        allocatable: bytes by resource, then by node: total without what is reserved and, for
            ordinary memory, without huge pages; never negative.
    """

    nodes: tuple[int, ...]
    total: Mapping[str, Mapping[int, int]]
    reserved: Mapping[str, Mapping[int, int]]
    allocatable: Mapping[str, Mapping[int, int]]

    def allocatable_of(self, resource: str) -> Mapping[int, int]:
        """Allocatable bytes by node; zero on every node for a resource the machine does not have."""
        return self.allocatable.get(resource) or dict.fromkeys(self.nodes, 0)


def memory_machine(topology: Topology, reserved: Iterable[ReservedMemory] = ()) -> MemoryMachine:
    """The memory of a machine; a node whose size was not recorded has no allocatable memory.

    Differs: the kubelet's unsigned difference wraps to nearly 2**64 where more is reserved and set aside than
        a node has; here: nothing is allocatable there. Why: that memory does not exist. Option: none.
    """
    total = {MEMORY: {int(node.id): node.memory_bytes or 0 for node in topology.nodes}}
    for node in topology.nodes:
        for resource, size in _hugepages(node):
            total.setdefault(resource, dict.fromkeys(map(int, topology.node_ids), 0))[int(node.id)] = size
    kept = {resource: dict.fromkeys(by_node, 0) for resource, by_node in total.items()}
    for one in reserved:
        if int(one.node) in kept.get(one.resource, ()):
            kept[one.resource][int(one.node)] += one.size_bytes
    allocatable = {
        resource: {node: max(0, size - kept[resource][node]) for node, size in by_node.items()}
        for resource, by_node in total.items()
    }
    for node in topology.nodes:
        pages = sum(size for _, size in _hugepages(node))
        left = total[MEMORY][int(node.id)] - kept[MEMORY][int(node.id)] - pages
        allocatable[MEMORY][int(node.id)] = max(0, left)
    return MemoryMachine(tuple(map(int, topology.node_ids)), total, kept, allocatable)


def _hugepages(node: NUMANode) -> list[tuple[str, int]]:
    return [
        (f"hugepages-{format_bytes(size_kb << 10)}", pages * size_kb << 10)
        for size_kb, pages in node.hugepages
    ]


@dataclass(frozen=True)
class MemoryState:
    """The allocated memory of a machine.

    Attributes:
        machine: the memory of its nodes.
        allocated: allocated bytes by (node, resource).
        assignments: by node, how many blocks lie on it.
        group: by node, the mask of nodes of the last block put on it; itself when it has none.
    """

    machine: MemoryMachine
    allocated: Mapping[tuple[int, str], int]
    assignments: Mapping[int, int]
    group: Mapping[int, int]

    @cached_property
    def in_use(self) -> int:
        """Mask of the nodes that hold blocks."""
        return bits.from_ids(node for node, number in self.assignments.items() if number)

    def free(self, resource: str) -> dict[int, int]:
        """Bytes by node that are not allocated."""
        allocated = self.allocated
        allocatable = self.machine.allocatable_of(resource)
        return {node: size - allocated.get((node, resource), 0) for node, size in allocatable.items()}

    def without_free(self) -> "MemoryState":
        """This state with nothing free on any node."""
        by_resource = self.machine.allocatable.items()
        full = {(node, name): size for name, by_node in by_resource for node, size in by_node.items()}
        return dataclasses.replace(self, allocated=full)

    def with_blocks(self, blocks: Iterable[tuple[MemoryBlock, int]]) -> "MemoryState":
        """This state after (block, bytes to take), each filling its nodes in ascending order.

        Fewer bytes are taken than the block has where the rest is reused.
        """
        allocated, assignments, group = dict(self.allocated), dict(self.assignments), dict(self.group)
        for block, to_take in blocks:
            left = to_take
            # The kubelet fills the lowest node first too: figures for each node agree with it.
            for node in bits.iterate(block.nodes.mask):
                allocatable = self.machine.allocatable_of(block.resource).get(node, 0)
                had = allocated.get((node, block.resource), 0)
                taken = min(left, max(0, allocatable - had))
                allocated[node, block.resource] = had + taken
                left -= taken
                assignments[node] = assignments.get(node, 0) + 1
                group[node] = block.nodes.mask
        return MemoryState(self.machine, allocated, assignments, group)


def memory_state(machine: MemoryMachine, containers: Iterable[Sequence[MemoryBlock]] = ()) -> MemoryState:
    """The state after the blocks of all containers, in the order in which they were allocated."""
    empty = MemoryState(
        machine, {}, dict.fromkeys(machine.nodes, 0), {node: 1 << node for node in machine.nodes}
    )
    return empty.with_blocks((block, block.size_bytes) for blocks in containers for block in blocks)


Reuse = Mapping[tuple[int, str], int]
"""By (node mask, resource): bytes that later containers of the pod need not take again."""

NO_REUSE: Reuse = {}


def shrink_reused(
    earlier: Sequence[Sequence[MemoryBlock]], blocks: Sequence[MemoryBlock]
) -> list[tuple[MemoryBlock, ...]]:
    """The blocks of the pod's plain init containers, in their order, without the memory that `blocks` took over.

    So the blocks of a pod add up to its allocation. A block that shrinks to nothing stays.
    """
    # The kubelet takes the memory over from the first init container first.
    left = {(block.nodes, block.resource): block.size_bytes for block in blocks}
    shrunk = []
    for container in earlier:
        kept = []
        for block in container:
            key = block.nodes, block.resource
            used = min(left.get(key, 0), block.size_bytes)
            if used:
                left[key] -= used
            kept.append(replace(block, size_bytes=block.size_bytes - used))
        shrunk.append(tuple(kept))
    return shrunk
