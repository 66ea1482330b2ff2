"""The judges behind hack/conformance: what they must notice, and inputs they must not fall over."""

import copy
import re
from pathlib import Path

import pytest

from nri_plugin.model.options import Options
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.policy.memory_state import MemoryMachine
from tests.vectors.judges import admission, lives, memory, merging, pod_level, starting, static, unit_calls
from tests.vectors.judges.managers import CPUManager, MemoryManager, Pod
from tests.vectors.judges.packed import tables_of
from tests.vectors.judges.registry import OURS, load
from tests.vectors.judges.restarting import as_at_first
from tests.vectors.judges.verdict import Case, Document, Judged, Verdict


def document(name: str) -> Document:
    return load(Path(OURS / "kubelet" / f"{name}.json.gz"))


def found(name: str, **values: object) -> tuple[Case, Case]:
    """A case with these values, and its machine."""
    of = document(name)
    case = next(case for case in of["cases"] if all(case.get(key) == value for key, value in values.items()))
    return copy.deepcopy(case), of["topologies"][case["topology"]]


# --------------------------------------------------------------------- machines of which little is told


@pytest.mark.parametrize("told", [None, "nothing"])
def test_a_machine_without_distances_is_judged(told: str | None) -> None:
    case, machine = found("admission", tm_policy="best-effort", tm_options={})
    for node in case["memory_nodes"]:
        node.pop("distances")
        if told is None:
            node["distances"] = None
    assert admission.judge_case(case, tables_of(machine)).verdict is Verdict.PASSED


def test_a_case_without_memory_nodes_is_judged_by_the_nodes_its_cpus_are_on() -> None:
    of = document("admission")
    cases = [case for case in of["cases"] if "memory_reserved" not in case and not case["tm_options"]]
    for case in cases[:5]:
        del case["memory_nodes"]
        verdict = admission.judge_case(case, tables_of(of["topologies"][case["topology"]])).verdict
        assert verdict is Verdict.PASSED


def test_a_life_on_a_machine_without_distances_or_memory_nodes_is_judged() -> None:
    of = document("pod_lives")
    case = next(case for case in of["cases"] if "memory_reserved" not in case and not case["tm_options"])
    for node in case["memory_nodes"]:
        node["distances"] = None
    assert judged(case, of).verdict is Verdict.PASSED
    del case["memory_nodes"]
    assert judged(case, of).verdict is Verdict.PASSED


# --------------------------------------------------------------------- CPUs that are given twice


def container(name: str, **values: object) -> Case:
    return {"name": name, "requests": {"cpu": "2", "memory": "1"}, **values}


STEP: Case = {
    "op": "add",
    "pod": "p",
    "init_containers": [container("setup"), container("mesh", restartable=True)],
    "containers": [container("web"), container("log")],
}


@pytest.mark.parametrize(
    ("setup", "mesh", "web", "log", "twice"),
    [
        ("2-3", "2-3", "4-5", "6-7", False),
        ("2-3", "4-5", "2-3", "6-7", False),
        ("2-3", "4-5", "4-5", "6-7", True),
        ("2-3", "4-5", "6-7", "7-8", True),
    ],
)
def test_cpus_of_a_sidecar_or_an_app_container_given_again_are_noticed(
    setup: str, mesh: str, web: str, log: str, twice: bool
) -> None:
    sets = {"setup": setup, "mesh": mesh, "web": web, "log": log}
    expect = {"containers": [{"container": name, "cpuset": cpus} for name, cpus in sets.items()]}
    assert static.gives_twice(STEP, expect) is twice
    manager = CPUManager(tables_of(found("admission")[1]), CPUSet(), Options())
    manager.held = {("p", name): CPUSet.parse(cpus) for name, cpus in sets.items()}
    manager.ended = {("p", one.name) for one in Pod.of(STEP).containers if one.plain_init}
    assert bool(manager.given_twice) is twice


def test_cpus_of_an_ended_init_container_given_to_another_pod_are_noticed() -> None:
    manager = CPUManager(tables_of(found("admission")[1]), CPUSet(), Options())
    manager.held = {("p", "setup"): CPUSet.parse("2-3"), ("q", "web"): CPUSet.parse("3-4")}
    manager.ended = {("p", "setup")}
    assert manager.given_twice == "CPUs 3 are given to p/setup and q/web"


# --------------------------------------------------------------------- a state with a CPU that is not there


