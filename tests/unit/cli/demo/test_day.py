import pytest

from nri_plugin.cli.demo.day import day, sizes
from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine import machine
from nri_plugin.simulator.scenario.steps import Expect, Restart, Run


@pytest.mark.parametrize("name", sorted(machine.shipped()))
def test_the_day_fits_every_shipped_machine(name: str) -> None:
    topology = machine.build_topology(machine.load(name))
    scenario = day(name, topology)
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
    text = "1 socket, 8 cores\nmemory 16Gi"
    assert day(text, machine.build_topology(machine.parse(text))).machine == text


def test_memory_is_bound_where_every_node_with_cpus_has_some() -> None:
    poor = machine.build_topology(machine.parse("2 sockets, 4 cores each\nmemory 100Mi each"))
    assert sizes(poor)["memory_policy"] == "None"


def test_an_unknown_runtime_is_no_day() -> None:
    with pytest.raises(ValueError, match="docker"):
        day("demo", machine.build_topology(machine.load("demo")), "docker")


@pytest.mark.parametrize("text", ["1 socket, 1 core", "1 socket, 3 cores", "2 sockets, 1 core each, SMT 2"])
def test_a_machine_without_room_is_refused_with_what_it_lacks_and_one_to_try(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        day(text, machine.build_topology(machine.parse(text)))
    assert str(caught.value).startswith("built-in day: needs ")
    assert "try --machine demo" in str(caught.value)
    assert ".in" not in str(caught.value).split()[0]


@pytest.mark.parametrize(
    ("text", "retry"),
    [
        ("1 socket, 4 cores", "1"),
        ("2 sockets, 4 cores each\noffline 4-6", "1"),  # three quarters of node 0 are 2, and it has 1 left
        ("2 sockets, 8 cores each", "6"),
    ],
)
def test_what_is_asked_for_last_is_what_a_node_has_left(text: str, retry: str) -> None:
    assert sizes(machine.build_topology(machine.parse(text)))["retry"] == retry
