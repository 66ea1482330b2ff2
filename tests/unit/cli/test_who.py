"""`nri-pin who`: who holds a part of the machine, and who shares it with a container."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.who import command
from nri_plugin.model.state import State
from nri_plugin.simulator.machine.source import machine_from
from nri_plugin.simulator.simulate.config import choose
from nri_plugin.simulator.simulate.plan import read_short
from nri_plugin.simulator.simulate.simulate import play

MACHINE = "pack:2 numa:1(memory=8GiB) l3:2 core:2 pu:2(indexes=core)"
PODS = """\
- {pod: db, cpu: 2, memory: 2Gi}
- {pod: odd, cpu: 1, memory: 1Gi}
- {pod: web, requests: {cpu: 250m}}
- {pod: app, requests: {cpu: 250m}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a machine and the checkpoint of a node with that machine."""
    machine = machine_from(MACHINE.encode(), "x", "x")
    sets = {
        "reservedSystemCPUs": "0,8",
        "topologyManagerPolicy": "best-effort",
        "memoryManagerPolicy": "Static",
    }
    chosen = choose(machine.topology, sets=sets)
    node = play(machine, read_short(PODS, "pods.yaml"), chosen).node
    file = CheckpointFile(str(tmp_path / "state"), chosen.node)
    file.save(node.state)
    (tmp_path / "machine.txt").write_text(MACHINE)
    return tmp_path


def run(place: Path, *words: str) -> Result:
    more = ["--state", str(place / "state"), "--machine", str(place / "machine.txt")]
    return CliRunner().invoke(command, [*words, *more], env={"COLUMNS": "150"})


def lines(place: Path, *words: str) -> list[str]:
    result = run(place, *words)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def test_container_is_shown_with_all_that_share_its_parts(place: Path) -> None:
    assert lines(place, "default/db/db") == [
        "default/db/db, exclusive, CPUs 1,9",
        "",
        "PART CPUS WHO ITS CPUS MEMORY",
        "core 1 1,9 itself 1,9",
        "L3 0 0-1,8-9 itself 1,9",
        "shared pool, 2 containers 0,8",
        "reserved 0,8",
        "NUMA node 0 0-3,8-11 itself 1,9 2Gi",
        "default/odd/odd 2 1Gi",
        "shared pool, 2 containers 0,3,8,10-11",
        "reserved 0,8",
        "available 3,10-11",
        "socket 0 0-3,8-11 itself 1,9",
        "default/odd/odd 2",
        "shared pool, 2 containers 0,3,8,10-11",
        "reserved 0,8",
        "available 3,10-11",
        "memory of NUMA node 0 - itself - 2Gi",
        "default/odd/odd - 1Gi",
    ]


def test_cpu_is_shown_with_its_parts(place: Path) -> None:
    found = lines(place, "10")
    assert found[0] == "CPU 10"
    assert found[found.index("core 2 2,10 default/odd/odd 2") + 1] == "shared pool, 2 containers 10"


@pytest.mark.parametrize(
    ("part", "number", "told"),
    [
        ("core", "1", "core 1 1,9 default/db/db 1,9"),
        ("cache", "3", "L3 3 6-7,14-15 shared pool, 2 containers 6-7,14-15"),
        ("numa", "1", "NUMA node 1 4-7,12-15 shared pool, 2 containers 4-7,12-15"),
        ("socket", "1", "socket 1 4-7,12-15 shared pool, 2 containers 4-7,12-15"),
    ],
)
def test_part_is_shown_with_its_holders(place: Path, part: str, number: str, told: str) -> None:
    assert told in lines(place, part, number)


def test_pool_without_containers_is_told_so(place: Path) -> None:
    CheckpointFile(str(place / "state")).save(State())
    assert "shared pool, no container" in " ".join(lines(place, "core", "1"))


def test_container_of_the_shared_pool_holds_nothing(place: Path) -> None:
    assert lines(place, "web/web")[-1].startswith("it has no CPUs or memory of its own")


def test_answer_for_programs(place: Path) -> None:
    found = json.loads(run(place, "db", "-o", "json").output)
    core, cache, *_ = found["parts"]
    assert (found["cpus"], core["part"], core["holders"][0]["is_asked"]) == ("1,9", "core", True)
    assert cache["sharing"] == ["default/app/app", "default/web/web"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("nobody",), 1, "no container is called nobody; nri-pin state show lists them"),
        (
            ("cache",),
            1,
            "no container is called cache; nri-pin state show lists them; a cache needs its number: cache 0",
        ),
        (("99",), 2, "CPU 99 is not online; online are 0-15"),
        (("cache", "9"), 2, "there is no cache 9; there are 0-3"),
        (("numa", "x"), 2, "there is no numa x; there are 0-1"),
        (("one", "two", "three"), 2, "expected a container, a CPU, or one of core, cache, numa, socket"),
        (("", "two"), 2, "expected a container"),
    ],
)
def test_wrong_words_are_refused(place: Path, words: tuple[str, ...], code: int, told: str) -> None:
    result = run(place, *words)
    assert (result.exit_code, told in result.output) == (code, True), result.output


def test_machine_without_known_caches_shows_numa_nodes(place: Path) -> None:
    result = CliRunner().invoke(
        command, ["default/db/db", "--state", str(place / "state")], env={"COLUMNS": "150"}
    )
    assert "NUMA node 0" in result.output
    assert "L3" not in result.output
    refused = CliRunner().invoke(command, ["cache", "0", "--state", str(place / "state")])
    assert refused.exit_code == 2
    assert "are not known" in refused.output
