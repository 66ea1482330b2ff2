"""Shipped machines, reading descriptions, and what they become."""

import gzip
import json
from pathlib import Path

import pytest

from nri_plugin.config import yaml_tree
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine.machine import build_topology, described_in, load, parse, shipped

VECTORS = Path(__file__).parents[3] / "vectors" / "kubelet" / "cpu_packed.json.gz"
MACHINES = shipped()
FAMILIES = {
    "epyc7702p-1p-64c-smt-nps1": (128, 1, 16),
    "epyc7702p-1p-64c-nosmt-nps1": (64, 1, 16),
    "epyc7303-2p-16c-per-socket-smt-nps1": (64, 2, 8),
    "epyc7303-2p-16c-per-socket-nosmt-nps1": (32, 2, 8),
    "epyc7303-2p-32c-per-socket-smt-nps1": (128, 2, 8),
    "epyc7303-2p-32c-per-socket-nosmt-nps1": (64, 2, 8),
    "epyc7742-2p-64c-smt-nps1": (256, 2, 32),
    "epyc7742-2p-64c-smt-nps4": (256, 8, 32),
    "epyc7742-2p-64c-smt-l3-as-numa": (256, 32, 32),
    "epyc9654-2p-96c-nosmt-nps2": (192, 4, 24),
    "epyc9754-1p-128c-smt-nps1": (256, 1, 16),
    "xeon8490h-2p-60c-smt-snc2": (240, 4, 2),
    "xeon8490h-2p-60c-smt-snc2-l3-per-numa": (240, 4, 4),
    "i7-12850hx-1p-hybrid": (24, 1, 1),
    "altra-1p-128c": (128, 1, 16),
    "graviton3-1p-64c": (64, 1, 1),
    "2-sockets-1-numa": (32, 1, 4),
    "kep3545-4-numa": (32, 4, 4),
    "kep3545-8-numa": (64, 8, 8),
    "kep693-8-gpus": (32, 2, 2),
    "gb200-34-numa": (144, 34, 2),
    "laptop": (8, 1, 1),
    "demo": (64, 4, 8),
}

OTHERS = {
    "single-16-nosmt": "pack:1 numa:1 l3:2 core:8 pu:1",
    "dual-2numa-32-smt": "pack:2 numa:1 l3:1 core:8 pu:2(indexes=core)",
    "dual-2numa-64-smt-interleave": "pack:2 numa:1 l3:1 core:16 pu:2(indexes=pack:core)",
    "dual-4numa-64-smt-adjacent": "pack:2 numa:2 l3:2 core:4 pu:2",
    "dual-4numa-48-nosmt": "pack:2 numa:2 l3:1 core:12 pu:1",
    "single-4numa-nps4-64-smt": "pack:1 numa:4 l3:4 core:2 pu:2(indexes=core)",
    "dual-8numa-64-smt": "pack:2 numa:4 l3:1 core:4 pu:2(indexes=core)",
    "dual-8numa-128-smt-2l3": "pack:2 numa:4 l3:2 core:4 pu:2(indexes=core)",
    "dual-8numa-240-smt-snc4": "pack:2 l3:1 numa:4 core:15 pu:2(indexes=core)",
    "quad-4numa-64-smt": "pack:4 numa:1 l3:1 core:8 pu:2(indexes=core)",
    "quad-8numa-128-nosmt": "pack:4 numa:2 l3:1 core:16 pu:1",
    "epyc9654-2p-96c-smt-nps1": "pack:2 numa:1 l3:12 core:8 pu:2(indexes=core)",
    "dual-2numa-smt4-64": "pack:2 numa:1 l3:1 core:8 pu:4(indexes=core)",
    "foursockets-2numa-smt": "numa:2 pack:2 l3:1 core:4 pu:2(indexes=core)",
    "sparse-numa-ids-0-2": "pack:2 numa:1(indexes=0,2) l3:1 core:8 pu:2(indexes=core)",
    "sparse-numa-ids-0-1-4-5": "pack:2 numa:2(indexes=0,1,4,5) l3:1 core:4 pu:2(indexes=core)",
    "dual-2numa-32-smt-one-thread-offline": "topology: pack:2 numa:1 l3:1 core:8 pu:2(indexes=core)\noffline: 31",
    "dual-2numa-32-smt-lopsided": "topology: pack:2 numa:1 l3:1 core:8 pu:2(indexes=core)\noffline: 12-15,28-31",
    "dual-4numa-64-smt-lopsided": "topology: pack:2 numa:2 l3:2 core:4 pu:2(indexes=core)\noffline: 4-5,20,36-37,52",
}


def rows(topology: Topology) -> list[list[int]]:
    core_by_cpu = {cpu: core for core, cpus in topology.cores for cpu in cpus}
    of = (core_by_cpu, topology.socket_by_cpu, topology.node_by_cpu, topology.cache_by_cpu)
    return [[cpu, *(group[cpu] for group in of)] for cpu in topology.online]


def test_the_shipped_machines_are_these() -> None:
    assert set(MACHINES) == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_shipped_machine_has_its_familys_size_and_a_title(name: str) -> None:
    topology = build_topology(MACHINES[name])
    assert (len(topology.online), len(topology.nodes), len(topology.caches)) == FAMILIES[name]
    assert MACHINES[name].title
    assert load(name) == MACHINES[name]


def recorded_rows() -> dict[str, list[list[int]]]:
    with gzip.open(VECTORS, "rt") as file:
        topologies = json.load(file)["topologies"]
    return {name: topology["cpus"] for name, topology in topologies.items()}


def test_shipped_machines_place_cpus_as_recorded() -> None:
    recorded = {name: table for name, table in recorded_rows().items() if name in FAMILIES}
    assert {name: rows(build_topology(MACHINES[name])) for name in recorded} == recorded
    assert len(recorded) == 13


