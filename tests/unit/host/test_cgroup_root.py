from pathlib import Path

import pytest

from nri_plugin.host.mounts import CpusetTree, MountPoint, find_cpuset_tree
from nri_plugin.model.errors import HostError

ON_DISK = MountPoint("/", "ext4", ())


def v2(directory: Path, controllers: str = "cpuset cpu memory") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.controllers").write_text(controllers + "\n")


def v1(directory: Path) -> None:
    (directory / "cpuset").mkdir(parents=True)
    (directory / "cpuset" / "cpuset.cpus").write_text("0-3\n")


def test_tree_with_controllers_at_its_root_is_v2(tmp_path: Path) -> None:
    v2(tmp_path)
    assert find_cpuset_tree(str(tmp_path), [ON_DISK]) == CpusetTree(2, str(tmp_path), is_kernel=False)


def test_tree_with_a_cpuset_directory_is_v1(tmp_path: Path) -> None:
    v1(tmp_path)
    assert find_cpuset_tree(str(tmp_path), [ON_DISK]) == CpusetTree(1, f"{tmp_path}/cpuset", is_kernel=False)


def test_empty_cpuset_directory_is_v1_too(tmp_path: Path) -> None:
    (tmp_path / "cpuset").mkdir()
    assert find_cpuset_tree(str(tmp_path), [ON_DISK]).version == 1


def test_v1_hierarchy_may_be_named_directly(tmp_path: Path) -> None:
    v1(tmp_path)
    assert find_cpuset_tree(f"{tmp_path}/cpuset", [ON_DISK]).directory == f"{tmp_path}/cpuset"


def test_hybrid_tree_whose_v2_half_has_no_cpuset_is_v1(tmp_path: Path) -> None:
    v1(tmp_path)
    v2(tmp_path / "unified", "")
    assert find_cpuset_tree(str(tmp_path), [ON_DISK]).version == 1


def test_hybrid_tree_whose_v2_half_has_cpuset_is_v2_below_unified(tmp_path: Path) -> None:
    v2(tmp_path / "unified")
    (tmp_path / "memory").mkdir()
    assert find_cpuset_tree(str(tmp_path), [ON_DISK]) == CpusetTree(2, f"{tmp_path}/unified", is_kernel=False)


def test_v2_mount_is_the_kernels(tmp_path: Path) -> None:
    v2(tmp_path)
    mounts = [ON_DISK, MountPoint(str(tmp_path), "cgroup2", ("rw",))]
    assert find_cpuset_tree(str(tmp_path), mounts).is_kernel


def test_directory_inside_a_v2_mount_is_the_kernels_too(tmp_path: Path) -> None:
    v2(tmp_path / "docker" / "node")
    mounts = [ON_DISK, MountPoint(str(tmp_path), "cgroup2", ("rw",))]
    assert find_cpuset_tree(f"{tmp_path}/docker/node", mounts) == CpusetTree(
        2, f"{tmp_path}/docker/node", is_kernel=True
    )


def test_v1_mount_is_found_whatever_it_is_called(tmp_path: Path) -> None:
    point = f"{tmp_path}/cpu,cpuset"
    mounts = [ON_DISK, MountPoint(point, "cgroup", ("rw", "cpu", "cpuset"))]
    assert find_cpuset_tree(str(tmp_path), mounts) == CpusetTree(1, point, is_kernel=True)


def test_v1_mount_elsewhere_is_not_taken(tmp_path: Path) -> None:
    v2(tmp_path)
    mounts = [ON_DISK, MountPoint("/sys/fs/cgroup/cpuset", "cgroup", ("rw", "cpuset"))]
    assert find_cpuset_tree(str(tmp_path), mounts).version == 2


def test_v2_root_without_cpuset_says_what_there_is(tmp_path: Path) -> None:
    v2(tmp_path, "cpu io")
    with pytest.raises(HostError, match="cpuset controller is not available here \\(available: cpu io\\)"):
        find_cpuset_tree(str(tmp_path), [ON_DISK])


def test_directory_that_is_no_cgroup_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="neither cgroup"):
        find_cpuset_tree(str(tmp_path), [ON_DISK])


def test_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no such directory"):
        find_cpuset_tree(str(tmp_path / "none"), [ON_DISK])


def test_root_that_is_a_link_is_the_mount_it_leads_to(tmp_path: Path) -> None:
    v2(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mounts = [ON_DISK, MountPoint(f"{tmp_path}/real", "cgroup2", ("rw",))]
    assert find_cpuset_tree(f"{tmp_path}/link", mounts).is_kernel
