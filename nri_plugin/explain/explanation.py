"""Why a container got what it got, or was refused: the story of one decision.

The story is made by deciding once more: `decide` tells the outcome, and the functions that it is made of are asked
one by one for what lies between. Nothing is worked out in a second way, so that what is told is what happened. Where
the container holds its promise already (it is started again), the story is that of the promise being made now.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide, wanted
from nri_plugin.core.hint_providers import Question, memory_request
from nri_plugin.core.placement import exclusive_count, in_scope, question_of, terms_of
from nri_plugin.core.requests import EXCLUSIVE_CPUS, ContainerRequest, annotated, qos_of
from nri_plugin.core.reuse import donors, reusable_cpus
from nri_plugin.explain.fits import Fit, NUMANodeUse, uses, would_fit
from nri_plugin.explain.hints import Merged, ResourceHints, TakingStep, hints_of, merged_of, taking_of
from nri_plugin.model import bounds
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.option_rows import Affects
from nri_plugin.model.options import REGISTRY, CPUManagerPolicy, MemoryManagerPolicy, Node, Options, narrowed
from nri_plugin.model.sets import NO_CPUS
from nri_plugin.model.state import Allocation, Phase, PodRecord, QOSClass, State
from nri_plugin.policy.merge import MergedHint, admits, merge
from nri_plugin.wire.nri.events import CreateContainer, CreateContainerResponse


class Outcome(StrEnum):
    """What became of a container."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    REFUSED = "refused"
    UNPLACED = "unplaced"
    """Policy refuses it, and it runs in the shared pool because its namespace is never refused."""


@dataclass(frozen=True, slots=True)
class Given:
    """Devices of one resource: ids, and the NUMA nodes of each as a kernel list, empty for anywhere."""

    resource: str
    devices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom it is about, and what it asks for.

    Attributes:
        cpu_milli: thousandths of a CPU; None where the runtime could not tell.
        exclusive_cpus: how many CPUs it gets to itself if it is admitted.
        memory: (resource, bytes) that it asks for, promised or not.
    """

    namespace: str
    pod: str
    container: str
    pod_uid: str
    qos: str
    cpu_milli: int | None
    exclusive_cpus: int
    memory: tuple[tuple[str, int], ...]
    devices: tuple[Given, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision, told.

    Attributes:
        subject: who asked for what.
        outcome: what became of it.
        reason: the kubelet's reason word; empty where nothing was refused.
        sentence: the whole refusal, the same as the runtime, the log and the pod's event say; empty likewise.
        cpus: what it runs on, as a kernel list: its exclusive CPUs or the shared pool.
        mems: the NUMA nodes its memory is bound to; empty for none in particular.
        why: what of it is exclusive, shared or bound, and why, a sentence each.
        settings: the options that bear on it, by their names in the configuration.
        hints: what each provider answered, in the order they are asked.
        merged: what became of the hints; None where nobody was asked.
        taking: in which steps CPUs were taken.
        numa_nodes: who held what when it was decided.
        shared_pool: the shared pool afterwards.
        pool_containers: how many other containers live on it.
        fits: what would have fitted; empty where it was admitted.
        obstacle: who or what stands in the way, as the sentence has it.
        steps: the codes of the decision.
    """

    subject: Subject
    outcome: Outcome
    reason: str
    sentence: str
    cpus: str
    mems: str
    why: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    hints: tuple[ResourceHints, ...]
    merged: Merged | None
    taking: tuple[TakingStep, ...]
    numa_nodes: tuple[NUMANodeUse, ...]
    shared_pool: str
    pool_containers: int
    fits: tuple[Fit, ...]
    obstacle: str
    steps: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        return {**asdict(self), "settings": dict(self.settings)}


