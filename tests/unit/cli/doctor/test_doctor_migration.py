"""The steps of a migration are carried out by a shell, on files of a kubelet and with stand-ins for the programs."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nri_plugin.cli.doctor.findings import NextStep
from nri_plugin.cli.doctor.kubelet import KubeletEvidence, steps
from nri_plugin.cli.doctor.kubelet_files import CONFIG_FILE, KubeletSettings, Setting, read_kubelet
from nri_plugin.cli.doctor.view import NodeView

CONFIG = """\
kind: KubeletConfiguration
cpuManagerPolicyOptions:
  full-pcpus-only: "true"
cpuManagerPolicy: static  # since 2023
topologyManagerPolicy: restricted
memoryManagerPolicy: Static
maxPods: 110
"""
STATES = ("cpu_manager_state", "memory_manager_state")
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
[ "$(basename "$0") $*" = "$BREAKS" ] && exit 1
case "$(basename "$0") $*" in
  "systemctl stop kubelet") echo stopped > {kubelet} ;;
  "systemctl start kubelet") cp {folder}/config.yaml {kubelet} ;;
esac
exit 0
"""


def steps_of(seen: KubeletEvidence) -> tuple[NextStep, ...]:
    assert isinstance(seen.settings, KubeletSettings)
    return steps(seen, seen.settings)


