"""Devices from the played kubelet to cpusets: chosen first, then CPUs and memory beside them, by the real agent."""

import json
import os
import select
from pathlib import Path

import pytest

from tests.lab.scenario.player import Player
from tests.lab.scenario.scenario import parse
from tests.patient_stage import patient_stage

HEAD = """\
machine: {machine}
config: {{reservedSystemCPUs: "0,16", {config}}}
steps:
"""
LEFT_FULL = "  - run: a/left\n    containers: {c: {limits: {nvidia.com/gpu: 4}}}\n"
SPLIT = """\
  - run: a/x
    containers: {c: {limits: {nvidia.com/gpu: 3}}}
  - run: a/y
    containers: {c: {limits: {nvidia.com/gpu: 3}}}
"""
SINGLE = "topologyManagerPolicy: single-numa-node"
MESSAGE_ONLY = "exporterSocket: /nowhere/exporter.sock"


def outcome(config: str, steps: str, machine: str = "kep693-8-gpus") -> tuple[list[str], dict[str, str]]:
    """What was not as expected, and why containers were refused, by key."""
    scenario = parse(HEAD.format(config=config, machine=machine) + steps, "x.yaml")
    with patient_stage(scenario) as node:
        node.start_agent()
        player = Player(node)
        outcomes = [player.play(step) for step in scenario.steps]
        assert node.stop_agent() == 0
    return [problem for each in outcomes for problem in each.problems], player.refusals


@pytest.mark.parametrize(
    ("config", "node"),
    [
        ("topologyManagerPolicy: single-numa-node", 1),
        (f"topologyManagerPolicy: single-numa-node, {MESSAGE_ONLY}", 1),
        ("topologyManagerPolicy: restricted", 1),
        ("topologyManagerPolicy: best-effort", 1),
        ("topologyManagerPolicy: none", 0),
    ],
)
def test_cpus_come_from_the_node_of_the_devices(config: str, node: int) -> None:
    steps = f"""\
  - run: a/b
    containers: {{c: {{cpu: 4, memory: 1Gi, limits: {{nvidia.com/gpu: 2}}}}}}
  - expect: a/b/c
    devices: {{nvidia.com/gpu: "4,7"}}
    exclusive: 4
    cpus: {["1-2,17-18", "8-9,24-25"][node]}
"""
    problems, refusals = outcome(config, LEFT_FULL + steps)
    assert (problems, refusals) == ([], {})


def test_memory_nodes_follow_the_devices_too() -> None:
    config = (
        SINGLE + ", memoryManagerPolicy: Static, reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]"
    )
    steps = """\
  - run: a/b
    containers: {c: {cpu: 2, memory: 1Gi, limits: {example.com/nic: 1, nvidia.com/gpu: 1}}}
  - expect: a/b/c
    refused: TopologyAffinityError
  - remove: a/b
  - run: a/d
    containers: {c: {cpu: 2, memory: 1Gi, limits: {nvidia.com/gpu: 1}}}
  - expect: a/d/c
    mems: "1"
"""
    problems, refusals = outcome(config, LEFT_FULL + steps)
    assert problems == []
    assert "nvidia.com/gpu: given 4 on NUMA node 1" in refusals["a/b/c"]
    assert "example.com/nic: given 0 on NUMA node 0" in refusals["a/b/c"]


@pytest.mark.parametrize(
    ("policy", "asked", "is_refused"),
    [
        ("single-numa-node", "", True),
        ("single-numa-node", "cpu: 2, memory: 1Gi, ", True),
        ("restricted", "", True),
        ("best-effort", "", False),
    ],
)
def test_two_devices_that_one_node_could_have_had_are_refused_on_two(
    policy: str, asked: str, is_refused: bool
) -> None:
    steps = f"""\
  - run: a/b
    containers: {{c: {{{asked}limits: {{nvidia.com/gpu: 2}}}}}}
"""
    problems, refusals = outcome(f"topologyManagerPolicy: {policy}", SPLIT + steps)
    assert problems == []
    assert ("a/b/c" in refusals) is is_refused
    assert all("TopologyAffinityError" in reason for reason in refusals.values())


