"""systemctl as it answers where there is systemd, where there is none, and in a chroot."""

from pathlib import Path

import pytest

from nri_plugin.cli.migrate.host import NO_SYSTEMD, Systemd
from nri_plugin.model.errors import HostError

BUS = (
    "System has not been booted with systemd as init system (PID 1). Can't operate.\\n"
    "Failed to connect to bus: Host is down"
)


def systemctl(folder: Path, body: str) -> None:
    program = folder / "systemctl"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_without_systemctl_the_error_says_what_to_do(programs: Path) -> None:
    with pytest.raises(HostError) as caught:
        Systemd().show("kubelet.service", "LoadState")
    assert str(caught.value) == f"systemctl: is not there: {NO_SYSTEMD}"


@pytest.mark.parametrize(
    ("words", "code"),
    [(BUS, 1), ("Running in chroot, ignoring command 'show'", 0), ("Failed to connect to bus", 1)],
)
def test_where_systemd_does_not_answer_the_error_says_what_to_do_first(
    programs: Path, words: str, code: int
) -> None:
    systemctl(programs, f'printf "%b" "{words}" >&2; exit {code}')
    with pytest.raises(HostError) as caught:
        Systemd().show("kubelet.service", "LoadState")
    told = str(caught.value)
    assert told.startswith(
        f"systemctl show --value -p LoadState kubelet.service: {NO_SYSTEMD}; systemctl said: "
    )
    assert told.endswith(words.replace("\\n", " "))


def test_what_systemd_says_of_a_unit_is_told_as_it_is(programs: Path) -> None:
    systemctl(programs, "echo 'Unit x.service is masked.' >&2; exit 1")
    with pytest.raises(HostError, match=r"^systemctl stop x.service: Unit x.service is masked.$"):
        Systemd().stop("x.service")
    systemctl(programs, "exit 4")
    with pytest.raises(HostError, match="exit code 4"):
        Systemd().reload()


def test_below_another_root_the_program_of_that_root_is_called(programs: Path) -> None:
    (programs / "chroot").write_text('#!/bin/sh\necho "$*"\n')
    (programs / "chroot").chmod(0o755)
    assert Systemd("/host").show("kubelet.service", "LoadState") == (
        "/host systemctl show --value -p LoadState kubelet.service"
    )
