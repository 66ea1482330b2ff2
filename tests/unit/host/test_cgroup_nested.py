import errno
import os
import sys
from pathlib import Path

import pytest

from nri_plugin.host.cgroup_write import PATH_BYTES, change_with_children
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


def change(directory: Path, wanted: str) -> int:
    """Make all steps; return their number."""
    return sum(1 for _ in change_with_children(open_files, str(directory), bits.parse_list(wanted)))


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
    change(leaf, wanted)
    assert held(leaf) == expected


def test_child_that_vanishes_is_passed_over(leaf: Path) -> None:
    (leaf / "b" / "cpuset.cpus").unlink()
    change(leaf, "0-1")
    assert (leaf / "cpuset.cpus").read_text() == "0-1"


def test_refusal_of_the_kernel_is_passed_on(leaf: Path, tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").write_text("0-3")
    with pytest.raises(OSError, match="Permission denied"):
        change(leaf, "4")


def test_a_cgroup_that_is_made_meanwhile_is_narrowed_too(leaf: Path) -> None:
    steps = change_with_children(open_files, str(leaf), bits.parse_list("0-1"))
    for _ in range(4):
        next(steps)
    (leaf / "new").mkdir()
    (leaf / "new" / "cpuset.cpus").write_text("2-3")
    for _ in steps:
        pass
    assert held(leaf) == ["0-1", "0-1", "1", "0-1", ""]
    assert (leaf / "new" / "cpuset.cpus").read_text() == "0-1"


def test_a_chain_deeper_than_the_stack_and_the_longest_path_is_narrowed(tmp_path: Path) -> None:
    depth, name = 1100, "deeper"
    assert depth > sys.getrecursionlimit()
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf" / "cpuset.cpus").write_text("0-3")
    made = [os.open(tmp_path / "leaf", os.O_DIRECTORY)]
    open_before = set(os.listdir("/proc/self/fd"))
    try:
        for _ in range(depth):
            os.mkdir(name, dir_fd=made[-1])
            made.append(os.open(name, os.O_DIRECTORY, dir_fd=made[-1]))
            with os.fdopen(os.open("cpuset.cpus", os.O_WRONLY | os.O_CREAT, dir_fd=made[-1]), "w") as file:
                file.write("0-3")
            if len(made) > 2:
                os.close(made.pop(-2))  # few stay open
        assert depth * len(name) > 2 * PATH_BYTES
        steps = change(tmp_path / "leaf", "0-1")
        assert steps == 2 * depth + 1
        with os.fdopen(os.open("cpuset.cpus", os.O_RDONLY, dir_fd=made[-1])) as file:
            assert file.read() == "0-1"
        assert (tmp_path / "leaf" / "cpuset.cpus").read_text() == "0-1"
    finally:
        # From the bottom up: nobody else removes so deep a tree.
        while not os.path.samestat(os.fstat(made[-1]), os.stat(tmp_path / "leaf")):
            os.unlink("cpuset.cpus", dir_fd=made[-1])
            above = os.open("..", os.O_DIRECTORY, dir_fd=made[-1])
            os.rmdir(name, dir_fd=above)
            os.close(made.pop())
            made.append(above)
        for one in made:
            os.close(one)
    assert len(set(os.listdir("/proc/self/fd")) - open_before) <= 1
