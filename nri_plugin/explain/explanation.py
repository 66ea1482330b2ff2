"""The explanation of one decision, as values: why a container got its CPUs and memory, or was refused.

`explain` decides once more. `decide` tells the outcome, and the functions that it consists of are asked one by one for
the hints, the merge and the steps between. Nothing is computed in a second way, so the explanation cannot differ from
the decision. For a container that is started again, the explanation is that of an allocation made now.

`nri_plugin.cli.explain.text` has the words for these values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_

from nri_plugin.core.advice import Trial
from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import creation_context, decide, has_uncounted_devices
from nri_plugin.core.hint_providers import Question
from nri_plugin.core.placement import (
    OWN_FIRST,
    MergeTerms,
    in_scope,
    own_first,
    pod_hint,
    question_of,
    terms_of,
)
from nri_plugin.core.pods import Unfit, admit, pod_question, pod_terms
from nri_plugin.core.requests import ContainerRequest, annotated, qos_of, regime_of
from nri_plugin.core.validator import checked
from nri_plugin.explain.fits import Fit, NUMANodeUse, uses, would_fit
from nri_plugin.explain.hints import Merged, ResourceHints, TakingStep, hints_of, merged_of, taking_of
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.option_rows import Affects
from nri_plugin.model.options import REGISTRY, CPUManagerPolicy, MemoryManagerPolicy, Node, Options, narrowed
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    Phase,
    PodRecord,
    QOSClass,
    Regime,
    allocation_key,
    owner_of,
    pod_of,
)
from nri_plugin.model.refusals import AdmissionRefusal
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.merge import admits, merge
from nri_plugin.wire.nri.events import CreateContainer, CreateContainerResponse


class ContainerOutcome(StrEnum):
    """The outcome for a container."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    REFUSED = "refused"
    UNPLACED = "unplaced"
    """Policy refuses it, and it runs in the shared pool because its namespace is never refused."""


@dataclass(frozen=True, slots=True)
class GivenDevices:
    """Devices of one resource: ids, and the NUMA nodes of each as a kernel list, empty for anywhere."""

    resource: str
    devices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """The container, and what it asks for.

    Attributes:
        cpu_milli: thousandths of a CPU; None where the runtime could not tell.
        exclusive_cpus: how many CPUs it gets to itself if it is admitted.
        memory: (resource, bytes) that it asks for, allocated or not.
        pod_cpu_milli: thousandths of a CPU that its pod asks for as a whole (`spec.resources`); 0 for none.
        pod_memory: (resource, bytes) that its pod asks for as a whole.
    """

    namespace: str
    pod: str
    container: str
    pod_uid: str
    qos: str
    cpu_milli: int | None
    exclusive_cpus: int
    memory: tuple[tuple[str, int], ...]
    devices: tuple[GivenDevices, ...]
    pod_cpu_milli: int = 0
    pod_memory: tuple[tuple[str, int], ...] = ()


class WhyKind(StrEnum):
    """Why CPUs are exclusive or shared, or memory is bound or not."""

    NEVER_REFUSED = "never-refused"
    """Its namespace is in neverRefuse: it runs in the shared pool although policy refuses it."""
    ANNOTATION = "annotation"
    """Exclusive, by an annotation that is read."""
    WHOLE_CPUS = "whole-cpus"
    """Exclusive: whole CPUs of a Guaranteed pod."""
    SLICE = "slice"
    """Exclusive: part of the CPUs of a pod with resources of its own."""
    POD_SHARED_POOL = "pod-shared-pool"
    """It shares CPUs of its pod, which has resources of its own."""
    POD_WITHOUT_BLOCK = "pod-without-block"
    """Its pod has resources of its own, and gets no CPUs for them."""
    WITH_ITS_POD = "with-its-pod"
    """Placed with its pod, before or at its own creation."""
    INHERITED_CPUS = "inherited-cpus"
    """Exclusive, from an ended container of its pod."""
    POLICY_NONE = "policy-none"
    POD_LEVEL = "pod-level"
    BEYOND_POD_TOTAL = "beyond-pod-total"
    """With it the live containers of its pod would ask for more than the pod does."""
    NOT_GUARANTEED = "not-guaranteed"
    NO_CPUS = "no-cpus"
    FRACTION = "fraction"
    MEMORY_BOUND = "memory-bound"
    MEMORY_POLICY_NONE = "memory-policy-none"
    MEMORY_NOT_GUARANTEED = "memory-not-guaranteed"
    MEMORY_NOT_ASKED = "memory-not-asked"
    DEVICES_NOT_COUNTED = "devices-not-counted"


