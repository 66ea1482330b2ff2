"""The tree a described machine is built as; that it reads back the same is a property test."""

from pathlib import Path

import pytest

from nri_plugin.host.sysfs import discover, read_facts
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.errors import HostError
from nri_plugin.simulator.machine.machine import build_sysfs, build_topology, parse

SMALL = parse(
    "# A small one\ntopology: pack:2 numa:1(memory=1GiB) l3:1 core:1 pu:2(indexes=core)\nnodes:\n  0-1: {hugepages: {2Mi: 4}}\noffline: 3\nisolated: 1"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_sysfs(SMALL, str(tmp_path))
    return tmp_path


def test_cpu_lists(root: Path) -> None:
    where = root / "sys/devices/system/cpu"
    lists = {
        name: (where / name).read_text() for name in ("online", "present", "possible", "offline", "isolated")
    }
    assert lists == {
        "online": "0-2\n",
        "present": "0-3\n",
        "possible": "0-3\n",
        "offline": "3\n",
        "isolated": "1\n",
    }


def test_queues_are_files_of_a_disk_and_of_its_interrupts(tmp_path: Path) -> None:
    machine = parse(
        "topology: core:6 pu:1\nqueues: {0-1: 1, '2-3': none, 2: none, 0-5: 0, '4-5': 5}\noffline: 5"
    )
    build_sysfs(machine, str(tmp_path))
    assert (tmp_path / "sys/block/nvme0n1/mq/0/cpu_list").read_text() == "0, 1\n"
    found = discover(str(tmp_path)).queues
    assert [(str(one.cpus), str(one.delivered)) for one in found] == [("0-1", "1"), ("2-3", "")]
    assert found == build_topology(machine).queues


def test_an_offline_cpu_has_a_switch_and_nothing_else(root: Path) -> None:
    where = root / "sys/devices/system/cpu/cpu3"
    assert [entry.name for entry in where.iterdir()] == ["online"]
    assert (where / "online").read_text() == "0\n"
    assert not (root / "sys/devices/system/node/node1/cpu3").exists()


def test_lists_and_bit_maps_say_the_same(root: Path) -> None:
    where = root / "sys/devices/system/cpu/cpu1/topology"
    assert (where / "core_cpus_list").read_text() == "1\n"
    assert (where / "thread_siblings").read_text() == "00000002\n"
    assert (where / "package_cpus").read_text() == "00000002\n"
    assert (where / "physical_package_id").read_text() == "1\n"


def test_caches_and_dies_have_the_ids_that_other_programs_ask_for(tmp_path: Path) -> None:
    machine = parse("pack:2 numa:1(memory=1GiB) l3:2 core:2 pu:2(indexes=core)")
    build_sysfs(machine, str(tmp_path))
    cpus = tmp_path / "sys/devices/system/cpu"
    sharers: dict[tuple[str, ...], set[str]] = {}
    for cache in sorted(cpus.glob("cpu*/cache/index*")):
        key = tuple((cache / name).read_text().strip() for name in ("level", "type", "id"))
        sharers.setdefault(key, set()).add((cache / "shared_cpu_list").read_text())
    assert all(len(lists) == 1 for lists in sharers.values())  # an id names one cache
    assert len(sharers) == 3 * 8 + 4
    assert {path.read_text() for path in cpus.glob("cpu*/topology/die_id")} == {"0\n"}
    for one in cpus.glob("cpu*/topology"):
        assert (one / "die_cpus_list").read_text() == (one / "package_cpus_list").read_text()


def test_links_lead_from_nodes_to_cpus_and_back(root: Path) -> None:
    system = root / "sys/devices/system"
    assert (system / "node/node0/cpu2").resolve() == (system / "cpu/cpu2").resolve()
    assert (system / "cpu/cpu2/node0").resolve() == (system / "node/node0").resolve()


def test_memory_and_pools(root: Path) -> None:
    node = root / "sys/devices/system/node/node1"
    assert "Node 1 MemTotal:       1048576 kB" in (node / "meminfo").read_text()
    assert (node / "hugepages/hugepages-2048kB/nr_hugepages").read_text() == "4\n"
    assert (root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").read_text() == "8\n"
    assert "MemTotal:        2097152 kB" in (root / "proc/meminfo").read_text()


def test_cpuinfo_names_the_model_for_each_online_cpu(root: Path) -> None:
    text = (root / "proc/cpuinfo").read_text()
    assert text.count("model name\t: A small one\n") == 3


def test_wide_bit_maps_are_in_groups_of_32(tmp_path: Path) -> None:
    build_sysfs(parse("pack:1 numa:1 l3:1 core:33 pu:1"), str(tmp_path))
    assert (tmp_path / "sys/devices/system/node/node0/cpumap").read_text() == "00000001,ffffffff\n"


def test_a_machine_without_numa_has_no_node_directory(tmp_path: Path) -> None:
    build_sysfs(parse("topology: pack:2 numa:1 l3:1 core:1 pu:1\nnuma: none"), str(tmp_path))
    assert not (tmp_path / "sys/devices/system/node").exists()


def test_the_facts_of_the_tree_are_those_described(root: Path) -> None:
    facts = read_facts(KernelFiles(str(root)))
    assert facts["cores"] == ["0,2", "1"]
    assert facts["smt_widths"] == [1, 2]
    assert facts["llc"] == [{"cpus": "0,2", "level": "L3"}, {"cpus": "1", "level": "L3"}]
    assert facts["distances"] == [[10, 21], [21, 10]]
    assert facts["hugepages_total"] == {"2048": 8}


def test_a_tree_is_never_written_over_another(root: Path) -> None:
    with pytest.raises(HostError, match="/sys: is there already; name an empty directory"):
        build_sysfs(SMALL, str(root))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match=r"file.*: cannot be written: not a directory"):
        build_sysfs(SMALL, str(tmp_path / "file"))