def test_a_cpu_in_the_state_that_the_machine_lacks_is_on_offer_as_in_the_kubelet_and_stays_in_the_shared_set() -> (
    None
):
    of = document("unit_cpu")
    judged_ones = 0
    for case in of["cases"]:
        machine = of["topologies"][case["topology"]]
        plain = case["fn"] in ("allocate", "remove_container")
        if not plain or case.get("error") or starting.POD_LEVEL in case["gates"]:
            continue
        if unit_calls.judge_cpu_case(case, machine).verdict is not Verdict.PASSED:
            continue
        without = case["state_after"]["default"]
        for state in (case["state_before"], case["state_after"]):
            state["default"] = f"{state['default']},4000".lstrip(",")
        assert unit_calls.judge_cpu_case(case, machine).verdict is Verdict.PASSED
        case["state_after"]["default"] = without
        assert unit_calls.judge_cpu_case(case, machine).verdict is Verdict.FAILED
        judged_ones += 1
    assert judged_ones > 5


# --------------------------------------------------------------------- lives


def judged(case: Case, of: Document) -> Judged:
    return lives.judge_case(case, of["topologies"][case["topology"]])


LIFE = "ended_init_memory"


def a_life(rule: str = LIFE) -> tuple[Case, Document]:
    of = document("pod_lives")
    return next(case for case in of["cases"] if rule in case["rules"]), of


def first(case: Case, admitted: bool) -> Case:
    return next(step for step in case["expect"]["steps"] if step.get("admit") is admitted)


@pytest.mark.parametrize("admitted", [True, False])
def test_another_verdict_on_a_pod_fails(admitted: bool) -> None:
    case, of = a_life()
    first(case, admitted)["admit"] = not admitted
    assert judged(case, of).verdict is Verdict.FAILED


def test_another_reason_for_a_refusal_fails() -> None:
    case, of = a_life()
    first(case, False)["reason"] = "AnotherError"
    assert judged(case, of).verdict is Verdict.FAILED


def holding(case: Case, name: str) -> Case:
    """What some container is told to hold at the end of the life."""
    held = case["expect"]["steps"][-1]["held"]
    return next(entry for entries in held.values() for entry in entries if entry[name])


def test_other_cpus_and_other_bytes_than_are_held_fail() -> None:
    case, of = a_life()
    holding(case, "cpuset")["cpuset"] = "0-1000"
    assert "recorded ['0-1000'" in judged(case, of).detail
    case, of = a_life()
    holding(case, "blocks")["blocks"][0]["size"] += 1
    assert judged(case, of).verdict is Verdict.FAILED


def test_another_shared_set_fails() -> None:
    case, of = a_life()
    case["expect"]["steps"][-1]["default"] = "0"
    assert "shared pool ours" in judged(case, of).detail


def test_memory_left_to_an_init_container_fails() -> None:
    case, of = a_life()
    entry = holding(case, "blocks")
    uid = next(pod for pod, entries in case["expect"]["steps"][-1]["held"].items() if entry in entries)
    step = next(one for one in case["steps"] if one["op"] == "add" and one["pod"] == uid)
    step.setdefault("init_containers", []).append({"name": "late", "requests": {}})
    case["expect"]["steps"][-1]["held"][uid].append({**entry, "container": "late", "cpuset": None})
    assert judged(case, of).verdict is Verdict.FAILED


def test_groups_of_promises_that_have_ended_are_stale_until_their_nodes_are_empty() -> None:
    groups = lives.Groups()

    def told(*blocks: list[int], left: list[list[int]]) -> bool:
        rows = [{"numa": nodes} for nodes in blocks]
        held = {"p": [{"blocks": [{"numa": nodes} for nodes in left]}]}
        groups.follow({"op": "add"}, {"containers": [{"blocks": rows}], "held": held})
        return groups.are_stale

    assert not told([0, 1], left=[[0, 1]])
    assert not told([0], left=[[0, 1], [0]])
    assert told(left=[[0, 1]])
    assert not told(left=[])
    assert not told([0, 1], left=[[0, 1]])


def test_an_answer_that_differs_while_groups_are_stale_is_a_repaired_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, of = a_life()
    first(case, True)["admit"] = False
    monkeypatch.setattr(lives.Groups, "are_stale", True)
    assert judged(case, of).verdict is Verdict.REPAIRED


# --------------------------------------------------------------------- forms that recordings may have


def unit(kind: str, **values: object) -> tuple[Case, Document]:
    of = document(f"unit_{kind}")
    case = next(case for case in of["cases"] if all(case.get(key) == value for key, value in values.items()))
    return copy.deepcopy(case), of


def verdict_of_unit(kind: str, case: Case, of: Document) -> Verdict:
    judge = {"cpu": unit_calls.judge_cpu, "memory": unit_calls.judge_memory}[kind]
    (found,) = judge({**of, "cases": [case]})
    return found.verdict


