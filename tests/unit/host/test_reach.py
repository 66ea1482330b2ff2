"""The CPUs that pods can reach, by the files of a tree."""

from pathlib import Path

import pytest

from nri_plugin.host.cgroup import Reach, discover_reachable, read_reach
from nri_plugin.host.mounts import find_cpuset_tree
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.machine.description import parse
from nri_plugin.simulator.machine.machine import build_sysfs

EFFECTIVE, OWN, CLAIMED = "cpuset.cpus.effective", "cpuset.cpus", "cpuset.cpus.exclusive"
V1_EFFECTIVE = "cpuset.effective_cpus"
NESTED = CgroupRef("deep-down-kubepods-burstable.slice")


def tree(top: Path, version: int, files: dict[str, str]) -> str:
    base = top if version == 2 else top / "cpuset"
    base.mkdir(exist_ok=True)
    if version == 2:
        (top / "cgroup.controllers").write_text("cpuset cpu\n")
    for name, text in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(f"{text}\n")
    return str(top)


@pytest.mark.parametrize(
    ("files", "slices", "reach"),
    [
        ({}, (), ""),
        ({EFFECTIVE: "0-3"}, (), "0-3"),
        ({EFFECTIVE: "0-3", f"kubepods.slice/{EFFECTIVE}": "2-3"}, (), "2-3"),
        ({EFFECTIVE: "0-3", f"kubepods/{EFFECTIVE}": "1-3"}, (), "1-3"),
        # kind: one level below
        ({EFFECTIVE: "0-7", f"kubelet.slice/kubelet-kubepods.slice/{EFFECTIVE}": "0-3"}, (), "0-3"),
        # Deeper only the pods tell; a kubepods that an earlier driver left is no limit then.
        (
            {
                f"deep.slice/deep-down.slice/deep-down-kubepods.slice/{EFFECTIVE}": "4-5",
                f"kubepods/{EFFECTIVE}": "0-1",
            },
            (NESTED,),
            "4-5",
        ),
        # cpuset is not delegated to kubepods, or the kubelet has not made it yet
        ({EFFECTIVE: "0-5", "kubepods.slice/cgroup.procs": ""}, (), "0-5"),
        ({EFFECTIVE: "0-5"}, (NESTED,), "0-5"),
        # The floor on a QoS slice is the agent's own.
        (
            {
                f"kubepods.slice/{EFFECTIVE}": "0-7",
                f"kubepods.slice/kubepods-burstable.slice/{EFFECTIVE}": "0-1",
            },
            (CgroupRef("kubepods-burstable.slice"),),
            "0-7",
        ),
        # A partition of the agent's takes its CPUs from the root and from kubepods.
        (
            {
                EFFECTIVE: "0-1,4-7",
                f"kubepods.slice/{EFFECTIVE}": "0-1,4-7",
                f"kubepods.slice/{CLAIMED}": "2-3",
            },
            (),
            "0-7",
        ),
        # kubepods keeps its own value while a partition of another program has the CPUs.
        ({EFFECTIVE: "0-3", f"kubepods.slice/{EFFECTIVE}": "0-3", f"kubepods.slice/{OWN}": "0-7"}, (), "0-3"),
    ],
)
def test_the_cgroup_above_the_pods_tells_on_v2(
    tmp_path: Path, files: dict[str, str], slices: tuple[CgroupRef, ...], reach: str
) -> None:
    found = read_reach(find_cpuset_tree(tree(tmp_path, 2, files)), slices)
    assert found == Reach(CPUSet.parse(reach))


@pytest.mark.parametrize(
    ("files", "own", "former", "reach"),
    [
        ({OWN: "0-3", V1_EFFECTIVE: "0-3"}, "", None, "0-3"),
        ({V1_EFFECTIVE: "0-7", f"kubepods/{OWN}": "0-3"}, "", None, "0-3"),
        ({V1_EFFECTIVE: "0-3", f"kubepods/{OWN}": "0-7"}, "", None, "0-3"),
        # The kernel does not give a CPU back that was offline; nobody could take those of a container.
        ({V1_EFFECTIVE: "0-7", f"kubepods/{OWN}": "0-3"}, "", "0-3,6-7", "0-5"),
        ({V1_EFFECTIVE: "0-7", f"kubepods/{OWN}": "0-3"}, "7", None, "0-3,7"),
    ],
)
def test_the_cgroup_above_kubepods_tells_on_v1(
    tmp_path: Path, files: dict[str, str], own: str, former: str | None, reach: str
) -> None:
    found = find_cpuset_tree(tree(tmp_path, 1, files))
    before = None if former is None else Reach(above=CPUSet.parse(former))
    assert read_reach(found, (), CPUSet.parse(own), before).cpus == CPUSet.parse(reach)


def test_a_file_that_holds_no_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="holds no CPU list"):
        read_reach(find_cpuset_tree(tree(tmp_path, 2, {EFFECTIVE: "some"})))


def test_a_command_believes_kubepods_and_not_the_cgroup_it_may_be_in(tmp_path: Path) -> None:
    build_sysfs(parse("topology: 'pack:1 core:4 pu:1'", "m"), str(tmp_path))
    (tmp_path / "cg").mkdir()
    cgroups = tree(tmp_path / "cg", 2, {EFFECTIVE: "0-1"})
    assert str(discover_reachable(str(tmp_path), cgroups).online) == "0-3"
    assert str(discover_reachable(str(tmp_path)).online) == "0-3"
    tree(tmp_path / "cg", 2, {f"kubepods/{EFFECTIVE}": "0-1"})
    found = discover_reachable(str(tmp_path), cgroups)
    assert (str(found.online), str(found.offline), str(found.unreachable)) == ("0-1", "2-3", "2-3")
