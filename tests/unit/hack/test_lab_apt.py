"""Packages of the lab's own: beside another apt, and before anything that takes minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.lab import apt, setting_up
from tests.e2e.lab.apt import DPKG_LOCK_S, Mirror, install_on_this_machine, lock_holder
from tests.e2e.lab.shell import CannotRun

MIRROR = Mirror("http://deb.example", "/k.gpg", "bookworm")

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_process_that_holds_a_lock_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    assert lock_holder(lock) == ""
    assert lock_holder(tmp_path / "none") == ""
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert lock_holder(lock).startswith(f"process {other.pid} (")
        other.communicate()
    assert lock_holder(lock) == ""


def test_packages_are_installed_when_another_apt_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []
    sources = tmp_path / "debian.sources"
    sources.write_text("URIs: http://deb.example\n")
    monkeypatch.setattr(apt, "SOURCES", sources)
    monkeypatch.setattr(apt, "lock_holder", lambda _path: "process 12 (apt-get)")
    monkeypatch.setattr(apt, "run", lambda words, **_options: commands.append([*map(str, words)]))
    install_on_this_machine(MIRROR, ["qemu"], "bookworm", tmp_path / "own")
    assert "for process 12 (apt-get), which holds /var/lib/dpkg/lock-frontend" in capsys.readouterr().out
    update, install = commands
    assert "update" in update
    assert f"DPkg::Lock::Timeout={DPKG_LOCK_S}" in install
    assert f"Dir::Cache::archives={tmp_path}/own/archives" in install
    assert (tmp_path / "own/archives/partial").is_dir()


def test_what_this_machine_cannot_install_is_known_before_a_root_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []

    def refuse(*_arguments: object) -> None:
        raise CannotRun("could not install qemu: Could not get lock /var/lib/dpkg/lock-frontend")

    monkeypatch.setattr(setting_up, "_install", refuse)
    monkeypatch.setattr(setting_up, "prepare_root", lambda name, *_others: built.append(name))
    with pytest.raises(CannotRun, match="Could not get lock"):
        setting_up.prepare(["sid"], ["sid"], MIRROR, tmp_path)
    assert built == []
