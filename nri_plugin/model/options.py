"""The options of the managers: one row for each, and the node that a decision is made for.

Each field of `Options` is the row of one option. Its annotation is the type; `option` takes the default, the name in
the configuration, the effect, the level and gate, and the place where it is published; the text below is its sentence
in the guide. Configuration keys, checks, kubelet flags, what-ifs, NodeResourceTopology attributes, the chart's schema
and the table in the guide are made from these rows. Nothing else lists options. After a change run `hack/gen-options`.

Invariant: rows are plain data. Rules that involve two options or the machine are in `config/option_checks.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Protocol

from nri_plugin.model.option_rows import (
    CPU_MANAGER,
    OWN_ATTRIBUTES,
    TOPOLOGY_MANAGER,
    Affects,
    Level,
    Manager,
    Option,
    option,
)
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
    """fullPCPUsRule: which CPUs full-pcpus-only counts as available to a container."""

    KUBELET = "kubelet"
    """Available CPUs, on whole cores or not, without those that the pod's init containers pass on."""
    WHOLE_CORES = "whole-cores"
    """CPUs of wholly available cores, including those that init containers pass on."""


class UncoreCacheRule(StrEnum):
    """What prefer-align-cpus-by-uncorecache does.

    KUBELET tries the fullest caches first, as the kubelet does. KEP_4800 tries the caches in numerical order, as
    the text of KEP-4800 has it, and only where NUMA nodes have several of them.
    """

    KUBELET = "kubelet"
    KEP_4800 = "kep-4800"


class UncoreCacheFit(StrEnum):
    """Which choice of exclusive CPUs is taken: the kubelet's first one, or the best of all."""

    FIRST = "first"
    BEST = "best"


class TopologyTieBreak(StrEnum):
    """Which of equally good NUMA node masks is taken."""

    PACKED = "packed"
    SPREAD = "spread"
    BEST_FIT = "best-fit"


class IsolatedCPUs(StrEnum):
    """Which containers run on CPUs that the kernel isolates (isolcpus, nohz_full, isolated partitions).

    EXCLUSIVE keeps the shared pool out of them; exclusive containers get them as they get others. ON_REQUEST gives
    them only to containers that ask by annotation. IGNORE makes no difference, as in the kubelet.
    """

    EXCLUSIVE = "exclusive"
    ON_REQUEST = "on-request"
    IGNORE = "ignore"


