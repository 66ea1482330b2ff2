"""The NodeResourceTopology object of this node, from what the agent has promised.

Exact where others estimate: `available` is what a container could still be given here, because the component that
gives also tells. The order of everything is fixed, so that equal content is equal text.

Source: k8stopologyawareschedwg; NodeResourceTopologyMatch of scheduler-plugins reads it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from nri_plugin.kube import noderesourcetopology as nrt
from nri_plugin.kube.noderesourcetopology import NodeResourceTopology, Pair, Zone, ZoneResource, zone_name
from nri_plugin.kube.pod_fingerprint import fingerprint
from nri_plugin.options import (
    MemoryManagerPolicy,
    Node,
    Options,
    ReservedMemory,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.policy.memory_state import MEMORY, memory_machine, memory_state
from nri_plugin.state import PodRecord, QOSClass, State
from nri_plugin.topology import NUMANode

PREFIX = "nri-pin/"
MILLI = 1000

CPU_OPTIONS = (
    ("full-pcpus-only", "full_pcpus_only"),
    ("distribute-cpus-across-numa", "distribute_cpus_across_numa"),
    ("distribute-cpus-across-cores", "distribute_cpus_across_cores"),
    ("align-by-socket", "align_by_socket"),
    ("strict-cpu-reservation", "strict_cpu_reservation"),
    ("prefer-align-cpus-by-uncorecache", "prefer_align_cpus_by_uncore_cache"),
)
"""The kubelet's names of the CPU options and ours."""

LEGACY_LEVELS: Mapping[TopologyManagerPolicy, str] = {
    TopologyManagerPolicy.SINGLE_NUMA_NODE: "SingleNUMANode",
    TopologyManagerPolicy.RESTRICTED: "Restricted",
    TopologyManagerPolicy.BEST_EFFORT: "BestEffort",
}

LONGEST_NUMA_LIST = 8
"""The scheduler plugin's own divisor where the object says nothing."""


PodName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class DeviceCount:
    """Devices of one resource on one NUMA node: all there are, and those nobody has."""

    numa_id: int
    resource: str
    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Devices:
    """What the kubelet says of devices.

    Attributes:
        counts: by resource and NUMA node.
        pods: that have some near a NUMA node.
    """

    counts: tuple[DeviceCount, ...] = ()
    pods: frozenset[PodName] = frozenset()


NO_DEVICES = Devices()


def published(name: str, node: Node, state: State, devices: Devices = NO_DEVICES) -> NodeResourceTopology:
    """The object of the node called `name`.

    Args:
        name: of the Kubernetes node.
        node: what the agent decides for.
        state: what it has promised.
        devices: what the kubelet says of devices; without it no device is listed.
    """
    resources = _resources(node, state, devices.counts)
    return NodeResourceTopology(
        name=name,
        zones=tuple(
            Zone(
                name=zone_name(numa.id),
                resources=tuple(resources[int(numa.id)]),
                costs=_costs(node, numa),
            )
            for numa in sorted(node.topology.nodes, key=lambda numa: numa.id)
        ),
        attributes=tuple(_attributes(node, state, devices)),
        topology_policies=(legacy_policy(node.options),),
    )


def accounted_pods(state: State, with_devices: frozenset[PodName] = frozenset()) -> list[PodRecord]:
    """The pods that `available` accounts for, by uid: those the scheduler plugin takes to hold something of a zone.

    Every Guaranteed pod has a memory limit and so counts as one, whether or not it got CPUs or memory of its own here;
    so does one of any class that has devices of a zone;
    a fingerprint of any other set would never be equal to the plugin's. A pod counts from its first container on.
    """
    present = {record.pod_uid for record in state.containers.values()}
    counted = (
        pod
        for pod in state.pods.values()
        if pod.uid in present
        and (pod.qos is QOSClass.GUARANTEED or (pod.namespace, pod.name) in with_devices)
    )
    return sorted(counted, key=lambda pod: pod.uid)


def legacy_policy(options: Options) -> str:
    """Policy and scope in the one word of the former version."""
    level = LEGACY_LEVELS.get(options.topology_manager_policy)
    if level is None:
        return "None"
    scope = "Pod" if options.topology_manager_scope is TopologyManagerScope.POD else "Container"
    return f"{level}{scope}Level"


def _costs(node: Node, numa: NUMANode) -> tuple[tuple[str, int], ...]:
    """Distances to every NUMA node; none where the machine does not tell.

    Differs: other exporters number distances by position, which is wrong where NUMA ids have holes.
    """
    pairs = zip(node.topology.nodes, numa.distances or (), strict=False)
    return tuple(
        (zone_name(other.id), distance) for other, distance in sorted(pairs, key=lambda pair: pair[0].id)
    )


