"""The result of a simulation: plain frozen values, whose `as_dict` is the JSON of `nri-pin simulate -o json`.

Ids are whole numbers and groups of CPUs lists of them where something is to be drawn (`Machine`, `CPUOwner`); what a
container has is written as kernel lists (`0-3,8`), as in the other commands. `-o json` prints one object:

    {"format": 1, "simulations": [Simulation, ...], "comparison": Comparison or null}

with one simulation, or with two under `--compare`: the same machine and the same pods with two configurations
(`Comparison` is in `simulate_comparison`).
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

# ----------------------------------------------------------------------------------------------------
# The machine of a simulation as plain values: lists of ids, enough to draw it.


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
        container: key of who has it at the end; empty for nobody.
    """

    resource: str
    id: str
    numa_nodes: tuple[int, ...]
    container: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, enough to draw it.

    Attributes:
        name: as it was asked for.
        title: in words, empty where nobody wrote some.
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


# ----------------------------------------------------------------------------------------------------


# Whoever reads a simulation needs its parts.

FORMAT = 1
"""Raised when a reader of an older one would misunderstand; a new key does not raise it."""


class ContainerStatus(StrEnum):
    """What became of a container."""

    PLACED = "placed"
    """It has exclusive CPUs, or memory bound to NUMA nodes, or both."""
    SHARED = "shared"
    """It runs in the shared pool and nothing is promised to it."""
    REFUSED = "refused"
    SKIPPED = "skipped"
    """Its pod ended before its turn: refused as a whole, or by an init container that was."""


class RefusalStage(StrEnum):
    """Who refused."""

    NODE = "node"
    """The node as a whole has too little left: scheduler and kubelet, before any runtime is asked."""
    PLACEMENT = "placement"
    """nri-pin."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What decided.

    Attributes:
        name: the file, or `defaults`.
        said: the keys that are not the agent's default, as `key: value` texts by key.
        reserved: CPUs for the system, a kernel list.
        why_reserved: where these come from, a sentence.
    """

    name: str
    said: dict[str, str]
    reserved: str
    why_reserved: str


@dataclass(frozen=True, slots=True)
class SimulatedRefusal:
    """Why something does not run.

    Attributes:
        reason: one word, `TopologyAffinityError`, `OutOfcpu`.
        text: the whole sentence, the reason first.
    """

    stage: RefusalStage
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class AlignmentRow:
    """At which levels exclusive CPUs are aligned, by the rules of the alignment counters; memory counts for `numa_node`."""

    numa_node: bool
    socket: bool
    uncore_cache: bool
    whole_cores: bool


@dataclass(frozen=True, slots=True)
class SimulatedContainer:
    """A container and what it got.

    Attributes:
        key: `NAMESPACE/POD/CONTAINER`.
        kind: `app`, `init` or `sidecar`.
        status: what became of it.
        exclusive: how many CPUs it has to itself.
        cpus: what it runs on: its own, or the shared pool of that moment; a kernel list.
        mems: NUMA nodes its memory is bound to; empty for any.
        numa_nodes: of `cpus`.
        caches: uncore caches of `cpus`, ids as a list.
        sockets: of `cpus`, ids as a list.
        cores: of how many cores it has CPUs.
        aligned: only of exclusive CPUs; None otherwise.
        preferred: whether the NUMA hint it was placed by was a preferred one; None where nobody was asked.
        devices: ids by resource.
        device_nodes: NUMA nodes of these devices.
        steps: why, in the short codes of a decision.
        refusal: of a refused one; and of one in a namespace that is never refused, which runs in the shared pool.
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
    aligned: AlignmentRow | None = None
    preferred: bool | None = None
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    device_nodes: str = ""
    steps: tuple[str, ...] = ()
    refusal: SimulatedRefusal | None = None


@dataclass(frozen=True, slots=True)
class StepRow:
    """Something that happened, in order.

    Attributes:
        number: from 1.
        line: in the scenario; 0 where the form has no lines.
        action: `run`, `create`, `start`, `stop`, `remove`, `update`, `expect`, `say`.
        target: `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`; the sentence of `say`.
        workload: what the pod comes from, `Deployment default/web`; empty for a pod of its own.
        shape: key into `Simulation.shapes`; only of `run` and `create`.
        qos: the pod's class; only of those two.
        containers: those it created or refused, as they were then.
        problems: what was expected and is not so, a sentence each.
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
class CPUOwner:
    """A CPU at the end.

    Attributes:
        kind: `exclusive`, `shared`, `reserved` (kept for the system, also part of the shared pool where policy has it so),
            `isolated` (by the kernel, the shared pool stays out of it) or `offline`.
        container: key of who has it to itself; empty otherwise.
    """

    cpu: int
    kind: str
    container: str = ""


