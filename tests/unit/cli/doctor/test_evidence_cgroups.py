from pathlib import Path

import pytest

from nri_plugin.cli.doctor.evidence import Tree, read_tree
from nri_plugin.cli.doctor.view import Hidden, NodeView
from nri_plugin.host.mounts import MountPoint
from nri_plugin.model.sets import CPUSet


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_every_level_down_to_the_pods_is_read(tmp_path: Path) -> None:
    root = tmp_path / "sys/fs/cgroup"
    write(
        root,
        cgroup__controllers="cpuset cpu\n",
        cgroup__subtree_control="cpuset\n",
        cpuset__cpus__effective="0-3\n",
    )
    top = root / "kubepods.slice"
    write(top, cgroup__subtree_control="cpu\n", cpuset__cpus="", cpuset__cpus__effective="0-3\n")
    write(
        top / "pod.slice",
        cpuset__cpus="1-2\n",
        cpuset__cpus__effective="1-2\n",
        cpuset__cpus__partition="isolated\n",
    )
    tree = read_tree(NodeView(str(tmp_path), []))
    assert isinstance(tree, Tree)
    assert (tree.version, tree.top, tree.options) == (2, "kubepods.slice", None)
    assert [(group.path, group.passes_on, group.partition) for group in tree.groups] == [
        ("", True, ""),
        ("kubepods.slice", False, ""),
        ("kubepods.slice/pod.slice", False, "isolated"),
    ]
    assert tree.groups[2].cpus == CPUSet.parse("1-2")
    assert tree.groups[1].cpus == CPUSet()


def test_no_tree_is_told_or_hidden(tmp_path: Path) -> None:
    assert isinstance(read_tree(NodeView(str(tmp_path), [])), Hidden)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    assert isinstance(read_tree(NodeView(str(tmp_path), [])), str)
    pod = NodeView("/", [MountPoint("/", "overlay", ())], in_pod=True)
    assert read_tree(pod) == Hidden("/sys/fs/cgroup", "/host/sys/fs/cgroup")


def test_a_real_tree_is_read() -> None:
    assert isinstance(read_tree(NodeView("/")), Tree | str | Hidden)


@pytest.mark.parametrize(
    ("files", "nests"),
    [
        ({"cpuset__cpus": "\n", "cpuset__cpus__exclusive": "\n"}, True),
        ({"cpuset__cpus": "\n"}, False),
        ({}, None),  # the controller is not passed on
    ],
)
def test_whether_groups_can_be_partitions_is_told_by_the_files_of_one(
    tmp_path: Path, files: dict[str, str], nests: bool | None
) -> None:
    root = tmp_path / "sys/fs/cgroup"
    write(root, cgroup__controllers="cpuset\n")
    empty = read_tree(NodeView(str(tmp_path), []))
    assert isinstance(empty, Tree)
    assert empty.nests_partitions is None
    write(root / "kubepods.slice", **files)
    tree = read_tree(NodeView(str(tmp_path), []))
    assert isinstance(tree, Tree)
    assert (tree.nests_partitions, tree.is_spoilt) == (nests, False)


def test_the_mark_of_mended_cpus_is_seen(tmp_path: Path) -> None:
    write(tmp_path / "sys/fs/cgroup", cgroup__controllers="cpuset\n")
    (tmp_path / "sys/fs/cgroup/nri-pin-mended").mkdir()
    tree = read_tree(NodeView(str(tmp_path), []))
    assert isinstance(tree, Tree)
    assert tree.is_spoilt
