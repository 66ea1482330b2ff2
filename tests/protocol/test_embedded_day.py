"""The real agent behind the embedded runtime, on described machines: whole scenarios, judged by cgroups."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.machine import machine
from nri_plugin.simulator.simulate.pods import Driver
from tests.lab.demo.day import day
from tests.lab.runtime.cgroup_tree import CpusetFile, parent_of
from tests.lab.runtime.profile import BEHAVIOURS
from tests.lab.scenario.faults import frozen
from tests.lab.scenario.player import Player, StepOutcome
from tests.lab.scenario.scenario import Scenario, parse
from tests.lab.scenario.stage import ScenarioNode
from tests.patient_stage import patient_stage

HEAD = """\
machine: laptop
config:
  reservedSystemCPUs: "0"
steps:
"""
DB = """\
  - run: shop/db
    containers: {db: {cpu: 2, memory: 1Gi}}
"""
WEB = """\
  - run: shop/web
    containers: {web: {requests: {cpu: 500m}}}
"""


def the_day(name: str = "demo", runtime: str = "containerd-2.1") -> Scenario:
    return day(name, machine.build_topology(machine.load(name)), runtime)


def played(node: ScenarioNode, scenario: Scenario) -> tuple[Player, list[StepOutcome]]:
    node.start_agent()
    player = Player(node)
    return player, [player.play(step) for step in scenario.steps]


def problems(outcomes: list[StepOutcome]) -> list[str]:
    return [problem for outcome in outcomes for problem in outcome.problems]


@pytest.fixture
def on_stage() -> Iterator[Callable[[Scenario], ScenarioNode]]:
    opened = []

    def open_stage(scenario: Scenario) -> ScenarioNode:
        context = patient_stage(scenario)
        opened.append(context)
        return context.__enter__()

    yield open_stage
    for context in opened:
        context.__exit__(None, None, None)


@pytest.mark.parametrize("runtime", sorted(BEHAVIOURS))
def test_a_day_goes_well_with_every_runtime(on_stage, runtime: str) -> None:
    scenario = the_day(runtime=runtime)
    _, outcomes = played(on_stage(scenario), scenario)
    assert problems(outcomes) == []
    assert sum(len(outcome.refused) for outcome in outcomes) == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_day_goes_well_with_the_cgroupfs_driver(on_stage, version: int) -> None:
    scenario = replace(the_day(), driver=Driver.CGROUPFS, cgroup_version=version)
    _, outcomes = played(on_stage(scenario), scenario)
    assert problems(outcomes) == []


def test_a_runtime_that_restarts_finds_everything_as_it_was(on_stage) -> None:
    heir = "  - run: shop/heir\n    containers: {heir: {cpu: 7, memory: 1Gi}}\n"
    scenario = parse(HEAD + WEB + DB + "  - restart: runtime\n  - remove: shop/db\n" + heir, "x")
    player, outcomes = played(on_stage(scenario), scenario)
    assert problems(outcomes) == []
    # containerd never tells the end of a pod older than itself. Its cgroup is gone, so its CPUs go to the next pod.
    placements = player.stage.runtime.placements()
    assert placements["shop/heir/heir"].effective == CPUSet.parse("1-7")
    assert placements["shop/web/web"].effective == CPUSet.of(0)


def test_containers_born_while_the_agent_is_away_are_placed_when_it_is_back(on_stage) -> None:
    born = "  - run: shop/born\n    containers: {c: {requests: {cpu: 100m}}}\n"
    scenario = parse(HEAD + WEB + DB + "  - kill: agent\n" + born, "x")
    player, outcomes = played(on_stage(scenario), scenario)
    assert problems(outcomes) == []
    node = player.stage
    own = node.runtime.placements()["shop/db/db"].effective
    # Nobody has pinned it, but the slice it was born into keeps it off what is promised.
    assert node.runtime.placements()["shop/born/c"].stored == ""
    assert node.runtime.placements()["shop/born/c"].effective == CPUSet.parse("0-7") - own
    node.start_agent()
    assert node.runtime.placements()["shop/db/db"].effective == own
    # Its own file is written after the answer; the slice bounds it meanwhile.
    assert node.runtime.placements()["shop/born/c"].effective == CPUSet.parse("0-7") - own


def test_an_offline_cpu_comes_back_to_its_owner(on_stage) -> None:
    steps = "  - online: 0,2-7\n  - online: 0-7\n"
    scenario = parse(HEAD + DB + steps, "x")
    player, outcomes = played(on_stage(scenario), scenario)
    own = player.exclusive["shop/db/db"]
    assert CPUSet.of(1) <= own
    assert [str(outcome.changed[0].after) for outcome in outcomes[1:]] == [str(own - CPUSet.of(1)), str(own)]


def test_a_foreign_writer_is_found_out(on_stage) -> None:
    scenario = parse(HEAD + DB + WEB, "x")
    player, outcomes = played(on_stage(scenario), scenario)
    assert problems(outcomes) == []
    node = player.stage
    tree = node.runtime.cgroups.mirror.tree
    web = node.runtime.record("shop/web/web").names.path
    with frozen(node.agent_pid):  # it would put this right before anybody looks
        tree.write(parent_of(parent_of(web)), CpusetFile.CPUS, "0-7")
        tree.write(web, CpusetFile.CPUS, "0-7")
        told = " ".join(player.play(parse(HEAD + DB + "  - say: x\n", "x").steps[1]).problems)
        assert "shop/db/db and shop/web/web share CPUs" in told
        tree.write(node.runtime.record("shop/db/db").names.path, CpusetFile.CPUS, "6-7")
        told = " ".join(player.play(parse(HEAD + DB + "  - say: x\n", "x").steps[1]).problems)
    assert "shop/db/db was moved from" in told


def test_an_agent_that_dies_by_itself_is_a_problem(on_stage) -> None:
    scenario = parse(HEAD + WEB, "x")
    player, _ = played(on_stage(scenario), scenario)
    agent = player.stage._agent
    assert agent is not None
    agent.kill()
    agent.wait()
    told = player.play(parse(HEAD + DB, "x").steps[0]).problems
    assert "the agent ended by itself with code -9" in told


def test_a_container_that_began_elsewhere_is_a_problem(on_stage, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = parse(HEAD + WEB, "x")
    node = on_stage(scenario)
    start = node.runtime.start

    def start_late(key: str) -> None:
        start(key)
        node.runtime.record(key).started_on = CPUSet.of(1)

    monkeypatch.setattr(node.runtime, "start", start_late)
    _, outcomes = played(node, scenario)
    assert problems(outcomes) == ["shop/web/web began on 1 before it was put on 0-7"]


def test_a_write_no_kernel_takes_is_a_problem(on_stage) -> None:
    scenario = parse(HEAD + WEB, "x")
    player, _ = played(on_stage(scenario), scenario)
    node = player.stage
    directory = node.runtime.cgroups.mirror.directory(node.runtime.record("shop/web/web").names.path)
    (directory / "cpuset.cpus").write_text("\n")
    told = player.play(parse(HEAD + DB, "x").steps[0]).problems
    assert "a set, once given, cannot be cleared" in " ".join(told)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("expect: shop/db/db\n    exclusive: 3", "should have exclusive cpus: 3, it has 2"),
        ("expect: shop/db/db\n    cpus: 0-1", "should have cpus 0-1, it has 1,5"),
        ("expect: shop/db/db\n    mems: 1", "should have memory nodes 1, it has 0"),
        ("expect: shop/db/db\n    refused: SMTAlignmentError", "should have been refused with SMTAlign"),
    ],
)
def test_what_does_not_come_true_is_told(on_stage, step: str, told: str) -> None:
    scenario = parse(HEAD + DB + f"  - {step}\n", "x")
    _, outcomes = played(on_stage(scenario), scenario)
    assert told in " ".join(problems(outcomes))


def test_a_refusal_is_compared_with_the_one_expected(on_stage) -> None:
    run = "  - run: a/big\n    containers: {c: {cpu: 50, memory: 1Gi}}\n"
    scenario = parse(HEAD + run + "  - expect: a/big/c\n    refused: SMTAlignmentError\n", "x")
    player, outcomes = played(on_stage(scenario), scenario)
    assert "should have been refused with SMTAlignmentError, it was with: " in problems(outcomes)[0]
    runs = parse(HEAD + run + "  - expect: a/big/c\n    exclusive: 50\n", "x").steps[1]
    assert "a/big/c should run, but was refused" in player.play(runs).problems[0]
