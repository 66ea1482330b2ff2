"""Reuse: later containers of a pod take over the CPUs and memory of its ended init containers.

Invariant: a CPU or a byte that is taken over leaves the earlier allocation, so that each has one owner.

CPUs of an init container stay with the pod. The rest of its memory is available to all pods once the next container of its
pod has started: the kubelet has placed all containers of the pod by then. Here later ones may still come. Each of them is
placed as if its pod still had that memory, as long as no other pod took it (`init_memory_restored`). That gives the kubelet's answer
without holding the memory.

With the pod's facts the rules are the kubelet's: plain init containers pass theirs on, sidecars and app containers keep
theirs. An init container that runs once more does so before the app containers, and may take over theirs if they are not
alive.

Differs: without facts every container of the pod that is not alive counts as an init container, because the runtime does
    not tell which are.

Source: kubelet v1.36.2 pkg/kubelet/cm/cpumanager/policy_static.go (updateCPUsToReuse),
    memorymanager/policy_static.go (updatePodReusableMemory), memorymanager/memory_manager.go (AddContainer: since 1.36
    the start of a container removes what plain init containers before it hold).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nri_plugin.model.sets import NO_NODES, CPUSet
from nri_plugin.model.state import (
    Allocation,
    ContainerRecord,
    Kind,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    State,
    allocation_key,
    pod_of,
)
from nri_plugin.policy.memory_state import MemoryState, Reuse, shrink_reused


def donors(state: State, pod: PodRecord, name: str) -> tuple[str, ...]:
    """Keys of the allocations that may pass on to container `name` of the pod, oldest first.

    The allocations are searched, not the records: a container that ended while the agent was away has no record.
    """
    own = allocation_key(pod.uid, name)
    mine = [key for key in state.allocations if pod_of(key) == pod.uid and key != own]
    live = {record.key for record in state.containers_of(pod.uid) if record.phase is not Phase.STOPPED}
    if pod.facts is None:
        # Every ended container may have been an init container. An app container that is created again takes its
        # CPUs back from its own allocation, which is not among these.
        return tuple(key for key in mine if key not in live)
    # Init containers pass on even while their end is not reported: the runtime creates the next one only after it.
    ended = {allocation_key(pod.uid, one) for one in pod.facts.names(Kind.INIT)}
    if is_plain_init(pod.facts, name):
        # The pod starts over: app containers that are not alive are created after this one.
        ended |= {allocation_key(pod.uid, one) for one in pod.facts.names(Kind.APP)} - live
    return tuple(key for key in mine if key in ended)


def is_plain_init(facts: PodFacts | None, name: str) -> bool:
    """Whether the container is known to end before the next one is created."""
    known = facts.container(name) if facts else None
    return known is not None and known.kind is Kind.INIT


def reusable_cpus(state: State, keys: Iterable[str]) -> CPUSet:
    """CPUs of these allocations, which the container may take over."""
    mask = 0
    for key in keys:
        mask |= state.allocations[key].cpus.mask
    return CPUSet(mask)


def reusable_memory(state: State, keys: Iterable[str]) -> Reuse:
    """Memory of these allocations, which the container need not take again.

    The kubelet counts reusable memory separately. Here the blocks are that count, because later containers shrink them.
    """
    reuse: dict[tuple[int, str], int] = {}
    for block in (block for key in keys for block in state.allocations[key].memory):
        where = block.nodes.mask, block.resource
        reuse[where] = reuse.get(where, 0) + block.size_bytes
    return reuse


def handed_over(state: State, keys: Sequence[str], cpus: CPUSet, blocks: Sequence[MemoryBlock]) -> State:
    """The state in which the donors no longer have those CPUs, and less memory by what `blocks` took over.

    A donor that ended in the middle of a resize settles on the size before it.
    """
    held = [state.allocations[key] for key in keys]
    # Memory shrinks by what the new blocks took over; CPUs leave one by one.
    shrunk = shrink_reused([allocation.memory for allocation in held], blocks)
    for key, allocation, memory in zip(keys, held, shrunk, strict=True):
        if not allocation.cpus.isdisjoint(cpus) or memory != allocation.memory:
            state = state.with_allocation(key, _left(allocation, cpus, memory))
    return state


def _left(allocation: Allocation, cpus: CPUSet, memory: tuple[MemoryBlock, ...]) -> Allocation:
    ended = allocation.settled(is_done=False)
    grown = tuple(left for one in ended.grown if (left := one - cpus))
    return replace(ended, cpus=ended.cpus - cpus, grown=grown, memory=memory)


def init_memory_released(state: State, record: ContainerRecord) -> State:
    """The state after the start of a container: the plain init containers before it release their memory.

    Without facts it is unknown which those are, and nothing is released.
    """
    pod = state.pods.get(record.pod_uid)
    if pod is None or pod.facts is None:
        return state
    names = [one.name for one in pod.facts.containers]
    earlier = names[: names.index(record.name)] if record.name in names else []
    ended = [name for name in earlier if is_plain_init(pod.facts, name)]
    return _returned(state, pod, [allocation_key(pod.uid, name) for name in ended])


def has_released_init_memory(state: State, pod: PodRecord) -> bool:
    """Whether ended init containers of the pod released memory that its later containers may take over."""
    return any(state.allocations[key].returned for key in _inits(state, pod))


def init_memory_restored(state: State, pod: PodRecord, memory: MemoryState) -> State:
    """The state in which the pod's ended init containers hold their released memory again, if no other pod took it.

    Args:
        state: the allocations.
        pod: a pod with facts.
        memory: the allocated memory in `state`.
    """
    keys = [key for key in _inits(state, pod) if state.allocations[key].returned]
    left = [block for key in keys for block in state.allocations[key].returned]
    # All or nothing: a part of the memory would give another answer than the kubelet's.
    if not memory.has_room_for(left) or _is_grouped_since(state, pod, keys[0], left):
        return state
    for key in keys:
        one = state.allocations[key]
        state = state.with_allocation(key, replace(one, memory=one.returned, returned=()))
    return state


def init_memory_released_again(state: State, before: State, pod: PodRecord) -> State:
    """The state after a container was placed: memory that the pod had released in `before` is released again."""
    keys = [key for key in _inits(before, pod) if before.allocations[key].returned]
    return _returned(state, pod, keys)


def _is_grouped_since(state: State, pod: PodRecord, first: str, left: Iterable[MemoryBlock]) -> bool:
    """Whether a pod after `first` got memory on these nodes in another group, which excludes them for `left`."""
    # A node serves one group of nodes at a time, so a block of another group since then excludes the old one.
    masks = {node: block.nodes for block in left for node in block.nodes}
    keys = list(state.allocations)
    later = (key for key in keys[keys.index(first) :] if pod_of(key) != pod.uid)
    return any(
        masks.get(node, block.nodes) != block.nodes
        for key in later
        for block in state.allocations[key].memory
        for node in block.nodes
    )


def _inits(state: State, pod: PodRecord) -> list[str]:
    """Keys of the allocations of the pod's plain init containers."""
    names = pod.facts.names(Kind.INIT) if pod.facts else ()
    return [key for name in names if (key := allocation_key(pod.uid, name)) in state.allocations]


def _returned(state: State, pod: PodRecord, keys: Iterable[str]) -> State:
    """The state in which these hold no memory. It is remembered until every container of the pod is placed."""
    facts = pod.facts
    is_placed = facts is not None and all(
        allocation_key(pod.uid, one.name) in state.allocations for one in facts.containers
    )
    for key in keys:
        one = state.allocations.get(key)
        if one is not None and (one.memory or (one.returned and is_placed)):
            left = () if is_placed else one.memory or one.returned
            state = state.with_allocation(key, replace(one, mems=NO_NODES, memory=(), returned=left))
    return state
