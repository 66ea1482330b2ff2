"""What an operator chose, and the node it was chosen for: the constant input of every decision."""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from nri_plugin.cpuset import CPUSet
from nri_plugin.ids import NUMANodeID
from nri_plugin.topology import Topology


class CPUManagerPolicy(StrEnum):
    """KubeletConfiguration.cpuManagerPolicy."""

    NONE = "none"
    STATIC = "static"


class TopologyManagerPolicy(StrEnum):
    """KubeletConfiguration.topologyManagerPolicy."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class TopologyManagerScope(StrEnum):
    """KubeletConfiguration.topologyManagerScope."""

    CONTAINER = "container"
    POD = "pod"


class MemoryManagerPolicy(StrEnum):
    """KubeletConfiguration.memoryManagerPolicy."""

    NONE = "None"
    STATIC = "Static"


class Effect(StrEnum):
    """How a changed shared pool reaches containers that already exist.

    CGROUP writes their cgroup files; UPDATE sends `update` entries in replies, for a runtime
    whose cgroups cannot be reached.
    """

    CGROUP = "cgroup"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class ReservedMemory:
    """Memory of one NUMA node kept for the system; `resource` is `memory` or `hugepages-SIZE`."""

    node: NUMANodeID
    resource: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Options:
    """Validated choices, independent of the machine; defaults as the kubelet's, cpu policy static.

    Attributes:
        full_pcpus_only: exclusive CPUs only as whole cores.
        prefer_align_cpus_by_uncore_cache: pack exclusive CPUs by uncore cache.
        reserved_memory: per NUMA node, used by the Static memory policy.
        pool_floor: also write the shared pool to the Burstable and BestEffort slices.
        never_refuse: namespaces whose containers run in the shared pool rather than being refused.
        effect: how existing containers are changed.
    """

    cpu_manager_policy: CPUManagerPolicy = CPUManagerPolicy.STATIC
    full_pcpus_only: bool = False
    prefer_align_cpus_by_uncore_cache: bool = False
    topology_manager_policy: TopologyManagerPolicy = TopologyManagerPolicy.NONE
    topology_manager_scope: TopologyManagerScope = TopologyManagerScope.CONTAINER
    memory_manager_policy: MemoryManagerPolicy = MemoryManagerPolicy.NONE
    reserved_memory: tuple[ReservedMemory, ...] = ()
    pool_floor: bool = True
    never_refuse: frozenset[str] = field(default=frozenset())
    effect: Effect = Effect.CGROUP


@dataclass(frozen=True, eq=False)
class Node:
    """The node a decision is made for; compared by identity, so that what is derived from it can be kept.

    Attributes:
        topology: the machine.
        options: what the operator chose.
        reserved: CPUs for the system: never exclusive, part of the shared pool.
    """

    topology: Topology
    options: Options
    reserved: CPUSet

    @cached_property
    def allocatable(self) -> CPUSet:
        """CPUs that may become exclusive: online minus reserved."""
        return self.topology.online - self.reserved
