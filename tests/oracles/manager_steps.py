"""Single steps of the kubelet's CPU and Memory Managers that nri-pin never takes.

nri-pin derives what is available, and what a pod may reuse, from all allocations. The kubelet keeps both up to date
with each container that comes or goes. Its recorded steps are judged with these.
"""

from collections.abc import Iterable, Sequence

from nri_plugin.model import bits
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.memory_state import MemoryState, Reuse


def reusable_after(reusable: CPUSet, cpus: CPUSet, *, init: bool) -> CPUSet:
    """What the pod's later containers may take over, once a container has got `cpus`.

    Plain init containers leave theirs to those that follow; restartable ones and app containers keep
    what they take.
    """
    return reusable | cpus if init else reusable - cpus


def reuse_after(reuse: Reuse, blocks: Sequence[MemoryBlock], *, init: bool) -> Reuse:
    """What the pod's later containers may use, once a container has got `blocks`.

    A plain init container leaves its own amount, the largest counts; any other one uses it up.
    """
    changed = dict(reuse)
    for block in blocks:
        key = block.nodes.mask, block.resource
        had = changed.get(key, 0)
        changed[key] = max(had, block.size_bytes) if init else max(0, had - block.size_bytes)
    return changed


def reuse_without(reuse: Reuse, blocks: Sequence[MemoryBlock]) -> Reuse:
    """What may still be used once a plain init container with `blocks` is gone.

    Differs: the kubelet leaves the amount as it is, so that a later container of the pod draws on
        memory that nobody holds any more.
    """
    changed = dict(reuse)
    for block in blocks:
        key = block.nodes.mask, block.resource
        changed[key] = max(0, changed.get(key, 0) - block.size_bytes)
    return changed


def without_blocks(state: MemoryState, blocks: Iterable[MemoryBlock]) -> MemoryState:
    """The state after the blocks are given back.

    Each node of a block gives back what it has allocated, in ascending order, until the block's
    size is reached: not always where it was taken, as the kubelet has it. A node without blocks
    is in no group.
    """
    allocated, assignments, group = dict(state.allocated), dict(state.assignments), dict(state.group)
    for block in blocks:
        left = block.size_bytes
        for node in bits.iterate(block.nodes.mask):
            had = allocated.get((node, block.resource), 0)
            given = min(left, had)
            allocated[node, block.resource] = had - given
            left -= given
            assignments[node] = assignments.get(node, 0) - 1
            if not assignments[node]:
                group[node] = 1 << node
    return MemoryState(state.machine, allocated, assignments, group)
