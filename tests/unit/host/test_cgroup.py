import errno
import os
from pathlib import Path

import pytest

from nri_plugin.host import cgroup
from nri_plugin.host.cgroup import MOST_FOLDERS, WriteOutcome, is_empty
from nri_plugin.host.cgroup_write import WritableCgroups
from nri_plugin.host.mounts import CpusetTree
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet, NodeMask

REF = CgroupRef("kubepods-pod1.slice", "kubepods-pod1.slice:cri-containerd:abc")
SCOPE = "kubepods.slice/kubepods-pod1.slice/cri-containerd-abc.scope"
EFFECTIVE = {1: "cpuset.effective_{}", 2: "cpuset.{}.effective"}


class Tree:
    """A cgroup tree of ordinary files with one container in it."""

    def __init__(self, root: Path, version: int) -> None:
        self.version = version
        self.base = root if version == 2 else root / "cpuset"
        self.scope = self.base / SCOPE
        self.scope.mkdir(parents=True)
        if version == 2:
            (root / "cgroup.controllers").write_text("cpuset cpu\n")
        self.fill(self.scope, "0-3")
        self.cgroups = WritableCgroups.open(str(root))

    def fill(self, directory: Path, cpus: str, mems: str = "0-1") -> None:
        directory.mkdir(exist_ok=True)
        (directory / "cpuset.cpus").write_text(cpus + "\n")
        (directory / "cpuset.mems").write_text(mems + "\n")
        (directory / EFFECTIVE[self.version].format("cpus")).write_text((cpus or "0-7") + "\n")
        (directory / EFFECTIVE[self.version].format("mems")).write_text((mems or "0-1") + "\n")

    def files(self) -> set[str]:
        return {str(path) for path in self.base.rglob("*")}

    @property
    def cpus(self) -> str:
        return (self.scope / "cpuset.cpus").read_text().strip()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return Tree(tmp_path, request.param)


@pytest.fixture
def v2(tmp_path: Path) -> Tree:
    return Tree(tmp_path, 2)


def test_version_is_told(tree: Tree) -> None:
    assert tree.cgroups.version == tree.version


def test_new_value_is_written(tree: Tree) -> None:
    assert tree.cgroups.write_cpus(REF, CPUSet.of(4, 5, 7)) is WriteOutcome.WRITTEN
    assert tree.cpus == "4-5,7"


def test_shorter_value_leaves_nothing_of_the_longer_one(tree: Tree) -> None:
    tree.cgroups.write_cpus(REF, CPUSet.parse("0,2,4,6,8,10"))
    tree.cgroups.write_cpus(REF, CPUSet.of(1))
    assert tree.cpus == "1"


@pytest.mark.parametrize("text", ["0-3", "0,1,2,3", "0-1,2-3"])
def test_equal_value_is_not_written_however_it_is_spelled(tree: Tree, text: str) -> None:
    (tree.scope / "cpuset.cpus").write_text(text)
    before = (tree.scope / "cpuset.cpus").stat().st_mtime_ns
    assert tree.cgroups.write_cpus(REF, CPUSet.parse("0-3")) is WriteOutcome.UNCHANGED
    assert (tree.scope / "cpuset.cpus").stat().st_mtime_ns == before
    assert tree.cpus == text


def test_a_value_known_to_change_is_written_without_a_look(tree: Tree) -> None:
    tree.cgroups.write_cpus(REF, CPUSet.parse("0-3"))
    assert tree.cgroups.write_cpus(REF, CPUSet.parse("0-3"), compare=False) is WriteOutcome.WRITTEN


def test_garbage_is_overwritten(tree: Tree) -> None:
    (tree.scope / "cpuset.cpus").write_text("what")
    assert tree.cgroups.write_cpus(REF, CPUSet.of(1)) is WriteOutcome.WRITTEN


def test_value_goes_out_in_a_single_write(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    real = os.write

    def spy(descriptor: int, data: bytes) -> int:
        written.append(data)
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", spy)
    tree.cgroups.write_cpus(REF, CPUSet.parse("0,2,4"))
    assert written == [b"0,2,4"]


def test_value_the_kernel_took_in_part_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda _descriptor, data: len(data) - 1)
    with pytest.raises(HostError, match="only 3 of 4 bytes"):
        tree.cgroups.write_cpus(REF, CPUSet.of(1, 10))


def test_empty_set_is_never_written(tree: Tree) -> None:
    with pytest.raises(HostError, match="empty cpuset is never written"):
        tree.cgroups.write_cpus(REF, CPUSet())
    assert tree.cpus == "0-3"


