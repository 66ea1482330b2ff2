"""`nri-pin room`: its answer for eyes and for programs, and what it says where it cannot know."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli import main
from nri_plugin.cli.room import command
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, MemoryBlock, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.source import read_machine
from nri_plugin.simulator.simulate.pods import ContainerSpec, PodSpec
from nri_plugin.simulator.simulate.room import largest_exclusive, requests_of, standing_node

GIB = 1 << 30
DESCRIBED = """\
topology: pack:2 numa:1(memory=8GiB) l3:1 core:4 pu:2(indexes=core)
devices:
  - {resource: example.com/gpu, count: 1, nodes: 0}
  - {resource: example.com/gpu, count: 2, nodes: 1}
"""


@pytest.fixture
def machine(tmp_path: Path) -> str:
    path = tmp_path / "machine.yaml"
    path.write_text(DESCRIBED)
    return str(path)


def answer(*words: str) -> str:
    result = CliRunner().invoke(command, words, catch_exceptions=False, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


def held(*pods: tuple[str, str, str]) -> State:
    """A state of Guaranteed pods: name, CPUs, NUMA nodes."""
    records = {
        name: PodRecord(name, f"s-{name}", name, "default", QOSClass.GUARANTEED, f"/kubepods/pod{name}")
        for name, _, _ in pods
    }
    allocations = {
        f"{name}/c": Allocation(
            cpus=CPUSet.parse(cpus),
            mems=NodeMask.parse(nodes),
            memory=(MemoryBlock(NodeMask.parse(nodes), "memory", GIB),),
            cpu_milli=1000 * len(CPUSet.parse(cpus)),
        )
        for name, cpus, nodes in pods
    }
    return State(pods=records, allocations=allocations)


def checkpoint(tmp_path: Path, state: State) -> str:
    file = CheckpointFile(str(tmp_path / "state"))
    file.save(state)
    return str(tmp_path / "state")


def test_room_on_an_empty_machine(machine: str) -> None:
    text = answer("--machine", machine, "--shape", "cpu=4,memory=1Gi")
    assert "14 of 14 allocatable CPUs are available" in text
    assert ["Guaranteed: cpu 4, memory 1Gi", "3", "3"] in [
        [part.strip() for part in line.split("  ") if part.strip()] for line in text.splitlines()
    ]
    assert "the next one: OutOfcpu" in text
    assert "single-numa-node             8     1" in text
    assert "after the end of" not in text


def test_room_beside_allocations_says_whose_end_frees_more(machine: str, tmp_path: Path) -> None:
    state = held(("small", "1,9", "0"), ("large", "4-7,12-15", "1"))
    found = answer(
        "--machine", machine, "--state", checkpoint(tmp_path, state), "--shape", "cpu=4,memory=1Gi"
    )
    lines = [line.strip() for line in found.splitlines()]
    assert "3 after the end of default/large, which holds 8 exclusive CPUs" in lines
    assert not any("default/small" in line for line in lines), "4 more CPUs need both of its cores"


def test_no_single_end_may_free_more(machine: str, tmp_path: Path) -> None:
    state = held(("a", "1,9", "0"), ("b", "2,10", "0"))
    found = answer(
        "--machine", machine, "--state", checkpoint(tmp_path, state), "--shape", "cpu=14,memory=1Gi"
    )
    assert "no pod's end alone lets more fit" in found


def test_requests_that_take_more_than_the_exclusive_cpus_are_named(machine: str, tmp_path: Path) -> None:
    words = ("--machine", machine, "--state")
    state = held(("a", "1,9", "0"))
    assert "note: pods request" not in answer(*words, checkpoint(tmp_path / "own", state))
    for milli, left in ((3500, "8.5"), (20000, "none")):
        refused = PodRecord("r", "s-r", "r", "ml", QOSClass.BURSTABLE, "/kubepods/podr", cpu_milli=milli)
        more = replace(state, pods={**state.pods, "r": refused})
        found = " ".join(answer(*words, checkpoint(tmp_path / str(milli), more)).split())
        assert f"of 14 CPUs, so {left} can be requested, fewer than are available" in found
        assert (
            f"ml/r runs no container and counts until it is deleted: it requests {milli / 1000:g} CPUs"
            in found
        )


def test_answer_for_programs(machine: str, tmp_path: Path) -> None:
    state = held(("large", "4-7,12-15", "1"))
    found = json.loads(
        answer(
            "--machine",
            machine,
            "--state",
            checkpoint(tmp_path, state),
            "--shape",
            "cpu=4,memory=1Gi",
            "-o",
            "json",
        )
    )
    (shape,) = found["shapes"]
    assert (shape["fits"], shape["on_empty"], shape["qos"]) == (1, 3, "Guaranteed")
    assert shape["ended_by"]["reason"] == "OutOfcpu"
    assert shape["freed"] == [{"pod": "default/large", "exclusive": 8, "fits": 3}]
    assert [one["policy"] for one in found["largest"] if one["in_force"]] == ["none"]


def test_devices_of_a_description_limit_the_room(machine: str) -> None:
    found = json.loads(
        answer("--machine", machine, "--shape", "cpu=1,memory=1Gi,example.com/gpu=1", "-o", "json")
    )
    assert found["shapes"][0]["fits"] == 3
    assert "example.com/gpu" in found["shapes"][0]["ended_by"]["text"]


def test_devices_of_a_command_line_limit_the_room(machine: str) -> None:
    text = answer(
        "--machine",
        machine,
        "--shape",
        "cpu=1,memory=1Gi,a.b/c=1",
        "--device",
        "a.b/c=2@0,1",
        "-o",
        "json",
    )
    assert json.loads(text)["shapes"][0]["fits"] == 2


def test_unknown_devices_are_named(machine: str) -> None:
    text = answer("--machine", machine, "--shape", "cpu=1,memory=1Gi,a.b/c=1")
    assert "the available devices of a.b/c are not known; tell them: --device a.b/c=COUNT@NODES" in " ".join(
        text.split()
    )


def test_a_shape_that_shares_its_cpus_is_said_to(machine: str) -> None:
    text = " ".join(answer("--machine", machine, "--shape", "cpu=4").split())
    assert "Burstable: cpu 4 shares its CPUs: only with memory= is it Guaranteed" in text


def test_memory_requests_that_nobody_tells_are_said_not_to_count(machine: str, tmp_path: Path) -> None:
    pod = PodRecord("u", "s", "web", "default", QOSClass.BURSTABLE, cpu_milli=500, memory_bytes=7 * GIB)
    state = State(pods={"u": pod})
    found = " ".join(
        answer("--machine", machine, "--state", checkpoint(tmp_path, state), "--shape", "memory=1Gi").split()
    )
    assert "the memory requests of 1 pod are not known here and not counted" in found


def test_a_wrong_shape_is_refused(machine: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME=AMOUNT"):
        answer("--machine", machine, "--shape", "cpu")


def test_requests_of_a_pod_come_from_its_allocations_where_nothing_else_tells() -> None:
    state = held(("a", "0-3", "0"))
    assert requests_of(state, state.pods["a"]) == {"cpu": 4000, "memory": GIB}


def test_the_largest_container_may_be_larger_than_one_that_is_refused() -> None:
    topology = read_machine("kep3545-8-numa").topology
    node = standing_node(Node(topology, Options(), topology.first_core), State())
    largest = largest_exclusive(node)
    spec = ContainerSpec("c", largest.count * 1000, largest.count * 1000, GIB, GIB)
    assert all(one.error is None for one in node.fork().run(PodSpec("x", containers=(spec,))))
    assert largest.count == len(largest.cpus) == len(topology.online) - len(topology.first_core)


PERCENT = """\
reservedSystemCPUs: "0,8"
memoryManagerPolicy: Static
evictionHard: {memory.available: 5%}
reservedMemory: [{numaNode: 0, limits: {memory: 858993472}}]
"""
"""5 % of the described 16 GiB, as a 32-bit float."""


@pytest.mark.parametrize(
    "words",
    [
        "room --machine {machine} --config {config}",
        "explain --machine {machine} --config {config} --cpu 2 --memory 4Gi",
        "simulate --config {config} {machine} {pods}",
        "simulate {scenario}",
    ],
)
def test_a_percentage_is_of_the_memory_of_the_described_machine(
    tmp_path: Path, machine: str, words: str
) -> None:
    pods = "[{pod: a, cpu: 2, memory: 4Gi}]\n"
    steps = "[{run: default/a, containers: {a: {cpu: 2, memory: 4Gi}}}]"
    topology, config = DESCRIBED.splitlines()[0], PERCENT.replace("\n", "\n  ")
    scenario = f"machine:\n  {topology}\nconfig:\n  {config}\nsteps: {steps}\n"
    files = {"machine": machine}
    for name, text in (("config", PERCENT), ("pods", pods), ("scenario", scenario)):
        files[name] = str(tmp_path / f"{name}.yaml")
        Path(files[name]).write_text(text)
    result = CliRunner().invoke(main.group, words.format(**files).split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_first_core_and_memory_node_are_suggested_of_the_described_machine(tmp_path: Path) -> None:
    machine, config = tmp_path / "m.yaml", tmp_path / "c.yaml"
    machine.write_text("topology: numa:2 core:2 pu:4(indexes=core)\nnodes:\n  0: {memory: 0}\n")
    said = []
    for text in ("", "cpuManagerPolicy: static\n", 'reservedSystemCPUs: "0"\nmemoryManagerPolicy: Static\n'):
        config.write_text(text)
        with pytest.raises(ConfigError) as caught:
            answer("--machine", str(machine), "--config", str(config))
        said.append(str(caught.value))
    assert 'reservedSystemCPUs: "0,4,8,12"' in said[0]
    assert "reservedSystemCPUs: '0,4,8,12'" in said[1]
    assert "- numaNode: 1" in said[2]
