"""The result of a simulation: frozen values, which `nri-pin simulate -o json` prints.

`-o json` prints one object:

    {"format": 1, "simulations": [Simulation, ...], "comparison": SimulationComparison or null}

with one simulation, or with two under `--compare`: the same machine and the same pods with two configurations
(`SimulationComparison` is in `comparison`).

Values for pictures (`Machine`, `SimulatedCPU`) have ids as integers and groups of CPUs as lists of them. CPUs and memory
nodes of a container are kernel lists (`0-3,8`), as in the other commands.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from nri_plugin.policy.alignment import CPUAlignment

# The machine


@dataclass(frozen=True, slots=True)
class CPUGroup:
    """CPUs that belong together: a socket, an uncore cache, a core.

    Attributes:
        id: the kernel's.
        cpus: online ones, ascending.
    """

    id: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SimulatedNUMANode:
    """A NUMA node.

    Attributes:
        memory_bytes: None where it is not known.
        hugepages: (page size in kB, number of pages).
        distances: to all NUMA nodes in their order; None where they are not known.
    """

    id: int
    cpus: tuple[int, ...]
    memory_bytes: int | None
    hugepages: tuple[tuple[int, int], ...]
    distances: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """A device of the machine.

    Attributes:
        numa_nodes: those it is attached to; none for anywhere.
        container: key of the container that has it at the end; empty for none.
    """

    resource: str
    id: str
    numa_nodes: tuple[int, ...]
    container: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, for pictures.

    Attributes:
        name: as given on the command line.
        title: of the description, may be empty.
        summary: one line: how many sockets, NUMA nodes, caches, cores, CPUs.
        caches_known: False where no CPU has an L3, so that `caches` are the sockets.
        isolated, offline: CPUs.
        without_l3: CPUs without an L3 where others have one; their entry in `caches` is no cache.
    """

    name: str
    title: str
    summary: str
    sockets: tuple[CPUGroup, ...]
    numa_nodes: tuple[SimulatedNUMANode, ...]
    caches: tuple[CPUGroup, ...]
    cores: tuple[CPUGroup, ...]
    caches_known: bool
    online: tuple[int, ...]
    offline: tuple[int, ...]
    isolated: tuple[int, ...]
    without_l3: tuple[int, ...] = ()


# The result


FORMAT = 1
"""Increased if readers of the format before would misread it; a new key does not increase it."""


class ContainerStatus(StrEnum):
    """The result for a container."""

    PLACED = "placed"
    """It has exclusive CPUs, or memory bound to NUMA nodes, or both."""
    SHARED = "shared"
    """It runs in the shared pool and has no allocation."""
    REFUSED = "refused"
    SKIPPED = "skipped"
    """It was not created, because its pod was refused as a whole or an init container was refused."""


class RefusalStage(StrEnum):
    """The stage that refused a container."""

    NODE = "node"
    """Scheduler or kubelet: the node as a whole has too little left."""
    PLACEMENT = "placement"
    """nri-pin."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of a simulation.

    Attributes:
        name: the file, or `defaults`.
        said: values that are set, as text by key.
        reserved: CPUs for the system, a kernel list.
        why_reserved: where these come from.
    """

    name: str
    said: dict[str, str]
    reserved: str
    why_reserved: str


@dataclass(frozen=True, slots=True)
class SimulatedRefusal:
    """Why a container does not run.

    Attributes:
        reason: one word, `TopologyAffinityError`, `OutOfcpu`.
        text: the whole sentence, the reason first.
        of_pod: the pod was refused as a whole; each of its containers has this refusal.
        container: the container of the pod that does not fit; empty where the pod as a whole does not, or only one
            container was asked about.
    """

    stage: RefusalStage
    reason: str
    text: str
    of_pod: bool = False
    container: str = ""


