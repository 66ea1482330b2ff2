"""What the ended init containers of a pod leave to the containers after them: CPUs and memory.

Invariant: what passes on is taken out of the earlier promise, so that each CPU and each byte has one owner.

With the pod's facts it is as in the kubelet: plain init containers leave theirs, sidecars and app containers
keep theirs. An init container that runs once more does so before the app containers, and may have theirs if they
do not live.

Differs: without facts every container of the pod that does not live counts as an init container: the runtime does
    not say which are.

Source: kubelet v1.36 cpumanager updateCPUsToReuse, memorymanager updatePodReusableMemory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nri_plugin.cpuset import CPUSet
from nri_plugin.pod_facts import Kind, PodFacts
from nri_plugin.policy.memory_reuse import Reuse, shrink_reused
from nri_plugin.state import Allocation, MemoryBlock, Phase, PodRecord, State, allocation_key


def donors(state: State, pod: PodRecord, name: str) -> tuple[str, ...]:
    """Keys of the allocations that may pass on to container `name` of the pod, oldest first.

    Where its end was not told, or before the agent was restarted, a container is not even listed; its promise is.
    """
    prefix = allocation_key(pod.uid, "")
    mine = [key for key in state.allocations if key.startswith(prefix) and key != prefix + name]
    live = {record.key for record in state.containers_of(pod.uid) if record.phase is not Phase.STOPPED}
    if pod.facts is None:
        return tuple(key for key in mine if key not in live)
    ended = {allocation_key(pod.uid, one) for one in pod.facts.names(Kind.INIT)}
    if is_plain_init(pod.facts, name):
        ended |= {allocation_key(pod.uid, one) for one in pod.facts.names(Kind.APP)} - live
    return tuple(key for key in mine if key in ended)


def is_plain_init(facts: PodFacts | None, name: str) -> bool:
    """Whether the container is known to end before the next one is created."""
    known = facts.container(name) if facts else None
    return known is not None and known.kind is Kind.INIT


def reusable_cpus(state: State, keys: Iterable[str]) -> CPUSet:
    """CPUs that may be given once more."""
    mask = 0
    for key in keys:
        mask |= state.allocations[key].cpus.mask
    return CPUSet(mask)


def reusable_memory(state: State, keys: Iterable[str]) -> Reuse:
    """Memory that is promised already and need not be taken again.

    What is left of the blocks is what the kubelet counts beside them: later containers shrink them.
    """
    reuse: dict[tuple[int, str], int] = {}
    for block in (block for key in keys for block in state.allocations[key].memory):
        where = block.nodes.mask, block.resource
        reuse[where] = reuse.get(where, 0) + block.size_bytes
    return reuse


def handed_over(state: State, keys: Sequence[str], cpus: CPUSet, blocks: Sequence[MemoryBlock]) -> State:
    """The state in which the donors no longer have those CPUs, and less memory by what `blocks` took over.

    A resize that one of them was in the middle of when it ended is over with it.
    """
    held = [state.allocations[key] for key in keys]
    shrunk = shrink_reused([allocation.memory for allocation in held], blocks)
    for key, allocation, memory in zip(keys, held, shrunk, strict=True):
        if not allocation.cpus.isdisjoint(cpus) or memory != allocation.memory:
            state = state.with_allocation(key, _left(allocation, cpus, memory))
    return state


def _left(allocation: Allocation, cpus: CPUSet, memory: tuple[MemoryBlock, ...]) -> Allocation:
    ended = allocation.settled(is_done=False)
    grown = tuple(left for one in ended.grown if (left := one - cpus))
    return replace(ended, cpus=ended.cpus - cpus, grown=grown, memory=memory)