@pytest.mark.parametrize(("policy", "is_refused"), [("single-numa-node", True), ("restricted", False)])
def test_five_devices_need_two_nodes_which_restricted_takes(policy: str, is_refused: bool) -> None:
    steps = "  - run: a/b\n    containers: {c: {limits: {nvidia.com/gpu: 5}}}\n"
    problems, refusals = outcome(f"topologyManagerPolicy: {policy}", steps)
    assert (problems, set(refusals)) == ([], {"a/b/c"} if is_refused else set())


@pytest.mark.parametrize(
    ("option", "cpus"),
    [
        ("deviceProportionalCPUs: true", "1-4,8,17-20,24"),
        ("deviceProportionalCPUs: false", "1-5,17-21"),
    ],
)
def test_cpus_are_shared_out_in_proportion_to_the_devices_of_each_node(option: str, cpus: str) -> None:
    steps = f"""\
  - run: a/b
    containers: {{c: {{cpu: 10, memory: 1Gi, limits: {{nvidia.com/gpu: 5}}}}}}
  - expect: a/b/c
    devices: {{nvidia.com/gpu: "0,1,2,3,4"}}
    cpus: {cpus}
"""
    problems, refusals = outcome(f"topologyManagerPolicy: best-effort, {option}", steps)
    assert (problems, refusals) == ([], {})


@pytest.mark.parametrize(("scope", "first"), [("container", "1,17"), ("pod", "8,24")])
def test_under_pod_scope_a_container_without_devices_goes_where_those_of_the_other_are(
    scope: str, first: str
) -> None:
    second = "8,24" if scope == "container" else "9,25"
    steps = f"""\
  - run: a/b
    containers:
      web: {{cpu: 2, memory: 1Gi}}
      gpu: {{cpu: 2, memory: 1Gi, limits: {{nvidia.com/gpu: 2}}}}
  - expect: a/b/web
    cpus: {first}
    devices: {{}}
  - expect: a/b/gpu
    cpus: {second}
    devices: {{nvidia.com/gpu: [4, 7]}}
"""
    problems, refusals = outcome(f"{SINGLE}, topologyManagerScope: {scope}", LEFT_FULL + steps)
    assert (problems, refusals) == ([], {})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("memoryManagerPolicy: None", "nvidia.com/gpu: given 3 on NUMA node 0, 7 on NUMA node 1"),
        (MESSAGE_ONLY, "pci/10de:2330: given 0000:13:00.0 on NUMA node 0, 0000:17:00.0 on NUMA node 1"),
    ],
    ids=["exporter", "message"],
)
def test_a_refusal_names_devices_as_whoever_told_of_them(path: str, words: str) -> None:
    taken = "".join(
        f"  - run: a/p{number}\n    containers: {{c: {{limits: {{nvidia.com/gpu: {count}}}}}}}\n"
        for number, count in enumerate((3, 3))
    )
    steps = taken + "  - run: a/b\n    containers: {c: {limits: {nvidia.com/gpu: 2}}}\n"
    problems, refusals = outcome(f"{SINGLE}, {path}", steps)
    assert problems == []
    assert words in refusals["a/b/c"]


@pytest.mark.parametrize("delivery", ["device", "variable", "cdi"])
def test_the_agent_finds_devices_however_they_are_given_and_without_an_exporter(delivery: str) -> None:
    machine = f"""|
  topology: pack:2 numa:1 l3:1 core:8 pu:2(indexes=core)
  devices:
    - {{resource: example.com/x, count: 1, nodes: 0, as: {delivery}}}
    - {{resource: example.com/x, count: 1, nodes: 1, as: {delivery}}}
"""
    steps = """\
  - run: a/b
    containers: {c: {limits: {example.com/x: 1}}}
  - run: a/d
    containers: {c: {cpu: 2, memory: 1Gi, limits: {example.com/x: 1}}}
  - expect: a/d/c
    devices: {example.com/x: 1}
    cpus: "8,24"
"""
    problems, refusals = outcome(f"{SINGLE}, {MESSAGE_ONLY}", steps, machine)
    assert (problems, refusals) == ([], {})


def test_only_the_exporter_can_tell_of_a_device_near_two_nodes() -> None:
    machine = (
        "|\n  topology: pack:3 numa:1 l3:1 core:8 pu:2(indexes=core)\n"
        '  devices: [{resource: a.b/c, count: 1, nodes: "1,2"}]\n'
    )
    steps = """\
  - run: a/b
    containers: {c: {cpu: 2, memory: 1Gi, limits: {a.b/c: 1}}}
  - expect: a/b/c
    cpus: %s
"""
    assert outcome(SINGLE, steps % '"8,32"', machine) == ([], {})
    assert outcome(f"{SINGLE}, {MESSAGE_ONLY}", steps % '"1,25"', machine) == ([], {})


