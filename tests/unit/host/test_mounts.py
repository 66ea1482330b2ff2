from pathlib import Path

import pytest

from nri_plugin.host.mounts import MountPoint, is_in_memory, parse_mounts, read_mounts
from nri_plugin.model.errors import HostError

LINES = r"""23 30 0:22 / /sys rw,nosuid - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 master:1 - cgroup2 cgroup rw,nsdelegate
33 31 0:31 / /mnt/with\040space rw - ext4 /dev/vda rw,discard
34 31 0:32 / /old/cpu,cpuset rw - cgroup cgroup rw,cpu,cpuset
garbage
35 31 0:33 / /half - tmpfs
"""


def test_mounts_are_told_apart_whatever_optional_fields_they_have() -> None:
    assert [(mount.point, mount.fstype) for mount in parse_mounts(LINES)] == [
        ("/sys", "sysfs"),
        ("/sys/fs/cgroup", "cgroup2"),
        ("/mnt/with space", "ext4"),
        ("/old/cpu,cpuset", "cgroup"),
    ]


def test_super_options_name_the_controllers_of_a_v1_mount() -> None:
    assert parse_mounts(LINES)[-1].super_options == ("rw", "cpu", "cpuset")


def test_mount_holds_itself_and_what_is_below_but_no_neighbour() -> None:
    mount = MountPoint("/run", "tmpfs", ())
    assert mount.holds("/run")
    assert mount.holds("/run/nri-pin")
    assert not mount.holds("/running")
    assert MountPoint("/", "ext4", ()).holds("/anything")


@pytest.mark.parametrize(
    ("path", "expected"), [("/run/nri-pin", True), ("/var/lib/nri-pin", False), ("/run/disk/x", False)]
)
def test_directory_is_in_memory_when_its_nearest_mount_is(path: str, expected: bool) -> None:
    mounts = [
        MountPoint("/", "ext4", ()),
        MountPoint("/run", "tmpfs", ()),
        MountPoint("/run/disk", "xfs", ()),
    ]
    assert is_in_memory(path, mounts) is expected


def test_later_mount_on_the_same_point_hides_the_earlier_one() -> None:
    assert is_in_memory("/run/x", [MountPoint("/run", "ext4", ()), MountPoint("/run", "tmpfs", ())])
    assert not is_in_memory("/run/x", [MountPoint("/run", "tmpfs", ()), MountPoint("/run", "ext4", ())])


def test_directory_is_not_in_memory_when_nothing_is_known() -> None:
    assert not is_in_memory("/run/x", [])


def test_link_into_memory_counts_as_memory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/elsewhere")
    assert is_in_memory(
        str(tmp_path / "link" / "x"), [MountPoint("/", "ext4", ()), MountPoint("/elsewhere", "tmpfs", ())]
    )


def test_unreadable_list_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="nowhere: cannot be read"):
        read_mounts(str(tmp_path / "nowhere"))


def test_this_machine_has_a_root_file_system() -> None:
    assert any(mount.point == "/" for mount in read_mounts())
