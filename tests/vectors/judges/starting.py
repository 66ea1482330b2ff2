"""cpu_start_validation, and the start of the Memory Manager: a state found at start."""

from collections.abc import Iterator, Mapping
from typing import Any

from nri_plugin.checkpoint.kubelet_files import (
    StoredMemory,
    StoredNode,
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
from tests.vectors.judges.verdict import Case, Document, Judged, compare


def judge_cpu(document: Document) -> Iterator[Judged]:
    tables = {name: tables_of(recorded) for name, recorded in document["topologies"].items()}
    for case in document["cases"]:
        yield judge_cpu_case(case, tables[case["topology"]])


def judge_cpu_case(case: Case, tables: CPUTables) -> Judged:
    options, online = options_of(case.get("options")), CPUSet(tables.online)
    listed, count = reserved_of(case)
    reserved = listed or take_cpus(tables, online, count, options)
    assignments = {
        uid: {name: CPUSet.parse(text) for name, text in by_name.items()}
        for uid, by_name in case["state"]["assignments"].items()
    }
    ours = cpu_state_refusal(
        CPUSet.parse(case["state"]["default"]),
        assignments,
        online=online,
        reserved=reserved,
        strict=options.strict_cpu_reservation,
    )
    if ours != (case["error"] or ""):
        return compare(case["id"], ours, case["error"])
    kept = case["state"]["default"]
    if not kept and not assignments:
        kept = str(online - reserved if options.strict_cpu_reservation else online)
    return compare(case["id"], kept, case["default_after"], "shared pool")


def judge_memory_start(case: Case) -> Judged:
    before = case["state_before"]
    machine = machine_of({**case, "memory_reserved": case["system_reserved"]})
    ours = memory_state_refusal(_stored(before["machine"]), _blocks(before["assignments"]), machine)
    return compare(case["id"], ours, (case["error"] or "").removeprefix("[memorymanager] "))


def _stored(machine: Mapping[str, Mapping[str, Any]]) -> dict[int, StoredNode]:
    return {
        int(node): StoredNode(
            shown["assignments"],
            NodeMask.from_ids(shown["cells"]).mask,
            {name: StoredMemory(**amounts) for name, amounts in shown["memory"].items()},
        )
        for node, shown in machine.items()
    }


def _blocks(assignments: Mapping[str, Mapping[str, list]]) -> dict[str, dict[str, list[MemoryBlock]]]:
    return {
        uid: {
            name: [MemoryBlock(NodeMask.from_ids(b["numa"]), b["type"], b["size"]) for b in blocks]
            for name, blocks in by_name.items()
        }
        for uid, by_name in assignments.items()
    }
