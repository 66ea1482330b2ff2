"""Memory that a pod's ended init containers leave to its later containers.

Source: kubelet v1.36 pkg/kubelet/cm/memorymanager/policy_static.go (updatePodReusableMemory,
    updateInitContainersMemoryBlocks).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nri_plugin.state import MemoryBlock

Reuse = Mapping[tuple[int, str], int]
"""By (node mask, resource): bytes that later containers of the pod need not take again."""

NO_REUSE: Reuse = {}


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


def shrink_reused(
    earlier: Sequence[Sequence[MemoryBlock]], blocks: Sequence[MemoryBlock]
) -> list[tuple[MemoryBlock, ...]]:
    """The blocks of the pod's plain init containers, in their order, less what `blocks` took over.

    So the blocks of a pod add up to what the pod has been promised. A block shrunk to nothing stays.
    """
    left = {(block.nodes, block.resource): block.size_bytes for block in blocks}
    shrunk = []
    for container in earlier:
        kept = []
        for block in container:
            key = block.nodes, block.resource
            used = min(left.get(key, 0), block.size_bytes)
            if used:
                left[key] -= used
            kept.append(replace(block, size_bytes=block.size_bytes - used))
        shrunk.append(tuple(kept))
    return shrunk


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
