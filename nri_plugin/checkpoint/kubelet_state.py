"""Migration: allocations of the kubelet's static managers become a checkpoint, and a checkpoint becomes their files.

A node changes from the kubelet's managers to this agent, and back, without a drain: the allocations are the same in both,
and no container moves.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Any

from nri_plugin.checkpoint.kubelet_files import (
    Record,
    StoredNode,
    UnreadableError,
    checksum,
    cpu_state_refusal,
    cpu_v1,
    cpu_v2,
    cpu_v3,
    expected_checksum,
    load_refusal,
    machine_state,
    memory_state_refusal,
    memory_v1,
    memory_v2,
    order_dependent_nodes,
    parse,
)
from nri_plugin.model import bits
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.options import MemoryManagerPolicy, Node
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import Allocation, MemoryBlock, Phase, State, allocation_key, owner_of, pod_of
from nri_plugin.policy.memory_state import memory_machine

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
        cpus: exclusive CPUs by `POD/CONTAINER`, as `allocation_key` makes it.
        cpus_by_id: the same by container id, as kubelets before 1.18 wrote it; else empty.
        memory: blocks by `POD/CONTAINER`.
    """

    cpus: Mapping[str, CPUSet]
    cpus_by_id: Mapping[str, CPUSet]
    memory: Mapping[str, tuple[MemoryBlock, ...]]

    def of(self, containers: Mapping[str, str]) -> "KubeletAllocations":
        """The allocations of `containers` (allocation key by container id), all by key."""
        keys = set(containers.values())
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
        CheckpointError: neither file is there, one is damaged or of no known form, or a pod holds more than its
            containers together, which only a kubelet can keep for it.
    """
    found = {name: _read(os.path.join(folder, name)) for name in (CPU_FILE, MEMORY_FILE)}
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
    cpu_record = _record(cpu, "cpu") if cpu else {}
    memory_record = _record(memory, "memory") if memory else {}
    path = cpu or memory or File("", b"")
    try:
        by_key, by_id = _cpus(cpu_record)
        blocks = _memory(memory_record)
        _check_pod_cpus(path.name, cpu_record, by_key)
        _check_pod_memory(path.name, memory_record, blocks)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(path.name, f"holds what no kubelet writes: {error}") from None
    return KubeletAllocations(by_key, by_id, blocks)


def imported(node: Node, found: KubeletAllocations) -> State:
    """The state with these allocations. Pods and containers are added when the runtime lists them."""
    has_memory = node.options.memory_manager_policy is MemoryManagerPolicy.STATIC
    memory = found.memory if has_memory else {}
    keys = dict.fromkeys((*found.cpus, *memory))
    return State(
        allocations={
            key: _allocation(node, found.cpus.get(key, NO_CPUS), memory.get(key, ())) for key in keys
        }
    )


def shared_within_pods(found: KubeletAllocations) -> list[str]:
    """A sentence for each two containers of a pod that share CPUs, as an init container and its successor do."""
    return [
        f"{key} and {other} both have CPUs {cpus & others}"
        for (key, cpus), (other, others) in combinations(sorted(found.cpus.items()), 2)
        if pod_of(key) == pod_of(other) and not cpus.isdisjoint(others)
    ]


def kubelet_refusals(node: Node, state: State) -> list[str]:
    """Why a kubelet with the node's options would not start on our allocations; empty when it would."""
    assignments: dict[str, dict[str, CPUSet]] = _nested(
        {key: one.cpus for key, one in state.allocations.items() if one.cpus}
    )
    refusal = cpu_state_refusal(
        _default(node, state),
        assignments,
        online=node.topology.online,
        reserved=node.reserved,
        strict=node.options.strict_cpu_reservation,
    )
    found = [f"the kubelet's CPU Manager would say: {refusal}"] if refusal else []
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return found
    machine = memory_machine(node.topology, node.options.reserved_memory)
    blocks = {key: one.memory for key, one in state.allocations.items() if one.memory}
    refusal = memory_state_refusal(machine_state(machine, list(blocks.values())), _nested(blocks), machine)
    return [*found, f"the kubelet's Memory Manager would say: {refusal}"] if refusal else found


