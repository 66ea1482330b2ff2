"""What is stored of pods, containers and their allocations: frozen values, and the keys that they are found by.

`PodFacts` hold what a pod's own object says, where the exporter tells it. A runtime reports neither the QoS class, nor
which containers are init containers, nor requests of 256 CPUs and more. That is inferred (`nri_plugin.core.requests`), and
facts replace the inference where they are known.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet, NodeMask


class QOSClass(StrEnum):
    """The pod's quality-of-service class."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class Kind(StrEnum):
    """The kind of a container in its pod."""

    APP = "app"
    INIT = "init"
    """It ends before the next container of the pod is created."""
    SIDECAR = "sidecar"
    """A restartable init container: it starts in its turn and runs beside the others."""


class Amounts(Struct, frozen=True):
    """Requests and limits; 0 where none is set.

    Attributes:
        cpu_request_milli: thousandths of a CPU.
        cpu_limit_milli: the same.
        memory_request_bytes: bytes.
        memory_limit_bytes: the same.
        hugepages: (`hugepages-SIZE`, bytes), also those that ask for 0.
    """

    cpu_request_milli: int = 0
    cpu_limit_milli: int = 0
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0
    hugepages: tuple[tuple[str, int], ...] = ()


class ContainerFacts(Struct, frozen=True):
    """One container of a pod's specification."""

    name: str
    kind: Kind = Kind.APP
    amounts: Amounts = Amounts()


class PodFacts(Struct, frozen=True):
    """The part of a pod's specification that decides allocations.

    Attributes:
        uid: the pod's uid as the runtime knows it.
        qos: its class.
        containers: init containers and sidecars in their order, then app containers; no ephemeral ones.
        pod_resources: the requests and limits of the pod as a whole (`spec.resources`); None where it has none.
    """

    uid: str
    qos: QOSClass
    containers: tuple[ContainerFacts, ...] = ()
    pod_resources: Amounts | None = None

    def container(self, name: str) -> ContainerFacts | None:
        """The container of that name; None where the specification has none, as for an ephemeral container."""
        return next((one for one in self.containers if one.name == name), None)

    def names(self, *kinds: Kind) -> Iterator[str]:
        """The containers of these kinds."""
        return (one.name for one in self.containers if one.kind in kinds)


class Phase(StrEnum):
    """The phase of a container, by the events seen, never by the runtime's state field."""

    CREATING = "creating"
    """Our answer to CreateContainer is sent or being sent; the creation may still fail."""
    CREATED = "created"
    """It exists in the runtime; it may have no cgroup yet."""
    RUNNING = "running"
    STOPPED = "stopped"


class CgroupRef(Struct, frozen=True):
    """Names a cgroup the way the runtime does.

    Attributes:
        parent: the pod's cgroup parent, `/kubepods/burstable/podUID` or a systemd slice.
        path: the container's cgroups path, `<parent>/<id>` or `<slice>:<prefix>:<id>`; empty means
            the parent itself.
    """

    parent: str
    path: str = ""


@lru_cache(maxsize=64)
def qos_slice(name: str) -> CgroupRef:
    """The slice of that name; equal ones are the same object, which sets of them compare at once."""
    return CgroupRef(name)


_BOUNDING = ("burstable", "besteffort")


@lru_cache(maxsize=8192)
def slice_above(name: str) -> CgroupRef | None:
    """The Burstable or BestEffort slice above a cgroup, by its name alone; None where the name does not prove it.

    The slice has the name that `core.requests.qos_slices` gives it. What the kernel grants to the slice bounds the cgroup.

    Args:
        name: a pod's cgroup parent, or the cgroups path of a container.
    """
    parent, _, scope = name.partition(":")
    if scope.count(":") == 1 and "/" not in scope:
        name = parent
    if name.endswith(".slice"):
        parts = name.split("/")
        # Directories before the slices belong to a node that is itself a container; the slice is looked for without them.
        head, found, rest = parts[-1].partition("kubepods-")
        is_below = all(part.endswith(".slice") for part in parts if part)
        for word in _BOUNDING if found and is_below else ():
            if rest.startswith(f"{word}-"):
                return qos_slice(f"{head}kubepods-{word}.slice")
        return None
    head, found, rest = name.partition("/kubepods/")
    # No part begins with a dot in most names: splitting them would take longer than all else.
    has_dots = "/." in f"/{name}" and {".", ".."} & set(name.split("/"))
    for word in _BOUNDING if found and not has_dots else ():
        if rest.startswith(f"{word}/"):
            return qos_slice(f"{head}/kubepods/{word}")
    return None


