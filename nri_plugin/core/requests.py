"""The request of a container: from the runtime's messages, the pod's facts and its annotations.

A runtime sends neither the QoS class nor the requests. Both follow from what it sends: the class from the cgroup parent,
the CPU request from the shares. Where the pod's own object is known (`PodFacts`), it wins over the inference. Annotations
change a request last.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from nri_plugin.core.annotations import (
    ISOLATED_CPUS,
    ISOLATION,
    SMT_ODD_COUNTS,
    check_quiet,
    exclusive_cpus,
    given_annotations,
    word_of,
)
from nri_plugin.core.claims import NO_CLAIM, CPUClaim, claim_in
from nri_plugin.model import bounds
from nri_plugin.model.options import (
    CPUManagerPolicy,
    IsolatedWish,
    Isolation,
    MemoryManagerPolicy,
    Options,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import (
    CgroupRef,
    ContainerRecord,
    Kind,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
    Regime,
    allocation_key,
    qos_slice,
)
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.device_hints import DeviceResource
from nri_plugin.policy.pod_level import has_own_resources, is_eligible, pod_cpus, pod_memory
from nri_plugin.wire.nri.events import NRIEvent, Synchronize
from nri_plugin.wire.nri.messages import Container, Pod, Resources

BY_THEMSELVES = frozenset({Regime.EACH, Regime.FOUND})
"""The rules by which each container counts by its own request alone."""


# ----------------------------------------------------------------------------------------------------
# The request of one container, from its shares, its quota and the facts of its pod.

MIN_SHARES = 2
"""The shares that the kubelet writes for "no request" (kubelet v1.36 cm/helpers_linux.go MinShares)."""

MAX_SHARES = 262144
"""Where shares stop, 256 CPUs; a larger request looks the same (same source, MaxShares)."""


class ContainerRequest(Struct, frozen=True):
    """The request of one container.

    Attributes:
        pod_uid: pod it belongs to.
        name: its name in the pod.
        qos: the pod's QoS class.
        cpu_milli: CPU request; None when the shares are at their maximum and no limit tells it.
        memory_bytes: memory limit, which is also the request of a Guaranteed container; 0 = none.
        hugepages: (`hugepages-SIZE`, bytes) for each page size with a limit above zero.
        smt_odd_counts: its own rule for a count that does not fill its last core; None for the node's.
        wanted_exclusive: exclusive CPUs asked for by annotation; 0 = none.
        devices: the devices it has.
        pod_devices: the devices of all containers of its pod, where they are known.
        isolated: whether it wants CPUs that the kernel isolates; None when it does not say.
        claim: the CPUs that another program gave it.
        pod_level: its pod sets resources for the pod as a whole. The static policies then allocate nothing to its
            containers, whatever they ask for.
    """

    pod_uid: str
    name: str
    qos: QOSClass
    cpu_milli: int | None = 0
    memory_bytes: int = 0
    hugepages: tuple[tuple[str, int], ...] = ()
    smt_odd_counts: SMTOddCounts | None = None
    wanted_exclusive: int = 0
    devices: tuple[DeviceResource, ...] = ()
    pod_devices: tuple[DeviceResource, ...] = ()
    isolated: IsolatedWish | None = None
    claim: CPUClaim = NO_CLAIM
    pod_level: bool = False

    @property
    def key(self) -> str:
        """Key of its allocation."""
        return allocation_key(self.pod_uid, self.name)

    @property
    def exclusive_cpus(self) -> int:
        """Exclusive CPUs it asks for: whole CPUs of a Guaranteed pod, or the number in its annotation.

        Source: kubelet v1.36 policy_static.go, guaranteedCPUs, and Allocate with PodLevelResourceManagers off.
        """
        if not self._may_allocate or self.cpu_milli is None or self.cpu_milli % 1000:
            return self.wanted_exclusive
        return self.cpu_milli // 1000

    @property
    def memory_by_resource(self) -> dict[str, int]:
        """Bytes by resource name, for the memory policy; empty unless Guaranteed."""
        if not self._may_allocate:
            return {}
        return (
            {"memory": self.memory_bytes, **dict(self.hugepages)}
            if self.memory_bytes
            else dict(self.hugepages)
        )

    @property
    def _may_allocate(self) -> bool:
        return self.qos is QOSClass.GUARANTEED and not self.pod_level


def container_request(options: Options, pod: PodRecord, container: Container) -> ContainerRequest:
    """The request of `container` of `pod`.

    An exact value from the runtime comes before the pod's facts. After a resize in place it is the size that the kubelet
    grants, while the pod's object may already ask for another one.
    """
    said, known = container.resources, pod.facts.container(container.name) if pod.facts else None
    request = ContainerRequest(
        pod_uid=pod.uid,
        name=container.name,
        qos=pod.qos,
        cpu_milli=cpu_milli(said, pod.qos),
        memory_bytes=said.memory_limit_bytes or 0,
        hugepages=_hugepages(said),
        claim=claim_in(container.env) if container.env else NO_CLAIM,
        pod_level=_is_pod_level(options, pod, container.name),
    )
    if known is None:
        return request
    told = known.amounts
    # Memory and huge pages come from the facts where the runtime tells none: it knows limits, not requests.
    return replace(
        request,
        cpu_milli=request.cpu_milli if _tells_request(said) else told.cpu_request_milli,
        memory_bytes=request.memory_bytes or told.memory_request_bytes,
        hugepages=told.hugepages or request.hugepages,
    )


def regime_of(options: Options, pod: PodRecord) -> Regime:
    """The rules by which the containers of the pod are admitted: those of its first one, else those of now."""
    return pod.regime or regime_now(options, pod.facts)


def regime_now(options: Options, facts: PodFacts | None) -> Regime:
    """The rules for a pod with these facts of which no container was created.

    Under the topology policy none the scope has no effect. A pod with an empty `spec.resources` has none of its
    own: Kubernetes 1.36 makes it BestEffort, so nothing is allocated, and from 1.37 its containers decide.
    """
    if facts is None or not has_own_resources(facts):
        return Regime.EACH
    if not options.pod_level_managers:
        return Regime.OFF
    return Regime.WHOLE if gives_wholes(options) else Regime.CLAIMS


def gives_wholes(options: Options) -> bool:
    """Whether the first container of a pod with resources of its own gets CPUs and memory for all of them."""
    return (
        options.pod_level_managers
        and options.topology_manager_scope is TopologyManagerScope.POD
        and options.topology_manager_policy is not TopologyManagerPolicy.NONE
    )


def lacks_its_resources(options: Options, pod: PodRecord) -> bool:
    """Whether the pod was found running, and should own resources as a whole that could not be rebuilt."""
    is_found = pod.regime is Regime.FOUND and pod.facts is not None
    return is_found and regime_now(options, pod.facts) is Regime.WHOLE


def owned_as_whole(options: Options, facts: PodFacts) -> tuple[int, Mapping[str, int]]:
    """The number of CPUs, and the bytes by resource, that the policies allocate to the pod as a whole."""
    allocates_cpus = options.cpu_manager_policy is CPUManagerPolicy.STATIC
    allocates_memory = options.memory_manager_policy is MemoryManagerPolicy.STATIC
    return pod_cpus(facts) if allocates_cpus else 0, pod_memory(facts) if allocates_memory else {}


def _tells_request(resources: Resources) -> bool:
    """Whether its shares tell the CPU request exactly: neither the minimum nor the maximum."""
    return MIN_SHARES < (resources.cpu_shares or 0) < MAX_SHARES


def _is_pod_level(options: Options, pod: PodRecord, name: str) -> bool:
    """Whether the static policies allocate nothing to the container for itself, because its pod has resources of its own.

    With the feature gate those containers count that set CPU and memory to equal requests and limits.
    """
    regime = regime_of(options, pod)
    if pod.facts is None or regime in BY_THEMSELVES:
        return False
    return regime is Regime.OFF or _shares_its_pod(pod.facts, name)


def _shares_its_pod(facts: PodFacts, name: str) -> bool:
    known = facts.container(name)
    return known is None or not is_eligible(facts, known)


def with_late_facts(pod: PodRecord, request: ContainerRequest) -> ContainerRequest:
    """The request of a container that holds nothing, in a pod whose object became known after its first container.

    The kubelet gives a container without limits those of its pod. The runtime then reports a sharing container as one
    that asks for all of the pod, so the pod's object decides whether the container may own CPUs and memory.

    Source: kubelet v1.36 pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, getCPULimit and getMemoryLimit.
    """
    facts = pod.facts
    if facts is None or not has_own_resources(facts) or not _shares_its_pod(facts, request.name):
        return request
    return replace(request, pod_level=True)


def _hugepages(resources: Resources) -> tuple[tuple[str, int], ...]:
    """Source: kubelet names sizes `2MB` towards the runtime and `hugepages-2Mi` in Kubernetes."""
    return tuple(
        (f"hugepages-{size.removesuffix('B')}i", limit)
        for size, limit in resources.hugepage_limits
        if limit > 0
    )


def cpu_milli(resources: Resources | None, qos: QOSClass) -> int | None:
    """The CPU request. From 256 CPUs only the limit tells it; None where there is no limit."""
    if resources is None:
        return 0
    # Only a Guaranteed pod gets exclusive CPUs, so only there a saturated value must not be taken for the request.
    if (resources.cpu_shares or 0) < MAX_SHARES or qos is not QOSClass.GUARANTEED:
        return milli_from_shares(resources.cpu_shares)
    return limit_milli(resources) or None


def milli_from_shares(shares: int | None) -> int:
    """The CPU request in thousandths that the kubelet converted to `shares`; 0 = no request.

    The kubelet rounds down, so rounding up restores the request exactly for 3 to 256000.
    """
    if shares is None or shares <= MIN_SHARES:
        return 0
    return -(-shares * 1000 // 1024)


def limit_milli(resources: Resources | None) -> int:
    """The CPU limit that the CFS quota stands for, in thousandths; 0 for none."""
    quota, period = (resources.cpu_quota_us or 0, resources.cpu_period_us or 0) if resources else (0, 0)
    return quota * 1000 // period if quota > 0 and period > 0 else 0


def has_too_many_devices(*given: Iterable[DeviceResource]) -> bool:
    """Whether these lists, of a container and perhaps of its whole pod, are more than hints are made of.

    It stops at the first device that exceeds a bound.
    """
    chars, ids, names = 0, set(), set()
    for resource in chain(*given):
        names.add(resource.name)
        chars += len(resource.name)
        for device in resource.devices:
            ids.add(device.id)
            chars += len(device.id)
            if len(ids) > bounds.DEVICES or chars > bounds.DEVICE_CHARS:
                return True
        if len(names) > bounds.DEVICE_RESOURCES:
            return True
    return False


def annotated(options: Options, pod: PodRecord, request: ContainerRequest) -> ContainerRequest:
    """`request` with the pod's annotations applied.

    Raises:
        AnnotationError: an annotation cannot be read, or does not fit this container.
    """
    given = given_annotations(options, pod)
    if not given:
        return request
    # These are read where they are applied; here only wrong words and contradictions are refused.
    word_of(given, ISOLATION, request.name, Isolation)
    check_quiet(given, request.name)
    return replace(
        request,
        smt_odd_counts=word_of(given, SMT_ODD_COUNTS, request.name, SMTOddCounts),
        wanted_exclusive=exclusive_cpus(given, request.name, request.qos, request.cpu_milli),
        isolated=word_of(given, ISOLATED_CPUS, request.name, IsolatedWish),
    )


# ----------------------------------------------------------------------------------------------------
# The request of a whole pod: the most that its containers need at once.


def pod_request(options: Options, pod: PodRecord) -> ContainerRequest:
    """The whole pod's request in the form of a container's, for pod scope.

    With facts it is the peak of each resource over the pod's life; huge pages only of sizes that an app container asks
    for. Without facts, or with those of another size, it is the total that the runtime told, which counts every container
    and fractions of CPUs.
    """
    if pod.facts is None or not is_of_its_size(pod):
        return ContainerRequest(pod.uid, "", pod.qos, pod.cpu_milli, pod.memory_bytes or 0, pod.hugepages)
    requests = spec_requests(options, pod)
    # As in the kubelet, huge pages count by the sizes that app containers use.
    apps = [one.amounts for one in pod.facts.containers if one.kind is Kind.APP]
    sizes = dict.fromkeys(size for amounts in apps for size, _ in amounts.hugepages)
    pages = {size: [dict(one.hugepages).get(size, 0) for one in requests] for size in sizes}
    return ContainerRequest(
        pod.uid,
        "",
        pod.qos,
        peak(pod.facts, [one.cpu_milli or 0 for one in requests]),
        peak(pod.facts, [one.memory_bytes for one in requests]),
        tuple((size, peak(pod.facts, amounts)) for size, amounts in pages.items()),
        pod_level=regime_of(options, pod) not in BY_THEMSELVES,
    )


def spec_requests(options: Options, pod: PodRecord) -> tuple[ContainerRequest, ...]:
    """The requests of all containers of the pod by its facts, in their order; none without facts."""
    return tuple(
        with_late_facts(
            pod,
            ContainerRequest(
                pod.uid,
                one.name,
                pod.qos,
                one.amounts.cpu_request_milli,
                one.amounts.memory_request_bytes,
                one.amounts.hugepages,
                pod_level=_is_pod_level(options, pod, one.name),
            ),
        )
        for one in (pod.facts.containers if pod.facts else ())
    )


def peak(facts: PodFacts, amounts: Sequence[int]) -> int:
    """The most that the pod's containers need at once.

    Args:
        facts: the pod's.
        amounts: the need of each container, in the order of the facts.
    """
    pairs = list(zip(facts.containers, amounts, strict=True))
    inits = [(amount, one.kind is Kind.SIDECAR) for one, amount in pairs if one.kind is not Kind.APP]
    return pod_total(inits, [amount for one, amount in pairs if one.kind is Kind.APP])


def is_of_its_size(pod: PodRecord) -> bool:
    """Whether the amounts in the pod's object are those with which the kubelet creates its containers.

    A pod that is resized before the kubelet has begun with it has the new amounts in its object, and the kubelet creates
    it with those that it has allocated. The total that the runtime reports is the kubelet's.
    """
    facts = pod.facts
    if facts is None or has_own_resources(facts) or pod.qos is not QOSClass.GUARANTEED:
        return True
    amounts = [one.amounts for one in facts.containers]
    return all(
        told in (None, 0, peak(facts, known))
        for told, known in (
            (pod.cpu_milli, [one.cpu_request_milli for one in amounts]),
            (pod.memory_bytes, [one.memory_limit_bytes for one in amounts]),
        )
    )


def pod_total(inits: Iterable[tuple[int, bool]], apps: Iterable[int]) -> int:
    """The peak of one resource over the life of a pod.

    Args:
        inits: (amount, restartable) of each init container, in order. A plain one runs beside the restartable ones
            before it. These go on running beside the app containers.
        apps: amount of each app container.

    Source: kubelet v1.36 cpumanager podGuaranteedCPUs and memorymanager getPodRequestedResources.
    """
    running = most = 0
    for amount, restartable in inits:
        # Each init container runs beside the sidecars before it; its own end frees it, unless it is a sidecar.
        most = max(most, running + amount)
        if restartable:
            running += amount
    return max(most, running + sum(apps))


# ----------------------------------------------------------------------------------------------------
# The records of pods and containers in the state.


def pod_record(pod: Pod, options: Options, known: PodRecord | None = None, *, run_seen: bool) -> PodRecord:
    """The record of a pod, from the runtime's message.

    Args:
        pod: the message.
        options: tell in which namespaces annotations are heard.
        known: an earlier record of the pod; its hint, its rules and its facts stay.
        run_seen: see `PodRecord`.
    """
    qos = qos_of(pod.cgroup_parent)
    resources, former = pod.resources, known or _UNKNOWN
    record = PodRecord(
        uid=pod_uid(pod),
        sandbox_id=pod.id,
        name=pod.name,
        namespace=pod.namespace,
        qos=qos,
        cgroup_parent=pod.cgroup_parent,
        cpu_milli=cpu_milli(resources, qos) if resources is not None else None,
        memory_bytes=resources.memory_limit_bytes if resources is not None else None,
        hugepages=_hugepages(resources) if resources is not None else (),
        sandbox_path=pod.cgroups_path,
        limit_milli=limit_milli(resources),
        annotations=heard_annotations(pod, options),
        run_seen=run_seen,
        affinity=former.affinity,
        affinity_preferred=former.affinity_preferred,
        devices_counted=former.devices_counted,
        is_admitted=former.is_admitted,
        regime=former.regime,
        vm_handler=vm_handler(pod),
        # A new sandbox is a new try.
        refusal=former.refusal if former.sandbox_id == pod.id else None,
    )
    return informed(record, former.facts)


_UNKNOWN = PodRecord(uid="", sandbox_id="")

_VM_WORDS = ("kata", "-vm", "vm-")
"""Parts of the names that handlers of runtime classes with a virtual machine usually have."""


def vm_handler(pod: Pod) -> str:
    """The handler of the pod's runtime class, where its name says that containers run in a virtual machine."""
    handler = pod.runtime_handler
    return bounds.name(handler) if handler and any(word in handler for word in _VM_WORDS) else ""


