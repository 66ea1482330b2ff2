"""What discovery makes of the odd things kernels and firmware say."""

from typing import Any

import pytest

from nri_plugin.host.sysfs import discover, place_in_nodes, read_topology
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.host.sysfs_parts import NodeReading, read_queues
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import Topology
from tests.oracles.recordings import RecordedFiles

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def cpu(
    number: int, core: str, package: int | None = 0, *, siblings: str = "", l3: str = ""
) -> dict[str, Any]:
    where = f"{CPU}/cpu{number}"
    files = {f"{where}/topology/core_cpus_list": core}
    if package is not None:
        files[f"{where}/topology/physical_package_id"] = str(package)
    if siblings:
        files[f"{where}/topology/package_cpus_list"] = siblings
    if l3:
        files |= {f"{where}/cache/index3/level": "3", f"{where}/cache/index3/shared_cpu_list": l3}
    return files


def node(number: int, cpus: str, **more: str) -> dict[str, Any]:
    return {f"{NODE}/node{number}/{name}": text for name, text in {"cpulist": cpus, **more}.items()}


def read(*parts: dict[str, Any], online: str) -> Topology:
    files: dict[str, Any] = {f"{CPU}/online": online}
    for part in parts:
        files |= part
    return read_topology(RecordedFiles(files))


def groups(topology: Topology, name: str) -> list[tuple[int, str]]:
    return [(number, str(cpus)) for number, cpus in getattr(topology, name)]


def test_a_core_is_named_by_its_lowest_online_cpu() -> None:
    topology = read(cpu(2, "0,2"), cpu(3, "1,3"), cpu(1, "1,3"), online="1-3")
    assert groups(topology, "cores") == [(1, "1,3"), (2, "2")]


def test_package_ids_name_the_sockets_even_where_sibling_lists_are_wrong() -> None:
    topology = read(cpu(0, "0", 36, siblings="0-1"), cpu(1, "1", 8442, siblings="0-1"), online="0-1")
    assert groups(topology, "sockets") == [(36, "0"), (8442, "1")]


@pytest.mark.parametrize("package", [-1, None])
def test_sibling_lists_name_the_sockets_where_there_is_no_package_id(package: int | None) -> None:
    topology = read(cpu(0, "0", package, siblings="0"), cpu(1, "1", package, siblings="1"), online="0-1")
    assert groups(topology, "sockets") == [(0, "0"), (1, "1")]


def test_without_any_word_about_packages_there_is_one_socket() -> None:
    assert groups(read(cpu(0, "0", None), cpu(1, "1", None), online="0-1"), "sockets") == [(0, "0-1")]


def test_cpus_without_an_l3_are_grouped_by_socket() -> None:
    topology = read(cpu(0, "0", l3="0-1"), cpu(1, "1", l3="0-1"), cpu(2, "2"), cpu(3, "3"), online="0-3")
    assert groups(topology, "caches") == [(0, "0-1"), (1, "2-3")]
    assert topology.caches_known
    assert str(topology.without_l3) == "2-3"
    assert [topology.is_l3(cpus) for _, cpus in topology.caches] == [True, False]


def test_without_any_l3_the_caches_are_the_sockets_and_said_to_be_unknown() -> None:
    topology = read(cpu(0, "0", 4), cpu(1, "1", 5), online="0-1")
    assert groups(topology, "caches") == [(0, "0"), (1, "1")]
    assert not topology.caches_known
    assert not topology.without_l3


def test_a_shared_list_may_name_cpus_that_are_offline() -> None:
    topology = read(cpu(0, "0", l3="0-3"), cpu(2, "2", l3="0-3"), online="0,2")
    assert groups(topology, "caches") == [(0, "0,2")]


def test_the_l3_is_found_at_another_index() -> None:
    files = {f"{CPU}/cpu0/cache/index2/level": "3", f"{CPU}/cpu0/cache/index2/shared_cpu_map": "00000001"}
    assert read(cpu(0, "0"), files, online="0").caches_known


def test_a_kernel_without_numa_is_one_node_with_all_memory() -> None:
    topology = read(cpu(0, "0"), {"proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB"}, online="0")
    only = topology.nodes[0]
    assert (only.id, only.cpus, only.memory_bytes, only.distances) == (0, CPUSet.of(0), 1024000, (10,))


def test_nodes_without_cpus_keep_their_memory_and_distances() -> None:
    memory = "Node 7 MemTotal: 64 kB"
    topology = read(
        cpu(0, "0"), node(0, "0", distance="10 40"), node(7, "", distance="40 10", meminfo=memory), online="0"
    )
    assert [(item.id, str(item.cpus), item.memory_bytes, item.distances) for item in topology.nodes] == [
        (0, "0", None, (10, 40)),
        (7, "", 65536, (40, 10)),
    ]