class Isolation(StrEnum):
    """How far exclusive CPUs are separated from the rest of the kernel.

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


class IRQs(StrEnum):
    """Which containers with exclusive CPUs are kept free of device interrupts."""

    NONE = "none"
    ON_REQUEST = "on-request"
    EXCLUSIVE = "exclusive"


class IRQWish(StrEnum):
    """What a container wants of device interrupts: none on its CPUs, some on its first core only, or any."""

    QUIET = "quiet"
    HOUSEKEEPING = "housekeeping"
    ANY = "any"


class IRQHousekeeping(StrEnum):
    """Where interrupts go that have to leave quiet CPUs."""

    SHARED = "shared"
    RESERVED = "reserved"


class Workqueues(StrEnum):
    """Whether unbound kernel work leaves exclusive CPUs."""

    NONE = "none"
    EXCLUSIVE = "exclusive"


class ReceiveSteering(StrEnum):
    """Whether the steering of received packets leaves exclusive CPUs."""

    NONE = "none"
    EXCLUSIVE = "exclusive"


class IRQBalance(StrEnum):
    """Whether a running irqbalance is told about quiet CPUs."""

    SOCKET = "socket"
    NONE = "none"


class SMTOddCounts(StrEnum):
    """The rule for a number of exclusive CPUs that does not fill its last core."""

    KUBELET = "kubelet"
    REJECT = "reject"
    ROUND_UP = "round-up"
    ALLOW = "allow"


class PodSharedPoolRule(StrEnum):
    """What the exclusive containers of a pod with resources of its own have to leave to those that share."""

    KUBELET = "kubelet"
    CPU_AND_MEMORY = "cpu-and-memory"


@dataclass(frozen=True, slots=True)
class ReservedMemory:
    """Memory of one NUMA node kept for the system; `resource` is `memory` or `hugepages-SIZE`."""

    node: NUMANodeID
    resource: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Options:
    """Validated choices, independent of the machine; defaults as the kubelet's, cpu policy static.

    Differs: the kubelet's default for `cpuManagerPolicy` is `none`; here: it is `static`. Why: nri-pin is
        installed to give exclusive CPUs. Option: `cpuManagerPolicy: none`.

    Differs: the kubelet's default for `max-allowable-numa-nodes` is 8; here: there is no limit. Why: the
        search for hints is bounded on any number of NUMA nodes. Option: `max-allowable-numa-nodes: 8`.
    """

    cpu_manager_policy: CPUManagerPolicy = option(
        CPUManagerPolicy.STATIC,
        "cpuManagerPolicy",
        Affects.CPUS,
        Level.GA,
        is_policy=True,
        has_flag=True,
        published=f"{OWN_ATTRIBUTES}cpuManagerPolicy",
    )
    """`static` gives exclusive CPUs to Guaranteed containers with a whole number of CPUs; `none` leaves cpusets alone. The
    kubelet's default is `none`.
    """

    topology_manager_policy: TopologyManagerPolicy = option(
        TopologyManagerPolicy.NONE,
        "topologyManagerPolicy",
        Affects.NUMA_NODES,
        Level.GA,
        own_gate="TopologyManager",
        is_policy=True,
        has_flag=True,
        published="topologyManagerPolicy",
    )
    """How CPUs, memory and devices are aligned, and what is refused when they cannot be."""

    topology_manager_scope: TopologyManagerScope = option(
        TopologyManagerScope.CONTAINER,
        "topologyManagerScope",
        Affects.NUMA_NODES,
        Level.GA,
        is_policy=True,
        has_flag=True,
        published="topologyManagerScope",
    )
    """Whether each container is aligned by itself, or the whole pod at once."""

    memory_manager_policy: MemoryManagerPolicy = option(
        MemoryManagerPolicy.NONE,
        "memoryManagerPolicy",
        Affects.MEMORY,
        Level.GA,
        is_policy=True,
        published=f"{OWN_ATTRIBUTES}memoryManagerPolicy",
    )
    """`Static` binds Guaranteed containers to memory nodes and needs `reservedMemory`."""

    full_pcpus_only: bool = option(
        False,
        "full-pcpus-only",
        Affects.CPUS,
        Level.GA,
        CPU_MANAGER,
        excludes=("distribute-cpus-across-cores",),
    )
    """Exclusive CPUs are whole cores; a number of CPUs that does not fill cores is refused."""

    distribute_cpus_across_numa: bool = option(
        False,
        "distribute-cpus-across-numa",
        Affects.CPUS,
        Level.BETA,
        CPU_MANAGER,
        excludes=("distribute-cpus-across-cores",),
        stages=("equal-share",),
    )
    """Exclusive CPUs in equal shares over NUMA nodes, where one NUMA node is too small."""

    distribute_cpus_across_cores: bool = option(
        False,
        "distribute-cpus-across-cores",
        Affects.CPUS,
        Level.ALPHA,
        CPU_MANAGER,
        stages=("by-number",),
    )
    """Exclusive CPUs by their numbers, in the fullest socket first, instead of whole cores. They are on different cores where
    hyper-threads have their numbers after those of all cores, and on the same cores where the threads of a core have
    neighboring numbers. That is the rule up to Kubernetes 1.37; 1.38 takes a CPU of each core in turn."""

    align_by_socket: bool = option(
        False, "align-by-socket", Affects.CPUS, Level.ALPHA, CPU_MANAGER, stages=("sockets-of-hint",)
    )
    """CPUs may come from all NUMA nodes of the sockets in the hint."""

    strict_cpu_reservation: bool = option(
        False, "strict-cpu-reservation", Affects.SHARED_POOL, Level.GA, CPU_MANAGER
    )
    """Reserved CPUs are not part of the shared pool."""

    prefer_align_cpus_by_uncore_cache: bool = option(
        False,
        "prefer-align-cpus-by-uncorecache",
        Affects.CPUS,
        Level.GA,
        CPU_MANAGER,
        excludes=("distribute-cpus-across-cores", "distribute-cpus-across-numa"),
        stages=("whole-uncore-cache", "part-of-uncore-cache"),
    )
    """Exclusive CPUs from as few uncore caches as possible."""

    prefer_closest_numa_nodes: bool = option(
        False,
        "prefer-closest-numa-nodes",
        Affects.NUMA_NODES,
        Level.GA,
        TOPOLOGY_MANAGER,
        published=TOPOLOGY_MANAGER.published,
    )
    """Of equally many NUMA nodes, those closest to each other."""

    max_allowable_numa_nodes: int | None = option(
        None, "max-allowable-numa-nodes", Affects.MACHINE, Level.GA, TOPOLOGY_MANAGER
    )
    """The agent does not start on a machine with more NUMA nodes. At least 8; unset: no limit (the kubelet: 8)."""

    strict_uncore_cache: bool = option(False, "strictUncoreCache", Affects.CPUS, stages=("one-uncore-cache",))
    """Refuse containers whose CPUs cannot come from one uncore cache. Needs `uncoreCacheFit: best`."""

    device_proportional_cpus: bool = option(
        False, "deviceProportionalCPUs", Affects.CPUS, stages=("share-of-devices",)
    )
    """CPUs of each NUMA node in proportion to the devices that the container has there."""

    uncore_cache_fit: UncoreCacheFit = option(
        UncoreCacheFit.FIRST, "uncoreCacheFit", Affects.CPUS, stages=("best-fit",)
    )
    """`best`: fewest NUMA nodes, then uncore caches, then split cores, then the tightest fit, so that large groups of
    available CPUs survive.
    """

    uncore_cache_rule: UncoreCacheRule = option(UncoreCacheRule.KUBELET, "uncoreCacheRule", Affects.CPUS)
    """`kep-4800`: prefer-align-cpus-by-uncorecache tries caches in numerical order, and has no effect where no NUMA node
    has several.
    """

    prefer_whole_queues: bool = option(False, "preferWholeQueues", Affects.CPUS, stages=("whole-queues",))
    """Of CPU sets of equal quality, one that splits the fewest queues of disks. A disk with fewer queues than CPUs
    [interrupts](quiet-cpus.md#what-stays) a CPU for requests of all CPUs of the queue, and only the kernel moves that.
    """

    full_pcpus_rule: FullPCPUsRule = option(FullPCPUsRule.KUBELET, "fullPCPUsRule", Affects.CPUS)
    """`whole-cores`: full-pcpus-only counts wholly available cores, also those that the pod's init containers pass on (the
    kubelet: available CPUs, without them).
    """

    smt_odd_counts: SMTOddCounts = option(SMTOddCounts.KUBELET, "smtOddCounts", Affects.CPUS)
    """`reject`, `round-up` or `allow` numbers of CPUs that do not fill cores."""

    pod_shared_pool_rule: PodSharedPoolRule = option(
        PodSharedPoolRule.KUBELET, "podSharedPoolRule", Affects.NUMA_NODES
    )
    """`cpu-and-memory`: a [pod with resources of its own](#pods-with-resources-of-their-own) is admitted also where its
    exclusive containers leave no huge pages to the others (the kubelet refuses it).
    """

    topology_tie_break: TopologyTieBreak = option(
        TopologyTieBreak.PACKED, "topologyTieBreak", Affects.NUMA_NODES
    )
    """`spread` or `best-fit`: which of equally good NUMA nodes, or sets of them, is taken."""

    isolated_cpus: IsolatedCPUs = option(IsolatedCPUs.EXCLUSIVE, "isolatedCPUs", Affects.CPUS)
    """CPUs that the kernel isolates (`isolcpus`, `nohz_full`). `exclusive`: exclusive containers get them like any others,
    and the shared pool does not contain them. `on-request`: only containers with an [annotation](#annotations) get
    them. `ignore`: as the kubelet. CPUs in partitions of other programs are
    [out of reach](operate.md#cpus-that-the-kernel-does-not-give).
    """

    isolation: Isolation = option(Isolation.NONE, "isolation", Affects.KERNEL)
    """cgroup v2, Linux 6.7: `partition` makes the cgroup of every container with exclusive CPUs a scheduling domain of its
    own, balanced inside. `isolated`, only for programs that pin their own threads, also ends that balancing: all other
    threads stay on one CPU. Needs the [capability SYS_ADMIN](#partitions).
    """

    irqs: IRQs = option(IRQs.NONE, "irqs", Affects.KERNEL)
    """[Quiet CPUs](quiet-cpus.md): which exclusive CPUs are kept free of device interrupts. `exclusive`: those of every
    container; `on-request`: those of containers with an annotation. `none`: nothing of the kernel's interrupts is read
    or written.
    """

    irq_housekeeping: IRQHousekeeping = option(IRQHousekeeping.SHARED, "irqHousekeeping", Affects.KERNEL)
    """Where interrupts go that leave quiet CPUs: `shared` is every CPU that is not quiet and was theirs before, `reserved`
    only the reserved ones.
    """

    irqs_controlled: tuple[str, ...] = option((), "irqsControlled", Affects.KERNEL)
    """Patterns of interrupts that the agent may move, by the name of a handler or by PCI address; empty: all."""

    irqs_left_alone: tuple[str, ...] = option((), "irqsLeftAlone", Affects.KERNEL)
    """Patterns of interrupts that the agent never moves; they win over `irqsControlled`."""

    workqueues: Workqueues = option(Workqueues.NONE, "workqueues", Affects.KERNEL)
    """`exclusive`: unbound kernel work and writeback run on other CPUs than the exclusive ones."""

    receive_steering: ReceiveSteering = option(ReceiveSteering.NONE, "receiveSteering", Affects.KERNEL)
    """`exclusive`: where receive packet steering (`rps_cpus`) is on for a queue of a network device, it steers to other CPUs
    than the exclusive ones. Needs the [capability NET_ADMIN](quiet-cpus.md#what-it-needs).
    """

    irqbalance: IRQBalance = option(IRQBalance.SOCKET, "irqbalance", Affects.KERNEL)
    """`socket`: a running irqbalance is told to leave quiet CPUs alone, by its socket. `none`: it is told nothing."""

    annotation_namespaces: frozenset[str] = option(frozenset(), "annotationNamespaces", Affects.ADMISSION)
    """Namespaces whose pods may use [annotations](#annotations). Switches `poolFloor` off."""

    never_refuse: frozenset[str] = option(frozenset(), "neverRefuse", Affects.ADMISSION)
    """Namespaces whose containers run in the shared pool instead of being refused. While the checkpoint cannot be saved,
    the agent keeps their allocations in memory.
    """

    pool_floor: bool = option(True, "poolFloor", Affects.KERNEL)
    """cgroup v2: the shared pool is also set on the Burstable and BestEffort slices, so that containers that are created
    while the agent is away stay off exclusive CPUs, and one write bounds all containers of a class before an exclusive
    container starts. systemd removes the setting from a slice without pods when the first pod comes. The agent writes it
    again before it answers for that pod; without an agent, the first pod of its class runs on all CPUs until the agent
    is back.
    """

    reserved_memory: tuple[ReservedMemory, ...] = option((), "reservedMemory", Affects.MEMORY, Level.GA)
    """Memory of each NUMA node kept for the system. It must equal the sum of `kubeReserved`, `systemReserved` and
    `evictionHard`.
    """

    kept_memory_bytes: int = option(
        0, "memory kept for the system", Affects.MEMORY, Level.GA, is_derived=True
    )
    """The sum of `kubeReserved`, `systemReserved` and `evictionHard`, subtracted from the zones."""

    lift_cpu_quota: bool = option(
        True,
        "featureGates.DisableCPUQuotaWithExclusiveCPUs",
        Affects.KERNEL,
        Level.BETA,
        own_gate="DisableCPUQuotaWithExclusiveCPUs",
        is_derived=True,
    )
    """No CFS quota on containers that have all their CPUs to themselves, nor on their pods."""

    pod_level_managers: bool = option(
        False,
        "featureGates.PodLevelResourceManagers",
        Affects.ADMISSION,
        Level.ALPHA,
        own_gate="PodLevelResourceManagers",
        is_derived=True,
        published=f"{OWN_ATTRIBUTES}podLevelResourceManagers",
    )
    """Pods that set `spec.resources` get CPUs and memory as a whole, which their containers share. Needs the gate
    `PodLevelResources` and the exporter.
    """

    effect: Effect = option(Effect.CGROUP, "effect", Affects.KERNEL, is_derived=True)
    """How existing containers are changed; the agent finds out."""


REGISTRY: Mapping[str, Option] = MappingProxyType(
    {
        one.name: one.metadata["option"]._replace(attribute=one.name, kind=one.type, default=one.default)
        for one in fields(Options)
    }
)
"""The rows by field of `Options`, in their order."""

OPTION_BY_NAME: Mapping[str, Option] = MappingProxyType({one.name: one for one in REGISTRY.values()})
"""The rows by name in the configuration."""


def options_of(manager: Manager | None) -> Mapping[str, Option]:
    """The policy options of a manager by name, or the keys at the top of the configuration; derived ones are none."""
    return {
        name: one for name, one in OPTION_BY_NAME.items() if one.manager is manager and not one.is_derived
    }


class HintProvider(Protocol):
    """A function that answers a `Question` with hints, or None when it does not care; see `hint_providers.py`.

    Both types stand above this module, so they are not named here.
    """

    def __call__(self, question: Any, /) -> Any:
        """The hints for `question`."""


@dataclass(frozen=True, eq=False)
class Node:
    """The node a decision is made for; compared by identity, so that derived values can be kept.

    Attributes:
        topology: the machine.
        options: what the operator chose.
        reserved: CPUs for the system: never exclusive, part of the shared pool.
        hint_providers: asked about every container after our own; see `hint_providers.py`.
        withheld: CPUs that the container being placed may not have; see `narrowed`.
    """

    topology: Topology
    options: Options
    reserved: CPUSet
    hint_providers: tuple[HintProvider, ...] = ()
    withheld: CPUSet = NO_CPUS

    @cached_property
    def allocatable(self) -> CPUSet:
        """CPUs that may become exclusive: online minus reserved."""
        return self.topology.online - self.reserved - self.withheld

    @cached_property
    def isolated(self) -> CPUSet:
        """Online CPUs that the shared pool stays out of because the kernel isolates them."""
        is_ignored = self.options.isolated_cpus is IsolatedCPUs.IGNORE
        return NO_CPUS if is_ignored else self.topology.isolated & self.topology.online


@lru_cache(maxsize=8)
def narrowed(node: Node, wish: IsolatedWish | None) -> Node:
    """The node with only those CPUs allocatable that a container with this wish may have.

    The same node and wish give the same object, so that derived values can be kept. A narrowed node stays as it is.
    """
    if node.withheld:
        return node
    on_request = node.options.isolated_cpus is IsolatedCPUs.ON_REQUEST
    wish = wish or (IsolatedWish.AVOID if on_request else IsolatedWish.ANY)
    isolated = node.topology.isolated & node.topology.online
    if wish is IsolatedWish.REQUIRE:
        return replace(node, withheld=node.topology.online - isolated)
    return replace(node, withheld=isolated) if wish is IsolatedWish.AVOID and isolated else node
