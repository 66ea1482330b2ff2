"""Pods with resources of their own that are found running: what they own as a whole is rebuilt.

After the loss of the checkpoint the runtime's list tells the cpuset of each container. It does not tell which of them
belong together. The pod's object does, and it comes later, or never. So there are two steps:

1. At Synchronize, containers of a Guaranteed pod that are not alone on their CPUs, and run on CPUs that no shared pool of
   the node has, keep these as the shared pool of their pod (`with_pools`).
2. With the facts, the CPUs and the memory of the pod are rebuilt from what its containers have (`with_facts`). CPUs that
   no container tells of are allocated anew, the nearest ones. Where that is not sound, or not enough CPUs are left, the
   pod stays as it is and counts as incomplete (`lacks_its_resources`). A pod without resources of its own returns its pool.

Invariant: a container that runs on CPUs of its pod is not moved, and no CPU gets a second owner.

Differs: the kubelet does not start on a damaged state file, and without a file it admits running pods anew;
    here: a pod with resources of its own gets back what its containers run on, or is shown as incomplete.
    Why: a running container is never moved. Option: none.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from nri_plugin.core.hint_providers import tables_of
from nri_plugin.core.placement import adopted, exclusive_count, leave_a_pool, place
from nri_plugin.core.pods import divided, in_whole_cores
from nri_plugin.core.requests import (
    ContainerRequest,
    annotated,
    gives_wholes,
    owned_as_whole,
    regime_now,
    spec_requests,
)
from nri_plugin.model import bounds
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import CPUManagerPolicy, Node, SMTOddCounts
from nri_plugin.model.records import (
    Allocation,
    ContainerRecord,
    Kind,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
    Regime,
    allocation_key,
    is_whole_pod,
    owner_of,
)
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.cpu_policy import nearest
from nri_plugin.policy.pod_level import PodPart, cpu_claim, has_own_resources, pod_cpus, sets_of
from nri_plugin.policy.search.mask_order import distances_of

Found = tuple[ContainerRecord, ContainerRequest | None]
"""A container of the runtime's list without a record; its request, None where an annotation refuses it."""


# ----------------------------------------------------------------------------------------------------
# 1. At Synchronize, without facts.


def with_pools(node: Node, state: State, found: Sequence[Found]) -> tuple[State, int]:
    """The state in which found containers keep the shared pools of their pods, and the number of these pods.

    A wrong guess would keep CPUs from other pods until the facts come, so all of this has to hold: CPUs go to pods as
    wholes here, the pod is Guaranteed, and its containers run on no reserved CPU and on no more CPUs than the pod asks for.
    Where the runtime does not tell what it asks for, they have to run on one set, and every shared pool of the node has to
    have reserved CPUs, so that this one is none. None of them has a resource claim: the CPUs of that are not the pod's.
    """
    if not gives_wholes(node.options) or node.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        return state, 0
    by_pod: dict[str, list[Found]] = {}
    for one in found:
        if _is_live(one[0]):
            by_pod.setdefault(one[0].pod_uid, []).append(one)
    divided_by_pod = {uid: _alone_and_not(node, all_of) for uid, all_of in by_pod.items()}
    owned = {uid: _stored(alone) for uid, (alone, _) in divided_by_pod.items()}
    once = twice = NO_CPUS
    for cpus in owned.values():
        twice |= once & cpus
        once |= cpus
    count, claimed = 0, {record.pod_uid for record, request in found if request and request.claim.cpus}
    for uid, (alone, others) in divided_by_pod.items():
        pod = state.pods[uid]
        is_out = uid in claimed or allocation_key(uid, "") in state.allocations
        if pod.regime is Regime.FOUND and pod.qos is QOSClass.GUARANTEED and not is_out:
            after = _with_pool(node, state, pod, alone, others, (once - owned[uid]) | twice)
            state, count = after or state, count + (after is not None)
    return state, count


def _alone_and_not(node: Node, all_of: Sequence[Found]) -> tuple[list[Found], list[Found]]:
    """The containers of a pod that run on as many CPUs as they get for themselves and where no other one does; the others."""
    same = Counter(record.stored_cpus for record, _ in all_of)
    alone, others = list[Found](), list[Found]()
    for record, request in all_of:
        try:
            count = exclusive_count(node, request) if request else 0
        except AdmissionError:
            count = 0
        cpus = record.stored_cpus
        (alone if 0 < count == len(cpus) and same[cpus] == 1 else others).append((record, request))
    return alone, others


