import pytest

from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine import machine
from nri_plugin.simulator.simulate.steps import Expect, Run
from tests.lab.demo.day import day, sizes
from tests.lab.scenario.steps import Restart

RUNTIME = "containerd-2.1"


@pytest.mark.parametrize("name", sorted(machine.shipped()))
def test_the_day_fits_every_shipped_machine(name: str) -> None:
    topology = machine.build_topology(machine.load(name))
    scenario = day(name, topology, RUNTIME)
    numbers = sizes(topology)
    threads = max(len(cpus) for _, cpus in topology.cores)
    assert scenario.machine == name
    for size in ("db", "filter", "retry", "queue"):
        assert int(numbers[size]) > 0
        assert int(numbers[size]) % threads == 0
    assert int(numbers["train"]) > max(len(node.cpus) for node in topology.nodes)


def test_the_day_has_what_a_day_has() -> None:
    scenario = day("demo", machine.build_topology(machine.load("demo")), "cri-o")
    assert scenario.runtime == "cri-o"
    assert any(isinstance(step, Restart) for step in scenario.steps)
    assert any(isinstance(step, Expect) and step.refused for step in scenario.steps)
    assert {step.pod.qos for step in scenario.steps if isinstance(step, Run)} == {
        "Guaranteed",
        "Burstable",
        "BestEffort",
    }


def test_a_described_machine_can_be_played_too() -> None:
    text = "pack:1 numa:1(memory=16GiB) l3:1 core:8 pu:1"
    assert machine.parse(
        day(text, machine.build_topology(machine.parse(text)), RUNTIME).machine
    ) == machine.parse(text)


def test_memory_is_bound_where_every_node_with_cpus_has_some() -> None:
    poor = machine.build_topology(machine.parse("pack:2 numa:1(memory=100MiB) l3:1 core:4 pu:1"))
    assert sizes(poor)["memory_policy"] == "None"


@pytest.mark.parametrize(
    "text",
    [
        "pack:1 numa:1 l3:1 core:1 pu:1",
        "pack:1 numa:1 l3:1 core:3 pu:1",
        "pack:2 numa:1 l3:1 core:1 pu:2(indexes=core)",
    ],
)
def test_a_machine_without_room_is_refused_with_what_it_lacks_and_one_to_try(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        day(text, machine.build_topology(machine.parse(text)), RUNTIME)
    assert str(caught.value).startswith("built-in day: needs ")
    assert "try --machine demo" in str(caught.value)
    assert ".in" not in str(caught.value).split()[0]


@pytest.mark.parametrize(
    ("text", "retry"),
    [
        ("pack:1 numa:1 l3:1 core:4 pu:1", "1"),
        (
            "topology: pack:2 numa:1 l3:1 core:4 pu:1\noffline: 4-6",
            "1",
        ),  # three quarters of node 0 are 2, and it has 1 left
        ("pack:2 numa:1 l3:1 core:8 pu:1", "6"),
    ],
)
def test_what_is_asked_for_last_is_what_a_node_has_left(text: str, retry: str) -> None:
    assert sizes(machine.build_topology(machine.parse(text)))["retry"] == retry
