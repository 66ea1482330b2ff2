import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.checkpoint import file as checkpoint
from nri_plugin.checkpoint.file import CheckpointFile, LoadResult, Origin, read_checkpoint
from nri_plugin.host.mounts import MountPoint
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.records import Allocation
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import node as a_node

FIRST = State(allocations={"p1/a": Allocation(CPUSet.of(2))})
SECOND = State(allocations={"p1/a": Allocation(CPUSet.of(2)), "p2/b": Allocation(CPUSet.of(3))})
THIRD = State(allocations={"p2/b": Allocation(CPUSet.of(3))})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "nri-pin"


@pytest.fixture
def file(directory: Path) -> CheckpointFile:
    return CheckpointFile(str(directory), durable=False)


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory))


def load(directory: Path) -> LoadResult:
    return CheckpointFile(str(directory)).load()


def test_saved_state_is_loaded(file: CheckpointFile, directory: Path) -> None:
    file.save(FIRST)
    assert load(directory) == LoadResult(FIRST, Origin.CURRENT)


def test_no_checkpoint_is_no_error(directory: Path) -> None:
    assert load(directory) == LoadResult()


def test_directory_and_file_are_for_the_owner_only(file: CheckpointFile, directory: Path) -> None:
    file.save(FIRST)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(file.path).stat().st_mode) == 0o600


def test_former_generation_is_kept_and_nothing_else(file: CheckpointFile, directory: Path) -> None:
    for state in (FIRST, SECOND, THIRD):
        file.save(state)
    assert names(directory) == {"state.json", "state.json.previous"}
    previous = read_checkpoint(f"{file.path}.previous")
    assert previous is not None
    assert (previous.state, previous.generation) == (SECOND, 2)


def test_generations_go_on_counting_after_a_load(file: CheckpointFile, directory: Path) -> None:
    file.save(FIRST)
    file.save(SECOND)
    again = CheckpointFile(str(directory))
    again.load()
    again.save(THIRD)
    found = read_checkpoint(again.path)
    assert found is not None
    assert found.generation == 3


def test_facts_of_the_node_are_in_the_file(directory: Path) -> None:
    CheckpointFile(str(directory), a_node(), durable=False).save(FIRST)
    found = read_checkpoint(str(directory / "state.json"))
    assert found is not None
    assert found.facts is not None
    assert (str(found.facts.online), str(found.facts.reserved)) == ("0-15", "0-1")


def test_directory_that_was_removed_is_made_again(file: CheckpointFile, directory: Path) -> None:
    file.save(FIRST)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    file.save(SECOND)
    assert load(directory).state == SECOND