def explain(node: Node, state: State, event: CreateContainer | InformedCreate) -> Explanation:
    """Why `event` ends as it does on `node` in `state`.

    Never raises for anything the event holds, as `decide`.
    """
    known = event if isinstance(event, InformedCreate) else InformedCreate(event)
    decision = decide(node, state, known)
    before, pod, request = wanted(node, state, known)
    before = before.without_allocation(request.key)
    error = decision.refusal or decision.overruled
    try:
        request = annotated(node.options, pod, request)
        hints, merged, taking = _story(question_of(node, before, pod, request))
    except AdmissionError:
        hints, merged, taking = (), None, ()
    granted = _granted(decision)
    allocation = decision.state.allocations.get(request.key) if not decision.refusal else None
    return Explanation(
        subject=_subject(node, pod, request),
        outcome=_outcome(decision, allocation),
        reason=error.reason if error else "",
        sentence=str(error or ""),
        cpus=granted[0],
        mems=granted[1],
        why=(
            *_why(node, pod, request, decision, allocation),
            *_passed_on(before, pod, request, allocation),
        ),
        settings=settings(node.options),
        hints=hints,
        merged=merged,
        taking=taking,
        numa_nodes=uses(narrowed(node, request.isolated), before),
        shared_pool=str(decision.state.shared_pool(node)),
        pool_containers=_on_pool(decision.state, request.key),
        fits=would_fit(node, before, pod, request) if error and error.advice else (),
        obstacle=error.obstacle if error else "",
        steps=decision.steps,
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


def _story(question: Question) -> tuple[tuple[ResourceHints, ...], Merged | None, tuple[TakingStep, ...]]:
    """What lies between the question and the CPUs, as far as it comes.

    Raises:
        AdmissionError: a provider from outside failed.
    """
    node = question.node
    asks = question.exclusive_cpus or memory_request(node, question.request) or question.request.devices
    if not (asks or node.hint_providers):
        return (), None, ()
    scope, asked = in_scope(question)
    if asked is None:
        return _kept_story(question, scope)
    terms = terms_of(asked)
    merged = merge(
        terms.policy, terms.nodes, terms.providers, distances=terms.distances, tie_break=terms.tie_break
    )
    hints = tuple(hints_of(wish) for provider in terms.providers for wish in provider or ())
    taking = taking_of(question, merged) if admits(terms.policy, merged) else ()
    return hints, merged_of(terms, merged, scope), taking


def _kept_story(
    question: Question, scope: str
) -> tuple[tuple[ResourceHints, ...], Merged, tuple[TakingStep, ...]]:
    """Under pod scope the first container decided for all."""
    pod, policy = question.pod, question.node.options.topology_manager_policy
    hint = MergedHint(pod.affinity or None, pod.affinity_preferred)
    merged = Merged(policy, scope, str(pod.affinity or ""), hint.preferred, admits(policy, hint))
    return (), merged, taking_of(question, hint)


def _subject(node: Node, pod: PodRecord, request: ContainerRequest) -> Subject:
    asked = {"memory": request.memory_bytes} if request.memory_bytes else {}
    return Subject(
        namespace=pod.namespace,
        pod=pod.name,
        container=request.name,
        pod_uid=pod.uid,
        qos=pod.qos,
        cpu_milli=request.cpu_milli,
        exclusive_cpus=_count(node, request),
        memory=tuple({**asked, **dict(request.hugepages)}.items()),
        devices=tuple(
            Given(one.name, tuple((device.id, str(device.nodes)) for device in one.devices))
            for one in request.devices
        ),
    )


def _count(node: Node, request: ContainerRequest) -> int:
    try:
        return exclusive_count(node, request)
    except AdmissionError:
        return request.exclusive_cpus


def _granted(decision: Decision) -> tuple[str, str]:
    response = decision.response
    if decision.refusal or not isinstance(response, CreateContainerResponse) or response.resources is None:
        return "", ""
    return response.resources.cpus, response.resources.mems


def _outcome(decision: Decision, allocation: Allocation | None) -> Outcome:
    if decision.refusal:
        return Outcome.REFUSED
    if decision.overruled:
        return Outcome.UNPLACED
    return Outcome.EXCLUSIVE if allocation and allocation.cpus else Outcome.SHARED


def _why(
    node: Node, pod: PodRecord, request: ContainerRequest, decision: Decision, allocation: Allocation | None
) -> list[str]:
    if decision.refusal:
        return []
    if decision.overruled:
        return [f"namespace {pod.namespace} is in neverRefuse: it runs in the shared pool, marked unplaced"]
    cpus = (
        _why_exclusive(node, pod, request)
        if allocation and allocation.cpus
        else _why_shared(node, pod, request)
    )
    uncounted = [UNCOUNTED] if "devices-not-counted" in decision.steps else []
    return [cpus, _why_bound(node, pod, request, allocation), *uncounted]


def _passed_on(
    state: State, pod: PodRecord, request: ContainerRequest, allocation: Allocation | None
) -> list[str]:
    """Which of its CPUs came from containers of its pod that had ended."""
    reused = (allocation.cpus if allocation else NO_CPUS) & reusable_cpus(
        state, donors(state, pod, request.name)
    )
    return (
        [f"exclusive: CPUs {reused} pass on to it from a container of its pod that has ended"]
        if reused
        else []
    )


def _why_exclusive(node: Node, pod: PodRecord, request: ContainerRequest) -> str:
    count, asked = _count(node, request), request.exclusive_cpus
    more = f"; {asked} became {count} to fill the last core (smtOddCounts round-up)" if count != asked else ""
    if request.wanted_exclusive:
        return (
            f"exclusive: annotation {EXCLUSIVE_CPUS} asks for {asked}, and is heard in {pod.namespace}{more}"
        )
    return f"exclusive: the pod is {_qos(pod)} and {asked} is a whole number of CPUs{more}"


def _why_shared(node: Node, pod: PodRecord, request: ContainerRequest) -> str:
    if node.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        return "shared: cpuManagerPolicy none gives nobody exclusive CPUs"
    if request.pod_level:
        return "shared: its pod sets resources for the pod as a whole (spec.resources)"
    if pod.qos is not QOSClass.GUARANTEED:
        return f"shared: the pod is {_qos(pod)}; only whole CPUs of Guaranteed pods are exclusive"
    if not request.cpu_milli:
        return "shared: it asks for no CPUs"
    return f"shared: {request.cpu_milli}m is no whole number of CPUs"


UNCOUNTED = f"devices: not counted, it has more than {bounds.DEVICES}, or more than {bounds.DEVICE_RESOURCES} resources of them"


def _qos(pod: PodRecord) -> str:
    """The class, and who says so where that is not its cgroup parent."""
    by_facts = pod.facts is not None and pod.qos is not qos_of(pod.cgroup_parent)
    return f"{pod.qos} (by the pod's object)" if by_facts else pod.qos


def _why_bound(node: Node, pod: PodRecord, request: ContainerRequest, allocation: Allocation | None) -> str:
    if allocation and allocation.mems:
        nodes = f"NUMA node{'s' * (len(allocation.mems) > 1)} {allocation.mems}"
        return f"memory: promised on {nodes}, and bound to {'them' if len(allocation.mems) > 1 else 'it'}"
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return "memory: from any NUMA node, memoryManagerPolicy is None"
    if pod.qos is not QOSClass.GUARANTEED or request.pod_level:
        return "memory: from any NUMA node, only Guaranteed containers are promised some"
    return "memory: from any NUMA node, it asks for none"
