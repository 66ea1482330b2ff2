"""Real inotify on ordinary directories: who was written to, and that no watch is left behind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_plugin.host.cgroup_watch import IN_Q_OVERFLOW, CgroupWatch, Inotify, Notice
from nri_plugin.model.errors import HostError


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[CgroupWatch[str]]:
    made: CgroupWatch[str] = CgroupWatch(str(tmp_path))
    yield made
    made.close()


def cgroup(top: Path, name: str) -> Path:
    directory = top / name
    directory.mkdir(parents=True, exist_ok=True)
    for each in ("cpuset.cpus", "cpuset.mems", "cgroup.procs"):
        (directory / each).write_text("")
    return directory


def held_by_kernel(watch: CgroupWatch[str]) -> int:
    return Path(f"/proc/self/fdinfo/{watch.fileno()}").read_text().count("inotify wd:")


def test_written_cpuset_is_told_once(tmp_path: Path, watch: CgroupWatch[str]) -> None:
    one, two = cgroup(tmp_path, "pod/a"), cgroup(tmp_path, "pod/b")
    watch.add("a", [str(one)])
    watch.add("b", [str(two)])
    assert watch.read() == set()
    (one / "cpuset.cpus").write_text("1")
    assert watch.read() == {"a"}
    assert watch.read() == set()


def test_other_files_are_nobodys_business(tmp_path: Path, watch: CgroupWatch[str]) -> None:
    one = cgroup(tmp_path, "pod/a")
    watch.add("a", [str(one)])
    (one / "cgroup.procs").write_text("1")
    (one / "cpuset.mems").write_text("0")
    assert watch.read() == set()


def test_cgroup_above_concerns_all_below(tmp_path: Path, watch: CgroupWatch[str]) -> None:
    one, two = cgroup(tmp_path, "pod/a"), cgroup(tmp_path, "pod/b")
    above = cgroup(tmp_path, "pod")
    watch.add("a", [str(one)])
    watch.add("b", [str(two)])
    (above / "cpuset.cpus").write_text("1")
    assert watch.read() == {"a", "b"}


def test_root_of_the_tree_is_not_watched(tmp_path: Path, watch: CgroupWatch[str]) -> None:
    watch.add("a", [str(cgroup(tmp_path, "a"))])
    assert len(watch) == held_by_kernel(watch) == 1


def test_last_key_takes_the_watch_along(tmp_path: Path, watch: CgroupWatch[str]) -> None:
    watch.add("a", [str(cgroup(tmp_path, "pod/a"))])
    watch.add("b", [str(cgroup(tmp_path, "pod/b"))])
    assert len(watch) == held_by_kernel(watch) == 3
    watch.discard("a")
    assert len(watch) == held_by_kernel(watch) == 2
    watch.discard("b")
    watch.discard("b")
    assert len(watch) == held_by_kernel(watch) == 0


def test_directory_made_anew_is_watched_anew(tmp_path: Path, watch: CgroupWatch[str]) -> None:
    one = cgroup(tmp_path, "pod/a")
    watch.add("a", [str(one)])
    (tmp_path / "pod").rename(tmp_path / "old")
    one = cgroup(tmp_path, "pod/a")
    watch.add("a", [str(one)])
    (one / "cpuset.cpus").write_text("1")
    assert watch.read() == {"a"}
    assert len(watch) == held_by_kernel(watch) == 2


def test_directory_that_does_not_exist_yet_is_watched_later(tmp_path: Path, watch: CgroupWatch[str]) -> None:
    watch.add("a", [str(tmp_path / "pod/a")])
    assert len(watch) == 0
    one = cgroup(tmp_path, "pod/a")
    watch.add("a", [str(one)])
    (one / "cpuset.cpus").write_text("1")
    assert watch.read() == {"a"}


def test_lives_leave_no_watch(tmp_path: Path, watch: CgroupWatch[str]) -> None:
    (tmp_path / "pod").mkdir()
    for number in range(200):
        directory = tmp_path / "pod" / str(number)
        directory.mkdir()
        watch.add(str(number), [str(directory)])
        directory.rmdir()
        watch.discard(str(number))
    assert len(watch) == held_by_kernel(watch) == 0
    assert watch.read() == set()


def test_overflow_may_have_been_anybody(
    tmp_path: Path, watch: CgroupWatch[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.add("a", [str(cgroup(tmp_path, "a"))])
    monkeypatch.setattr(watch._inotify, "read", lambda: [Notice(-1, IN_Q_OVERFLOW, "")])
    assert watch.read() is None


def test_watches_that_run_out_are_said_with_what_to_do(
    tmp_path: Path, watch: CgroupWatch[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def inotify_add_watch(self, *arguments: object) -> int:
            import ctypes

            ctypes.set_errno(28)
            return -1

        inotify_rm_watch = inotify_add_watch

    monkeypatch.setattr(watch._inotify, "_libc", Full())
    with pytest.raises(HostError, match=r"raise the sysctl fs\.inotify\.max_user_watches"):
        watch.add("a", [str(tmp_path / "a")])
    watch.discard("a")
    assert len(watch) == 0


def test_descriptor_is_closed_in_programs_we_start() -> None:
    made = Inotify()
    assert not os.get_inheritable(made.fileno())
    made.close()
