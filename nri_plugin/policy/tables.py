"""What choosing CPUs needs to know about a machine, worked out once.

Every group of CPUs is held as a mask, so that "how many are free here" is one
`&` and one popcount. The value depends on the `Topology` alone: build it once,
keep it beside the topology, hand it to every decision.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nri_plugin.topology import Topology


@dataclass(frozen=True, slots=True)
class CPUTables:
    """Masks and counters of one machine.

    The tuples of groups ascend by id; a group is in the tuple of each outer group that it shares a
    CPU with, and there stands for all its CPUs. Nodes without CPUs are left out.

    Attributes:
        online: all CPUs.
        nodes: (NUMA node id, CPUs).
        node_sets: CPUs of each NUMA node, in the order of `nodes`.
        sockets: CPUs of each socket.
        sockets_in: by CPUs of a NUMA node, the sockets in it.
        nodes_in: by CPUs of a socket, the NUMA nodes in it.
        caches_in: by CPUs of a NUMA node, the uncore caches in it.
        cores_in: by CPUs of a socket or NUMA node, the cores in it.
        cores_in_cache: by CPUs of an uncore cache, the cores in it.
        cores: CPUs of each core.
        nodes_first: whole NUMA nodes are tried before whole sockets, because there are not fewer sockets.
        cpus_per_core: average rounded down, the kubelet's idea of a whole core.
        cpus_per_socket: average rounded down, the kubelet's idea of a whole socket.
        cpus_per_cache: average rounded down.
        nodes_per_socket: average rounded down; 0 where there are more sockets than NUMA nodes.
    """

    online: int
    nodes: tuple[tuple[int, int], ...]
    node_sets: tuple[int, ...]
    sockets: tuple[int, ...]
    sockets_in: Mapping[int, tuple[int, ...]]
    nodes_in: Mapping[int, tuple[int, ...]]
    caches_in: Mapping[int, tuple[int, ...]]
    cores_in: Mapping[int, tuple[int, ...]]
    cores_in_cache: Mapping[int, tuple[int, ...]]
    cores: tuple[int, ...]
    nodes_first: bool
    cpus_per_core: int
    cpus_per_socket: int
    cpus_per_cache: int
    nodes_per_socket: int

    def siblings_of(self, cpus: int) -> int:
        """All threads of all cores that have a thread in `cpus`."""
        mask = 0
        for core in self.cores:
            if core & cpus:
                mask |= core
        return mask

    def whole_cores_in(self, cpus: int) -> int:
        """Those of `cpus` that are all threads of their core."""
        mask = 0
        for core in self.cores:
            if not core & ~cpus:
                mask |= core
        return mask

    def caches_of(self, cpus: int) -> int:
        """All CPUs of all uncore caches that have a CPU in `cpus`."""
        mask = 0
        for cache in self.cores_in_cache:
            if cache & cpus:
                mask |= cache
        return mask

    def cpus_in(self, nodes: int) -> int:
        """CPUs of the NUMA nodes in the mask `nodes`."""
        mask = 0
        for node, cpus in self.nodes:
            if nodes >> node & 1:
                mask |= cpus
        return mask

    def sockets_of(self, nodes: int) -> int:
        """All CPUs of all sockets that share a CPU with the NUMA nodes in the mask `nodes`."""
        mask = 0
        for node, cpus in self.nodes:
            if nodes >> node & 1:
                for socket in self.sockets_in[cpus]:
                    mask |= socket
        return mask

    def nodes_of(self, cpus: int) -> int:
        """Mask of the NUMA nodes that hold at least one of `cpus`."""
        mask = 0
        for node, of_node in self.nodes:
            if of_node & cpus:
                mask |= 1 << node
        return mask


def cpu_tables(topology: Topology) -> CPUTables:
    """The tables of a machine; CPU-less NUMA nodes take no part in choosing CPUs."""
    nodes = tuple((int(node.id), node.cpus.mask) for node in topology.nodes if node.cpus)
    node_sets = tuple(cpus for _, cpus in nodes)
    sockets = tuple(cpus.mask for _, cpus in topology.sockets)
    caches = tuple(cpus.mask for _, cpus in topology.caches)
    cores = tuple(cpus.mask for _, cpus in topology.cores)
    total = len(topology.online)
    return CPUTables(
        online=topology.online.mask,
        nodes=nodes,
        node_sets=node_sets,
        sockets=sockets,
        sockets_in=_inside(node_sets, sockets),
        nodes_in=_inside(sockets, node_sets),
        caches_in=_inside(node_sets, caches),
        cores_in=_inside((*node_sets, *sockets), cores),
        cores_in_cache=_inside(caches, cores),
        cores=cores,
        nodes_first=len(sockets) >= len(nodes),
        cpus_per_core=_average(total, len(cores)),
        cpus_per_socket=_average(total, len(sockets)),
        cpus_per_cache=_average(total, len(caches)),
        nodes_per_socket=_average(len(nodes), len(sockets)),
    )


def _inside(outer: Iterable[int], inner: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    return {group: tuple(part for part in inner if part & group) for group in outer}


def _average(total: int, groups: int) -> int:
    return total // groups if groups else 0
