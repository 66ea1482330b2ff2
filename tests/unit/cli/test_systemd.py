"""The units that `nri-pin install --systemd` writes: their rights follow the configuration, and uninstall undoes all of it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from nri_plugin.__main__ import main
from nri_plugin.checkpoint.file import FILE_NAME
from nri_plugin.cli import installed_files, systemd
from nri_plugin.cli.doctor.settings import NRISettings
from nri_plugin.cli.installed_files import MARK
from nri_plugin.config.loading import load_text
from tests.unit.cli.test_install import check_that_edits_are_kept

GOOD = 'reservedSystemCPUs: "0"\n'
AGENT = "etc/systemd/system/nri-pin.service"
EXPORTER = "etc/systemd/system/nri-pin-exporter.service"
CONFIG = "etc/nri-pin/config.yaml"
FORMER = f"{CONFIG}.previous"
Call = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program where every unit sees it; this checkout may be in a home directory."""
    monkeypatch.setattr(systemd, "HIDDEN", ("/hidden/",))
    monkeypatch.setattr(sys, "executable", "/opt/nri-pin/bin/python3")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*args: object) -> tuple[int, str]:
        code = main(["install", "--systemd", "--prefix", str(tmp_path / "root"), *map(str, args)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def files(tmp_path: Path) -> list[str]:
    root = tmp_path / "root"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def settings(text: str = "") -> dict[str, list[str]]:
    """The values of each key, as systemd takes the lines of an agent's unit: an empty value drops those before it."""
    found: dict[str, list[str]] = {}
    for line in systemd.agent_unit(load_text(GOOD + text, "here"), "/opt/nri-pin/bin/python3").splitlines():
        key, _, value = line.partition("=")
        found[key] = [*found.get(key, ()), value] if value else []
    return found


def test_unit_and_configuration_are_written_and_the_next_step_is_said(
    call: Call, good: Path, tmp_path: Path
) -> None:
    code, printed = call("--config", good)
    assert code == 0
    assert files(tmp_path) == [CONFIG, AGENT]
    assert "systemctl daemon-reload && systemctl enable --now nri-pin.service" in printed
    assert (tmp_path / "root" / CONFIG).read_text() == f"{MARK}\n{GOOD}"


def test_a_second_install_replaces_what_the_first_wrote(call: Call, good: Path, tmp_path: Path) -> None:
    call("--config", good)
    good.write_text(GOOD + "irqs: exclusive\n")
    code, printed = call("--config", good)
    assert code == 0
    assert "systemctl enable nri-pin.service && systemctl restart nri-pin.service;" in printed
    assert "ReadWritePaths=/proc/irq" in (tmp_path / "root" / AGENT).read_text()
    assert call()[0] == 0
    assert call("--config", tmp_path / "root" / CONFIG)[0] == 0


def test_edits_of_the_installed_configuration_are_kept(call: Call, good: Path, tmp_path: Path) -> None:
    check_that_edits_are_kept(call, good, tmp_path / "root" / CONFIG)


def test_a_configuration_of_the_operators_own_is_used_and_kept(call: Call, tmp_path: Path) -> None:
    own = tmp_path / "root" / CONFIG
    own.parent.mkdir(parents=True)
    own.write_text(GOOD)
    assert call("--config", own)[0] == 0
    assert call("--uninstall")[0] == 0
    assert files(tmp_path) == [CONFIG]


@pytest.mark.parametrize("name", [AGENT, EXPORTER, CONFIG])
def test_files_of_others_are_neither_replaced_nor_removed(
    call: Call, good: Path, tmp_path: Path, name: str
) -> None:
    foreign = tmp_path / "root" / name
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    code, printed = call("--config", good)
    assert code == 1
    assert f"{foreign}: is there and was not written by nri-pin install" in printed
    assert call("--uninstall")[0] == 1
    assert foreign.read_text() == "mine"


@pytest.mark.parametrize(("text", "code"), [("zzz: 1", 2), ("", 2)])
def test_with_a_wrong_configuration_nothing_is_installed(
    call: Call, good: Path, tmp_path: Path, text: str, code: int
) -> None:
    good.write_text(text)
    assert call("--config", good)[0] == code
    assert files(tmp_path) == []


def test_without_any_configuration_nothing_is_installed(call: Call, tmp_path: Path) -> None:
    code, printed = call()
    assert (code, "no configuration" in printed) == (2, True)
    assert files(tmp_path) == []


@pytest.mark.parametrize("words", [[], ["--systemd", "--plugin-dir", "/x"]])
def test_one_way_to_start_it_has_to_be_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", *words]) == 2
    assert "expected one of --plugin-dir and --systemd; see nri-pin install --help" in capsys.readouterr().err


def test_the_exporter_gets_a_unit_of_its_own(call: Call, good: Path, tmp_path: Path) -> None:
    code, printed = call("--config", good, "--exporter-kubeconfig", good, "-o", "json")
    assert code == 0
    assert "nri-pin.service nri-pin-exporter.service" in json.loads(printed)["next"]
    text = (tmp_path / "root" / EXPORTER).read_text()
    assert f"-m nri_plugin export --kubeconfig {good} --state-dir /run/nri-pin\n" in text
    assert "RuntimeDirectory=nri-pin/exporter\n" in text
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n" in text
    assert "RestrictAddressFamilies=AF_UNIX\n" not in text
    assert call("--uninstall")[0] == 0
    assert files(tmp_path) == [FORMER]


def test_a_program_that_the_unit_cannot_see_is_refused(
    call: Call, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/hidden/bin/python3")
    code, printed = call("--config", good)
    assert code == 1
    assert "/hidden/bin/python3: is hidden from the unit" in printed
    assert files(tmp_path) == []


NETWORK = {"PrivateNetwork": ["yes", "no"]}
INTERNET = {
    "IPAddressDeny": [],
    "RestrictAddressFamilies": ["AF_UNIX", "AF_INET AF_INET6"],
    **NETWORK,
}
TREE = "/sys/fs/cgroup"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", {}),
        ("isolation: partition", {"CapabilityBoundingSet": ["CAP_SYS_ADMIN"]}),
        (
            "isolation: partition\nreceiveSteering: exclusive",
            {
                "CapabilityBoundingSet": ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"],
                "ReadWritePaths": [TREE, "/sys/devices"],
                **NETWORK,
            },
        ),
        ("irqs: exclusive", {"ReadWritePaths": [TREE, "/proc/irq /sys/devices/system/cpu"]}),
        ("workqueues: exclusive", {"ReadWritePaths": [TREE, "/sys/devices/virtual/workqueue"]}),
        ("metricsBindAddress: ':9465'", INTERNET),
        ("healthProbeBindAddress: ':9464'", INTERNET),
        ("nicLocality: netlink", {"RestrictAddressFamilies": ["AF_UNIX", "AF_NETLINK"], **NETWORK}),
        ("cgroupRoot: /cg", {"ReadWritePaths": ["/cg"]}),
        ('cgroupRoot: "/cg/a%b"', {"ReadWritePaths": ['"/cg/a%%b"']}),
        (
            "stateDir: /var/lib/nri-pin",
            {"RuntimeDirectory": [], "ReadWritePaths": [TREE, "/var/lib/nri-pin"]},
        ),
        ("stateDir: /var/nri pin", {"RuntimeDirectory": [], "ReadWritePaths": [TREE, '"/var/nri pin"']}),
        ("stateDir: '/var/\"nri\"'", {"RuntimeDirectory": [], "ReadWritePaths": [TREE, r'"/var/\"nri\""']}),
        ("stateDir: /run/nri pin/100%", {"RuntimeDirectory": ['"nri pin/100%%"']}),
        ("stateDir: /run/nri:pin", {"RuntimeDirectory": [r"nri\:pin"]}),
    ],
)
def test_the_agent_has_few_rights_and_those_that_its_configuration_needs(
    text: str, changed: dict[str, list[str]]
) -> None:
    least = {
        "RuntimeDirectory": ["nri-pin"],
        "RuntimeDirectoryMode": ["0700"],
        "RuntimeDirectoryPreserve": ["yes"],
        "ReadWritePaths": [TREE],
        "CapabilityBoundingSet": [],
        "AmbientCapabilities": [],
        "NoNewPrivileges": ["yes"],
        "ProtectSystem": ["strict"],
        "ReadOnlyPaths": ["/run"],
        "PrivateNetwork": ["yes"],
        "IPAddressDeny": ["any"],
        "RestrictAddressFamilies": ["AF_UNIX"],
        "Before": ["kubelet.service"],
    }
    found = settings(text)
    assert {key: found[key] for key in least} == least | changed


def test_a_state_directory_on_a_disk_is_made(call: Call, good: Path, tmp_path: Path) -> None:
    good.write_text(GOOD + "stateDir: /var/lib/nri-pin\n")
    assert call("--config", good)[0] == 0
    assert (tmp_path / "root/var/lib/nri-pin").stat().st_mode & 0o777 == 0o700
    shutil.rmtree(tmp_path / "root/var")
    (tmp_path / "root/var").write_text("")
    assert "cannot be made" in call("--config", good)[1]


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/opt/a b/python", '"/opt/a b/python"'),
        ("/opt/100%/$x", '"/opt/100%%/$x"'),  # systemd replaces no variable in the name of the program
        ("/opt/o'neil/python", '"/opt/o\'neil/python"'),
        ("/p", "/p"),
    ],
)
def test_odd_paths_reach_systemd_as_one_word(path: str, word: str) -> None:
    text = systemd.agent_unit(load_text(GOOD, "here"), path)
    assert f"ExecStart={word} -I -m nri_plugin run --config /etc/nri-pin/config.yaml" in text


