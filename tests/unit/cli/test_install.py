import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nri_plugin.__main__ import main
from nri_plugin.cli import installed_files
from nri_plugin.cli.doctor.settings import FileLine, NRISettings
from nri_plugin.cli.doctor.view import NodeView
from nri_plugin.cli.install import launcher
from nri_plugin.cli.installed_files import MARK, is_ours, who_else_may_change
from nri_plugin.model.errors import HostError

GOOD = 'reservedSystemCPUs: "0"\n'


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


READ = installed_files.runtime_settings


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """How the runtime's NRI is set; this machine may have a runtime of its own."""
    said: dict[str, object] = {}
    monkeypatch.setattr(
        installed_files,
        "runtime_settings",
        lambda _view: NRISettings(**{"runtime": "containerd", **said}),  # type: ignore[arg-type]
    )
    return said


@pytest.fixture
def call(tmp_path: Path, capsys):
    """Runs `nri-pin install` on folders of the test; returns the exit code and what was printed."""

    def run(*args: object) -> tuple[int, str]:
        folders = ["--plugin-dir", str(tmp_path / "plugins"), "--config-dir", str(tmp_path / "conf.d")]
        code = main(["install", *folders, *map(str, args)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def files(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*"))


def test_executable_and_drop_in_are_written_under_the_same_number(call, good: Path, tmp_path: Path) -> None:
    assert call("--config", good)[0] == 0
    assert files(tmp_path) == ["conf.d/90-nri-pin.conf", "plugins/90-nri-pin"]
    assert stat.S_IMODE((tmp_path / "plugins/90-nri-pin").stat().st_mode) == 0o755
    assert (tmp_path / "conf.d/90-nri-pin.conf").read_text() == f"{MARK}\n{GOOD}"


def test_the_executable_needs_nothing_from_the_environment(call, good: Path, tmp_path: Path) -> None:
    call("--config", good)
    # An unusable descriptor shows that the agent is what starts, and that it fails in one line.
    done = subprocess.run(
        [tmp_path / "plugins/90-nri-pin"],
        env={"NRI_PLUGIN_NAME": "nri-pin", "NRI_PLUGIN_IDX": "90", "NRI_PLUGIN_SOCKET": "closed"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert "NRI_PLUGIN_SOCKET: expected the number of an open socket" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_install_replaces_what_the_first_wrote(call, good: Path, tmp_path: Path) -> None:
    call("--config", good)
    good.write_text("reservedSystemCPUs: 0-1\n")
    assert call("--config", good)[0] == 0
    assert "0-1" in (tmp_path / "conf.d/90-nri-pin.conf").read_text()
    assert call()[0] == 0


@pytest.mark.parametrize("name", ["plugins/90-nri-pin", "conf.d/90-nri-pin.conf"])
def test_files_of_others_are_not_replaced(call, good: Path, tmp_path: Path, name: str) -> None:
    foreign = tmp_path / name
    foreign.parent.mkdir()
    foreign.write_text("mine")
    code, printed = call("--config", good)
    assert code == 1
    assert f"{foreign}: is there and was not written by nri-pin install" in printed
    assert files(tmp_path) == [name]
    assert foreign.read_text() == "mine"


def test_a_drop_in_of_the_operators_own_is_used_and_kept(call, tmp_path: Path) -> None:
    own = tmp_path / "conf.d/90-nri-pin.conf"
    own.parent.mkdir()
    own.write_text(GOOD)
    assert call()[0] == 0
    assert call("--uninstall")[0] == 0
    assert files(tmp_path) == ["conf.d/90-nri-pin.conf"]


def test_without_any_configuration_nothing_is_installed(call, tmp_path: Path) -> None:
    code, printed = call()
    assert code == 2
    assert "no configuration" in printed
    assert files(tmp_path) == []


def test_with_a_wrong_configuration_nothing_is_installed(call, good: Path, tmp_path: Path) -> None:
    good.write_text("zzz: 1")
    code, printed = call("--config", good)
    assert code == 2
    assert f"{good}:1:1: zzz: unknown key" in printed
    assert files(tmp_path) == []


def test_two_numbers_at_once_are_refused(call, good: Path, tmp_path: Path) -> None:
    call("--config", good)
    code, printed = call("--config", good, "--index", "95")
    assert code == 1
    assert "is installed already" in printed
    assert files(tmp_path) == ["conf.d/90-nri-pin.conf", "plugins/90-nri-pin"]


def test_uninstall_removes_what_install_wrote(call, good: Path, tmp_path: Path) -> None:
    call("--config", good)
    assert call("--uninstall")[0] == 0
    assert files(tmp_path) == ["conf.d/90-nri-pin.conf.previous"]
    code, printed = call("--uninstall")
    assert (code, "nothing to uninstall" in printed) == (1, True)


def test_uninstall_leaves_files_of_others(call, tmp_path: Path) -> None:
    foreign = tmp_path / "plugins/90-nri-pin"
    foreign.parent.mkdir()
    foreign.write_text("mine")
    assert call("--uninstall")[0] == 1
    assert foreign.read_text() == "mine"


@pytest.mark.parametrize("index", ["9", "900", "ab", ""])
def test_the_number_has_two_digits(call, index: str) -> None:
    code, printed = call("--index", index)
    assert code == 2
    assert "expected two digits such as 90" in printed


def test_a_folder_that_cannot_be_made_is_one_line(call, good: Path, tmp_path: Path) -> None:
    (tmp_path / "plugins").write_text("a file where a folder should be")
    code, printed = call("--config", good)
    assert code in (1, 2)
    assert printed.count("\n") == 1


def test_the_interpreter_stands_in_the_first_line_unless_it_cannot() -> None:
    assert launcher("/v/bin/python").startswith("#!/v/bin/python -I\n")
    told = "NRI_PIN_PLUGIN=\"$0\" exec '/a b/python' -I -m nri_plugin"
    assert launcher("/a b/python").splitlines()[-1] == told
    assert launcher("/" + "x" * 200).startswith("#!/bin/sh\n")


def test_both_forms_of_the_executable_start_the_same_program(tmp_path: Path) -> None:
    spaced = tmp_path / "with space"
    spaced.mkdir()
    wrapper = spaced / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    program = tmp_path / "90-nri-pin"
    for interpreter in (sys.executable, str(wrapper)):
        program.write_text(launcher(interpreter))
        program.chmod(0o755)
        # Without the runtime's socket the same file is the plain command, which shows its help.
        done = subprocess.run([program], env={}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.startswith("Usage: nri-pin")) == (2, True)


def test_the_command_that_makes_room_for_another_number_can_be_copied(
    call, good: Path, tmp_path: Path
) -> None:
    call("--config", good)
    code, text = call("--index", "95", "--config", good)
    assert code == 1
    command = text.partition("first run nri-pin ")[2].split()
    assert main(command) == 0
    assert call("--index", "95", "--config", good)[0] == 0


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "who"),
    [
        (stat.S_IFREG | 0o755, 0, 0, ""),
        (stat.S_IFREG | 0o775, 0, 0, ""),
        (stat.S_IFREG | 0o775, 0, 50, "group 50"),
        (stat.S_IFREG | 0o757, 0, 0, "every user"),
        (stat.S_IFREG | 0o755, 1000, 0, "user 1000"),
        (stat.S_IFDIR | 0o1777, 0, 0, ""),
        (stat.S_IFDIR | 0o777, 0, 0, "every user"),
        (stat.S_IFLNK | 0o777, 0, 0, ""),
    ],
)
def test_who_else_than_root_can_change_what_root_will_run(
    monkeypatch: pytest.MonkeyPatch, mode: int, uid: int, gid: int, who: str
) -> None:
    found = os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))
    sound = os.stat_result((stat.S_IFDIR | 0o755, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda path: found if path == Path("/o/python") else sound)
    told = list(who_else_may_change("the runtime", Path("/o/python")))
    assert [f"and {who} can change it;" in line for line in told] == ([True] if who else [])


def test_install_warns_of_a_program_that_others_can_change(
    call, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("")
    python.chmod(0o777)
    monkeypatch.setattr(sys, "executable", str(python))
    code, text = call("--config", good)
    assert code == 0
    assert f"warning: the runtime will run {python} as root" in text


def test_install_warns_of_a_configuration_for_another_machine(call, good: Path) -> None:
    good.write_text("reservedSystemCPUs: '9000'\n")
    code, text = call("--config", good)
    assert code == 0
    assert "warning: " in text
    assert "good.yaml:1:21: reservedSystemCPUs: CPUs 9000 do not exist on this machine" in text
    assert "an agent with this configuration does not start on this machine" in text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(13, "Permission denied"), "permission denied; run as root"),
        (OSError(28, "No space left on device"), "no space left on device"),
    ],
)
def test_a_user_without_rights_is_told_to_be_root(
    monkeypatch: pytest.MonkeyPatch, error: OSError, text: str
) -> None:
    def fail(_path: Path) -> bytes:
        raise error

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(HostError, match=f"^/f: cannot be read: {text}$"):
        is_ours(Path("/f"))


