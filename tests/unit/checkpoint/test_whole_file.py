"""Files are there as a whole or not at all."""

import os
from pathlib import Path

import pytest

from nri_plugin.checkpoint.file import write_whole
from nri_plugin.model.errors import CheckpointError


def test_a_file_is_written_for_its_owner_alone_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write_whole(str(tmp_path / "file"), b"text")
    assert (tmp_path / "file").read_bytes() == b"text"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_what_is_there_stays_unless_it_may_go(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    with pytest.raises(CheckpointError, match="is there already"):
        write_whole(str(tmp_path / "file"), b"after")
    assert (tmp_path / "file").read_text() == "before"
    write_whole(str(tmp_path / "file"), b"after", replace=True)
    assert (tmp_path / "file").read_text() == "after"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "file").symlink_to("target")
    write_whole(str(tmp_path / "file"), b"after", replace=True)
    assert (tmp_path / "target").read_text() == "mine"
    assert not (tmp_path / "file").is_symlink()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        write_whole(str(tmp_path / "nowhere/file"), b"text")
