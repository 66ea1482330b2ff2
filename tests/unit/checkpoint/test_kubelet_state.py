"""Promises of the kubelet's static managers, taken over and given back; its own files are the examples."""

import json
from pathlib import Path

import pytest

from nri_plugin.checkpoint.kubelet_files import checksum, cpu_v1, load_refusal
from nri_plugin.checkpoint.kubelet_state import (
    cpu_file,
    imported,
    kubelet_doubts,
    kubelet_refusals,
    memory_file,
    read_allocations,
    shared_within_pods,
)
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.options import MemoryManagerPolicy, ReservedMemory
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import Allocation, MemoryBlock, State
from tests.builders import GIB, machine, node
from tests.conftest import HERE

WRITTEN = HERE / "vectors" / "kubelet" / "checkpoints"
STATIC = {
    "memory_manager_policy": MemoryManagerPolicy.STATIC,
    "reserved_memory": (ReservedMemory(0, "memory", GIB), ReservedMemory(1, "memory", GIB)),
}
STATE = State(
    allocations={
        "p2/b": Allocation(
            CPUSet.parse("8-11"), NodeMask.of(1), (MemoryBlock(NodeMask.of(1), "memory", GIB),), 4000
        ),
        "p1/a": Allocation(CPUSet.parse("2-3"), cpu_milli=2000),
    }
)


def written(folder: Path, *names: str) -> str:
    """A kubelet's root directory with these of the files it wrote."""
    for name in names:
        target = folder / name.partition(".")[0]
        target.write_bytes((WRITTEN / f"{name}.json").read_bytes())
    return str(folder)


def test_exclusive_cpus_are_read_by_pod_and_container(tmp_path: Path) -> None:
    promises = read_allocations(written(tmp_path, "cpu_manager_state.v2-static-many"))
    assert {key: str(cpus) for key, cpus in promises.cpus.items()} == {
        "a-pod/app.kubernetes": "10,12,14",
        "a-pod/init-1": "5-9",
        "b-pod/a": "4",
        "b-pod/z": "2-3,34-35",
        "pod10/c": "16-31",
        "pod9/c": "36-59",
    }
    assert not promises.cpus_by_id
    assert not promises.memory


def test_memory_blocks_are_read(tmp_path: Path) -> None:
    promises = read_allocations(written(tmp_path, "memory_manager_state.v1-static-assigned"))
    found = json.loads((WRITTEN / "memory_manager_state.v1-static-assigned.json").read_text())["entries"]
    assert {
        key: [(list(block.nodes), block.resource, block.size_bytes) for block in blocks]
        for key, blocks in promises.memory.items()
    } == {
        f"{pod}/{name}": [(block["numaAffinity"], block["type"], block["size"]) for block in blocks]
        for pod, containers in found.items()
        for name, blocks in containers.items()
    }


def test_the_oldest_form_is_by_container_id_until_somebody_tells_whose_they_are(tmp_path: Path) -> None:
    record = {"policyName": "static", "defaultCpuSet": "0-1", "entries": {"0a1b": "2-3", "2c3d": "4"}}
    sealed = record | {"checksum": checksum(cpu_v1(record))}
    (tmp_path / "cpu_manager_state").write_text(json.dumps(sealed))
    promises = read_allocations(str(tmp_path))
    assert promises.cpus_by_id == {"0a1b": CPUSet.parse("2-3"), "2c3d": CPUSet.parse("4")}
    known = promises.of({"0a1b": "p/c"})
    assert (known.cpus, known.cpus_by_id) == ({"p/c": CPUSet.parse("2-3")}, {})


def test_only_containers_that_run_are_taken_over_when_they_are_named(tmp_path: Path) -> None:
    promises = read_allocations(written(tmp_path, "cpu_manager_state.v2-static-many"))
    assert list(promises.of({"id-1": "pod9/c", "id-2": "pod9/gone"}).cpus) == ["pod9/c"]


