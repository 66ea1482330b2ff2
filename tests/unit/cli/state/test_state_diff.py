"""`nri-pin state diff`: who gained, lost or moved."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.state.state import command
from nri_plugin.model.records import (
    Allocation,
    CgroupRef,
    ContainerRecord,
    Phase,
    PodFacts,
    PodRecord,
    QOSClass,
)
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import State
from tests.builders import node as a_node

POD = PodRecord("u1", "sb", "db-0", "shop", QOSClass.GUARANTEED, "/kubepods/podu1")
RECORD = ContainerRecord(
    "id-db", "u1", "db", Phase.RUNNING, CgroupRef("/kubepods/podu1", "/kubepods/podu1/db")
)
HELD = Allocation(CPUSet.of(2, 3), NodeMask.of(0), cpu_milli=2000)
STATE = State({"u1": POD}, {"id-db": RECORD}, {"u1/db": HELD})


def diff(*args: str | Path) -> Result:
    return CliRunner().invoke(command, ["diff", *map(str, args)])


def saved(folder: Path, state: State, **facts: str) -> Path:
    CheckpointFile(str(folder), a_node(**facts), durable=False).save(state)
    return folder


def held(cpus: str, **more: object) -> State:
    return STATE.with_allocation("u1/db", replace(HELD, cpus=CPUSet.parse(cpus), **more))  # type: ignore[arg-type]


CASES: dict[str, tuple[State, State, str]] = {
    "a pod with CPUs of its own": (
        STATE,
        STATE.with_allocation("u1/", Allocation(CPUSet.parse("2-7"))),
        "gained   shop/db-0: CPUs 2-7",
    ),
    "CPUs that its pod shares": (
        STATE.without_allocation("u1/db"),
        held("2-3", is_pod_shared=True),
        "gained   shop/db-0/db: CPUs 2-3; mems - -> 0; is_pod_shared no -> yes",
    ),
    "facts of its pod": (
        STATE,
        STATE.with_pod(replace(POD, facts=PodFacts("u1", QOSClass.GUARANTEED))),
        "changed  shop/db-0: facts - -> of 0 containers",
    ),
    "more CPUs": (STATE, held("2-5"), "grew     shop/db-0/db: CPUs 2-3 -> 2-5 (+4-5)"),
    "fewer CPUs": (STATE, held("3"), "shrank   shop/db-0/db: CPUs 2-3 -> 3 (-2)"),
    "other CPUs": (STATE, held("3-4"), "moved    shop/db-0/db: CPUs 2-3 -> 3-4 (+4, -2)"),
    "its first CPUs": (
        STATE.without_allocation("u1/db"),
        STATE,
        "gained   shop/db-0/db: CPUs 2-3; mems - -> 0",
    ),
    "its last CPUs": (STATE, STATE.without_allocation("u1/db"), "lost     shop/db-0/db: CPUs 2-3"),
    "a pod that came": (
        State(),
        STATE,
        "gained   shop/db-0/db: CPUs 2-3; mems - -> 0",
    ),
    "a pod that ended": (STATE, State(), "lost     shop/db-0/db: CPUs 2-3; its container is gone"),
    "a container in the shared pool that ended": (
        STATE.without_allocation("u1/db"),
        State({"u1": POD}),
        "gone     shop/db-0/db",
    ),
    "a pod without containers": (State(), State({"u1": POD}), "new      shop/db-0"),
    "a phase": (
        STATE,
        STATE.with_container(replace(RECORD, phase=Phase.STOPPED)),
        "changed  shop/db-0/db: phase running -> stopped",
    ),
    "memory": (STATE, held("2-3", mems=NodeMask.of(1)), "changed  shop/db-0/db: mems 0 -> 1"),
    "a pod's field": (
        STATE,
        replace(STATE, pods={"u1": replace(POD, run_seen=True)}),
        "changed  shop/db-0: run_seen no -> yes",
    ),
    "a restarted container": (
        STATE,
        STATE.without_container("id-db").with_container(replace(RECORD, id="id-new")),
        "changed  shop/db-0/db: id id-db -> id-new",
    ),
}


@pytest.mark.parametrize(("before", "after", "line"), CASES.values(), ids=CASES)
def test_one_line_tells_what_happened(tmp_path: Path, before: State, after: State, line: str) -> None:
    result = diff(saved(tmp_path / "a", before), saved(tmp_path / "b", after))
    assert result.exit_code == 1
    assert result.output.splitlines()[2:] == [line]


def test_nothing_is_said_where_nothing_is_different(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", STATE), saved(saved(tmp_path / "b", State()), STATE)
    result = diff(a, b)
    assert (result.exit_code, result.output) == (0, "")
    assert json.loads(diff(a, b, "-o", "json").output)["equal"] is True


def test_another_reservation_is_a_difference(tmp_path: Path) -> None:
    result = diff(saved(tmp_path / "a", STATE), saved(tmp_path / "b", STATE, reserved="0"))
    assert result.output.splitlines()[2:] == ["changed  machine: reserved 0-1 -> 0"]


def test_a_file_is_compared_with_the_checkpoint_where_no_agent_answers(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", STATE), saved(tmp_path / "b", held("2-5"))
    result = diff(a / "state.json", "--state-dir", b)
    assert result.exit_code == 1
    assert f"+++ {b}/state.json, generation 1 (no agent answers at {b}/agent.sock)" in " ".join(
        result.output.split()
    )


def test_json_names_cpus_before_and_after(tmp_path: Path) -> None:
    result = diff(saved(tmp_path / "a", STATE), saved(tmp_path / "b", held("3-4")), "-o", "json")
    (change,) = json.loads(result.output)["changes"]
    assert change["what"] == "moved"
    assert change["cpus"] == {"before": "2-3", "after": "3-4", "gained": "4", "lost": "2"}


def cgroup(root: Path, cpus: str, mems: str = "0") -> Path:
    folder = root / "kubepods/podu1/db"
    folder.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset\n")
    (folder / "cpuset.cpus").write_text(f"{cpus}\n")
    (folder / "cpuset.mems").write_text(f"{mems}\n")
    return root


def test_live_compares_promises_with_cgroups(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", STATE)
    same = diff("--live", "--state-dir", a, "--cgroup-root", cgroup(tmp_path / "same", "2-3"))
    assert (same.exit_code, same.output) == (0, "")
    other = diff("--live", a, "--cgroup-root", cgroup(tmp_path / "other", "2-7", "0-1"))
    assert other.exit_code == 1
    assert other.output.splitlines()[2:] == ["grew     shop/db-0/db: CPUs 2-3 -> 2-7 (+4-7); mems 0 -> 0-1"]


TROUBLE: dict[str, tuple[list[str], str]] = {
    "nothing named": ([], "name two checkpoints"),
    "three files": (["a", "b", "c"], "3 files are named"),
    "two files and the cgroups": (["a", "b", "--live"], "at most one file"),
    "a file that is not there": (["nowhere", "nowhere"], "there is no checkpoint"),
    "a cgroup tree without --live": (["a", "--cgroup-root", "/"], "goes with --live"),
}


@pytest.mark.parametrize(("args", "text"), TROUBLE.values(), ids=TROUBLE)
def test_trouble_exits_2(tmp_path: Path, args: list[str], text: str) -> None:
    result = diff(*args, "--state-dir", tmp_path)
    assert result.exit_code == 2
    assert text in result.output


def test_a_damaged_file_is_trouble(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", STATE)
    (tmp_path / "b").write_text("damage")
    assert diff(a, tmp_path / "b").exit_code == 2


def test_cgroups_that_are_not_visible_are_trouble(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/cgroup.controllers").write_text("cpuset\n")
    result = diff("--live", saved(tmp_path / "a", STATE), "--cgroup-root", tmp_path / "tree")
    assert result.exit_code == 2
    assert "mount the host's cgroup tree" in result.output


def test_as_a_process(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a", STATE), saved(tmp_path / "b", held("2-5"))
    words = [sys.executable, "-m", "nri_plugin", "state", "diff", str(a), str(b)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"}
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "grew     shop/db-0/db" in done.stdout
