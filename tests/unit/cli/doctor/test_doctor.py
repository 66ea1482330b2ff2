import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from nri_plugin.cli.doctor.findings import (
    Finding,
    NextStep,
    Verdict,
    advice,
    as_json,
    as_text,
    exit_code,
    fine,
    not_visible,
    summary,
    to_do,
)
from nri_plugin.cli.doctor.runtime import switch_on
from nri_plugin.cli.doctor.settings import CONTAINERD, NRISettings, read_settings
from nri_plugin.cli.doctor.view import Hidden, NodeView
from nri_plugin.cli.main import run_command_line
from nri_plugin.simulator.machine.description import parse
from nri_plugin.simulator.machine.machine import build_sysfs

LONG = "a sentence that goes on for so long that it does not fit into the columns of a terminal of any kind"
GROUPS = {
    "first": (
        replace(fine("as it should be"), check="a"),
        replace(to_do(LONG, "do this", "run --this " + "and-that " * 12), check="b"),
    ),
    "second": (
        replace(advice("so so", "perhaps"), check="c"),
        replace(not_visible(Hidden("/etc/x", "/host/etc/x"), "x is dark"), check="d"),
    ),
}


def of(finding: Finding) -> dict[str, tuple[Finding, ...]]:
    return {"group": (finding,)}


def test_a_finding_is_a_label_a_sentence_and_the_next_step() -> None:
    assert list(as_text(GROUPS, None, colour=False)) == [
        "first",
        "  OK     a: as it should be",
        f"  TO DO  b: {LONG}",
        "         -> do this:",
        f"            run --this {'and-that ' * 12}",
        "",
        "second",
        "  ADVICE c: so so",
        "         -> perhaps",
        "  ?      d: not visible: mount /etc/x of the node at /host/etc/x (x is dark)",
        "",
        "4 checks: 1 OK, 1 to do, 1 with advice, 1 not visible",
        "To see the rest, mount /etc/x of the node, or, in a cluster:",
        "  kubectl debug node/NODE -it --profile=sysadmin --image=IMAGE -- nri-pin doctor --root /host",
    ]


def test_text_keeps_to_the_width_and_commands_can_be_pasted() -> None:
    lines = list(as_text(GROUPS, 60, colour=False))
    assert [line.split()[0] for line in lines if len(line) > 60] == ["run", "kubectl"]


def test_the_last_sentence_has_the_whole_width() -> None:
    sentence = "To see the rest, mount /etc/x of the node, or, in a cluster:"
    assert sentence in list(as_text(GROUPS, len(sentence), colour=False))


def test_colour_changes_labels_only() -> None:
    coloured = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in as_text(GROUPS, 80, colour=True)]
    assert coloured == list(as_text(GROUPS, 80, colour=False))
    assert any("\x1b[31m" in line for line in as_text(GROUPS, 80, colour=True))


@pytest.mark.parametrize(
    ("finding", "code", "strict_code"),
    [
        (fine(""), 0, 0),
        (to_do("", "x"), 1, 1),
        (advice("", "x"), 0, 1),
        (not_visible(Hidden("/x", "/host/x"), ""), 0, 1),
    ],
)
def test_only_what_is_to_be_done_counts_unless_strict(finding: Finding, code: int, strict_code: int) -> None:
    assert exit_code(of(finding), strict=False) == code
    assert exit_code(of(finding), strict=True) == strict_code


def test_programs_get_every_finding_and_the_counts() -> None:
    told = json.loads(as_json(GROUPS, strict=False))
    assert told["exit_code"] == 1
    assert told["counts"] == {"OK": 1, "TO DO": 1, "ADVICE": 1, "NOT VISIBLE": 1}
    assert told["checks"][1] == {
        "group": "first",
        "check": "b",
        "verdict": "TO DO",
        "says": LONG,
        "do": "do this",
        "command": GROUPS["first"][1].command,
        "mount": "",
        "mount_at": "",
        "steps": [],
        "items": [],
    }
    assert (told["checks"][3]["mount"], told["checks"][3]["mount_at"]) == ("/etc/x", "/host/etc/x")
    assert summary(GROUPS).startswith("4 checks")


