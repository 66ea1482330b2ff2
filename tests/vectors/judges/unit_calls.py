"""unit_cpu and unit_memory: single calls, with the state before and after."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nri_plugin.model.errors import AdmissionError
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.cpu_assignment import CPUTables
from nri_plugin.policy.memory_state import MemoryMachine, MemoryState
from nri_plugin.policy.merge import MergedHint
from tests.vectors.judges import distributed, packed, starting
from tests.vectors.judges.managers import (
    CPUManager,
    MemoryManager,
    Pod,
    options_of,
    same_error,
    shown_blocks,
    shown_hint_sets,
)
from tests.vectors.judges.pod_level import LevelPod, PodCPUManager, PodMemoryManager
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare

CLASHING = "a core id stands for"
"""How a recorded machine says that its core ids cannot be used."""


def judge_cpu(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        recorded = document["topologies"][case["topology"]]
        if any(reason.startswith(CLASHING) for reason in recorded.get("inconsistent", ())):
            yield Judged(case["id"], Verdict.REPAIRED, "the recorded machine contradicts itself")
        else:
            yield judge_cpu_case(case, recorded)


def judge_cpu_case(case: Case, recorded: Mapping[str, Any]) -> Judged:
    tables = packed.tables_of(recorded)
    if case["fn"] == "packed":
        return packed.judge_case(case, tables, malformed=False)
    if case["fn"] == "distributed":
        return distributed.judge_case(case, tables, malformed=False)
    if case["fn"] == "start":
        return starting.judge_cpu_case({**case, **_as_found(case)}, tables)
    manager, hidden = _cpu_manager(case, tables)
    if case["fn"] == "remove_container":
        manager.remove(case["pod_uid"], case["container"])
        return _after(case, manager, hidden)
    pod = _pod(case)
    if case["fn"] == "allocate_pod":
        wrong = _other_error(case, lambda hint: manager.allocate_pod(pod, hint))
        return wrong or _after(case, manager, hidden)
    return _judge_cpu_container(case, manager, pod, hidden)


def _judge_cpu_container(case: Case, manager: CPUManager, pod: Pod, hidden: CPUSet) -> Judged:
    manager.reusable = {pod.uid: CPUSet.parse(case.get("reusable_before") or "")}
    if case["fn"] == "get_pod_topology_hints":
        return compare(case["id"], shown_hint_sets(manager.pod_hint_sets(pod)), case["hints"])
    container = next(c for c in pod.containers if c.name == case["container"])
    if case["fn"] == "get_topology_hints":
        return compare(case["id"], shown_hint_sets(manager.hint_sets(pod, container)), case["hints"])
    wrong = _other_error(case, lambda hint: manager.allocate(pod, container, hint))
    if wrong:
        return wrong
    reusable = str(manager.reusable.get(pod.uid, CPUSet()))
    if reusable != case.get("reusable_after", reusable):
        return compare(case["id"], reusable, case["reusable_after"], "reusable")
    return _after(case, manager, hidden)


def _cpu_manager(case: Case, tables: CPUTables) -> tuple[CPUManager, CPUSet]:
    """The manager before the call, and the CPUs that are neither on offer nor of a container."""
    kind = PodCPUManager if _is_pod_level(case) else CPUManager
    manager = kind(tables, CPUSet.parse(case["reserved"]), options_of(case.get("options")))
    if isinstance(manager, PodCPUManager):
        manager.blocks = _pod_sets(case["state_before"])
    manager.held = _sets(case["state_before"])
    default = CPUSet.parse(case["state_before"]["default"])
    hidden = CPUSet(tables.online) - default - _union(manager.held) - _union(_pod_sets(case["state_before"]))
    manager.unknown = default - CPUSet(tables.online)
    manager.held["", "not on offer"] = hidden
    return manager, hidden


def _as_found(case: Case) -> Case:
    """A start in the words of cpu_start_validation."""
    after = case.get("state_after") or case["state_before"]
    return {
        "state": case["state_before"],
        "reserved_cpus": case["reserved"],
        "default_after": after["default"],
    }


def _is_pod_level(case: Case) -> bool:
    return starting.POD_LEVEL in (case.get("gates") or ())


def _pod(case: Case) -> Pod:
    """The pod; what is given for it as a whole is not even looked at with both gates off."""
    if _is_pod_level(case):
        told = {**case["pod"], "pod": case["pod"]["uid"], "resources": case["pod"].get("pod_resources")}
        return LevelPod.of(told)
    pod = Pod.of({**case["pod"], "pod": case["pod"]["uid"]})
    return pod if case.get("gates") else replace(pod, has_own_resources=False)


def _other_error(case: Case, allocate: Callable[[MergedHint], None]) -> Judged | None:
    """A failure where the allocation is refused otherwise than recorded; None where it is not."""
    mask, preferred = case.get("affinity") or (None, False)
    error = None
    try:
        allocate(MergedHint(None if mask is None else NodeMask(mask), preferred))
    except AdmissionError as refusal:
        error = refusal
    if same_error(error, case.get("error") or ""):
        return None
    return Judged(case["id"], Verdict.FAILED, f"error ours {error} recorded {case['error']}")


def _after(case: Case, manager: CPUManager, hidden: CPUSet) -> Judged:
    """Compare the state after; what no container holds stays off the shared set unless it was given out."""
    after = case["state_after"]
    held = {key: cpus for key, cpus in manager.held.items() if key[0]}
    pods = manager.blocks if isinstance(manager, PodCPUManager) else {}
    default = (CPUSet(manager.tables.online) | manager.unknown) - _union(held) - _union(pods) - hidden
    ours = (_texts(held), _texts(pods), str(default))
    recorded = (_texts(_sets(after)), _texts(_pod_sets(after)), after["default"])
    return compare(case["id"], ours, recorded)


def _sets(state: Mapping[str, Any]) -> dict[tuple[str, str], CPUSet]:
    return {
        (uid, name): CPUSet.parse(text)
        for uid, by_name in (state.get("assignments") or {}).items()
        for name, text in (by_name or {}).items()
    }


def _pod_sets(state: Mapping[str, Any]) -> dict[str, CPUSet]:
    return {uid: CPUSet.parse(text) for uid, text in (state.get("pod_assignments") or {}).items()}


def _texts(sets: Mapping[Any, CPUSet]) -> dict[Any, str]:
    return {key: str(cpus) for key, cpus in sets.items()}


def _union(held: Mapping[Any, CPUSet]) -> CPUSet:
    mask = 0
    for cpus in held.values():
        mask |= cpus.mask
    return CPUSet(mask)


def judge_memory(document: Document) -> Iterator[Judged]:
    for case in document["cases"]:
        if case["fn"] == "start":
            yield starting.judge_memory_start(case)
        else:
            yield judge_memory_case(case)


def judge_memory_case(case: Case) -> Judged:
    manager = _memory_manager(case)
    if case["fn"] == "remove_container":
        manager.remove(case["pod_uid"], case["container"])
        return _memory_after(case, manager)
    pod = _pod(case)
    if case["fn"] == "allocate_pod":
        wrong = _other_error(case, lambda hint: manager.allocate_pod(pod, hint))
        return wrong or _memory_after(case, manager)
    manager.reuse = {pod.uid: _reuse(case.get("reusable_before"))}
    if case["fn"] == "get_pod_topology_hints":
        return compare(case["id"], shown_hint_sets(manager.pod_hint_sets(pod)), case["hints"])
    container = next(c for c in pod.containers if c.name == case["container"])
    if case["fn"] == "get_topology_hints":
        return compare(case["id"], shown_hint_sets(manager.hint_sets(pod, container)), case["hints"])
    wrong = _other_error(case, lambda hint: manager.allocate(pod, container, hint))
    if wrong:
        return wrong
    if "reusable_after" in case:
        ours = {key: size for key, size in manager.reuse.get(pod.uid, {}).items() if size}
        recorded = {key: size for key, size in _reuse(case["reusable_after"]).items() if size}
        if ours != recorded:
            return compare(case["id"], ours, recorded, "reusable")
    return _memory_after(case, manager)


def _memory_manager(case: Case) -> MemoryManager:
    state = case["state_before"]
    allocatable: dict[str, dict[int, int]] = {}
    promised = {}
    for node, shown in state["machine"].items():
        for name, amounts in shown["memory"].items():
            allocatable.setdefault(name, {})[int(node)] = amounts["free"] + amounts["reserved"]
            promised[int(node), name] = amounts["reserved"]
    nodes = tuple(sorted(int(node) for node in state["machine"]))
    kind = PodMemoryManager if _is_pod_level(case) else MemoryManager
    manager = kind(MemoryMachine(nodes, allocatable, {}, allocatable), reuse_outlives=True)
    if isinstance(manager, PodMemoryManager):
        manager.pod_blocks = starting.pod_blocks(state)
    manager.state = MemoryState(
        manager.machine,
        promised,
        {int(node): shown["assignments"] for node, shown in state["machine"].items()},
        {int(node): NodeMask.from_ids(shown["cells"]).mask for node, shown in state["machine"].items()},
    )
    manager.blocks = {
        (uid, name): blocks
        for uid, by_name in starting.blocks(state).items()
        for name, blocks in by_name.items()
    }
    return manager


def _reuse(recorded: Mapping[str, Mapping[str, int]] | None) -> dict[tuple[int, str], int]:
    return {
        (int(mask, 2), name): size for mask, sizes in (recorded or {}).items() for name, size in sizes.items()
    }


def _memory_after(case: Case, manager: MemoryManager) -> Judged:
    after = case["state_after"]
    blocks = {key: sorted(shown_blocks(b), key=str) for key, b in manager.blocks.items()}
    recorded = {
        (uid, name): sorted(blocks, key=str)
        for uid, by_name in after["assignments"].items()
        for name, blocks in by_name.items()
    }
    shown = {
        node: [
            entry["assignments"],
            entry["cells"],
            {name: [amounts["reserved"], amounts["free"]] for name, amounts in entry["memory"].items()},
        ]
        for node, entry in after["machine"].items()
    }
    order = [
        {key: block[key] for key in ("type", "size", "numa")}
        for blocks in recorded.values()
        for block in blocks
    ]
    ours = [block for blocks in blocks.values() for block in blocks]
    if sorted(map(str, ours)) != sorted(map(str, order)) or set(blocks) != set(recorded):
        return compare(case["id"], blocks, recorded, "blocks")
    if isinstance(manager, PodMemoryManager):
        pods = {uid: shown_blocks(held) for uid, held in manager.pod_blocks.items()}
        told = {uid: shown_blocks(held) for uid, held in starting.pod_blocks(after).items()}
        if pods != told:
            return compare(case["id"], pods, told, "pods")
    return compare(case["id"], manager.shown(), shown, "machine")
