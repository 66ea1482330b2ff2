"""Migration to this agent: allocations of the kubelet's static managers become a checkpoint.

The allocations are the same in both, and no container moves. `kubelet_export` has the way back.

A pod with resources of its own has an entry for the pod in both. In the kubelet's files each of its containers also has
its part of the pod's memory; here the memory is counted once, for the pod, and its containers have only the NUMA nodes.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any

from nri_plugin.checkpoint.kubelet_files import (
    DataError,
    Record,
    UnreadableError,
    data_of,
    expected_checksum,
    load_refusal,
    parse,
    policy_refusal,
    verified,
)
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.options import MemoryManagerPolicy, Node
from nri_plugin.model.records import (
    Allocation,
    MemoryBlock,
    allocation_key,
    is_whole_pod,
    pod_of,
)
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import State

CPU_FILE = "cpu_manager_state"
MEMORY_FILE = "memory_manager_state"
LARGEST = 64 << 20


@dataclass(frozen=True, slots=True)
class File:
    """The content of a file, and its name in errors."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class KubeletAllocations:
    """The allocations in both files of a kubelet.

    Attributes:
        cpus: exclusive CPUs by `POD/CONTAINER`, as `allocation_key` makes it; those of a pod as a whole by `POD/`.
        cpus_by_id: the same by container id, as kubelets before 1.18 wrote it; else empty.
        memory: blocks by `POD/CONTAINER` and `POD/`. Those of a pod as a whole include those of its containers.
    """

    cpus: Mapping[str, CPUSet]
    cpus_by_id: Mapping[str, CPUSet]
    memory: Mapping[str, tuple[MemoryBlock, ...]]

    def of(self, containers: Mapping[str, str]) -> "KubeletAllocations":
        """The allocations of `containers` (allocation key by container id) and of their pods, all by key."""
        keys = set(containers.values())
        keys |= {allocation_key(pod_of(key), "") for key in keys}
        return replace(
            self,
            cpus={key: cpus for key, cpus in self.cpus.items() if key in keys}
            | {containers[number]: cpus for number, cpus in self.cpus_by_id.items() if number in containers},
            cpus_by_id={},
            memory={key: blocks for key, blocks in self.memory.items() if key in keys},
        )


def read_allocations(folder: str) -> KubeletAllocations:
    """The allocations in a kubelet's root directory, `/var/lib/kubelet` unless it was told another.

    Raises:
        CheckpointError: neither file is there, one is damaged or of no known form, or no checksum covers what it says
            of pods as wholes.
    """
    found = {name: read_file(os.path.join(folder, name)) for name in (CPU_FILE, MEMORY_FILE)}
    if not any(found.values()):
        raise CheckpointError(
            folder, f"holds neither {CPU_FILE} nor {MEMORY_FILE}; name the kubelet's root directory"
        )
    return allocations_in(found[CPU_FILE], found[MEMORY_FILE])


def allocations_in(cpu: File | None, memory: File | None) -> KubeletAllocations:
    """The allocations in the content of one or both files.

    Raises:
        CheckpointError: as `read_allocations`.
    """
    given = [(file, manager) for file, manager in ((cpu, "cpu"), (memory, "memory")) if file]
    # A kubelet writes a file for a manager that is off, too. Beside that of the other manager it says nothing.
    used = [one for one in given if not _is_of_no_policy(*one)] or given
    records = {manager: _record(file, manager) for file, manager in used}
    cpu_record, memory_record = records.get("cpu", {}), records.get("memory", {})
    path = cpu or memory or File("", b"")
    try:
        by_key, by_id = cpus_in(cpu_record)
        blocks = memory_in(memory_record)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(path.name, f"holds what no kubelet writes: {error}") from None
    return KubeletAllocations(by_key, by_id, blocks)


def imported(node: Node, found: KubeletAllocations) -> State:
    """The state with these allocations. Pods and containers are added when the runtime lists them."""
    has_memory = node.options.memory_manager_policy is MemoryManagerPolicy.STATIC
    memory = found.memory if has_memory else {}
    shared = pod_shared(found)
    allocations, topology = {}, node.topology
    # Blocks name all nodes of a hint. On an unknown machine, as in a conversion, every node counts as one with memory.
    without_memory = topology.node_mask - topology.nodes_with_memory
    for key in dict.fromkeys((*found.cpus, *memory)):
        whole = allocation_key(pod_of(key), "")
        cpus, blocks = found.cpus.get(key, NO_CPUS), memory.get(key, ())
        # The files have neither the request nor the hint. The kubelet gives as many CPUs as were requested; the hint
        # had at least the nodes of the CPUs, and those of the pod where it was the pod's.
        allocation = Allocation(
            cpus=cpus,
            mems=nodes_of(memory.get(whole, blocks)) - without_memory,
            memory=blocks if key == whole or whole not in memory else (),
            cpu_milli=0 if key in shared else 1000 * len(cpus),
            affinity=topology.nodes_of(found.cpus.get(whole, cpus)),
            preferred=False,
            is_pod_shared=key in shared,
        )
        # An empty list of blocks holds nothing.
        if cpus or allocation.mems:
            allocations[key] = allocation
    return State(allocations=allocations)


