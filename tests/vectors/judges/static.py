"""cpu_static_sequences: the CPU Manager's static policy, replayed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nri_plugin.model.errors import AdmissionError, ConfigError
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.topology import Topology
from nri_plugin.policy.cpu_assignment import CPUTables
from tests.topology_rows import topology_of_rows
from tests.vectors.judges.managers import (
    CPUManager,
    Pod,
    check_start,
    same_error,
    same_refusal,
    shown_hint_sets,
)
from tests.vectors.judges.merging import replayed_merge
from tests.vectors.judges.packed import tables_of
from tests.vectors.judges.restarting import cpu_refusal, loses_something
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict, compare


def judge(document: Document) -> Iterator[Judged]:
    tables = {name: tables_of(recorded) for name, recorded in document["topologies"].items()}
    for case in document["cases"]:
        recorded = document["topologies"][case["topology"]]
        yield judge_case(case, tables[case["topology"]], recorded)


def judge_case(case: Case, tables: CPUTables, recorded: Mapping[str, Any]) -> Judged:
    expect, malformed = case["expect"], "inconsistent" in recorded
    refused = refusal_at_start(case, tables)
    if refused or "steps" not in expect:
        return compare_refusals(case, refused)
    manager = CPUManager.of(case, tables)
    if str(manager.reserved) != expect["reserved"]:
        return Judged(
            case["id"], Verdict.FAILED, f"reserved {manager.reserved} recorded {expect['reserved']}"
        )
    if str(manager.default) != expect["initial_default"]:
        return compare(case["id"], str(manager.default), expect["initial_default"], "at first")
    for number, (step, expected) in enumerate(zip(case["steps"], expect["steps"], strict=True)):
        on_offer = manager.available
        wrong = _step(manager, case, step, expected)
        if not wrong and str(manager.default) != expected["default"]:
            wrong = f"shared pool {manager.default} recorded {expected['default']}"
        wrong = wrong or manager.given_twice
        if wrong and malformed:
            return Judged(case["id"], Verdict.REPAIRED, "the recorded machine contradicts itself")
        if wrong and is_uneven(tables) and _is_unsound(manager, step, expected, on_offer):
            return Judged(case["id"], Verdict.REPAIRED, "recorded CPUs that were not on offer")
        if wrong:
            return Judged(case["id"], Verdict.FAILED, f"step {number}: {wrong}")
    return _judge_restart(case, manager, topology_of_rows(recorded["cpus"]), malformed=malformed)


def _judge_restart(case: Case, manager: CPUManager, topology: Topology, *, malformed: bool) -> Judged:
    """Where the reference refuses its own state, ours starts on it; asked as the kubelet, we say what it says."""
    error = case["expect"]["restart_error"] or ""
    lost = "" if malformed else loses_something(manager, topology)
    if lost:
        return Judged(case["id"], Verdict.FAILED, lost)
    if error and malformed:
        return Judged(case["id"], Verdict.REPAIRED, "the recorded machine contradicts itself")
    ours = cpu_refusal(manager)
    if ours != error:
        return compare(case["id"], ours, error, "as the kubelet at a restart")
    if error:
        return Judged(case["id"], Verdict.REPAIRED, "the reference refuses its own state")
    return Judged(case["id"], Verdict.PASSED)


def is_uneven(tables: CPUTables) -> bool:
    """Whether averages mislead the reference: cores or sockets of different numbers of CPUs."""
    return any(core.bit_count() != tables.cpus_per_core for core in tables.cores) or any(
        socket.bit_count() != tables.cpus_per_socket for socket in tables.sockets
    )


def refusal_at_start(case: Case, tables: CPUTables) -> str:
    """Why the CPU Manager is not made; empty when it is."""
    try:
        check_start(case, tables)
    except ConfigError as error:
        return error.detail
    return ""


def compare_refusals(case: Case, refused: str) -> Judged:
    recorded = case["expect"].get("new_error") or ""
    if same_refusal(refused, recorded):
        return Judged(case["id"], Verdict.PASSED)
    return Judged(case["id"], Verdict.FAILED, f"at start ours {refused!r} recorded {recorded!r}")


def _is_unsound(manager: CPUManager, step: Case, expected: Case, on_offer: CPUSet) -> bool:
    """Whether the recorded step hands out CPUs that were neither available nor the pod's own, or some of them twice."""
    own = CPUSet()
    for (uid, _), cpus in manager.held.items():
        own |= cpus if uid == step["pod"] else CPUSet()
    entries = expected.get("containers", ())
    outside = any(not CPUSet.parse(entry.get("cpuset") or "") <= on_offer | own for entry in entries)
    return outside or gives_twice(step, expected)


def gives_twice(step: Case, expected: Case) -> bool:
    """Whether a container gets CPUs of one before it in the pod that goes on running: an app container or a sidecar."""
    ended = {c["name"] for c in step.get("init_containers", ()) if not c.get("restartable")}
    kept = CPUSet()
    for entry in expected.get("containers", ()):
        cpus = CPUSet.parse(entry.get("cpuset") or "")
        if not cpus.isdisjoint(kept):
            return True
        kept |= CPUSet() if entry["container"] in ended else cpus
    return False


def _step(manager: CPUManager, case: Case, step: Case, expect: Case) -> str:
    if step["op"] == "remove_container":
        manager.remove(step["pod"], step["container"])
        return f"recorded {expect['error']}" if expect.get("error") else ""
    pod = Pod.of(step)
    if step["op"] == "pod_hints":
        ours = shown_hint_sets(manager.pod_hint_sets(pod))
        recorded = None if expect["no_preference"] else {"cpu": expect["hints"]}
        return "" if ours == recorded else f"pod hints ours {ours} recorded {recorded}"
    return other_names(pod, expect["containers"]) or _add(manager, case, step, pod, expect["containers"])


def other_names(pod: Pod, expected: Sequence[Mapping[str, Any]]) -> str:
    """Whether the recording tells of other containers than the first ones of the pod."""
    ours, told = [c.name for c in pod.containers], [entry["container"] for entry in expected]
    return "" if told == ours[: len(told)] else f"containers {ours} recorded {told}"


def _add(manager: CPUManager, case: Case, step: Case, pod: Pod, expected: Sequence[Mapping[str, Any]]) -> str:
    nodes = NodeMask.from_ids(node for node, _ in manager.tables.nodes)
    for container, expect in zip(pod.containers, expected, strict=False):
        hint_sets = manager.hint_sets(pod, container)
        recorded = None if expect["no_preference"] else {"cpu": expect["hints"]}
        if shown_hint_sets(hint_sets) != recorded:
            return f"{container.name} hints ours {shown_hint_sets(hint_sets)} recorded {recorded}"
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
        if error and "cpuset" not in expect:
            return ""
        wrong = _compare_after(manager, pod, container.name, expect)
        if wrong or error:
            return wrong
    return ""


def _compare_after(manager: CPUManager, pod: Pod, name: str, expect: Mapping[str, Any]) -> str:
    cpus = manager.held.get((pod.uid, name))
    reusable = str(manager.reusable.get(pod.uid, CPUSet()))
    if (None if cpus is None else str(cpus)) != expect["cpuset"]:
        return f"{name} ours {cpus} recorded {expect['cpuset']}"
    if reusable != expect["reusable_after"]:
        return f"{name} reusable ours {reusable} recorded {expect['reusable_after']}"
    return ""
