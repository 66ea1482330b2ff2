"""Every recorded machine: the facts as recorded, and a Topology that agrees with them."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.host.sysfs import discover, read_facts, read_topology
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from tests.oracles.recordings import RecordedFiles, read_recording, unpack

FOLDER = Path(os.environ.get("NRI_PIN_MACHINES") or ".")
KNOWN = FOLDER / "machines.json"
FACTS: dict[str, Any] = (
    {name: entry["facts"] for name, entry in json.loads(KNOWN.read_text()).items()} if KNOWN.is_file() else {}
)
NAMES = [
    pytest.param(
        name,
        marks=[]
        if FACTS
        else pytest.mark.skip(reason="no recorded machines: run NRI_PIN_MACHINES=DIR hack/test"),
    )
    for name in FACTS or ["any"]
]
ON_DISK = [name for name in ("ppc64-power8-mixed-smt", "intel-hsw-offline-cpu0-node0") if name in FACTS]


def files_of(name: str) -> RecordedFiles:
    return RecordedFiles(read_recording(FOLDER / f"{name}.json.gz"))


def as_lists(groups: Iterable[CPUSet]) -> list[str]:
    return [str(cpus) for cpus in sorted(groups, key=min)]


@pytest.mark.parametrize("name", NAMES)
def test_every_fact_that_is_printed_is_the_recorded_one(name: str) -> None:
    printed = json.loads(json.dumps(read_facts(files_of(name))))
    assert printed.pop("cpus_nohz_full") in {None, ""}  # which the recorded facts do not tell
    assert printed == {key: FACTS[name].get(key, "not recorded") for key in printed}


@pytest.mark.parametrize("name", NAMES)
def test_the_topology_agrees_with_the_facts(name: str) -> None:
    facts, topology = FACTS[name], read_topology(files_of(name))
    assert str(topology.online) == facts["cpus_online"]
    assert str(topology.offline) == facts["cpus_offline"]
    assert str(topology.isolated) == (facts["cpus_isolated"] or "")
    assert as_lists(cpus for _, cpus in topology.cores) == facts["cores"]
    assert as_lists(cpus for _, cpus in topology.sockets) == facts["sockets"]
    l3 = facts["caches"].get("L3", {"groups": []})["groups"]
    assert set(l3) <= set(as_lists(cpus for _, cpus in topology.caches))
    assert topology.caches_known is bool(l3)


@pytest.mark.parametrize("name", NAMES)
def test_the_nodes_agree_with_the_facts(name: str) -> None:
    facts, topology = FACTS[name], read_topology(files_of(name))
    if not facts["nodes"]:
        assert [(node.id, node.cpus) for node in topology.nodes] == [(0, topology.online)]
        return
    assert str(topology.node_mask) == facts["nodes_online"]
    for node in topology.nodes:
        recorded = facts["nodes"][str(node.id)]
        assert CPUSet.parse(recorded["cpus"]) <= node.cpus
        assert node.memory_bytes == (
            None if recorded["mem_total_kb"] is None else recorded["mem_total_kb"] * 1024
        )
        assert {str(size): pages for size, pages in node.hugepages} == recorded["hugepages_kb_nr"]
        if facts.get("distances_valid"):
            assert list(node.distances or ()) == recorded["distance"]
        else:
            assert node.distances is None
    cpuless = [node.id for node in topology.nodes if not node.cpus]
    assert str(CPUSet.from_ids(cpuless)) == facts["cpuless_nodes"]


@pytest.mark.parametrize("name", NAMES)
def test_every_online_cpu_is_in_exactly_one_of_each(name: str) -> None:
    assert_partitions(read_topology(files_of(name)))


def assert_partitions(topology: Topology) -> None:
    for groups in (topology.cores, topology.sockets, topology.caches):
        members = [cpu for _, cpus in groups for cpu in cpus]
        assert sorted(members) == list(topology.online)
        assert all(cpus for _, cpus in groups)
        assert [number for number, _ in groups] == sorted({number for number, _ in groups})
    assert sorted(cpu for node in topology.nodes for cpu in node.cpus) == list(topology.online)


@pytest.mark.skipif(not ON_DISK, reason="no recorded machines: run NRI_PIN_MACHINES=DIR hack/test")
@pytest.mark.parametrize("name", ON_DISK or ["any"])
def test_a_tree_on_disk_reads_like_the_recording(name: str, tmp_path: Path) -> None:
    entries = read_recording(FOLDER / f"{name}.json.gz")
    unpack(entries, tmp_path)
    assert discover(str(tmp_path)) == read_topology(RecordedFiles(entries))
    assert read_facts(KernelFiles(str(tmp_path))) == read_facts(RecordedFiles(entries))
