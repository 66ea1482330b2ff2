"""`nri-pin topology` from the command line to what it prints."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.topology.topology import command
from nri_plugin.host.sysfs import discover
from nri_plugin.model.errors import CheckpointError, ConfigError, HostError
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.machine import build_sysfs, build_topology, load, parse
from nri_plugin.simulator.machine.source import read_machine
from tests.conftest import HERE


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(command, args)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_sysfs(
        parse("topology: pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:2(indexes=core)\noffline: 7"),
        str(tmp_path),
    )
    return tmp_path


def test_a_root_is_shown_with_its_distances(root: Path) -> None:
    lines = run("--root", str(root)).output.splitlines()
    assert lines[0] == "2 sockets, 2 NUMA nodes, 2 uncore caches, 4 cores, 7 CPUs (SMT 1/2), 2Gi memory"
    assert lines[1] == "socket 0"
    assert lines[-4:] == ["offline 7", "distance  0  1", "NUMA 0   10 21", "NUMA 1   21 10"]


def test_json_has_the_facts(root: Path) -> None:
    facts = json.loads(run("--root", str(root), "-o", "json").output)
    assert facts["cores"] == ["0,4", "1,5", "2,6", "3"]
    assert facts["nodes"]["1"]["mem_total_kb"] == 1 << 20
    assert (facts["cpus_online"], facts["cpus_offline"], facts["num_l3"]) == ("0-6", "7", 2)


def test_a_described_machine_has_the_facts_of_its_tree(tmp_path: Path) -> None:
    build_sysfs(load("laptop"), str(tmp_path))
    assert (
        run("--machine", "laptop", "-o", "json").output == run("--root", str(tmp_path), "-o", "json").output
    )


def test_a_description_in_a_file_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("pack:1 numa:1 l3:1 core:1 pu:1")
    assert run("--machine", str(file)).output.startswith(
        "1 socket, 1 NUMA node, 1 uncore cache, 1 core, 1 CPU (SMT 1)"
    )


def test_devices_of_a_described_machine_are_counted_by_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(
        'topology: pack:2 numa:1 l3:1 core:1 pu:1\ndevices:\n  - {resource: a/b, count: 1, nodes: 0}\n  - {resource: a/b, count: 2, nodes: 1}\n  - {resource: a/b, count: 1}\n  - {resource: c/d, count: 1, nodes: "0,1"}'
    )
    lines = run("--machine", str(file)).output.splitlines()
    assert lines[-2:] == ["a/b: 1 on NUMA 0, 2 on NUMA 1, 1 on no NUMA node", "c/d: 1 on NUMA 0-1"]


def test_this_machine_is_shown_without_options() -> None:
    assert "(SMT " in run().output.splitlines()[0]


def test_the_list_names_every_shipped_machine_in_80_columns() -> None:
    lines = run("--list").output.splitlines()
    assert {"demo", "laptop", "kep3545-8-numa", "gb200-34-numa"} <= {line.split(" ")[0] for line in lines}
    assert max(map(len, lines)) <= 80
    assert (
        json.loads(run("--list", "-o", "json").output)["laptop"]
        == "A laptop: four cores, two threads each, one L3"
    )


@pytest.mark.parametrize("args", [("--list", "--root", "/"), ("--root", "/", "--machine", "demo")])
def test_options_that_exclude_each_other_are_refused(args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert "MACHINE, --machine, --root and --list exclude each other; give one" in result.output


def test_errors_are_those_of_the_project(tmp_path: Path) -> None:
    assert isinstance(run("--root", str(tmp_path)).exception, HostError)
    assert isinstance(run("--root", str(tmp_path / "no-such")).exception, ConfigError)
    assert isinstance(run("--machine", "no-such").exception, ConfigError)
    (tmp_path / "bad.txt").write_text("two cores")
    assert isinstance(run("--machine", str(tmp_path / "bad.txt")).exception, ConfigError)


MACHINE = "topology: pack:2 numa:1(memory=1GiB) l3:1 core:2 pu:2(indexes=core)\nisolated: 3"
PODS = {uid: PodRecord(uid, f"sb-{uid}", name, "shop") for uid, name in (("u1", "db"), ("u2", "web"))}
STATE = State(
    pods=PODS,
    containers={
        key: ContainerRecord(key, uid, name, Phase.RUNNING, CgroupRef("/x"))
        for key, uid, name in (("c1", "u1", "pg"), ("c2", "u2", "nginx"))
    },
    allocations={
        "u1/pg": Allocation(CPUSet.parse("2,6"), NodeMask.of(1)),
        "gone/x": Allocation(CPUSet.parse("5")),
    },
)


def checkpoint(folder: Path, machine: str = MACHINE, state: State = STATE) -> str:
    node = Node(build_topology(parse(machine)), Options(), CPUSet.of(0))
    CheckpointFile(str(folder), node, durable=False).save(state)
    return str(folder)


@pytest.fixture
def placed(tmp_path: Path) -> list[str]:
    """Arguments for a machine and who runs on it."""
    (tmp_path / "m.txt").write_text(MACHINE)
    return [str(tmp_path / "m.txt"), "--state", checkpoint(tmp_path / "state")]


def test_containers_of_a_checkpoint_have_letters_and_the_legend_names_them(placed: list[str]) -> None:
    lines = run(*placed).output.splitlines()
    assert {"    L3 0: =· ·A", "    L3 1: BB :·"} <= set(lines)
    legend = lines[lines.index("A gone/x: 5 (1 cpu), NUMA 0, memory anywhere") :]
    assert legend[1:5] == [
        "B shop/db/pg: 2,6 (2 cpus), NUMA 1, memory 1",
        "· shared pool: 0-1,4,7 (4 cpus): shop/web/nginx",
        ": isolated by the kernel: 3 (1 cpu)",
        "= reserved, in the shared pool: 0 (1 cpu)",
    ]
    assert " ".join(lines[-2:]).endswith("state.json, generation 1")


def test_a_dump_carries_the_containers_and_is_read_back_as_it_was(placed: list[str], tmp_path: Path) -> None:
    printed = run(*placed, "-o", "json").output
    dump = tmp_path / "node.json"
    dump.write_text(printed)
    assert run(str(dump), "-o", "json").output == printed
    assert run(str(dump)).output == run(*placed).output
    assert json.loads(printed)["placements"]["containers"][1] == {
        "namespace": "shop",
        "pod": "db",
        "container": "pg",
        "cpus": "2,6",
        "mems": "1",
        "kind": "container",
    }


def test_placements_that_are_no_such_are_refused_in_one_line(placed: list[str], tmp_path: Path) -> None:
    facts = json.loads(run(*placed, "-o", "json").output)
    facts["placements"] = {"containers": "none"}
    (tmp_path / "d.json").write_text(json.dumps(facts))
    error = run(str(tmp_path / "d.json")).exception
    assert isinstance(error, ConfigError)
    assert "'placements' are not what" in str(error)


def test_a_checkpoint_of_another_machine_is_refused_with_both(placed: list[str]) -> None:
    error = run("laptop", *placed[1:]).exception
    assert isinstance(error, ConfigError)
    assert "with CPUs 0-7 on NUMA nodes 0-1; this one has CPUs 0-7 on NUMA nodes 0; name its own" in str(
        error
    )


def test_a_checkpoint_that_is_asked_for_must_be_there_and_sound(tmp_path: Path) -> None:
    assert isinstance(run("demo", "--state", str(tmp_path / "none")).exception, ConfigError)
    (tmp_path / "bad").write_text("{}")
    error = run("demo", "--state", str(tmp_path / "bad")).exception
    assert isinstance(error, CheckpointError)
    assert str(error).endswith("; see nri-pin state verify")


def test_a_live_node_without_a_checkpoint_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("nri_plugin.cli.topology.topology.DEFAULT_DIR", str(tmp_path))
    said = " ".join(run().output.split())
    assert said.endswith(
        f"no containers are shown: there is no {tmp_path}/state.json; --state FILE names another checkpoint"
    )
    (tmp_path / "state.json").write_text("{}")
    assert "no containers are shown: " in " ".join(run().output.split())


def test_a_live_node_with_a_checkpoint_shows_its_containers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nri_plugin.cli.topology.topology.DEFAULT_DIR", str(tmp_path))
    here = replace(STATE, allocations={"u1/pg": Allocation(CPUSet.of(0))})
    checkpoint(tmp_path, "pack:1 numa:1 l3:1 core:1 pu:1", here)
    assert "A shop/db/pg: 0 (1 cpu)" in run().output


def test_a_list_is_no_picture() -> None:
    assert "--list prints names" in run("--list", "-o", "json", "--state", "x").output


def test_cpus_that_lstopo_did_not_see_are_said_to_be_doubtful() -> None:
    said = " ".join(run(str(HERE / "machines" / "lstopo" / "wide-l3.xml.gz")).output.split())
    assert said.endswith(
        "CPUs 3,12 are offline, or lstopo was kept from them: 'lstopo --disallowed' shows those"
    )


def test_the_picture_is_a_format(placed: list[str]) -> None:
    picture = run(*placed, "-o", "svg").output
    assert picture.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "shop/db/pg" in picture


def test_what_this_machine_prints_is_read_back_as_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("nri_plugin.cli.topology.topology.DEFAULT_DIR", str(tmp_path))
    (tmp_path / "node.json").write_text(run("-o", "json").output)
    assert read_machine(str(tmp_path / "node.json")).topology == discover()


def test_of_very_many_in_the_shared_pool_the_first_are_named(tmp_path: Path) -> None:
    containers = {
        f"c{number}": ContainerRecord(f"c{number}", "u1", f"n{number:02}", Phase.RUNNING, CgroupRef("/x"))
        for number in range(30)
    }
    folder = checkpoint(tmp_path / "s", "pack:1 numa:1 l3:1 core:1 pu:1", State(PODS, containers))
    (tmp_path / "m").write_text("pack:1 numa:1 l3:1 core:1 pu:1")
    said = " ".join(run(str(tmp_path / "m"), "--state", folder).output.split())
    assert "shop/db/n19, and 10 more" in said
    assert (
        len(
            json.loads(run(str(tmp_path / "m"), "--state", folder, "-o", "json").output)["placements"][
                "containers"
            ]
        )
        == 30
    )
