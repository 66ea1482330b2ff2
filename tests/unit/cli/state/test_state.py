import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from msgspec.structs import replace

from nri_plugin.agent.observing.status_socket import StatusFeed, StatusSocket
from nri_plugin.checkpoint.file import CheckpointFile, Origin
from nri_plugin.cli.state.source import NO_RUNTIME, SOCKET
from nri_plugin.cli.state.state import command
from nri_plugin.model.options import MemoryManagerPolicy, Node
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerFacts,
    ContainerRecord,
    Kind,
    MemoryBlock,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.wire.nri.events import Configure
from tests.builders import node as a_node


def pod(uid: str, name: str, qos: QOSClass = QOSClass.GUARANTEED) -> PodRecord:
    return PodRecord(uid, f"sb-{uid}", name, "shop", qos, f"/kubepods/pod{uid}")


def container(pod_uid: str, name: str, phase: Phase = Phase.RUNNING, unplaced: str = "") -> ContainerRecord:
    path = f"/kubepods/pod{pod_uid}/{name}"
    return ContainerRecord(
        f"id-{name}", pod_uid, name, phase, CgroupRef(f"/kubepods/pod{pod_uid}", path), unplaced=unplaced
    )


STATE = State(
    pods={
        "u1": replace(pod("u1", "db-0"), affinity=NodeMask.of(0, 1)),
        "u2": pod("u2", "web-0", QOSClass.BURSTABLE),
    },
    containers={
        "id-web": container("u2", "web", unplaced="no 4 CPUs on a NUMA node"),
        "id-db": container("u1", "db"),
    },
    allocations={
        "u1/db": Allocation(
            CPUSet.of(2, 3), NodeMask.of(0), cpu_milli=2000, affinity=NodeMask.of(0), preferred=False
        ),
        "u1/next": Allocation(CPUSet.of(8)),
    },
)


def save(directory: Path, state: State, node: Node | None) -> None:
    CheckpointFile(str(directory), node, durable=False).save(state)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save(tmp_path / "state", STATE, a_node())
    return tmp_path / "state"


MACHINE = "pack:2 numa:1(memory=16GiB) l3:1 core:4 pu:2"


def run(verb: str, directory: Path, *args: str) -> Result:
    return CliRunner().invoke(command, [verb, "--state-dir", str(directory), *args])


@pytest.fixture
def on_machine(tmp_path: Path) -> list[str]:
    (tmp_path / "machine.txt").write_text(MACHINE)
    return ["--machine", str(tmp_path / "machine.txt")]


def test_a_program_that_reads_the_output_gets_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "telemetry-collector-sidecar-of-the-second-kind"
    pod = PodRecord(
        "p", "s", "telemetry-agent-7d9c6bf4-x2x4z", "monitoring-system", QOSClass.GUARANTEED, "/p"
    )
    record = ContainerRecord("id", "p", name, Phase.RUNNING, CgroupRef("/p", "/p/id"))
    cpus = CPUSet.parse("1,3,5,7,9,11,13")
    save(tmp_path, State({"p": pod}, {"id": record}, {f"p/{name}": Allocation(cpus)}), a_node())
    for words in (["telemetry-agent-7d9c6bf4-x2x4z"], [f"*/*/{name}"]):
        output = run("show", tmp_path, *words).output
        assert [line for line in output.splitlines() if name in line and str(cpus) in line]
    assert run("show", tmp_path, "other/telemetry-agent-7d9c6bf4-x2x4z").exit_code == 1


def show_json(directory: Path) -> dict[str, Any]:
    return json.loads(run("show", directory, "-o", "json").output)