def test_the_language_can_say_every_other_recorded_machine() -> None:
    recorded = recorded_rows()
    said = {name: rows(build_topology(parse(text))) for name, text in OTHERS.items()}
    assert said == {name: recorded[name] for name in OTHERS}


def test_the_distances_of_kep_3545_are_tables_of_its_shape() -> None:
    four = [node.distances for node in build_topology(MACHINES["kep3545-4-numa"]).nodes]
    eight = [node.distances for node in build_topology(MACHINES["kep3545-8-numa"]).nodes]
    assert four == [(10, 11, 12, 12), (11, 10, 12, 12), (12, 12, 10, 11), (12, 12, 11, 10)]
    assert [row and row[:4] for row in eight[:4]] == four
    assert {value for row in eight[:4] for value in (row or ())[4:]} == {30}


def test_nodes_without_cpus_are_part_of_the_machine() -> None:
    topology = build_topology(MACHINES["gb200-34-numa"])
    assert [node.id for node in topology.nodes if node.cpus] == [0, 1]
    assert str(topology.nodes_with_memory) == "0-2,10,18,26"


def test_offline_cpus_are_in_no_group() -> None:
    topology = build_topology(parse("topology: pack:2 numa:1 l3:1 core:2 pu:2(indexes=core)\noffline: 0,3,7"))
    assert [str(cpus) for _, cpus in topology.cores] == ["1,5", "2,6", "4"]
    assert [number for number, _ in topology.cores] == [1, 2, 4]
    assert str(topology.offline) == "0,3,7"


def test_a_socket_that_is_all_offline_is_gone_and_its_node_has_no_cpus() -> None:
    topology = build_topology(parse("topology: pack:2 numa:1 l3:1 core:2 pu:1\noffline: 0-1"))
    assert [number for number, _ in topology.sockets] == [1]
    assert [str(node.cpus) for node in topology.nodes] == ["", "2-3"]


def test_cpus_without_l3_are_grouped_by_socket() -> None:
    some = build_topology(parse("topology: pack:1 numa:1 l3:1 core:4 pu:1\nwithout_l3: 2-3"))
    none = build_topology(parse("pack:2 numa:1 core:2 pu:1"))
    assert ([str(cpus) for _, cpus in some.caches], some.caches_known) == (["0-1", "2-3"], True)
    assert ([str(cpus) for _, cpus in none.caches], none.caches_known) == (["0-1", "2-3"], False)
    assert (str(some.without_l3), str(none.without_l3)) == ("2-3", "")


def test_without_numa_all_memory_is_in_one_node() -> None:
    text = "topology: pack:2 numa:1 l3:1 core:1 pu:1\nnuma: none\nnodes:\n  0: {memory: 1Gi, hugepages: {2Mi: 5}}\n  1: {memory: 3Gi, hugepages: {2Mi: 5}}"
    (only,) = build_topology(parse(text)).nodes
    assert (only.id, str(only.cpus), only.memory_bytes, only.hugepages) == (0, "0-1", 4 << 30, ((2048, 10),))


def test_a_file_is_read_where_no_shipped_machine_has_the_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("# Mine\npack:1 numa:1 l3:1 core:3 pu:1")
    described = load(str(file))
    assert (described.name, described.title, len(described.cores)) == ("mine", "Mine", 3)


def test_an_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("topology: pack:1 corse:3 pu:1")
    with pytest.raises(ConfigError, match=rf"^{file}:1:11: topology: corse: expected a level: pack, "):
        load(str(file))


def test_what_is_no_file_and_no_name_is_refused_with_the_way_to_the_names() -> None:
    with pytest.raises(
        HostError, match=r"^no-such: is neither a file nor the name of a shipped machine; nri-pin topo"
    ):
        load("no-such")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    with pytest.raises(HostError, match="raw: cannot be read: is not text"):
        load(str(tmp_path / "raw"))
    with pytest.raises(HostError, match="cannot be read: is a directory"):
        load(str(tmp_path))


@pytest.mark.parametrize("begin", [b"\x1f\x8b", b'{\n "caches": {}}', b"<?xml?>"])
def test_a_recorded_machine_cannot_be_played(begin: bytes, tmp_path: Path) -> None:
    (tmp_path / "node").write_bytes(begin)
    with pytest.raises(HostError, match="node: is the file of a real machine; a name or a description"):
        load(str(tmp_path / "node"))


@pytest.mark.parametrize(
    ("scenario", "place"),
    [
        ("name: x\nmachine:\n  topology: pack:1 corse:2 pu:1\nconfig: {}\n", "s.yaml:3:13: topology: "),
        ("name: x\nmachine: {topology: pack:1 corse:2 pu:1}\nconfig: {}\n", "s.yaml:2:21: topology: "),
        ("name: x\nmachine: |\n  topology: pack:1 corse:2 pu:1\nconfig: {}\n", "s.yaml:3:11: topology: "),
        ("name: x\nmachine: pack:1 corse:2 pu:1\nconfig: {}\n", "s.yaml:2:1: "),
    ],
)
def test_an_error_in_a_machine_of_a_scenario_names_the_scenario_s_line(scenario: str, place: str) -> None:
    text = described_in(yaml_tree.parse(scenario, "s.yaml"), scenario)
    with pytest.raises(ConfigError) as caught:
        parse(text, source="s.yaml")
    assert str(caught.value).startswith(f"{place}corse: expected a level")


def test_a_scenario_names_a_machine() -> None:
    assert described_in(yaml_tree.parse("machine: laptop", "s.yaml"), "machine: laptop") == "laptop"
