from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_plugin.model.sets import CPUSet
from tests.lab.scenario import faults, player
from tests.lab.scenario.player import CPUChange, Player
from tests.lab.scenario.scenario import parse
from tests.lab.scenario.stage import ScenarioNode
from tests.patient_stage import patient_stage

HEAD = """\
machine: |
  pack:1 numa:1 l3:1 core:4 pu:1
config: {reservedSystemCPUs: "0"}
steps:
  - run: a/shared
    containers: {c: {requests: {cpu: 100m}}}
  - run: a/own
    containers: {c: {cpu: 2, memory: 1Gi}}
"""
AGAIN = "  - run: a/again\n    containers: {c: {cpu: 2, memory: 1Gi}}\n"


def problems(steps: str) -> list[str]:
    """What was not as expected when this is played."""
    scenario = parse(HEAD + steps, "x.yaml")
    with patient_stage(scenario) as node:
        node.start_agent()
        actor = Player(node)
        return [problem for step in scenario.steps for problem in actor.play(step).problems]


def test_a_foreign_write_happens_and_is_put_right() -> None:
    assert problems("  - drift: a/own/c\n    cpus: 0-3\n  - expect: a/own/c\n    cpus: 1-2\n") == []


def test_a_write_that_the_kernel_would_reject_is_no_drift() -> None:
    (said,) = problems("  - drift: a/own/c\n    cpus: 1-2,9\n")
    assert "ERANGE" in said


def test_a_second_agent_waits_for_the_first() -> None:
    assert problems("  - second: agent\n") == []


def test_a_second_agent_that_ends_by_itself_did_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with patient_stage(parse(HEAD, "x.yaml")) as node:
        monkeypatch.setattr(node, "command", ["sh", "-c", "echo gone >&2; exit 3"])
        assert "it ended with 3: gone" in faults.second_agent(node)


def test_a_node_is_left_and_taken_up_again() -> None:
    left = "  - release: agent\n  - expect: a/own/c\n    cpus: 0-3\n  - expect: a/shared/c\n    cpus: 0-3\n"
    again = "  - restart: agent\n  - expect: a/own/c\n    cpus: 1-2\n  - expect: a/shared/c\n    cpus: 0,3\n"
    assert problems(left + again) == []


def test_a_release_that_fails_is_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScenarioNode, "release_command", ["false"])
    assert problems("  - release: agent\n") == ["release ended with 1: "]


def test_a_pod_that_ends_unseen_leaves_its_cpus_to_the_others() -> None:
    gone = "  - kill: agent\n  - remove: a/own\n  - expect: a/shared/c\n    cpus: 0,3\n"
    assert problems(gone + "  - restart: agent\n  - expect: a/shared/c\n    cpus: 0-3\n") == []


def test_a_restart_writes_nothing() -> None:
    assert problems("  - restart: agent\n    writes: 0\n") == []


def test_writes_during_a_restart_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([{Path("a"): 1}, {Path("a"): 2}])
    monkeypatch.setattr(player, "settled_writes", lambda _stage: next(times))
    (said,) = problems("  - restart: agent\n    writes: 0\n")
    assert said == "1 cpuset files were written, at most 0 expected"


def test_a_write_that_follows_a_restart_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ScenarioNode.start_agent

    def and_write_later(node: ScenarioNode) -> object:
        found = begun(node)
        (node.places.cgroups / "cpu.max").write_text("max 100000\n")
        return found

    monkeypatch.setattr(
        ScenarioNode, "start_agent", lambda node: and_write_later(node) if node.server.link else begun(node)
    )
    (said,) = problems("  - restart: agent\n    writes: 0\n")
    assert said == "1 cpuset files were written, at most 0 expected"


def test_an_agent_that_is_down_puts_nothing_back() -> None:
    drifted = "  - kill: agent\n  - drift: a/own/c\n    cpus: 0-3\n  - expect: a/own/c\n    cpus: 0-3\n"
    assert problems(drifted + "  - restart: agent\n  - expect: a/own/c\n    cpus: 1-2\n") == []