def test_missing_cgroup_is_reported_and_nothing_is_made(tree: Tree) -> None:
    before = tree.files()
    gone = CgroupRef("", "kubepods-pod1.slice:cri-containerd:gone")
    assert tree.cgroups.write_cpus(gone, CPUSet.of(1)) is WriteOutcome.MISSING
    assert tree.cgroups.read_cpus(gone) is None
    assert tree.cgroups.read_effective(gone) is None
    assert tree.cgroups.read_mems(gone) is None
    assert tree.cgroups.read_effective_mems(gone) is None
    assert tree.files() == before
    assert "no such cgroup" in str(tree.cgroups.missing_error(gone))


def test_missing_file_is_not_made(tree: Tree) -> None:
    (tree.scope / "cpuset.cpus").unlink()
    before = tree.files()
    assert tree.cgroups.write_cpus(REF, CPUSet.of(1)) is WriteOutcome.MISSING
    assert tree.files() == before
    assert "subtree_control" in str(tree.cgroups.missing_error(REF))


def test_cgroup_that_vanishes_between_reading_and_writing_is_missing(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(_descriptor: int, _data: bytes) -> int:
        raise OSError(19, "No such device")

    monkeypatch.setattr(os, "write", vanish)
    assert tree.cgroups.write_cpus(REF, CPUSet.of(1)) is WriteOutcome.MISSING


def test_link_is_not_followed(tree: Tree, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tree.scope / "cpuset.cpus").unlink()
    (tree.scope / "cpuset.cpus").symlink_to(precious)
    with pytest.raises(HostError):
        tree.cgroups.write_cpus(REF, CPUSet.of(1))
    assert precious.read_text() == "keep"


def test_refused_write_names_file_and_value(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _data: bytes) -> int:
        raise OSError(34, "Numerical result out of range")

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(HostError, match=r"cpuset\.cpus: an id in 9000 is beyond"):
        tree.cgroups.write_cpus(REF, CPUSet.of(9000))


def test_path_out_of_the_tree_is_refused(tree: Tree) -> None:
    with pytest.raises(HostError, match="may not hold"):
        tree.cgroups.write_cpus(CgroupRef("", "/kubepods/../../x"), CPUSet.of(1))


def test_values_are_read(tree: Tree) -> None:
    assert tree.cgroups.read_cpus(REF) == CPUSet.parse("0-3")
    assert tree.cgroups.read_effective(REF) == CPUSet.parse("0-3")
    assert tree.cgroups.read_mems(REF) == NodeMask.parse("0-1")
    assert tree.cgroups.read_effective_mems(REF) == NodeMask.parse("0-1")


def test_value_that_was_never_given_is_empty(tree: Tree) -> None:
    tree.fill(tree.scope, "", "")
    assert tree.cgroups.read_cpus(REF) == CPUSet()
    assert tree.cgroups.read_mems(REF) == NodeMask()


@pytest.mark.parametrize(("name", "read"), [("cpuset.cpus", "read_cpus"), ("cpuset.mems", "read_mems")])
def test_file_that_holds_no_list_is_an_error(tree: Tree, name: str, read: str) -> None:
    (tree.scope / name).write_text("\xff\n", encoding="latin-1")
    with pytest.raises(HostError, match="holds no"):
        getattr(tree.cgroups, read)(REF)


def test_file_that_is_a_directory_is_an_error(tree: Tree) -> None:
    (tree.scope / "cpuset.cpus").unlink()
    (tree.scope / "cpuset.cpus").mkdir()
    with pytest.raises(HostError, match="cannot be read"):
        tree.cgroups.read_cpus(REF)


def test_parent_is_written_when_the_path_is_empty(tree: Tree) -> None:
    tree.fill(tree.base / "kubepods.slice", "0-7")
    tree.cgroups.write_cpus(CgroupRef("kubepods.slice"), CPUSet.of(1))
    assert (tree.base / "kubepods.slice" / "cpuset.cpus").read_text() == "1"


def test_subgroup_of_crun_with_a_cpuset_of_its_own_is_written_too(v2: Tree) -> None:
    v2.fill(v2.scope / "container", "0-1")
    assert v2.cgroups.write_cpus(REF, CPUSet.of(5)) is WriteOutcome.WRITTEN
    assert v2.cpus == "5"
    assert (v2.scope / "container" / "cpuset.cpus").read_text() == "5"


def test_subgroup_alone_being_wrong_counts_as_written(v2: Tree) -> None:
    v2.fill(v2.scope / "container", "0-1")
    assert v2.cgroups.write_cpus(REF, CPUSet.parse("0-3")) is WriteOutcome.WRITTEN
    assert v2.cgroups.write_cpus(REF, CPUSet.parse("0-3")) is WriteOutcome.UNCHANGED


def test_subgroup_that_follows_its_parent_is_left_alone(v2: Tree) -> None:
    v2.fill(v2.scope / "container", "")
    v2.cgroups.write_cpus(REF, CPUSet.of(5))
    assert (v2.scope / "container" / "cpuset.cpus").read_text() == "\n"


def test_processes_in_the_subgroup_are_what_effective_means(v2: Tree) -> None:
    v2.fill(v2.scope / "container", "2")
    assert v2.cgroups.read_effective(REF) == CPUSet.of(2)


def test_kernel_tree_is_opened_without_truncation() -> None:
    tree = CpusetTree(2, "/nowhere", is_kernel=True)
    assert not WritableCgroups(tree)._open("/nowhere").truncates


def refuse_writes_below(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nsdelegate does to the cgroup that is the root of the writer's own namespace."""
    write = os.write

    def refused(descriptor: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(directory)):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        return write(descriptor, data)

    monkeypatch.setattr(cgroup.os, "write", refused)


def test_own_container_is_bound_by_its_pod(v2: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    v2.fill(v2.scope.parent, "")
    refuse_writes_below(v2.scope, monkeypatch)
    assert v2.cgroups.write_cpus(REF, CPUSet.parse("4-5")) is WriteOutcome.WRITTEN
    assert (v2.scope.parent / "cpuset.cpus").read_text() == "4-5"


def test_a_refused_write_is_told_when_the_pod_refuses_too(v2: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    v2.fill(v2.scope.parent, "")
    refuse_writes_below(v2.scope.parent, monkeypatch)
    with pytest.raises(HostError, match="refused to this user"):
        v2.cgroups.write_cpus(REF, CPUSet.parse("4-5"))


def test_a_cgroup_is_removed_when_only_its_parent_is_left(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset")
    (tmp_path / "kubepods/podlives").mkdir(parents=True)
    cgroups = WritableCgroups.open(str(tmp_path))
    assert cgroups.is_removed(CgroupRef("/kubepods/podgone"))
    assert not cgroups.is_removed(CgroupRef("/kubepods/podlives"))
    assert not cgroups.is_removed(CgroupRef("/elsewhere/podgone"))
    assert not cgroups.is_removed(CgroupRef("/"))


def test_a_cgroup_below_a_container_that_holds_no_list_is_an_error_after_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path, 1)
    (tree.scope / "inner").mkdir()
    (tree.scope / "inner/cpuset.cpus").write_text("what")

    real, calls = os.write, []

    def busy_at_first(descriptor: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 1:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", busy_at_first)
    assert tree.cgroups.write_cpus(REF, CPUSet.of(1)) is WriteOutcome.LATER
    (tree.scope / "cpuset.cpus").write_text("0-3")  # ordinary files were emptied before the refusal
    with pytest.raises(HostError, match="holds no CPU list"):
        tree.cgroups.write_cpus(REF, CPUSet.of(1))


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files opened from now on."""
    paths: list[str] = []
    real = os.open

    def spy(path: str | bytes, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        paths.append(os.fsdecode(path))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", spy)
    return paths


def test_a_container_without_a_subgroup_is_asked_for_it_once(
    v2: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    v2.cgroups.write_cpus(REF, CPUSet.of(1), compare=False)
    paths = opened(monkeypatch)
    v2.cgroups.write_cpus(REF, CPUSet.of(2), compare=False)
    assert paths == [str(v2.scope / "cpuset.cpus")]


def test_a_container_that_was_not_there_yet_is_asked_again(v2: Tree) -> None:
    late = CgroupRef("kubepods-pod1.slice", "kubepods-pod1.slice:cri-containerd:late")
    assert v2.cgroups.write_cpus(late, CPUSet.of(1)) is WriteOutcome.MISSING
    scope = v2.scope.parent / "cri-containerd-late.scope"
    v2.fill(scope, "0-3")
    v2.fill(scope / "container", "0-3")
    v2.cgroups.write_cpus(late, CPUSet.of(1))
    assert (scope / "container/cpuset.cpus").read_text().strip() == "1"


def test_what_is_remembered_of_containers_is_bounded(v2: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "MOST_REMEMBERED", 1)
    v2.fill(v2.scope.parent / "cri-containerd-other.scope", "0-3")
    for name in ("abc", "other", "abc"):
        ref = CgroupRef("kubepods-pod1.slice", f"kubepods-pod1.slice:cri-containerd:{name}")
        v2.cgroups.write_cpus(ref, CPUSet.of(1))
    assert len(v2.cgroups._undivided) == 1


def test_a_container_with_more_cgroups_than_are_looked_into_is_not_called_empty(tmp_path: Path) -> None:
    tree = Tree(tmp_path, 1)
    for number in range(MOST_FOLDERS + 1):
        (tree.scope / str(number)).mkdir()
        (tree.scope / str(number) / "cgroup.procs").write_text("")
    (tree.scope / "cgroup.procs").write_text("")
    assert not is_empty(tree.cgroups, SCOPE)
    (tree.scope / "0" / "cgroup.procs").unlink()
    (tree.scope / "0").rmdir()
    (tree.scope / "1" / "cgroup.procs").unlink()
    (tree.scope / "1").rmdir()
    assert is_empty(tree.cgroups, SCOPE)