def pod_uid(pod: Pod) -> str:
    """The pod's uid; the id of its sandbox where it has none."""
    return pod.uid or pod.id


def told_apart(state: State, event: NRIEvent) -> NRIEvent:
    """The event, with a uid of its own for each pod whose uid belongs to another living pod.

    The kubelet never makes two pods of one uid. `crictl` does, whose examples all have the same, and so does a node that was
    restored from a copy. A sandbox that is made anew for a pod has its name and namespace.
    """
    if isinstance(event, Synchronize):
        names = {pod.uid: pod for pod in reversed(event.pods)}
        names |= {pod.uid: pod for pod in event.pods if _is_of(state.pods.get(pod.uid), pod)}
        pods = tuple(_named_apart(state, pod, names.get(pod.uid)) for pod in event.pods)
        return event if pods == event.pods else dataclasses.replace(event, pods=pods)
    pod: Pod | None = getattr(event, "pod", None)
    known = state.pods.get(pod.uid) if pod is not None else None
    if pod is None or (known is not None and known.sandbox_id == pod.id):
        return event
    apart = _named_apart(state, pod, known)
    return event if apart is pod else dataclasses.replace(event, pod=apart)  # type: ignore[arg-type]


def _named_apart(state: State, pod: Pod, owner: Pod | PodRecord | None) -> Pod:
    own_uid = bounds.name(f"{pod.uid}@{pod.namespace}.{pod.name}")
    if not pod.uid or (own_uid not in state.pods and (owner is None or _is_of(owner, pod))):
        return pod
    return replace(pod, uid=own_uid)


