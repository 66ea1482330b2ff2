"""The machine as placement sees it: a frozen value, discovered elsewhere.

Every online CPU is in exactly one core, one socket, one NUMA node and one
uncore cache. Groups hold online CPUs only, are never empty (NUMA nodes without
CPUs excepted) and are listed by ascending id.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from nri_plugin.model.sets import (
    CPUID,
    NO_CPUS,
    CoreID,
    CPUSet,
    NodeMask,
    NUMANodeID,
    SocketID,
    UncoreCacheID,
)

GroupID = TypeVar("GroupID", CoreID, SocketID, UncoreCacheID, NUMANodeID)


class NUMANode(Struct, frozen=True):
    """One NUMA node.

    Attributes:
        id: the kernel's node number.
        cpus: its online CPUs; empty for a node that has memory only.
        memory_bytes: MemTotal, None where it was not recorded.
        hugepages: (page size in kB, number of pages), ascending by size.
        distances: ACPI SLIT distances to `Topology.nodes`, in their order; None where unknown.
    """

    id: NUMANodeID
    cpus: CPUSet
    memory_bytes: int | None = None
    hugepages: tuple[tuple[int, int], ...] = ()
    distances: tuple[int, ...] | None = None

    @property
    def has_memory(self) -> bool:
        """Whether memory can be placed here; a node of unknown size counts as having some."""
        return self.memory_bytes is None or self.memory_bytes > 0 or any(pages for _, pages in self.hugepages)


class SharedQueue(Struct, frozen=True):
    """A queue of a device that several CPUs use: requests of each of them make its interrupt, which only the kernel moves.

    Attributes:
        cpus: the online CPUs whose requests it takes, several of them and not all.
        delivered: those of them that its interrupt comes to; empty where the kernel does not tell.
    """

    cpus: CPUSet
    delivered: CPUSet = NO_CPUS


class Topology(Struct, frozen=True, dict=True):
    """A machine.

    Attributes:
        online: all online CPUs that pods can reach.
        cores: hardware threads that share a core.
        sockets: CPUs by physical package.
        nodes: all online NUMA nodes, also those without CPUs; at least one.
        caches: CPUs that share the last-level ("uncore") cache. CPUs without an L3 are grouped
            by socket (Source: kubelet v1.36 topology.go, where the cache id falls back to the socket id).
        caches_known: False when no CPU has an L3 of its own, so that `caches` are the sockets.
        without_l3: CPUs without an L3 where others have one; their entries in `caches` are no caches.
        offline: CPUs present on which no container can run: offline, or out of the pods' reach.
        isolated: CPUs that the scheduler leaves to pinned tasks: isolcpus, nohz_full.
        unreachable: those of `offline` that the kernel runs and that the cgroup above the pods does not have.
        queues: of devices with fewer queues than there are CPUs, ascending by CPUs, each set of CPUs once.
    """

    online: CPUSet
    cores: tuple[tuple[CoreID, CPUSet], ...]
    sockets: tuple[tuple[SocketID, CPUSet], ...]
    nodes: tuple[NUMANode, ...]
    caches: tuple[tuple[UncoreCacheID, CPUSet], ...]
    caches_known: bool = True
    without_l3: CPUSet = NO_CPUS
    offline: CPUSet = NO_CPUS
    isolated: CPUSet = NO_CPUS
    unreachable: CPUSet = NO_CPUS
    queues: tuple[SharedQueue, ...] = ()

    def within(self, reachable: CPUSet) -> "Topology":
        """The machine on which all other CPUs count as offline; the same where that would leave none, or is not known.

        Differs: the kubelet takes all online CPUs of the machine; here: those that the cgroup above the pods has.
            Why: the kernel runs a container without a reachable CPU on the CPUs of others. Option: none.
        """
        online = self.online & reachable
        if not online or online == self.online:
            return self
        queues = (SharedQueue(one.cpus & online, one.delivered & online) for one in self.queues)
        return replace(
            self,
            online=online,
            cores=_cut(self.cores, online),
            sockets=_cut(self.sockets, online),
            nodes=tuple(replace(node, cpus=node.cpus & online) for node in self.nodes),
            caches=_cut(self.caches, online),
            without_l3=self.without_l3 & online,
            offline=self.offline | (self.online - online),
            unreachable=self.unreachable | (self.online - online),
            queues=tuple(one for one in queues if len(one.cpus) > 1 and one.cpus != online),
        )

    @property
    def kernel_online(self) -> CPUSet:
        """All CPUs that the kernel runs, also those that no pod can reach."""
        return self.online | self.unreachable

    def is_l3(self, cache: CPUSet) -> bool:
        """Whether these CPUs, an entry of `caches`, share an L3."""
        return self.caches_known and cache.isdisjoint(self.without_l3)

    @cached_property
    def node_ids(self) -> tuple[NUMANodeID, ...]:
        """Ids of all online NUMA nodes, ascending."""
        return tuple(node.id for node in self.nodes)

    @cached_property
    def node_mask(self) -> NodeMask:
        """All online NUMA nodes."""
        return NodeMask.from_ids(self.node_ids)

    @cached_property
    def nodes_with_memory(self) -> NodeMask:
        """NUMA nodes on which memory can be placed."""
        return NodeMask.from_ids(node.id for node in self.nodes if node.has_memory)

    @property
    def first_core(self) -> CPUSet:
        """All threads of the core with the lowest id: the reserved CPUs where none are configured."""
        return self.cores[0][1]

    def whole_cores(self, cpus: CPUSet) -> CPUSet:
        """`cpus` with the other online threads of their cores."""
        mask = cpus.mask
        for _, threads in self.cores:
            if threads.mask & cpus.mask:
                mask |= threads.mask
        return CPUSet(mask)

    @cached_property
    def socket_by_cpu(self) -> Mapping[CPUID, SocketID]:
        """The socket of each online CPU."""
        return _by_cpu(self.sockets)

    @cached_property
    def cache_by_cpu(self) -> Mapping[CPUID, UncoreCacheID]:
        """The uncore cache of each online CPU."""
        return _by_cpu(self.caches)

    @cached_property
    def node_by_cpu(self) -> Mapping[CPUID, NUMANodeID]:
        """The NUMA node of each online CPU."""
        return _by_cpu(tuple((node.id, node.cpus) for node in self.nodes))

    def nodes_of(self, cpus: CPUSet) -> NodeMask:
        """NUMA nodes that hold at least one of `cpus`."""
        return NodeMask.from_ids(node.id for node in self.nodes if node.cpus.mask & cpus.mask)


def _cut(groups: tuple[tuple[GroupID, CPUSet], ...], cpus: CPUSet) -> tuple[tuple[GroupID, CPUSet], ...]:
    return tuple((group, some & cpus) for group, some in groups if not some.isdisjoint(cpus))


def _by_cpu(groups: Iterable[tuple[GroupID, CPUSet]]) -> Mapping[CPUID, GroupID]:
    return {cpu: group for group, cpus in groups for cpu in cpus}
