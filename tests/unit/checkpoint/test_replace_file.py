"""How root replaces a file: others can neither lead the write elsewhere nor get the file."""

import os
import stat
from pathlib import Path

import pytest

from nri_plugin.checkpoint import directory
from nri_plugin.checkpoint.directory import replace_file
from nri_plugin.model.errors import HostError

STRANGER = 4242


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of root's, whoever runs the test; what is called `theirs` belongs to a user, `group` to a group."""
    monkeypatch.setattr(directory.os, "geteuid", lambda: 0)
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = list(real(path))
        found[4:6] = STRANGER * (path.name == "theirs"), STRANGER * (path.name == "group")
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", lstat)
    tmp_path.chmod(0o755)
    return tmp_path


def test_a_file_is_replaced_with_the_mode_of_the_former_one(root: Path) -> None:
    path = root / "config.yaml"
    replace_file(str(path), b"1")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"1", 0o600)
    path.chmod(0o4640)
    replace_file(str(path), b"2", like=str(path))
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"2", 0o640)
    replace_file(str(path), b"3", mode=0o755, like=str(root / "none"))
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"3", 0o755)
    with pytest.raises(FileExistsError):
        replace_file(str(path), b"4", may_exist=False)
    assert [one.name for one in root.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("ending", ["", ".new", ".new-1", ".before-nri-pin.new"])
def test_a_link_is_replaced_and_not_followed(root: Path, ending: str) -> None:
    victim, path = root / "victim", root / "config.yaml"
    victim.write_text("secret")
    (root / f"config.yaml{ending}").symlink_to(victim)
    replace_file(str(path), b"new")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("secret", "new", False)


@pytest.mark.parametrize(
    ("name", "mode", "who"),
    [
        ("theirs/config.yaml", 0o755, "user 4242"),
        ("theirs/below/config.yaml", 0o755, "user 4242"),
        ("open/config.yaml", 0o777, "every user"),
        ("group/config.yaml", 0o775, "group 4242"),
        ("group/config.yaml", 0o755, ""),
        ("open/config.yaml", 0o1777, ""),  # as /tmp: nobody else can change the name that is made here
    ],
)
def test_root_writes_nothing_where_others_can_change_a_folder_above(
    root: Path, name: str, mode: int, who: str
) -> None:
    folder = (root / name).parent
    folder.mkdir(parents=True)
    folder.chmod(mode)
    (root / "link").symlink_to(folder)
    for path in (root / name, root / "link/config.yaml"):
        if not who:
            replace_file(str(path), b"new")
            continue
        with pytest.raises(HostError, match=f"is not written, because {who} can change "):
            replace_file(str(path), b"new")
        assert not path.exists()


def test_a_file_of_another_user_gives_no_mode(root: Path) -> None:
    (root / "theirs").write_text("1")
    with pytest.raises(HostError, match="is not replaced, because user 4242 can change it"):
        replace_file(str(root / "theirs"), b"2", like=str(root / "theirs"))
    assert (root / "theirs").read_text() == "1"
