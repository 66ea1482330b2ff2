"""Who holds what of a machine, NUMA node by NUMA node: what stands in the way of somebody else."""

from collections.abc import Iterator
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.cpuset import CPUSet
from nri_plugin.hint_providers import memory_state_of
from nri_plugin.options import MemoryManagerPolicy, Node
from nri_plugin.policy.memory_state import MEMORY
from nri_plugin.state import Allocation, Phase, State, owner_of, pod_of


@dataclass(frozen=True, slots=True)
class Holder:
    """What one container holds on one NUMA node.

    Attributes:
        container: NAMESPACE/POD/CONTAINER.
        pod_uid: its pod; what it holds ends with that.
        cpus: exclusive CPUs there, as a kernel list.
        count: how many.
        memory: (resource, bytes) of the blocks that lie there, whole blocks where they span nodes.
        memory_nodes: the NUMA nodes of those blocks, as a kernel list.
        has_ended: no container of that name lives now; kept for it, or for who comes after it in its pod.
    """

    container: str
    pod_uid: str
    cpus: str
    count: int
    memory: tuple[tuple[str, int], ...] = ()
    memory_nodes: str = ""
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class NUMANodeUse:
    """One NUMA node.

    Attributes:
        id: its number.
        cpus: how many online CPUs it has.
        reserved: how many of them are kept for the system.
        available: how many can still become exclusive.
        withheld: how many more could, but not for this container: by isolatedCPUs and its annotation.
        memory: (resource, free bytes, allocatable bytes); none under memory policy None.
        holders: who holds the rest, who holds most first.
    """

    id: int
    cpus: int
    reserved: int
    available: int
    withheld: int
    memory: tuple[tuple[str, int, int], ...]
    holders: tuple[Holder, ...]


def uses(node: Node, state: State) -> tuple[NUMANodeUse, ...]:
    """Every NUMA node of the machine; `node` is narrowed to what the container may have."""
    available = state.available(node)
    withheld = node.withheld - node.reserved - state.exclusive
    counts_memory = node.options.memory_manager_policy is MemoryManagerPolicy.STATIC
    memory = memory_state_of(node, state)
    live = {one.key for one in state.containers.values() if one.phase is not Phase.STOPPED}
    return tuple(
        NUMANodeUse(
            id=int(one.id),
            cpus=len(one.cpus),
            reserved=len(one.cpus & node.reserved),
            available=len(one.cpus & available),
            withheld=len(one.cpus & withheld),
            memory=tuple(
                (name, memory.free(name)[int(one.id)], memory.machine.allocatable_of(name)[int(one.id)])
                for name in memory.machine.allocatable
                if counts_memory and (name == MEMORY or memory.machine.allocatable_of(name)[int(one.id)])
            ),
            holders=_by_share(_holders(state, int(one.id), one.cpus, live)),
        )
        for one in node.topology.nodes
    )


def name_of(state: State, key: str) -> str:
    """NAMESPACE/POD/CONTAINER of an allocation; its key where the pod is not known."""
    uid, container = owner_of(key)
    pod = state.pods.get(uid)
    return f"{pod.namespace}/{pod.name}/{container}" if pod and pod.name else key


def _holders(state: State, number: int, cpus: CPUSet, live: set[str]) -> Iterator[Holder]:
    for key, allocation in state.allocations.items():
        own = allocation.cpus & cpus
        blocks = [block for block in allocation.memory if block.nodes.mask >> number & 1]
        if not own and not blocks:
            continue
        yield Holder(
            container=name_of(state, key),
            pod_uid=pod_of(key),
            cpus=str(own),
            count=len(own),
            memory=tuple((block.resource, block.size_bytes) for block in blocks),
            memory_nodes=bits.format_list(_nodes(allocation)) if blocks else "",
            has_ended=key not in live,
        )


def _nodes(allocation: Allocation) -> int:
    mask = 0
    for block in allocation.memory:
        mask |= block.nodes.mask
    return mask


def _by_share(holders: Iterator[Holder]) -> tuple[Holder, ...]:
    return tuple(
        sorted(holders, key=lambda one: (-one.count, -sum(size for _, size in one.memory), one.container))
    )
