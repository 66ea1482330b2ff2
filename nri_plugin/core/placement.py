"""Placement: hints, merge, admission, then CPUs and memory, or a refusal.

`place` works on a state and returns the next one; nothing is kept unless the caller keeps that. Everything known about a
request is computed once, in the `Question` that providers are asked, and the steps after the merge use the same value.

The steps, in the kubelet's order: keep an allocation that fits the request; collect the hints of all providers; merge
them, for the container or once for its whole pod; admit or refuse; take CPUs and memory under the merged hint.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from nri_plugin.core.annotations import annotated_node
from nri_plugin.core.claims import OWNER
from nri_plugin.core.hint_providers import Question, ask, memory_request, memory_state_of, tables_of
from nri_plugin.core.pool import pins
from nri_plugin.core.requests import (
    ContainerRequest,
    annotated,
    gives_wholes,
    is_of_its_size,
    peak,
    pod_request,
    spec_requests,
)
from nri_plugin.core.reuse import (
    donors,
    handed_over,
    is_plain_init,
    live_keys,
    reusable_cpus,
    reusable_memory,
)
from nri_plugin.model.errors import (
    AdmissionError,
    InsufficientCPUsError,
    TopologyAffinityError,
    TwoOwnersError,
)
from nri_plugin.model.options import (
    CPUManagerPolicy,
    Node,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    narrowed,
)
from nri_plugin.model.records import (
    Allocation,
    ContainerRecord,
    MemoryBlock,
    PodRecord,
    QOSClass,
    named,
)
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.policy.cpu_assignment import Note
from nri_plugin.policy.cpu_policy import allocate_cpus, whole_core_count
from nri_plugin.policy.device_hints import device_hint_sets, devices_by_node
from nri_plugin.policy.hints import Hint, HintSet, Provider
from nri_plugin.policy.memory_assignment import allocate_memory
from nri_plugin.policy.memory_state import MEMORY, NO_REUSE
from nri_plugin.policy.merge import MergedHint, admit
from nri_plugin.policy.search.mask_order import Distances, TieBreak, distances_of, tie_break

# ----------------------------------------------------------------------------------------------------
# The placement of a container. The steps follow below, in this order.


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a container.

    Attributes:
        state: with the allocation in it.
        allocation: None when nothing was allocated (shared pool, memory anywhere).
        steps: why, in short codes.
        hint: the merged hint where there is one and nothing was allocated.
        unresized: why a container that is started again keeps the size that it had; empty where it asks for no other.
    """

    state: State
    allocation: Allocation | None
    steps: tuple[str, ...]
    hint: MergedHint | None = None
    unresized: str = ""

    def remembered_by(self, record: ContainerRecord) -> ContainerRecord:
        """The container's record, with the hint that no allocation keeps."""
        if self.hint is None:
            return record
        return replace(
            record, affinity=self.hint.affinity or NO_NODES, affinity_preferred=self.hint.preferred
        )


def with_a_cpu(node: Node, placed: Placement) -> Placement:
    """The placement of a container that does not run yet, which needs a CPU to run on.

    Raises:
        InsufficientCPUsError: it needs the shared pool, and that has no CPU left. Without a cpuset it would run on the
            exclusive CPUs of others.
    """
    has_cpus = placed.allocation is not None and placed.allocation.cpus
    if not has_cpus and pins(node, placed.state) and not placed.state.shared_pool(node):
        hint = f"all online CPUs {node.topology.online} are exclusive; bring CPUs online or end a container that holds some"
        raise InsufficientCPUsError(1, 0, hint)
    return placed


