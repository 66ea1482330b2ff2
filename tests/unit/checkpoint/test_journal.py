"""What an event appends to the checkpoint, and that nothing of it is lost or left behind whatever fails."""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nri_plugin.checkpoint import file as checkpoint
from nri_plugin.checkpoint.file import CheckpointFile, LoadResult, Origin, read_checkpoint
from nri_plugin.checkpoint.format import last_checksum
from nri_plugin.checkpoint.rows import NodeFacts
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.records import Allocation, CgroupRef, ContainerRecord, Phase, PodRecord
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.builders import node as a_node


def crowd(containers: int) -> State:
    """A node with so many containers."""
    return State(
        containers={
            f"id-{number}": ContainerRecord(
                f"id-{number}", "u", f"c{number}", Phase.RUNNING, CgroupRef("/a/b")
            )
            for number in range(containers)
        }
    )


def with_one(state: State, cpu: int, key: str = "u/x") -> State:
    return state.with_allocation(key, Allocation(CPUSet.of(cpu)))


EMPTY = crowd(40)
FIRST = with_one(EMPTY, 2)
SECOND = with_one(FIRST, 3, "u/y")
THIRD = SECOND.without_allocation("u/x")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "nri-pin"


@pytest.fixture
def file(directory: Path) -> CheckpointFile:
    """An agent's file after its first two events."""
    made = CheckpointFile(str(directory), durable=False)
    made.append(EMPTY)
    made.append(FIRST)
    return made


def load(directory: Path, name: str = "state.json") -> LoadResult:
    return CheckpointFile(str(directory), name=name).load()


def lines(file: CheckpointFile) -> list[bytes]:
    """The records of the journal."""
    data = Path(file.path).read_bytes()
    return data[data.index(b'\n"checksum"') + 1 :].splitlines()[1:]


# --- what is appended


def test_an_event_appends_a_line_with_the_rows_that_it_changed(file: CheckpointFile, directory: Path) -> None:
    before = Path(file.path).read_bytes()
    file.append(SECOND)
    file.append(THIRD)
    assert Path(file.path).read_bytes().startswith(before)
    added, removed = [json.loads(line) for line in lines(file)[1:]]
    assert added.pop("checksum")
    assert added == {"generation": 3, "allocations": [{"key": "u/y", "cpus": "3"}]}
    assert removed.pop("checksum")
    assert removed == {"generation": 4, "removed": {"allocations": ["u/x"]}}
    assert load(directory) == LoadResult(THIRD, Origin.CURRENT)


def test_a_whole_pod_goes_in_one_line(file: CheckpointFile, directory: Path) -> None:
    pod = PodRecord("p", "sb", "n", "ns")
    changed = FIRST.with_pod(pod).with_container(
        ContainerRecord("i", "p", "c", Phase.CREATED, CgroupRef("/p/c"))
    )
    changed = with_one(changed, 7, "p/c").without_container("id-3").without_allocation("u/x")
    file.append(changed)
    assert len(lines(file)) == 2
    assert load(directory).state == changed


def test_nothing_is_written_where_nothing_has_changed(file: CheckpointFile) -> None:
    before = Path(file.path).read_bytes()
    file.append(FIRST)
    file.append(with_one(FIRST, 2))  # another record with the same content
    assert Path(file.path).read_bytes() == before


def test_an_event_beside_thousands_of_containers_does_the_work_of_one_beside_few(tmp_path: Path) -> None:
    def work(containers: int) -> tuple[int, int]:
        file = CheckpointFile(str(tmp_path / str(containers)), durable=False)
        state = crowd(containers)
        file.append(state)
        changed, size, calls = with_one(state, 2), os.stat(file.path).st_size, 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            file.append(changed)
        finally:
            sys.setprofile(None)
        return calls, os.stat(file.path).st_size - size

    (few, line), (many, same_line) = work(30), work(3000)
    assert line == same_line
    assert many <= few + 10


def test_the_first_save_of_a_process_appends_to_nothing_that_it_did_not_write(
    file: CheckpointFile, directory: Path
) -> None:
    before = os.stat(file.path).st_ino
    again = CheckpointFile(str(directory), durable=False)
    again.load()
    again.append(SECOND)
    assert os.stat(file.path).st_ino != before
    assert lines(again) == []
    assert load(directory, "state.json.previous").state == FIRST