def _is_of(one: Pod | PodRecord | None, pod: Pod) -> bool:
    """Whether both are sandboxes of the same pod; an imported pod may have no name."""
    if one is None:
        return False
    return not (one.name and pod.name) or (one.namespace, one.name) == (pod.namespace, pod.name)


def heard_annotations(pod: Pod, options: Options) -> tuple[tuple[str, str], ...]:
    """The pod's annotations that are heard; none outside the configured namespaces."""
    if not pod.annotations or pod.namespace not in options.annotation_namespaces:
        return ()
    kept, _ = bounds.own_annotations(pod.annotations)
    return tuple(kept.items())


def informed(pod: PodRecord, facts: PodFacts | None) -> PodRecord:
    """The pod's record with these facts, which win over the inference; unchanged without facts."""
    return pod if facts is None else replace(pod, facts=facts, qos=facts.qos)


def remembered(pod: PodRecord) -> PodRecord:
    """The record as it is stored: facts only of a pod that may hold an allocation when a later decision needs them."""
    may_hold = pod.qos is QOSClass.GUARANTEED or pod.annotations or pod.qos is not qos_of(pod.cgroup_parent)
    return pod if may_hold or pod.facts is None else replace(pod, facts=None)


def without_admission(pod: PodRecord) -> PodRecord:
    """The record of a pod that holds nothing any more: its next container is the first of a new admission."""
    return replace(
        pod, affinity=None, affinity_preferred=True, devices_counted=False, is_admitted=False, regime=None
    )


