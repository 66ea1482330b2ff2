"""cpu_start_validation, and the start of the Memory Manager: a state found at start."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nri_plugin.checkpoint.kubelet_files import (
    StoredMachine,
    cpu_state_refusal,
    memory_state_refusal,
)
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import CPUTables
from nri_plugin.policy.cpu_policy import take_cpus
from tests.vectors.judges.managers import options_of, reserved_of
from tests.vectors.judges.memory import machine_of
from tests.vectors.judges.packed import tables_of
from tests.vectors.judges.restarting import stored_node
from tests.vectors.judges.verdict import Case, Document, Judged, compare

POD_LEVEL = "PodLevelResourceManagers"
"""With this feature gate a pod's own resources decide."""


def judge_cpu(document: Document) -> Iterator[Judged]:
    tables = {name: tables_of(recorded) for name, recorded in document["topologies"].items()}
    for case in document["cases"]:
        yield judge_cpu_case(case, tables[case["topology"]])


def judge_cpu_case(case: Case, tables: CPUTables) -> Judged:
    options, online = options_of(case.get("options")), CPUSet(tables.online)
    listed, count = reserved_of(case)
    reserved = listed or take_cpus(tables, online, count, options)
    state = case["state"]
    assignments = {
        uid: {name: CPUSet.parse(text) for name, text in (by_name or {}).items()}
        for uid, by_name in (state.get("assignments") or {}).items()
    }
    told = (state.get("pod_assignments") or {}) if counts_pods(case) else {}
    pods = {uid: CPUSet.parse(text) for uid, text in told.items()}
    ours = cpu_state_refusal(
        CPUSet.parse(state["default"]),
        assignments,
        online=online,
        reserved=reserved,
        strict=options.strict_cpu_reservation,
        pods=pods,
    )
    if ours != (case["error"] or ""):
        return compare(case["id"], ours, case["error"])
    kept = state["default"]
    if not kept and not assignments and not pods:
        kept = str(online - reserved if options.strict_cpu_reservation else online)
    return compare(case["id"], kept, case["default_after"], "shared pool")


def counts_pods(case: Case) -> bool:
    """Whether allocations of pods as wholes count: with the feature gate, also where nothing is told of gates."""
    return POD_LEVEL in (case.get("gates", [POD_LEVEL]) or ())


def judge_memory_start(case: Case) -> Judged:
    """Without `memory_nodes` the kubelet knows of no NUMA node."""
    before = case["state_before"]
    told = {
        "memory_nodes": case.get("memory_nodes") or (),
        "memory_reserved": case.get("system_reserved") or {},
    }
    of_containers, of_pods = blocks(before), pod_blocks(before) if counts_pods(case) else {}
    # The kubelet looks at the pods that have blocks of containers.
    of_pods = {uid: held for uid, held in of_pods.items() if held and uid in of_containers}
    ours = memory_state_refusal(_stored(before), of_containers, machine_of(told), of_pods)
    return compare(case["id"], ours, (case.get("error") or "").removeprefix("[memorymanager] "))


def _stored(state: Case) -> StoredMachine:
    return {node: stored_node(shown, shown["cells"]) for node, shown in (state.get("machine") or {}).items()}


def blocks(state: Case) -> dict[str, dict[str, tuple[MemoryBlock, ...]]]:
    """The blocks of the containers of a recorded state."""
    return {
        uid: {name: _blocks_of(told) for name, told in (by_name or {}).items()}
        for uid, by_name in (state.get("assignments") or {}).items()
    }


def pod_blocks(state: Case) -> dict[str, tuple[MemoryBlock, ...]]:
    """The blocks of its pods as wholes; recordings made without the gate have none."""
    return {uid: _blocks_of(told) for uid, told in (state.get("pod_assignments") or {}).items()}


def _blocks_of(told: Sequence[Mapping[str, Any]] | None) -> tuple[MemoryBlock, ...]:
    return tuple(MemoryBlock(NodeMask.from_ids(b["numa"]), b["type"], b["size"]) for b in told or ())
