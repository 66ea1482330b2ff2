"""Synthetic strings: the same machine as hwloc makes of them, and what is refused."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.host.sysfs import read_topology
from nri_plugin.model.errors import ConfigError
from nri_plugin.model.topology import Topology
from nri_plugin.simulator.machine.machine import build_topology, machine_files, parse
from nri_plugin.simulator.machine.source import RecordedFiles, machine_from

RECORDED = Path(__file__).parents[3] / "machines/lstopo/synthetic.json"
STRINGS = {row["string"]: row["xml"] for row in json.loads(RECORDED.read_text())}


def comparable(topology: Topology, *, has_sizes: bool) -> Topology:
    """Without what a string does not say: distances, huge pages, and sizes where it gives none."""
    return replace(
        topology,
        nodes=tuple(
            replace(node, distances=None, hugepages=(), memory_bytes=node.memory_bytes if has_sizes else None)
            for node in topology.nodes
        ),
    )


@pytest.mark.parametrize("string", list(STRINGS))
def test_a_string_is_the_machine_that_lstopo_makes_of_it(string: str) -> None:
    ours = build_topology(parse(f"topology: {json.dumps(string)}"))
    theirs = machine_from(STRINGS[string].encode(), "x.xml", "x").topology
    has_sizes = "memory=" in string
    assert comparable(ours, has_sizes=has_sizes) == comparable(theirs, has_sizes=has_sizes)


def test_a_node_without_a_size_has_16_gibibytes() -> None:
    nodes = build_topology(parse("pack:2 [numa] core:1 pu:1")).nodes
    assert [node.memory_bytes for node in nodes] == [16 << 30] * 2


def test_words_may_be_in_any_case_and_have_the_aliases_of_hwloc() -> None:
    assert build_topology(parse("Socket:2 Node:2 L3Cache:1 CORE:1 PU:2")) == build_topology(
        parse("pack:2 numa:2 l3:1 core:1 pu:2")
    )


@pytest.mark.parametrize(
    ("string", "message"),
    [
        ("pack:2 core:2", "expected pu:COUNT, the threads of a core, as the last level"),
        ("2 2 2", "2: expected LEVEL:COUNT such as core:4, or [numa], as in 'pack:2 numa:2 core:4 pu:2'"),
        ("pack:2 corse:2 pu:1", "corse: expected a level: pack, die, group, numa, l5, l4, l3, l2, l1, core, pu"),
        ("pack:2 core:0 pu:1", "core:0: expected a count from 1"),
        ("pack:2 pack:2 pu:1", "pack: a level can be there only once"),
        ("pack:2 core:2 l3:1 pu:1", "l3: expected core:COUNT behind it; a core holds its own caches and pu only"),
        ("pack:2 numa:1 [numa] pu:1", "NUMA nodes are a level or attached ([numa]), not both"),
        ("pack:2 [numa] l3:2 [numa] pu:1", "[numa]: attach NUMA nodes to one level only"),
        ("pack:2 [core] pu:1", "[core]: expected [numa], the only object that can be attached"),
        ("pack:2(memory=1GB) pu:1", "pack:2(memory=1GB): memory=1GB: expected no attribute of pack"),
        ("numa:2(memory=1GB,indexes=1,0) pu:1", "memory=1GB,indexes=1,0: expected a size such as 16GiB, 16GB or a number of bytes"),
        ("numa:2(memory=1Gi) pu:1", "memory=1Gi: expected a size such as 16GiB, 16GB or a number of bytes"),
        ("numa:2(indexes=3) pu:1", "indexes=3: 1 numbers for 2 objects; give one for each"),
        ("pack:2 pu:1(indexes=5,5)", "indexes=5,5: the same number is there twice"),
        ("pack:2 core:2 pu:2(indexes=core:pu)", "indexes=core:pu: expected levels outside of the numbered one, each once: pack, core"),
        ("pack:2 core:2 pu:2(indexes=die)", "indexes=die: expected levels outside of the numbered one, each once: pack, core"),
        ("pack:2 core:2 pu:2(indexes=1*2)", "indexes=1*2: the loops number 2 objects, there are 8"),
        ("pack:2 core:2 pu:2(indexes=1*x)", "indexes=1*x: expected loops such as 4*2:2*2, each STEP*COUNT from 1"),
        ("pack:2 core:2 pu:2(indexes=1*2:1*2:1*2)", "indexes=1*2:1*2:1*2: the same number is there twice"),
        ("pu:1(indexes=8192)", "CPU 8192 is above 8191, the highest the kernel can have"),
        ("numa:1(indexes=1024) pu:1", "NUMA node 1024 is above 1023, the highest the kernel can have"),
        ("core:8192 pu:2", "the machine has more than the 8192 CPUs the kernel can have"),
        ("pack:99999 core:99999 pu:1", "the machine has more than the 8192 CPUs the kernel can have"),
    ],
)  # fmt: skip
def test_a_wrong_string_is_refused_with_its_place_and_what_is_expected(string: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"topology: {string}", "m", source="m.yaml")
    assert str(caught.value) == f"m.yaml:1:11: topology: {message}"


@pytest.mark.parametrize("string", list(STRINGS))
def test_the_files_of_a_string_are_read_as_the_same_machine(string: str) -> None:
    machine = parse(f"topology: {json.dumps(string)}")
    files, links = machine_files(machine)
    entries = files | {name: {"link": target} for name, target in links.items()}
    assert read_topology(RecordedFiles(entries)) == build_topology(machine)
