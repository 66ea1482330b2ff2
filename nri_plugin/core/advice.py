"""What a refusal says beyond its numbers: what would have fitted, and what stands in the way.

Every "would fit" was tried: by the same `place` on a changed request or state, or by the same merge under another
policy. Few trials are made, because a runtime waits: it costs nothing where a container is admitted, and well under a
millisecond where it is refused. `explanation` looks longer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from nri_plugin.core.hint_providers import Question, memory_request, memory_state_of, tables_of
from nri_plugin.core.placement import (
    MergeTerms,
    Placement,
    cpus_under,
    exclusive_count,
    in_scope,
    leave_a_pool,
    memory_under,
    place,
    question_of,
    terms_of,
)
from nri_plugin.core.requests import ContainerRequest
from nri_plugin.model.errors import (
    AdmissionError,
    AnnotationError,
    HintProviderError,
    NotYetSupportedError,
    TopologyAffinityError,
)
from nri_plugin.model.options import CPUManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.quantity import format_bytes, round_down
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.state import ContainerFacts, PodFacts, PodRecord, State, owner_of, pod_of
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.policy.merge import MergedHint, admits, merge

POD_ENDS = 1
"""So many trials of that kind are made while a runtime waits."""

MI = 1 << 20
"""Amounts of memory are suggested in whole MiB."""

NAMED_HOLDERS = 3
MOST_CHARACTERS = 360
"""Longer advice is cut: with its numbers a refusal stays below what an event on a pod may hold."""

NOT_ABOUT_ROOM = (AnnotationError, HintProviderError, NotYetSupportedError)

LAXER: Mapping[TopologyManagerPolicy, tuple[TopologyManagerPolicy, ...]] = {
    TopologyManagerPolicy.SINGLE_NUMA_NODE: (
        TopologyManagerPolicy.RESTRICTED,
        TopologyManagerPolicy.BEST_EFFORT,
    ),
    TopologyManagerPolicy.RESTRICTED: (TopologyManagerPolicy.BEST_EFFORT,),
}
"""What a refusal under a policy is compared with, the strictest first."""


def advised(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest, refusal: AdmissionError
) -> AdmissionError:
    """`refusal` of `request` in `state`, and what would have fitted; the same error with more to say.

    Unchanged where it is not about room.
    """
    if request.cpu_milli is None or isinstance(refusal, NOT_ABOUT_ROOM):
        return refusal
    fits = [*_smaller(node, state, pod, request), *_under_laxer_policy(node, state, pod, request, refusal)]
    in_the_way = holders_in_short(state, pod)
    if not in_the_way:
        obstacle = "nobody else holds anything: configured so, this machine never takes it"
    elif ends := [*_after_ends(node, state, pod, request)]:
        obstacle = f"in the way: {in_the_way}"
        fits += ends
    elif _fits_alone(node, state, pod, request):
        obstacle = f"in the way: {in_the_way}"
    else:
        obstacle = "without other pods it would not fit either"
    refusal.obstacle = obstacle
    advice = f"would fit: {' or '.join(fits)}; {obstacle}" if fits else obstacle
    refusal.advice = advice if len(advice) <= MOST_CHARACTERS else f"{advice[: MOST_CHARACTERS - 3]}..."
    return refusal


def alone(state: State, pod: PodRecord) -> State:
    """The state once all other pods have ended."""
    kept = {key: value for key, value in state.allocations.items() if pod_of(key) == pod.uid}
    return replace(state, allocations=kept)


def tried(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Placement | None:
    """The placement of `request`, None where it would be refused."""
    try:
        placed = place(node, state, pod, request)
    except AdmissionError:
        return None
    allocation = placed.allocation
    has_cpus = bool(allocation and allocation.cpus) or bool(placed.state.shared_pool(node))
    return placed if has_cpus or node.options.cpu_manager_policy is CPUManagerPolicy.NONE else None


def with_cpus(pod: PodRecord, request: ContainerRequest, count: int) -> tuple[PodRecord, ContainerRequest]:
    """The same request for `count` exclusive CPUs, and its pod, which then asks for so many fewer or more."""
    if request.wanted_exclusive:
        return pod, replace(request, wanted_exclusive=count)
    milli = count * 1000
    total = pod.cpu_milli
    if total is not None:
        total = max(0, total + milli - (request.cpu_milli or 0))
    facts = pod.facts and _with_request(pod.facts, request.name, milli)
    return replace(pod, cpu_milli=total, facts=facts), replace(request, cpu_milli=milli)


def with_memory(request: ContainerRequest, resource: str, size: int) -> ContainerRequest:
    """The same request for `size` bytes of `memory` or `hugepages-SIZE`."""
    if resource == MEMORY:
        return replace(request, memory_bytes=size)
    return replace(request, hugepages=tuple({**dict(request.hugepages), resource: size}.items()))


def under_policies(
    node: Node,
    state: State,
    pod: PodRecord,
    request: ContainerRequest,
    policies: Sequence[TopologyManagerPolicy],
) -> Iterator[tuple[TopologyManagerPolicy, NodeMask]]:
    """Those of the topology policies under which the request would fit.

    With the NUMA nodes where it would go, empty for anywhere.
    """
    try:
        question = question_of(node, state.without_allocation(request.key), pod, request)
        _, asked = in_scope(question)
        if asked is None or not policies:
            return
        terms = terms_of(asked)
    except AdmissionError:
        return
    for policy in policies:
        where = _under(policy, terms, question)
        if where is not None:
            yield policy, where


def _under(policy: TopologyManagerPolicy, terms: MergeTerms, question: Question) -> NodeMask | None:
    hint = merge(policy, terms.nodes, terms.providers, distances=terms.distances, tie_break=terms.tie_break)
    if not admits(policy, hint):
        return None
    try:
        cpus = cpus_under(question, hint)
        leave_a_pool(question.node, question.state, cpus)
        _, mems = memory_under(question, hint)
    except AdmissionError:
        return None
    return _where(question.node, cpus.mask, mems, hint)


def releasable(state: State, pod: PodRecord) -> list[str]:
    """Uids of the other pods that hold something, those that hold most CPUs first."""
    cpus: dict[str, int] = {}
    for key, allocation in state.allocations.items():
        uid = pod_of(key)
        if uid != pod.uid:
            cpus[uid] = cpus.get(uid, 0) + len(allocation.cpus)
    return sorted(cpus, key=lambda uid: -cpus[uid])


def likely_ends(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> list[str]:
    """Uids of the other pods whose end leaves a NUMA node with as many CPUs as are wanted, or all of them together.

    Those that hold fewest CPUs first: the least that has to end.
    """
    available = state.available(node).mask
    held: dict[str, int] = {}
    for key, allocation in state.allocations.items():
        uid = pod_of(key)
        if uid != pod.uid:
            held[uid] = held.get(uid, 0) | allocation.cpus.mask
    enough = [uid for uid, cpus in held.items() if may_hold(node, request, available | cpus)]
    return sorted(enough, key=lambda uid: held[uid].bit_count())


def may_hold(node: Node, request: ContainerRequest, available: int) -> bool:
    """Whether the CPUs in the mask are enough, on one NUMA node where policy wants that; spares hopeless trials."""
    tables, count = tables_of(node), request.exclusive_cpus
    if node.options.topology_manager_policy is not TopologyManagerPolicy.SINGLE_NUMA_NODE:
        return available.bit_count() >= count
    return any((available & cpus).bit_count() >= count for _, cpus in tables.nodes)


def _fits_alone(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> bool:
    without_others = alone(state, pod)
    room = node.allocatable.mask  # what its own pod holds it may take over
    return may_hold(node, request, room) and tried(node, without_others, pod, request) is not None


def likely_counts(node: Node, state: State, count: int) -> list[int]:
    """Numbers of CPUs below `count` most worth a trial, the largest first.

    Whole cores, what all NUMA nodes have left, what the one has that has most; under full-pcpus-only in whole cores.
    """
    tables, available, options = tables_of(node), state.available(node).mask, node.options
    unit = tables.cpus_per_core if options.full_pcpus_only else 1
    by_node = [(cpus & available).bit_count() for _, cpus in tables.nodes]
    is_single = options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE
    found = {count - count % unit, max(by_node, default=0), *(() if is_single else (sum(by_node),))}
    return sorted({number for one in found if 0 < (number := one - one % unit) < count}, reverse=True)


def likely_sizes(node: Node, state: State, resource: str, size: int) -> list[int]:
    """The same for bytes of memory or huge pages."""
    free = memory_state_of(node, state).free(resource)
    is_single = node.options.topology_manager_policy is TopologyManagerPolicy.SINGLE_NUMA_NODE
    found = {max(free.values(), default=0), *(() if is_single else (sum(free.values()),))}
    return sorted((number for one in found if 0 < (number := one - one % MI) < size), reverse=True)


def holders_in_short(state: State, pod: PodRecord) -> str:
    """Who else holds most, in a few words; empty where nobody does."""
    others = [key for key in state.allocations if pod_of(key) != pod.uid]
    others.sort(key=lambda key: (-len(state.allocations[key].cpus), key))
    named = [_holding(state, key) for key in others[:NAMED_HOLDERS]]
    more = len(others) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def pod_name(state: State, uid: str) -> str:
    """NAMESPACE/POD; the uid where the pod is not known."""
    pod = state.pods.get(uid)
    return f"{pod.namespace}/{pod.name}" if pod and pod.name else uid


def _smaller(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Iterator[str]:
    try:
        count = exclusive_count(node, request)
    except AdmissionError:
        count = request.exclusive_cpus
    threads = max(1, tables_of(node).cpus_per_core)
    more = [] if count % threads == 0 else [count - count % threads + threads]
    found = next(_fitting(node, state, pod, request, likely_counts(node, state, count)), None)
    counts = [*([found] if found else []), *_fitting(node, state, pod, request, more)]
    if counts:
        yield f"{' or '.join(map(str, counts))} CPUs"
        return
    for resource, size in memory_request(node, request).items():
        for less in likely_sizes(node, state, resource, size):
            if tried(node, state, pod, with_memory(request, resource, less)):
                yield f"{format_bytes(less)} of {resource}"
                return


def _fitting(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest, counts: Iterable[int]
) -> Iterator[int]:
    for count in counts:
        if tried(node, state, *with_cpus(pod, request, count)):
            yield count


def _under_laxer_policy(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest, refusal: AdmissionError
) -> Iterator[str]:
    if not isinstance(refusal, TopologyAffinityError):
        return
    laxest = LAXER.get(node.options.topology_manager_policy, ())[-1:]
    for policy, where in under_policies(node, state, pod, request, laxest):
        yield f"policy {policy} on NUMA node{'s' * (len(where) != 1)} {where or 'any'}"


def _after_ends(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Iterator[str]:
    uids = likely_ends(node, state, pod, request)
    for uid in islice(uids, POD_ENDS):
        if tried(node, state.released(uid), pod, request):
            yield f"after {pod_name(state, uid)} ends"
            return


def _holding(state: State, key: str) -> str:
    allocation = state.allocations[key]
    amounts = [f"{len(allocation.cpus)} CPUs {allocation.cpus}"] if allocation.cpus else []
    memory = sum(block.size_bytes for block in allocation.memory if block.resource == MEMORY)
    if memory:
        amounts.append(
            f"{round_down(memory)} on NUMA node{'s' * (len(allocation.mems) > 1)} {allocation.mems}"
        )
    uid, container = owner_of(key)
    return f"{pod_name(state, uid)}/{container} ({', '.join(amounts) or 'huge pages'})"


def _where(node: Node, cpus: int, mems: NodeMask, hint: MergedHint) -> NodeMask:
    """Where it would come to lie; for what holds nothing the merged hint."""
    lies = NodeMask(tables_of(node).nodes_of(cpus)) | mems
    return lies or hint.affinity or NodeMask()


def _with_request(facts: PodFacts, name: str, milli: int) -> PodFacts:
    return replace(facts, containers=tuple(_changed(facts.containers, name, milli)))


def _changed(containers: Iterable[ContainerFacts], name: str, milli: int) -> Iterator[ContainerFacts]:
    for one in containers:
        is_meant = one.name == name
        yield replace(one, amounts=replace(one.amounts, cpu_request_milli=milli)) if is_meant else one
