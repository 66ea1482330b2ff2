"""How a machine nests when it is drawn: sockets, the NUMA nodes in them, their caches, their cores.

Every online CPU is in exactly one core of one cache of one node of one socket here. A node over two sockets,
or a cache over two nodes, appears in each with its part, and says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.cpuset import CPUSet
from nri_plugin.ids import CPUID
from nri_plugin.topology import NUMANode, Topology


@dataclass(frozen=True, slots=True)
class CachePart:
    """What one uncore cache has in one node of one socket.

    Attributes:
        id: its number.
        cpus: mask.
        cores: masks of the threads of each core, by lowest CPU.
        whole: mask of all CPUs of the cache.
        is_l3: False for CPUs that have none.
    """

    id: int
    cpus: int
    cores: tuple[int, ...]
    whole: int
    is_l3: bool = True

    @property
    def is_part(self) -> bool:
        """Whether the rest of it is elsewhere."""
        return self.is_l3 and self.cpus != self.whole

    @property
    def name(self) -> str:
        """As it is drawn; CPUs that share no more than an L2 are not said to share an L3."""
        return f"L3 {self.id}" if self.is_l3 else "no L3"


@dataclass(frozen=True, slots=True)
class NodePart:
    """What one NUMA node has in one socket; the first part of a node is the one with its lowest CPU."""

    node: NUMANode
    cpus: int
    caches: tuple[CachePart, ...]

    @property
    def is_part(self) -> bool:
        """Whether the rest of it is in another socket."""
        return self.cpus != self.node.cpus.mask

    @property
    def is_first(self) -> bool:
        """Whether this is where its memory is shown."""
        return bits.lowest(self.cpus) == bits.lowest(self.node.cpus.mask)


@dataclass(frozen=True, slots=True)
class SocketPart:
    """One socket."""

    id: int
    cpus: int
    nodes: tuple[NodePart, ...]


def members(mask: int) -> Iterator[CPUID]:
    """The CPUs of a mask, ascending: quicker than `bits.iterate` where they are few and their numbers high."""
    while mask:
        yield CPUID(bits.lowest(mask))
        mask &= mask - 1


def machine_parts(topology: Topology) -> tuple[SocketPart, ...]:
    """The sockets by id with all that is in them, each level by id."""
    cores: dict[tuple[int, int, int], dict[int, int]] = {}
    for core, cpus in topology.cores:
        for cpu in members(cpus.mask):
            place = (topology.socket_by_cpu[cpu], topology.node_by_cpu[cpu], topology.cache_by_cpu[cpu])
            here = cores.setdefault(place, {})
            here[core] = here.get(core, 0) | 1 << cpu
    whole = {int(cache): cpus.mask for cache, cpus in topology.caches}
    caches: dict[tuple[int, int], list[CachePart]] = {}
    for (socket, node, cache), found in sorted(cores.items()):
        masks = sorted(found.values(), key=bits.lowest)
        is_l3 = topology.is_l3(CPUSet(whole[cache]))
        part = CachePart(cache, _union(masks), tuple(masks), whole[cache], is_l3)
        caches.setdefault((socket, node), []).append(part)
    by_id = {int(node.id): node for node in topology.nodes}
    nodes: dict[int, list[NodePart]] = {}
    for (socket, number), parts in caches.items():
        mask = _union([part.cpus for part in parts])
        nodes.setdefault(socket, []).append(NodePart(by_id[number], mask, tuple(parts)))
    return tuple(
        SocketPart(socket, _union([part.cpus for part in inside]), tuple(inside))
        for socket, inside in sorted(nodes.items())
    )


def nodes_without_cpus(topology: Topology) -> tuple[NUMANode, ...]:
    """Nodes that are in no socket."""
    return tuple(node for node in topology.nodes if not node.cpus)


def _union(masks: Sequence[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