@dataclass(frozen=True, slots=True)
class FragmentationRow:
    """A NUMA node or an uncore cache at the end.

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
    """Memory of one NUMA node at the end, bytes; only where the Static memory policy promises some.

    Attributes:
        resource: `memory` or `hugepages-SIZE`.
        allocatable: on an empty machine.
        promised: to containers.
    """

    numa_node: int
    resource: str
    allocatable: int
    promised: int


@dataclass(frozen=True, slots=True)
class ShapeCapacity:
    """How many more pods of one shape fit, found by trying until one is refused.

    Attributes:
        shape: key.
        text: what such a pod asks for, `Guaranteed: cpu 4, memory 8Gi`.
        example: who has that shape; empty for one that only `--shape` names.
        pods: how many of it were asked for in the scenario.
        fits: how many more fit now.
        fits_empty: how many fit on the same machine with nothing on it; None where that was not tried, of the rarest of
            very many shapes.
        bounded: False where nothing that is simulated ends the row, or only `fits` many were tried.
        refusal: what ended it; None where nothing did.
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
    """Refusals that are alike: of pods of one shape, for one reason.

    Attributes:
        containers: keys, in order.
        text: the sentence of the first.
    """

    reason: str
    stage: RefusalStage
    shape: str
    containers: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts at the end.

    Attributes:
        pods: asked for.
        pods_placed: all their containers run, or ran.
        pods_partly: some of their containers were refused, others run.
        pods_refused: none runs.
        containers: that run.
        containers_exclusive: of these with CPUs of their own.
        exclusive_cpus, shared_cpus, reserved_cpus, available_cpus: how many; the shared pool includes reserved ones
            where they may be used.
        shared_pool: the pool, a kernel list.
        aligned_numa_node, aligned_socket, aligned_uncore_cache, aligned_whole_cores: of the containers with CPUs of
            their own, how many are aligned.
        fragmentation_numa, fragmentation_cache: over the whole machine, as in `FragmentationRow`.
        memory_promised_bytes: by the Static memory policy.
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
    memory_promised_bytes: int
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
    """What came of the pods of one scenario on one machine with one configuration.

    Attributes:
        scenario: its name.
        file: where it was read.
        shapes: what a pod of each shape asks for, by key.
        steps: all that happened, in order.
        containers: those that run at the end, with what they have then.
        owners: one for every CPU, ascending.
        refused: refusals that are alike, the most frequent first.
        notes: what was not simulated, and what was assumed, a sentence each.
        orders: statistics over orders of the pods; empty where nobody asked.
    """

    scenario: str
    file: str
    machine: Machine
    configuration: Configuration
    shapes: dict[str, str]
    steps: tuple[StepRow, ...]
    containers: tuple[SimulatedContainer, ...]
    owners: tuple[CPUOwner, ...]
    devices: tuple[SimulatedDevice, ...]
    numa_nodes: tuple[FragmentationRow, ...]
    caches: tuple[FragmentationRow, ...]
    memory: tuple[SimulatedMemory, ...]
    capacity: tuple[ShapeCapacity, ...]
    refused: tuple[RefusedRow, ...]
    totals: Totals
    notes: tuple[str, ...] = ()
    orders: tuple[OrderRow, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)