def container_record(
    pod: PodRecord,
    container: Container,
    phase: Phase,
    known: ContainerRecord | None = None,
    *,
    unplaced: str = "",
    stored: tuple[CPUSet, NodeMask] | None = None,
) -> ContainerRecord:
    """The record of a container, from the runtime's message.

    Args:
        pod: its pod.
        container: the message.
        phase: by the event.
        known: an earlier record, for the fields that the message does not tell.
        unplaced: why it runs without a place, where there is no earlier record.
        stored: the CPUs and memory nodes that the runtime will store; None for those in the message.
    """
    cpus, mems = stored or (stored_cpus(container.resources), stored_mems(container.resources))
    return ContainerRecord(
        id=container.id,
        pod_uid=pod.uid,
        name=container.name,
        phase=phase,
        cgroup=CgroupRef(pod.cgroup_parent, container.cgroups_path),
        stored_cpus=cpus,
        stored_mems=mems,
        # A lifted quota no longer tells the limit.
        limit_milli=limit_milli(container.resources) or (known.limit_milli if known else 0),
        unplaced=known.unplaced if known else unplaced,
        affinity=known.affinity if known else None,
        affinity_preferred=known.affinity_preferred if known else True,
    )


def stored_cpus(resources: Resources) -> CPUSet:
    """The cpuset that the runtime reports; none where it cannot be parsed."""
    return _cpus(resources.cpus) if resources.cpus else NO_CPUS