def test_the_exporter_gets_odd_paths_whole() -> None:
    config = load_text(GOOD + "stateDir: /var/lib/$HOME 5%\n", "here")
    lines = systemd.exporter_unit(config, "/p", Path("/etc/kube config")).splitlines()
    words = '--kubeconfig "/etc/kube config" --state-dir "/var/lib/$$HOME 5%%"'
    assert f"ExecStart=/p -I -m nri_plugin export {words}" in lines
    assert 'ReadWritePaths="/var/lib/$HOME 5%%/exporter"' in lines


class Host:
    """The running system: what systemctl was told, and how it ends."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.fails = False

    def systemctl(self, words: list[str], **_more: object) -> SimpleNamespace:
        self.told.append(" ".join(words))
        return SimpleNamespace(returncode=1 if self.fails else 0, stderr="Access denied\n")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    """A prefix that counts as the running system."""
    here = Host()
    monkeypatch.setattr(systemd, "_is_running_system", lambda _prefix: True)
    monkeypatch.setattr(subprocess, "run", here.systemctl)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(installed_files, "runtime_settings", lambda _view: None)
    return here


def with_state(good: Path, tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    good.write_text(f"{GOOD}stateDir: {state}\n")
    return state


def test_uninstall_stops_the_units_gives_cpus_back_and_removes_the_files(
    call: Call, good: Path, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = with_state(good, tmp_path)
    call("--config", good, "--exporter-kubeconfig", good)
    (state / FILE_NAME).write_text("")
    asked = []

    def give(*where: str) -> SimpleNamespace:
        asked.append(where)
        assert host.told == ["systemctl disable --now nri-pin.service nri-pin-exporter.service"]
        return SimpleNamespace(
            found=SimpleNamespace(failures=[]), lines=lambda: ["3 cgroups were given CPUs 0-7"]
        )

    monkeypatch.setattr(systemd, "give_all_back", give)
    code, printed = call("--uninstall")
    assert code == 0, printed
    assert asked == [(str(state), "/sys/fs/cgroup", "/")]
    assert printed.startswith("3 cgroups were given CPUs 0-7\nremoved ")
    assert host.told[1:] == ["systemctl daemon-reload"]
    assert files(tmp_path) == [FORMER]


def test_without_a_checkpoint_nothing_is_given_back(
    call: Call, good: Path, tmp_path: Path, host: Host
) -> None:
    with_state(good, tmp_path)
    call("--config", good)
    assert "there is no checkpoint, so nothing was pinned" in call("--uninstall")[1]
    assert files(tmp_path) == [FORMER]


def test_what_could_not_be_given_back_keeps_the_files(
    call: Call, good: Path, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    (with_state(good, tmp_path) / FILE_NAME).write_text("")
    call("--config", good)
    failed = SimpleNamespace(found=SimpleNamespace(failures=["kubepods: EROFS"]))
    monkeypatch.setattr(systemd, "give_all_back", lambda *_where: failed)
    code, printed = call("--uninstall")
    assert (code, "1 failed, first kubepods: EROFS; correct it and uninstall again" in printed) == (1, True)
    assert files(tmp_path) == [CONFIG, AGENT]


def test_a_unit_that_does_not_stop_keeps_everything(
    call: Call, good: Path, tmp_path: Path, host: Host
) -> None:
    call("--config", good)
    host.fails = True
    code, printed = call("--uninstall")
    assert (code, "disable --now nri-pin.service: Access denied" in printed) == (1, True)
    assert files(tmp_path) == [CONFIG, AGENT]


def test_a_host_without_systemd_is_told_so(
    call: Call, good: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("--config", good)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "systemctl: is not there" in call("--uninstall")[1]


def test_a_runtime_that_takes_no_connection_is_refused(
    call: Call, good: Path, tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = NRISettings(runtime="containerd", socket="/other/nri.sock")
    monkeypatch.setattr(installed_files, "runtime_settings", lambda _view: closed)
    code, printed = call("--config", good)
    assert (code, "write nriSocket: /other/nri.sock" in printed) == (1, True)
    assert files(tmp_path) == []


def test_the_running_system_is_the_one_at_the_root() -> None:
    assert systemd._is_running_system(Path("/"))
    assert not systemd._is_running_system(Path("/tmp"))