# --- damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def huge(path: Path) -> None:
    with path.open("r+b") as handle:
        handle.truncate(checkpoint.LARGEST + 1)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE = {
    "a flipped bit": (flip, "checksum"),
    "a cut": (cut, "cut short"),
    "an empty file": (empty, "does not begin"),
    "a symbolic link": (link, "is a symbolic link"),
    "a huge file": (huge, "more than the"),
    "a pipe": (pipe, "no regular file"),
    "a directory": (folder, "no regular file"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_checkpoint_is_kept_aside_and_the_former_generation_taken(
    file: CheckpointFile, directory: Path, damage: Callable[[Path], None], reason: str
) -> None:
    file.save(FIRST)
    file.save(SECOND)
    damage(Path(file.path))
    status = os.lstat(file.path)
    found = load(directory)
    assert (found.state, found.origin) == (FIRST, Origin.PREVIOUS)
    assert reason in found.reason
    assert found.kept_aside == f"{file.path}.damaged-1"
    assert os.lstat(found.kept_aside).st_ino == status.st_ino
    assert not os.path.lexists(file.path)


def test_link_leads_nobody_to_what_it_points_at(
    file: CheckpointFile, directory: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    directory.mkdir()
    for name in ("state.json", "state.json.new", "state.json.previous", "state.json.previous.new"):
        (directory / name).symlink_to(precious)
    load(directory)
    file.save(FIRST)
    file.save(SECOND)
    assert precious.read_text() == "keep"
    assert load(directory).state == SECOND


def test_state_is_rebuilt_when_both_generations_are_damaged(file: CheckpointFile, directory: Path) -> None:
    file.save(FIRST)
    file.save(SECOND)
    empty(Path(file.path))
    empty(Path(f"{file.path}.previous"))
    found = load(directory)
    assert (found.state, found.origin) == (None, Origin.NONE)
    assert found.reason.count("does not begin") == 2


def test_former_generation_is_found_again_after_a_process_that_moved_its_successor_aside_and_ended(
    file: CheckpointFile, directory: Path
) -> None:
    file.save(FIRST)
    file.save(SECOND)
    empty(Path(file.path))
    kept = load(directory)
    again = load(directory)
    assert (kept.state, kept.origin) == (again.state, again.origin) == (FIRST, Origin.PREVIOUS)
    assert again.reason == f"{file.path}: it is gone, and the generation before it is there"
    assert again.kept_aside is None


def test_nothing_at_all_is_a_first_start(directory: Path) -> None:
    directory.mkdir()
    assert load(directory) == LoadResult()


def test_every_damaged_checkpoint_is_kept(file: CheckpointFile, directory: Path) -> None:
    file.save(FIRST)
    for number in (1, 2, 3):
        Path(file.path).write_text(f"damage {number}")
        load(directory)
    kept = {path.name: path.read_text() for path in directory.glob("*.damaged-*")}
    assert kept == {f"state.json.damaged-{number}": f"damage {number}" for number in (1, 2, 3)}


def test_damage_that_cannot_be_moved_aside_is_reported(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.save(FIRST)
    empty(Path(file.path))
    monkeypatch.setattr(os, "rename", raising(errno.EROFS))
    found = load(directory)
    assert found.kept_aside is None
    assert "could not be moved aside: Read-only file system" in found.reason


def test_next_save_after_damage_is_sound(file: CheckpointFile, directory: Path) -> None:
    file.save(FIRST)
    empty(Path(file.path))
    again = CheckpointFile(str(directory), durable=False)
    again.load()
    again.save(SECOND)
    assert load(directory) == LoadResult(SECOND, Origin.CURRENT)


def test_disk_that_cannot_be_read_counts_as_damage(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.save(FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", raising(errno.EIO))
        found = load(directory)
    assert (found.state, found.kept_aside) == (None, f"{file.path}.damaged-1")
    assert "cannot be read: Input/output error" in found.reason


# --- failing and crashing


def raising(number: int) -> Callable[..., Any]:
    def fail(*_args: object, **_named: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


class CrashError(BaseException):
    """The process is gone, in the middle of a system call or right before it."""


STEPS = ("open", "write", "close", "link", "replace", "unlink", "fsync")


def crashes(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Let every file system call from the `at`-th on fail, the crash being the first of them."""
    seen = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen > at:
                raise CrashError
            return real(*args, **named)

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))


@pytest.mark.parametrize("durable", [False, True])
def test_crash_at_any_system_call_leaves_the_state_before_or_after(tmp_path: Path, durable: bool) -> None:
    outcomes = []
    for at in range(100):
        directory = tmp_path / str(at)
        file = CheckpointFile(str(directory), durable=durable)
        file.save(FIRST)
        file.save(SECOND)
        with pytest.MonkeyPatch.context() as patch:
            crashes(patch, at)
            try:
                file.save(THIRD)
            except CrashError:
                crashed = True
            else:
                crashed = False
        found = load(directory)
        assert found.origin is Origin.CURRENT
        outcomes.append(found.state)
        again = CheckpointFile(str(directory), durable=durable)
        again.save(FIRST)
        again.save(SECOND)  # by now, what the crash left behind is gone
        assert names(directory) == {"state.json", "state.json.previous"}
        if not crashed:
            break
    assert SECOND in outcomes
    assert outcomes[-1] == THIRD
    assert outcomes == sorted(outcomes, key=lambda state: state == THIRD)


@pytest.mark.parametrize("call", ["open", "write", "replace"])
def test_failed_save_leaves_the_former_checkpoint(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file.save(FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, raising(errno.ENOSPC))
        with pytest.raises(CheckpointError, match="No space left on device; free space"):
            file.save(SECOND)
    assert load(directory).state == FIRST
    file.save(SECOND)
    assert load(directory).state == SECOND


@pytest.fixture
def small_files() -> Iterator[None]:
    """The kernel refuses to make any file longer than 100 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_write_that_the_kernel_stops_half_way_leaves_no_litter(file: CheckpointFile, directory: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved: File too large"):
        file.save(FIRST)
    assert names(directory) == set()


def test_file_system_without_links_keeps_no_former_generation(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", raising(errno.EPERM))
    file.save(FIRST)
    file.save(SECOND)
    assert names(directory) == {"state.json"}
    assert load(directory).state == SECOND


def test_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").write_text("")
    with pytest.raises(CheckpointError, match="cannot be saved"):
        CheckpointFile(str(tmp_path / "in-the-way" / "nri-pin"), durable=False).save(FIRST)


def test_text_that_is_not_unicode_is_an_error_not_a_crash(file: CheckpointFile) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved"):
        file.save(State(allocations={"\ud800/a": Allocation()}))


# --- durability


def spy_on_fsync(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    synced: list[str] = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        synced.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    return synced


def test_durable_save_waits_for_file_and_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = spy_on_fsync(monkeypatch)
    CheckpointFile(str(directory), durable=True).save(FIRST)
    assert synced == ["file", "directory"]


def test_save_in_memory_waits_for_nothing(file: CheckpointFile, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = spy_on_fsync(monkeypatch)
    file.save(FIRST)
    assert synced == []


@pytest.mark.parametrize(("fstype", "durable"), [("tmpfs", False), ("ext4", True)])
def test_durability_follows_the_file_system(
    directory: Path, monkeypatch: pytest.MonkeyPatch, fstype: str, durable: bool
) -> None:
    monkeypatch.setattr("nri_plugin.host.mounts.read_mounts", lambda: [MountPoint("/", fstype, ())])
    assert CheckpointFile(str(directory)).durable is durable


def test_directory_counts_as_lasting_when_the_mounts_cannot_be_told(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[MountPoint]:
        raise HostError("/proc/self/mountinfo", "cannot be read")

    monkeypatch.setattr("nri_plugin.host.mounts.read_mounts", fail)
    assert CheckpointFile(str(directory)).durable
