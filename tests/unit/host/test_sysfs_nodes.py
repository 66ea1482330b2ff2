import pytest

from nri_plugin.host.sysfs_parts import NODE_DIR, read_hugepages, read_memory_kb, read_nodes
from nri_plugin.model.errors import HostError
from tests.oracles.recordings import RecordedFiles

NODE0 = f"{NODE_DIR}/node0"


def test_the_list_is_asked_before_the_map_and_the_map_before_the_links() -> None:
    link = {"link": "../../cpu/cpu2"}
    files = {f"{NODE0}/cpulist": "0", f"{NODE0}/cpumap": "2", f"{NODE0}/cpu2": link}
    for cpus in (0b001, 0b010, 0b100):
        assert [node.cpus for node in read_nodes(RecordedFiles(files))] == [cpus]
        files.pop(next(iter(files)))


def test_only_online_nodes_are_read() -> None:
    files = {f"{NODE_DIR}/online": "1,250", f"{NODE0}/cpulist": "0", f"{NODE_DIR}/node1/cpulist": "1"}
    assert [node.id for node in read_nodes(RecordedFiles(files))] == [1, 250]


def test_without_a_node_directory_there_are_no_nodes() -> None:
    assert read_nodes(RecordedFiles({"proc/meminfo": "MemTotal: 1 kB"})) == ()


def test_pools_are_sorted_by_size_and_other_entries_ignored() -> None:
    files = {
        "pools/hugepages-1048576kB/nr_hugepages": "2",
        "pools/hugepages-64kB/nr_hugepages": "7",
        "pools/hugepages-2048kB/free_hugepages": "1",
        "pools/other": "",
    }
    assert read_hugepages(RecordedFiles(files), "pools") == ((64, 7), (1048576, 2))


def test_memory_is_found_in_both_kinds_of_meminfo() -> None:
    files = RecordedFiles({"a": "\nNode 2 MemTotal:  8388608 kB\n", "b": "MemTotal:    12 kB\nMemFree: 3 kB"})
    assert read_memory_kb(files, "a", "MemTotal") == 8388608
    assert read_memory_kb(files, "b", "MemFree") == 3
    assert read_memory_kb(files, "b", "SwapTotal") is None
    assert read_memory_kb(files, "c", "MemTotal") is None


@pytest.mark.parametrize("line", ["MemTotal:", "MemTotal: many kB", "MemTotal: 1 MB"])
def test_memory_without_a_number_of_kb_is_refused(line: str) -> None:
    with pytest.raises(HostError, match=r"meminfo: expected 'MemTotal: <number> kB', found"):
        read_memory_kb(RecordedFiles({"meminfo": line}), "meminfo", "MemTotal")


def test_distances_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(HostError, match=r"node0/distance: expected distances such as '10 20', found '10 -1'"):
        read_nodes(RecordedFiles({f"{NODE0}/cpulist": "0", f"{NODE0}/distance": "10 -1"}))
