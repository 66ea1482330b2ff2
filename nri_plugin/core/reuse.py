"""Reuse: later containers of a pod take over the CPUs and memory of its ended init containers.

CPUs. With the pod's facts a plain init container keeps its CPUs until the pod ends, and a later container of the pod may
hold the same ones: the init container has ended before that one starts. Sidecars and app containers share with no other.

Memory. A byte that a later container takes over leaves the blocks of the init container, so that the blocks of a pod add
up to what is allocated. The rest is released when a later container of the pod starts.

Differs: the kubelet knows the init containers of a pod, and each keeps its CPUs until the pod ends, while
    later containers may hold the same ones; here: that is so where the pod's object is known. Without it
    every container of the pod that is not alive counts as an init container. Its CPUs and memory come before
    others for the next container where they are enough, unless the total of the pod has room for both, and
    leave the earlier allocation. What is left is released where that total has no room for both. Why: the
    runtime does not tell which containers are init containers, and creates the next one when other pods may
    have ended. Option: `exporterSocket`, with the exporter running.

Source: kubelet v1.36.2 pkg/kubelet/cm/cpumanager/policy_static.go (updateCPUsToReuse),
    memorymanager/policy_static.go (updatePodReusableMemory), memorymanager/memory_manager.go (AddContainer: since 1.36
    the start of a container removes what plain init containers before it hold).
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from nri_plugin.model.records import (
    Allocation,
    ContainerRecord,
    Kind,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    allocation_key,
    is_whole_pod,
    owner_of,
    pod_of,
)
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.memory_state import Reuse, shrink_reused


def donors(state: State, pod: PodRecord, name: str) -> tuple[str, ...]:
    """Keys of the allocations that may pass on to container `name` of the pod, oldest first.

    The allocations are searched, not the records: a container that ended while the agent was away has no record.
    """
    own = allocation_key(pod.uid, name)
    mine = [
        key
        for key, one in state.allocations_of(pod.uid).items()
        if key != own and not is_whole_pod(key) and not one.claim
    ]
    if pod.facts is None:
        live = live_keys(state, pod.uid)
        return tuple(key for key in mine if key not in live)
    # Init containers pass on even while their end is not reported: the runtime creates the next one only after it.
    inits = {allocation_key(pod.uid, one) for one in pod.facts.names(Kind.INIT)}
    return tuple(key for key in mine if key in inits)


def live_keys(state: State, pod_uid: str) -> set[str]:
    """Keys of the pod's containers that exist and have not ended."""
    return {record.key for record in state.containers_of(pod_uid) if record.phase is not Phase.STOPPED}


def is_plain_init(facts: PodFacts | None, name: str) -> bool:
    """Whether the container is known to end before the next one is created."""
    known = facts.container(name) if facts else None
    return known is not None and known.kind is Kind.INIT


def has_ended_as_init(state: State, key: str) -> bool:
    """Whether the container of this allocation is an init container that has ended, reported or not.

    Without facts that is unknown, and any container that has ended counts as one.
    """
    uid, name = owner_of(key)
    of_pod, pod = state.containers_of(uid), state.pods.get(uid)
    facts = pod.facts if pod else None
    if key in live_keys(state, uid) or not (facts is None or is_plain_init(facts, name)):
        return False
    # An init container that the runtime has removed has ended where a later container of its pod lives.
    return any(
        one.name == name or (one.phase is not Phase.STOPPED and name in _plain_inits_before(facts, one.name))
        for one in of_pod
    )


def reusable_cpus(state: State, keys: Sequence[str]) -> CPUSet:
    """CPUs of these allocations that no sidecar and no app container of the pod has taken over."""
    mask = kept = 0
    for key in keys:
        mask |= state.allocations[key].cpus.mask
    for key, allocation in state.allocations_of(pod_of(keys[0])).items() if mask else ():
        if not allocation.is_init and key not in keys:
            kept |= allocation.cpus.mask
    return CPUSet(mask & ~kept)


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
    """The state in which the donors have less memory by what `blocks` took over, and no longer those CPUs.

    A plain init container keeps its CPUs, because it runs again when the pod starts over. A donor that ended in the
    middle of a resize settles on the size before it.
    """
    held = [state.allocations[key] for key in keys]
    # Memory shrinks by what the new blocks took over; CPUs leave one by one.
    shrunk = shrink_reused([allocation.memory for allocation in held], blocks)
    for key, allocation, memory in zip(keys, held, shrunk, strict=True):
        left = NO_CPUS if allocation.is_init else cpus
        if not allocation.cpus.isdisjoint(left) or memory != allocation.memory:
            state = state.with_allocation(key, _left(allocation, left, memory))
    return state


def _left(allocation: Allocation, cpus: CPUSet, memory: tuple[MemoryBlock, ...]) -> Allocation:
    ended = allocation.settled(is_done=False)
    grown = tuple(left for one in ended.grown if (left := one - cpus))
    return replace(ended, cpus=ended.cpus - cpus, grown=grown, memory=memory)


def inits_known(state: State, pod: PodRecord) -> State:
    """The state in which allocations of plain init containers are marked as such.

    Facts may come while such a container runs. It keeps its CPUs then, also where the rest of the pod takes them over.
    """
    for name in pod.facts.names(Kind.INIT) if pod.facts else ():
        key = allocation_key(pod.uid, name)
        one = state.allocations.get(key)
        if one is not None and not one.is_init:
            state = state.with_allocation(key, replace(one, is_init=True))
    return state


def inits_ended(state: State, pod: PodRecord, name: str) -> State:
    """The state when container `name` is created: the plain init containers before it have ended, reported or not."""
    before = _plain_inits_before(pod.facts, name)
    for record in state.containers_of(pod.uid) if before else ():
        if record.name in before and record.phase is not Phase.STOPPED:
            state = state.with_container(replace(record, phase=Phase.STOPPED))
    return state


def _plain_inits_before(facts: PodFacts | None, name: str) -> tuple[str, ...]:
    """The plain init containers that are listed before container `name`; none without facts."""
    names = [one.name for one in facts.containers] if facts else []
    if facts is None or name not in names:
        return ()
    return tuple(one.name for one in facts.containers[: names.index(name)] if one.kind is Kind.INIT)


def init_memory_released(state: State, record: ContainerRecord) -> State:
    """The state after the start of a container: the plain init containers before it release their memory.

    Without facts it is unknown which those are, and nothing is released.
    """
    pod = state.pods.get(record.pod_uid)
    if pod is None:
        return state
    for name in _plain_inits_before(pod.facts, record.name):
        key = allocation_key(pod.uid, name)
        one = state.allocations.get(key)
        if one is not None and one.mems:
            state = state.with_allocation(key, replace(one, mems=NO_NODES, memory=()))
    return state


def lives(state: State, pod: PodRecord) -> bool:
    """Whether a container of the pod lives that is not known to be an init container."""
    inits = {one.name for one in pod.facts.containers if one.kind is not Kind.APP} if pod.facts else ()
    return any(
        one.phase is not Phase.STOPPED and one.name not in inits for one in state.containers_of(pod.uid)
    )
