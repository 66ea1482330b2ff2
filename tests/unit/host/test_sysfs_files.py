from pathlib import Path

import pytest

from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.errors import HostError


@pytest.fixture
def files(tmp_path: Path) -> KernelFiles:
    return KernelFiles(str(tmp_path))


def write(files: KernelFiles, name: str, text: str) -> None:
    Path(files.path(name)).write_text(text)


def test_paths_stand_below_any_root() -> None:
    assert KernelFiles("/").path("sys/x") == "/sys/x"
    assert KernelFiles("/host").path("sys/x") == "/host/sys/x"
    assert KernelFiles("/host/").path("sys/x") == "/host/sys/x"


def test_a_missing_file_is_none(files: KernelFiles) -> None:
    write(files, "plain", "1")
    for name in ("nothing", "plain/below"):
        assert files.text(name) is None
        assert files.names(name) is None
        assert files.number(name) is None
        assert files.id_list(name) is None
        assert files.end_of_link(name) is None


def test_white_space_and_nuls_around_a_value_mean_nothing(files: KernelFiles) -> None:
    write(files, "has_cpu", "0-7\n\0")
    assert files.text("has_cpu") == "0-7"
    assert files.id_list("has_cpu") == 0xFF


def test_a_file_of_many_blocks_is_read_whole(files: KernelFiles) -> None:
    text = ",".join(map(str, range(0, 60000, 2)))
    write(files, "list", text)
    assert files.text("list") == text


def test_numbered_entries_are_sorted_as_numbers(files: KernelFiles, tmp_path: Path) -> None:
    for name in ("cpu10", "cpu9", "cpufreq", "cpu", "cpu1x", "node3"):
        (tmp_path / name).mkdir()
    assert files.numbered("", "cpu") == [9, 10]


def test_the_first_file_there_is_answers(files: KernelFiles) -> None:
    write(files, "map", "00000001,00000003\n")
    assert files.ids("some_list", "map") == 1 << 32 | 3
    write(files, "some_list", "5")
    assert files.ids("some_list", "map") == 1 << 5
    write(files, "some_list", "")
    assert files.ids("some_list", "map") == 1 << 32 | 3
    write(files, "map", "00000000,00000000")
    assert files.ids("some_list", "map") is None


def test_a_link_is_named_by_its_end(files: KernelFiles, tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "device").symlink_to("0000:01:00.0")
    assert files.end_of_link("device") == "0000:01:00.0"


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        ("number", "two", "expected a number, found 'two'"),
        ("number", "", "expected a number, found an empty file"),
        ("id_list", "0-", "expected a list such as 0-3,8, found '0-'"),
        ("id_list", "3-1", "expected a list such as 0-3,8, found '3-1'"),
        ("id_map", "0xff", "expected a bit map such as 00000000,0000ffff, found '0xff'"),
        ("id_map", "1,2", "expected a bit map such as 00000000,0000ffff, found '1,2'"),
    ],
)
def test_other_content_is_refused_with_path_and_both_sides(
    files: KernelFiles, read: str, text: str, message: str
) -> None:
    write(files, "value", text)
    with pytest.raises(HostError) as caught:
        getattr(files, read)("value")
    assert str(caught.value) == f"{files.path('value')}: {message}"


def test_long_content_is_cut_in_the_message(files: KernelFiles) -> None:
    write(files, "value", "x" * 5000)
    with pytest.raises(HostError, match=r"found 'x{57}\.\.\.'$"):
        files.number("value")


def test_an_unreadable_file_is_one_line_that_names_it(files: KernelFiles, tmp_path: Path) -> None:
    (tmp_path / "value").mkdir()
    with pytest.raises(HostError) as caught:
        files.text("value")
    assert str(caught.value) == f"{tmp_path}/value: cannot be read: is a directory"


def test_a_directory_that_may_not_be_listed_is_named(unprivileged_dir: Path) -> None:
    (unprivileged_dir / "closed").mkdir(mode=0)
    with pytest.raises(HostError, match="closed: cannot be listed: permission denied"):
        KernelFiles(str(unprivileged_dir)).names("closed")
