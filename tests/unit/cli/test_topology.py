"""`nri-pin topology` from the command line to what it prints."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_plugin.cli.topology import command, distance_table, summary
from nri_plugin.errors import ConfigError, HostError
from nri_plugin.simulator.machine import build_sysfs, build_topology, load, parse
from nri_plugin.topology import Topology


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(command, args)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build_sysfs(parse("2 sockets, 2 cores, SMT 2, memory 1Gi, offline 7"), str(tmp_path))
    return tmp_path


def test_a_root_is_shown_as_boxes_with_its_distances(root: Path) -> None:
    lines = run("--root", str(root)).output.splitlines()
    assert lines[0] == "2 sockets, 2 NUMA nodes, 2 uncore caches, 4 cores, 7 CPUs (SMT 1/2), 2Gi memory"
    assert lines[1].startswith("┌ socket 0 ─")
    assert lines[-4:] == [
        "offline 7",
        "distance     0    1",
        "NUMA 0      10   21",
        "NUMA 1      21   10",
    ]


def test_json_has_the_facts(root: Path) -> None:
    facts = json.loads(run("--root", str(root), "-o", "json").output)
    assert facts["cores"] == ["0,4", "1,5", "2,6", "3"]
    assert facts["nodes"]["1"]["mem_total_kb"] == 1 << 20
    assert (facts["cpus_online"], facts["cpus_offline"], facts["num_l3"]) == ("0-6", "7", 2)


def test_a_described_machine_has_the_facts_of_its_tree(tmp_path: Path) -> None:
    build_sysfs(load("laptop"), str(tmp_path))
    assert (
        run("--machine", "laptop", "--format", "json").output
        == run("--root", str(tmp_path), "-o", "json").output
    )


def test_a_description_in_a_file_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("1 core")
    assert run("--machine", str(file)).output.startswith(
        "1 socket, 1 NUMA node, 1 uncore cache, 1 core, 1 CPU (SMT 1)"
    )


def test_devices_of_a_described_machine_are_counted_by_place(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("2 sockets, 1 core\ndevices a/b 1 on 0 + 2 on 1 + 1\ndevices c/d 1 on 0,1")
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
    assert "--root, --machine and --list exclude each other; give one" in result.output


def test_errors_are_those_of_the_project(tmp_path: Path) -> None:
    assert isinstance(run("--root", str(tmp_path)).exception, HostError)
    assert isinstance(run("--machine", "no-such").exception, HostError)
    (tmp_path / "bad.txt").write_text("two cores")
    assert isinstance(run("--machine", str(tmp_path / "bad.txt")).exception, ConfigError)


def test_a_table_that_is_too_wide_becomes_a_line_per_node() -> None:
    topology = build_topology(parse("4 sockets, 1 core, distances remote 40"))
    assert distance_table(topology, 80).splitlines()[2] == "NUMA 1      40   10   40   40"
    assert distance_table(topology, 28).splitlines()[2:4] == ["NUMA 1 distance 10 to 1, 40", "  to 0,2-3"]


def test_one_node_or_unknown_distances_have_no_table() -> None:
    assert distance_table(build_topology(parse("1 core")), 80) == ""
    assert distance_table(build_topology(parse("2 sockets, 1 core, no distances")), 80) == ""


def test_the_summary_says_when_memory_is_unknown() -> None:
    assert summary(Topology.from_rows([(0, 0, 0, 0, 0)])).endswith("1 CPU (SMT 1), memory unknown")


def test_the_summary_says_when_there_is_no_l3() -> None:
    assert "no L3 cache" in summary(build_topology(parse("1 core, no L3")))