def place(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Placement:
    """Allocate CPUs and memory to `request`, or keep those that it already has.

    Raises:
        AdmissionError: policy refuses it; the given state stays valid.
    """
    # 0. Another program gave it its CPUs, and gives them again at each start of the container.
    if request.claim.cpus:
        claimed = with_claim(node, state, request)
        return Placement(claimed, claimed.allocations[request.key], ("claimed",))
    # 1. The need on this node: CPUs that it may have, how many of them exclusively, memory that policy allocates.
    node = narrowed(node, request.isolated)
    memory, key = memory_request(node, request), request.key
    # 2. An earlier instance. The container keeps its allocation when it is started again and asks for the same.
    held = state.allocations.get(key)
    is_same = held is not None and held.cpu_milli == request.cpu_milli
    # Under other options it may come to another number of CPUs. A pod that was admitted as a whole keeps what it has.
    has = len(held.cpus) if held and is_same else 0
    count = has if is_same and pod.is_admitted else _count_found(node, request, has)
    is_same = is_same and held is not None and len(held.cpus) == count
    if held is not None and is_same and not _is_taken_over(state, pod, request, held):
        return _kept(node, state, pod, request, held, memory)
    if held is not None and not held.memory and is_plain_init(pod.facts, request.name):
        # It ran before and gave its memory back. The kubelet admits it only once and takes no memory for it again.
        request, memory = replace(request, memory_bytes=0, hugepages=()), {}
    before = state.without_allocation(key)
    # 3. Nothing to allocate: the shared pool, unless a device or a provider of another package objects.
    if not count and not memory:
        return _placed_in_pool(node, before, pod, request)
    # 4. Hints and merge come first: under pod scope they are settled for the whole pod by its first container.
    question = _question(node, before, pod, request, count, memory)
    refuse_last_cpu(question)
    # 5. CPUs before memory, as in the kubelet; either may still refuse.
    got = _granted_own_first(question)
    allocation = Allocation(
        cpus=got.cpus,
        mems=got.mems,
        memory=got.blocks,
        cpu_milli=request.cpu_milli or 0,
        affinity=got.hint.affinity or NO_NODES,
        preferred=got.hint.preferred,
        is_init=is_plain_init(pod.facts, request.name),
    )
    # 6. CPUs and memory of ended containers leave their allocations, but for the CPUs of init containers.
    after = handed_over(got.state, question.donors, got.cpus, got.blocks)
    for init in _proven_inits(question) or ():
        after = after.without_allocation(init)
    after = after.with_allocation(key, allocation)
    return Placement(after, allocation, (*got.steps, "exclusive" if count else "memory"))


# ----------------------------------------------------------------------------------------------------
# 0. CPUs of a resource claim.


def with_claim(node: Node, state: State, request: ContainerRequest) -> State:
    """The state in which the container has the CPUs of its resource claim, and nothing of this agent.

    A request of as many whole CPUs as the claim has is the claim's own: before KEP-5517, pods state them twice.

    Raises:
        AdmissionError: the CPUs are those of another container, or the last of the shared pool; or the container asks
            this agent for CPUs, too.

    Source: kubernetes-sigs/dra-driver-cpu v0.2.0, docs/user/workload-requirements.md.
    """
    claim, before = request.claim, _claim_left(state.without_allocation(request.key), request)
    count = exclusive_count(node, request)
    if count and (request.wanted_exclusive or count != len(claim.cpus)):
        raise TwoOwnersError(
            claim.names,
            claim.cpus,
            f"and container {request.name} asks {OWNER} for {count} exclusive CPUs; request as many CPUs as the claim "
            "has, or a fraction, or remove the claim",
        )
    for key, one in before.allocations.items():
        if not one.cpus.isdisjoint(claim.cpus):
            owner = f"the claim {one.claim}" if one.claim else OWNER
            raise TwoOwnersError(
                claim.names,
                claim.cpus,
                f"and {owner} gave {one.cpus & claim.cpus} to {named(before.pods, key)}; let only one of the two give CPUs "
                "on this node",
            )
    leave_a_pool(node, before, claim.cpus)
    allocation = Allocation(
        claim.cpus,
        cpu_milli=request.cpu_milli or 0,
        affinity=node.topology.nodes_of(claim.cpus),
        claim=claim.names,
    )
    return before.with_allocation(request.key, allocation)


def _claim_left(state: State, request: ContainerRequest) -> State:
    """The state in which ended containers of the pod no longer have the same claim, such as its init containers."""
    live = live_keys(state, request.pod_uid)
    for key, one in state.allocations_of(request.pod_uid).items():
        if one.claim == request.claim.names and key not in live:
            state = state.without_allocation(key)
    return state


# ----------------------------------------------------------------------------------------------------
# 1. The need: exclusive CPUs. The memory is `hint_providers.memory_request`.


def exclusive_count(node: Node, request: ContainerRequest) -> int:
    """How many exclusive CPUs the container gets; 0 = it runs in the shared pool.

    Raises:
        AdmissionError: the runtime cannot tell the number, or the rule for odd counts refuses it.
    """
    if node.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        return 0
    if request.cpu_milli is None:
        raise AdmissionError(
            f"container {request.name} asks for 256 CPUs or more without a CPU limit; "
            "the runtime cannot tell how many, so it gets no exclusive CPUs: set a CPU limit, or run the exporter, "
            "which reads the request from the pod"
        )
    threads = tables_of(node).cpus_per_core
    return whole_core_count(_odd_rule(node, request), request.exclusive_cpus, threads)


def _odd_rule(node: Node, request: ContainerRequest) -> SMTOddCounts:
    return request.smt_odd_counts or node.options.smt_odd_counts


# ----------------------------------------------------------------------------------------------------
# 2. An earlier instance: its allocation is kept.


def _kept(
    node: Node,
    state: State,
    pod: PodRecord,
    request: ContainerRequest,
    held: Allocation,
    memory: Mapping[str, int],
) -> Placement:
    """The allocation that the container already has.

    Another container of its pod may have taken over its memory in the belief that it had ended; that is allocated anew.

    Raises:
        AdmissionError: there is not as much left.
    """
    if is_plain_init(pod.facts, request.name) or not _has_lost(held, memory):
        return Placement(state, held, ("kept",))
    others = state.without_allocation(request.key)
    keys = donors(others, pod, request.name)
    grant = allocate_memory(
        memory_state_of(node, others),
        memory,
        MergedHint(held.memory[0].nodes, preferred=False),
        reuse=reusable_memory(others, keys),
    )
    held = replace(held, mems=grant.nodes & node.topology.nodes_with_memory, memory=grant.blocks)
    state = handed_over(others, keys, NO_CPUS, grant.blocks).with_allocation(request.key, held)
    return Placement(state, held, ("kept", "memory-taken-anew"))


def _is_taken_over(state: State, pod: PodRecord, request: ContainerRequest, held: Allocation) -> bool:
    """Whether a live container of the pod runs on the CPUs of this init container, which is created again beside it.

    Differs: the kubelet gives an init container that is created again the CPUs that it had, also
        when a running container of its pod now owns them; here: the init container is placed anew. Why: no
        container shares an exclusive CPU. Option: none.
    """
    if not held.is_init:
        return False
    live = live_keys(state, pod.uid) - {request.key}
    return any(
        key in live and not held.cpus.isdisjoint(one.cpus)
        for key, one in state.allocations_of(pod.uid).items()
    )


def _has_lost(held: Allocation, memory: Mapping[str, int]) -> bool:
    return any(block.size_bytes < memory.get(block.resource, 0) for block in held.memory)


# ----------------------------------------------------------------------------------------------------
# 3. Nothing to allocate: the shared pool.


def _placed_in_pool(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Placement:
    """A container without an allocation; its devices and providers of other packages can still refuse it.

    A container that is started again, or whose pod was admitted as a whole, is not asked about again: the kubelet admits
    a container once.
    """
    if pod.is_admitted:
        return Placement(state, None, ("shared",))
    of_pod = state.containers_of(pod.uid)
    before = next((one for one in of_pod if one.name == request.name and not one.unplaced), None)
    if before is not None:
        return Placement(state, None, ("shared",), _hint_of(before))
    if not (request.devices or node.hint_providers):
        return Placement(state, None, ("shared",))
    state, hint, steps = _admitted(_question(node, state, pod, request, 0, {}))
    return Placement(state, None, (*steps, "shared"), hint)


def _hint_of(record: ContainerRecord) -> MergedHint | None:
    return None if record.affinity is None else MergedHint(record.affinity or None, record.affinity_preferred)


# ----------------------------------------------------------------------------------------------------
# 4. Hints and merge, by the scope of the topology manager.

STRICT = (TopologyManagerPolicy.RESTRICTED, TopologyManagerPolicy.SINGLE_NUMA_NODE)
"""Policies that refuse what does not fit their hints."""

POD_SCOPE = "pod-scope"
"""The step of a container that decides for its whole pod."""

KEPT_HINT = "pod-scope-kept"
"""The step of a container that is placed by the hint of its pod."""

OWN_FIRST = "own-first"
"""The step of a container that gets only what ended init containers of its pod leave."""


def question_of(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Question:
    """The question to hint providers about a container without an allocation in `state`.

    Raises:
        AdmissionError: as `exclusive_count`.
    """
    node = narrowed(node, request.isolated)
    return _question(node, state, pod, request, exclusive_count(node, request), memory_request(node, request))


def _question(
    node: Node,
    state: State,
    pod: PodRecord,
    request: ContainerRequest,
    count: int,
    memory: Mapping[str, int],
) -> Question:
    keys = donors(state, pod, request.name)
    return Question(
        node,
        state,
        pod,
        request,
        exclusive_cpus=count,
        memory=memory,
        donors=keys,
        reusable=reusable_cpus(state, keys) & node.allocatable if count else NO_CPUS,
        reuse=reusable_memory(state, keys) if memory else NO_REUSE,
    )


def _proven_inits(question: Question) -> tuple[str, ...] | None:
    """Ended containers of a pod without facts that are init containers for sure; None where that cannot be told.

    Beside them, this container and those that live would ask for more than their pod does. So they have ended before these
    start, and their pod needs nothing of them any more. What no container takes over would be missing to other pods: the
    scheduler counts the larger of init containers and others, not both.
    """
    state, pod, request = question.state, question.pod, question.request
    if pod.facts is not None or not question.donors or not (pod.cpu_milli or pod.memory_bytes):
        return None
    live = live_keys(state, pod.uid)
    held = [one for key, one in state.allocations_of(pod.uid).items() if key in live]
    cpu_milli = (request.cpu_milli or 0) + sum(one.cpu_milli for one in held)
    memory = request.memory_bytes + sum(map(_memory_bytes, held))

    def is_too_much(one: Allocation) -> bool:
        is_more = bool(pod.cpu_milli) and cpu_milli + one.cpu_milli > (pod.cpu_milli or 0)
        return is_more or (bool(pod.memory_bytes) and memory + _memory_bytes(one) > (pod.memory_bytes or 0))

    return tuple(key for key in question.donors if is_too_much(state.allocations[key]))


def _memory_bytes(one: Allocation) -> int:
    return sum(block.size_bytes for block in one.memory if block.resource == MEMORY)


def own_first(question: Question) -> Question | None:
    """The same question with nothing but what the pod's ended init containers leave; None where that is too little.

    With facts all containers of a pod are placed at once, by the kubelet's rule, which prefers nothing. Without them, other
    pods may end between an init container and the next one, which might then take other CPUs and leave those.
    """
    if question.pod.facts is not None:
        return None
    inits, state = _proven_inits(question), question.state
    keys = question.donors if inits is None else inits
    cpus = reusable_cpus(state, keys) & question.node.allocatable if keys else NO_CPUS
    if not keys or len(cpus) < question.exclusive_cpus:
        return None
    return dataclasses.replace(
        question, reusable=cpus, reuse=reusable_memory(state, keys), only_reusable=True
    )


class _Granted(NamedTuple):
    """What a container gets."""

    state: State
    hint: MergedHint
    steps: tuple[str, ...]
    cpus: CPUSet
    blocks: tuple[MemoryBlock, ...]
    mems: NodeMask


def _granted(question: Question) -> _Granted:
    """Steps 4 and 5.

    Raises:
        AdmissionError: there is not as much, or not as the policy requires.
    """
    state, hint, steps = _admitted(question)
    cpus = cpus_under(question, hint)
    if steps == (KEPT_HINT,) and state.containers_of(question.pod.uid):
        _refuse_outside(question, hint, cpus)
    leave_a_pool(question.node, state, cpus)
    return _Granted(state, hint, steps, cpus, *memory_under(question, hint))


def _granted_own_first(question: Question) -> _Granted:
    """What the kubelet's rule chooses; where that leaves CPUs or memory of ended init containers unused, these alone.

    Raises:
        AdmissionError: as `_granted`.
    """
    whole, alone = _granted(question), own_first(question)
    if alone is None or _is_within(whole, alone):
        return whole
    with suppress(AdmissionError):
        own = _granted(alone)
        return own._replace(steps=(*own.steps, OWN_FIRST))
    return whole


def _is_within(whole: _Granted, alone: Question) -> bool:
    """Whether nothing is taken beside what ended init containers leave, as far as that is enough."""
    takes_memory = any(
        block.size_bytes > alone.reuse.get((block.nodes.mask, block.resource), 0) for block in whole.blocks
    )
    return whole.cpus <= alone.reusable and not (takes_memory and alone.is_reuse_enough)


def _admitted(question: Question) -> tuple[State, MergedHint, tuple[str, ...]]:
    """The merged hint for the container, or for its whole pod, which is merged once and then kept."""
    state, pod = question.state, question.pod
    scope, asked = in_scope(question)
    if asked is None:
        hint = _kept_hint(question)
        return _keeping(state, pod, hint, pod.devices_counted), hint, (scope,)
    terms = terms_of(asked)
    hint = admit(*terms[:3], distances=terms.distances, tie_break=terms.tie_break)
    if scope == POD_SCOPE:
        state = _keeping(state, pod, hint, bool(question.request.pod_devices))
    return state, hint, (scope,) if hint.exact else (scope, "inexact-hint")


def _keeping(state: State, pod: PodRecord, hint: MergedHint, counted: bool) -> State:
    """The state with the hint by which the later containers of the pod are placed."""
    if pod.affinity is not None:
        return state
    affinity = hint.affinity or NO_NODES
    return state.with_pod(
        replace(pod, affinity=affinity, affinity_preferred=hint.preferred, devices_counted=counted)
    )


def in_scope(question: Question) -> tuple[str, Question | None]:
    """The scope by which a container is placed, and the question to providers, None where its pod has a hint already."""
    node, pod, request = question.node, question.pod, question.request
    if node.options.topology_manager_scope is TopologyManagerScope.CONTAINER:
        return "container-scope", question
    # Older runtimes do not tell the pod's total; then each container is placed for itself.
    if pod.cpu_milli is None and pod.facts is None:
        return "pod-total-unknown", question
    if pod_hint(question.state, pod) is not None:
        return KEPT_HINT, None
    # The amounts are the pod's. The allocations, and those that pass on to the container, stay as they are.
    total = replace(pod_request(node.options, pod), devices=request.pod_devices or request.devices)
    memory, count = memory_request(node, total), _pod_count(node, pod, total)
    return POD_SCOPE, dataclasses.replace(question, request=total, exclusive_cpus=count, memory=memory)


def _pod_count(node: Node, pod: PodRecord, total: ContainerRequest) -> int:
    """Exclusive CPUs of the whole pod at its peak, with the last core of each container filled up where options say so.

    Differs: the kubelet knows how the containers of a pod share its total; here: without the pod's object
        only the total is known, which is too small for several containers with odd counts and too large for
        containers with fractions of CPUs. The first container fixes the nodes, so a later one may be refused.
        Why: the runtime reports no more than the total. Option: `exporterSocket`, with the exporter running.
    """
    if node.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        return 0
    if pod.facts is not None and is_of_its_size(pod):
        requests = (annotated(node.options, pod, request) for request in spec_requests(node.options, pod))
        return peak(pod.facts, [_filled_up(node, request) for request in requests])
    return _filled_up(node, replace(total, cpu_milli=(total.cpu_milli or 0) // 1000 * 1000))


def _filled_up(node: Node, request: ContainerRequest) -> int:
    """Its CPUs after the rule for odd counts. A count that the rule refuses is refused when its container comes."""
    rule, count = _odd_rule(node, request), request.exclusive_cpus
    fills_up = rule is SMTOddCounts.ROUND_UP
    return whole_core_count(rule, count, tables_of(node).cpus_per_core) if fills_up else count


def pod_hint(state: State, pod: PodRecord) -> MergedHint | None:
    """The merged hint of a pod under pod scope; None for a pod that holds nothing yet.

    Where the record of the merge is lost with the checkpoint, the pod is on the NUMA nodes of what it holds. A claim tells
    nothing: another program chose its CPUs.
    """
    if pod.affinity is not None:
        return MergedHint(pod.affinity or None, pod.affinity_preferred)
    held = [one for one in state.allocations_of(pod.uid).values() if not one.claim]
    nodes = NO_NODES
    for one in held:
        nodes |= one.affinity | one.mems
    # No set of nodes is narrower than one node, so it is preferred.
    return MergedHint(nodes or None, preferred=len(nodes) == 1) if held else None


def _kept_hint(question: Question) -> MergedHint:
    """The pod's hint, if policy admits the locality of this container's devices together with it.

    Devices that were part of the pod's merge are not merged again: those of one container may be on fewer nodes than
    those of the pod.

    Raises:
        TopologyAffinityError: the devices are on other nodes.

    Source: kubelet v1.36.2 pkg/kubelet/cm/topologymanager/scope_pod.go: one merge, with the devices of all containers.
    Differs: the kubelet merges the devices of all containers of a pod once; here: where the devices of the
        whole pod were not known, those of a later container are merged with the pod's hint when it comes.
        Why: the runtime reports the devices of one container at a time. Option: `exporterSocket`, with the
        exporter running.
    """
    node, pod, hint = question.node, question.pod, pod_hint(question.state, question.pod)
    assert hint is not None
    if pod.devices_counted:
        return hint
    devices = device_hint_sets(node.topology.node_ids, question.request.devices)
    if devices:
        why = f"pod: placed on NUMA nodes {hint.affinity or 'any'} with its first container"
        nodes = hint.affinity.mask if hint.affinity else None
        kept = (HintSet("pod", (Hint(nodes, hint.preferred),), why=why),)
        admit(node.options.topology_manager_policy, node.topology.node_mask, (devices, kept))
    return hint


class MergeTerms(NamedTuple):
    """The arguments of `policy.merge.merge`."""

    policy: TopologyManagerPolicy
    nodes: NodeMask
    providers: Sequence[Provider]
    distances: Distances | None
    tie_break: TieBreak | None


def terms_of(question: Question) -> MergeTerms:
    """The hints of all providers, and the rules between equally good nodes.

    Raises:
        AdmissionError: a provider of another package failed.
    """
    node, options = question.node, question.node.options
    # The rule ranks nodes by the CPUs that this container could take there, reusable ones included.
    on_offer = question.available | question.reusable
    rule = tie_break(
        options.topology_tie_break,
        tables_of(node),
        on_offer,
        question.exclusive_cpus,
        annotated_node(options, question.pod) & node.topology.node_mask.mask,
    )
    return MergeTerms(
        options.topology_manager_policy, node.topology.node_mask, ask(question), _distances_of(node), rule
    )


@lru_cache(maxsize=16)
def _distances_of(node: Node) -> Distances | None:
    return distances_of(node.topology) if node.options.prefer_closest_numa_nodes else None


# ----------------------------------------------------------------------------------------------------
# 5. CPUs and memory under the merged hint.


def cpus_under(question: Question, hint: MergedHint, note: Note | None = None) -> CPUSet:
    """The exclusive CPUs under the merged hint; `note` is called at each step.

    Raises:
        AdmissionError: there are not enough, or not as the options require.
    """
    node, request, options = question.node, question.request, question.node.options
    rule = _odd_rule(node, request)
    if rule is not options.smt_odd_counts:
        options = dataclasses.replace(options, smt_odd_counts=rule)
    return allocate_cpus(
        tables_of(node),
        question.exclusive_cpus,
        question.state.available(node),
        hint.affinity,
        reserved=node.reserved,
        reusable=question.reusable,
        only_reusable=question.only_reusable,
        options=options,
        weight_by_node=devices_by_node(request.devices) if options.device_proportional_cpus else None,
        note=note,
    )


def _refuse_outside(question: Question, hint: MergedHint, cpus: CPUSet) -> None:
    """Refuse CPUs outside the NUMA nodes of the pod's hint, where the policy binds the pod to these nodes.

    The hint was merged for the whole pod. Without facts only its first container got CPUs then, and other pods may have
    taken the rest before the next one came.

    Raises:
        TopologyAffinityError: there are not enough CPUs on these nodes.
    """
    if hint.affinity is None or question.node.options.topology_manager_policy not in STRICT:
        return
    outside = cpus - CPUSet(tables_of(question.node).cpus_in(hint.affinity.mask))
    if outside:
        raise TopologyAffinityError(
            f"pod: placed on NUMA nodes {hint.affinity} with its first container, and container {question.request.name} would "
            f"get CPUs {outside} outside of them"
        )


def leave_a_pool(node: Node, state: State, cpus: CPUSet) -> None:
    """Refuse to allocate the last CPUs of the shared pool.

    Reserved CPUs prevent that, unless a new configuration reserves CPUs that containers hold.

    Raises:
        InsufficientCPUsError: nothing would be left.
    """
    pool = node.topology.online - state.exclusive
    if cpus and pool <= cpus:
        hint = f"these are the last CPUs of the shared pool, and {_why_none_reserved(node)}"
        raise InsufficientCPUsError(len(cpus), len(pool) - 1, hint)


def refuse_last_cpu(question: Question) -> None:
    """Tell why a CPU stays for the shared pool where a request needs it; see `State.available`.

    Raises:
        InsufficientCPUsError: the request fits only with that CPU.
    """
    node, offered = question.node, question.available | question.reusable
    kept = node.allocatable - question.state.exclusive - question.available
    if kept and question.exclusive_cpus > len(offered):
        hint = f"these are the last CPUs of the shared pool, and {_why_none_reserved(node)}"
        raise InsufficientCPUsError(question.exclusive_cpus, len(offered), hint)


def _why_none_reserved(node: Node) -> str:
    if not node.reserved:
        return "none are reserved"
    if not node.reserved.isdisjoint(node.topology.online):
        return f"reserved CPUs {node.reserved} are held exclusively"
    if not node.reserved.isdisjoint(node.topology.unreachable):
        return f"the cgroup above the pods does not have the reserved CPUs {node.reserved}"
    return f"reserved CPUs {node.reserved} are offline"


def memory_under(question: Question, hint: MergedHint) -> tuple[tuple[MemoryBlock, ...], NodeMask]:
    """The memory under the merged hint, and the NUMA nodes it is bound to.

    Raises:
        AdmissionError: there is not as much.

    Differs: the kubelet binds a container to all NUMA nodes of its hint, also to those without memory; here: it
        is bound to those of them that have memory, and its blocks name all of them, as in the kubelet. Why:
        memory can come from no other node. Option: none.
    """
    if not question.memory:
        return (), NO_NODES
    grant = allocate_memory(question.memory_state, question.memory, hint, reuse=question.reuse)
    return grant.blocks, grant.nodes & question.node.topology.nodes_with_memory


# ----------------------------------------------------------------------------------------------------
# Containers that exist already: no hints, no merge.


def _count_found(node: Node, request: ContainerRequest, has: int) -> int:
    """How many exclusive CPUs a container gets that has `has` now. It keeps them if any rule for odd counts gives as many.

    Raises:
        AdmissionError: as `exclusive_count`.
    """
    # The rule may have changed since the container started.
    for rule in (SMTOddCounts.KUBELET, SMTOddCounts.ROUND_UP) if has else ():
        if has == exclusive_count(node, replace(request, smt_odd_counts=rule)):
            return has
    return exclusive_count(node, request)


def _must_be_own(node: Node, request: ContainerRequest, cpus: CPUSet) -> bool:
    """Whether a container that asks for another number of CPUs cannot be in a shared pool: each has reserved CPUs.

    It was resized, and that was refused (`nri_plugin.core.resize`), or facts that came later say that it shares.
    """
    options = node.options
    is_static = options.cpu_manager_policy is CPUManagerPolicy.STATIC
    if not is_static or options.strict_cpu_reservation or gives_wholes(options):
        return False
    is_whole = request.qos is QOSClass.GUARANTEED and bool(request.cpu_milli)
    return is_whole and bool(cpus and node.reserved) and cpus.isdisjoint(node.reserved)


def adopted(
    node: Node, state: State, request: ContainerRequest, cpus: CPUSet, mems: NodeMask
) -> State | None:
    """The state in which a container that already exists keeps the `cpus` and `mems` it has.

    None when it should have exclusive CPUs and those it has are too few, too many, not free, or the last of the shared pool.
    CPUs that are offline stay its own, as in an allocation of ours.
    """
    if request.key in state.allocations:
        return state
    try:
        if request.claim.cpus:
            return with_claim(node, state, request)
        count = _count_found(node, request, len(cpus))
    except AdmissionError:
        return None
    # Memory nodes that lost their memory are no allocation to keep.
    memory = memory_request(node, request) if mems <= node.topology.nodes_with_memory else {}
    # How its memory is spread over the nodes is not known, so it counts for the group as a whole.
    blocks = tuple(MemoryBlock(mems, resource, size) for resource, size in memory.items() if mems)
    is_resized = len(cpus) != count and _must_be_own(node, request, cpus)
    if not count and not blocks and not is_resized:
        return state
    # With facts it may have those of the init containers before it.
    pod = state.pods.get(request.pod_uid)
    inits = donors(state, pod, request.name) if pod and pod.facts else ()
    taken = state.exclusive - reusable_cpus(state, inits)
    if count and len(cpus) != count and not is_resized:
        return None
    count = len(cpus) if is_resized else count
    if count and not cpus - node.topology.offline <= node.allocatable - taken:
        return None
    if count and not cpus.isdisjoint(taken | node.reserved):
        return None
    # The container keeps running in either case; without an allocation it joins the shared pool, which needs a CPU.
    if count and node.topology.online - state.exclusive <= cpus:
        return None
    own = cpus if count else NO_CPUS
    allocation = Allocation(
        cpus=own,
        mems=mems if blocks else NO_NODES,
        memory=blocks,
        cpu_milli=1000 * len(cpus) if is_resized else request.cpu_milli or 0,
        affinity=node.topology.nodes_of(own),
        preferred=False,
        is_init=is_plain_init(pod.facts if pod else None, request.name),
    )
    return state.with_allocation(request.key, allocation)