def test_other_facts_of_the_node_are_stored_with_a_whole_file(file: CheckpointFile, directory: Path) -> None:
    file.facts = NodeFacts.of(a_node())
    file.append(FIRST)
    found = read_checkpoint(file.path)
    assert found is not None
    assert (found.facts, found.state) == (file.facts, FIRST)


# --- somebody else at the file


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def add(path: Path) -> None:
    with path.open("ab") as handle:
        handle.write(b"\n")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("meddle", [remove, replace, add, cut])
def test_a_file_that_somebody_changed_is_written_again_as_a_whole(
    file: CheckpointFile, directory: Path, meddle: Callable[[Path], None]
) -> None:
    assert file.is_intact()
    meddle(Path(file.path))
    assert not file.is_intact()
    file.append(SECOND)
    assert file.is_intact()
    assert lines(file) == []
    assert load(directory) == LoadResult(SECOND, Origin.CURRENT)


# --- failures


def failing(number: int, *, at: int = 0, part: int = 0) -> Callable[..., Any]:
    """A call that fails, from the `at`-th on; a write takes `part` bytes before."""
    real, seen = os.write, 0

    def call(*args: Any, **_named: Any) -> int:
        nonlocal seen
        seen += 1
        if seen <= at:
            return real(*args)
        if part and seen == at + 1:
            return real(args[0], bytes(args[1])[:part])
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("part", [0, 1, 30])
def test_what_a_failed_append_has_written_is_cut_off_at_once(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch, number: int, part: int
) -> None:
    before, inode = Path(file.path).read_bytes(), os.stat(file.path).st_ino
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(number, part=part))
        with pytest.raises(CheckpointError, match="cannot be saved"):
            file.append(SECOND)
    assert Path(file.path).read_bytes() == before
    file.append(THIRD)
    assert os.stat(file.path).st_ino == inode
    assert len(lines(file)) == 2
    assert load(directory).state == THIRD


def test_a_write_that_takes_a_part_goes_on_with_the_rest(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda number, data: real(number, bytes(data)[:7]))
    file.append(SECOND)
    assert load(directory).state == SECOND


def test_a_file_that_takes_no_more_is_replaced(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the medium may be one of this file's blocks."""
    real, bad = os.write, os.stat(file.path).st_ino

    def write(number: int, data: bytes) -> int:
        if os.fstat(number).st_ino == bad:
            raise OSError(errno.EIO, "injected")
        return real(number, data)

    monkeypatch.setattr(os, "write", write)
    file.append(SECOND)
    assert lines(file) == []
    assert load(directory).state == SECOND


def test_nothing_is_appended_behind_what_could_not_be_cut_off(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC, part=30))
        patch.setattr(os, "ftruncate", failing(errno.EIO))
        with pytest.raises(CheckpointError):
            file.append(SECOND)
    assert load(directory) == LoadResult(FIRST, Origin.CURRENT, is_cut=True)
    file.append(THIRD)
    assert lines(file) == []
    assert load(directory) == LoadResult(THIRD, Origin.CURRENT)


