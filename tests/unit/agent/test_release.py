"""Every container gets all CPUs again, slices first, on ordinary files that stand in for a tree."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_plugin.agent.cpusets import release
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State

ONLINE = CPUSet.parse("0-7")
OWN, SHARED = "kubepods/podg/own", "kubepods/burstable/podb/shared"
STATE = State(
    pods={
        "g": PodRecord("g", "sg", cgroup_parent="/kubepods/podg"),
        "b": PodRecord("b", "sb", cgroup_parent="/kubepods/burstable/podb"),
    },
    containers={
        "own": ContainerRecord("own", "g", "own", Phase.RUNNING, CgroupRef("/kubepods/podg", f"/{OWN}")),
        "shared": ContainerRecord(
            "shared", "b", "shared", Phase.RUNNING, CgroupRef("/kubepods/burstable/podb", f"/{SHARED}")
        ),
    },
    allocations={"g/own": Allocation(CPUSet.parse("4-5"))},
)


def fill(directory: Path, cpus: str, effective: str = "0-7") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpuset.cpus").write_text(cpus)
    (directory / "cpuset.cpus.effective").write_text(effective)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu\n")
    fill(tmp_path / "kubepods", "")
    fill(tmp_path / "kubepods/burstable", "0-3,6-7")
    fill(tmp_path / "kubepods/besteffort", "")
    fill(tmp_path / OWN, "4-5")
    fill(tmp_path / SHARED, "0-3,6-7")
    return tmp_path


def value(top: Path, path: str) -> str:
    return (top / path / "cpuset.cpus").read_text()


def test_slices_and_containers_get_all_cpus(top: Path) -> None:
    found = release(find_cpuset_tree(str(top)), STATE, ONLINE)
    assert found.failures == []
    assert [value(top, path) for path in ("kubepods/burstable", OWN, SHARED)] == ["0-7", "0-7", "0-7"]
    assert found.widened == ["/kubepods/burstable", f"/{OWN}", f"/{SHARED}"]


def test_lifted_quotas_and_the_sandbox_are_given_back(top: Path) -> None:
    limited = replace(STATE.containers["own"], limit_milli=2000)
    guaranteed = replace(
        STATE.pods["g"], qos=QOSClass.GUARANTEED, limit_milli=2500, sandbox_path="/kubepods/podg/sb"
    )
    state = STATE.with_container(limited).with_pod(guaranteed)
    fill(top / "kubepods/podg/sb", "0-3,6-7")
    for path in (OWN, "kubepods/podg"):
        (top / path / "cpu.max").write_text("max 100000\n")
    found = release(find_cpuset_tree(str(top)), state, ONLINE)
    assert (found.failures, found.limited) == ([], [f"/{OWN}", "/kubepods/podg"])
    assert (top / OWN / "cpu.max").read_text() == "200000 100000"
    assert (top / "kubepods/podg/cpu.max").read_text() == "250000 100000"
    assert value(top, "kubepods/podg/sb") == "0-7"


def test_what_never_had_a_set_gets_none(top: Path) -> None:
    release(find_cpuset_tree(str(top)), STATE, ONLINE)
    assert (value(top, "kubepods"), value(top, "kubepods/besteffort")) == ("", "")


def test_a_second_time_changes_nothing(top: Path) -> None:
    cgroups = find_cpuset_tree(str(top))
    release(cgroups, STATE, ONLINE)
    again = release(cgroups, STATE, ONLINE)
    assert (again.widened, len(again.already)) == ([], 3)


def test_container_that_is_gone_is_told_and_no_failure(top: Path) -> None:
    for file in (top / OWN).iterdir():
        file.unlink()
    (top / OWN).rmdir()
    found = release(find_cpuset_tree(str(top)), STATE, ONLINE)
    assert (found.gone, found.failures) == ([f"/{OWN}"], [])


def test_what_somebody_narrowed_above_is_named_and_left(top: Path) -> None:
    fill(top / "kubepods", "0-5")
    fill(top / OWN, "4-5", effective="4-5")
    found = release(find_cpuset_tree(str(top)), STATE, ONLINE)
    assert found.failures == [f"/{OWN} still runs on 4-5, not on 0-7: a cgroup above it has fewer CPUs"]
    assert value(top, "kubepods") == "0-5"


def test_one_that_fails_keeps_no_other_from_being_released(top: Path) -> None:
    (top / OWN / "cpuset.cpus").unlink()
    (top / OWN / "cpuset.cpus").mkdir()
    found = release(find_cpuset_tree(str(top)), STATE, ONLINE)
    assert len(found.failures) == 1
    assert value(top, SHARED) == "0-7"


def test_partitions_end_before_anything_is_widened(top: Path) -> None:
    (top / OWN / "cpuset.cpus.partition").write_text("isolated\n")
    for path in ("kubepods", "kubepods/podg", OWN):
        (top / path / "cpuset.cpus.exclusive").write_text("4-5\n")
    assert release(find_cpuset_tree(str(top)), STATE, ONLINE).failures == []
    assert (top / OWN / "cpuset.cpus.partition").read_text() == "member"
    for path in ("kubepods", "kubepods/podg", OWN):
        assert not (top / path / "cpuset.cpus.exclusive").read_text().strip()


def test_nothing_is_left_of_a_partition_whose_container_is_gone(top: Path) -> None:
    for path in ("kubepods", "kubepods/podg"):
        (top / path / "cpuset.cpus.exclusive").write_text("4-5,7\n")
    for file in (top / OWN).iterdir():
        file.unlink()
    (top / OWN).rmdir()
    assert release(find_cpuset_tree(str(top)), STATE, ONLINE).failures == []
    for path in ("kubepods", "kubepods/podg"):
        assert (top / path / "cpuset.cpus.exclusive").read_text() == "7"


def test_partition_that_does_not_end_is_told(top: Path) -> None:
    (top / OWN / "cpuset.cpus.partition").write_text("root\n")
    (top / OWN / "cpuset.cpus.exclusive").write_text("many\n")
    assert "holds no CPU list" in release(find_cpuset_tree(str(top)), STATE, ONLINE).failures[0]


def test_members_are_no_partition(top: Path) -> None:
    (top / OWN / "cpuset.cpus.partition").write_text("member\n")
    (top / "kubepods/cpuset.cpus.exclusive").write_text("1\n")
    release(find_cpuset_tree(str(top)), STATE, ONLINE)
    assert (top / "kubepods/cpuset.cpus.exclusive").read_text() == "1\n"