def stored_mems(resources: Resources) -> NodeMask:
    """The memory nodes that the runtime reports; none where the list cannot be parsed."""
    try:
        return NodeMask.parse(resources.mems) if resources.mems else NO_NODES
    except ValueError:
        return NO_NODES


@lru_cache(maxsize=64)
def _cpus(text: str) -> CPUSet:
    # Thousands of containers have the shared pool.
    try:
        return CPUSet.parse(text)
    except ValueError:
        return NO_CPUS


# ----------------------------------------------------------------------------------------------------
# Cgroup parents: they tell the QoS class of a pod, and the slices of all pods.

_SLICE = ".slice"
_KUBEPODS = "kubepods"
_CLASSES = ("burstable", "besteffort")


def qos_of(cgroup_parent: str) -> QOSClass:
    """QoS class by the pod's cgroup parent; BestEffort outside the kubelet's tree, so nothing is allocated there.

    Source: kubelet v1.36 cm/qos_container_manager_linux.go: Guaranteed pods sit directly below
        `kubepods`, the others below a slice named after their class.
    """
    if _KUBEPODS not in cgroup_parent or "besteffort" in cgroup_parent:
        return QOSClass.BEST_EFFORT
    return QOSClass.BURSTABLE if "burstable" in cgroup_parent else QOSClass.GUARANTEED


@lru_cache(maxsize=4096)
def slice_pattern(cgroup_parent: str) -> str:
    """The pattern for `qos_slices`, from the cgroup parent of any pod; empty outside the kubelet's tree.

    `/kubepods/burstable/podUID` and `/kubepods/podUID` both give `/kubepods/{}`, `kubepods-podUID.slice` gives
    `kubepods-{}.slice`. All pods of a node give the same pattern, so it is cached.
    """
    head, found, _ = cgroup_parent.rpartition("/")[2].partition(_KUBEPODS)
    if found and cgroup_parent.endswith(_SLICE):
        return f"{head}{_KUBEPODS}-{{}}{_SLICE}"
    head, found, _ = cgroup_parent.partition(f"/{_KUBEPODS}/")
    return f"{head}/{_KUBEPODS}/{{}}" if found else ""


@lru_cache(maxsize=64)
def qos_slices(pattern: str) -> tuple[CgroupRef, ...]:
    """The cgroups of the Burstable and of the BestEffort pods; none for the empty pattern."""
    return tuple(qos_slice(pattern.replace("{}", word)) for word in _CLASSES) if pattern else ()
