"""What an operator chose, and the node it was chosen for: the constant input of every decision."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any, Protocol

from nri_plugin.model.sets import NO_CPUS, CPUSet, NUMANodeID
from nri_plugin.model.topology import Topology


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


class FullPCPUsRule(StrEnum):
    """fullPCPUsRule: what full-pcpus-only counts before it lets a container have CPUs."""

    KUBELET = "kubelet"
    """Available CPUs, on whole cores or not; none of those that its pod's init containers leave."""
    WHOLE_CORES = "whole-cores"
    """CPUs of wholly free cores, those that init containers leave among them."""


class UncoreCacheRule(StrEnum):
    """What prefer-align-cpus-by-uncorecache does.

    KUBELET tries the fullest caches first, as the kubelet does; KEP_4800 goes through the caches by
    number, as the text of KEP-4800 has it, and only where NUMA nodes have several of them.
    """

    KUBELET = "kubelet"
    KEP_4800 = "kep-4800"


class UncoreCacheFit(StrEnum):
    """Which of all ways to choose exclusive CPUs is taken."""

    FIRST = "first"
    BEST = "best"


class TopologyTieBreak(StrEnum):
    """Which of equally good NUMA node masks is taken."""

    PACKED = "packed"
    SPREAD = "spread"
    BEST_FIT = "best-fit"


class IsolatedCPUs(StrEnum):
    """Who runs on CPUs that the kernel isolates (isolcpus, nohz_full, isolated partitions).

    EXCLUSIVE keeps the shared pool out of them; exclusive containers get them as they get others. ON_REQUEST gives
    them only to containers that ask by annotation. IGNORE makes no difference, as the kubelet.
    """

    EXCLUSIVE = "exclusive"
    ON_REQUEST = "on-request"
    IGNORE = "ignore"


class Isolation(StrEnum):
    """How far exclusive CPUs are set apart from the rest of the kernel.

    PARTITION makes the container's cgroup the root of a scheduling domain of its own: nothing else is balanced onto
    its CPUs, and its own threads are balanced among them. ISOLATED also stops that balancing: threads stay where
    they began, all on one CPU unless the program pins them itself.
    """

    NONE = "none"
    PARTITION = "partition"
    ISOLATED = "isolated"


class IsolatedWish(StrEnum):
    """Which exclusive CPUs a container wants, by annotation."""

    REQUIRE = "require"
    AVOID = "avoid"
    ANY = "any"


