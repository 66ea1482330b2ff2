"""The judges behind hack/conformance: what they must notice, and inputs they must not fall over."""

import copy
from pathlib import Path

import pytest

from nri_plugin.model.options import Options
from nri_plugin.model.sets import CPUSet
from tests.vectors.judges import admission, lives, static, unit_calls
from tests.vectors.judges.managers import CPUManager, Pod
from tests.vectors.judges.packed import tables_of
from tests.vectors.judges.registry import OURS, load
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
        if not plain or case.get("error") or unit_calls.POD_LEVEL in case["gates"]:
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
