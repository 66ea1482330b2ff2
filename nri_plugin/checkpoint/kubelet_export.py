"""Migration back to the kubelet: our allocations become the files of its static managers, and what it would say of them.

No container moves. A pod with resources of its own has an entry for the pod in both; `kubelet_import` says how its memory is
counted.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nri_plugin.checkpoint.kubelet_files import (
    Record,
    UnreadableError,
    checksum,
    cpu_state_refusal,
    cpu_v2,
    cpu_v3,
    data_of,
    machine_state,
    memory_state_refusal,
    memory_v1,
    memory_v2,
    order_dependent_nodes,
    parse,
    policy_refusal,
    verified,
)
from nri_plugin.checkpoint.kubelet_import import CPU_FILE, MEMORY_FILE, cpus_in, memory_in, read_file
from nri_plugin.model import bits
from nri_plugin.model.options import MemoryManagerPolicy, Node
from nri_plugin.model.records import (
    MemoryBlock,
    is_whole_pod,
    named,
    owner_of,
    pod_of,
)
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.memory_state import memory_machine
from nri_plugin.policy.pod_level import memory_of

Value = TypeVar("Value")


def needs_pod_level(node: Node, state: State) -> bool:
    """Whether the kubelet's files have to be those of PodLevelResourceManagers."""
    return node.options.pod_level_managers or any(map(is_whole_pod, state.allocations))


def kubelet_refusals(node: Node, state: State) -> list[str]:
    """Why a kubelet with the node's options would not start on our allocations; empty when it would."""
    cpus = {key: one.cpus for key, one in state.allocations.items() if one.cpus}
    refusal = cpu_state_refusal(
        _default(node, state),
        _nested(_of_containers(cpus)),
        online=node.topology.online,
        reserved=node.reserved,
        strict=node.options.strict_cpu_reservation,
        pods=_of_pods(cpus),
    )
    found = [f"the kubelet's CPU Manager would say: {refusal}"] if refusal else []
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return found
    machine = memory_machine(node.topology, node.options.reserved_memory)
    blocks = _counted(state)
    refusal = memory_state_refusal(
        machine_state(machine, list(blocks.values())),
        _nested(_of_containers(blocks)),
        machine,
        _of_pods(blocks),
    )
    return [*found, f"the kubelet's Memory Manager would say: {refusal}"] if refusal else found


def restart_refusals(node: Node, folder: str, cpu_policy: str, memory_policy: str) -> list[str]:
    """Why a kubelet that is restarted would not start on its own files as they are now; empty when it would.

    Args:
        node: the machine as it is now, with the kubelet's options.
        folder: the kubelet's root directory.
        cpu_policy: of its CPU Manager.
        memory_policy: of its Memory Manager.

    Raises:
        CheckpointError: a file cannot be read.
    """
    managers = (
        (CPU_FILE, "cpu", cpu_policy, _cpu_refusal),
        (MEMORY_FILE, "memory", memory_policy, _memory_refusal),
    )
    found = []
    for name, manager, policy, judge in managers:
        file = read_file(os.path.join(folder, name))
        if file is None:
            continue
        try:
            record = data_of(parse(file.data))
            if record is None:
                record = verified(parse(file.data), manager, pod_level=node.options.pod_level_managers)
            refusal = policy_refusal(record, policy)
            if not refusal and policy.lower() == "static":
                refusal = judge(node, record)
        except UnreadableError as error:
            refusal = str(error)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            refusal = f"it holds what no kubelet writes: {error}"
        if refusal:
            found.append(f"{file.name}: the kubelet would say: {refusal}")
    return found


def _cpu_refusal(node: Node, record: Record) -> str:
    cpus, _ = cpus_in(record)
    return cpu_state_refusal(
        CPUSet.parse(record.get("defaultCpuSet") or ""),
        _nested(_of_containers(cpus)),
        online=node.topology.online,
        reserved=node.reserved,
        strict=node.options.strict_cpu_reservation,
        pods=_of_pods(cpus),
    )


def _memory_refusal(node: Node, record: Record) -> str:
    machine = memory_machine(node.topology, node.options.reserved_memory)
    stored = record.get("machineState") or {}
    blocks = memory_in(record)
    refusal = memory_state_refusal(stored, _nested(_of_containers(blocks)), machine, _of_pods(blocks))
    changed = [
        f"NUMA node {number} had {amounts.get('total', 0)} bytes of {name} and has {now}"
        for number, one in sorted(stored.items(), key=lambda entry: int(entry[0]))
        for name, amounts in one["memoryMap"].items()
        if (now := machine.total.get(name, {}).get(int(number), 0)) != amounts.get("total", 0)
    ]
    return "; ".join([refusal, *changed]) if refusal else ""


