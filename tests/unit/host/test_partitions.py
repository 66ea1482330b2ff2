"""Partitions on ordinary files; `Kernel` judges every write as the kernel would and notes the order."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_plugin.core.kernel_settings import Partition
from nri_plugin.host import partitions as module
from nri_plugin.host.partitions import EXCLUSIVE, PARTITION, Partitions
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet

A, B = "kubepods/poda/a", "kubepods/podb/b"
ALL = CPUSet.parse("0-15")
PATHS = ("kubepods", "kubepods/poda", A, "kubepods/podb", B)


def ref(path: str) -> CgroupRef:
    return CgroupRef(f"/{path.rpartition('/')[0]}", f"/{path}")


def wanted(path: str, cpus: str, kind: str = "root") -> Partition:
    return Partition(ref(path), CPUSet.parse(cpus), kind, path[-1])


class Kernel:
    """Takes the writes; a partition without its CPUs in every cgroup above it is invalid."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top, self.steps, self.leaks = top, list[str](), list[str]()
        self.invalid = ""
        self.ends: Callable[[], object] = lambda: None
        for path in PATHS:
            (top / path).mkdir(parents=True)
            (top / path / PARTITION).write_text("member\n")
            (top / path / EXCLUSIVE).write_text("\n")
        self._write = module._write
        monkeypatch.setattr(module, "_write", self.write)

    def write(self, directory: str, name: str, text: str) -> None:
        path = directory.removeprefix(f"{self.top}/")
        self.steps.append(f"{path} {name.rpartition('.')[2]}={text.strip()}")
        if name == EXCLUSIVE:
            for leaf in (A, B):
                lost = self.cpus(leaf) - CPUSet.parse(text)
                if leaf.startswith(f"{path}/") and lost and self.word(leaf) != "member":
                    self.leaks.append(f"{lost} of {leaf}")
        if name == PARTITION and text != "member" and path in PATHS:
            above = [one for one in PATHS if path.startswith(f"{one}/")]
            if self.invalid or not all(self.cpus(path) <= self.cpus(one) for one in (path, *above)):
                text = f"{text} invalid ({self.invalid or 'not in the parent'})"
        self._write(directory, name, text)
        if path not in PATHS and text == "member":
            self.ends()

    def word(self, path: str) -> str:
        file = self.top / path / PARTITION
        return file.read_text().strip() if file.exists() else "member"

    def cpus(self, path: str) -> CPUSet:
        file = self.top / path / EXCLUSIVE
        return CPUSet.parse(file.read_text().strip() if file.exists() else "")

    def exclusive(self) -> dict[str, str]:
        return {path: str(self.cpus(path)) for path in PATHS if self.cpus(path)}


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def settle(ours: Partitions, *some: Partition) -> list[tuple[str, str]]:
    by_ref = {one.target: one for one in some}
    assert ours.end_others(by_ref) == []
    return [(settled.partition.container_id, settled.trouble) for settled in ours.make(by_ref)]


def test_it_is_made_from_the_top_down(kernel: Kernel, tmp_path: Path) -> None:
    assert settle(Partitions(str(tmp_path)), wanted(A, "4-5")) == [("a", "")]
    assert kernel.steps == [
        "kubepods exclusive=4-5",
        "kubepods/poda exclusive=4-5",
        f"{A} exclusive=4-5",
        f"{A} partition=root",
    ]
    assert kernel.word(A) == "root"


def test_a_second_look_writes_nothing(kernel: Kernel, tmp_path: Path) -> None:
    ours = Partitions(str(tmp_path))
    settle(ours, wanted(A, "4-5"))
    kernel.steps.clear()
    assert settle(ours, wanted(A, "4-5")) == []
    assert kernel.steps == []


def test_it_ends_from_the_leaf_up_and_leaves_others_their_cpus(kernel: Kernel, tmp_path: Path) -> None:
    ours = Partitions(str(tmp_path))
    settle(ours, wanted(A, "4-5"), wanted(B, "6-7", "isolated"))
    assert kernel.exclusive()["kubepods"] == "4-7"
    kernel.steps.clear()
    settle(ours, wanted(B, "6-7", "isolated"))
    assert kernel.steps == [
        f"{A} partition=member",
        f"{A} exclusive=",
        "kubepods/poda exclusive=",
        "kubepods exclusive=6-7",
    ]
    assert (kernel.word(B), kernel.leaks) == ("isolated", [])


def test_all_leaves_end_before_anything_above_shrinks(kernel: Kernel, tmp_path: Path) -> None:
    settle(Partitions(str(tmp_path)), wanted(A, "4-5"), wanted(B, "6-7"))
    assert module.end_all(str(tmp_path), [(ref(A), CPUSet()), (ref(B), CPUSet())], ALL) == []
    assert (kernel.exclusive(), kernel.leaks) == ({}, [])