BOTH_GATES = ["PodLevelResources", "PodLevelResourceManagers"]


@pytest.mark.parametrize("told", ["absent", "null"])
@pytest.mark.parametrize("kind", ["cpu", "memory"])
def test_a_pod_without_amounts_of_its_own_is_judged_as_an_ordinary_one(kind: str, told: str) -> None:
    judged_cases = 0
    of = document(f"unit_{kind}")
    for one in of["cases"]:
        if one["fn"] != "allocate" or "pod_resources" in one["pod"] or not one["gates"]:
            continue
        case = copy.deepcopy({**one, "gates": BOTH_GATES})
        if told == "null":
            case["pod"]["pod_resources"] = None
        assert verdict_of_unit(kind, case, of) is Verdict.PASSED
        if case["state_after"] != case["state_before"]:
            case["state_after"] = case["state_before"]
            assert verdict_of_unit(kind, case, of) is Verdict.FAILED
            judged_cases += 1
    assert judged_cases > 10


SUM = "pod rejected, sum of exclusive container {0} requests equals pod budget, leaving no {1} for shared containers"
INIT = "pod rejected, pod has shared init containers but no {1} available for them"


@pytest.mark.parametrize(
    ("kind", "prefix", "names", "amounts"),
    [
        ("cpu", "", ("cpu", "cpus"), {"cpu": "2", "memory": "1G"}),
        ("memory", "[memorymanager] ", ("memory", "memory"), {"cpu": "3", "memory": "2Gi"}),
    ],
)
def test_a_pod_that_leaves_nothing_to_its_shared_containers_is_refused_in_the_recorded_words(
    kind: str, prefix: str, names: tuple[str, str], amounts: dict[str, str]
) -> None:
    case, of = unit(kind, fn="allocate_pod", error=None)
    both = {"requests": amounts, "limits": amounts}
    shared = {"name": "shared", "requests": {}, "limits": {}}
    case["pod"] |= {
        "containers": [{"name": "own", **both}, shared],
        "init_containers": [],
        "pod_resources": both,
    }
    case["state_after"] = case["state_before"]
    for text, verdict in (
        (SUM, Verdict.PASSED),
        ("Allocate failed due to " + SUM + ", which is unexpected", Verdict.PASSED),
        (INIT, Verdict.FAILED),
        ("pod rejected, for another reason", Verdict.FAILED),
        ("not enough cpus available to satisfy request: requested=2, available=0", Verdict.FAILED),
        (None, Verdict.FAILED),
    ):
        start = "" if text is None or text.startswith("Allocate") else prefix
        case["error"] = text and start + text.format(*names)
        assert verdict_of_unit(kind, case, of) is verdict, text


def test_an_init_container_larger_than_its_pod_is_refused_with_the_recorded_numbers() -> None:
    case, of = unit("cpu", fn="allocate_pod", error=None)
    own, more = {"cpu": "2", "memory": "1G"}, {"cpu": "3", "memory": "1G"}
    case["pod"] |= {
        "containers": [{"name": "app", "requests": own, "limits": own}],
        "init_containers": [{"name": "init", "requests": more, "limits": more}],
        "pod_resources": {"requests": own, "limits": own},
    }
    case["state_after"] = case["state_before"]
    words = "pod rejected, largest exclusive init container requests {} cpus, but only 2 available"
    for asked, verdict in ((3, Verdict.PASSED), (4, Verdict.FAILED)):
        case["error"] = words.format(asked)
        assert verdict_of_unit("cpu", case, of) is verdict


DIFFERENT = "[memorymanager] the expected machine state is different from the real one"


def test_the_blocks_of_pods_as_wholes_are_part_of_a_state_found_at_start() -> None:
    case, of = unit("memory", fn="allocate_pod", id="um099")
    start = {**case, "fn": "start", "state_before": case["state_after"], "error": None}
    assert verdict_of_unit("memory", start, of) is Verdict.PASSED
    assert verdict_of_unit("memory", {**start, "error": DIFFERENT}, of) is Verdict.FAILED
    # Without the gate, or without the blocks of the pod, each container counts for itself.
    without = {name: value for name, value in start["state_before"].items() if name != "pod_assignments"}
    for changed in ({"gates": ["PodLevelResources"]}, {"gates": None}, {"state_before": without}):
        assert verdict_of_unit("memory", {**start, **changed}, of) is Verdict.FAILED
        assert verdict_of_unit("memory", {**start, **changed, "error": DIFFERENT}, of) is Verdict.PASSED