def kubelet_doubts(node: Node, state: State) -> list[str]:
    """Why a kubelet may start on our allocations at one time and refuse them at the next; empty where it will start."""
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return []
    blocks = _nested({key: one.memory for key, one in state.allocations.items() if one.memory})
    return [
        f"memory on NUMA node {number} is allocated over different sets of nodes ({' and '.join(map(bits.format_list, masks))}): "
        "the kubelet checks allocations in random order, so it may refuse memory_manager_state at one start and take it "
        "at the next; start it again, or end the pods with memory there before the export"
        for number, masks in order_dependent_nodes(blocks).items()
    ]


def _default(node: Node, state: State) -> CPUSet:
    pool = node.topology.online - state.exclusive
    return pool - node.reserved if node.options.strict_cpu_reservation else pool


def cpu_file(node: Node, state: State, version: int = 2) -> bytes:
    """`cpu_manager_state` with our allocations.

    Args:
        node: the machine.
        state: the allocations.
        version: 1 names containers by id, as kubelets before 1.18 did, and has only allocations of containers that
            exist; 3 is that of PodLevelResourceManagers.
    """
    record: dict[str, Any] = {"policyName": "static", "defaultCpuSet": str(_default(node, state))}
    entries = cpus_by_id(state) if version == 1 else _nested(_lists(state))
    if entries:
        record["entries"] = entries
    return _sealed(record, CPU_RENDERINGS[version](record))


def cpus_by_id(state: State) -> dict[str, str]:
    """Exclusive CPUs by container id, of those containers that have not ended."""
    lists = _lists(state)
    return {
        record.id: lists[record.key]
        for record in sorted(state.containers.values(), key=lambda record: record.id)
        if record.key in lists and record.phase is not Phase.STOPPED
    }


def memory_file(node: Node, state: State, version: int = 1) -> bytes:
    """`memory_manager_state` with our allocations; version 2 is that of PodLevelResourceManagers."""
    machine = memory_machine(node.topology, node.options.reserved_memory)
    blocks = {key: one.memory for key, one in state.allocations.items() if one.memory}
    stored = machine_state(machine, list(blocks.values()))
    entries = _nested({key: [_block(block) for block in value] for key, value in blocks.items()})
    record: dict[str, Any] = {
        "policyName": "Static",
        "machineState": {str(number): _stored(one) for number, one in stored.items()},
    }
    if entries:
        record["entries"] = entries
    return _sealed(record, MEMORY_RENDERINGS[version](record))


CPU_RENDERINGS: Mapping[int, Callable[[Record], str]] = {1: cpu_v1, 2: cpu_v2, 3: cpu_v3}
MEMORY_RENDERINGS: Mapping[int, Callable[[Record], str]] = {1: memory_v1, 2: memory_v2}


def _lists(state: State) -> dict[str, str]:
    return {key: str(one.cpus) for key, one in state.allocations.items() if one.cpus}