def test_other_cpus_or_another_kind_make_it_anew(kernel: Kernel, tmp_path: Path) -> None:
    ours = Partitions(str(tmp_path))
    settle(ours, wanted(A, "4-5"))
    assert settle(ours, wanted(A, "4-7", "isolated")) == [("a", "")]
    assert (kernel.word(A), kernel.exclusive()["kubepods"], kernel.leaks) == ("isolated", "4-7", [])


def test_what_the_kernel_calls_invalid_is_undone_and_said(kernel: Kernel, tmp_path: Path) -> None:
    kernel.invalid = "Cpu list in cpuset.cpus not exclusive"
    (told,) = settle(Partitions(str(tmp_path)), wanted(A, "4-5"))
    assert told[1].endswith("the kernel says root invalid (Cpu list in cpuset.cpus not exclusive)")
    assert (kernel.word(A), kernel.exclusive()) == ("member", {})


def test_one_that_became_invalid_is_ended_before_it_is_made_again(kernel: Kernel, tmp_path: Path) -> None:
    ours = Partitions(str(tmp_path))
    settle(ours, wanted(A, "4-5"))
    (tmp_path / A / PARTITION).write_text("root invalid (Cpu list in cpuset.cpus not exclusive)\n")
    kernel.steps.clear()
    assert settle(ours, wanted(A, "4-5")) == [("a", "")]
    assert kernel.steps[0] == f"{A} partition=member"
    assert kernel.word(A) == "root"


def test_after_a_restart_what_is_there_is_kept(kernel: Kernel, tmp_path: Path) -> None:
    settle(Partitions(str(tmp_path)), wanted(A, "4-5"))
    ours = Partitions(str(tmp_path))
    assert ours.adopt([(ref(A), CPUSet()), (ref(B), CPUSet())]) == []
    kernel.steps.clear()
    assert settle(ours, wanted(A, "4-5")) == []
    assert kernel.steps == []
    settle(ours)
    assert (kernel.word(A), kernel.exclusive()) == ("member", {})


def test_a_container_that_is_gone_needs_no_end(kernel: Kernel, tmp_path: Path) -> None:
    ours = Partitions(str(tmp_path))
    settle(ours, wanted(A, "4-5"))
    for file in (tmp_path / A).iterdir():
        file.unlink()
    (tmp_path / A).rmdir()
    settle(ours)
    assert kernel.steps[-2:] == ["kubepods/poda exclusive=", "kubepods exclusive="]
    assert list(ours.make({ref(A): wanted(A, "4-5")})) == []


def test_what_a_container_that_ended_unseen_left_above_is_taken_away(kernel: Kernel, tmp_path: Path) -> None:
    settle(Partitions(str(tmp_path)), wanted(A, "4-5"), wanted(B, "6-7"))
    for file in (tmp_path / A).iterdir():
        file.unlink()
    (tmp_path / A).rmdir()
    ours = Partitions(str(tmp_path))
    ours.adopt([(ref(A), CPUSet.parse("4-5")), (ref(B), CPUSet.parse("6-7"))])
    settle(ours, wanted(B, "6-7"))
    assert kernel.exclusive() == dict.fromkeys(("kubepods", "kubepods/podb", B), "6-7")


def test_a_name_that_is_none_keeps_no_other_from_its_partition(kernel: Kernel, tmp_path: Path) -> None:
    ours = Partitions(str(tmp_path))
    wrong = Partition(CgroupRef("", "/kubepods/../x"), CPUSet.of(4), "root", "x")
    (trouble,) = ours.adopt([(wrong.target, CPUSet()), (ref(A), CPUSet())])
    assert "may not hold the part '..'" in str(trouble)
    told = settle(ours, wrong, wanted(A, "4-5"))
    assert [(who, bool(trouble)) for who, trouble in told] == [("x", True), ("a", False)]


def test_exclusive_cpus_of_somebody_else_above_stay(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "kubepods" / EXCLUSIVE).write_text("9\n")
    ours = Partitions(str(tmp_path))
    settle(ours, wanted(A, "4-5"))
    assert kernel.exclusive()["kubepods"] == "4-5,9"
    settle(ours)
    assert kernel.exclusive() == {"kubepods": "9"}


def test_a_kernel_without_exclusive_cpus_is_named(kernel: Kernel, tmp_path: Path) -> None:
    for path in PATHS:
        (tmp_path / path / EXCLUSIVE).unlink()
        (tmp_path / path / PARTITION).unlink()
    ((_, trouble),) = settle(Partitions(str(tmp_path)), wanted(A, "4-5"))
    assert "was not taken (No such file or directory)" in trouble


def test_where_there_can_be_none_the_kernel_is_not_asked(kernel: Kernel, tmp_path: Path) -> None:
    ours = Partitions(str(tmp_path), module.ON_V1)
    assert settle(ours, wanted(A, "4-5")) == [("a", module.ON_V1)]
    assert (len(ours), kernel.steps) == (0, [])
    assert "boot with cgroup v2" in module.ON_V1


