"""How many more pods fit, compared with playing them one by one with nothing cut short."""

from dataclasses import replace

import pytest

from nri_plugin.simulator.machine.source import SourcedMachine, machine_from
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import read_short
from nri_plugin.simulator.simulate.pods import PodSpec
from nri_plugin.simulator.simulate.room import more_that_fit
from nri_plugin.simulator.simulate.rows import read_shape
from nri_plugin.simulator.simulate.simulate import empty_node, play, simulate
from nri_plugin.simulator.simulate.simulation import RefusalStage

MACHINE = """\
topology: pack:2 numa:1(memory=4GiB) l3:2 core:3 pu:2(indexes=core)
nodes:
  0-1: {hugepages: {256Mi: 4}}
devices:
  - {resource: example.com/gpu, count: 3, nodes: 0}
  - {resource: example.com/gpu, count: 1, nodes: 1}
"""
PODS = """\
- {pod: a, cpu: 3, memory: 1Gi, example.com/gpu: 1}
- {pod: b, cpu: 2, memory: 512Mi}
- {pod: c, requests: {cpu: 300m, memory: 256Mi}}
- {pod: d, count: 2}
"""
SHAPES = [
    "cpu=1",
    "cpu=1,memory=64Mi",
    "cpu=2,memory=100Mi",
    "cpu=5,memory=1Gi",
    "cpu=7,memory=64Mi",
    "cpu=400m,memory=64Mi",
    "cpu=700m,memory=300Mi",
    "memory=700Mi",
    "cpu=1,memory=64Mi,example.com/gpu=1",
    "example.com/gpu=1",
    "example.com/gpu=2",
    "cpu=2,memory=64Mi,hugepages-256Mi=256Mi",
    "cpu=100",
]
CONFIGS = [
    {},
    {"topologyManagerPolicy": "single-numa-node"},
    {"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod", "memoryManagerPolicy": "Static"},
    {"topologyManagerPolicy": "best-effort", "cpuManagerPolicyOptions": "{full-pcpus-only: 'true'}"},
    {"cpuManagerPolicy": "none"},
]


def machine() -> SourcedMachine:
    return machine_from(MACHINE.encode(), "x", "x")


def one_by_one(sets: dict[str, str], pod: PodSpec, *, empty: bool) -> int:
    """Play the scenario and then pod after pod on the same node, all events and all containers kept."""
    plan = read_short(PODS, "pods.yaml")
    chosen = choose(machine().topology, sets=sets)
    node = empty_node(machine(), plan, chosen) if empty else play(machine(), plan, chosen).node
    for count in range(1000):
        if any(tried.error for tried in node.run(replace(pod, name=f"more-{count}"))):
            return count
    raise AssertionError("there is no end of it")


@pytest.mark.parametrize("sets", CONFIGS, ids=str)
@pytest.mark.parametrize("text", SHAPES)
def test_it_is_as_many_as_are_placed_one_by_one(sets: dict[str, str], text: str) -> None:
    shape = read_shape(text)
    found = simulate(machine(), read_short(PODS, "pods.yaml"), choose(machine().topology, sets=sets), [shape])
    room = found.capacity[-1]
    assert room.fits == one_by_one(sets, shape, empty=False)
    assert room.fits_empty == one_by_one(sets, shape, empty=True)
    assert room.refusal is not None


def test_nothing_that_is_asked_for_has_no_end() -> None:
    found = simulate(machine(), read_short(PODS, "pods.yaml"), choose(machine().topology))
    by_example = {room.example: room for room in found.capacity}
    assert not by_example["default/d"].bounded
    assert by_example["default/d"].pods == 2


def test_what_ends_the_row_is_told() -> None:
    played = play(machine(), read_short(PODS, "pods.yaml"), choose(machine().topology))
    _, full = more_that_fit(played.node, read_shape("cpu=1,memory=64Mi"))
    assert full is not None
    assert (full.stage, full.reason) == (RefusalStage.NODE, "OutOfcpu")
    _, narrow = more_that_fit(
        play(
            machine(),
            read_short(PODS, "pods.yaml"),
            choose(machine().topology, sets={"topologyManagerPolicy": "single-numa-node"}),
        ).node,
        read_shape("cpu=7,memory=64Mi"),
    )
    assert narrow is not None
    assert (narrow.stage, narrow.reason) == (RefusalStage.PLACEMENT, "TopologyAffinityError")


def test_asking_changes_nothing() -> None:
    node = play(machine(), read_short(PODS, "pods.yaml"), choose(machine().topology)).node
    before = (
        node.state,
        dict(node.room.used) if node.room else None,
        node.devices.available("example.com/gpu"),
    )
    more_that_fit(node, read_shape("cpu=1,memory=64Mi,example.com/gpu=1"))
    assert before == (
        node.state,
        dict(node.room.used) if node.room else None,
        node.devices.available("example.com/gpu"),
    )


def test_in_a_namespace_that_is_never_refused_a_row_ends_where_somebody_would_be() -> None:
    sets = {"topologyManagerPolicy": "single-numa-node", "neverRefuse": "[default]"}
    found = simulate(
        machine(),
        read_short("- {pod: big, cpu: 7, memory: 64Mi}\n", "p.yaml"),
        choose(machine().topology, sets=sets),
    )
    (row,) = found.steps[0].containers
    assert row.status == "placed"
    assert found.capacity[0].fits == 1
    assert found.capacity[0].refusal is not None
    assert "default/big/big" in found.capacity[0].refusal.text
    assert found.capacity[0].refusal.stage is RefusalStage.PLACEMENT


def test_of_very_many_shapes_the_most_frequent_and_those_asked_for_are_tried() -> None:
    wide = machine_from(b"pack:1 numa:1(memory=64GiB) l3:1 core:64 pu:1", "x", "x")
    lines = [f"- {{pod: p{number}, cpu: 1, memory: {number + 1}Mi}}" for number in range(20)]
    pods = "\n".join([*lines, "- {pod: many, count: 2, cpu: 1, memory: 100Mi}"])
    found = simulate(
        wide, read_short(pods, "p.yaml"), choose(wide.topology), [read_shape("cpu=2,memory=1Gi")]
    )
    examples = [room.example for room in found.capacity]
    assert examples[-2:] == ["default/many", ""]
    assert len(examples) < 22
    assert found.notes == (
        f"how many more fit was tried for {len(examples)} of 22 shapes of pods, the most frequent; --shape asks for others",
    )
    assert found.capacity[-1].fits_empty == 31
    assert any(room.fits_empty is None for room in found.capacity)