def _resources(node: Node, state: State, devices: Iterable[DeviceCount]) -> dict[int, list[ZoneResource]]:
    """What every zone lists: cpu, memory, huge pages by size, devices by name.

    Every zone lists every resource but devices, with zero where it has none: a scheduler that adds zones up leaves
    out those that do not list what a pod asks for.
    """
    rows: dict[int, list[ZoneResource]] = {
        int(numa.id): [_cpu(node, state, numa)] for numa in node.topology.nodes
    }
    for number, row in _memory(node, state):
        rows[number].append(row)
    for device in sorted(devices, key=lambda one: (one.resource, one.numa_id)):
        if device.numa_id in rows:
            total = device.total * MILLI
            rows[device.numa_id].append(ZoneResource(device.resource, total, total, device.available * MILLI))
    return rows


def _cpu(node: Node, state: State, numa: NUMANode) -> ZoneResource:
    allocatable = numa.cpus - node.reserved
    available = allocatable - state.exclusive
    return ZoneResource("cpu", len(numa.cpus) * MILLI, len(allocatable) * MILLI, len(available) * MILLI)


def _memory(node: Node, state: State) -> Iterator[tuple[int, ZoneResource]]:
    """Ordinary memory and huge pages by NUMA node, ordinary memory first."""
    machine = memory_machine(node.topology, _kept(node))
    promised = memory_state(machine, (allocation.memory for allocation in state.allocations.values()))
    for resource in sorted(machine.total, key=lambda name: (name != MEMORY, name)):
        free = promised.free(resource)
        for number, total in machine.total[resource].items():
            allocatable = machine.allocatable_of(resource)[number]
            yield (
                number,
                ZoneResource(resource, total * MILLI, allocatable * MILLI, max(0, free[number]) * MILLI),
            )


def _kept(node: Node) -> Iterable[ReservedMemory]:
    """Memory that is kept for the system, by NUMA node.

    With the Static policy as the operator divided it. Else nobody has: what is kept of the node as a whole is spread in
    proportion to the ordinary memory of its NUMA nodes, and adds up to the byte.

    Differs: other exporters subtract nothing then, and so promise more in the zones than the node has.
    """
    if node.options.memory_manager_policy is MemoryManagerPolicy.STATIC:
        return node.options.reserved_memory
    return _spread(node)


def _spread(node: Node) -> Iterator[ReservedMemory]:
    sizes = memory_machine(node.topology).allocatable_of(MEMORY)
    everything, before, kept_before = sum(sizes.values()), 0, 0
    for numa in node.topology.nodes if everything else ():
        before += sizes[int(numa.id)]
        kept = node.options.kept_memory_bytes * before // everything
        yield ReservedMemory(numa.id, MEMORY, kept - kept_before)
        kept_before = kept


def _attributes(node: Node, state: State, devices: Devices) -> Iterator[Pair]:
    options = node.options
    yield nrt.ATTRIBUTE_POLICY, options.topology_manager_policy.value
    yield nrt.ATTRIBUTE_SCOPE, options.topology_manager_scope.value
    if len(node.topology.nodes) > LONGEST_NUMA_LIST:
        yield nrt.ATTRIBUTE_MAX_NUMA_NODES, str(len(node.topology.nodes))
    pods = accounted_pods(state, devices.pods)
    yield nrt.ATTRIBUTE_FINGERPRINT, fingerprint((pod.namespace, pod.name) for pod in pods)
    yield nrt.ATTRIBUTE_FINGERPRINT_METHOD, nrt.METHOD_EXCLUSIVE
    yield nrt.ATTRIBUTE_ACCOUNTED_PODS, ",".join(sorted(nrt.short_uid(pod.uid) for pod in pods))
    yield f"{PREFIX}cpuManagerPolicy", options.cpu_manager_policy.value
    chosen = [name for name, field in CPU_OPTIONS if getattr(options, field)]
    if chosen:
        yield f"{PREFIX}cpuManagerPolicyOptions", ",".join(f"{name}=true" for name in chosen)
    if options.prefer_closest_numa_nodes:
        yield nrt.ATTRIBUTE_POLICY_OPTIONS, "prefer-closest-numa-nodes=true"
    yield f"{PREFIX}memoryManagerPolicy", options.memory_manager_policy.value
    yield f"{PREFIX}sharedPool", str(state.shared_pool(node))
