"""Container cgroups of both drivers and both versions, on ordinary directories."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.host.cgroup import (
    Cgroups,
    ContainerCgroup,
    container_at,
    container_cgroups,
    is_empty,
    is_told,
    runs_on,
)
from nri_plugin.model.records import CgroupRef, ContainerRecord, Phase, PodRecord, QOSClass
from nri_plugin.model.state import State
from nri_plugin.simulator.simulate.pods import Driver, container_names, pod_names

UID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"


def tree(root: Path, version: int, paths: list[str]) -> Cgroups:
    top = root if version == 2 else root / "cpuset"
    for path in ("", *paths):
        directory = top / path
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cpuset.cpus").write_text("" if path else "0-3\n")
    if version == 2:
        (root / "cgroup.controllers").write_text("cpuset cpu\n")
    return Cgroups.open(str(root))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("qos", QOSClass)
@pytest.mark.parametrize(
    ("driver", "prefix"), [(Driver.SYSTEMD, "cri-containerd"), (Driver.SYSTEMD, "crio"), (Driver.CGROUPFS, "crio"), (Driver.CGROUPFS, "cri-containerd")]
)  # fmt: skip
def test_containers_of_every_driver_runtime_and_class_are_found(
    tmp_path: Path, version: int, qos: QOSClass, driver: Driver, prefix: str
) -> None:
    pod = pod_names(driver, qos, UID)
    one, two = (container_names(driver, pod, prefix, letter * 64).path for letter in "ab")
    cgroups = tree(tmp_path, version, [one, two, f"{two}/container", "system.slice/sshd.service"])
    assert list(container_cgroups(cgroups)) == [
        ContainerCgroup(one, UID, "a" * 64),
        ContainerCgroup(two, UID, "b" * 64),
    ]


@pytest.mark.parametrize(
    "path",
    [
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{UID.replace('-', '_')}.slice/cri-containerd-c.scope",
        f"kubelet/kubepods/burstable/pod{UID}/c",
    ],
)
def test_a_tree_of_the_kubelet_below_another_cgroup_is_found(tmp_path: Path, path: str) -> None:
    assert list(container_cgroups(tree(tmp_path, 2, [path]))) == [ContainerCgroup(path, UID, "c")]


def test_the_uid_of_a_static_pod_has_no_dashes(tmp_path: Path) -> None:
    found = container_cgroups(tree(tmp_path, 2, ["kubepods.slice/kubepods-podaf3c.slice/crio-c.scope"]))
    assert [one.pod_uid for one in found] == ["af3c"]


def test_a_monitor_is_no_container(tmp_path: Path) -> None:
    assert not list(container_cgroups(tree(tmp_path, 2, [f"kubepods/pod{UID}/crio-conmon-c"])))


def test_a_cgroup_without_a_value_has_the_one_above(tmp_path: Path) -> None:
    path = f"kubepods/pod{UID}/c"
    cgroups = tree(tmp_path, 2, [path])
    assert str(runs_on(cgroups, path)) == "None"
    (tmp_path / "kubepods/cpuset.cpus").write_text("0-1\n")
    assert str(runs_on(cgroups, path)) == "0-1"
    (tmp_path / path / "cpuset.cpus").unlink()
    assert str(runs_on(cgroups, path)) == "0-1"
    (tmp_path / path / "cpuset.cpus").write_text("1")
    assert str(runs_on(cgroups, path)) == "1"


def test_a_tree_that_vanishes_meanwhile_holds_nothing(tmp_path: Path) -> None:
    cgroups = tree(tmp_path / "cg", 2, [])
    (tmp_path / "cg").rename(tmp_path / "gone")
    assert not list(container_cgroups(cgroups))


@pytest.mark.parametrize(
    ("processes", "empty"),
    [({}, False), ({"": ""}, True), ({"": "", "init": "7\n"}, False), ({"": "7\n"}, False)],
)
def test_a_cgroup_is_empty_where_no_process_is_in_it_or_below(
    tmp_path: Path, processes: dict[str, str], empty: bool
) -> None:
    cgroups = tree(tmp_path, 2, ["kubepods/podu/c/init"])
    for below, text in processes.items():
        (Path(cgroups.tree.directory) / "kubepods/podu/c" / below / "cgroup.procs").write_text(text)
    assert is_empty(cgroups, "kubepods/podu/c") is empty


@pytest.mark.parametrize(
    ("events", "empty"), [("populated 1\nfrozen 0\n", False), ("populated 0\nfrozen 0\n", True)]
)
def test_the_kernel_says_whether_a_process_is_in_a_cgroup_also_of_another_pid_namespace(
    tmp_path: Path, events: str, empty: bool
) -> None:
    cgroups = tree(tmp_path, 2, ["kubepods/podu/c"])
    cgroups.tree = replace(cgroups.tree, is_kernel=True)
    folder = Path(cgroups.tree.directory) / "kubepods/podu/c"
    (folder / "cgroup.procs").write_text("")
    (folder / "cgroup.events").write_text(events)
    assert is_empty(cgroups, "kubepods/podu/c") is empty


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (f"kubepods/pod{UID}/app", True),
        (f"kubepods/pod{UID}/sandbox", True),
        ("kubepods/podother/app", True),  # by its id
        (f"kubepods/pod{UID}/by-path", True),
        (f"kubepods/pod{UID}/pause", True),
        (f"kubepods/pod{UID}/debug", False),
        ("kubepods/podother/by-path", False),
    ],
)
def test_a_container_is_told_by_its_id_its_sandbox_or_its_path(path: str, told: bool) -> None:
    parent = f"/kubepods/pod{UID}"
    records = [
        ContainerRecord(one, UID, one, Phase.RUNNING, CgroupRef(parent, f"{parent}/{at}"))
        for one, at in (("app", "app"), ("renamed", "by-path"))
    ]
    own = PodRecord(UID, "sandbox", "web", "shop", cgroup_parent=parent, sandbox_path=f"{parent}/pause")
    state = State({UID: own}, {record.id: record for record in records})
    one = container_at(path)
    assert one is not None
    assert is_told(state, one) is told