def test_a_distance_row_of_another_length_is_unknown() -> None:
    assert read(cpu(0, "0"), node(1, "0", distance="21 10"), online="0").nodes[0].distances is None


def test_a_cpu_that_all_nodes_name_is_in_the_lowest() -> None:
    topology = read(cpu(0, "0"), cpu(1, "1"), node(0, "0-1"), node(1, "0-1"), online="0-1")
    assert [(item.id, str(item.cpus)) for item in topology.nodes] == [(0, "0-1"), (1, "")]


def test_isolated_cpus_are_those_of_the_machine() -> None:
    topology = read(cpu(0, "0"), {f"{CPU}/isolated": "0-9", f"{CPU}/present": "0-1"}, online="0")
    assert (str(topology.isolated), str(topology.offline)) == ("0-1", "1")


def test_cpus_whose_tick_stops_are_isolated_too() -> None:
    files = {f"{CPU}/isolated": "1", f"{CPU}/nohz_full": "0-1", f"{CPU}/present": "0-1"}
    assert str(read(cpu(0, "0"), cpu(1, "1"), files, online="0-1").isolated) == "0-1"
    files[f"{CPU}/nohz_full"] = "(null)"
    assert str(read(cpu(0, "0"), cpu(1, "1"), files, online="0-1").isolated) == "1"


def queues(*texts: str, **more: str) -> list[tuple[str, str]]:
    """The shared queues of a disk on a machine with CPUs 0-3 online; `more` are interrupts: allowed to effective CPUs."""
    files = {f"sys/block/nvme0n1/mq/{number}/cpu_list": text for number, text in enumerate(texts)}
    for number, (allowed, effective) in enumerate(more.items(), 24):
        files[f"proc/irq/{number}/smp_affinity_list"] = allowed.removeprefix("cpus").replace("_", "-")
        files[f"proc/irq/{number}/effective_affinity_list"] = effective
    found = read(*(cpu(number, str(number)) for number in range(4)), files, online="0-3").queues
    return [(str(one.cpus), str(one.delivered)) for one in found]


def test_queues_that_several_cpus_share_are_found_with_where_their_interrupts_come() -> None:
    assert queues("0, 1", "2, 3, 60") == [("0-1", ""), ("2-3", "")]
    assert queues("0, 1", "2, 3", cpus0_1="1", cpus2_3="2", cpus0="0") == [("0-1", "1"), ("2-3", "2")]


def test_queues_of_one_cpu_or_of_all_make_no_difference() -> None:
    assert queues("0", "1", "2", "3") == []
    assert queues("0, 1, 2, 3", cpus0_3="1") == []


def test_a_queue_in_another_form_is_no_queue() -> None:
    assert queues("0, x", "", "2, 3", cpus2_3="what") == [("2-3", "")]


@pytest.mark.parametrize("name", ["sys/block", "sys/block/sda/mq", "proc/irq"])
def test_directories_that_cannot_be_listed_are_no_reason_not_to_start(tmp_path: Any, name: str) -> None:
    queue = tmp_path / "sys/block/nvme0n1/mq/0/cpu_list"
    if name != "sys/block":
        queue.parent.mkdir(parents=True)
        queue.write_text("0, 1\n")
    loop = tmp_path / name
    loop.parent.mkdir(parents=True, exist_ok=True)
    loop.symlink_to(loop)
    found = read_queues(KernelFiles(str(tmp_path)), 0b1111)
    assert found == (() if name == "sys/block" else ((0b11, 0),))


def readings(**cpus_by_node: int) -> list[NodeReading]:
    return [NodeReading(int(name[1:]), mask, None, None, (), None) for name, mask in cpus_by_node.items()]


def test_a_cpu_without_a_node_goes_where_most_of_its_socket_is() -> None:
    placed = place_in_nodes(readings(n0=0b0001, n1=0b0110), online=0b1111, sockets=[0b0001, 0b1110])
    assert placed == {0: 0b0001, 1: 0b1110}


def test_a_socket_without_a_node_goes_to_the_lowest() -> None:
    placed = place_in_nodes(readings(n1=0b0011, n3=0), online=0b1111, sockets=[0b0011, 0b1100])
    assert placed == {1: 0b1111, 3: 0}


def test_a_root_without_sysfs_is_refused_with_the_path(tmp_path: Any) -> None:
    with pytest.raises(
        HostError, match=r"/sys/devices/system/cpu: no such directory; the root must"
    ) as caught:
        discover(str(tmp_path))
    assert caught.value.path == f"{tmp_path}/sys/devices/system/cpu"


def test_a_machine_without_online_cpus_is_refused() -> None:
    with pytest.raises(HostError, match="cpu/online: expected at least one online cpu, found none"):
        read(cpu(0, "0"), online="")