def test_several_steps_are_numbered() -> None:
    steps = (NextStep("look"), NextStep("stop it; wait", "systemctl stop it"))
    finding = to_do("wrong", "go on", steps=steps)
    assert list(as_text(of(finding), 80, colour=False))[2:7] == [
        "         -> go on:",
        "         1.  look",
        "         2.  stop it; wait:",
        "                systemctl stop it",
        "",
    ]
    (told,) = json.loads(as_json(of(finding), strict=False))["checks"]
    assert told["steps"][1] == {"do": "stop it; wait", "command": "systemctl stop it"}


def test_without_a_configuration_the_first_core_of_that_machine_is_recommended(
    tmp_path: Path, capsys
) -> None:
    root = tmp_path / "node"
    (root / "etc").mkdir(parents=True)
    build_sysfs(parse("pack:2 l3:1 numa:1 core:4 pu:2(indexes=core)", "smt"), root)
    run_command_line(["doctor", "--root", str(root), "-o", "json"])
    told = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert 'reservedSystemCPUs: "0,8"' in told["configuration"]["command"]


@pytest.fixture
def copied_node(tmp_path: Path) -> Path:
    """Files of a node: a machine, containerd 2, a kubelet that pins."""
    root = tmp_path / "node"
    root.mkdir()
    build_sysfs(parse("pack:2 l3:1 numa:1 core:4 pu:1", "test"), root)
    for name, text in {
        "etc/containerd/config.toml": "version = 3\nimports = ['conf.d/*.toml']\n",
        "etc/containerd/conf.d/nri.toml": "version = 3\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
        "var/lib/kubelet/config.yaml": 'kind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: "0-1"\n',
        "proc/cmdline": "quiet isolcpus=managed_irq,6-7\n",
        "proc/sys/kernel/osrelease": "6.12.1\n",
        "etc/nri-pin/config.yaml": 'reservedSystemCPUs: "0"\n',
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_copy_of_a_nodes_files_is_judged_by_what_they_say(copied_node: Path, capsys) -> None:
    assert run_command_line(["doctor", "--root", str(copied_node), "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    verdicts = {row["check"]: row["verdict"] for row in told["checks"]}
    assert {check for check, verdict in verdicts.items() if verdict == "TO DO"} >= {
        "nri",
        "cpu-manager",
        "reserved-cpus",
    }
    assert verdicts["agent"] == "NOT VISIBLE"  # nothing of /run was copied
    assert verdicts["isolated-cpus"] == "ADVICE"
    assert verdicts["rivals"] == "NOT VISIBLE"
    assert verdicts["configuration"] == "OK"
    (nri,) = [row for row in told["checks"] if row["check"] == "nri"]
    assert nri["says"] == "off, by /etc/containerd/conf.d/nri.toml:3"


def test_a_configuration_that_does_not_fit_the_machine_is_to_be_mended(
    copied_node: Path, tmp_path: Path, capsys
) -> None:
    chosen = tmp_path / "tomorrow.yaml"
    chosen.write_text('reservedSystemCPUs: "400"\n')
    run_command_line(["doctor", "--root", str(copied_node), "--config", str(chosen)])
    told = "".join(capsys.readouterr().out.split())  # folded wherever the paths of this machine end
    assert f"{chosen}:1:21:reservedSystemCPUs:CPUs400donotexist" in told


def test_a_socket_of_the_copy_is_connected_to(
    copied_node: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (copied_node / "etc/containerd/conf.d/nri.toml").write_text(
        "[plugins.'io.containerd.nri.v1.nri']\nsocket_path = '/run/x.sock'\n"
    )
    (copied_node / "run").mkdir()
    monkeypatch.chdir(copied_node / "run")  # a path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("x.sock")
        listener.listen()
        run_command_line(["doctor", "--root", "..", "-o", "json"])
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["nri-socket"]["says"] in (
        "/run/x.sock takes connections",
        "the runtime listens on /run/x.sock, the agent is configured for /var/run/nri/nri.sock",
    )


OFF = "[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
RANCHER = "/var/lib/rancher/{}/agent/etc/containerd/"
SWITCH_ON = r"""\n[plugins."io.containerd.nri.v1.nri"]\n  disable = false\n"""


@pytest.mark.parametrize(
    ("files", "words", "command", "unit"),
    [
        (
            {RANCHER.format("k3s") + "config.toml": f"version = 3\n{OFF}"},
            ("k3s", "server"),
            f"sed '3s/true/false/' {RANCHER.format('k3s')}config.toml > {RANCHER.format('k3s')}config-v3.toml.tmpl",
            "k3s",
        ),
        (
            {RANCHER.format("k3s") + "config.toml": f"version = 2\n{OFF}"},
            ("k3s", "agent"),
            f"sed '3s/true/false/' {RANCHER.format('k3s')}config.toml > {RANCHER.format('k3s')}config.toml.tmpl",
            "k3s-agent",
        ),
        (
            {RANCHER.format("rke2") + "config.toml": "version = 2\n"},
            ("rke2", "server"),
            'printf \'{{ template "base" . }}\\n'
            + SWITCH_ON
            + f"' >> {RANCHER.format('rke2')}config.toml.tmpl",
            "rke2-server",
        ),
        (
            {
                RANCHER.format("rke2") + "config.toml": f"version = 3\n{OFF}",
                RANCHER.format("rke2") + "config-v3.toml.tmpl": f"# ours\n\nversion = 3\n{OFF}",
                "/etc/systemd/system/rke2-agent.service": "",
            },
            ("rke2", "other"),
            f"sed -i '5s/true/false/' {RANCHER.format('rke2')}config-v3.toml.tmpl",
            "rke2-agent",
        ),
        (
            {
                "/var/snap/microk8s/current/args/containerd.toml": "version = 2\n",
                "/var/snap/microk8s/current/args/containerd-template.toml": "version = 2\n",
            },
            ("kubelite",),
            f"printf '{SWITCH_ON}' >> /var/snap/microk8s/current/args/containerd-template.toml",
            "snap.microk8s.daemon-containerd",
        ),
        ({"/etc/k0s/containerd.toml": f"version = 2\n{OFF}"}, ("k0s", "controller"), "", "k0scontroller"),
    ],
)
def test_a_distribution_that_writes_the_files_itself_gets_its_template_and_its_unit(
    tmp_path: Path, capsys, files: dict[str, str], words: tuple[str, ...], command: str, unit: str
) -> None:
    root = tmp_path / "node"
    root.mkdir()
    build_sysfs(parse("pack:2 l3:1 numa:1 core:4 pu:1", "test"), root)
    for name, text in {
        **files,
        "/proc/1/comm": "systemd\n",
        "/proc/9/comm": f"{words[0]}\n",
        "/proc/9/cmdline": "".join(f"{word}\0" for word in (f"/usr/bin/{words[0]}", *words[1:])),
        "/proc/10/comm": "containerd\n",
        "/proc/10/cmdline": f"containerd\0-c\0{next(iter(files))}\0",
        "/proc/11/comm": "kubelet\n",
        "/proc/11/cmdline": "kubelet\0--cpu-manager-policy=static\0",
        "/etc/nri-pin/config.yaml": 'reservedSystemCPUs: "0"\n',
        "/var/lib/kubelet/cpu_manager_state": '{"policyName":"static"}',
    }.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    settings = read_settings(NodeView(str(root), []), CONTAINERD, None, next(iter(files)))
    assert isinstance(settings, NRISettings)
    assert switch_on(settings) == (f"{command} && systemctl restart {unit}" if command else "")
    run_command_line(["doctor", "--root", str(root), "--runtime-config", next(iter(files)), "-o", "json"])
    out = capsys.readouterr().out
    assert not re.search(r"systemctl \w+ (kubelet|containerd)\b", out)
    assert "migrate to-plugin" not in out
    assert "by hand: nri-pin migrate does not edit the files of" in out


def test_what_a_mount_would_show_names_the_mount() -> None:
    answer = not_visible(Hidden("/etc/x", "/host/etc/x"), "x is dark", "look elsewhere")
    assert (answer.verdict, answer.do) == (Verdict.NOT_VISIBLE, "mount /etc/x of the node at /host/etc/x")
    assert (answer.mount, answer.mount_at) == ("/etc/x", "/host/etc/x")


def test_what_no_mount_would_show_says_how_else_or_why_not() -> None:
    assert not_visible(Hidden(""), "x is dark", "look elsewhere").do == "look elsewhere"
    assert not_visible(Hidden("/etc/x", why="run as root"), "x is dark").do == "/etc/x: run as root"