@dataclass(frozen=True, slots=True)
class SimulatedContainer:
    """A container and its placement.

    Attributes:
        key: `NAMESPACE/POD/CONTAINER`.
        kind: `app`, `init` or `sidecar`.
        status: the result.
        exclusive: how many exclusive CPUs it has.
        cpus: the CPUs it runs on: its exclusive ones, the shared pool of its pod, or the shared pool of that moment; a
            kernel list.
        mems: NUMA nodes its memory is bound to; empty for any.
        numa_nodes: of `cpus`.
        caches: uncore caches of `cpus`, ids as a list.
        sockets: of `cpus`, ids as a list.
        cores: of how many cores it has CPUs.
        aligned: levels at which its exclusive CPUs are aligned, as the alignment counters count; None without any.
        preferred: whether the merged NUMA hint was preferred; None if there was no hint.
        devices: ids by resource.
        device_nodes: NUMA nodes of these devices.
        steps: the steps of the decision, as short codes.
        refusal: of a refused one; and of one in a namespace that is never refused, which runs in the shared pool.
        is_pod_shared: it runs in the shared pool of its pod, which has resources of its own.
    """

    key: str
    namespace: str
    pod: str
    container: str
    kind: str
    status: ContainerStatus
    exclusive: int = 0
    cpus: str = ""
    mems: str = ""
    numa_nodes: str = ""
    caches: str = ""
    sockets: str = ""
    cores: int = 0
    aligned: CPUAlignment | None = None
    preferred: bool | None = None
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    device_nodes: str = ""
    steps: tuple[str, ...] = ()
    refusal: SimulatedRefusal | None = None
    is_pod_shared: bool = False