@dataclass(frozen=True, slots=True)
class Why:
    """One reason.

    Attributes:
        kind: what it is.
        asked: the number of exclusive CPUs asked for; `Subject.exclusive_cpus` may be larger by smtOddCounts.
        ids: the CPUs or NUMA nodes that it is about, as a kernel list.
        is_qos_by_facts: the pod's object tells the QoS class, and its cgroup parent tells another one.
        is_now: of a pod that was placed as a whole: at this creation, not at an earlier one.
    """

    kind: WhyKind
    asked: int = 0
    ids: str = ""
    is_qos_by_facts: bool = False
    is_now: bool = False


@dataclass(frozen=True, slots=True)
class PodPlaced:
    """What the container's pod holds.

    Attributes:
        cpus: of the pod as a whole, as a kernel list; empty for an ordinary pod.
        mems: the NUMA nodes of the pod as a whole.
        shared_pool: its CPUs that no container owns.
        containers: what each container of the pod holds, by name.
    """

    cpus: str
    mems: str
    shared_pool: str
    containers: tuple["PodContainer", ...]


@dataclass(frozen=True, slots=True)
class PodContainer:
    """What one container of a pod holds: its CPUs as a kernel list, and whether others of the pod share them."""

    container: str
    cpus: str
    is_pod_shared: bool
    is_init: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision, explained.

    Attributes:
        subject: the container and its request.
        outcome: what became of it.
        refusal: why policy refuses it; None where it was admitted.
        cpus: what it runs on, as a kernel list: its exclusive CPUs or the shared pool.
        mems: the NUMA nodes its memory is bound to; empty for none in particular.
        why: why it is exclusive, shared or bound.
        settings: the options that bear on it, by their names in the configuration.
        hints: what each provider answered, in the order they are asked.
        merged: what became of the hints; None where no provider was asked.
        taking: in which steps CPUs were taken.
        numa_nodes: the allocations on every NUMA node at the time of the decision.
        shared_pool: the shared pool afterwards.
        pool_containers: how many other containers live on it.
        fits: what would have fitted; empty where it was admitted.
        steps: the codes of the decision.
        unfit: the container of the pod that does not fit, where that is another one; hints and `fits` are about it.
        pod: what its pod holds after the decision; None where it is alone and nothing is the pod's.
    """

    subject: Subject
    outcome: ContainerOutcome
    refusal: AdmissionRefusal | None
    cpus: str
    mems: str
    why: tuple[Why, ...]
    settings: tuple[tuple[str, str], ...]
    hints: tuple[ResourceHints, ...]
    merged: Merged | None
    taking: tuple[TakingStep, ...]
    numa_nodes: tuple[NUMANodeUse, ...]
    shared_pool: str
    pool_containers: int
    fits: tuple[Fit, ...]
    steps: tuple[str, ...]
    unfit: str = ""
    pod: PodPlaced | None = None


WITH_POD = frozenset({"whole-pod", "pod-resources"})
"""Steps of the decision that placed a pod as a whole."""

Story = tuple[tuple[ResourceHints, ...], Merged | None, tuple[TakingStep, ...]]
"""The hints, the merge and the steps of the assignment between a request and its CPUs."""

NO_STORY: Story = ((), None, ())

POD_RESOURCES = "pod-resources"
"""The scope of a merge for the resources of the pod itself; also the step of such a decision."""


def explain(node: Node, state: State, event: CreateContainer | InformedCreate) -> Explanation:
    """Why `event` ends as it does on `node` in `state`.

    Never raises for anything the event holds, as `decide`.
    """
    known = event if isinstance(event, InformedCreate) else InformedCreate(event)
    decision = checked(node, state, known, decide(node, state, known))
    before, pod, request = creation_context(node, state, known)
    before = before.without_allocation(request.key)
    refusal = decision.refusal or decision.overruled
    question, story = None, NO_STORY
    tried, asks = before, request
    try:
        request = asks = annotated(node.options, pod, request)
        tried, asks = _unfit(node, before, pod, request, known) if refusal else (before, request)
        question, story = _told(node, tried, pod, asks, decision)
    except AdmissionError:
        pass  # The refusal tells why there is no question, or no answer of a provider.
    is_own = question is not None and question.request is request
    count = question.exclusive_cpus if question and is_own else Trial(node, before, pod, request).count
    hints, merged, taking = story
    cpus, mems = _granted(decision)
    allocation = decision.state.allocations.get(request.key) if not decision.refusal else None
    return Explanation(
        subject=_subject(pod, request, count),
        outcome=_outcome(decision, allocation),
        refusal=refusal,
        cpus=cpus,
        mems=mems,
        why=tuple(_why(node, pod, request, decision, allocation, question)),
        settings=settings(node.options),
        hints=hints,
        merged=merged,
        taking=taking,
        numa_nodes=uses(narrowed(node, request.isolated), before),
        shared_pool=str(decision.state.shared_pool(node)),
        pool_containers=_on_pool(decision.state, request.key),
        fits=would_fit(node, tried, pod, asks) if refusal and refusal.advice else (),
        steps=decision.steps,
        unfit=asks.name if asks.name != request.name else "",
        pod=_pod_placed(tried if refusal else decision.state, pod.uid),
    )


def _unfit(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest, known: InformedCreate
) -> tuple[State, ContainerRequest]:
    """The request of the container of the pod that does not fit, and the state with those before it."""
    devices = () if has_uncounted_devices(known) else known.devices_by_container
    placed = admit(node, state, pod, request, dict(devices))
    return (placed.state, placed.request) if isinstance(placed, Unfit) else (state, request)


def _told(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest, decision: Decision
) -> tuple[Question, Story]:
    """The question about the container, or about its pod where that owns CPUs or memory as a whole; and its story.

    Raises:
        AdmissionError: a provider of another package failed.
    """
    key = allocation_key(pod.uid, "")
    owns = key in state.allocations or key in decision.state.allocations
    # It may be admitted by the pod's amounts and get nothing: a fraction of a CPU is not allocated.
    is_whole = request.name == "" or owns or regime_of(node.options, pod) is Regime.WHOLE
    if pod.facts is None or not is_whole:
        question = question_of(node, state, pod, request)
        if OWN_FIRST in decision.steps:
            question = own_first(question) or question
        return question, _story(question)
    asked = pod_question(node, state.released(pod.uid), pod, pod.facts, request)
    return asked, _merge_story(asked, pod_terms(asked, pod.facts), POD_RESOURCES)


def _pod_placed(state: State, uid: str) -> PodPlaced | None:
    held = {owner_of(key)[1]: one for key, one in state.allocations.items() if pod_of(key) == uid}
    block = held.pop("", None)
    if block is None and len(held) < 2:
        return None
    own = (one.cpus.mask for one in held.values() if not one.is_pod_shared and not one.is_init)
    cpus = block.cpus if block else NO_CPUS
    return PodPlaced(
        cpus=str(cpus),
        mems=str(block.mems) if block else "",
        shared_pool=str(cpus - CPUSet(reduce(or_, own, 0))),
        containers=tuple(
            PodContainer(name, str(one.cpus), one.is_pod_shared, one.is_init) for name, one in held.items()
        ),
    )


def _on_pool(state: State, key: str) -> int:
    """How many containers but the one with that key live on the shared pool."""
    lives = (one for one in state.containers.values() if one.phase is not Phase.STOPPED and one.key != key)
    return sum(1 for one in lives if not ((held := state.allocation_of(one)) and held.cpus))


def settings(options: Options) -> tuple[tuple[str, str], ...]:
    """The policies, and every option that changes how a container is placed, by their names in the configuration."""
    return tuple(
        (one.name, one.text(options))
        for one in REGISTRY.values()
        if one.is_policy or (one.affects in (Affects.CPUS, Affects.NUMA_NODES) and one.is_changed(options))
    )


def _story(question: Question) -> Story:
    """The story of a question, as far as it comes.

    Raises:
        AdmissionError: a provider of another package failed.
    """
    node = question.node
    asks = question.exclusive_cpus or question.memory or question.request.devices
    if not (asks or node.hint_providers):
        return NO_STORY
    scope, asked = in_scope(question)
    if asked is None:
        return _kept_story(question, scope)
    # Under pod scope the hints are for the whole pod; the CPUs are the container's.
    return _merge_story(question, terms_of(asked), scope)


def _merge_story(question: Question, terms: MergeTerms, scope: str) -> Story:
    merged = merge(
        terms.policy, terms.nodes, terms.providers, distances=terms.distances, tie_break=terms.tie_break
    )
    hints = tuple(hints_of(hint_set) for provider in terms.providers for hint_set in provider or ())
    taking = taking_of(question, merged) if admits(terms.policy, merged) else ()
    return hints, merged_of(terms, merged, scope), taking


def _kept_story(question: Question, scope: str) -> Story:
    """Under pod scope the first container decided for all."""
    pod, policy = question.pod, question.node.options.topology_manager_policy
    hint = pod_hint(question.state, pod)
    assert hint is not None
    merged = Merged(policy, scope, str(hint.affinity or ""), hint.preferred, admits(policy, hint))
    return (), merged, taking_of(question, hint)


def _subject(pod: PodRecord, request: ContainerRequest, count: int) -> Subject:
    whole = (pod.facts.pod_resources if pod.facts else None) or Amounts()
    # The kubelet gives a container without limits those of its pod; it did not ask for them.
    own = pod.facts.container(request.name) if pod.facts and pod.facts.pod_resources else None
    has_memory = request.memory_bytes and (own is None or own.amounts.memory_limit_bytes)
    has_cpu = own is None or own.amounts.cpu_limit_milli or own.amounts.cpu_request_milli
    asked = {"memory": request.memory_bytes} if has_memory else {}
    of_pod = {"memory": whole.memory_request_bytes, **dict(whole.hugepages)}
    return Subject(
        namespace=pod.namespace,
        pod=pod.name,
        container=request.name,
        pod_uid=pod.uid,
        qos=pod.qos,
        cpu_milli=request.cpu_milli if has_cpu else 0,
        exclusive_cpus=count,
        memory=tuple({**asked, **dict(request.hugepages)}.items()),
        devices=tuple(
            GivenDevices(one.name, tuple((device.id, str(device.nodes)) for device in one.devices))
            for one in request.devices
        ),
        pod_cpu_milli=whole.cpu_request_milli,
        pod_memory=tuple((name, size) for name, size in of_pod.items() if size),
    )


def _granted(decision: Decision) -> tuple[str, str]:
    response = decision.response
    if decision.refusal or not isinstance(response, CreateContainerResponse) or response.resources is None:
        return "", ""
    return response.resources.cpus, response.resources.mems


def _outcome(decision: Decision, allocation: Allocation | None) -> ContainerOutcome:
    if decision.refusal:
        return ContainerOutcome.REFUSED
    if decision.overruled:
        return ContainerOutcome.UNPLACED
    return ContainerOutcome.EXCLUSIVE if allocation and allocation.cpus else ContainerOutcome.SHARED


def _why(
    node: Node,
    pod: PodRecord,
    request: ContainerRequest,
    decision: Decision,
    allocation: Allocation | None,
    question: Question | None,
) -> Iterator[Why]:
    if decision.refusal:
        return
    if decision.overruled:
        yield Why(WhyKind.NEVER_REFUSED)
        return
    by_facts = pod.facts is not None and pod.qos is not qos_of(pod.cgroup_parent)
    cpus = allocation.cpus if allocation else NO_CPUS
    block = decision.state.allocations.get(allocation_key(pod.uid, ""))
    if block is not None and block.cpus and allocation is not None:
        kind = WhyKind.POD_SHARED_POOL if allocation.is_pod_shared else WhyKind.SLICE
        yield Why(kind, request.exclusive_cpus, ids=str(block.cpus))
    else:
        kind = _why_exclusive(request) if cpus else _why_shared(node, pod, request)
        yield Why(kind, request.exclusive_cpus if cpus else 0, is_qos_by_facts=by_facts)
    if decision.state.pods[pod.uid].is_admitted:
        yield Why(WhyKind.WITH_ITS_POD, is_now=not WITH_POD.isdisjoint(decision.steps))
    mems = allocation.mems if allocation else NO_NODES
    yield Why(_why_bound(node, pod, request, mems), ids=str(mems))
    if "devices-not-counted" in decision.steps:
        yield Why(WhyKind.DEVICES_NOT_COUNTED)
    inherited = cpus & question.reusable if question and block is None else NO_CPUS
    if inherited:
        yield Why(WhyKind.INHERITED_CPUS, ids=str(inherited))


def _why_exclusive(request: ContainerRequest) -> WhyKind:
    return WhyKind.ANNOTATION if request.wanted_exclusive else WhyKind.WHOLE_CPUS


def _why_shared(node: Node, pod: PodRecord, request: ContainerRequest) -> WhyKind:
    if node.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        return WhyKind.POLICY_NONE
    if request.pod_level and pod.facts is None:
        return WhyKind.BEYOND_POD_TOTAL
    is_level = regime_of(node.options, pod) in {Regime.CLAIMS, Regime.WHOLE}
    # Whole CPUs of such a container are shared only because its pod gets no CPUs.
    if request.pod_level or (is_level and request.cpu_milli and not request.cpu_milli % 1000):
        return WhyKind.POD_WITHOUT_BLOCK if is_level else WhyKind.POD_LEVEL
    if pod.qos is not QOSClass.GUARANTEED:
        return WhyKind.NOT_GUARANTEED
    return WhyKind.FRACTION if request.cpu_milli else WhyKind.NO_CPUS


def _why_bound(node: Node, pod: PodRecord, request: ContainerRequest, mems: NodeMask) -> WhyKind:
    if mems:
        return WhyKind.MEMORY_BOUND
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return WhyKind.MEMORY_POLICY_NONE
    if pod.qos is not QOSClass.GUARANTEED or request.pod_level:
        return WhyKind.MEMORY_NOT_GUARANTEED
    return WhyKind.MEMORY_NOT_ASKED