class MemoryBlock(Struct, frozen=True):
    """Memory allocated to a container.

    Attributes:
        nodes: NUMA nodes it is spread over.
        resource: `memory` or `hugepages-SIZE`.
        size_bytes: how much, over all `nodes`.
    """

    nodes: NodeMask
    resource: str
    size_bytes: int


class Size(Struct, frozen=True):
    """The size of a container before or after a resize; fields as in `Allocation`."""

    cpus: CPUSet
    grown: tuple[CPUSet, ...] = ()
    cpu_milli: int = 0
    memory: tuple[MemoryBlock, ...] = ()


class Resize(Struct, frozen=True):
    """A resize that the runtime has not confirmed."""

    before: Size
    after: Size


class Allocation(Struct, frozen=True):
    """The CPUs and memory of one container of one pod; ends with the pod.

    Attributes:
        cpus: its exclusive CPUs; empty when it runs in the shared pool.
        mems: NUMA nodes its memory is bound to; empty when it is not bound.
        memory: allocated memory, by resource.
        cpu_milli: the CPU request it was made for.
        affinity: merged NUMA hint, empty for "any".
        preferred: whether that hint was preferred.
        grown: those of `cpus` that came with resizes, in their order; the others it got at its start.
        resize: a resize that the runtime has not confirmed. Until then `cpus` holds both sizes.
        is_init: it is that of a plain init container. Later containers of its pod may hold the same CPUs, because an
            init container ends before they start.
        is_pod_shared: `cpus` are the shared pool of a pod with resources of its own: other containers of the pod run
            there too, and no other pod.
        claim: the CDI names of the resource claims by which another program gave it `cpus`; empty for CPUs of ours.
    """

    cpus: CPUSet = NO_CPUS
    mems: NodeMask = NO_NODES
    memory: tuple[MemoryBlock, ...] = ()
    cpu_milli: int = 0
    affinity: NodeMask = NO_NODES
    preferred: bool = True
    grown: tuple[CPUSet, ...] = ()
    resize: Resize | None = None
    is_init: bool = False
    is_pod_shared: bool = False
    claim: str = ""

    def settled(self, *, is_done: bool) -> "Allocation":
        """With one of the two sizes of an unconfirmed resize: the later one when it was done."""
        if self.resize is None:
            return self
        size = self.resize.after if is_done else self.resize.before
        return replace(
            self, cpus=size.cpus, grown=size.grown, cpu_milli=size.cpu_milli, memory=size.memory, resize=None
        )

    def settled_by(self, stored: CPUSet) -> "Allocation":
        """With the size that the cpuset tells which the runtime has stored; CPUs that were offline then are missing there."""
        if self.resize is None:
            return self
        before, after = self.resize.before.cpus, self.resize.after.cpus
        is_before = stored <= before and not after <= before
        is_part = bool(stored) and stored <= after and not is_before
        return self.settled(is_done=is_part or stored == after)

    @property
    def in_force(self) -> CPUSet:
        """The CPUs its cgroup should hold: those before an unconfirmed resize."""
        return self.resize.before.cpus if self.resize else self.cpus


class Regime(StrEnum):
    """The rules by which the containers of a pod are admitted, settled with its first one.

    A pod keeps its regime until it ends. A container of it that is created again gets what it had, whatever the options are
    by then, and whatever became known of its pod.
    """

    EACH = "each"
    """Each container by its own request: the pod has no resources of its own, or its object was not known."""
    FOUND = "found"
    """As `EACH`, of a pod that was found running without a record: the rules that it was admitted by are not known."""
    OFF = "off"
    """The pod has resources of its own, and its containers hold nothing."""
    CLAIMS = "claims"
    """The pod has resources of its own, and each container owns its claim (`nri_plugin.policy.pod_level`)."""
    WHOLE = "whole"
    """The pod owns its resources as a whole, and its containers share them."""


class PodRefusal(Struct, frozen=True):
    """Why a pod whose object is known was refused last; kept until a container is admitted, or until the sandbox ends.

    Attributes:
        reason: the kubelet's reason word.
        message: the kubelet's message, and ours behind it.
        with_devices: devices of other containers of the pod were known.
        is_final: the exporter sets the pod to Failed, so no container of it is admitted any more.
    """

    reason: str
    message: str
    with_devices: bool = False
    is_final: bool = False