@dataclass(frozen=True, slots=True)
class SimulatedPod:
    """A pod with resources of its own that has CPUs or memory as a whole, at the end. CPUs are kernel lists.

    Attributes:
        key: `NAMESPACE/POD`.
        cpus: its block, on which no other pod runs; empty where it only has memory.
        shared_pool: CPUs of the block that its containers without a slice share.
        unused: CPUs of the block on which none of its containers may run.
        slices: exclusive CPUs by container; a later container may have those of an init container.
        mems: NUMA nodes its memory is bound to.
        memory_bytes: allocated to the pod.
    """

    key: str
    cpus: str
    shared_pool: str = ""
    unused: str = ""
    slices: dict[str, str] = field(default_factory=dict)
    mems: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of the scenario and its result.

    Attributes:
        number: from 1.
        line: in the scenario; 0 where the form has no lines.
        action: `run`, `create`, `start`, `stop`, `remove`, `update`, `expect`, `say`.
        target: `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`; the sentence of `say`.
        workload: the owner of the pod, `Deployment default/web`; empty for a bare pod.
        shape: key into `Simulation.shapes`; only of `run` and `create`.
        qos: the pod's class; only of those two.
        containers: those that it created or refused, as they were then.
        problems: expectations that were not met, a sentence each.
        refusal: of an update.
        exclusive_cpus: how many CPUs are exclusive after it, of all containers.
    """

    number: int
    line: int
    action: str
    target: str
    workload: str = ""
    shape: str = ""
    qos: str = ""
    containers: tuple[SimulatedContainer, ...] = ()
    problems: tuple[str, ...] = ()
    refusal: SimulatedRefusal | None = None
    exclusive_cpus: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedCPU:
    """The use of one CPU at the end.

    Attributes:
        kind: `exclusive`, `pod-shared` (of a pod's block, but of none of its containers), `shared`, `reserved` (kept for the system, also part of the shared pool where policy has it so),
            `isolated` (by the kernel, the shared pool stays out of it) or `offline`.
        container: key of the container that has it exclusively; empty otherwise.
        pod: key of the pod whose block it belongs to; empty otherwise.
    """

    cpu: int
    kind: str
    container: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class FragmentationRow:
    """Fragmentation of a NUMA node or an uncore cache at the end.

    Attributes:
        cpus: how many it has online.
        allocatable: how many of them may become exclusive on an empty machine.
        available: how many of them still can.
        fragmentation: as the gauges `nri_pin_*_fragmentation_ratio`: the share of `available` in uncore caches (of a
            NUMA node) or cores (of a cache) that others use in part; 0 for nothing available.
    """

    id: int
    cpus: int
    allocatable: int
    available: int
    fragmentation: float


@dataclass(frozen=True, slots=True)
class SimulatedMemory:
    """Memory of one NUMA node at the end, bytes; only with the memory policy Static.

    Attributes:
        resource: `memory` or `hugepages-SIZE`.
        allocatable: on an empty machine.
        allocated: to containers.
    """

    numa_node: int
    resource: str
    allocatable: int
    allocated: int


@dataclass(frozen=True, slots=True)
class ShapeCapacity:
    """How many more pods of one shape fit: pods are tried until one is refused.

    Attributes:
        shape: key.
        text: the requests of such a pod, `Guaranteed: cpu 4, memory 8Gi`.
        example: a pod or workload with that shape; empty for a shape that only `--shape` names.
        pods: how many pods of the scenario have it.
        fits: how many more fit now.
        fits_empty: how many fit on the empty machine; None if that was not tried, for the rarest of very many shapes.
        bounded: False if no refusal ended the trials, because nothing simulated limits them or only `fits` were tried.
        refusal: of the first pod that did not fit; None if there was none.
    """

    shape: str
    text: str
    example: str
    pods: int
    fits: int
    fits_empty: int | None
    bounded: bool = True
    refusal: SimulatedRefusal | None = None


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """Refusals of pods of one shape for one reason.

    Attributes:
        containers: keys, in order; of a pod that was refused as a whole all its containers.
        text: the sentence of the first.
        of_pods: whole pods were refused, so pods are to be counted.
        container: the container of these pods that does not fit; empty where that is no one container.
    """

    reason: str
    stage: RefusalStage
    shape: str
    containers: tuple[str, ...]
    text: str
    of_pods: bool = False
    container: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts at the end.

    Attributes:
        pods: in the scenario.
        pods_placed: all their containers run, or ran.
        pods_partly: some of their containers were refused, others run.
        pods_refused: none runs.
        containers: that run.
        containers_exclusive: of these, those with exclusive CPUs.
        exclusive_cpus, shared_cpus, reserved_cpus, available_cpus: how many; the shared pool includes reserved ones
            where they may be used.
        shared_pool: the pool, a kernel list.
        aligned_numa_node, aligned_socket, aligned_uncore_cache, aligned_whole_cores: how many of the containers with
            exclusive CPUs are aligned.
        fragmentation_numa, fragmentation_cache: over the whole machine, as in `FragmentationRow`.
        memory_allocated_bytes: allocated by the Static memory policy.
        problems: expectations that were not met.
    """

    pods: int
    pods_placed: int
    pods_partly: int
    pods_refused: int
    containers: int
    containers_exclusive: int
    exclusive_cpus: int
    shared_cpus: int
    reserved_cpus: int
    available_cpus: int
    shared_pool: str
    aligned_numa_node: int
    aligned_socket: int
    aligned_uncore_cache: int
    aligned_whole_cores: int
    fragmentation_numa: float
    fragmentation_cache: float
    memory_allocated_bytes: int
    problems: int


@dataclass(frozen=True, slots=True)
class OrderRow:
    """The same pods in another order.

    Attributes:
        seed: of the shuffle; None for the order of the file.
    """

    seed: int | None
    pods_placed: int
    containers_exclusive: int
    exclusive_cpus: int
    aligned_numa_node: int
    aligned_uncore_cache: int
    fragmentation_numa: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result for the pods of one scenario on one machine with one configuration.

    Attributes:
        scenario: its name.
        file: where it was read.
        shapes: what a pod of each shape asks for, by key.
        steps: in their order.
        containers: those that run at the end.
        owners: one for every CPU, ascending.
        refused: equal refusals, the most frequent first.
        notes: what was not simulated, and assumptions, a sentence each.
        orders: statistics over orders of the pods; empty unless asked for.
        pods: those that have CPUs or memory as a whole at the end.
    """

    scenario: str
    file: str
    machine: Machine
    configuration: Configuration
    shapes: dict[str, str]
    steps: tuple[StepRow, ...]
    containers: tuple[SimulatedContainer, ...]
    owners: tuple[SimulatedCPU, ...]
    devices: tuple[SimulatedDevice, ...]
    numa_nodes: tuple[FragmentationRow, ...]
    caches: tuple[FragmentationRow, ...]
    memory: tuple[SimulatedMemory, ...]
    capacity: tuple[ShapeCapacity, ...]
    refused: tuple[RefusedRow, ...]
    totals: Totals
    notes: tuple[str, ...] = ()
    orders: tuple[OrderRow, ...] = ()
    pods: tuple[SimulatedPod, ...] = ()
