"""Admission of a pod as a whole, at the creation of its first container.

Where the pod's object is known, all its containers are placed at once: init containers, sidecars and app containers, in the
order in which the kubelet admits them. Either all fit, and all are allocated, or the creation is refused and nothing is
allocated. So no pod runs in part for ever, and no other pod takes what a later container was admitted with.

Containers that exist already, or that hold an allocation, are left as they are: facts may come after the first container,
and the rest of the pod is then placed around what it holds.

Differs: a pod with more containers than `MOST_CONTAINERS`, a pod in a namespace that is never refused, and a pod whose
    object is not known are admitted container by container, so such a pod may run in part.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from nri_plugin.core.hint_providers import (
    OWN,
    Question,
    cpus,
    memory,
    memory_request,
    memory_state_of,
    tables_of,
)
from nri_plugin.core.placement import (
    Placement,
    exclusive_count,
    leave_a_pool,
    memory_under,
    place,
    terms_of,
    with_a_cpu,
)
from nri_plugin.core.requests import ContainerRequest, annotated, pod_request, spec_requests
from nri_plugin.core.reuse import is_plain_init
from nri_plugin.model.errors import (
    AdmissionError,
    EmptyPodSharedPoolError,
    InsufficientCPUsError,
    InsufficientMemoryError,
)
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Node,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.refusals import AdmissionRefusal, PodMemoryShortage
from nri_plugin.model.sets import NO_NODES, CPUSet
from nri_plugin.model.state import Allocation, Kind, PodFacts, PodRecord, State, allocation_key, pod_of
from nri_plugin.policy.device_hints import DeviceResource
from nri_plugin.policy.hints import HintSet
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.policy.merge import MergedHint
from nri_plugin.policy.merge import admit as admit_hint
from nri_plugin.policy.pod_level import (
    has_own_resources,
    pod_cpus,
    pod_memory,
    refuse_empty_cpu_pool,
    refuse_empty_memory_pool,
    sets_of,
    take_block,
)

MOST_CONTAINERS = 128
"""The containers that are placed at once: the runtime waits meanwhile. The API server sets no limit."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """The container of a pod that does not fit.

    Attributes:
        state: with everything that fitted before it.
        request: its request.
        refusal: why it does not fit.
    """

    state: State
    request: ContainerRequest
    refusal: AdmissionRefusal


def admits_whole(node: Node, pod: PodRecord) -> bool:
    """Whether the containers of this pod are placed at once."""
    facts = pod.facts
    return (
        facts is not None
        and 1 < len(facts.containers) <= MOST_CONTAINERS
        and pod.namespace not in node.options.never_refuse
    )


def admit(
    node: Node,
    state: State,
    pod: PodRecord,
    request: ContainerRequest,
    devices: Mapping[str, tuple[DeviceResource, ...]] = MappingProxyType({}),
) -> Placement | Unfit:
    """Place a container that is created, and with it the containers of its pod that are not there yet.

    Args:
        node: the machine and the options.
        state: with the pod's record.
        pod: its record, with its facts where they are known.
        request: of the container that is created, with its annotations applied.
        devices: of the other containers of the pod, by name, as far as they are known.
    """
    try:
        held = state.allocations.get(request.key)
        if held is not None and allocation_key(pod.uid, "") in state.allocations:
            # The pod owns CPUs or memory as a whole. What its containers have of it is settled until the pod ends.
            return Placement(state, held, ("kept",))
        if pod.is_admitted and shares_its_resources(node, state, pod):
            # It was admitted as a whole and owns nothing: a fraction of a CPU, and no memory that is allocated.
            return Placement(state, None, ("shared",))
        if pod.is_admitted:
            return with_a_cpu(node, place(node, state, pod, request))
        if shares_its_resources(node, state, pod):
            placed: Placement | Unfit = _admit_with_own_resources(node, state, pod, request)
        elif admits_whole(node, pod):
            placed = _admit_whole(node, state, pod, request, devices)
        else:
            _refuse_total(node, state, pod, request)
            placed = place(node, state, pod, request)
        return placed if isinstance(placed, Unfit) else with_a_cpu(node, placed)
    except AdmissionError as error:
        return Unfit(state, request, error.refusal)


def _admit_whole(
    node: Node,
    state: State,
    pod: PodRecord,
    request: ContainerRequest,
    devices: Mapping[str, tuple[DeviceResource, ...]],
) -> Placement | Unfit:
    """Place all containers of the pod, one after the other, each beside those before it."""
    own = None
    for one in _to_place(node, state, pod, request):
        wanted = one
        try:
            if one is not request:
                # The annotations of a container that is not created yet are read now: they decide its size.
                wanted = annotated(node.options, pod, replace(one, devices=devices.get(one.name, ())))
            placed = place(node, state, state.pods[pod.uid], wanted)
        except AdmissionError as error:
            # The reader has asked for one container and has to learn which of the pod is meant.
            return Unfit(state, wanted, replace(error.refusal, container=wanted.name))
        state = placed.state
        own = placed if one is request else own
    assert own is not None
    state = state.with_pod(replace(state.pods[pod.uid], is_admitted=True))
    return replace(own, state=state, steps=(*own.steps, "whole-pod"))


def _refuse_total(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> None:
    """Refuse the first exclusive container of a pod whose total does not fit, where only the runtime tells the total.

    How the total is divided among the containers is not known, so this finds only pods that fit in no case.

    Raises:
        InsufficientCPUsError: the machine has fewer CPUs available.
        InsufficientMemoryError: less memory is free on all NUMA nodes together.
    """
    if pod.facts is not None:
        return
    is_first = not state.containers_of(pod.uid) and not any(
        pod_of(key) == pod.uid for key in state.allocations
    )
    if not is_first or pod.namespace in node.options.never_refuse or not exclusive_count(node, request):
        return
    total = pod_request(node.options, pod)
    count, available = (total.cpu_milli or 0) // 1000, state.available(node)
    if count > len(available):
        hint = f"pod {pod.name} asks for so many in all; end others or ask for less"
        raise InsufficientCPUsError(count, len(available), hint)
    for resource, size in memory_request(node, total).items():
        free = sum(memory_state_of(node, state).free(resource).values())
        if size > free:
            raise InsufficientMemoryError(PodMemoryShortage(pod.name, resource, size, free))


def _to_place(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> list[ContainerRequest]:
    """The requests of the containers that are placed now, in the kubelet's order.

    Left out are those that exist or hold something, and plain init containers before the one that is created: they have
    ended.
    """
    here = {record.name for record in state.containers_of(pod.uid)}
    found: list[ContainerRequest] = []
    for one in spec_requests(node.options, pod):
        if one.name == request.name:
            # Before it only sidecars can be missing: the runtime lost the event of their creation.
            found = [earlier for earlier in found if not is_plain_init(pod.facts, earlier.name)]
            found.append(request)
        elif one.name not in here and allocation_key(pod.uid, one.name) not in state.allocations:
            found.append(replace(one, pod_devices=request.pod_devices))
    # A container that the specification does not name, such as an ephemeral one, is placed after the others.
    return found if request in found else [*found, request]


# ----------------------------------------------------------------------------------------------------
# Pods with resources of their own, under pod scope: one merge and one allocation, which the containers share.


def shares_its_resources(node: Node, state: State, pod: PodRecord) -> bool:
    """Whether the pod gets CPUs and memory as a whole. Under the topology policy none the scope has no effect.

    A pod of which a container holds something already goes container by container: what it holds is not moved.
    """
    options = node.options
    return (
        options.pod_level_managers
        and options.topology_manager_scope is TopologyManagerScope.POD
        and options.topology_manager_policy is not TopologyManagerPolicy.NONE
        and has_own_resources(pod.facts)
        and not any(pod_of(key) == pod.uid for key in state.allocations)
    )


def _admit_with_own_resources(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest
) -> Placement | Unfit:
    """Allocate the pod's CPUs and memory, and divide the CPUs among its containers.

    Differs: the kubelet admits a running pod anew when it starts, and may refuse it or move it. Here a pod keeps what it
        has.
    """
    facts = pod.facts
    assert facts is not None
    total = replace(pod_total_request(pod, facts), devices=request.pod_devices or request.devices)
    question = Question(
        node,
        state,
        pod,
        total,
        exclusive_cpus=pod_cpus(facts) if node.options.cpu_manager_policy is CPUManagerPolicy.STATIC else 0,
        memory=pod_memory(facts) if node.options.memory_manager_policy is MemoryManagerPolicy.STATIC else {},
    )
    try:
        # 1. One merge for the pod; a pod without a CPU or a byte for its shared containers has no hint that fits.
        hint = _merged(question, facts)
        # 2. The CPUs of the pod, then the part of each container.
        tables, options = tables_of(node), node.options
        block = CPUSet()
        if question.exclusive_cpus:
            block = take_block(
                tables, facts, question.available, hint.affinity, reserved=node.reserved, options=options
            )
            leave_a_pool(node, state, block)
        parts = sets_of(tables, facts, block, options)
        # 3. The memory of the pod: its nodes are those of all its containers.
        if question.memory:
            refuse_empty_memory_pool(facts)
        blocks, mems = memory_under(question, hint)
    except AdmissionError as error:
        return Unfit(state, total, error.refusal)
    state = state.with_pod(
        replace(
            pod,
            affinity=hint.affinity or NO_NODES,
            affinity_preferred=hint.preferred,
            devices_counted=bool(request.pod_devices),
            is_admitted=True,
        )
    )
    steps = ("pod-resources", *(() if hint.exact else ("inexact-hint",)))
    if not block and not blocks:
        return Placement(state, None, (*steps, "shared"))
    base = Allocation(affinity=hint.affinity or NO_NODES, preferred=hint.preferred, mems=mems)
    state = state.with_allocation(
        allocation_key(pod.uid, ""),
        replace(base, cpus=block, memory=blocks, cpu_milli=total.cpu_milli or 0),
    )
    for one in facts.containers:
        part = parts.get(one.name)
        allocation = replace(
            base,
            cpus=part.cpus if part else CPUSet(),
            cpu_milli=one.amounts.cpu_request_milli,
            is_init=one.kind is Kind.INIT,
            is_pod_shared=part is not None and part.is_shared,
        )
        state = state.with_allocation(allocation_key(pod.uid, one.name), allocation)
    return Placement(state, state.allocations.get(request.key), steps)


def pod_total_request(pod: PodRecord, facts: PodFacts) -> ContainerRequest:
    """The resources of the pod in the form of a container's request."""
    memory = dict(pod_memory(facts))
    return ContainerRequest(
        pod.uid,
        "",
        pod.qos,
        facts.pod_resources.cpu_request_milli if facts.pod_resources else 0,
        memory.pop(MEMORY, 0),
        tuple(memory.items()),
    )


def _merged(question: Question, facts: PodFacts) -> MergedHint:
    """The merged hint of the pod.

    Raises:
        AdmissionError: the policy does not admit it.
    """
    terms = terms_of(question)
    providers = list(terms.providers)
    for provider, resources, refuse in (
        (cpus, ("cpu",) if question.exclusive_cpus else (), refuse_empty_cpu_pool),
        (memory, tuple(sorted(question.memory)), refuse_empty_memory_pool),
    ):
        try:
            refuse(facts)
        except EmptyPodSharedPoolError as error:
            why = str(error)
            hints = tuple(HintSet(resource, (), why=why) for resource in resources)
            providers[OWN.index(provider)] = hints or None
    return admit_hint(
        terms.policy, terms.nodes, providers, distances=terms.distances, tie_break=terms.tie_break
    )
