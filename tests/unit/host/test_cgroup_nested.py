import errno
from pathlib import Path

import pytest

from nri_plugin.host.cgroup_write import write_with_children
from nri_plugin.model import bits


class V1File:
    """A cpuset that takes what a v1 kernel takes: within the parent, around the children."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "cpuset.cpus"

    @property
    def cpus(self) -> str:
        return self.file.read_text()

    @cpus.setter
    def cpus(self, text: str) -> None:
        mask = bits.parse_list(text)
        children = [bits.parse_list(file.read_text()) for file in self.directory.glob("*/cpuset.cpus")]
        if any(child & ~mask for child in children):
            raise OSError(errno.EBUSY, "Device or resource busy")
        parent = self.directory.parent / "cpuset.cpus"
        if parent.exists() and mask & ~bits.parse_list(parent.read_text()):
            raise OSError(errno.EACCES, "Permission denied")
        self.file.write_text(text)


def open_files(directory: str) -> V1File:
    return V1File(Path(directory))


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    for path, cpus in {
        "leaf": "0-3",
        "leaf/a": "0-1",
        "leaf/a/deep": "1",
        "leaf/b": "3",
        "leaf/unset": "",
    }.items():
        (tmp_path / path).mkdir()
        (tmp_path / path / "cpuset.cpus").write_text(cpus)
    return tmp_path / "leaf"


def held(leaf: Path) -> list[str]:
    return [(leaf / path / "cpuset.cpus").read_text() for path in ("", "a", "a/deep", "b", "unset")]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("0-1", ["0-1", "0-1", "1", "0-1", ""]),
        ("0", ["0", "0", "0", "0", ""]),
        ("1-3", ["1-3", "1", "1", "3", ""]),
        ("4-5", ["4-5", "4-5", "4-5", "4-5", ""]),
        ("0-7", ["0-7", "0-1", "1", "3", ""]),
    ],
)
def test_cgroups_below_end_up_within_the_new_set(leaf: Path, wanted: str, expected: list[str]) -> None:
    write_with_children(open_files, str(leaf), bits.parse_list(wanted))
    assert held(leaf) == expected


def test_child_that_vanishes_is_passed_over(leaf: Path) -> None:
    (leaf / "b" / "cpuset.cpus").unlink()
    write_with_children(open_files, str(leaf), bits.parse_list("0-1"))
    assert (leaf / "cpuset.cpus").read_text() == "0-1"


def test_refusal_of_the_kernel_is_passed_on(leaf: Path, tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").write_text("0-3")
    with pytest.raises(OSError, match="Permission denied"):
        write_with_children(open_files, str(leaf), bits.parse_list("4"))
