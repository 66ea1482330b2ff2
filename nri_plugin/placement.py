"""Where a container goes: hints, merge, admission, then CPUs and memory, or a refusal.

Pure: a placement is worked out on a state and returned, nothing is kept unless the caller
keeps the new state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from nri_plugin.cpuset import NO_CPUS, CPUSet
from nri_plugin.errors import AdmissionError, InsufficientCPUsError, NotYetSupportedError
from nri_plugin.hint_providers import Question, ask, memory_request, memory_state_of, tables_of
from nri_plugin.nodemask import NO_NODES, NodeMask
from nri_plugin.options import CPUManagerPolicy, Node, Options, SMTOddCounts, TopologyManagerScope
from nri_plugin.policy.admission import admit
from nri_plugin.policy.cpu_choice import take_cpus
from nri_plugin.policy.cpu_policy import allocate_cpus
from nri_plugin.policy.device_hints import device_wishes
from nri_plugin.policy.device_proportion import devices_by_node
from nri_plugin.policy.distances import Distances, distances_of
from nri_plugin.policy.hints import Hint, Wish
from nri_plugin.policy.memory_assignment import allocate_memory
from nri_plugin.policy.merge import MergedHint
from nri_plugin.policy.smt_counts import whole_core_count
from nri_plugin.policy.tables import cpu_tables
from nri_plugin.policy.tie_break import tie_break
from nri_plugin.state import Allocation, MemoryBlock, Phase, PodRecord, QOSClass, State, allocation_key
from nri_plugin.topology import Topology
from nri_plugin.workload import ContainerRequest, pod_request


@dataclass(frozen=True, slots=True)
class Placement:
    """A container placed.

    Attributes:
        state: with the allocation in it.
        allocation: what was promised; None when nothing was (shared pool, memory anywhere).
        steps: why, in short codes.
    """

    state: State
    allocation: Allocation | None
    steps: tuple[str, ...]


@lru_cache(maxsize=4)
def _distances_of(node: Node) -> Distances | None:
    return distances_of(node.topology) if node.options.prefer_closest_numa_nodes else None


def reserved_cpus(topology: Topology, options: Options, count: int) -> CPUSet:
    """Which CPUs are reserved when only their number is configured: those the policy takes first.

    Raises:
        InsufficientCPUsError: the machine has fewer.

    Source: kubelet v1.36 policy_static.go, NewStaticPolicy.
    """
    return take_cpus(cpu_tables(topology), topology.online, count, options)


def place(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Placement:
    """Give `request` its CPUs and memory, or the same again when it already has them.

    Raises:
        AdmissionError: policy refuses it; the state given stays valid.

    Differs: CPUs of a stopped container of the pod pass to the next one created, whether or not
        it was an init container: the runtime does not say which containers are.
    """
    count = _exclusive_count(node, request)
    held = state.allocations.get(request.key)
    if held is not None and held.cpu_milli == request.cpu_milli and len(held.cpus) == count:
        return Placement(state, held, ("kept",))
    state = state.without_allocation(request.key)
    memory = memory_request(node, request)
    if not count and not memory:
        return _placed_in_pool(node, state, pod, request)
    reusable = _reusable(node, state, pod, request.name) if count else NO_CPUS
    state, hint, steps = _admitted(node, state, pod, request, count, reusable)
    cpus = _take_cpus(node, state, request, count, hint, reusable)
    _leave_a_pool(node, state, cpus)
    blocks, mems = _take_memory(node, state, memory, hint)
    allocation = Allocation(
        cpus=cpus,
        mems=mems,
        memory=blocks,
        cpu_milli=request.cpu_milli or 0,
        affinity=hint.affinity or NO_NODES,
        preferred=hint.preferred,
    )
    state = _hand_over(state, pod, cpus & reusable).with_allocation(request.key, allocation)
    return Placement(state, allocation, (*steps, "exclusive" if count else "memory"))


def _placed_in_pool(node: Node, state: State, pod: PodRecord, request: ContainerRequest) -> Placement:
    """Nothing to promise; but devices, and whoever else has a say, can refuse any container.

    A container that is started again was admitted once, as the kubelet has it.
    """
    again = any(
        record.name == request.name and not record.unplaced for record in state.containers_of(pod.uid)
    )
    if again or not (request.devices or node.hint_providers):
        return Placement(state, None, ("shared",))
    state, _, steps = _admitted(node, state, pod, request, 0, NO_CPUS)
    return Placement(state, None, (*steps, "shared"))


def _exclusive_count(node: Node, request: ContainerRequest) -> int:
    if node.options.cpu_manager_policy is not CPUManagerPolicy.STATIC:
        return 0
    if request.cpu_milli is None:
        raise AdmissionError(
            f"container {request.name} asks for 256 CPUs or more without a CPU limit; "
            "the runtime cannot tell how many, so it gets no exclusive CPUs: set a CPU limit"
        )
    threads = tables_of(node).cpus_per_core
    return whole_core_count(_odd_rule(node, request), request.exclusive_cpus, threads)


def _odd_rule(node: Node, request: ContainerRequest) -> SMTOddCounts:
    return request.smt_odd_counts or node.options.smt_odd_counts


def _reusable(node: Node, state: State, pod: PodRecord, name: str) -> CPUSet:
    """Exclusive CPUs promised to containers of the pod that do not live, as far as they may still be given.

    One that ended before the agent was restarted is not even listed; its promise is still here.
    """
    live = {record.key for record in state.containers_of(pod.uid) if record.phase is not Phase.STOPPED}
    prefix, mask = allocation_key(pod.uid, ""), 0
    for key, allocation in state.allocations.items():
        if key.startswith(prefix) and key not in live and key != prefix + name:
            mask |= allocation.cpus.mask
    return CPUSet(mask) & node.allocatable


def _hand_over(state: State, pod: PodRecord, cpus: CPUSet) -> State:
    """Take `cpus` out of the pod's other allocations, so that each CPU has one owner."""
    if not cpus:
        return state
    prefix = f"{pod.uid}/"
    for key, allocation in state.allocations.items():
        if key.startswith(prefix) and not allocation.cpus.isdisjoint(cpus):
            state = state.with_allocation(key, replace(allocation, cpus=allocation.cpus - cpus))
    return state


