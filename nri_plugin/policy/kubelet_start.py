"""What the kubelet would say when it started on a given state: the checks behind its refusals.

Our own restart never refuses; these tell an operator who goes back to the kubelet's managers what it will say.

Source: kubelet v1.36 cpumanager/policy_static.go (validateState), memorymanager/policy_static.go (validateState,
    areMachineStatesEqual).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.cpuset import CPUSet
from nri_plugin.policy.memory_state import MemoryMachine, memory_state
from nri_plugin.state import MemoryBlock

CPUAssignments = Mapping[str, Mapping[str, CPUSet]]
"""Exclusive CPUs by pod uid, then by container name."""

MemoryAssignments = Mapping[str, Mapping[str, Sequence[MemoryBlock]]]
"""Memory blocks by pod uid, then by container name, in the order they were made."""


def cpu_state_refusal(
    default: CPUSet, assignments: CPUAssignments, *, online: CPUSet, reserved: CPUSet, strict: bool
) -> str:
    """Why a static CPU Manager would not start on this state; empty when it would.

    Args:
        default: the shared pool as stored.
        assignments: exclusive CPUs as stored.
        online: all CPUs of the machine.
        reserved: CPUs for the system.
        strict: whether strict-cpu-reservation is on.
    """
    if not default:
        return "default cpuset cannot be empty" if assignments else ""
    shown = f'"{default}"'
    both = reserved & default
    if strict and both:
        return f'some of strictly reserved cpus: "{both}" are present in defaultCpuSet: {shown}'
    if not strict and both != reserved:
        return f'not all reserved cpus: "{reserved}" are present in defaultCpuSet: {shown}'
    known, expected = default, online - reserved if strict else online
    for pod, by_name in assignments.items():
        for name, cpus in by_name.items():
            if not cpus.isdisjoint(default):
                return f'pod: {pod}, container: {name} cpuset: "{cpus}" overlaps with default cpuset {shown}'
            known |= cpus
    if known != expected:
        return f'current set of available CPUs "{expected}" doesn\'t match with CPUs in state "{known}"'
    return ""


@dataclass(frozen=True, slots=True)
class StoredMemory:
    """One resource of a NUMA node as a kubelet stored it, in bytes."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A NUMA node as a kubelet stored it.

    Attributes:
        assignments: how many blocks count on it.
        group: mask of the nodes it serves together with, itself included.
        memory: by resource.
    """

    assignments: int
    group: int
    memory: Mapping[str, StoredMemory]


def memory_state_refusal(
    stored: Mapping[int, StoredNode], assignments: MemoryAssignments, machine: MemoryMachine
) -> str:
    """Why a static Memory Manager would not start on this state; empty when it would.

    Totals, group and number of blocks must be, node by node, what `machine` and the blocks give; what is
    free and promised only in sum over the nodes of a group.
    """
    if not stored:
        return "machine state can not be empty when it has memory assignments" if assignments else ""
    wrong = next(_unknown_blocks(stored, assignments), "")
    if wrong:
        return wrong
    blocks = [blocks for by_name in assignments.values() for blocks in by_name.values()]
    if _comparable(stored) != _comparable(machine_state(machine, blocks)):
        return "the expected machine state is different from the real one"
    return ""


def order_dependent_nodes(assignments: MemoryAssignments) -> Mapping[int, Sequence[int]]:
    """NUMA nodes on which the kubelet's verdict depends on chance, each with the masks of the blocks on it.

    The kubelet rebuilds the groups of nodes from the blocks and takes for each node the last block it comes to. It
    walks a map, so that the last one differs from start to start. Where all blocks on a node have the same mask it
    makes no difference.

    Source: kubelet v1.36.2 pkg/kubelet/cm/memorymanager/policy_static.go (validateState).
    """
    masks: dict[int, set[int]] = {}
    for block in (
        block for by_name in assignments.values() for blocks in by_name.values() for block in blocks
    ):
        for node in bits.iterate(block.nodes.mask):
            masks.setdefault(node, set()).add(block.nodes.mask)
    return {node: sorted(several) for node, several in sorted(masks.items()) if len(several) > 1}


def _unknown_blocks(stored: Mapping[int, StoredNode], assignments: MemoryAssignments) -> Iterator[str]:
    for pod, by_name in assignments.items():
        for name, blocks in by_name.items():
            for block in blocks:
                for node in bits.iterate(block.nodes.mask):
                    where = f"(pod: {pod}, container: {name}) the memory assignment uses"
                    if node not in stored:
                        yield f"{where} the NUMA that does not exist"
                    elif block.resource not in stored[node].memory:
                        yield f"{where} memory resource that does not exist"


def machine_state(
    machine: MemoryMachine, containers: Sequence[Sequence[MemoryBlock]]
) -> Mapping[int, StoredNode]:
    """The machine as it would be stored with these blocks."""
    state = memory_state(machine, containers)
    free = {name: state.free(name) for name in machine.total}
    return {
        node: StoredNode(
            state.assignments[node],
            state.group[node],
            {
                name: StoredMemory(
                    machine.total[name][node],
                    machine.reserved[name][node],
                    machine.allocatable[name][node],
                    state.promised.get((node, name), 0),
                    free[name][node],
                )
                for name in machine.total
            },
        )
        for node in machine.nodes
    }


def _comparable(nodes: Mapping[int, StoredNode]) -> object:
    """Equal for two machines that the kubelet takes for equal."""
    return {
        node: (
            stored.assignments,
            stored.group,
            {
                name: (memory.total, memory.system_reserved, memory.allocatable)
                + _sums(nodes, stored.group, name)
                for name, memory in stored.memory.items()
            },
        )
        for node, stored in nodes.items()
    }


def _sums(nodes: Mapping[int, StoredNode], group: int, name: str) -> tuple[int, int]:
    """Promised and free bytes of a resource over the nodes of a group."""
    rows = [
        memory
        for node in bits.iterate(group)
        if node in nodes and (memory := nodes[node].memory.get(name)) is not None
    ]
    return sum(row.reserved for row in rows), sum(row.free for row in rows)
