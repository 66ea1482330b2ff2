import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_plugin.host import runtime_lock
from nri_plugin.host.runtime_lock import MARK_NAME, RuntimeLock, readable_by_others
from tests.agent_process import REPOSITORY

NewLock = Callable[[], RuntimeLock]


@pytest.fixture
def new_lock(tmp_path: Path) -> Iterator[NewLock]:
    made: list[RuntimeLock] = []

    def make() -> RuntimeLock:
        made.append(RuntimeLock(str(tmp_path / "nri" / "nri.sock")))
        return made[-1]

    (tmp_path / "nri").mkdir(mode=0o700)
    yield make
    for lock in made:
        lock.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Runs code with a `lock` in another process, which then stays."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> "subprocess.Popen[str]":
        text = f"""
            import signal, sys
            sys.path.insert(0, {str(REPOSITORY)!r})
            from nri_plugin.host.runtime_lock import RuntimeLock
            lock = RuntimeLock({str(tmp_path / "nri" / "nri.sock")!r})
            {code}
            print("done", flush=True)
            signal.pause()
        """
        command = [sys.executable, "-I", "-c", textwrap.dedent(text)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "done\n"
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_one_at_a_time_has_it(new_lock: NewLock, tmp_path: Path):
    first, second = new_lock(), new_lock()
    assert first.take() == ""
    assert (first._lock is not None, second._lock is not None) == (True, False)
    assert f"serves the runtime at {tmp_path / 'nri'}" in second.take()
    first.close()
    assert second.take() == ""


def test_it_needs_no_file_and_leaves_none(new_lock: NewLock, tmp_path: Path):
    lock = new_lock()
    lock.take()
    assert list((tmp_path / "nri").iterdir()) == []
    assert new_lock().take() != ""


def test_another_name_of_the_directory_is_the_same_runtime(new_lock: NewLock, tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "nri")
    new_lock().take()
    assert "another agent" in RuntimeLock(str(tmp_path / "link" / "nri.sock")).take()


def test_who_has_it_is_named_with_its_command(new_lock: NewLock, process):
    holder = process("lock.take()")
    assert f"another agent (process {holder.pid}: {sys.executable} -I -c" in new_lock().take()


def test_an_unseen_holder_is_in_another_container(new_lock: NewLock, monkeypatch: pytest.MonkeyPatch):
    new_lock().take()
    monkeypatch.setattr(RuntimeLock, "_holders", lambda self, **_: iter(()))
    assert "another agent (a process of another container) serves" in new_lock().take()


def test_a_holder_whose_files_may_not_be_seen_is_named_and_never_killed(
    new_lock: NewLock, process, monkeypatch: pytest.MonkeyPatch
):
    holder = process("lock.take()")

    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    lock = new_lock()
    assert f"another agent (process {holder.pid}: " in lock.demand(0.0, 0.0)
    assert holder.poll() is None


def test_it_ends_with_its_process(new_lock: NewLock, process):
    holder = process("lock.take()")
    holder.kill()
    holder.wait()
    assert new_lock().take() == ""


def test_a_program_that_the_holder_starts_does_not_inherit_it(new_lock: NewLock, process):
    holder = process(
        "lock.take(); import subprocess; child = subprocess.Popen(['sleep', '1000'], close_fds=False)"
    )
    child = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text()
    holder.kill()
    holder.wait()
    try:
        assert new_lock().take() == ""
    finally:
        os.kill(int(child), 9)


def test_a_directory_that_is_not_there_is_said(tmp_path: Path):
    lock = RuntimeLock(str(tmp_path / "none" / "nri.sock"))
    assert lock.take() == (
        f"{tmp_path / 'none'}: no such file or directory; is the container runtime running, with NRI enabled"
    )


def test_what_cannot_be_locked_is_said(new_lock: NewLock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert new_lock().take() == f"{tmp_path / 'nri'} cannot be locked: operation not supported"


def test_it_follows_a_directory_that_was_replaced(new_lock: NewLock, tmp_path: Path):
    lock = new_lock()
    lock.take()
    shutil.rmtree(tmp_path / "nri")
    assert lock.take() == "", "without a directory there is no other runtime"
    (tmp_path / "nri").mkdir()
    assert lock.take() == ""
    assert "another agent" in new_lock().take()


def test_it_is_not_held_in_a_new_directory_that_another_agent_has(new_lock: NewLock, tmp_path: Path):
    lock, other = new_lock(), new_lock()
    lock.take()
    (tmp_path / "nri").rename(tmp_path / "away")
    (tmp_path / "nri").mkdir()
    other.take()
    assert "another agent" in lock.take()


def test_a_launched_agent_is_heard_as_long_as_it_lives(new_lock: NewLock):
    holder, launched = new_lock(), new_lock()
    holder.take()
    assert not holder.is_wanted()
    launched.ask()
    launched.ask()
    assert holder.is_wanted()
    assert not launched.is_wanted()
    launched.close()
    assert not holder.is_wanted()


def test_a_file_of_another_user_is_no_launched_agent(new_lock: NewLock, tmp_path: Path):
    holder, launched = new_lock(), new_lock()
    holder.take()
    launched.ask()
    if os.geteuid():
        pytest.skip("only root can give files away; run as root")
    os.chown(tmp_path / "nri" / MARK_NAME, 1000, 1000)
    assert not holder.is_wanted()


def test_a_link_in_place_of_the_file_is_not_followed(new_lock: NewLock, tmp_path: Path):
    (tmp_path / "nri" / MARK_NAME).symlink_to(tmp_path / "target")
    launched = new_lock()
    assert launched.demand(0.0, 0.0) == ""
    assert not (tmp_path / "target").exists()
    assert not new_lock().is_wanted()


def test_a_launched_agent_makes_the_directory_that_its_runtime_is_about_to_make(tmp_path: Path):
    lock = RuntimeLock(str(tmp_path / "run" / "nri" / "nri.sock"))
    assert lock.demand(0.0, 0.0) == ""
    assert (tmp_path / "run" / "nri").stat().st_mode & 0o777 == 0o700
    lock.close()


def test_a_holder_that_does_not_give_up_is_killed(new_lock: NewLock, process):
    holder = process("lock.take()")
    assert new_lock().demand(0.0, 60.0) == ""
    assert holder.wait() == -9


def test_a_process_that_only_waits_is_not_killed(new_lock: NewLock, process, tmp_path: Path):
    waiting = process("import os; fd = os.open(lock.folder, os.O_RDONLY)")
    holder = process("lock.take()")
    assert new_lock().demand(0.0, 60.0) == ""
    assert (holder.wait(), waiting.poll()) == (-9, None)


def test_a_holder_that_cannot_be_killed_keeps_it(new_lock: NewLock, monkeypatch: pytest.MonkeyPatch):
    first = new_lock()
    first.take()  # of this very process
    assert "another agent" in new_lock().demand(0.0, 0.0)


@pytest.mark.parametrize(("mode", "is_told"), [(0o700, False), (0o711, False), (0o755, True), (0o750, True)])
def test_a_directory_that_others_can_lock_is_told(tmp_path: Path, mode: int, is_told: bool):
    tmp_path.chmod(mode)
    assert bool(readable_by_others(str(tmp_path))) == is_told


def test_nothing_is_told_of_a_directory_that_is_not_there(tmp_path: Path):
    assert readable_by_others(str(tmp_path / "none")) == ""


def test_lines_of_waiting_processes_and_other_locks_name_no_holder():
    line = "3: FLOCK  ADVISORY  WRITE 4711 00:1a:812 0 EOF\n"
    assert runtime_lock._is_flock(line, 812)
    assert not runtime_lock._is_flock(line, 81)
    assert not runtime_lock._is_flock("3: -> FLOCK  ADVISORY  WRITE 4711 00:1a:812 0 EOF\n", 812)
    assert not runtime_lock._is_flock("3: POSIX  ADVISORY  WRITE 4711 00:1a:812 0 EOF\n", 812)