def test_cpus_of_a_whole_pod_come_along_when_its_containers_have_them_all(tmp_path: Path) -> None:
    promises = read_allocations(written(tmp_path, "cpu_manager_state.v3-static-pod-entries"))
    assert {key: str(cpus) for key, cpus in promises.cpus.items()} == {"p1/a": "2-3", "p1/b": "4-7"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "memory_manager_state.v2-static-pod-entries",
            "pod p1 holds 1073741824 bytes of memory that none of its containers has, which only a kubelet keeps",
        ),
        (
            "cpu_manager_state.odd-bad-checksum",
            r"its checksum: expected \d+, found \d+; a kubelet would say: json:",
        ),
        (
            "cpu_manager_state.odd-not-json",
            "cannot be used; a kubelet would say: unexpected end of JSON input",
        ),
        (
            "cpu_manager_state.odd-empty-file",
            "cannot be used; a kubelet would say: unexpected end of JSON input",
        ),
        ("cpu_manager_state.v2-none-empty", 'differs from state checkpoint policy "none"'),
    ],
)
def test_what_cannot_be_taken_over_is_named(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(CheckpointError, match=text) as found:
        read_allocations(written(tmp_path, name))
    assert str(found.value).startswith(str(tmp_path / name.partition(".")[0]))


def test_a_folder_without_state_files_is_no_kubelets(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds neither cpu_manager_state nor memory_manager_state"):
        read_allocations(str(tmp_path))


def test_containers_of_a_pod_with_cpus_in_common_are_told(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(
        '{"policyName":"static","defaultCpuSet":"0-1","entries":{"p":{"a":"2-5","i":"2-3"},"q":{"a":"6-7"}},"checksum":0}'
    )
    assert shared_within_pods(read_allocations(str(tmp_path))) == ["p/a and p/i both have CPUs 2-3"]


@pytest.mark.parametrize("strict", [False, True])
def test_what_we_write_a_kubelet_starts_on_and_we_read_back(tmp_path: Path, strict: bool) -> None:
    ours = node(machine(), strict_cpu_reservation=strict, **STATIC)
    assert kubelet_refusals(ours, STATE) == []
    files = {"cpu_manager_state": cpu_file(ours, STATE), "memory_manager_state": memory_file(ours, STATE)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        manager, _, _ = name.partition("_")
        assert load_refusal(data, manager, "static" if manager == "cpu" else "Static") == ""
    back = imported(ours, read_allocations(str(tmp_path)))
    assert {
        key: (one.cpus, one.mems, one.memory, one.cpu_milli) for key, one in back.allocations.items()
    } == {key: (one.cpus, one.mems, one.memory, one.cpu_milli) for key, one in STATE.allocations.items()}


def test_a_file_is_written_as_the_kubelet_writes_it() -> None:
    one = State(
        allocations={"p1/b": Allocation(CPUSet.parse("4-7")), "p1/a": Allocation(CPUSet.parse("2-3"))}
    )
    recorded = json.loads((WRITTEN / "cpu_manager_state.v3-static-two-containers.json").read_bytes())
    ours = json.loads(cpu_file(node(machine(nodes=1)), one))
    assert list(ours) == list(recorded)
    assert ours["entries"] == {"p1": {"a": "2-3", "b": "4-7"}}
    assert ours["defaultCpuSet"] == "0-1"


def test_nothing_promised_is_a_file_without_entries() -> None:
    assert b'"entries"' not in cpu_file(node(), State())
    assert b'"entries"' not in memory_file(node(machine(), **STATIC), State())


def test_without_a_memory_policy_memory_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "memory_manager_state").write_bytes(memory_file(node(machine(), **STATIC), STATE))
    assert imported(node(), read_allocations(str(tmp_path))).allocations == {}


def test_a_kubelet_would_refuse_what_takes_reserved_cpus() -> None:
    state = State(allocations={"p/c": Allocation(CPUSet.parse("0-3"))})
    (refusal,) = kubelet_refusals(node(), state)
    assert refusal == (
        'the kubelet\'s CPU Manager would say: not all reserved cpus: "0-1" are present in defaultCpuSet: "4-15"'
    )


def on_nodes(*ids: int) -> Allocation:
    return Allocation(memory=(MemoryBlock(NodeMask.of(*ids), "memory", GIB),), mems=NodeMask.of(*ids))


def test_memory_over_different_sets_of_nodes_may_be_refused_by_a_kubelet_or_not() -> None:
    state = State(allocations={"p1/a": on_nodes(0, 1), "p2/a": on_nodes(0)})
    (doubt,) = kubelet_doubts(node(**STATIC), state)
    assert doubt.startswith("memory on NUMA node 0 is allocated over different sets of nodes (0 and 0-1): ")
    assert kubelet_doubts(node(), state) == []
    assert kubelet_doubts(node(**STATIC), state.without_allocation("p2/a")) == []