def _with_pool(
    node: Node,
    state: State,
    pod: PodRecord,
    alone: Sequence[Found],
    others: Sequence[Found],
    foreign: CPUSet,
) -> State | None:
    """The state in which the pod has the CPUs of these containers; None where they are not those of a pod.

    Args:
        node: the node.
        state: before.
        pod: the pod.
        alone: its containers that run on CPUs of their own.
        others: its other containers. Those in the shared pool of the node, such as ephemeral ones, stay there.
        foreign: CPUs on which containers of other pods run alone.
    """
    sharers = [one for one in others if one[0].stored_cpus and one[0].stored_cpus.isdisjoint(node.reserved)]
    slices, pool = _stored(alone), _stored(sharers)
    block, taken = slices | pool, state.exclusive | foreign
    whole, rest = divmod(pod.cpu_milli or 0, 1000)
    is_one_set = len({record.stored_cpus for record, _ in sharers}) == 1
    is_no_pool = bool(node.reserved) and not node.options.strict_cpu_reservation
    is_sound = (
        bool(sharers)
        and (is_one_set and is_no_pool if pod.cpu_milli is None else not rest and len(block) <= whole)
        and len({record.key for record, _ in (*alone, *sharers)}) == len(alone) + len(sharers)
        and slices.isdisjoint(pool)
        and _may_own(node, taken, block)
    )
    if not is_sound:
        return None
    for record, request in alone:
        kept = adopted(node, state, request, record.stored_cpus, record.stored_mems) if request else None
        if kept is None:
            return None
        state = kept
    for record, request in sharers:
        state = _sharing(node, state, record, request)
    nodes = node.topology.nodes_of(block)
    total = pod.cpu_milli or 1000 * len(block)
    state = state.with_pod(replace(pod, affinity=nodes, affinity_preferred=False))
    return state.with_allocation(
        allocation_key(pod.uid, ""), Allocation(block, cpu_milli=total, affinity=nodes, preferred=False)
    )


def _sharing(node: Node, state: State, record: ContainerRecord, request: ContainerRequest | None) -> State:
    """The state in which the container keeps its CPUs, as the shared pool of its pod, and its memory."""
    cpus = record.stored_cpus
    if request is not None:
        memory_only = replace(request, cpu_milli=0, wanted_exclusive=0)
        state = adopted(node, state, memory_only, NO_CPUS, record.stored_mems) or state
    held = replace(
        state.allocations.get(record.key, Allocation()),
        cpus=cpus,
        cpu_milli=(request.cpu_milli if request else 0) or 0,
        affinity=node.topology.nodes_of(cpus),
        preferred=False,
        is_pod_shared=True,
    )
    return state.with_allocation(record.key, held)


def _may_own(node: Node, taken: CPUSet, block: CPUSet) -> bool:
    """Whether a pod may own these CPUs beside those that are taken. CPUs that are offline stay its own."""
    is_free = block.isdisjoint(taken | node.reserved) and block - node.topology.offline <= node.allocatable
    return is_free and bool(node.topology.online - taken - block)


def _stored(found: Iterable[Found]) -> CPUSet:
    return _union(record.stored_cpus for record, _ in found)


def _union(sets: Iterable[CPUSet]) -> CPUSet:
    mask = 0
    for one in sets:
        mask |= one.mask
    return CPUSet(mask)


# ----------------------------------------------------------------------------------------------------
# 2. With the facts.


def with_facts(node: Node, state: State, pod: PodRecord, facts: PodFacts) -> State:
    """The state once the facts of a pod that was found running are known; `pod` has them.

    It stays as it is where the resources of the pod as a whole cannot be rebuilt. Once nothing of it runs and it holds
    nothing, the next creation tries to give it resources anew (`nri_plugin.core.pods`).
    """
    if regime_now(node.options, facts) is Regime.WHOLE:
        return rebuilt(node, state, pod, facts) or state
    pod = replace(pod, regime=Regime.EACH)
    state = state.with_pod(pod)
    return state if has_own_resources(facts) else _each_placed(node, _without_pool(state, pod.uid), pod)


def _each_placed(node: Node, state: State, pod: PodRecord) -> State:
    """The state in which running containers have what they ask for. Without the facts they were taken for ones that share.

    The total that the runtime reports may be older than a resize, and then a container seems to have no limits of its own.
    """
    requests = {one.name: one for one in spec_requests(node.options, pod)}
    for record in state.containers_of(pod.uid):
        request = requests.get(record.name)
        if request is None or record.key in state.allocations or record.unplaced or not _is_live(record):
            continue
        try:
            state = place(node, state, pod, annotated(node.options, pod, request)).state
        except AdmissionError as error:
            state = state.with_container(replace(record, unplaced=bounds.reason(str(error))))
    return state


def _without_pool(state: State, uid: str) -> State:
    """The state without what the pod has as a whole: its containers own what they have alone."""
    if allocation_key(uid, "") not in state.allocations:
        return state
    state = state.without_allocation(allocation_key(uid, ""))
    for key, one in state.allocations_of(uid).items():
        if one.is_pod_shared:
            alone = replace(one, cpus=NO_CPUS, is_pod_shared=False)
            state = state.with_allocation(key, alone) if one.memory else state.without_allocation(key)
    return state


