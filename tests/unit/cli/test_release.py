"""The command that gives all CPUs back: what it says, what it refuses, how it ends."""

import fcntl
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_plugin.agent.serving.serving_lease import lock_state_dir
from nri_plugin.checkpoint.file import CheckpointFile
from nri_plugin.cli.release import command
from nri_plugin.model.options import Node, Options
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import machine

OWN = "kubepods/podg/own"
STATE = State(
    {"g": PodRecord("g", "sg", cgroup_parent="/kubepods/podg")},
    {
        "own": ContainerRecord("own", "g", "own", Phase.RUNNING, CgroupRef("/kubepods/podg", f"/{OWN}")),
        "new": ContainerRecord("new", "g", "new", Phase.CREATED, CgroupRef("/kubepods/podg", "/kubepods/podg/new")),
    },
    {"g/own": Allocation(CPUSet.of(1))},
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A state directory, a cgroup tree and a machine."""
    (tmp_path / "run").mkdir(mode=0o700)
    CheckpointFile(str(tmp_path / "run"), Node(machine(), Options(), CPUSet.of(0))).save(STATE)
    (tmp_path / "cg" / OWN).mkdir(parents=True)
    (tmp_path / "cg/cgroup.controllers").write_text("cpuset\n")
    (tmp_path / "cg" / OWN / "cpuset.cpus").write_text("1")
    (tmp_path / "cg" / OWN / "cpuset.cpus.effective").write_text("0-1\n")
    for cpu in (0, 1):
        (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology").mkdir(parents=True)
    for name in ("online", "present", "possible"):
        (tmp_path / "sys/devices/system/cpu" / name).write_text("0-1\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1024 kB\n")
    return tmp_path


def run(place: Path, *more: str) -> Result:
    options = ["--state-dir", f"{place}/run", "--cgroup-root", f"{place}/cg", "--root", str(place)]
    return CliRunner().invoke(command, [*options, *more])


def test_all_cpus_are_given_back_and_said(place: Path) -> None:
    result = run(place)
    assert result.exit_code == 0, result.output
    assert (place / "cg" / OWN / "cpuset.cpus").read_text() == "0-1"
    assert result.output.splitlines() == [
        "1 cgroups were given CPUs 0-1, 0 had them, 1 are gone",
        "1 containers are not started yet and will start on the CPUs of their creation",
    ]


def test_a_tree_that_shows_none_of_the_containers_is_doubted(place: Path) -> None:
    (place / "other").mkdir()
    (place / "other/cgroup.controllers").write_text("cpuset\n")
    result = run(place, "--cgroup-root", f"{place}/other")
    assert result.exit_code == 1
    assert (
        "none of the 1 running containers has its cgroup here; where they still run, mount" in result.output
    )
    assert (place / "cg" / OWN / "cpuset.cpus").read_text() == "1"


def test_answer_for_programs(place: Path) -> None:
    assert json.loads(run(place, "-o", "json").output) == {
        "cpus": "0-1",
        "widened": [f"/{OWN}"],
        "already": [],
        "gone": ["/kubepods/podg/new"],
        "limited": [],
        "not_started": ["new"],
        "failures": [],
        "interrupt_settings": 0,
    }


def test_running_agent_keeps_it_from_being_done(place: Path) -> None:
    lock = lock_state_dir(f"{place}/run")
    result = run(place)
    assert result.exit_code == 2
    assert "another agent" in result.output
    assert "it would pin the containers again; stop it first, or give --force" in result.output
    assert (place / "cg" / OWN / "cpuset.cpus").read_text() == "1"
    assert run(place, "--force").exit_code == 0
    assert (place / "cg" / OWN / "cpuset.cpus").read_text() == "0-1"
    os.close(lock)


def test_lock_is_given_back(place: Path) -> None:
    run(place)
    descriptor = os.open(place / "run/lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_checkpoint_stays(place: Path) -> None:
    before = (place / "run/state.json").read_bytes()
    run(place)
    assert (place / "run/state.json").read_bytes() == before


def test_without_a_checkpoint_nothing_was_pinned(place: Path) -> None:
    (place / "run/state.json").unlink()
    result = run(place)
    assert result.exit_code == 2
    assert "there is no checkpoint, so nothing was pinned" in result.output


def test_what_could_not_be_given_back_is_said(place: Path) -> None:
    (place / "cg" / OWN / "cpuset.cpus.effective").write_text("1\n")
    result = run(place)
    assert result.exit_code == 1
    assert (
        result.output.splitlines()[0]
        == f"/{OWN} still runs on 1, not on 0-1: a cgroup above it has fewer CPUs"
    )


def test_place_without_cgroups_is_named(place: Path) -> None:
    (place / "cg/cgroup.controllers").unlink()
    assert run(place).exit_code == 2
