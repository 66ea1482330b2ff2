"""Admission of a pod as a whole, at the creation of its first container.

Where the pod's object is known, all its containers are placed at once: init containers, sidecars and app containers, in the
order in which the kubelet admits them. Either all fit, and all are allocated, or the creation is refused and nothing is
allocated. So no pod runs in part for ever, and no other pod takes what a later container was admitted with.

Containers that exist already, or that hold an allocation, are left as they are: facts may come after the first container,
and the rest of the pod is then placed around what it holds.

Differs: the kubelet admits a pod with any number of containers as a whole; here: a pod with more than 128
    containers is admitted container by container, so it may run in part, unless it owns CPUs or memory as a whole.
    Why: the runtime waits for the answer. Option: none.
Differs: the kubelet may refuse a pod of any namespace as a whole; here: a pod in a namespace of `neverRefuse`
    is admitted container by container, and a container that does not fit runs in the shared pool. Why: such a
    pod must run, even if not all of it is placed. Option: `neverRefuse` without the namespace (the default).
Differs: the kubelet knows the object of every pod; here: a pod whose object is not known is admitted
    container by container, after a check of the total that the runtime reports, so it may run in part. Why:
    the runtime reports one container at a time. Option: `exporterSocket`, with the exporter running.
Differs: the kubelet knows which containers of a pod have limits of their own; here: where the pod's object is
    not known, a container that asks for more than its live siblings leave of the total that the runtime reports
    counts as one without limits, and runs in the shared pool. Why: the kubelet gives a container without limits
    those of its pod (`spec.resources`), and the runtime reports both alike. Option: `exporterSocket`, with the
    exporter running.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from types import MappingProxyType

from msgspec.structs import replace

from nri_plugin.core.annotations import SMT_ODD_COUNTS, given_annotations, word_of
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
    MergeTerms,
    Placement,
    exclusive_count,
    leave_a_pool,
    memory_under,
    place,
    pod_hint,
    refuse_last_cpu,
    terms_of,
    with_a_cpu,
)
from nri_plugin.core.requests import (
    ContainerRequest,
    annotated,
    is_of_its_size,
    lacks_its_resources,
    owned_as_whole,
    peak,
    pod_request,
    regime_of,
    spec_requests,
)
from nri_plugin.core.reuse import is_plain_init, live_keys
from nri_plugin.model.errors import (
    AdmissionError,
    EmptyPodSharedPoolError,
    InsufficientCPUsError,
    InsufficientMemoryError,
)
from nri_plugin.model.options import Node, Options, SMTOddCounts, TopologyManagerScope
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    Kind,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
    Regime,
    allocation_key,
    is_whole_pod,
)
from nri_plugin.model.refusals import AdmissionRefusal, HintNotAdmitted, PodMemoryShortage
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.cpu_policy import whole_core_count
from nri_plugin.policy.device_hints import DeviceResource
from nri_plugin.policy.hints import HintSet
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.policy.merge import admit as admit_hint
from nri_plugin.policy.pod_level import (
    PodPart,
    cpu_claim,
    pod_memory,
    refuse_empty_cpu_pool,
    refuse_empty_memory_pool,
    sets_of,
    take_block,
)

MOST_CONTAINERS = 128
"""The containers that are placed at once: the runtime waits meanwhile. The API server sets no limit."""


ABOUT_ALL = "these are the amounts of the pod, whose containers are placed together under pod scope"
"""The remark where the amounts are not those of the container that is named."""


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
        if request.claim.cpus:
            return place(node, state, pod, request)
        held = state.allocations.get(request.key)
        # What the pod owns as a whole, and the parts of its containers, do not change until the pod ends.
        if held is not None and allocation_key(pod.uid, "") in state.allocations:
            return Placement(state, held, ("kept",))
        placed = _by_its_rules(node, state, pod, request, devices)
        if isinstance(placed, Unfit):
            return placed
        within = with_parts_inside(placed.state, pod.uid)
        return with_a_cpu(
            node, placed if within is placed.state else dataclasses.replace(placed, state=within)
        )
    except AdmissionError as error:
        return Unfit(state, request, _in_scope_words(error.refusal, regime_of(node.options, pod)))


def _by_its_rules(
    node: Node,
    state: State,
    pod: PodRecord,
    request: ContainerRequest,
    devices: Mapping[str, tuple[DeviceResource, ...]],
) -> Placement | Unfit:
    """Place the container by the rules of its pod.

    Raises:
        AdmissionError: policy refuses it.
    """
    regime = regime_of(node.options, pod)
    if regime is Regime.WHOLE and pod.is_admitted:
        return Placement(state, None, ("shared",))
    if regime is Regime.WHOLE:
        return _admit_with_own_resources(node, state, pod, request)
    if pod.is_admitted:
        # A container that was admitted with nothing goes on with nothing. One that is not of the specification is new.
        shares = _is_named(pod, request) and request.key not in state.allocations
        return Placement(state, None, ("shared",)) if shares else place(node, state, pod, request)
    lacks = lacks_its_resources(node.options, pod)
    if lacks and _is_between_instances(state, pod.uid):
        return _admit_again(node, state, pod, request)
    if admits_whole(node, pod) and is_of_its_size(pod) and not lacks:
        placed = _admit_whole(node, state, pod, request, devices)
        is_other = isinstance(placed, Unfit) and placed.request.key != request.key
        # The rest of the pod does not fit. A container that was admitted without it goes on without it, and one that the
        # specification does not name, such as an ephemeral one, is never admitted with a pod.
        goes_alone = _was_created(state, request) or not _is_named(pod, request)
        return place(node, state, pod, request) if is_other and goes_alone else placed
    _refuse_total(node, state, pod, request)
    return place(node, state, pod, request)


def _in_scope_words(refusal: AdmissionRefusal, regime: Regime) -> AdmissionRefusal:
    """The refusal in the kubelet's words for a pod with resources of its own."""
    scope = {Regime.WHOLE: "pod", Regime.CLAIMS: "container"}.get(regime, "")
    if not scope or not isinstance(refusal.detail, HintNotAdmitted):
        return refusal
    return dataclasses.replace(refusal, detail=dataclasses.replace(refusal.detail, level_scope=scope))


