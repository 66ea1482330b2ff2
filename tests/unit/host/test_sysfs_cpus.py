from nri_plugin.host.sysfs import read_topology
from nri_plugin.host.sysfs_parts import (
    CPU_DIR,
    groups_by_members,
    read_cores,
    read_cpus,
    read_l3,
    read_sockets,
)
from tests.oracles.recordings import RecordedFiles


def test_groups_are_a_partition_even_when_the_lists_contradict_each_other() -> None:
    groups = groups_by_members([(0, 0b011), (1, 0b010), (2, 0b111), (3, None)])
    assert groups == (0b0001, 0b0010, 0b0100, 0b1000)


def test_cpus_that_are_not_asked_about_do_not_count() -> None:
    assert groups_by_members([(0, 0b1101), (2, 0b0101)]) == (0b0101,)


def test_without_an_online_list_a_cpu_is_online_unless_its_switch_says_no() -> None:
    files = {
        f"{CPU_DIR}/cpu0/topology/core_id": "0",
        f"{CPU_DIR}/cpu1/online": "1",
        f"{CPU_DIR}/cpu2/online": "0",
    }
    cpus = read_cpus(RecordedFiles(files))
    assert (cpus.online, cpus.offline, cpus.present) == (0b011, 0b100, None)


def test_lists_the_kernel_does_not_have_are_none_not_empty() -> None:
    cpus = read_cpus(RecordedFiles({f"{CPU_DIR}/online": "0", f"{CPU_DIR}/isolated": ""}))
    assert (cpus.isolated, cpus.possible, cpus.offline_file) == (0, None, None)


def test_old_names_and_bit_maps_are_read_too() -> None:
    where = f"{CPU_DIR}/cpu{{}}/topology"
    files = {f"{where.format(cpu)}/thread_siblings": "00000000,00000003" for cpu in (0, 1)}
    assert read_cores(RecordedFiles(files), 0b11) == (0b11,)
    files = {f"{where.format(cpu)}/core_siblings_list": "0-1" for cpu in (0, 1)}
    assert read_sockets(RecordedFiles(files), 0b11).groups == ((0, 0b11),)


def test_a_cache_that_does_not_say_who_shares_it_is_the_cpus_own() -> None:
    assert read_l3(RecordedFiles({f"{CPU_DIR}/cpu3/cache/index3/level": "3"}), 1 << 3) == ()


def test_empty_files_say_nothing_about_who_is_online() -> None:
    files = {f"{CPU_DIR}/cpu{cpu}/online": "" for cpu in range(3)} | {f"{CPU_DIR}/cpu3/online": "0"}
    cpus = read_cpus(RecordedFiles(files))
    assert (cpus.online, cpus.offline) == (0b0111, 0b1000)


def test_an_empty_map_of_sharers_is_an_unknown_cache_not_one_of_the_whole_machine() -> None:
    where = f"{CPU_DIR}/cpu{{}}/cache/index3"
    files = {f"{where.format(cpu)}/level": "3" for cpu in range(4)}
    files |= {f"{where.format(cpu)}/shared_cpu_map": "00000000,00000000" for cpu in range(4)}
    files |= {f"{CPU_DIR}/cpu{cpu}/topology/physical_package_id": str(cpu // 2) for cpu in range(4)}
    files |= {f"{CPU_DIR}/online": "0-3"}
    assert read_l3(RecordedFiles(files), 0b1111) == ()
    topology = read_topology(RecordedFiles(files))
    assert not topology.caches_known
    assert [str(cpus) for _, cpus in topology.caches] == ["0-1", "2-3"]  # as the kubelet: by socket


def test_an_empty_list_of_siblings_makes_no_core_of_the_whole_machine() -> None:
    files = {f"{CPU_DIR}/cpu{cpu}/topology/thread_siblings_list": "" for cpu in range(4)}
    files |= {f"{CPU_DIR}/cpu{cpu}/topology/thread_siblings": f"{3 << cpu // 2 * 2:08x}" for cpu in (0, 1)}
    assert read_cores(RecordedFiles(files), 0b1111) == (0b0011, 0b0100, 0b1000)