def test_a_pod_that_the_kubelet_does_not_admit_never_reaches_the_runtime() -> None:
    steps = """\
  - run: a/b
    containers: {c: {limits: {nvidia.com/gpu: 5}}, d: {cpu: 1, memory: 1Gi}}
  - expect: a/b/c
    refused: "UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 5, Available: 4"
  - expect: a/b/d
    refused: UnexpectedAdmissionError
  - run: a/other
    containers: {c: {limits: {amd.com/gpu: 1}}}
  - expect: a/other/c
    refused: OutOfamd.com/gpu
  - stop: a/b
  - remove: a/b
  - remove: a/left
  - run: a/b
    containers: {c: {cpu: 1, memory: 1Gi, limits: {nvidia.com/gpu: 5}}, d: {cpu: 1, memory: 1Gi}}
  - expect: a/b/d
    exclusive: 1
"""
    problems, refusals = outcome("topologyManagerPolicy: best-effort", LEFT_FULL + steps)
    assert problems == []
    assert set(refusals) == {"a/other/c"}


def test_devices_of_a_stopped_pod_and_of_a_refused_one_can_be_had_again_when_it_is_gone() -> None:
    steps = """\
  - stop: a/left
  - run: a/b
    containers: {c: {limits: {nvidia.com/gpu: 8}}}
  - expect: a/b/c
    refused: TopologyAffinityError
  - remove: a/b
  - run: a/d
    containers: {c: {limits: {nvidia.com/gpu: 2}}}
  - expect: a/d/c
    devices: {nvidia.com/gpu: "0,3"}
"""
    assert outcome(SINGLE, LEFT_FULL + steps)[0] == []


def test_what_was_not_expected_of_devices_is_a_problem() -> None:
    steps = "  - expect: a/left/c\n    devices: {nvidia.com/gpu: 0}\n"
    problems, _ = outcome(SINGLE, LEFT_FULL + steps)
    assert problems == ["a/left/c should have devices nvidia.com/gpu 0, it has nvidia.com/gpu 0,1,2,3"]


def test_the_refusal_of_an_init_container_is_the_end_of_the_pod() -> None:
    steps = """\
  - run: a/b
    initContainers: {i: {limits: {nvidia.com/gpu: 2}}}
    containers: {c: {}}
"""
    problems, refusals = outcome(SINGLE, SPLIT + steps)
    assert problems == []
    assert set(refusals) == {"a/b/i"}


def test_with_netlink_a_helper_process_lives_as_long_as_the_agent() -> None:
    scenario = parse(
        HEAD.format(config="nicLocality: netlink", machine="kep693-8-gpus") + LEFT_FULL, "x.yaml"
    )
    with patient_stage(scenario) as node:
        node.start_agent()
        player = Player(node)
        assert [problem for step in scenario.steps for problem in player.play(step).problems] == []
        (helper,) = children(node.agent_pid)
        assert "nri_plugin.host.nic_probe" in Path(f"/proc/{helper}/cmdline").read_text()
        ended = select.poll()
        ended.register(os.pidfd_open(helper), select.POLLIN)
        node.kill_agent()
        assert ended.poll(60_000), "the helper outlives the agent"


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_node_is_the_same_after_the_agent_was_killed(tmp_path: Path) -> None:
    steps = """\
  - run: a/b
    containers: {c: {cpu: 4, memory: 1Gi, limits: {nvidia.com/gpu: 2}}}
  - restart: agent
  - expect: a/b/c
    cpus: 8-9,24-25
"""
    scenario = parse(HEAD.format(config=SINGLE, machine="kep693-8-gpus") + LEFT_FULL + steps, "x.yaml")
    with patient_stage(scenario, tmp_path / "node") as node:
        node.start_agent()
        player = Player(node)
        assert [problem for step in scenario.steps for problem in player.play(step).problems] == []
        node.stop_agent()
    checkpoint = json.loads((tmp_path / "node" / "state" / "state.json").read_text())
    assert "8-9,24-25" in json.dumps(checkpoint)
