"""Widening what is above a cgroup, on ordinary files that stand in for a tree."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.host.cgroup_write import WritableCgroups
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet

LEAF = CgroupRef("/kubepods/pod1", "/kubepods/pod1/c")
WANTED = CPUSet.parse("2-3")


def tree(top: Path, version: int, **own: str) -> WritableCgroups:
    """Directories kubepods, kubepods/pod1, kubepods/pod1/c with the given values."""
    if version == 2:
        (top / "cgroup.controllers").write_text("cpuset cpu\n")
    base = top if version == 2 else top / "cpuset"
    base.mkdir(exist_ok=True)
    for name, path in (("kubepods", "kubepods"), ("pod", "kubepods/pod1"), ("leaf", "kubepods/pod1/c")):
        directory = base / path
        directory.mkdir()
        if name in own:
            (directory / "cpuset.cpus").write_text(own[name])
    if version == 1:
        (base / "cpuset.cpus").write_text("0-7")
    for directory in (base, base / "kubepods", base / "kubepods/pod1"):
        (directory / "cgroup.subtree_control").write_text("cpuset")
    return WritableCgroups.open(str(top))


def value(cgroups: WritableCgroups, path: str) -> str:
    return (Path(cgroups.tree.directory) / path / "cpuset.cpus").read_text().strip()


def test_narrow_parents_get_what_is_missing_and_keep_what_they_had(tmp_path: Path) -> None:
    cgroups = tree(tmp_path, 2, kubepods="0-3", pod="0,2", leaf="2-3")
    cgroups.make_room(LEAF, WANTED)
    assert (value(cgroups, "kubepods"), value(cgroups, "kubepods/pod1")) == ("0-3", "0,2-3")
    assert value(cgroups, "kubepods/pod1/c") == "2-3"


def test_kubepods_keeps_the_limit_of_an_administrator_on_v2(tmp_path: Path) -> None:
    cgroups = tree(tmp_path, 2, kubepods="0-1", pod="0,2", leaf="2-3")
    cgroups.make_room(LEAF, WANTED)
    assert (value(cgroups, "kubepods"), value(cgroups, "kubepods/pod1")) == ("0-1", "0,2-3")


def test_parent_without_a_set_of_its_own_is_left_alone_on_v2(tmp_path: Path) -> None:
    cgroups = tree(tmp_path, 2, kubepods="", pod="0-7", leaf="2-3")
    cgroups.make_room(LEAF, WANTED)
    assert (value(cgroups, "kubepods"), value(cgroups, "kubepods/pod1")) == ("", "0-7")


def test_parents_follow_on_v1_where_every_one_has_to_hold_it(tmp_path: Path) -> None:
    cgroups = tree(tmp_path, 1, kubepods="0-1", pod="", leaf="2")
    cgroups.make_room(LEAF, WANTED)
    assert (value(cgroups, "kubepods"), value(cgroups, "kubepods/pod1")) == ("0-3", "2-3")


def test_files_that_were_taken_away_are_asked_for_again(tmp_path: Path) -> None:
    cgroups = tree(tmp_path, 2, kubepods="0-7")
    control = tmp_path / "kubepods/cgroup.subtree_control"
    control.write_text("cpu memory")
    (tmp_path / "kubepods/pod1/cgroup.subtree_control").write_text("cpu")
    cgroups.make_room(LEAF, WANTED)
    assert control.read_text().startswith("+cpuset")
    assert (tmp_path / "kubepods/pod1/cgroup.subtree_control").read_text() == "+cpuset"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpuset"


def test_container_that_ended_meanwhile_is_no_error(tmp_path: Path) -> None:
    cgroups = tree(tmp_path, 2, kubepods="0-7")
    cgroups.make_room(CgroupRef("/kubepods/pod9", "/kubepods/pod9/c"), WANTED)


def test_name_that_leaves_the_tree_is_refused(tmp_path: Path) -> None:
    cgroups = tree(tmp_path, 2, kubepods="0-7")
    with pytest.raises(HostError, match="may not hold the part"):
        cgroups.make_room(CgroupRef("/kubepods/..", "/kubepods/../c"), WANTED)


def test_observation_tells_gone_from_without_files(tmp_path: Path) -> None:
    cgroups = tree(tmp_path, 2, leaf="2-3")
    (tmp_path / "kubepods/pod1/c/cpuset.cpus.effective").write_text("2\n")
    assert cgroups.observe(LEAF) == (WANTED, WANTED)
    kernel = WritableCgroups(replace(cgroups.tree, is_kernel=True))
    assert kernel.observe(LEAF) == (WANTED, CPUSet.of(2))
    assert cgroups.observe(CgroupRef("/kubepods")) == (None, None)
    assert cgroups.observe(CgroupRef("/kubepods", "/kubepods/gone")) is None