def kubelet_doubts(node: Node, state: State) -> list[str]:
    """Why a kubelet may not keep our allocations although its checks pass; empty where it will.

    Source: kubelet v1.36.2 and v1.37.2 admit running pods anew when they start; github.com/kubernetes/kubernetes issue
        140906.
    """
    wholes = [named(state.pods, key) for key in state.allocations if is_whole_pod(key)]
    doubt = (
        "a kubelet of Kubernetes 1.36 or 1.37 admits running pods anew when it starts, and refuses or moves those that "
        f"have CPUs or memory as a whole ({', '.join(wholes)}); end these pods before the export"
    )
    return [*([doubt] if wholes else ()), *_memory_doubts(node, state)]


def _memory_doubts(node: Node, state: State) -> list[str]:
    """Why a kubelet may start on our memory at one time and refuse it at the next."""
    if node.options.memory_manager_policy is not MemoryManagerPolicy.STATIC:
        return []
    blocks = _nested(_counted(state))
    return [
        f"memory on NUMA node {number} is allocated over different sets of nodes ({' and '.join(map(bits.format_list, masks))}): "
        "the kubelet checks allocations in random order, so it may refuse memory_manager_state at one start and take it "
        "at the next; start it again, or end the pods with memory there before the export"
        for number, masks in order_dependent_nodes(blocks).items()
    ]


def _default(node: Node, state: State) -> CPUSet:
    pool = node.topology.online - state.exclusive
    return pool - node.reserved if node.options.strict_cpu_reservation else pool


def _counted(state: State) -> dict[str, tuple[MemoryBlock, ...]]:
    """The blocks that count on the NUMA nodes, by allocation key: those of a pod as a whole once."""
    return {key: one.memory for key, one in state.allocations.items() if one.memory}


def _of_containers(by_key: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in by_key.items() if not is_whole_pod(key)}


def _of_pods(by_key: Mapping[str, Value]) -> dict[str, Value]:
    """Those of pods as wholes, by pod uid, sorted."""
    return {pod_of(key): by_key[key] for key in sorted(by_key) if is_whole_pod(key)}


def cpu_file(node: Node, state: State) -> bytes:
    """`cpu_manager_state` with our allocations: version 3, that of PodLevelResourceManagers, where needed, else 2."""
    lists = {key: str(one.cpus) for key, one in state.allocations.items() if one.cpus}
    record: dict[str, Any] = {"policyName": "static", "defaultCpuSet": str(_default(node, state))}
    if entries := _nested(_of_containers(lists)):
        record["entries"] = entries
    if pods := {pod: {"cpuSet": cpus} for pod, cpus in _of_pods(lists).items()}:
        record["podEntries"] = pods
    return sealed(record, cpu_v3 if needs_pod_level(node, state) else cpu_v2)


def memory_file(node: Node, state: State) -> bytes:
    """`memory_manager_state` with our allocations: version 2, that of PodLevelResourceManagers, where needed, else 1."""
    machine = memory_machine(node.topology, node.options.reserved_memory)
    counted = _counted(state)
    blocks = {
        key: list(map(_block, value))
        for key, value in (_of_containers(counted) | parts_of_pods(state)).items()
    }
    record: dict[str, Any] = {
        "policyName": "Static",
        "machineState": machine_state(machine, list(counted.values())),
    }
    if blocks:
        record["entries"] = _nested(blocks)
    if pods := {pod: {"memoryBlocks": list(map(_block, value))} for pod, value in _of_pods(counted).items()}:
        record["podEntries"] = pods
    return sealed(record, memory_v2 if needs_pod_level(node, state) else memory_v1)


def parts_of_pods(state: State) -> dict[str, tuple[MemoryBlock, ...]]:
    """The parts of containers in the memory of their pods, by allocation key.

    A plain init container that has ended has none. Where the facts of the pod are not known, each container is shown
    with all memory of the pod: the NUMA nodes are right, and the kubelet does not count these parts.
    """
    found = {}
    for whole, pod in state.allocations.items():
        if not is_whole_pod(whole) or not pod.memory:
            continue
        uid = pod_of(whole)
        facts = state.pods[uid].facts if uid in state.pods else None
        parts = memory_of(facts, pod.memory) if facts else {}
        for key, one in state.allocations.items():
            if pod_of(key) == uid and key != whole and one.mems:
                found[key] = parts.get(owner_of(key)[1], pod.memory)
    return found


def sealed(record: Mapping[str, Any], render: Callable[[Record], str]) -> bytes:
    """The file of a record, with its checksum."""
    return go_json({**record, "checksum": checksum(render(record))}).encode()


def go_json(value: object) -> str:
    """JSON as Go writes it: no blanks, text as it is except for characters that have a meaning in HTML and JavaScript."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_ESCAPED)


_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def _nested(by_key: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By pod, then by container, both sorted: Go writes maps in this order."""
    nested: dict[str, dict[str, Any]] = {}
    for key in sorted(by_key, key=owner_of):
        pod, name = owner_of(key)
        nested.setdefault(pod, {})[name] = by_key[key]
    return nested


def _block(block: MemoryBlock) -> dict[str, Any]:
    return {"numaAffinity": list(block.nodes), "type": block.resource, "size": block.size_bytes}