def rebuilt(node: Node, state: State, pod: PodRecord, facts: PodFacts) -> State | None:
    """The state in which the pod owns its resources as a whole; None where its containers do not tell which these are."""
    if any(one.claim for one in state.allocations_of(pod.uid).values()):
        return None  # another program's CPUs are no part of the pod's
    # 1. What its containers have: by their allocations, else by the runtime.
    records = {
        one.name: one
        for one in sorted(state.containers_of(pod.uid), key=_is_live)
        if facts.container(one.name) is not None
    }
    if not records:
        return None
    live = {name for name, one in records.items() if _is_live(one)}
    told = {name: one.stored_cpus for name, one in records.items() if one.stored_cpus or name in live}
    held = {
        owner_of(key)[1]: one.cpus
        for key, one in state.allocations_of(pod.uid).items()
        if not is_whole_pod(key) and one.cpus
    }
    # 2. The CPUs of the pod, and the part of each container.
    count, amounts = owned_as_whole(node.options, facts)
    others, block, parts = state.released(pod.uid), NO_CPUS, dict[str, PodPart]()
    if count:
        sizes = (_block(node, others, one, told | held, live) for one in _sizes(node, pod, facts))
        found = next(filter(None, sizes), None)
        if found is None:
            return None
        block, parts = found
    elif held:
        return None
    # 3. Its memory.
    memory = _memory(node, amounts, [one for name, one in records.items() if name in live or not live])
    if memory is None:
        return None
    return _owning(node, others, pod, facts, block, parts, memory)


def _is_live(record: ContainerRecord) -> bool:
    return record.phase is not Phase.STOPPED


def _sizes(node: Node, pod: PodRecord, facts: PodFacts) -> Iterator[PodFacts]:
    """The pod's facts under each rule for odd counts that may have admitted it; the rule may have changed since."""
    for rule in dict.fromkeys((node.options.smt_odd_counts, SMTOddCounts.KUBELET, SMTOddCounts.ROUND_UP)):
        with suppress(AdmissionError):  # this rule refuses the pod, so it did not admit it
            yield in_whole_cores(
                dataclasses.replace(node, options=dataclasses.replace(node.options, smt_odd_counts=rule)),
                pod,
                facts,
            )


def _block(
    node: Node, others: State, facts: PodFacts, has: Mapping[str, CPUSet], live: Collection[str]
) -> tuple[CPUSet, dict[str, PodPart]] | None:
    """The CPUs of the pod and the part of each container; None where they do not follow from what containers have.

    Args:
        node: the node.
        others: the state without the pod's allocations.
        facts: the pod's; its CPUs are those that it owns.
        has: the CPUs of its containers, by name, also of ended ones.
        live: the containers that have not ended.
    """
    count, claims = pod_cpus(facts), {one.name: cpu_claim(facts, one) for one in facts.containers}
    slices = {name: cpus for name, cpus in has.items() if claims.get(name)}
    # The slice of an ended init container may be part of those of later containers.
    inits = {one.name for one in facts.containers if one.kind is Kind.INIT}
    apart = [cpus for name, cpus in slices.items() if name in live or name not in inits]
    block = _union(has.values())
    is_sound = (
        0 < len(block) <= count
        and all(len(cpus) == claims[name] for name, cpus in slices.items())
        and len(_union(apart)) == sum(map(len, apart))
        and _may_own(node, others.exclusive, block)
    )
    if not is_sound:
        return None
    try:
        if len(block) < count:
            # CPUs that no container has, or of a container that is gone: others may have them by now.
            tables, distances = tables_of(node), distances_of(node.topology)
            available, missing = others.available(node), count - len(block)
            block |= _union(nearest(tables, block, available, missing, node.options, distances))
        leave_a_pool(node, others, block)
        parts = sets_of(tables_of(node), facts, block, node.options, slices)
    except AdmissionError:
        return None
    is_the_same = all(name in parts and parts[name].cpus == cpus for name, cpus in has.items())
    return (block, parts) if is_the_same else None


def _memory(
    node: Node, amounts: Mapping[str, int], records: Collection[ContainerRecord]
) -> tuple[MemoryBlock, ...] | None:
    """The memory of the pod, on the nodes that its containers are bound to; None where these differ.

    How it is spread over the nodes is not known, so it counts for the group as a whole.
    """
    bound = {one.stored_mems for one in records}
    mems = bound.pop()
    if amounts and (bound or not mems <= node.topology.nodes_with_memory):
        return None
    return tuple(MemoryBlock(mems, resource, size) for resource, size in amounts.items() if mems)


def _owning(
    node: Node,
    others: State,
    pod: PodRecord,
    facts: PodFacts,
    block: CPUSet,
    parts: Mapping[str, PodPart],
    memory: tuple[MemoryBlock, ...],
) -> State:
    mems = memory[0].nodes if memory else NO_NODES
    nodes, total = node.topology.nodes_of(block) | mems, facts.pod_resources
    state = others.with_pod(
        replace(pod, regime=Regime.WHOLE, is_admitted=True, affinity=nodes, affinity_preferred=False)
    )
    # They were placed by themselves and did not fit; now they have their part of the pod.
    placed = {one.id: replace(one, unplaced="") for one in state.containers_of(pod.uid) if one.name in parts}
    state = state.with_containers(placed)
    if not block and not memory:
        return state
    milli = total.cpu_request_milli if total else 0
    whole = Allocation(block, mems, memory, milli, affinity=nodes, preferred=False)
    return divided(state, pod.uid, facts, whole, parts)