@pytest.mark.parametrize("machine", [{}, None])
def test_a_start_without_a_word_on_numa_nodes_is_one_on_none(machine: Case | None) -> None:
    block = {"numa": [0], "size": 1, "type": "memory"}
    state: Case = {"machine": machine, "assignments": {"p": {"c": [block]}}}
    case: Case = {"id": "x", "fn": "start", "gates": None, "state_before": state, "state_after": state}
    for error, verdict in (
        ("[memorymanager] machine state can not be empty when it has memory assignments", Verdict.PASSED),
        (DIFFERENT, Verdict.FAILED),
        (None, Verdict.FAILED),
    ):
        assert verdict_of_unit("memory", {**case, "error": error}, {}) is verdict


def test_the_cpus_of_pods_as_wholes_are_part_of_a_state_found_at_start() -> None:
    case, of = unit("cpu", fn="allocate_pod", error=None)
    start = {**case, "fn": "start", "state_before": case["state_after"]}
    assert verdict_of_unit("cpu", start, of) is Verdict.PASSED
    without = {**start["state_before"], "pod_assignments": None}
    assert verdict_of_unit("cpu", {**start, "state_before": without}, of) is Verdict.FAILED


@pytest.mark.parametrize("distances", [None, {}, {"0": None, "1": None, "2": None}])
@pytest.mark.parametrize(
    ("m1", "m2", "result"), [(0b11, 0b100, 0b100), (0b100, 0b11, 0b100), (0b11, 0b101, 0b11)]
)
def test_without_distances_the_narrower_mask_is_the_closer_one(
    distances: Case | None, m1: int, m2: int, result: int
) -> None:
    case = {"id": "x", "fn": "closest", "distances": distances, "m1": m1, "m2": m2, "result": result}
    (right,) = merging.judge_misc({"cases": [case]})
    (wrong,) = merging.judge_misc({"cases": [{**case, "result": m1 + m2 - result}]})
    assert (right.verdict, wrong.verdict) == (Verdict.PASSED, Verdict.FAILED)


# --------------------------------------------------------------------- what the kubelet does by chance, or miscounts


def held_over(*nodes: list[int]) -> tuple[Case, MemoryManager]:
    """A node on which one container after the other has memory on these nodes."""
    both = {0: 8, 1: 8}
    manager = MemoryManager(
        MemoryMachine((0, 1), {"memory": both}, {"memory": {0: 0, 1: 0}}, {"memory": both})
    )
    initial = as_at_first(manager)
    for number, ids in enumerate(nodes):
        block = MemoryBlock(NodeMask.from_ids(ids), "memory", 2)
        manager.blocks[f"p{number}", "c"] = (block,)
        manager.state = manager.state.with_blocks([(block, 2)])
    return {"id": "x", "expect": {"steps": [], "initial": initial}}, manager


@pytest.mark.parametrize(
    ("nodes", "error", "verdict"),
    [
        (([0], [0, 1]), None, Verdict.PASSED),
        (([0], [0, 1]), DIFFERENT, Verdict.REPAIRED),
        (([0], [0, 1]), "[memorymanager] another text", Verdict.FAILED),
        (([0], [1]), None, Verdict.PASSED),
        (([0], [1]), DIFFERENT, Verdict.FAILED),
    ],
)
def test_a_start_that_depends_on_the_order_of_blocks_is_a_repaired_fault(
    nodes: tuple[list[int], ...], error: str | None, verdict: Verdict
) -> None:
    case, manager = held_over(*nodes)
    case["expect"]["restart_error"] = error
    assert memory.judge_restart(case, manager).verdict is verdict


def test_numbers_in_refusals_of_pod_level_sequences_count_on_even_cores_only() -> None:
    of = document("pod_level_sequences")
    found = []
    for is_number, changed in ((True, "available=1"), (False, "available=none of the CPUs")):
        for case in copy.deepcopy(of["cases"]):
            refused = [
                one
                for step in case["expect"].get("steps", ())
                for one in (step, *step.get("containers", ()))
                if "not enough cpus" in str(one.get("error")) and not one.get("error_any")
            ]
            if not refused or case.get("fault"):
                continue
            for one in refused:
                one["error"] = re.sub(r"available=\d+", changed if is_number else "", one["error"])
                one["error"] = one["error"] if is_number else "SMT Alignment Error: " + one["error"]
            (judged_case,) = pod_level.judge_cpus({**of, "cases": [case]})
            is_even = not static.is_uneven(tables_of(of["topologies"][case["topology"]]))
            found.append((is_number, is_even, judged_case.verdict is Verdict.PASSED))
    assert (True, False, True) in found
    assert (True, True, False) in found
    assert not [one for one in found if not one[0] and one[2]]
