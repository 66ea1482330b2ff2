"""memory_hints: the Memory Manager's static policy, replayed."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from nri_plugin.checkpoint.kubelet_files import order_dependent_nodes
from nri_plugin.config.option_checks import no_reserved_memory
from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.options import ReservedMemory
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet, NodeMask, NUMANodeID
from nri_plugin.model.topology import NUMANode, Topology
from nri_plugin.policy.memory_state import MemoryMachine, memory_machine
from nri_plugin.policy.merge import MergedHint
from tests.vectors.judges.managers import MemoryManager, Pod, same_error, shown_blocks, shown_hint_sets
from tests.vectors.judges.merging import replayed_merge
from tests.vectors.judges.restarting import as_at_first, memory_refusal, without_nothing
from tests.vectors.judges.static import compare_refusals, other_names
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

ORDERS = 300
"""So many orders are tried; the reference was seen to start in one of three."""


def machine_of(case: Case) -> MemoryMachine:
    nodes = tuple(
        NUMANode(
            NUMANodeID(node["id"]),
            CPUSet(),
            node["memory"],
            hugepages=tuple((size, pages) for size, pages in node.get("hugepages", ())),
        )
        for node in case["memory_nodes"]
    )
    return memory_machine(Topology(CPUSet(), (), (), nodes, ()), reserved_memory(case))


def reserved_memory(case: Case) -> list[ReservedMemory]:
    return [
        ReservedMemory(NUMANodeID(int(node)), name, size)
        for node, by_name in case["memory_reserved"].items()
        for name, size in by_name.items()
    ]


def _refusal_at_start(case: Case) -> str:
    return next(no_reserved_memory(reserved_memory(case)), "")


def judge(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        yield judge_case(case)


def judge_case(case: Case) -> Judged:
    expect = case["expect"]
    refused = _refusal_at_start(case)
    if refused or "steps" not in expect:
        return compare_refusals(case, refused)
    manager = MemoryManager(machine_of(case))
    wrong = replay(case, manager)
    if wrong and not replay(case, MemoryManager(machine_of(case), reuse_outlives=True)):
        return Judged(case["id"], Verdict.REPAIRED, "reusable memory goes with its init container")
    if wrong:
        return Judged(case["id"], Verdict.FAILED, wrong)
    if any("panic" in entry for step in expect["steps"] for entry in step.get("containers", ())):
        return Judged(case["id"], Verdict.REPAIRED, "the reference crashes")
    return judge_restart(case, manager)


def judge_restart(case: Case, manager: MemoryManager) -> Judged:
    """Where the reference refuses its own state we start on it: our machine follows from the blocks alone."""
    error = (case["expect"]["restart_error"] or "").removeprefix("[memorymanager] ")
    ours = memory_refusal(manager, case)
    if ours != error and error in verdicts_of_other_orders(manager, case):
        return Judged(
            case["id"], Verdict.REPAIRED, "whether the reference starts depends on the order of a map"
        )
    if ours != error:
        return compare(case["id"], ours, error, "as the kubelet at a restart")
    if error:
        return Judged(case["id"], Verdict.REPAIRED, "the reference refuses its own state")
    return Judged(case["id"], Verdict.PASSED)


def verdicts_of_other_orders(manager: MemoryManager, case: Case) -> set[str]:
    """What the reference may say of this state: it walks the blocks in a random order. Empty where that decides nothing."""
    held: dict[str, dict[str, Sequence[MemoryBlock]]] = {}
    for (uid, name), blocks in manager.blocks.items():
        held.setdefault(uid, {})[name] = blocks
    if not order_dependent_nodes(held):
        return set()
    items, in_order, random = list(manager.blocks.items()), manager.blocks, Random(0)
    found = set()
    for _ in range(ORDERS):
        random.shuffle(items)
        manager.blocks = dict(items)
        found.add(memory_refusal(manager, case))
    manager.blocks = in_order
    return found


def replay(case: Case, manager: MemoryManager) -> str:
    """What differs first, or nothing."""
    at_first, recorded = as_at_first(manager), without_nothing(case["expect"]["initial"])
    if at_first != recorded:
        return f"at first ours {at_first} recorded {recorded}"
    for number, (step, expect) in enumerate(zip(case["steps"], case["expect"]["steps"], strict=False)):
        if any("panic" in entry for entry in expect.get("containers", ())):
            return _sound_where_the_reference_crashes(manager, step)
        wrong = _step(manager, case, step, expect)
        if not wrong and manager.shown() != expect["machine"]:
            wrong = f"machine ours {manager.shown()} recorded {expect['machine']}"
        if wrong:
            return f"step {number}: {wrong}"
    return ""


def _step(manager: MemoryManager, case: Case, step: Case, expect: Case) -> str:
    if step["op"] == "remove_container":
        manager.remove(step["pod"], step["container"])
        return ""
    pod = Pod.of(step)
    if step["op"] == "pod_hints":
        ours = shown_hint_sets(manager.pod_hint_sets(pod))
        return "" if ours == expect["hints"] else f"pod hints ours {ours} recorded {expect['hints']}"
    wrong = other_names(pod, expect["containers"]) or _add(manager, case, step, pod, expect["containers"])
    blocks = {name: shown_blocks(b) for (uid, name), b in manager.blocks.items() if uid == pod.uid}
    if not wrong and blocks != expect["pod_blocks_after"]:
        wrong = f"blocks ours {blocks} recorded {expect['pod_blocks_after']}"
    return wrong


def _add(
    manager: MemoryManager, case: Case, step: Case, pod: Pod, expected: Sequence[Mapping[str, Any]]
) -> str:
    nodes = NodeMask.from_ids(manager.machine.nodes)
    for container, expect in zip(pod.containers, expected, strict=False):
        hint_sets = manager.hint_sets(pod, container)
        if shown_hint_sets(hint_sets) != expect["hints"]:
            return f"{container.name} hints ours {shown_hint_sets(hint_sets)} recorded {expect['hints']}"
        error: AdmissionError | None = None
        try:
            merged, wrong = replayed_merge(case, step, expect, nodes, hint_sets)
            if wrong:
                return f"{container.name} {wrong}"
            manager.allocate(pod, container, merged)
        except AdmissionError as refusal:
            error = refusal
        if not same_error(error, expect["error"]):
            return f"{container.name} error ours {error} recorded {expect['error']}"
        blocks = shown_blocks(manager.blocks.get((pod.uid, container.name), ()))
        if error and "blocks" not in expect:
            return ""
        if blocks != (expect["blocks"] or []):
            return f"{container.name} blocks ours {blocks} recorded {expect['blocks']}"
        if error:
            return ""
    return ""


def _sound_where_the_reference_crashes(manager: MemoryManager, step: Case) -> str:
    pod = Pod.of(step)
    for container in pod.containers:
        try:
            manager.hint_sets(pod, container)
            manager.allocate(pod, container, MergedHint(None, preferred=False))
        except AdmissionError:
            return ""
    return ""