class SMTOddCounts(StrEnum):
    """What becomes of a number of exclusive CPUs that does not fill its last core."""

    KUBELET = "kubelet"
    REJECT = "reject"
    ROUND_UP = "round-up"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class ReservedMemory:
    """Memory of one NUMA node kept for the system; `resource` is `memory` or `hugepages-SIZE`."""

    node: NUMANodeID
    resource: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Options:
    """Validated choices, independent of the machine; defaults as the kubelet's, cpu policy static.

    Differs: the kubelet's default for max_allowable_numa_nodes is 8.

    Attributes:
        full_pcpus_only: exclusive CPUs only as whole cores.
        distribute_cpus_across_numa: exclusive CPUs in equal shares where one NUMA node is too small.
        distribute_cpus_across_cores: exclusive CPUs one by one, whole cores not preferred.
        align_by_socket: the sockets of the hinted NUMA nodes count, not the nodes themselves.
        strict_cpu_reservation: reserved CPUs are not part of the shared pool.
        prefer_align_cpus_by_uncore_cache: pack exclusive CPUs by uncore cache.
        uncore_cache_rule: how caches are packed.
        uncore_cache_fit: first as the kubelet orders places, or the best of all choices.
        strict_uncore_cache: refuse what cannot stay in one uncore cache; with the best fit only.
        full_pcpus_rule: what full-pcpus-only counts.
        annotation_namespaces: namespaces whose pods may ask for something by annotation.
        smt_odd_counts: what becomes of a number of CPUs that does not fill its last core.
        topology_tie_break: which of equally good NUMA node masks is taken.
        device_proportional_cpus: CPUs by NUMA node in proportion to the container's devices there.
        prefer_closest_numa_nodes: of equally many NUMA nodes those closest to each other.
        lift_cpu_quota: no CFS quota on containers that have all their CPUs to themselves, nor on their pods.
        isolation: how far exclusive CPUs are set apart, where no annotation says otherwise.
        isolated_cpus: who runs on CPUs that the kernel isolates.
        max_allowable_numa_nodes: refuse to start on a machine with more; None for no limit.
        reserved_memory: per NUMA node, used by the Static memory policy.
        kept_memory_bytes: of all NUMA nodes together, for the system and for eviction; told to the cluster.
        pool_floor: also write the shared pool to the Burstable and BestEffort slices.
        never_refuse: namespaces whose containers run in the shared pool rather than being refused.
        effect: how existing containers are changed.
    """

    cpu_manager_policy: CPUManagerPolicy = CPUManagerPolicy.STATIC
    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    distribute_cpus_across_cores: bool = False
    align_by_socket: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncore_cache: bool = False
    uncore_cache_rule: UncoreCacheRule = UncoreCacheRule.KUBELET
    uncore_cache_fit: UncoreCacheFit = UncoreCacheFit.FIRST
    strict_uncore_cache: bool = False
    full_pcpus_rule: FullPCPUsRule = FullPCPUsRule.KUBELET
    annotation_namespaces: frozenset[str] = frozenset()
    smt_odd_counts: SMTOddCounts = SMTOddCounts.KUBELET
    topology_tie_break: TopologyTieBreak = TopologyTieBreak.PACKED
    device_proportional_cpus: bool = False
    prefer_closest_numa_nodes: bool = False
    lift_cpu_quota: bool = True
    isolation: Isolation = Isolation.NONE
    isolated_cpus: IsolatedCPUs = IsolatedCPUs.EXCLUSIVE
    max_allowable_numa_nodes: int | None = None
    topology_manager_policy: TopologyManagerPolicy = TopologyManagerPolicy.NONE
    topology_manager_scope: TopologyManagerScope = TopologyManagerScope.CONTAINER
    memory_manager_policy: MemoryManagerPolicy = MemoryManagerPolicy.NONE
    reserved_memory: tuple[ReservedMemory, ...] = ()
    kept_memory_bytes: int = 0
    pool_floor: bool = True
    never_refuse: frozenset[str] = field(default=frozenset())
    effect: Effect = Effect.CGROUP


class HintProvider(Protocol):
    """A function that answers a `Question` with hints, or None when it does not care; see `hint_providers.py`.

    Both types stand above this module, so they are not named here.
    """

    def __call__(self, question: Any, /) -> Any:
        """The hints for `question`."""


@dataclass(frozen=True, eq=False)
class Node:
    """The node a decision is made for; compared by identity, so that what is derived from it can be kept.

    Attributes:
        topology: the machine.
        options: what the operator chose.
        reserved: CPUs for the system: never exclusive, part of the shared pool.
        hint_providers: asked about every container after our own; see `hint_providers.py`.
        withheld: CPUs that are not on offer to whom is being decided about; see `narrowed`.
    """

    topology: Topology
    options: Options
    reserved: CPUSet
    hint_providers: tuple[HintProvider, ...] = ()
    withheld: CPUSet = NO_CPUS

    @cached_property
    def allocatable(self) -> CPUSet:
        """CPUs that may become exclusive: online minus reserved, and minus what others took."""
        return self.topology.online - self.reserved - self.topology.taken - self.withheld

    @cached_property
    def isolated(self) -> CPUSet:
        """Online CPUs that the shared pool stays out of because the kernel isolates them.

        Those that others took are so under every option: nothing of ours would run there.
        """
        if self.options.isolated_cpus is IsolatedCPUs.IGNORE:
            return self.topology.taken & self.topology.online
        return self.topology.isolated & self.topology.online


@lru_cache(maxsize=8)
def narrowed(node: Node, wish: IsolatedWish | None) -> Node:
    """The node with only those CPUs on offer that a container with this wish may have.

    The same object for the same node and wish, so that what is derived from it can be kept; one that is narrowed
    already stays as it is.
    """
    if node.withheld:
        return node
    on_request = node.options.isolated_cpus is IsolatedCPUs.ON_REQUEST
    wish = wish or (IsolatedWish.AVOID if on_request else IsolatedWish.ANY)
    isolated = node.topology.isolated & node.topology.online
    if wish is IsolatedWish.REQUIRE:
        return replace(node, withheld=node.topology.online - isolated)
    return replace(node, withheld=isolated) if wish is IsolatedWish.AVOID and isolated else node