class PodRecord(Struct, frozen=True):
    """A pod that exists.

    Attributes:
        uid: the Kubernetes uid; pods are keyed by it.
        sandbox_id: its current sandbox.
        cpu_milli: the pod's total request, None when the runtime did not tell.
        memory_bytes: the pod's total memory limit, None when not told.
        hugepages: the pod's totals, (`hugepages-SIZE`, bytes).
        affinity: the merged hint of the whole pod under pod scope; None until its first container.
        affinity_preferred: whether that hint was preferred.
        devices_counted: that hint was made with the devices of all containers of the pod.
        is_admitted: all its containers were placed at once, before the first was created. Those that are not created
            yet have their allocations already.
        sandbox_path: the cgroups path of its sandbox (the pause container); empty when not told.
        limit_milli: the CPU limit of all its containers together, 0 for none.
        annotations: those that may ask for something here, (key, value); see `nri_plugin.core.requests`.
        run_seen: RunPodSandbox was seen, so its end will be reported too. Pods known only from Synchronize may end
            without an event; see `nri_plugin.agent.serving.handler`.
        facts: from the pod's object, kept where a later decision may need them; None otherwise.
        regime: the rules by which its containers are admitted; None until the first one is created.
        vm_handler: the handler of its runtime class, where that runs containers in a virtual machine; else empty.
        refusal: why it was refused; None where its last container was admitted, or its object was not known.
    """

    uid: str
    sandbox_id: str
    name: str = ""
    namespace: str = ""
    qos: QOSClass = QOSClass.BEST_EFFORT
    cgroup_parent: str = ""
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    hugepages: tuple[tuple[str, int], ...] = ()
    affinity: NodeMask | None = None
    affinity_preferred: bool = True
    sandbox_path: str = ""
    limit_milli: int = 0
    annotations: tuple[tuple[str, str], ...] = ()
    run_seen: bool = False
    facts: PodFacts | None = None
    devices_counted: bool = False
    is_admitted: bool = False
    regime: Regime | None = None
    vm_handler: str = ""
    refusal: PodRefusal | None = None


class ContainerRecord(Struct, frozen=True):
    """A container that exists in the runtime.

    Attributes:
        id: the runtime's id; records are keyed by it.
        pod_uid: with `name`, the key of its allocation.
        stored_cpus: the cpuset the runtime has on record and re-applies at any update.
        stored_mems: the same for memory nodes.
        limit_milli: its CPU limit, 0 for none; the runtime does not tell any more once its quota is lifted. Of a container
            that shares although it was resized to whole CPUs, the limit before.
        unplaced: why it does not have what policy would give it: it runs in the shared pool although it should be placed or
            refused, or it keeps its CPUs although it was resized.
        affinity: the merged hint of a container without an allocation (else the allocation has it); empty for "any",
            None where no provider was asked.
        affinity_preferred: whether that hint was preferred.
    """

    id: str
    pod_uid: str
    name: str
    phase: Phase
    cgroup: CgroupRef
    stored_cpus: CPUSet = NO_CPUS
    stored_mems: NodeMask = NO_NODES
    limit_milli: int = 0
    unplaced: str = ""
    affinity: NodeMask | None = None
    affinity_preferred: bool = True

    @property
    def key(self) -> str:
        """Key of its allocation."""
        return allocation_key(self.pod_uid, self.name)


def allocation_key(pod_uid: str, container: str) -> str:
    """`UID/NAME`; `owner_of` is the inverse.

    A uid may contain slashes: manifests of static pods and `crictl` may set any. In Kubernetes the name of a container may
    not; one that does is escaped, so that the last slash always separates the two.
    """
    if "/" in container or "%" in container:
        container = container.replace("%", "%25").replace("/", "%2F")
    return f"{pod_uid}/{container}"


def owner_of(key: str) -> tuple[str, str]:
    """The uid of the pod, and the name of the container, that `allocation_key` made the key of."""
    pod_uid, _, container = key.rpartition("/")
    if "%" in container:
        container = container.replace("%2F", "/").replace("%25", "%")
    return pod_uid, container


def is_whole_pod(key: str) -> bool:
    """Whether the key is that of a pod as a whole, which names no container."""
    return key.endswith("/")


def named(pods: Mapping[str, "PodRecord"], key: str) -> str:
    """NAMESPACE/POD/CONTAINER of an allocation key, NAMESPACE/POD of that of a whole pod; the key itself where the name of the pod is not known."""
    uid, container = owner_of(key)
    pod = pods.get(uid)
    if pod is None or not pod.name:
        return key
    return f"{pod.namespace}/{pod.name}/{container}" if container else f"{pod.namespace}/{pod.name}"


def pod_of(key: str) -> str:
    """The uid of the pod that an allocation key belongs to."""
    return key.rpartition("/")[0]