def test_programs_are_told_which_files_there_are_now(call, good: Path, tmp_path: Path) -> None:
    code, printed = call("--config", good, "-o", "json")
    told = json.loads(printed)
    assert code == 0
    assert [Path(path).name for path in told["wrote"]] == ["90-nri-pin.conf", "90-nri-pin"]
    assert "systemctl restart" in told["next"]
    told = json.loads(call("--uninstall", "-o", "json")[1])
    assert [Path(path).name for path in told["removed"]] == ["90-nri-pin"]
    assert [Path(path).name for path in told["kept"]] == ["90-nri-pin.conf.previous"]


def check_that_edits_are_kept(call, good: Path, installed: Path) -> None:
    """Install twice and uninstall, with edits of the installed configuration before the last two."""
    former = installed.with_name(f"{installed.name}.previous")
    call("--config", good)
    assert "kept" not in call("--config", good)[1]
    edited = installed.read_text() + "logLevel: debug\n"
    installed.write_text(edited)
    code, printed = call("--config", good)
    assert (code, f"kept the former configuration as {former}\n" in printed) == (0, True)
    assert (former.read_text(), installed.read_text()) == (edited, f"{MARK}\n{good.read_text()}")
    installed.write_text(edited + "# mine\n")
    assert f"kept the former configuration as {former}\n" in call("--uninstall")[1]
    assert former.read_text() == edited + "# mine\n"


