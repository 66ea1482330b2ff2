"""The CPUs of pods as wholes in pictures: each CPU has one owner, and who shares is named."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.topology.machine_view import CPUOwner, owners_of, read_placements
from nri_plugin.cli.topology.topology import command
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import node as a_node

ON = a_node()


def record(name: str, phase: Phase = Phase.RUNNING) -> ContainerRecord:
    return ContainerRecord(f"id-{name}", "u", name, phase, CgroupRef(""))


def part(text: str, *, is_init: bool = False, is_pod_shared: bool = False) -> Allocation:
    return Allocation(CPUSet.parse(text), is_init=is_init, is_pod_shared=is_pod_shared)


def saved(folder: Path, held: dict[str, Allocation], *records: ContainerRecord) -> str:
    pods = {"u": PodRecord("u", "sb", "db", "shop")}
    state = State(pods, {one.id: one for one in records}, {f"u/{name}": one for name, one in held.items()})
    CheckpointFile(str(folder), ON, durable=False).save(state)
    return str(folder)


def owners(path: str) -> dict[str, CPUOwner]:
    placements, _ = read_placements(path, ON.topology, is_asked_for=True)
    assert placements is not None
    return {owner.label: owner for owner in owners_of(placements, ON.topology)}


BLOCK = {
    "": part("2-7"),
    "db": part("2-4"),
    "log": part("5-7", is_pod_shared=True),
    "mesh": part("5-7", is_pod_shared=True),
}


def test_slices_have_letters_and_the_rest_is_the_pods(tmp_path: Path) -> None:
    found = owners(saved(tmp_path, BLOCK, record("db"), record("log")))
    assert [(label, str(one.cpus)) for label, one in found.items() if one.kind == "exclusive"] == [
        ("shop/db", "5-7"),
        ("shop/db/db", "2-4"),
    ]
    assert found["shop/db"].details == (
        "5-7 (3 cpus), pod shared pool, of the pod's CPUs 2-7, NUMA 0, memory anywhere: log, mesh"
    )
    assert "slice of its pod" in found["shop/db/db"].details
    assert found["shared pool"].members == ()


def test_a_rest_that_no_container_runs_on_stays_with_the_pod(tmp_path: Path) -> None:
    found = owners(saved(tmp_path, {"": part("2-7"), "db": part("2-4")}, record("db")))
    assert "no container of it runs here" in found["shop/db"].details
    assert "shop/db" not in owners(saved(tmp_path, {"": part("2-7"), "db": part("2-7")}, record("db")))


@pytest.mark.parametrize(
    ("app", "setup", "names"),
    [
        ((record("db"),), Phase.STOPPED, ["shop/db/db"]),
        ((), Phase.RUNNING, ["shop/db/db", "shop/db/setup"]),
    ],
)
def test_an_ended_init_container_owns_nothing_that_a_later_one_holds(
    tmp_path: Path, app: tuple[ContainerRecord, ...], setup: Phase, names: list[str]
) -> None:
    held = {"setup": part("2-3", is_init=True), "db": part("2-3")}
    found = owners(saved(tmp_path, held, record("setup", setup), *app))
    assert [label for label, one in found.items() if one.kind == "exclusive"] == names
    assert all("later containers" in found[name].details for name in names if name.endswith("setup"))


def test_what_an_ended_init_container_keeps_alone_is_drawn_as_its_own(tmp_path: Path) -> None:
    held = {"setup": part("2-7", is_init=True), "db": part("2-3")}
    path = saved(tmp_path, held, record("setup", Phase.STOPPED), record("db"))
    setup = owners(path)["shop/db/setup"]
    assert (str(setup.cpus), setup.kind) == ("4-7", "exclusive")
    assert "init, ended, kept until its pod ends" in setup.details
    machine = tmp_path / "machine.yaml"
    machine.write_text("topology: pack:2 numa:1(memory=16GiB) l3:1 core:4 pu:2\n")
    for form in ("text", "svg"):
        words = ["--machine", str(machine), "--state", path, "-o", form]
        drawn = re.sub("<[^>]*>", "", CliRunner().invoke(command, words).output)
        assert "init, ended, kept until its pod ends" in " ".join(drawn.split())


def test_programs_and_the_picture_of_a_browser_have_them(tmp_path: Path) -> None:
    path = saved(tmp_path / "state", BLOCK, record("db"))
    machine = tmp_path / "machine.yaml"
    machine.write_text("topology: pack:2 numa:1(memory=16GiB) l3:1 core:4 pu:2\n")
    words = ["--machine", str(machine), "--state", path]
    told = json.loads(CliRunner().invoke(command, [*words, "-o", "json"]).output)
    kinds = {row["container"]: row["kind"] for row in told["placements"]["containers"]}
    assert kinds == {"": "pod", "db": "slice", "log": "pod-shared", "mesh": "pod-shared"}
    svg = CliRunner().invoke(command, [*words, "-o", "svg"]).output
    assert "pod shared pool, of the pod" in svg