def _admitted(
    node: Node, state: State, pod: PodRecord, request: ContainerRequest, count: int, reusable: CPUSet
) -> tuple[State, MergedHint, tuple[str, ...]]:
    """The merged hint for the container, or for its whole pod (worked out once, then kept)."""
    question = Question(node, state, pod, request, count, reusable)
    if node.options.topology_manager_scope is TopologyManagerScope.CONTAINER:
        hint = _merged(question)
        return state, hint, ("container-scope", *_doubts(hint))
    if pod.cpu_milli is None:
        hint = _merged(question)
        return state, hint, ("pod-total-unknown", *_doubts(hint))
    if pod.affinity is not None:
        return state, _kept_hint(node, pod, pod.affinity, request), ("pod-scope-kept",)
    total = replace(pod_request(pod), devices=request.pod_devices or request.devices)
    hint = _merged(replace(question, request=total, exclusive_cpus=_pod_count(node, pod)))
    affinity = hint.affinity or NO_NODES
    state = state.with_pod(replace(pod, affinity=affinity, affinity_preferred=hint.preferred))
    return state, hint, ("pod-scope", *_doubts(hint))


def _pod_count(node: Node, pod: PodRecord) -> int:
    """Exclusive CPUs of the whole pod, its last core too where cores are filled up.

    Differs: how containers share the total is not known yet, so a pod of several with odd counts is
        looked for too little room: its first container fixes the nodes, a later one may be refused.
    """
    whole = pod.cpu_milli // 1000 if pod.qos is QOSClass.GUARANTEED and pod.cpu_milli else 0
    rounds_up = node.options.smt_odd_counts is SMTOddCounts.ROUND_UP
    return (
        whole_core_count(SMTOddCounts.ROUND_UP, whole, tables_of(node).cpus_per_core) if rounds_up else whole
    )


def _doubts(hint: MergedHint) -> tuple[str, ...]:
    return () if hint.exact else ("inexact-hint",)