class Site:
    """A kubelet's folder, and programs that write down how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.kubelet = folder / "kubelet", folder / "log", folder / "running"
        self.folder.mkdir()
        self.log.touch()
        (self.folder / "config.yaml").write_text(CONFIG)
        for name in STATES:
            (self.folder / name).write_text(name)
        (folder / "bin").mkdir()
        for name in ("systemctl", "nri-pin", "systemd-run", "kubectl"):
            program = folder / "bin" / name
            program.write_text(STUB.format(log=self.log, kubelet=self.kubelet, folder=self.folder))
            program.chmod(0o755)
        self.path = f"{folder / 'bin'}:/usr/bin:/bin"

    def plan(self, **more: object) -> tuple[NextStep, ...]:
        states = dict.fromkeys((f"/var/lib/kubelet/{name}" for name in STATES), "static")
        seen = KubeletEvidence(settings(), states, config_path="/etc/nri-pin/c.yaml")
        return steps_of(replace(seen, **more))  # type: ignore[arg-type]

    def run(self, line: str, breaks: str = "") -> int:
        here = line.replace("/var/lib/kubelet", str(self.folder))
        return subprocess.run(
            ["sh", "-c", here], env={"PATH": self.path, "BREAKS": breaks}, capture_output=True, check=False
        ).returncode

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()

    def files(self) -> dict[str, str]:
        kept = ("config.yaml", *STATES)
        return {name: (self.folder / name).read_text() for name in kept if (self.folder / name).exists()}


def settings() -> KubeletSettings:
    class View(NodeView):
        def text(self, path: str) -> str | None:
            return CONFIG if path == CONFIG_FILE else None

    found = read_kubelet(View(), None)
    assert isinstance(found, KubeletSettings)
    return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def place(calls: Sequence[str], beginning: str) -> int:
    return next(number for number, call in enumerate(calls) if call.startswith(beginning))


def test_the_agent_has_the_promises_before_the_kubelet_starts_and_it_starts_once(site: Site) -> None:
    for step in site.plan():
        assert site.run(step.command) == 0, step
    calls = site.calls()
    assert calls.count("systemctl start kubelet") == 1
    imports = [number for number, call in enumerate(calls) if call.startswith("nri-pin state import")]
    assert len(imports) == 2, "a rehearsal, and the import"
    assert "--state-dir" in calls[imports[0]]
    assert "--state-dir" not in calls[imports[1]]
    order = [
        imports[0],
        place(calls, "systemctl stop kubelet"),
        imports[1],
        place(calls, "systemd-run"),
        place(calls, "nri-pin state verify"),
        place(calls, "systemctl start kubelet"),
    ]
    assert order == sorted(order)
    started = yaml.safe_load(site.kubelet.read_text())
    assert started == {
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "none",
        "topologyManagerPolicy": "none",
        "memoryManagerPolicy": "None",
        "maxPods": 110,
    }
    assert list(site.files()) == ["config.yaml"], "no state file is left that the kubelet refuses to start on"
    assert (site.folder / "config.yaml.before-nri-pin").read_text() == CONFIG
    for name in STATES:
        assert (site.folder / f"{name}.before-nri-pin").read_text() == name


def test_no_failure_leaves_the_kubelet_stopped_or_changed(site: Site, tmp_path: Path) -> None:
    plan = site.plan()
    before = site.files()
    for failing, step in enumerate(plan):
        (tmp_path / str(failing)).mkdir()
        other = Site(tmp_path / str(failing))
        is_stopped = False
        for done in plan[:failing]:
            assert other.run(done.command) == 0
            is_stopped = is_stopped or done.command == "systemctl stop kubelet"
        is_stopped = is_stopped or step.command == "systemctl stop kubelet"
        if step.undo:
            assert other.run(step.undo) == 0, step
        assert bool(step.undo) >= is_stopped, f"nothing starts the kubelet again: {step}"
        assert other.files() == before
        if is_stopped:
            assert other.calls()[-1] == "systemctl start kubelet"
            assert other.kubelet.read_text() == CONFIG


def test_every_command_is_one_command() -> None:
    for more in ({}, {"in_pod": True}, {"agent_runs": True}, {"has_configuration": False}):
        node = KubeletEvidence(
            settings(), {"/var/lib/kubelet/cpu_manager_state": "static"}, config_path="/etc/c.yaml", **more
        )
        for step in steps_of(node):
            assert "&&" not in step.command
            assert ";" not in step.command


def test_a_kubelet_that_starts_the_agent_is_cordoned_meanwhile(site: Site) -> None:
    commands = [step.command for step in site.plan(in_pod=True, root="/host", has_configuration=False)]
    assert commands[0] == "kubectl cordon NODE"
    assert commands[1] == "nri-pin state import /host/var/lib/kubelet --state-dir /host/run/nri-pin"
    assert commands[-4:] == [
        "systemctl start kubelet",
        "kubectl label node NODE nri-pin/enabled=true",
        "kubectl -n nri-pin wait --for condition=Ready pod --field-selector spec.nodeName=NODE --timeout 120s",
        "kubectl uncordon NODE",
    ]
    assert not any(command.startswith("systemd-run") for command in commands)


@pytest.mark.parametrize("in_pod", [False, True])
def test_an_agent_that_has_placed_what_runs_imports_nothing(site: Site, in_pod: bool) -> None:
    commands = [step.command for step in site.plan(agent_runs=True, in_pod=in_pod)]
    assert "nri-pin state verify" in commands
    assert not any("import" in command or "systemd-run" in command for command in commands)


def test_an_agent_that_the_runtime_starts_comes_with_the_runtime(site: Site) -> None:
    plan = site.plan(restart_runtime="systemctl restart containerd")
    commands = [step.command for step in plan]
    assert not any("systemd-run" in command for command in commands)
    assert commands.index("systemctl restart containerd") < commands.index("systemctl start kubelet")
    assert not any("systemctl stop nri-pin" in step.undo for step in plan)


def test_without_promises_nothing_is_imported(site: Site) -> None:
    commands = [step.command for step in site.plan(states={})]
    assert not any("import" in command for command in commands)
    assert any(command.startswith("systemd-run") for command in commands)


def test_the_first_configuration_is_the_kubelets_own(site: Site) -> None:
    first = site.plan(has_configuration=False)[0]
    assert first.command == "install -D -m 0644 /var/lib/kubelet/config.yaml /etc/nri-pin/c.yaml"


def test_an_option_on_the_command_line_has_no_line_to_edit(site: Site) -> None:
    flag = Setting("static", flag="--cpu-manager-policy")
    plan = site.plan(settings=KubeletSettings((), {"cpuManagerPolicy": flag}), has_configuration=False)
    told = next(step for step in plan if "set by hand" in step.do)
    assert "cpuManagerPolicy none instead of --cpu-manager-policy on its command line" in told.do
    assert "(--cpu-manager-policy)" in plan[0].do
    assert not any("sed" in step.command for step in plan)
