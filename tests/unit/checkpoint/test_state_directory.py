"""Who else may change the state directory, and whether it is still one."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_plugin.checkpoint import directory
from nri_plugin.checkpoint.directory import removed_mount, unsafe, unwritable
from nri_plugin.host.mounts import parse_mounts


def test_a_directory_of_our_own_is_safe(tmp_path: Path):
    tmp_path.chmod(0o700)
    assert unsafe(str(tmp_path)) == ""
    assert unsafe(str(tmp_path / "missing")) == ""


def test_a_directory_that_everybody_may_write_to_is_named(tmp_path: Path):
    tmp_path.chmod(0o777)
    assert "everybody may write to it (mode 0777)" in unsafe(str(tmp_path))


def test_a_directory_of_another_user_is_named(monkeypatch: pytest.MonkeyPatch):
    status = SimpleNamespace(st_mode=0o40700, st_uid=os.geteuid() + 4242)
    monkeypatch.setattr(directory.os, "stat", lambda _path: status)
    assert f"belongs to user {os.geteuid() + 4242}" in unsafe("/run/nri-pin")


def test_a_directory_that_can_be_written_to_or_made_is_no_trouble(tmp_path: Path):
    assert unwritable(str(tmp_path)) == ""
    assert unwritable(str(tmp_path / "missing")) == ""


def test_a_file_is_no_directory(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert unwritable(str(tmp_path / "file")).startswith("is no directory")


@pytest.mark.parametrize(
    ("flag", "told"), [(os.ST_RDONLY, "is mounted read-only"), (0, "is not writable; let it belong to root")]
)
def test_a_directory_without_write_access_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: int, told: str
):
    monkeypatch.setattr(directory.os, "access", lambda *_a, **_n: False)
    monkeypatch.setattr(directory.os, "statvfs", lambda _path: SimpleNamespace(f_flag=flag))
    assert unwritable(str(tmp_path)).startswith(told)


def test_a_directory_that_is_there_or_missing_was_not_removed_under_a_mount(tmp_path: Path):
    assert removed_mount(str(tmp_path)) == ""
    assert removed_mount(str(tmp_path / "missing")) == ""


@pytest.mark.parametrize(
    ("links", "root"), [(0, "/run/nri-pin"), (2, "/run/nri-pin//deleted")], ids=["no links", "marked"]
)
def test_a_mount_of_a_removed_directory_is_recognized(monkeypatch: pytest.MonkeyPatch, links: int, root: str):
    line = f"613 590 0:23 {root} /state rw,relatime - tmpfs tmpfs rw\n"
    monkeypatch.setattr(directory.os, "stat", lambda _path: SimpleNamespace(st_nlink=links))
    monkeypatch.setattr(directory, "read_mounts", lambda: parse_mounts(line))
    assert "only a restart of the agent heals that" in removed_mount("/state")