def _is_between_instances(state: State, uid: str) -> bool:
    """Whether no container of the pod lives, and the pod holds nothing."""
    return not state.allocations_of(uid) and not live_keys(state, uid)


def _admit_again(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Placement:
    """Give a pod that was found running, and of which nothing runs now, the resources of its own that were lost.

    The pod was admitted once, so it is not refused: where the resources do not fit, it goes on in the shared pool.
    """
    whole = replace(pod, regime=Regime.WHOLE)
    placed = _admit_with_own_resources(node, state.with_pod(whole), whole, request)
    return Placement(state, None, ("pod-not-rebuilt", "shared")) if isinstance(placed, Unfit) else placed


def with_parts_inside(state: State, uid: str) -> State:
    """The state in which the CPUs of the pod as a whole, if it has any, include those of each container but for claims.

    A pod that was found running may have only a part of its CPUs (`nri_plugin.core.found_pods`), and containers that are
    created then are placed by themselves.
    """
    whole = state.allocations.get(allocation_key(uid, ""))
    if whole is None:
        return state
    cpus = whole.cpus
    for one in state.allocations_of(uid).values():
        cpus |= NO_CPUS if one.claim else one.cpus
    # It stays the same state where nothing is outside: writes are derived from what changed.
    more = replace(whole, cpus=cpus)
    return state if cpus == whole.cpus else state.with_allocation(allocation_key(uid, ""), more)


def _is_named(pod: PodRecord, request: ContainerRequest) -> bool:
    """Whether the specification of the pod names the container."""
    return pod.facts is not None and pod.facts.container(request.name) is not None


def _was_created(state: State, request: ContainerRequest) -> bool:
    """Whether an instance of the container exists or has ended, or one that the runtime has removed left its allocation."""
    is_here = any(one.name == request.name for one in state.containers_of(request.pod_uid))
    return is_here or request.key in state.allocations


def _admit_whole(
    node: Node,
    state: State,
    pod: PodRecord,
    request: ContainerRequest,
    devices: Mapping[str, tuple[DeviceResource, ...]],
) -> Placement | Unfit:
    """Place all containers of the pod, one after the other, each beside those before it."""
    placed = _place_each(node, state, pod, _missing(node, state, pod, request), devices, request)
    if isinstance(placed, Unfit):
        return placed
    state, own = placed
    assert own is not None
    return dataclasses.replace(own, state=state, steps=(*own.steps, "whole-pod"))


def admit_rest(
    node: Node, state: State, pod: PodRecord, devices: Mapping[str, tuple[DeviceResource, ...]]
) -> State | Unfit:
    """The state in which the containers of the pod that are not created have their allocations; no other one changes.

    Args:
        node: the machine and the options.
        state: with the pod's record.
        pod: its record, with its facts.
        devices: of its containers, by name, as far as they are known.
    """
    placed = _place_each(node, state, pod, _missing(node, state, pod), devices)
    return placed if isinstance(placed, Unfit) else placed[0]


def _missing(
    node: Node, state: State, pod: PodRecord, created: ContainerRequest | None = None
) -> list[ContainerRequest]:
    """The requests of the containers that neither exist nor hold something, and of `created`, in the kubelet's order.

    Left out are plain init containers before one that exists or is created: they have ended.
    """
    here = {record.name for record in state.containers_of(pod.uid)}
    found: list[ContainerRequest] = []
    for one in spec_requests(node.options, pod):
        is_created = created is not None and one.name == created.name
        if is_created or one.name in here:
            found = [earlier for earlier in found if not is_plain_init(pod.facts, earlier.name)]
        if created is not None and is_created:
            found.append(created)
        elif one.name not in here and one.key not in state.allocations:
            found.append(replace(one, pod_devices=created.pod_devices) if created else one)
    # A container that the specification does not name, such as an ephemeral one, is placed after the others.
    return found if created is None or created in found else [*found, created]


def _place_each(
    node: Node,
    state: State,
    pod: PodRecord,
    requests: Sequence[ContainerRequest],
    devices: Mapping[str, tuple[DeviceResource, ...]],
    created: ContainerRequest | None = None,
) -> tuple[State, Placement | None] | Unfit:
    """Place these containers of the pod, each beside those before it; the pod is admitted then.

    Returns:
        The state, and the placement of `created`, the container that is being created; None without one.
    """
    own = None
    for one in requests:
        wanted = one
        try:
            if one is not created:
                # The annotations of a container that is not created yet are read now: they decide its size.
                wanted = annotated(node.options, pod, replace(one, devices=devices.get(one.name, ())))
            placed = place(node, state, state.pods[pod.uid], wanted)
        except AdmissionError as error:
            refusal = _in_scope_words(error.refusal, regime_of(node.options, pod))
            if _is_about_all(node, state, pod.uid, refusal):
                refusal = dataclasses.replace(refusal, remark=ABOUT_ALL)
            # The reader has asked for one container and has to learn which of the pod is meant.
            return Unfit(state, wanted, dataclasses.replace(refusal, container=wanted.name))
        state = placed.state
        own = placed if one is created else own
    state = with_parts_inside(state, pod.uid)
    return state.with_pod(replace(state.pods[pod.uid], is_admitted=True)), own


def _is_about_all(node: Node, state: State, uid: str, refusal: AdmissionRefusal) -> bool:
    """Whether the policy does not admit the hint of the pod, which is merged for the amounts of all its containers."""
    is_hint = isinstance(refusal.detail, HintNotAdmitted)
    is_pod = node.options.topology_manager_scope is TopologyManagerScope.POD
    return is_hint and is_pod and pod_hint(state, state.pods[uid]) is None


def _refuse_total(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> None:
    """Refuse the first exclusive container of a pod whose total does not fit, where only the runtime tells the total.

    How the total is divided among the containers is not known, so this finds only pods that fit in no case.

    Raises:
        InsufficientCPUsError: the machine has fewer CPUs available.
        InsufficientMemoryError: less memory is free on all NUMA nodes together.
    """
    # Older runtimes do not tell the total; then there is nothing to compare.
    if pod.facts is not None or not (pod.cpu_milli or pod.memory_bytes or pod.hugepages):
        return
    is_first = not state.containers_of(pod.uid) and not state.allocations_of(pod.uid)
    if not is_first or pod.namespace in node.options.never_refuse or not exclusive_count(node, request):
        return
    # A container that asks for all of it itself is refused by its placement, with the kubelet's reason.
    total, own = pod_request(node.options, pod), memory_request(node, request)
    count, available = (total.cpu_milli or 0) // 1000, state.available(node)
    if count > max(len(available), exclusive_count(node, request)):
        hint = f"pod {pod.name} asks for so many in all; end others or ask for less"
        raise InsufficientCPUsError(count, len(available), hint)
    for resource, size in memory_request(node, total).items():
        free = sum(memory_state_of(node, state).free(resource).values())
        if size > max(free, own.get(resource, 0)):
            raise InsufficientMemoryError(PodMemoryShortage(pod.name, resource, size, free))


def within_total(state: State, pod: PodRecord, request: ContainerRequest) -> ContainerRequest:
    """The request of a container that holds nothing, within what its pod asks for, where only the runtime tells that.

    In a pod without resources of its own, live containers never ask for more than the pod does. So one with which they
    would has no limits of its own and was given those of its pod: it owns nothing.
    """
    if pod.facts is not None or request.qos is not QOSClass.GUARANTEED:
        return request
    # Containers that have ended may be init containers, which are not part of the sum. One that shared before it ended
    # shares again, also where a sibling has ended with it and waits for its own CPUs.
    of_pod, live = state.containers_of(pod.uid), live_keys(state, pod.uid)
    comes_again = any(one.name == request.name and one.phase is Phase.STOPPED for one in of_pod)
    own = [
        one
        for key, one in state.allocations_of(pod.uid).items()
        if (comes_again or key in live) and not (is_whole_pod(key) or one.is_pod_shared)
    ]
    cpu_milli = sum(one.cpu_milli for one in own)
    memory = sum(block.size_bytes for one in own for block in one.memory if block.resource == MEMORY)
    is_more = _exceeds(cpu_milli, request.cpu_milli, pod.cpu_milli)
    is_more = is_more or _exceeds(memory, request.memory_bytes, pod.memory_bytes)
    return replace(request, pod_level=True) if is_more else request


def _exceeds(held: int, asked: int | None, total: int | None) -> bool:
    """Whether both together are more than the total; not where one of the three is unknown or nothing."""
    if not (held and asked and total):
        return False
    return held + asked > total


# ----------------------------------------------------------------------------------------------------
# Pods with resources of their own, under pod scope: one merge and one allocation, which the containers share.


def _admit_with_own_resources(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest
) -> Placement | Unfit:
    """Allocate the pod's CPUs and memory, and divide the CPUs among its containers.

    Differs: the kubelet admits a running pod with resources of its own anew when it starts, and may refuse it
        or move it; here: the pod keeps all that it has, and the rules by which it was admitted: those of its
        first container, also where its object became known later or the configuration has changed. Why: a
        running container is never moved, and a restarted one is not refused for a new rule. Option: none.
    Differs: the kubelet stores the shared set, the pod and each container one after the other, and a stop in
        between leaves CPUs with a pod without containers for ever; here: all allocations of the pod are one
        state, which is saved as a whole. Why: a crash must not lose CPUs. Option: none.
    Differs: the kubelet counts the devices of a pod with resources of its own in the hints, but allocates
        them only when each container is created, where a shortage fails the start; here: the kubelet's Device
        Manager, whose Topology Manager is off, has allocated the devices at admission, and the agent aligns
        the pod with those that it knows. Why: a shortage of devices then refuses the pod before anything of
        it runs. Option: none.
    """
    facts = pod.facts
    assert facts is not None
    total = pod_total_request(pod, facts)
    try:
        question = pod_question(node, state, pod, facts, request)
        filled, rule = in_whole_cores(node, pod, facts), odd_counts_rule(node.options, pod, "")
        refuse_last_cpu(question)
        # 1. One merge for the pod; a pod without a CPU or a byte for its shared containers has no hint that fits.
        terms = pod_terms(question, facts)
        hint = admit_hint(*terms[:3], distances=terms.distances, tie_break=terms.tie_break)
        # 2. The CPUs of the pod, then the part of each container.
        tables, options = tables_of(node), dataclasses.replace(node.options, smt_odd_counts=rule)
        block = CPUSet()
        if question.exclusive_cpus:
            block = take_block(
                tables, filled, question.available, hint.affinity, reserved=node.reserved, options=options
            )
            leave_a_pool(node, state, block)
        parts = sets_of(tables, filled, block, options)
        # 3. The memory of the pod: its nodes are those of all its containers.
        if question.memory:
            refuse_empty_memory_pool(facts, node.options.pod_shared_pool_rule)
        blocks, mems = memory_under(question, hint)
    except AdmissionError as error:
        refusal = _in_scope_words(error.refusal, Regime.WHOLE)
        return Unfit(state, total, dataclasses.replace(refusal, is_of_pod=True))
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
    whole = Allocation(
        cpus=block,
        mems=mems,
        memory=blocks,
        cpu_milli=total.cpu_milli or 0,
        affinity=hint.affinity or NO_NODES,
        preferred=hint.preferred,
    )
    state = divided(state, pod.uid, facts, whole, parts)
    return Placement(state, state.allocations.get(request.key), steps)


def divided(
    state: State, uid: str, facts: PodFacts, whole: Allocation, parts: Mapping[str, PodPart]
) -> State:
    """The state in which the pod has `whole`, and each of its containers its part of the CPUs and no memory of its own."""
    state = state.with_allocation(allocation_key(uid, ""), whole)
    for one in facts.containers:
        part = parts.get(one.name)
        allocation = replace(
            whole,
            cpus=part.cpus if part else CPUSet(),
            memory=(),
            cpu_milli=one.amounts.cpu_request_milli,
            is_init=one.kind is Kind.INIT,
            is_pod_shared=part is not None and part.is_shared,
        )
        state = state.with_allocation(allocation_key(uid, one.name), allocation)
    return state


def odd_counts_rule(options: Options, pod: PodRecord, name: str) -> SMTOddCounts:
    """The rule for CPUs of the container that do not fill cores; for those of the pod with an empty name.

    Raises:
        AnnotationError: the annotation has another word.
    """
    annotated_rule = word_of(given_annotations(options, pod), SMT_ODD_COUNTS, name, SMTOddCounts)
    return annotated_rule or options.smt_odd_counts


def in_whole_cores(node: Node, pod: PodRecord, facts: PodFacts) -> PodFacts:
    """The pod's facts with the CPUs that the rules for odd counts give to it and to its slices.

    Under `round-up`, a slice gets the rest of its last core, and the pod grows by what its running slices need more, so
    that the pod shared pool does not shrink.

    Raises:
        SMTAlignmentError: the rule is `reject`, and the CPUs of the pod or of a slice do not fill cores.
        AnnotationError: an annotation has no rule.

    Differs: the kubelet checks only the number of the pod under full-pcpus-only, so two containers of a pod
        may share a core; here: the rules `reject` and `round-up` hold for each slice, too. Why: two
        latency-critical containers disturb each other on one core. Option: `smtOddCounts: kubelet` (the
        default).
    """
    threads, (total, _) = tables_of(node).cpus_per_core, owned_as_whole(node.options, facts)
    claims = [cpu_claim(facts, one) for one in facts.containers]
    # A pod without CPUs, or with containers that need more than it has, stays as it is.
    if threads == 1 or not 0 < total >= peak(facts, claims):
        return facts

    def whole(count: int, name: str) -> int:
        return whole_core_count(odd_counts_rule(node.options, pod, name), count, threads, name)

    filled = [whole(claim, one.name) for claim, one in zip(claims, facts.containers, strict=True)]
    running = [one.kind is not Kind.INIT for one in facts.containers]
    size = whole(total + sum(compress(filled, running)) - sum(compress(claims, running)), "")
    if filled == claims and size == total:
        return facts
    containers = (
        replace(one, amounts=_with_cpus(one.amounts, count)) if count else one
        for one, count in zip(facts.containers, filled, strict=True)
    )
    assert facts.pod_resources is not None
    return replace(facts, containers=tuple(containers), pod_resources=_with_cpus(facts.pod_resources, size))


def _with_cpus(amounts: Amounts, count: int) -> Amounts:
    return replace(amounts, cpu_request_milli=1000 * count, cpu_limit_milli=1000 * count)


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


def pod_question(
    node: Node, state: State, pod: PodRecord, facts: PodFacts, request: ContainerRequest
) -> Question:
    """The question to hint providers about the resources of the pod; `request` tells its devices.

    Raises:
        SMTAlignmentError: see `in_whole_cores`.
    """
    count, amounts = owned_as_whole(node.options, in_whole_cores(node, pod, facts))
    total = replace(pod_total_request(pod, facts), devices=request.pod_devices or request.devices)
    return Question(node, state, pod, total, exclusive_cpus=count, memory=amounts)


def pod_terms(question: Question, facts: PodFacts) -> MergeTerms:
    """The hints for the pod; none fits where its exclusive containers leave nothing to those that share.

    Raises:
        AdmissionError: a provider of another package failed.
    """
    terms, rule = terms_of(question), question.node.options.pod_shared_pool_rule
    providers = list(terms.providers)
    for provider, resources, refuse in (
        (cpus, ("cpu",) if question.exclusive_cpus else (), partial(refuse_empty_cpu_pool, facts)),
        (memory, tuple(sorted(question.memory)), partial(refuse_empty_memory_pool, facts, rule)),
    ):
        try:
            refuse()
        except EmptyPodSharedPoolError as error:
            why = str(error)
            hints = tuple(HintSet(resource, (), why=why) for resource in resources)
            providers[OWN.index(provider)] = hints or None
    return terms._replace(providers=providers)
