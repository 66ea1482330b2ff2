"""Promises of the kubelet's static managers, taken over and given back; its own files are the examples."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.checkpoint.kubelet_export import (
    cpu_file,
    kubelet_doubts,
    kubelet_refusals,
    memory_file,
    needs_pod_level,
    restart_refusals,
)
from nri_plugin.checkpoint.kubelet_files import (
    checksum,
    cpu_state_refusal,
    cpu_v1,
    cpu_v2,
    cpu_v3,
    load_refusal,
    parse,
)
from nri_plugin.checkpoint.kubelet_import import (
    File,
    KubeletAllocations,
    allocations_in,
    imported,
    pod_shared,
    read_allocations,
    shared_within_pods,
)
from nri_plugin.core.engine import decide
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.options import MemoryManagerPolicy, Node, ReservedMemory
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    ContainerFacts,
    Kind,
    MemoryBlock,
    PodFacts,
    PodRecord,
    QOSClass,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri.events import Synchronize
from tests.builders import GIB, container, machine, node, pod
from tests.conftest import HERE
from tests.whole_pods import PodLife, part, pod_scope, whole

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
    folder.mkdir(exist_ok=True)
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


def test_cpus_of_pods_as_wholes_are_read(tmp_path: Path) -> None:
    found = read_allocations(written(tmp_path, "cpu_manager_state.v3-static-pod-entries-many"))
    assert {key: str(cpus) for key, cpus in found.cpus.items()} == {
        "p1/a": "2-3",
        "p1/b": "4-7",
        "p2/x": "10-12",
        "p1/": "2-7",
        "p2/": "10-12,20",
    }


@pytest.mark.parametrize(
    "memory", ["memory_manager_state.v1-none-empty", "memory_manager_state.v2-none-empty"]
)
def test_the_file_of_a_manager_that_is_off_is_passed_over_beside_that_of_the_other(
    tmp_path: Path, memory: str
) -> None:
    found = read_allocations(written(tmp_path, "cpu_manager_state.v2-static-many", memory))
    assert found == read_allocations(written(tmp_path / "alone", "cpu_manager_state.v2-static-many"))
    others = written(
        tmp_path / "o", "cpu_manager_state.v2-none-empty", "memory_manager_state.v1-static-assigned"
    )
    assert read_allocations(others).memory


def test_the_file_of_a_manager_that_is_off_is_known_in_the_form_of_kubernetes_1_37() -> None:
    off = of_1_37('{"policyName":"none","defaultCpuSet":""}')
    memory = File("memory", (WRITTEN / "memory_manager_state.v1-static-assigned.json").read_bytes())
    assert allocations_in(File("cpu", off), memory).memory
    with pytest.raises(CheckpointError, match=r'cpu: .*state checkpoint policy "none"'):
        allocations_in(File("cpu", off), None)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"policyName": "None", "machineState": {}, "checksum": 1}, "its checksum"),
        (
            {"policyName": "None", "entries": {"p": {"c": []}}, "checksum": 0},
            'state checkpoint policy "None"',
        ),
        ({"policyName": "BestEffort", "checksum": 0}, 'state checkpoint policy "BestEffort"'),
    ],
)
def test_a_file_that_only_looks_like_that_of_a_manager_that_is_off_is_refused(
    tmp_path: Path, record: dict[str, object], said: str
) -> None:
    folder = written(tmp_path, "cpu_manager_state.v2-static-many")
    (tmp_path / "memory_manager_state").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=said):
        read_allocations(folder)


def test_both_managers_that_are_off_have_nothing_to_import(tmp_path: Path) -> None:
    off = written(tmp_path, "cpu_manager_state.v2-none-empty", "memory_manager_state.v2-none-empty")
    with pytest.raises(CheckpointError, match='state checkpoint policy "none"'):
        read_allocations(off)


def test_memory_of_a_pod_as_a_whole_counts_once_and_binds_its_containers(tmp_path: Path) -> None:
    found = read_allocations(written(tmp_path, "memory_manager_state.v2-static-pod-entries"))
    state = imported(node(machine(), **STATIC), found)
    assert {key: (list(one.mems), one.memory) for key, one in state.allocations.items()} == {
        "p1/": ([1], (MemoryBlock(NodeMask.of(1), "memory", 2 * GIB),)),
        "p1/a": ([1], ()),
    }


def level(entries: dict[str, str], block: str, *names: str) -> KubeletAllocations:
    """One pod `p` with these sets, of the containers `names` or of all."""
    cpus = {f"p/{name}": CPUSet.parse(text) for name, text in entries.items() if name in (names or entries)}
    return KubeletAllocations(cpus | {"p/": CPUSet.parse(block)}, {}, {})


def test_a_set_of_several_containers_is_the_shared_pool_if_slices_leave_it() -> None:
    entries = {"db": "2-3", "log": "4-5", "proxy": "4-5", "prepare": "2-5"}
    assert pod_shared(level(entries, "2-5")) == {"p/log", "p/proxy"}
    assert pod_shared(level(entries, "2-6")) == set()  # CPU 6 is in no set
    assert pod_shared(level({"db": "2-3", "log": "4-5"}, "2-5")) == set()
    state = imported(node(machine()), level(entries, "2-5", "db", "log", "proxy"))
    assert {
        key: (str(one.cpus), one.is_pod_shared, one.cpu_milli) for key, one in state.allocations.items()
    } == {
        "p/db": ("2-3", False, 2000),
        "p/log": ("4-5", True, 0),
        "p/proxy": ("4-5", True, 0),
        "p/": ("2-5", False, 4000),
    }
    assert violations(node(machine()), state) == []


def test_an_init_container_in_a_pods_cpus_is_told_apart_by_naming_those_that_run() -> None:
    entries = {"db": "2-3", "log": "4-5", "proxy": "4-5", "prepare": "2-5"}
    said = shared_within_pods(level(entries, "2-5"))
    assert said == [
        "p/db and p/prepare both have CPUs 2-3",
        "p/log and p/prepare both have CPUs 4-5",
        "p/prepare and p/proxy both have CPUs 4-5",
    ]
    running = level(entries, "2-5").of({"1": "p/db", "2": "p/log", "3": "p/proxy"})
    assert shared_within_pods(running) == []
    assert str(running.cpus["p/"]) == "2-5"


def test_a_pod_none_of_whose_containers_runs_is_left_out() -> None:
    assert level({"db": "2-3"}, "2-5").of({"1": "q/db"}).cpus == {}


@pytest.mark.parametrize("stored", [0, "of version 2"])
def test_pod_entries_that_no_checksum_covers_are_refused(tmp_path: Path, stored: object) -> None:
    record = {"policyName": "static", "defaultCpuSet": "0-1", "entries": {"p": {"a": "2"}}}
    record["checksum"] = checksum(cpu_v2(record)) if stored else 0
    record["podEntries"] = {"p": {"cpuSet": "2-3"}}
    (tmp_path / "cpu_manager_state").write_text(json.dumps(record))
    assert load_refusal(json.dumps(record).encode(), "cpu", "static", pod_level=True) == ""
    with pytest.raises(CheckpointError, match=r"no checksum covers its podEntries \(p\)"):
        read_allocations(str(tmp_path))


def test_pod_entries_of_another_type_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text(
        '{"policyName":"static","defaultCpuSet":"0-1","podEntries":3}'
    )
    with pytest.raises(CheckpointError, match=r"no checksum covers its podEntries \(of another type\)"):
        read_allocations(str(tmp_path))


def test_an_agent_that_starts_on_imported_pods_keeps_all_they_have(tmp_path: Path) -> None:
    record = {
        "policyName": "static",
        "defaultCpuSet": "0-1,6-15",
        "entries": {"p": {"db": "2-3", "log": "4-5", "proxy": "4-5"}},
        "podEntries": {"p": {"cpuSet": "2-5"}},
    }
    (tmp_path / "cpu_manager_state").write_text(json.dumps(record | {"checksum": checksum(cpu_v3(record))}))
    ours = node(machine(), pod_level_managers=True)
    before = imported(ours, read_allocations(str(tmp_path)))
    of = pod("p")
    running = [
        container(of, "db", cpu=2, cpus="2-3"),
        container(of, "log", cpu=1, cpus="4-5"),
        container(of, "proxy", cpus="4-5"),
    ]
    after = decide(ours, before, Synchronize((of,), tuple(running))).state
    assert after.allocations == before.allocations
    assert {one.name: str(after.desired_cpus(ours, one)) for one in after.containers.values()} == {
        "db": "2-3",
        "log": "4-5",
        "proxy": "4-5",
    }
    assert kubelet_refusals(ours, after) == []


def of_1_37(text: str, **changes: object) -> bytes:
    """A file of version 4 with that state."""
    outer = {key: value for key, value in json.loads(text).items() if key != "podEntries"}
    more = {"data": text, "dataChecksum": checksum(f"(string){text}"), **changes}
    return json.dumps(outer | {"checksum": checksum(cpu_v2(outer))} | more).encode()


LEVEL_TEXT = '{"policyName":"static","defaultCpuSet":"0-1","entries":{"p":{"a":"2"}},"podEntries":{"p":{"cpuSet":"2-3"}}}'


def test_the_form_of_kubernetes_1_37_is_read_from_its_data() -> None:
    found = allocations_in(File("cpu", of_1_37(LEVEL_TEXT)), None)
    assert {key: str(cpus) for key, cpus in found.cpus.items()} == {"p/a": "2", "p/": "2-3"}
    # An older kubelet takes the file, and does not see the pod.
    assert load_refusal(of_1_37(LEVEL_TEXT), "cpu", "static") == ""
    assert load_refusal(of_1_37(LEVEL_TEXT), "cpu", "static", pod_level=True) == ""
    recorded = File("memory", (WRITTEN / "memory_manager_state.pod-level-v3-of-1.37.json").read_bytes())
    assert [block.size_bytes for block in allocations_in(None, recorded).memory["pod3/"]] == [GIB // 2]


@pytest.mark.parametrize("kind", ["cpu", "memory"])
def test_files_of_a_kubelet_1_37_2_are_read(kind: str) -> None:
    raw = Path(__file__).with_name(f"{kind}_manager_state.1.37.2.json").read_bytes()
    file = File(kind, raw)
    found = allocations_in(file, None).cpus if kind == "cpu" else allocations_in(None, file).memory
    assert {key.partition("/")[2] for key in found} == {"c0", "rest", ""}  # the last is the pod
    assert load_refusal(raw, kind, parse(raw)["policyName"], pod_level=True) == ""


def test_a_cpu_file_that_a_kubelet_of_1_37_wrote_is_read() -> None:
    recorded = (WRITTEN / "cpu_manager_state.pod-level-v4-written-by-1.37.2.json").read_bytes()
    found = imported(node(machine(), **STATIC), allocations_in(File("cpu", recorded), None))
    assert str(found.allocations["pod5/"].cpus) == "1-2,9-10"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataChecksum": 1}, "its data: checkpoint is corrupted"),
        ({"data": 7}, "its data: checkpoint is corrupted"),
        ({"data": 7, "dataChecksum": checksum("(string)7")}, "its data: json: a value is of another type"),
        ({"data": "\ud800"}, "its data: json: a value is of another type"),
        ({"data": "[]", "dataChecksum": checksum("(string)[]")}, "its data: not a JSON object"),
        (
            {"data": "{}", "dataChecksum": checksum("(string){}")},
            'configured policy "static" differs from state checkpoint policy ""',
        ),
    ],
)
def test_data_that_is_not_verified_is_refused_without_a_fallback(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        allocations_in(File("cpu", of_1_37(LEVEL_TEXT, **changes)), None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
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


BLOCKS = (MemoryBlock(NodeMask.of(1), "memory", 3 * GIB),)
LEVEL = State(
    allocations={
        "p/": Allocation(CPUSet.parse("8-13"), NodeMask.of(1), BLOCKS, 6000),
        "p/db": Allocation(CPUSet.parse("8-11"), NodeMask.of(1), cpu_milli=4000),
        "p/log": Allocation(CPUSet.parse("12"), NodeMask.of(1), is_pod_shared=True),
        "p/proxy": Allocation(CPUSet.parse("12"), NodeMask.of(1), is_pod_shared=True),
    }
)
FACTS = PodFacts(
    "p",
    QOSClass.GUARANTEED,
    (
        ContainerFacts("db", amounts=Amounts(4000, 4000, 2 * GIB, 2 * GIB)),
        ContainerFacts("log"),
        ContainerFacts("proxy"),
    ),
    Amounts(6000, 6000, 3 * GIB, 3 * GIB),
)


def test_pods_as_wholes_have_the_newer_form_and_their_memory_counts_once() -> None:
    ours = node(machine(), **STATIC)
    known = LEVEL.with_pod(PodRecord("p", "sb", facts=FACTS))
    assert needs_pod_level(ours, LEVEL)
    assert kubelet_refusals(ours, known) == []
    cpu, memory = json.loads(cpu_file(ours, known)), json.loads(memory_file(ours, known))
    assert cpu["podEntries"] == {"p": {"cpuSet": "8-13"}}
    assert cpu["entries"] == {"p": {"db": "8-11", "log": "12", "proxy": "12"}}
    assert cpu["defaultCpuSet"] == "0-7,14-15"
    sizes = {name: [one["size"] // GIB for one in blocks] for name, blocks in memory["entries"]["p"].items()}
    assert sizes == {"db": [2], "log": [1], "proxy": [1]}
    assert [one["size"] for one in memory["podEntries"]["p"]["memoryBlocks"]] == [3 * GIB]
    assert memory["machineState"]["1"]["memoryMap"]["memory"]["reserved"] == 3 * GIB
    for manager, policy, data in (("cpu", "static", cpu), ("memory", "Static", memory)):
        assert load_refusal(json.dumps(data).encode(), manager, policy, pod_level=True) == ""
        assert load_refusal(json.dumps(data).encode(), manager, policy) != ""


def test_without_the_facts_of_a_pod_each_container_is_shown_with_all_its_memory() -> None:
    blocks = json.loads(memory_file(node(machine(), **STATIC), LEVEL))["entries"]["p"]
    assert {name: one[0]["size"] // GIB for name, one in blocks.items()} == {"db": 3, "log": 3, "proxy": 3}


def test_an_ended_init_container_has_no_part_of_the_memory_of_its_pod() -> None:
    life = PodLife(pod_scope(), part("setup", 2, Kind.INIT), part("app", 4), resources=whole(6))
    life.run("setup")
    assert list(json.loads(memory_file(life.on, life.state))["entries"]["p1"]) == ["app", "setup"]
    life.run("app")
    assert list(json.loads(memory_file(life.on, life.state))["entries"]["p1"]) == ["app"]
    assert life.held == {"": "2-7", "setup": "2-3", "app": "2-5"}


def test_the_gate_alone_gives_the_newer_form() -> None:
    ours = node(machine(), pod_level_managers=True, **STATIC)
    for data, manager, policy in (
        (cpu_file(ours, STATE), "cpu", "static"),
        (memory_file(ours, STATE), "memory", "Static"),
    ):
        assert load_refusal(data, manager, policy, pod_level=True) == ""
        assert load_refusal(data, manager, policy) != ""


def test_names_are_written_as_go_writes_them() -> None:
    data = cpu_file(node(), State(allocations={"p<&>/\u00e9": Allocation(CPUSet.parse("2"))}))
    assert '"p\\u003c\\u0026\\u003e":{"\u00e9":"2"}' in data.decode()
    assert load_refusal(data, "cpu", "static") == ""


def test_a_kubelet_counts_cpus_of_pods_as_known() -> None:
    how = {"online": CPUSet.parse("0-7"), "reserved": CPUSet.parse("0-1"), "strict": False}
    held, default = {"p": {"a": CPUSet.parse("2")}}, CPUSet.parse("0-1,4-7")
    assert cpu_state_refusal(default, held, pods={"p": CPUSet.parse("2-3")}, **how) == ""
    assert "doesn't match" in cpu_state_refusal(default, held, **how)


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


def test_pods_as_wholes_may_be_refused_by_a_kubelet_that_admits_them_anew() -> None:
    (doubt,) = kubelet_doubts(node(), LEVEL.with_pod(PodRecord("p", "sb", "db-0", "shop")))
    assert "admits running pods anew when it starts, and refuses or moves those" in doubt
    assert "(shop/db-0)" in doubt


def test_a_kubelet_starts_again_on_its_files_unless_machine_policy_or_text_have_changed(
    tmp_path: Path,
) -> None:
    ours = node(**STATIC)

    def said(on: Node = ours, cpu: str = "static", memory: str = "Static") -> str:
        return "; ".join(restart_refusals(on, str(tmp_path), cpu, memory))

    assert said() == ""  # no files: a first start
    files = {"cpu_manager_state": cpu_file(ours, STATE), "memory_manager_state": memory_file(ours, STATE)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert said() == ""
    assert 'configured policy "none" differs from state checkpoint policy "static"' in said(cpu="none")
    assert 'configured policy "None" differs from state checkpoint policy "Static"' in said(memory="None")
    grown = replace(ours, topology=machine(memory=17 * GIB))
    assert f"NUMA node 0 had {16 * GIB} bytes of memory and has {17 * GIB}" in said(grown)
    assert "not all reserved cpus" in said(replace(ours, reserved=CPUSet.parse("8")))
    (tmp_path / "memory_manager_state").write_bytes(
        files["memory_manager_state"].replace(b"Static", b"statiC")
    )
    assert "checkpoint is corrupted" in said()
    record = {"policyName": "Static", "machineState": {"0": {}}}
    (tmp_path / "memory_manager_state").write_text(json.dumps(record))
    assert "it holds what no kubelet writes" in said()
