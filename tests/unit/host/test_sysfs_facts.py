from typing import Any

from nri_plugin.host.sysfs import read_facts
from tests.oracles.recordings import RecordedFiles

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def facts(**files: Any) -> dict[str, Any]:
    return read_facts(RecordedFiles({f"{CPU}/online": "0-1", **files}))


def test_what_is_not_recorded_is_null_or_absent_never_zero() -> None:
    got = facts()
    assert got["cpus_present"] is None
    assert got["distances"] is None
    assert got["num_dies"] is None
    assert not {"dies", "clusters", "l3_per_node", "distances_valid", "cpu_capacity"} & set(got)


def test_the_last_level_of_a_cpu_is_no_instruction_cache() -> None:
    index = f"{CPU}/cpu0/cache/index"
    got = facts(
        **{
            f"{index}0/level": "1", f"{index}0/type": "Data", f"{index}0/shared_cpu_list": "0",
            f"{index}1/level": "2", f"{index}1/type": "Instruction", f"{index}1/shared_cpu_list": "0",
        }
    )  # fmt: skip
    assert got["llc"] == [{"cpus": "0", "level": "L1d"}]
    assert sorted(got["caches"]) == ["L1d", "L2i"]


def test_distances_are_valid_only_when_a_node_is_nearest_to_itself() -> None:
    rows = {f"{NODE}/node0/distance": "10 20", f"{NODE}/node1/distance": "20 11"}
    got = facts(**rows)
    assert (got["distances"], got["distances_valid"]) == ([[10, 20], [20, 11]], False)
    assert got["distances_symmetric"]
    rows[f"{NODE}/node1/distance"] = "21 10"
    got = facts(**rows)
    assert got["distances_valid"]
    assert not got["distances_symmetric"]
    assert got["distance_values"] == [10, 20, 21]


def test_a_machine_is_hybrid_when_its_cores_differ_in_kind() -> None:
    kinds = {"sys/devices/cpu_core/cpus": "0", "sys/devices/cpu_atom/cpus": "1"}
    assert facts(**kinds)["hybrid"]
    assert not facts(**{"sys/devices/cpu_core/cpus": "0-1"})["hybrid"]
    capacities = {f"{CPU}/cpu0/cpu_capacity": "1024", f"{CPU}/cpu1/cpu_capacity": "400"}
    assert facts(**capacities)["hybrid"]


def test_nodes_without_cpus_and_without_memory_are_named() -> None:
    files = {f"{NODE}/node{number}/cpulist": cpus for number, cpus in ((0, "0-1"), (3, ""))}
    files |= {
        f"{NODE}/node{number}/meminfo": f"Node {number} MemTotal: {kb} kB" for number, kb in ((0, 0), (3, 5))
    }
    got = facts(**files)
    assert (got["cpuless_nodes"], got["memoryless_nodes"], got["memory_known"]) == ("3", "0", True)


def test_dies_are_named_by_package_and_clusters_by_who_is_in_them() -> None:
    files = {f"{CPU}/cpu{cpu}/topology/physical_package_id": "3" for cpu in (0, 1)}
    files |= {f"{CPU}/cpu{cpu}/topology/die_id": str(cpu) for cpu in (0, 1)}
    files |= {f"{CPU}/cpu{cpu}/topology/cluster_cpus_list": "0-1" for cpu in (0, 1)}
    got = facts(**files)
    assert (got["dies"], got["num_dies"], got["dies_per_package"]) == ({"3/0": "0", "3/1": "1"}, 2, [2])
    assert got["clusters"] == ["0-1"]


def test_a_die_id_of_minus_one_is_no_die() -> None:
    assert facts(**{f"{CPU}/cpu0/topology/die_id": "-1"})["num_dies"] is None


def test_a_short_distance_row_makes_the_table_invalid_not_absent() -> None:
    got = facts(**{f"{NODE}/node1/distance": "21 10"})
    assert (got["distances"], got["distances_valid"]) == ([[21, 10]], False)
    assert "distance_values" not in got


def test_devices_are_counted_by_node_where_a_node_is_said() -> None:
    devices = "sys/bus/pci/devices"
    got = facts(
        **{f"{devices}/a/numa_node": "-1", f"{devices}/b/numa_node": "-1", f"{devices}/c/class": "0x1"}
    )
    assert (got["pci_by_node"], got["num_pci"]) == ({"-1": 2}, 3)