def test_an_agent_comes_back_with_another_configuration() -> None:
    changed = "  - restart: agent\n    config: {reservedSystemCPUs: 0-1}\n"
    assert problems("  - remove: a/own\n" + changed + AGAIN + "  - expect: a/again/c\n    cpus: 2-3\n") == []
    assert problems("  - remove: a/own\n" + AGAIN + "  - expect: a/again/c\n    cpus: 1-2\n") == []


def test_nobody_is_promised_what_somebody_else_holds_apart() -> None:
    taken = "  - remove: a/own\n  - partition: isolated\n    cpus: 2-3\n  - restart: agent\n"
    pool = "  - expect: a/shared/c\n    cpus: 0-1\n" + AGAIN + "  - expect: a/again/c\n    refused: cpus\n"
    back = "  - partition: member\n  - restart: agent\n  - expect: a/shared/c\n    cpus: 0-3\n"
    assert problems(taken + pool + back) == []


def test_a_partition_that_is_not_isolated_is_only_out_of_reach() -> None:
    assert problems("  - partition: root\n    cpus: 3\n  - expect: a/shared/c\n    cpus: 0\n") == []


def test_containers_follow_the_cgroup_above_all_pods_and_keep_their_cpus() -> None:
    narrow = "  - kubepods: 0-1\n  - expect: a/own/c\n    cpus: 1\n  - expect: a/shared/c\n    cpus: 0\n"
    wide = "  - kubepods: 0-3\n  - expect: a/own/c\n    cpus: 1-2\n  - expect: a/shared/c\n    cpus: 0,3\n"
    assert problems(narrow + AGAIN + "  - expect: a/again/c\n    refused: cpus\n" + wide) == []


def test_what_the_agent_logged_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems("  - logged: ready cpus=0-3\n  - restart: agent\n  - logged: ready cpus=0-3\n") == []
    monkeypatch.setattr(faults, "LIMIT_S", 0.1)
    (said,) = problems("  - logged: ready cpus=0-3\n  - logged: ready cpus=0-3\n")
    assert said == "the agent should have logged ready cpus=0-3, it did not"
    assert problems("  - logged: Operation not permitted\n    only: kernel\n") == []


def test_a_cpu_that_goes_leaves_the_machine_s_files_and_comes_back() -> None:
    gone = "  - online: 0-1,3\n  - expect: a/own/c\n    cpus: 1\n"
    back = "  - online: 0-3\n  - expect: a/own/c\n    cpus: 1-2\n  - expect: a/shared/c\n    cpus: 0,3\n"
    assert problems(gone + back) == []


def test_what_a_kubelet_writes_while_no_agent_is_there_is_put_back_by_the_next_one() -> None:
    away = "  - kill: agent\n  - update: a/own/c\n    cpus: 0-3\n  - expect: a/own/c\n    cpus: 0-3\n"
    assert problems(away + "  - restart: agent\n  - expect: a/own/c\n    cpus: 1-2\n") == []


def test_a_resized_container_is_judged_by_its_new_size() -> None:
    grown = "  - update: a/own/c\n    cpu: 3\n  - expect: a/own/c\n    exclusive: 3\n    cpus: 1-3\n"
    refused = "  - update: a/own/c\n    cpu: 100\n  - expect: a/own/c\n    refused: not enough\n"
    shrunk = "  - update: a/own/c\n    cpu: 2\n  - expect: a/own/c\n    cpus: 1-2\n"
    assert problems(grown + refused + shrunk) == []


@pytest.mark.parametrize(
    ("own", "before", "after", "is_fault"),
    [(0, "0,3", "0-3", False), (0, "0-3", "0,3", True), (0, "0-1", "2-3", True), (1, "1", "1-2", True)],
)
def test_a_restart_may_only_widen_the_shared_pool(
    own: int, before: str, after: str, is_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = SimpleNamespace(take_rejections=list)
    actor = Player(SimpleNamespace(runtime=runtime, agent_pid=1, agent_death=None))  # type: ignore[arg-type]
    monkeypatch.setattr(actor, "wants_own", lambda _key: own)
    (*_, step) = parse(HEAD + "  - restart: agent\n", "x.yaml").steps
    found = actor._judge(step, {}, (CPUChange("a/shared/c", CPUSet.parse(before), CPUSet.parse(after)),))
    assert bool(list(found)) is is_fault
