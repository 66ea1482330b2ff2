"""What is simulated without a process is what the real agent does, with a played runtime around it."""

from dataclasses import replace

import pytest
import yaml

from nri_plugin.simulator.machine.source import described_machine
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import PodPlan, read_plan, read_short
from nri_plugin.simulator.simulate.rows import Rows
from nri_plugin.simulator.simulate.simulate import Played, play
from nri_plugin.simulator.simulate.steps import Say
from tests.lab.scenario.player import Player
from tests.lab.scenario.scenario import Scenario, parse
from tests.patient_stage import patient_stage

Outcome = dict[str, tuple[str, str]]
"""By container: its CPUs and memory nodes, or `refused` and why."""

BUSY = """\
machine: {machine}
config:
  reservedSystemCPUs: "{reserved}"
  topologyManagerPolicy: {policy}
  topologyManagerScope: {scope}
  memoryManagerPolicy: {memory}
  reservedMemory: [{{numaNode: 0, limits: {{memory: 100Mi}}}}]
  neverRefuse: [kube-system]
pods:
  - {{pod: a/one, count: 3, cpu: 3, memory: 2Gi}}
  - {{pod: a/odd, count: 2, cpu: 1, memory: 1Gi}}
  - {{pod: b/web, count: 4, requests: {{cpu: 250m}}}}
  - {{pod: b/none}}
  - {{pod: kube-system/agent, cpu: 90, memory: 1Gi}}
  - pod: c/chain
    count: 2
    initContainers: {{first: {{cpu: 4, memory: 1Gi}}, second: {{cpu: 2, memory: 1Gi}}}}
    containers: {{main: {{cpu: 2, memory: 3Gi}}, side: {{cpu: 500m, memory: 64Mi}}}}
  - pod: d/mesh
    initContainers: {{proxy: {{restartPolicy: Always, cpu: 2, memory: 1Gi}}}}
    containers: {{main: {{cpu: 2, memory: 1Gi}}}}
  - {{pod: e/large, cpu: 11, memory: 1Gi}}
  - {{pod: e/huge, count: 3, cpu: 7, memory: 9Gi}}
  - {{pod: e/too-large, cpu: 90, memory: 1Gi}}
"""
LIFE = """\
  - run: late/one
    containers: {c: {cpu: 2, memory: 1Gi}}
  - stop: a/one-0
  - remove: a/one-1/one
  - remove: a/odd-0
  - run: late/two
    containers: {c: {cpu: 3, memory: 1Gi}}
  - create: late/three
    containers: {c: {cpu: 1, memory: 1Gi}}
  - start: late/three
  - update: late/two/c
    cpu: 2
  - update: b/web-0/web
    cpu: 500m
"""


NAMES = ("a/one-0", "a/one-1", "a/odd-0", "b/web-0")
BEFORE = "".join(
    f"  - run: {name}\n    containers: {{{name.rpartition('/')[2].partition('-')[0]}: {{}}}}\n"
    for name in NAMES
)
"""The reader of steps wants to have seen what it is told the end of."""


def simulated(plan: PodPlan) -> Outcome:
    """As the simulation has it."""
    machine = described_machine(plan.machine, plan.file)
    played: Played = play(machine, plan, choose(machine.topology, None, plan.config, said_in=plan.file))
    rows = Rows(played.node)
    found: Outcome = {
        key: ("refused", row.refusal.text)
        for key, row in played.steps.latest.items()
        if row.refusal is not None and row.status == "refused"
    }
    for key, row in played.steps.latest.items():
        if played.node.is_running(key):
            now = rows.now(row)
            found[key] = (now.cpus, now.mems)
    return found


def with_the_agent(plan: PodPlan) -> Outcome:
    """As the agent's process has it."""
    scenario = Scenario(
        file=plan.file,
        machine=plan.machine,
        steps=plan.steps,
        runtime=plan.runtime,
        config=yaml.safe_load(plan.config or ""),
    )
    with patient_stage(scenario) as node:
        node.start_agent()
        player = Player(node)
        for step in scenario.steps:
            if not isinstance(step, Say):
                player.play(step)
        placements = node.runtime.placements()
        assert node.stop_agent() == 0
    found = {key: ("refused", reason) for key, reason in player.refusals.items()}
    running = {key: each for key, each in placements.items() if each.effective}
    return found | {key: (str(each.effective), str(each.own_mems)) for key, each in running.items()}


def agree(plan: PodPlan) -> Outcome:
    """See that both say the same; without the pods' objects, as the embedded runtime has none."""
    plan = replace(plan, has_objects=False)
    expected = with_the_agent(plan)
    assert simulated(plan) == expected
    return expected


@pytest.mark.parametrize(
    ("machine", "reserved", "policy", "scope", "memory"),
    [
        ("demo", "0,32", "single-numa-node", "container", "Static"),
        ("demo", "0,32", "restricted", "pod", "Static"),
        ("laptop", "0", "best-effort", "container", "None"),
        ("kep3545-8-numa", "0", "single-numa-node", "pod", "None"),
    ],
)
def test_a_busy_node_is_simulated_as_it_is_played(
    machine: str, reserved: str, policy: str, scope: str, memory: str
) -> None:
    text = BUSY.format(machine=machine, reserved=reserved, policy=policy, scope=scope, memory=memory)
    if memory == "None":
        text = "".join(line for line in text.splitlines(keepends=True) if "reservedMemory" not in line)
    found = agree(read_short(text, "busy.yaml"))
    assert any(what == "refused" for what, _ in found.values())
    assert len({cpus for cpus, _ in found.values() if cpus != "refused"}) > 3


@pytest.mark.parametrize("name", ["telco", "inference"])
def test_a_shipped_scenario_is_simulated_as_it_is_played(name: str) -> None:
    assert agree(read_plan(name))


def test_a_life_with_ends_and_resizes_is_simulated_as_it_is_played() -> None:
    text = BUSY.format(
        machine="demo", reserved="0,32", policy="restricted", scope="container", memory="Static"
    )
    plan = read_short(text, "busy.yaml")
    later = parse(f"machine: demo\nconfig: {{reservedSystemCPUs: '0'}}\nsteps:\n{BEFORE}{LIFE}", "life.yaml")
    assert agree(replace(plan, steps=(*plan.steps, *later.steps[len(NAMES) :])))


def test_the_scenario_of_devices_is_simulated_as_it_is_played() -> None:
    assert agree(read_plan("devices"))