def test_edits_of_the_installed_configuration_are_kept(call, good: Path, tmp_path: Path) -> None:
    check_that_edits_are_kept(call, good, tmp_path / "conf.d/90-nri-pin.conf")


def test_where_an_agent_could_not_come_back_nothing_is_installed(
    call, good: Path, tmp_path: Path, runtime: dict[str, object]
) -> None:
    runtime |= {"takes_connections": False, "closed_by": FileLine("/etc/containerd/config.toml", 12)}
    code, printed = call("--config", good)
    assert code == 1
    assert printed.startswith("nri-pin: /etc/containerd/config.toml:12: disable_connections is true")
    assert printed.endswith("set it to false, then install\n")
    assert files(tmp_path) == []


def test_a_drop_in_for_another_socket_is_not_installed(
    call, good: Path, tmp_path: Path, runtime: dict[str, object]
) -> None:
    runtime["socket"] = "/run/k3s/nri.sock"
    code, printed = call("--config", good)
    assert code == 1
    assert printed.startswith(f"nri-pin: {good}: nriSocket is /var/run/nri/nri.sock")
    assert printed.endswith("write nriSocket: /run/k3s/nri.sock\n")
    assert files(tmp_path) == []
    good.write_text(f"{GOOD}nriSocket: /run/k3s/nri.sock\n")
    assert call("--config", good)[0] == 0


def test_the_same_socket_by_its_other_name_is_installed(call, good: Path, runtime: dict[str, object]) -> None:
    runtime["socket"] = "/run/nri/nri.sock"
    assert call("--config", good)[0] == 0


def test_where_no_runtime_is_seen_the_agent_is_installed(
    call, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed_files, "runtime_settings", lambda _view: None)
    assert call("--config", good)[0] == 0


def test_the_runtimes_files_say_how_its_nri_is_set(tmp_path: Path) -> None:
    (tmp_path / "etc/containerd").mkdir(parents=True)
    table = "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable_connections = true\n"
    (tmp_path / "etc/containerd/config.toml").write_text(table)
    found = READ(NodeView(str(tmp_path), []))
    assert found is not None
    assert found.closed_by == FileLine("/etc/containerd/config.toml", 3)


@pytest.mark.parametrize("text", [None, "[not toml"])
def test_a_runtime_that_cannot_be_read_says_nothing(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "etc/containerd").mkdir(parents=True)
    if text is not None:
        (tmp_path / "etc/containerd/config.toml").write_text(text)
    assert READ(NodeView(str(tmp_path), [])) is None
