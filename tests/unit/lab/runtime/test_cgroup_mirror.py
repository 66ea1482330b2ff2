import array
import contextlib
import fcntl
import os
import termios
import threading
import time
from pathlib import Path

import pytest

from nri_plugin.host.cgroup_write import WritableCgroups
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet, NodeMask
from tests.lab.runtime import cgroup_mirror
from tests.lab.runtime.cgroup_mirror import CgroupMirror
from tests.lab.runtime.cgroup_tree import CgroupTree, CpusetFile


def mirror(root: Path, version: int = 2) -> CgroupMirror:
    tree = CgroupTree(online=CPUSet.of(0, 1, 2, 3), memory_nodes=NodeMask.of(0, 1), version=version)
    made = CgroupMirror(tree, root)
    made.materialize()
    made.add("kubepods/pod1/abc")
    return made


def read(root: Path, *parts: str) -> str:
    return root.joinpath(*parts).read_text()


def unread(pipe: int) -> int:
    """Bytes nobody has read yet."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_v2_files_lie_where_the_kernel_has_them(tmp_path: Path) -> None:
    mirror(tmp_path)
    assert "cpuset" in read(tmp_path, "cgroup.controllers").split()
    assert read(tmp_path, "cpuset.cpus.effective") == "0-3\n"
    assert not (tmp_path / "cpuset.cpus").exists()
    assert read(tmp_path, "kubepods", "pod1", "abc", "cpuset.cpus") == "\n"
    assert read(tmp_path, "kubepods", "pod1", "abc", "cpuset.mems.effective") == "0-1\n"


def test_v1_files_lie_below_the_controller(tmp_path: Path) -> None:
    mirror(tmp_path, version=1)
    assert read(tmp_path, "cpuset", "cpuset.cpus") == "0-3\n"
    assert read(tmp_path, "cpuset", "kubepods", "cpuset.effective_cpus") == "\n"
    assert not (tmp_path / "cgroup.controllers").exists()


def test_a_write_from_outside_is_taken_over(tmp_path: Path) -> None:
    made = mirror(tmp_path)
    (tmp_path / "kubepods" / "cpuset.cpus").write_text("2,1")
    made.absorb()
    assert made.rejections == []
    assert read(tmp_path, "kubepods", "cpuset.cpus") == "1-2\n"
    assert read(tmp_path, "kubepods", "pod1", "abc", "cpuset.cpus.effective") == "1-2\n"


def test_a_rejected_write_is_reported_once_and_undone(tmp_path: Path) -> None:
    made = mirror(tmp_path)
    file = tmp_path / "kubepods" / "pod1" / "abc" / "cpuset.cpus"
    file.write_text("3\n")
    made.absorb()
    made.tree.attach("kubepods/pod1/abc")
    file.write_text("\n")
    made.absorb()
    assert [error.rule.name for error in made.rejections] == ["clearing"]
    assert file.read_text() == "3\n"
    made.absorb()
    assert len(made.rejections) == 1


def test_a_file_of_no_bytes_is_a_writer_under_way(tmp_path: Path) -> None:
    made = mirror(tmp_path)
    file = tmp_path / "kubepods" / "cpuset.cpus"
    file.write_text("1\n")
    made.absorb()
    file.write_text("")
    made.absorb()
    assert made.tree.own_cpus("kubepods") == CPUSet.of(1)
    assert file.read_text() == ""


def test_a_value_is_read_at_once_however_soon_the_next_one_comes(tmp_path: Path) -> None:
    made = mirror(tmp_path)
    file = tmp_path / "kubepods" / "cpuset.cpus"
    file.unlink()
    os.mkfifo(file)

    def write() -> None:
        with file.open("wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(b"1")
            while unread(pipe.fileno()):
                time.sleep(0.001)
            pipe.write(b"-3")

    writer = threading.Thread(target=write)
    writer.start()
    made.absorb()
    writer.join()
    assert made.tree.own_cpus("kubepods") == CPUSet.of(1)


def test_a_child_may_be_looked_at_after_its_parent_was_widened_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mirror(tmp_path, version=1)
    parent, child = (made.directory(path) / "cpuset.cpus" for path in ("kubepods/pod1", "kubepods/pod1/abc"))
    for path in ("kubepods", "kubepods/pod1"):
        made.tree.write(path, CpusetFile.CPUS, "0-3" if path == "kubepods" else "0-1")
    made.flush()
    read = cgroup_mirror._read

    def read_and_write(file: Path) -> str:
        text = read(file)
        if file == parent and text == "0-1\n":
            parent.write_text("0-3")
            child.write_text("3")
        return text

    monkeypatch.setattr(cgroup_mirror, "_read", read_and_write)
    made.absorb()
    assert made.rejections == []
    assert made.tree.text("kubepods/pod1/abc", CpusetFile.CPUS) == "3"


def test_a_value_that_only_lacks_the_line_end_is_left_alone(tmp_path: Path) -> None:
    made = mirror(tmp_path)
    file = tmp_path / "kubepods" / "cpuset.cpus"
    file.write_text("1-2")
    made.absorb()
    assert file.read_text() == "1-2"


def test_a_removed_cgroup_is_gone_from_the_directory(tmp_path: Path) -> None:
    made = mirror(tmp_path)
    made.remove("kubepods/pod1/abc")
    assert not (tmp_path / "kubepods" / "pod1" / "abc").exists()
    assert "kubepods/pod1/abc" not in made.tree


@pytest.mark.parametrize("version", [1, 2])
def test_the_agents_own_cgroup_code_works_on_it(tmp_path: Path, version: int) -> None:
    made = mirror(tmp_path, version=version)
    ref = CgroupRef("/kubepods/pod1", "/kubepods/pod1/abc")
    if version == 1:
        for path in ("kubepods", "kubepods/pod1"):
            (made.directory(path) / "cpuset.cpus").write_text("0-3\n")
            made.absorb()
    WritableCgroups.open(str(tmp_path)).write_cpus(ref, CPUSet.of(2, 3))
    made.absorb()
    assert made.rejections == []
    assert made.tree.effective_cpus("kubepods/pod1/abc") == CPUSet.of(2, 3)
    assert WritableCgroups.open(str(tmp_path)).read_effective(ref) == CPUSet.of(2, 3)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tree = CgroupTree(online=CPUSet.of(0), memory_nodes=NodeMask.of(0))
    with pytest.raises(HostError, match="file"):
        CgroupMirror(tree, tmp_path / "file").materialize()