def _kept_hint(node: Node, pod: PodRecord, affinity: NodeMask, request: ContainerRequest) -> MergedHint:
    """The pod's hint, if policy lets this container's devices be where they are beside it.

    Raises:
        TopologyAffinityError: they are elsewhere.

    Differs: the kubelet counts them in when it places the pod. Here they may be known only when their
        container comes, after others of the pod.
    """
    hint = MergedHint(affinity or None, pod.affinity_preferred)
    devices = device_wishes(node.topology.node_ids, request.devices)
    if devices:
        why = f"pod: placed on NUMA nodes {affinity or 'any'} with its first container"
        kept = (Wish("pod", (Hint(affinity.mask or None, hint.preferred),), why=why),)
        admit(node.options.topology_manager_policy, node.topology.node_mask, (devices, kept))
    return hint


def _merged(question: Question) -> MergedHint:
    node, options = question.node, question.node.options
    on_offer = question.state.available(node) | question.reusable
    return admit(
        options.topology_manager_policy,
        node.topology.node_mask,
        ask(question),
        distances=_distances_of(node),
        tie_break=tie_break(options.topology_tie_break, tables_of(node), on_offer, question.exclusive_cpus),
    )


def _take_cpus(
    node: Node, state: State, request: ContainerRequest, count: int, hint: MergedHint, reusable: CPUSet
) -> CPUSet:
    proportional = node.options.device_proportional_cpus
    return allocate_cpus(
        tables_of(node),
        count,
        state.available(node),
        hint.affinity,
        reserved=node.reserved,
        reusable=reusable,
        options=replace(node.options, smt_odd_counts=_odd_rule(node, request)),
        weight_by_node=devices_by_node(request.devices) if proportional else None,
    )


def _leave_a_pool(node: Node, state: State, cpus: CPUSet) -> None:
    """Refuse to hand out the last CPUs of the shared pool.

    Reserved CPUs keep it from coming to this, unless they were chosen anew while containers hold some.

    Raises:
        InsufficientCPUsError: nothing would be left.
    """
    pool = node.topology.online - state.exclusive
    if cpus and pool <= cpus:
        hint = f"these are the last CPUs of the shared pool, and reserved CPUs {node.reserved} are held exclusively"
        raise InsufficientCPUsError(len(cpus), len(pool) - 1, hint)


def _take_memory(
    node: Node, state: State, memory: Mapping[str, int], hint: MergedHint
) -> tuple[tuple[MemoryBlock, ...], NodeMask]:
    if not memory:
        return (), NO_NODES
    grant = allocate_memory(memory_state_of(node, state), memory, hint)
    return grant.blocks, grant.nodes


def refuse_resize(held: Allocation, cpu_milli: int) -> None:
    """Refuse a changed CPU request of a container with exclusive CPUs.

    Raises:
        NotYetSupportedError: the request changed.
    """
    if held.cpus and cpu_milli and cpu_milli != held.cpu_milli:
        raise NotYetSupportedError(
            f"in-place resize of exclusive CPUs (from {held.cpu_milli}m to {cpu_milli}m; it keeps {held.cpus})"
        )


def adopted(
    node: Node, state: State, request: ContainerRequest, cpus: CPUSet, mems: NodeMask
) -> State | None:
    """The state in which a container that already exists keeps the `cpus` and `mems` it has.

    None when it should have exclusive CPUs and those it has are too few, too many, not free, or the last
    of the shared pool.
    """
    if request.key in state.allocations:
        return state
    try:
        count = _exclusive_count(node, request)
    except AdmissionError:
        return None
    memory = memory_request(node, request) if mems <= node.topology.nodes_with_memory else {}
    if count and (len(cpus) != count or not cpus <= state.available(node)):
        return None
    if count and node.topology.online - state.exclusive <= cpus:
        return None
    blocks = tuple(MemoryBlock(mems, resource, size) for resource, size in memory.items() if mems)
    if not count and not blocks:
        return state
    own = cpus if count else NO_CPUS
    allocation = Allocation(
        cpus=own,
        mems=mems if blocks else NO_NODES,
        memory=blocks,
        cpu_milli=request.cpu_milli or 0,
        affinity=node.topology.nodes_of(own),
        preferred=False,
    )
    return state.with_allocation(request.key, allocation)