def test_show_lists_pods_with_exclusive_containers_first_and_the_pool_below(
    directory: Path, on_machine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = run("show", directory, *on_machine).output.splitlines()
    assert lines[0].split() == [
        "CONTAINER", "KIND", "COUNT", "CPUS", "CORES", "NUMA", "CACHE", "MEMS", "ALIGNED",
    ]  # fmt: skip
    assert lines[1] == "shop/db-0  Guaranteed"
    assert lines[2].split() == ["db", "exclusive", "2", "2-3", "2", "0", "0", "0", "NSUC"]
    assert lines[3] == "shop/web-0  Burstable"
    assert lines[4].split() == [
        "web",
        "shared",
        "13",
        "0-1,4-7,9-15",
        "0,4,6,8,10,12,14",
        "0-1",
        "0-1",
        "-",
        "----",
    ]
    assert lines[5] == "unplaced: shop/web-0/web: no 4 CPUs on a NUMA node"
    assert lines[6] == "allocated, not created: shop/db-0/next: CPUs 8"
    assert [line.split()[:3] for line in lines[8:11]] == [
        ["exclusive", "2-3,8"],
        ["shared", "pool", "0-1,4-7,9-15"],
        ["reserved", "0-1"],
    ]


def test_show_without_the_machine_does_not_guess_cores_and_caches(directory: Path) -> None:
    output = run("show", directory).output
    assert output.splitlines()[2].split() == ["db", "exclusive", "2", "2-3", "?", "0", "?", "0", "?"]
    assert "cores, sockets and caches are not known" in " ".join(output.split())


def test_show_refuses_a_machine_that_is_another_one(directory: Path) -> None:
    result = run("show", directory, "--machine", "demo")
    assert result.exit_code == 2
    assert "is another machine than the checkpoint is about" in result.output


def test_show_wide_never_folds_and_tells_ids_and_phases(
    directory: Path, on_machine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("show", directory, "--wide", *on_machine).output.splitlines()
    assert lines[1].split() == (
        [
            "shop",
            "db-0",
            "db",
            "id-db",
            "running",
            "Guaranteed",
            "exclusive",
            "2000m",
            "2",
            "2-3",
            "2",
            "0",
            "0",
            "0",
            "0",
            "NSUC",
        ]
    )


def test_show_knows_the_formats_of_kubectl(directory: Path, on_machine: list[str]) -> None:
    wide = run("show", directory, "-A", "-o", "wide", *on_machine).output
    assert wide == run("show", directory, "--wide", *on_machine).output
    assert run("show", directory, "--output", "name").output.splitlines()[:1] == ["pod/db-0"]
    as_yaml = yaml.safe_load(run("show", directory, "-o", "yaml").output)
    assert as_yaml == json.loads(run("show", directory, "-o", "json").output)


FILTERS: dict[str, tuple[list[str], list[str]]] = {
    "a namespace": (["-n", "shop"], ["db", "web"]),
    "another namespace": (["-n", "x*"], []),
    "a pod": (["--pod", "web-0"], ["web"]),
    "a pattern of pods": (["--pod", "*-0"], ["db", "web"]),
    "a uid": (["--pod", "u1"], ["db"]),
    "a container": (["-c", "db"], ["db"]),
    "all three": (["-n", "shop", "--pod", "db-0", "-c", "web"], []),
}


@pytest.mark.parametrize(("args", "names"), FILTERS.values(), ids=FILTERS)
def test_show_lists_only_what_is_asked_for(directory: Path, args: list[str], names: list[str]) -> None:
    result = run("show", directory, *args)
    in_json = run("show", directory, *args, "-o", "json")
    told = json.loads(in_json.stdout)
    assert in_json.exit_code == result.exit_code
    assert [row["container"] for row in told["containers"]] == names
    assert told["waiting"] == []
    assert result.exit_code == (0 if names else 1)
    assert names or "has such a name" in result.output


def test_show_is_the_same_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    turned = State(
        dict(reversed(STATE.pods.items())),
        dict(reversed(STATE.containers.items())),
        dict(reversed(STATE.allocations.items())),
    )
    save(tmp_path / "a", STATE, a_node())
    save(tmp_path / "b", turned, a_node())
    shown = [run("show", tmp_path / name).output.replace(f"/{name}/", "/") for name in "ab"]
    assert shown[0] == shown[1]


def test_show_json_tells_all_that_cgroups_can_be_compared_with(
    directory: Path, on_machine: list[str]
) -> None:
    report = json.loads(run("show", directory, "-o", "json", *on_machine).output)
    assert report["exclusive"] == "2-3,8"
    assert report["shared_pool"] == "0-1,4-7,9-15"
    assert report["node"] == {
        "online": "0-15",
        "reserved": "0-1",
        "numa_nodes": {"0": "0-7", "1": "8-15"},
        "memory_nodes": "0-1",
    }
    assert report["containers"][0] == {
        "pod_uid": "u1",
        "namespace": "shop",
        "pod": "db-0",
        "qos": "Guaranteed",
        "container": "db",
        "id": "id-db",
        "phase": "running",
        "kind": "exclusive",
        "container_kind": None,
        "cpus": "2-3",
        "kept_cpus": "",
        "is_pod_shared": False,
        "mems": "0",
        "cpuset": "2-3",
        "cores": "2",
        "sockets": "0",
        "numa_nodes": "0",
        "uncore_caches": "0",
        "aligned": {"numa_node": True, "socket": True, "uncore_cache": True, "whole_cores": True},
        "lost": "",
        "cpu_milli": 2000,
        "memory": [],
        "resize": None,
        "hint": {"numa_nodes": "0", "preferred": False},
        "pod_hint": {"numa_nodes": "0-1", "preferred": True},
        "unplaced": "",
        "cgroup": {"parent": "/kubepods/podu1", "path": "/kubepods/podu1/db"},
    }


def test_show_says_which_exclusive_cpus_are_offline_and_what_is_left(tmp_path: Path) -> None:
    allocations = {"u1/db": Allocation(CPUSet.parse("2,100")), "u1/web": Allocation(CPUSet.parse("101-102"))}
    records = {f"id-{name}": container("u1", name) for name in ("db", "web")}
    save(tmp_path, State({"u1": pod("u1", "db-0")}, records, allocations), a_node())
    db, web = show_json(tmp_path)["containers"]
    assert (db["cpus"], db["lost"], db["cpuset"]) == ("2,100", "100", "2")
    assert (web["cpus"], web["lost"], web["cpuset"]) == ("101-102", "101-102", "0-1,3-15")
    text = "lost: shop/db-0/db: of its CPUs 2,100 those offline or out of reach are 100, they stay allocated to it"
    assert text in " ".join(run("show", tmp_path).output.split())


def test_show_names_the_kind_of_a_container_where_it_is_known(tmp_path: Path) -> None:
    kinds = {"db": Kind.APP, "setup": Kind.INIT, "mesh": Kind.SIDECAR}
    rows = tuple(ContainerFacts(name, kind) for name, kind in kinds.items())
    known = replace(pod("u1", "db-0"), facts=PodFacts("u1", QOSClass.GUARANTEED, rows))
    names = [*kinds, "debugger"]
    save(tmp_path, State({"u1": known}, {f"id-{name}": container("u1", name) for name in names}), a_node())
    lines = run("show", tmp_path).output.splitlines()
    assert [re.split(r" {2,}", line)[1] for line in lines[2:6]] == [
        "db",
        "debugger",
        "mesh (sidecar)",
        "setup (init)",
    ]
    told = {row["container"]: row["container_kind"] for row in show_json(tmp_path)["containers"]}
    assert told == {"db": "app", "setup": "init", "mesh": "sidecar", "debugger": None}


def ended_init(directory: Path) -> None:
    """A pod whose init container is done, and one whose container crashed and holds its CPUs."""
    facts = PodFacts(
        "u1", QOSClass.GUARANTEED, (ContainerFacts("setup", Kind.INIT), ContainerFacts("db", Kind.APP))
    )
    records = {
        "id-setup": container("u1", "setup", Phase.STOPPED),
        "id-db": container("u1", "db"),
        "id-web": container("u2", "web", Phase.STOPPED),
    }
    pods = {"u1": replace(pod("u1", "db-0"), facts=facts), "u2": pod("u2", "web-0")}
    held = {"u1/db": Allocation(CPUSet.of(2, 3)), "u2/web": Allocation(CPUSet.of(4, 5))}
    save(directory, State(pods, records, held), a_node())


def test_show_says_that_an_init_container_ended_and_runs_nowhere(
    tmp_path: Path, on_machine: list[str]
) -> None:
    ended_init(tmp_path / "state")
    for machine in (on_machine, []):
        rows = [
            re.split(r" {2,}", line)[1:]
            for line in run("show", tmp_path / "state", *machine).output.splitlines()
        ]
        assert ["setup (init)", "ended", *"-------"] in rows
        assert ["web (stopped)", "exclusive", "2", "4-5"] in [row[:4] for row in rows]
    told = {one["container"]: one for one in show_json(tmp_path / "state")["containers"]}
    setup = told["setup"]
    assert (setup["kind"], setup["phase"], setup["cpuset"], setup["cores"]) == ("ended", "stopped", "", None)
    assert (told["web"]["kind"], told["web"]["cpus"]) == ("exclusive", "4-5")
    wide = run("show", tmp_path / "state", "--wide", *on_machine).output
    assert "ended" in wide
    assert "pool" not in next(line for line in wide.splitlines() if "setup" in line)


def test_cores_of_the_shared_pool_are_nobodys_own(directory: Path, on_machine: list[str]) -> None:
    with_one_core = STATE.with_allocation("u1/db", Allocation(CPUSet.parse("2-7,9-15"))).without_container(
        "id-db"
    )
    save(directory, with_one_core.with_allocation("u1/next", Allocation(CPUSet.of(8))), a_node())
    rows = run("show", directory, *on_machine).output
    assert next(line for line in rows.splitlines() if line.startswith("  web")).split() == [
        "web", "shared", "2", "0-1", "0", "0", "0", "-", "NSU-",
    ]  # fmt: skip


def test_show_json_gives_a_shared_container_no_cpus_but_a_cpuset(directory: Path) -> None:
    shared = show_json(directory)["containers"][1]
    assert (shared["kind"], shared["cpus"], shared["cpuset"]) == ("shared", "", "0-1,4-7,9-15")
    assert shared["unplaced"] == "no 4 CPUs on a NUMA node"


def test_show_json_tells_the_hint_of_a_shared_container_where_somebody_had_a_say(tmp_path: Path) -> None:
    near = replace(container("u2", "near"), affinity=NodeMask.of(1), affinity_preferred=False)
    anywhere = replace(container("u2", "somewhere"), affinity=NodeMask())
    records = {record.id: record for record in (near, anywhere, container("u2", "unasked"))}
    save(tmp_path, State({"u2": pod("u2", "web-0")}, records), a_node())
    hints = {one["container"]: one["hint"] for one in show_json(tmp_path)["containers"]}
    assert hints == {
        "near": {"numa_nodes": "1", "preferred": False},
        "somewhere": {"numa_nodes": "", "preferred": True},
        "unasked": None,
    }


def test_show_json_lists_promises_that_wait_for_a_container(directory: Path) -> None:
    assert show_json(directory)["waiting"] == [
        {
            "pod_uid": "u1",
            "namespace": "shop",
            "pod": "db-0",
            "container": "next",
            "kind": None,
            "cpus": "8",
            "is_pod_shared": False,
            "mems": "",
        }
    ]


def test_show_does_not_invent_what_the_checkpoint_does_not_know(tmp_path: Path) -> None:
    orphan = State(containers={"id-x": container("gone", "x")})
    save(tmp_path, orphan, None)
    lines = run("show", tmp_path).output.splitlines()
    assert lines[1] == "?/gone  (this pod is not known)"
    assert lines[2].split() == ["x", "shared", "?", "?", "?", "?", "?", "-", "?"]
    report = show_json(tmp_path)
    assert report["node"] is None
    assert report["shared_pool"] is None
    assert (report["containers"][0]["pod"], report["containers"][0]["cpuset"]) == (None, None)


def test_where_only_the_generation_before_is_left_that_is_said(directory: Path) -> None:
    (directory / "state.json").rename(directory / "state.json.previous")
    for verb in ("show", "verify"):
        result = run(verb, directory)
        assert result.exit_code == 2
        assert "only the generation before it; at its next start the agent takes" in result.output


def test_show_of_an_empty_checkpoint_is_a_table_without_rows(tmp_path: Path) -> None:
    save(tmp_path, State(), a_node())
    result = run("show", tmp_path)
    assert result.exit_code == 0
    assert "exclusive    -" in result.output


def test_a_file_or_its_directory_may_be_named_instead_of_the_state_directory(directory: Path) -> None:
    for file in (directory / "state.json", directory):
        result = CliRunner().invoke(command, ["show", "--state", str(file)])
        assert result.exit_code == 0
        assert "db-0" in result.output


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_missing_checkpoint_exits_2_and_says_what_to_do(tmp_path: Path, verb: str) -> None:
    result = run(verb, tmp_path)
    assert result.exit_code == 2
    assert "there is no checkpoint; name the agent's --state-dir" in result.output


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_damaged_checkpoint_exits_1_and_stays_where_it_is(directory: Path, verb: str) -> None:
    (directory / "state.json").write_text("damage")
    before = sorted(directory.iterdir())
    result = run(verb, directory)
    assert result.exit_code == 1
    assert "cannot be used" in result.output
    assert sorted(directory.iterdir()) == before


@pytest.mark.parametrize("args", [["-o", "svg"], ["--colour"]])
def test_wrong_usage_exits_2(directory: Path, args: list[str]) -> None:
    assert run("show", directory, *args).exit_code == 2


def test_verify_of_sound_promises_exits_0_with_the_counts(directory: Path) -> None:
    result = run("verify", directory)
    assert result.exit_code == 0
    unplaced, verdict, next_start, cgroups = result.output.splitlines()
    assert unplaced == "note: shop/web-0/web does not have what it asks for: no 4 CPUs on a NUMA node"
    assert verdict.endswith("state.json: sound; generation 1, 2 pods, 2 containers, 2 allocations")
    assert next_start == "at its next start the agent reads it"
    assert cgroups.startswith("cgroups: not visible, so not compared: ")


def test_verify_is_told_to_look_at_cgroups_or_not_to(directory: Path, tmp_path: Path) -> None:
    assert run("verify", directory, "--no-live").output.endswith("cgroups: not compared\n")
    asked = run("verify", directory, "--live", "--cgroup-root", str(tmp_path / "nowhere"))
    assert asked.exit_code == 2
    assert "nowhere" in asked.output
    of_elsewhere = CliRunner().invoke(command, ["verify", "--state", str(directory / "state.json")])
    assert of_elsewhere.output.endswith("cgroups: not compared\n")


def test_verify_does_not_hold_the_cgroups_against_an_agent_that_only_observes(
    directory: Path, tmp_path: Path
) -> None:
    (directory / "state.json").rename(directory / "observed.json")
    result = run("verify", directory)
    assert "cgroups: not compared: the agent runs with --observe and carries nothing out" in result.output
    assert run("verify", directory, "--live", "--cgroup-root", str(tmp_path / "nowhere")).exit_code == 2


def test_verify_tells_memory_that_is_elsewhere(directory: Path, tmp_path: Path) -> None:
    tree = cgroup_tree(tmp_path / "cgroup", podu1_db="2-3", podu2_web="0-1,4-7,9-15")
    (tree / "kubepods/podu1/db/cpuset.mems.effective").write_text("0-1\n")
    result = run("verify", directory, "--cgroup-root", str(tree))
    assert result.exit_code == 1
    assert result.output.splitlines()[0] == (
        "shop/db-0/db has its memory on NUMA nodes 0-1 and should have it on 0"
    )


FINDINGS = {
    "two promises of one CPU": (
        STATE.with_allocation("u2/web", Allocation(CPUSet.of(3))),
        "CPU 3 is exclusive to both shop/db-0/db and shop/web-0/web",
    ),
    "a reserved CPU": (
        STATE.with_allocation("u2/web", Allocation(CPUSet.of(0))),
        "reserved CPU 0 is exclusive to shop/web-0/web",
    ),
    "a CPU that is not online": (
        STATE.with_allocation("u2/web", Allocation(CPUSet.of(15, 16))),
        "CPUs 16 of shop/web-0/web are not online",
    ),
    "a NUMA node without memory": (
        STATE.with_allocation("u2/web", Allocation(CPUSet.of(15), NodeMask.of(7))),
        "shop/web-0/web is bound to NUMA nodes without memory: 7",
    ),
    "a promise to a pod that is gone": (
        STATE.with_allocation("u9/x", Allocation(CPUSet.of(15))),
        "u9/x has CPUs or memory but its pod is not known",
    ),
}


@pytest.mark.parametrize(("state", "finding"), FINDINGS.values(), ids=FINDINGS)
def test_verify_exits_1_with_one_line_a_finding(tmp_path: Path, state: State, finding: str) -> None:
    save(tmp_path, state, a_node())
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    assert result.output.splitlines()[0].startswith(finding)
    assert "1 finding;" in result.output


def test_verify_finds_contradictions_without_knowing_the_machine(tmp_path: Path) -> None:
    save(tmp_path, STATE, None)
    assert run("verify", tmp_path).exit_code == 0
    save(tmp_path, STATE.with_allocation("u2/web", Allocation(CPUSet.of(3))), None)
    assert run("verify", tmp_path).exit_code == 1


def test_verify_json_lists_the_findings(tmp_path: Path) -> None:
    save(tmp_path, STATE.with_allocation("u2/web", Allocation(CPUSet.of(3))), a_node())
    report = json.loads(run("verify", tmp_path, "-o", "json").output)
    assert report["findings"] == ["CPU 3 is exclusive to both shop/db-0/db and shop/web-0/web"]
    assert report["generation"] == 1


def four_cpus(root: Path) -> None:
    """A machine of four CPUs and one NUMA node, as little as discovery asks for."""
    cpus = root / "sys/devices/system/cpu"
    for cpu in range(4):
        topology = cpus / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{cpu}\n")
        (topology / "physical_package_id").write_text("0\n")
        (topology / "thread_siblings_list").write_text(f"{cpu}\n")
    for name in ("online", "present", "possible"):
        (cpus / name).write_text("0-3\n")


@pytest.mark.parametrize("option", ["--config", "--as-kubelet"])
def test_options_are_judged_on_the_machine_that_is_named(
    directory: Path, tmp_path: Path, option: str, on_machine: list[str]
) -> None:
    wanted = tmp_path / "tomorrow.yaml"
    wanted.write_text('reservedSystemCPUs: "0-1"\ntopologyManagerPolicy: single-numa-node\n')
    sound = run("verify", directory, "--no-live", option, str(wanted), *on_machine)
    assert sound.exit_code == 0, sound.output
    wanted.write_text('reservedSystemCPUs: "2-3"\n')
    found = run("verify", directory, "--no-live", option, str(wanted), *on_machine)
    assert (found.exit_code, "2-3" in found.output) == (1, True)
    wanted.write_text('reservedSystemCPUs: "0,400"\n')
    assert "online are 0-15" in run("verify", directory, "--no-live", option, str(wanted), *on_machine).output


def test_options_are_not_judged_on_another_machine(directory: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "tomorrow.yaml"
    wanted.write_text('reservedSystemCPUs: "0"\n')
    result = run("verify", directory, "--no-live", "--config", str(wanted), "--machine", "laptop")
    assert result.exit_code == 2
    assert "laptop is another machine than the checkpoint is about, which has CPUs 0-15" in result.output


@pytest.mark.parametrize("runtime", [None, Configure("", "containerd", "v2.1.9")])
def test_show_says_when_no_runtime_asks_the_agent(directory: Path, runtime: Configure | None) -> None:
    socket = StatusSocket(directory / SOCKET, lambda: (a_node(), STATE), StatusFeed(), lambda: runtime)
    try:
        text, wide, told = (
            run("show", directory).output,
            run("show", directory, "--wide").output,
            show_json(directory),
        )
    finally:
        socket.close()
    assert [NO_RUNTIME in output for output in (text, wide)] == [runtime is None] * 2
    expected = None if runtime is None else {"name": "containerd", "version": "v2.1.9"}
    assert told["agent"] == {"answers": True, "runtime": expected}
    assert show_json(directory)["agent"] == {"answers": False, "runtime": None}


def test_where_no_runtime_has_told_anything_show_says_so(tmp_path: Path) -> None:
    socket = StatusSocket(tmp_path / SOCKET, lambda: (a_node(), State()), StatusFeed(), lambda: None)
    try:
        result = run("show", tmp_path)
    finally:
        socket.close()
    assert (result.exit_code, f"no checkpoint yet, for {NO_RUNTIME}" in result.output) == (2, True)


def test_verify_judges_by_the_machine_that_is_named(directory: Path, tmp_path: Path) -> None:
    four_cpus(tmp_path / "machine")
    result = run("verify", directory, "--root", str(tmp_path / "machine"))
    assert result.exit_code == 1
    assert result.output.splitlines()[0] == "CPUs 8 of shop/db-0/next are not online"


def test_verify_exits_2_when_the_machine_cannot_be_read(directory: Path, tmp_path: Path) -> None:
    result = run("verify", directory, "--root", str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert "nowhere" in result.output


def cgroup_tree(root: Path, **effective: str) -> Path:
    (root / "cgroup.controllers").parent.mkdir()
    (root / "cgroup.controllers").write_text("cpuset\n")
    for path, cpus in effective.items():
        directory = root / "kubepods" / path.replace("_", "/")
        directory.mkdir(parents=True)
        (directory / "cpuset.cpus.effective").write_text(cpus + "\n")
    return root


def test_verify_compares_with_the_cgroups_when_asked(directory: Path, tmp_path: Path) -> None:
    tree = cgroup_tree(tmp_path / "cgroup", podu1_db="2-3", podu2_web="0-1,4-7,9-15")
    result = run("verify", directory, "--cgroup-root", str(tree))
    assert (result.exit_code, result.output.count("\n")) == (0, 4)
    assert f"cgroups: 2 of running containers compared below {tree}" in result.output


def test_verify_reports_drift_and_missing_cgroups(directory: Path, tmp_path: Path) -> None:
    tree = cgroup_tree(tmp_path / "cgroup", podu1_db="0-3")
    result = run("verify", directory, "--cgroup-root", str(tree))
    assert result.exit_code == 1
    drift, missing = result.output.splitlines()[:2]
    assert drift == "shop/db-0/db runs on CPUs 0-3 and should run on 2-3"
    assert missing.startswith("shop/web-0/web: ")
    assert "no such cgroup" in missing


def test_verify_reports_a_cgroup_that_cannot_be_read(directory: Path, tmp_path: Path) -> None:
    tree = cgroup_tree(tmp_path / "cgroup", podu1_db="2-3", podu2_web="what")
    result = run("verify", directory, "--cgroup-root", str(tree))
    assert result.exit_code == 1
    assert "holds no CPU list" in result.output


def test_verify_takes_a_tree_without_any_of_the_containers_for_another_one(
    directory: Path, tmp_path: Path
) -> None:
    tree = cgroup_tree(tmp_path / "cgroup")
    result = run("verify", directory, "--live", "--cgroup-root", str(tree))
    assert result.exit_code == 2
    assert (
        "none of the 2 running containers has its cgroup here; mount the host's cgroup tree" in result.output
    )


@pytest.mark.parametrize(
    ("cpus", "finding"),
    [
        (
            "0-15",
            "may run on CPUs 0-15, among them exclusive ones: 2-3 of shop/db-0/db, 8 of shop/db-0/next;",
        ),
        ("0-3", "may run on CPUs 0-3, among them exclusive ones: 2-3 of shop/db-0/db;"),
        ("0-1,4-7,9-15", ""),
    ],
)
def test_verify_reports_a_container_that_was_born_without_the_agent_on_exclusive_cpus(
    directory: Path, tmp_path: Path, cpus: str, finding: str
) -> None:
    tree = cgroup_tree(
        tmp_path / "cgroup", podu1_db="2-3", podu2_web="0-1,4-7,9-15", burstable_podu7_5ab3=cpus
    )
    result = run("verify", directory, "--cgroup-root", str(tree))
    assert result.exit_code == (1 if finding else 0)
    found, *_, told = result.output.splitlines()
    if finding:
        assert found.startswith(f"container 5ab3 of pod u7 is not in the checkpoint and {finding}")
    assert told == (
        "cgroups: 2 of running containers compared, 1 that the checkpoint does not know looked at "
        f"below {tree}"
    )


def test_verify_names_the_known_pod_of_an_unknown_container(directory: Path, tmp_path: Path) -> None:
    tree = cgroup_tree(
        tmp_path / "cgroup", podu1_db="2-3", podu2_web="0-1,4-7,9-15", podu2_later="8", podu1_again="2-3"
    )
    result = run("verify", directory, "--cgroup-root", str(tree))
    assert result.output.splitlines()[0].startswith(
        "container later of pod u2 (shop/web-0) is not in the checkpoint and may run on CPUs 8, "
        "among them exclusive ones: 8 of shop/db-0/next; "
    )
    assert "again" not in result.output  # the next instance of db runs on what db holds


def test_verify_knows_sandboxes_and_looks_where_no_container_of_the_checkpoint_runs(tmp_path: Path) -> None:
    known = replace(STATE, containers={})
    save(tmp_path / "state", known, a_node())
    tree = cgroup_tree(tmp_path / "cgroup", **{"podu1_sb-u1": "0-15", "podu9_c": "0-15"})
    result = run("verify", tmp_path / "state", "--cgroup-root", str(tree))
    assert result.exit_code == 1
    assert result.output.startswith("container c of pod u9 is not in the checkpoint")
    assert "sb-u1" not in result.output


def test_verify_of_imported_promises_knows_no_container_yet(tmp_path: Path) -> None:
    save(tmp_path / "state", replace(STATE, pods={}, containers={}), a_node())
    tree = cgroup_tree(tmp_path / "cgroup", podu1_sandbox="0-15")
    assert run("verify", tmp_path / "state", "--cgroup-root", str(tree)).exit_code == 0


def test_verify_reports_an_unknown_container_whose_cpus_cannot_be_read(
    directory: Path, tmp_path: Path
) -> None:
    tree = cgroup_tree(tmp_path / "cgroup", podu1_db="2-3", podu2_web="0-1,4-7,9-15", podu7_c="what")
    result = run("verify", directory, "--cgroup-root", str(tree))
    assert result.exit_code == 1
    assert "podu7/c: holds no CPU list" in result.output


def test_verify_names_some_of_many_holders(tmp_path: Path) -> None:
    many = {f"u1/c{number}": Allocation(CPUSet.of(number)) for number in range(2, 9)}
    save(tmp_path / "state", replace(STATE, containers={}, allocations=many), a_node())
    tree = cgroup_tree(tmp_path / "cgroup", podu9_c="0-15")
    assert (
        "5 of shop/db-0/c5 and 3 more;"
        in run("verify", tmp_path / "state", "--cgroup-root", str(tree)).output
    )


def test_verify_looks_only_at_running_containers(tmp_path: Path) -> None:
    created = State(
        pods={"u1": pod("u1", "db-0")}, containers={"id-db": container("u1", "db", Phase.CREATED)}
    )
    save(tmp_path / "state", created, a_node())
    tree = cgroup_tree(tmp_path / "cgroup")
    assert run("verify", tmp_path / "state", "--cgroup-root", str(tree)).exit_code == 0


def test_what_cannot_be_read_ends_in_what_to_do(directory: Path) -> None:
    file = directory / "state.json"
    whole = file.read_text()
    file.write_text(whole.replace('"version":4', '"version":99', 1))
    other = run("show", directory).output
    assert "version 99" in other
    assert other.rstrip().endswith("; show it with the nri-pin that wrote it")
    file.write_text(whole[:-20])
    assert "nothing has to be deleted: a running agent writes a new one" in run("verify", directory).output
    file.unlink()
    file.symlink_to("elsewhere")
    assert "name the agent's --state-dir" in run("verify", directory).output


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def damage_record(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"cpus":"8-9"', b'"cpus":"8-7"'))


def damage_document(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"db-0", b"db-1"))


def without_former(path: Path) -> None:
    damage_document(path)
    path.with_name("state.json.previous").unlink()


NEXT_STARTS: dict[str, tuple[Callable[[Path], object], str, Origin]] = {
    "whole": (lambda path: path, "reads it", Origin.CURRENT),
    "cut": (cut, "reads it, without the unfinished record at its end", Origin.CURRENT),
    "a damaged record": (
        damage_record,
        "keeps it as state.json.damaged-N and goes on with the records before the damage, up to generation 3",
        Origin.BEGINNING,
    ),
    "a damaged document": (
        damage_document,
        "keeps it as state.json.damaged-N and takes the generation before it, 1, and what the running containers have",
        Origin.PREVIOUS,
    ),
    "gone": (
        Path.unlink,
        "takes the generation before it, 1, and what the running containers have",
        Origin.PREVIOUS,
    ),
    "a damaged document, and nothing before it": (
        without_former,
        "keeps it as state.json.damaged-N and rebuilds the state from the running containers",
        Origin.NONE,
    ),
}


@pytest.mark.parametrize(("damage", "text", "origin"), NEXT_STARTS.values(), ids=NEXT_STARTS)
def test_verify_says_what_the_agent_does_at_its_next_start(
    directory: Path, damage: Callable[[Path], object], text: str, origin: Origin
) -> None:
    file = CheckpointFile(str(directory), a_node(), durable=False)
    file.load()
    file.append(STATE.without_allocation("u1/next"))
    file.append(STATE)
    file.append(STATE.with_allocation("u1/next", Allocation(CPUSet.of(8, 9))))
    damage(directory / "state.json")
    (line,) = [
        one for one in run("verify", directory, "--no-live").output.splitlines() if "next start" in one
    ]
    assert line.endswith(f"at its next start the agent {text}")
    assert CheckpointFile(str(directory)).load().origin is origin


def test_verify_finds_more_memory_allocated_than_the_node_has(tmp_path: Path) -> None:
    block = MemoryBlock(NodeMask.of(0), "memory", 1 << 50)
    held = replace(STATE.allocations["u1/db"], mems=NodeMask.of(0), memory=(block,))
    static = a_node(memory_manager_policy=MemoryManagerPolicy.STATIC)
    save(tmp_path / "state", replace(STATE, allocations={"u1/db": held}), static)
    result = run("verify", tmp_path / "state", "--no-live")
    assert result.exit_code == 1
    assert f"NUMA nodes 0: {1 << 50} bytes of memory are allocated and " in result.output
    assert "restart some of shop/db-0/db" in result.output