def make(directory: str, exist_ok: bool) -> None:
    """As the kernel does it: the files of a cgroup come with it, and nobody may make one in a closed directory."""
    assert Path(directory).parent.stat().st_mode & 0o200
    Path(directory).mkdir(exist_ok=exist_ok)
    for name in ("cpuset.cpus", PARTITION):
        (Path(directory) / name).write_text("\n")


def leaked(kernel: Kernel, tmp_path: Path, left: str) -> Partitions:
    """A partition of 4-5 whose cgroup is gone, on a machine whose root can run on `left`."""
    ours = Partitions(str(tmp_path))
    settle(ours, wanted(A, "4-5"), wanted(B, "6-7"))
    shutil.rmtree(tmp_path / A)
    (tmp_path / "cpuset.cpus.effective").write_text(f"{left}\n")
    kernel.steps.clear()
    assert ours.end_others({ref(B): wanted(B, "6-7")}) == []
    kernel.steps.clear()
    return ours


def later(ours: Partitions, online: CPUSet = ALL) -> list[HostError]:
    """Two looks, as far apart as it takes to call CPUs lost."""
    assert ours.mend(online, 100.0) == ours.mend(online, 100.0 + module.LOST_AFTER_S - 0.1) == []
    return ours.mend(online, 100.0 + module.LOST_AFTER_S)


def test_cpus_that_come_back_by_themselves_are_not_lost(kernel: Kernel, tmp_path: Path) -> None:
    ours, effective = leaked(kernel, tmp_path, "0-3,8-15"), tmp_path / "cpuset.cpus.effective"
    assert ours.mend(ALL, 1.0) == []
    assert ours.is_in_doubt
    effective.write_text("0-5,8-15\n")
    assert ours.mend(ALL, 2.0) == []
    assert not ours.is_in_doubt
    effective.write_text("0-3,8-15\n")  # taken by somebody else, later
    assert ours.mend(ALL, 60.0) == []
    assert kernel.steps == []


def test_who_leaves_waits_to_know_whether_cpus_are_lost(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(Partitions(str(tmp_path)), wanted(A, "4-5"))
    (tmp_path / "cpuset.cpus.effective").write_text("0-3,6-15\n")
    monkeypatch.setattr(os, "makedirs", make)
    waited: list[float] = []
    kernel.steps.clear()
    (said,) = module.end_all(str(tmp_path), [(ref(A), CPUSet())], ALL, waited.append)
    assert "CPUs 4-5 of a removed partition cannot be used" in str(said)
    assert waited == [module.LOST_AFTER_S]
    assert f"{module.MENDED} partition=isolated" in kernel.steps


def test_cpus_that_a_removed_partition_lost_are_mended(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = leaked(kernel, tmp_path, "0-3,8-15")
    tmp_path.chmod(0o555)

    monkeypatch.setattr(os, "makedirs", make)
    kernel.ends = lambda: (tmp_path / "cpuset.cpus.effective").write_text("0-5,8-15\n")
    assert later(ours) == []
    assert tmp_path.stat().st_mode & 0o777 == 0o555
    top = module.MENDED
    assert kernel.steps == [f"{top} cpus=4-5", f"{top} partition=isolated", f"{top} partition=member"]
    assert later(ours) == []
    assert len(kernel.steps) == 3
    assert settle(ours, wanted(A, "4-5")) == [("a", module.NO_MORE)]
    assert settle(Partitions(str(tmp_path)), wanted(A, "4-5")) == [("a", module.NO_MORE)]


def test_nothing_is_mended_that_is_offline_or_in_reach(kernel: Kernel, tmp_path: Path) -> None:
    assert later(leaked(kernel, tmp_path, "0-5,8-15")) == []
    assert kernel.steps == []


def test_nothing_is_mended_while_its_cpus_are_offline(kernel: Kernel, tmp_path: Path) -> None:
    assert later(leaked(kernel, tmp_path, "0-3,8-15"), CPUSet.parse("0-3,6-15")) == []
    assert kernel.steps == []


@pytest.mark.parametrize("effective", ["", "some\n"])
def test_a_root_that_does_not_say_what_it_can_run_on_lost_nothing(
    kernel: Kernel, tmp_path: Path, effective: str
) -> None:
    ours = leaked(kernel, tmp_path, "0")
    (tmp_path / "cpuset.cpus.effective").write_text(effective)
    assert later(ours) == []
    assert kernel.steps == []


def test_cpus_that_do_not_come_back_are_named(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = leaked(kernel, tmp_path, "0-3,8-15")
    monkeypatch.setattr(os, "makedirs", make)
    (said,) = later(ours)
    assert "CPUs 4-5 of a removed partition cannot be used" in str(said)


def test_a_tree_that_takes_no_new_cgroup_is_named(kernel: Kernel, tmp_path: Path) -> None:
    ours = leaked(kernel, tmp_path, "0-3,8-15")
    (tmp_path / module.MENDED).write_text("")
    (said,) = later(ours)
    assert "CPUs 4-5 cannot be brought back (File exists)" in str(said)