def test_a_record_that_may_not_have_reached_the_disk_is_cut_off_and_none_follows(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CheckpointFile(str(directory), durable=True)
    file.append(FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        patch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(CheckpointError):
            file.append(SECOND)
    assert load(directory) == LoadResult(FIRST, Origin.CURRENT)
    file.append(THIRD)
    assert lines(file) == []
    assert load(directory).state == THIRD


def test_after_a_failure_the_same_state_shows_whether_the_disk_takes_anything(
    file: CheckpointFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        for state in (SECOND, FIRST):
            with pytest.raises(CheckpointError, match="No space left"):
                file.append(state)
    file.append(FIRST)


def test_a_name_that_may_be_lost_is_not_appended_to(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the directory's sync a crash may bring the former file back."""
    file = CheckpointFile(str(directory), durable=True)
    file.append(FIRST)
    file.facts = NodeFacts.of(a_node())
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "sync_directory", failing(errno.EIO))
        with pytest.raises(CheckpointError):
            file.append(SECOND)
    inode = os.stat(file.path).st_ino
    file.append(THIRD)
    assert os.stat(file.path).st_ino != inode
    assert load(directory).state == THIRD


def test_a_journal_is_never_longer_than_what_is_read(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "LARGEST", os.stat(file.path).st_size + 50)
    file.append(SECOND)
    assert lines(file) == []
    assert load(directory).state == SECOND


# --- compaction


def fill(file: CheckpointFile) -> State:
    """Append until the journal is due."""
    for number in range(64):
        file.append(with_one(EMPTY, number, "u/z"))
    return with_one(EMPTY, 63, "u/z")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are compacted once they are longer than the document."""
    monkeypatch.setattr(checkpoint, "LEAST_JOURNAL", 0)


def test_a_short_journal_is_left_alone(file: CheckpointFile) -> None:
    before = Path(file.path).read_bytes()
    file.compact()
    assert Path(file.path).read_bytes() == before


@pytest.mark.usefixtures("small")
def test_a_long_journal_is_compacted_and_the_former_file_kept(directory: Path) -> None:
    file = CheckpointFile(str(directory), durable=False)
    file.append(EMPTY)
    state = fill(file)
    before = Path(file.path).read_bytes()
    file.compact()
    assert lines(file) == []
    assert len(Path(file.path).read_bytes()) < len(before)
    assert (directory / "state.json.previous").read_bytes() == before
    assert sorted(os.listdir(directory)) == ["state.json", "state.json.previous"]
    assert load(directory) == load(directory, "state.json.previous") == LoadResult(state, Origin.CURRENT)
    file.append(FIRST)
    assert len(lines(file)) == 1


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("call", ["open", "write", "replace"])
def test_a_compaction_that_fails_changes_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file = CheckpointFile(str(directory), durable=False)
    file.append(EMPTY)
    fill(file)
    before = Path(file.path).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        file.compact()
    assert Path(file.path).read_bytes() == before
    file.append(SECOND)
    assert load(directory).state == SECOND
    file.compact()  # not tried again for each event
    assert Path(file.path).read_bytes().startswith(before)


# --- damage


def test_a_record_that_was_being_written_is_left_out(file: CheckpointFile, directory: Path) -> None:
    size = os.stat(file.path).st_size
    file.append(SECOND)
    whole = Path(file.path).read_bytes()
    for end in range(size + 1, len(whole) - 1):
        Path(file.path).write_bytes(whole[:end])
        assert load(directory) == LoadResult(FIRST, Origin.CURRENT, is_cut=True)
    Path(file.path).write_bytes(whole[:-1])  # only the end of the line is missing
    assert load(directory) == LoadResult(SECOND, Origin.CURRENT)


def test_of_a_damaged_journal_the_records_before_the_damage_are_taken(
    file: CheckpointFile, directory: Path
) -> None:
    file.append(SECOND)
    file.append(THIRD)
    data = Path(file.path).read_bytes().replace(b'"key":"u/y"', b'"key":"u/Y"')
    Path(file.path).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged in record 2 of its journal, at byte \d+"):
        read_checkpoint(file.path)
    again = CheckpointFile(str(directory), durable=False)
    found = again.load()
    assert (found.state, found.origin) == (FIRST, Origin.BEGINNING)
    assert found.kept_aside == f"{file.path}.damaged-1"
    assert Path(found.kept_aside).read_bytes() == data
    assert "damaged in record 2" in found.reason
    assert load(directory) == LoadResult(FIRST, Origin.CURRENT)
    again.append(THIRD)
    assert load(directory, "state.json.previous").state == FIRST


@pytest.mark.parametrize("call", ["link", "open", "write", "replace"])
def test_damage_on_a_disk_that_fails_is_reported_and_its_beginning_taken(
    file: CheckpointFile, directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file.append(SECOND)
    with Path(file.path).open("ab") as handle:
        handle.write(b"noise\n")
    before, real = Path(file.path).read_bytes(), os.open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, opened if call == "open" else failing(errno.EROFS))
        found = load(directory)
    assert (found.state, found.origin) == (SECOND, Origin.BEGINNING)
    assert "could not be replaced" in found.reason
    assert Path(file.path).read_bytes() == before


MEDDLINGS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "missing": lambda found: [found[0], *found[2:]],
    "repeated": lambda found: [*found[:2], *found[1:]],
    "swapped": lambda found: [found[0], found[2], found[1], *found[3:]],
    "behind another document": lambda found: found[1:],
    "empty": lambda found: [found[0], b"\n", *found[1:]],
}


@pytest.mark.parametrize("meddle", MEDDLINGS.values(), ids=MEDDLINGS)
def test_records_that_are_not_in_their_places_are_noticed(
    file: CheckpointFile, meddle: Callable[[list[bytes]], list[bytes]]
) -> None:
    for state in (SECOND, THIRD, FIRST):
        file.append(state)
    data = Path(file.path).read_bytes()
    end = data.index(b"\n", data.index(b'\n"checksum"') + 1) + 1
    records = [line + b"\n" for line in data[end:].splitlines()]
    Path(file.path).write_bytes(data[:end] + b"".join(meddle(records)))
    with pytest.raises(CheckpointError, match="of its journal"):
        read_checkpoint(file.path)


def test_the_checksum_of_a_text_is_the_last_one_in_it(file: CheckpointFile) -> None:
    data = Path(file.path).read_bytes()
    assert f'"crc32:{last_checksum(data):08x}"}}\n' == data[-18:].decode()


# --- crashes


class CrashError(BaseException):
    """The process is gone, right before a system call or in the middle of a write."""


STEPS = ("open", "write", "close", "link", "replace", "unlink", "fsync", "fdatasync", "ftruncate")


def crash(patch: pytest.MonkeyPatch, at: int, error: int | None = None, *, torn: int = 0) -> None:
    """Let every system call from the `at`-th on fail, or only that one, with an error.

    `torn`: a write that is the end of the process has written so many bytes.
    """
    seen = 0

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen - 1 == at and error is not None and name != "close":
                raise OSError(error, os.strerror(error))
            if seen > at and error is None:
                if name == "write" and torn and seen == at + 1:
                    real(args[0], bytes(args[1])[:torn])
                raise CrashError
            return real(*args, **named)

        return call

    for name in STEPS:
        patch.setattr(os, name, wrap(name, getattr(os, name)))


def lived(directory: Path, act: str, patch: Callable[[pytest.MonkeyPatch], None], *, durable: bool) -> bool:
    """A node's file goes through one step of its life; returns whether nothing happened on the way."""
    file = CheckpointFile(str(directory), durable=durable)
    if act == "first append":
        file.save(SECOND)
        file = CheckpointFile(str(directory), durable=durable)
        file.load()
    else:
        file.append(FIRST)
        file.append(SECOND)
    with pytest.MonkeyPatch.context() as patched:
        patch(patched)
        if act == "compact":
            patched.setattr(file._journal, "due", 0)
        try:
            {
                "append": lambda: file.append(THIRD),
                "first append": lambda: file.append(THIRD),
                "compact": file.compact,
            }[act]()
        except (CrashError, CheckpointError):
            return False
    return True


ACTS = ("append", "first append", "compact")


@pytest.mark.parametrize("torn", [0, 1, 40])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_a_crash_at_any_system_call_leaves_the_state_before_or_after(
    tmp_path: Path, act: str, durable: bool, torn: int
) -> None:
    after, outcomes = (THIRD if "append" in act else SECOND), []
    for at in range(100):
        directory = tmp_path / str(at)
        is_done = lived(directory, act, lambda patch, at=at: crash(patch, at, torn=torn), durable=durable)
        found = load(directory)
        assert found.origin is Origin.CURRENT
        assert found.state in (SECOND, after)
        outcomes.append(found.state)
        if is_done:
            break
    assert outcomes[0] == SECOND
    assert outcomes[-1] == after
    assert outcomes == sorted(outcomes, key=lambda state: state == after)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("act", ACTS)
def test_an_error_at_any_system_call_loses_nothing_and_the_next_event_is_saved(
    tmp_path: Path, act: str, durable: bool, number: int
) -> None:
    after = THIRD if "append" in act else SECOND
    failures = 0
    for at in range(100):
        directory = tmp_path / str(at)
        file = CheckpointFile(str(directory), durable=durable)
        is_done = lived(directory, act, lambda patch, at=at: crash(patch, at, number), durable=durable)
        failures += not is_done
        found = load(directory)
        assert found.origin is Origin.CURRENT
        assert found.state in ((after,) if is_done else (SECOND, after))
        file.load()
        file.append(FIRST)
        assert load(directory) == LoadResult(FIRST, Origin.CURRENT)
        if at > 30:
            break
    # A compaction that fails raises nothing, and an append is made up for.
    assert failures or act in ("compact", "append")