def pod_shared(found: KubeletAllocations) -> frozenset[str]:
    """Keys of containers that run in the shared pool of their pod.

    The files do not tell shared pools from slices. A set is the shared pool when several containers have it and it is
    what the slices of the pod leave of its CPUs. The pool of one container alone looks like a slice; no other container
    runs there either.
    """
    shared: set[str] = set()
    for whole, block in found.cpus.items():
        if not is_whole_pod(whole):
            continue
        own = {key: cpus for key, cpus in found.cpus.items() if pod_of(key) == pod_of(whole) and key != whole}
        for pool, holders in Counter(own.values()).items():
            # The set of an init container may overlap with any other one.
            slices = reduce(or_, (cpus for cpus in own.values() if cpus.isdisjoint(pool)), NO_CPUS)
            if holders > 1 and pool == block - slices:
                shared |= {key for key, cpus in own.items() if cpus == pool}
    return frozenset(shared)


def shared_within_pods(found: KubeletAllocations) -> list[str]:
    """A sentence for each two containers of a pod that share CPUs, as an init container and its successor do.

    CPUs of the pod as a whole and of its shared pool are meant to be shared.
    """
    shared = pod_shared(found)
    containers = sorted((key, cpus) for key, cpus in found.cpus.items() if not is_whole_pod(key))
    return [
        f"{key} and {other} both have CPUs {cpus & others}"
        for (key, cpus), (other, others) in combinations(containers, 2)
        if pod_of(key) == pod_of(other)
        and not cpus.isdisjoint(others)
        and not (key in shared and other in shared)
    ]


def read_file(path: str) -> File | None:
    """A file; None when it is not there."""
    try:
        with open(path, "rb") as file:
            return File(path, file.read(LARGEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from None


def _is_of_no_policy(file: File, manager: str) -> bool:
    """Whether a kubelet whose manager is off would start on a file that allocates nothing.

    Source: kubelet v1.35 pkg/kubelet/cm/memorymanager/memory_manager.go, Start: every policy has its file.
    """
    policy = "none" if manager == "cpu" else "None"
    try:
        found = parse(file.data)
        record = data_of(found)
    except UnreadableError:
        return False
    if any((record or found).get(key) for key in ("entries", "podEntries")):
        return False
    if record is not None:
        return not policy_refusal(record, policy)
    return not all(load_refusal(file.data, manager, policy, pod_level=level) for level in (False, True))


def _record(file: File, manager: str) -> Record:
    """The verified record in a file; a kubelet with or without PodLevelResourceManagers, or of 1.37, has to accept it."""
    policy = "static" if manager == "cpu" else "Static"
    try:
        record = data_of(parse(file.data))
        refusal = "" if record is None else policy_refusal(record, policy)
    except DataError as error:
        record, refusal = None, f"its data: {error}"
    except UnreadableError:
        # Said below, in the words of a kubelet.
        record, refusal = None, ""
    if refusal:
        raise CheckpointError(file.name, f"cannot be used; a kubelet would say: {refusal}")
    return _verified(file, manager, policy) if record is None else record


def _verified(file: File, manager: str, policy: str) -> Record:
    """The record in a file without `data`."""
    refusals = [load_refusal(file.data, manager, policy, pod_level=level) for level in (False, True)]
    if all(refusals):
        raise CheckpointError(
            file.name,
            f"cannot be used; {_checksums(file, manager)}a kubelet would say: {refusals[0]}",
        )
    found = parse(file.data)
    # The gate under which the kubelet accepts the file; with it on, all that it verifies is there.
    record = verified(found, manager, pod_level=not refusals[1])
    pods = found.get("podEntries")
    if pods and "podEntries" not in record:
        shown = ", ".join(sorted(pods)) if isinstance(pods, dict) else "of another type"
        raise CheckpointError(
            file.name,
            f"cannot be used; no checksum covers its podEntries ({shown}): the checksum is 0 or that of an older form, "
            "and a kubelet would believe them unchecked; drain these pods and remove podEntries",
        )
    return record


def _checksums(file: File, manager: str) -> str:
    """Both checksums if they differ: the kubelet's error is about the oldest form, and misleads."""
    try:
        record = parse(file.data)
    except UnreadableError:
        return ""
    expected = expected_checksum(record, manager)
    found = record.get("checksum", "none")
    return "" if expected is None else f"its checksum: expected {expected}, found {found}; "


def cpus_in(record: Record) -> tuple[dict[str, CPUSet], dict[str, CPUSet]]:
    """The CPUs in a record of the CPU Manager, by allocation key; those of kubelets before 1.18 by container id."""
    by_key, by_id = {}, {}
    for pod, value in (record.get("entries") or {}).items():
        if isinstance(value, str):
            by_id[pod] = CPUSet.parse(value)
            continue
        for name, cpus in value.items():
            if cpus:
                by_key[allocation_key(pod, name)] = CPUSet.parse(cpus)
    for pod, value in (record.get("podEntries") or {}).items():
        if cpus := value.get("cpuSet", ""):
            by_key[allocation_key(pod, "")] = CPUSet.parse(cpus)
    return by_key, by_id


def memory_in(record: Record) -> dict[str, tuple[MemoryBlock, ...]]:
    """The blocks in a record of the Memory Manager, by allocation key."""
    found = {
        allocation_key(pod, name): tuple(map(_memory_block, blocks))
        for pod, containers in (record.get("entries") or {}).items()
        for name, blocks in containers.items()
    }
    for pod, value in (record.get("podEntries") or {}).items():
        if blocks := value.get("memoryBlocks"):
            found[allocation_key(pod, "")] = tuple(map(_memory_block, blocks))
    return found


def _memory_block(block: Mapping[str, Any]) -> MemoryBlock:
    return MemoryBlock(NodeMask.from_ids(block["numaAffinity"]), block["type"], block["size"])


def nodes_of(blocks: Iterable[MemoryBlock]) -> NodeMask:
    """The NUMA nodes of these blocks together."""
    return reduce(or_, (block.nodes for block in blocks), NO_NODES)