def _read(path: str) -> File | None:
    """A file; None when it is not there."""
    try:
        with open(path, "rb") as file:
            return File(path, file.read(LARGEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from None


def _record(file: File, manager: str) -> Record:
    """The record in a file; a kubelet with or without PodLevelResourceManagers has to accept it."""
    policy = "static" if manager == "cpu" else "Static"
    refusals = [load_refusal(file.data, manager, policy, pod_level=level) for level in (False, True)]
    if all(refusals):
        raise CheckpointError(
            file.name,
            f"cannot be used; {_checksums(file, manager)}a kubelet would say: {refusals[0]}",
        )
    return parse(file.data)


def _checksums(file: File, manager: str) -> str:
    """Both checksums if they differ: the kubelet's error is about the oldest form, and misleads."""
    try:
        record = parse(file.data)
    except UnreadableError:
        return ""
    expected = expected_checksum(record, manager)
    found = record.get("checksum", "none")
    return "" if expected is None else f"its checksum: expected {expected}, found {found}; "


def _cpus(record: Record) -> tuple[dict[str, CPUSet], dict[str, CPUSet]]:
    by_key, by_id = {}, {}
    for pod, value in (record.get("entries") or {}).items():
        if isinstance(value, str):
            by_id[pod] = CPUSet.parse(value)
            continue
        for name, cpus in value.items():
            if cpus:
                by_key[allocation_key(pod, name)] = CPUSet.parse(cpus)
    return by_key, by_id


def _memory(record: Record) -> dict[str, tuple[MemoryBlock, ...]]:
    return {
        allocation_key(pod, name): tuple(map(_memory_block, blocks))
        for pod, containers in (record.get("entries") or {}).items()
        for name, blocks in containers.items()
    }


def _memory_block(block: Mapping[str, Any]) -> MemoryBlock:
    return MemoryBlock(NodeMask.from_ids(block["numaAffinity"]), block["type"], block["size"])


def _check_pod_cpus(path: str, record: Record, cpus: Mapping[str, CPUSet]) -> None:
    for pod, entry in (record.get("podEntries") or {}).items():
        rest = CPUSet.parse(entry.get("cpuSet", ""))
        for key, own in cpus.items():
            rest = rest - own if pod_of(key) == pod else rest
        if rest:
            raise _pod_level(path, pod, f"CPUs {rest}")


def _check_pod_memory(path: str, record: Record, memory: Mapping[str, Iterable[MemoryBlock]]) -> None:
    for pod, entry in (record.get("podEntries") or {}).items():
        left: dict[str, int] = {}
        for block in entry.get("memoryBlocks") or ():
            left[block["type"]] = left.get(block["type"], 0) + block["size"]
        for key, blocks in memory.items():
            for one in blocks if pod_of(key) == pod else ():
                left[one.resource] = left.get(one.resource, 0) - one.size_bytes
        for resource, size in left.items():
            if size > 0:
                raise _pod_level(path, pod, f"{size} bytes of {resource}")


def _pod_level(path: str, pod: str, what: str) -> CheckpointError:
    return CheckpointError(
        path,
        f"pod {pod} holds {what} that none of its containers has, which only a kubelet keeps; drain this pod first",
    )


def _allocation(node: Node, cpus: CPUSet, blocks: tuple[MemoryBlock, ...]) -> Allocation:
    # The files have neither the request nor the hint. The kubelet gives as many CPUs as were requested; the hint had at
    # least the nodes of the CPUs.
    return Allocation(
        cpus=cpus,
        mems=nodes_of(blocks),
        memory=blocks,
        cpu_milli=1000 * len(cpus),
        affinity=node.topology.nodes_of(cpus),
        preferred=False,
    )


def nodes_of(blocks: Iterable[MemoryBlock]) -> NodeMask:
    """The NUMA nodes of these blocks together."""
    return reduce(or_, (block.nodes for block in blocks), NO_NODES)


def _nested(by_key: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By pod, then by container, both sorted: Go writes maps in this order."""
    nested: dict[str, dict[str, Any]] = {}
    for key in sorted(by_key, key=owner_of):
        pod, name = owner_of(key)
        nested.setdefault(pod, {})[name] = by_key[key]
    return nested


def _block(block: MemoryBlock) -> dict[str, Any]:
    return {"numaAffinity": list(block.nodes), "type": block.resource, "size": block.size_bytes}


def _stored(node: StoredNode) -> dict[str, Any]:
    return {
        "numberOfAssignments": node.assignments,
        "memoryMap": {
            name: {
                "total": memory.total,
                "systemReserved": memory.system_reserved,
                "allocatable": memory.allocatable,
                "reserved": memory.reserved,
                "free": memory.free,
            }
            for name, memory in sorted(node.memory.items())
        },
        "cells": list(bits.iterate(node.group)),
    }


def _sealed(record: Mapping[str, Any], rendered: str) -> bytes:
    return json.dumps({**record, "checksum": checksum(rendered)}, separators=(",", ":")).encode()
