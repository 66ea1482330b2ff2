"""`nri-pin migrate` between a real kubelet and the agent, both units of systemd: there, back, with a failure, with SIGKILL.

What is judged is what the kernel says of the processes of the pods, what systemd says of the units, and the kubelet's own
files. The kubelet of the agent's node does not pin; its pods keep running all the time, with the same process ids.
"""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

from . import manifest
from .agent import PYTHON
from .pod_processes import processes
from .report import Expectations
from .standalone_kubelet import CONFIG, PATIENCE_S, UIDS, UNIT, StandaloneKubelet, unit_is
from .waiting import wait_for

_PROGRAM = (PYTHON, "-m", "nri_plugin")
_AGENT = "nri-pin.service"
_RECORD = Path("/var/lib/nri-pin/migration.json")
_START = "start-kubelet"
"""From this step on a migration that was interrupted is finished."""

_WAYS = (("to-plugin", "static", "none"), ("to-kubelet", "none", "static"))
"""The direction, and the kubelet's policy before and after."""

AGENT: dict[str, Any] = {
    "reservedSystemCPUs": "0",
    "topologyManagerPolicy": "best-effort",
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
}
_CONFIG_MAP = {key: value for key, value in AGENT.items() if key != "topologyManagerPolicy"}
"""What the ConfigMap of deploy/daemonset.yaml does not say."""

_OBSTACLE = Path(f"/etc/systemd/system/{UNIT}.d/50-obstacle.conf")


def the_kubelet_pins_its_static_pods(facts: Expectations, kubelet: StandaloneKubelet) -> None:
    """The node before any migration, with the agent installed and not started."""
    kubelet.start()
    facts.equal("its file is that of policy static", kubelet.state_policy(), "static")
    done = _nri_pin("install", "--systemd", "--config", "/run/nri-pin.yaml")
    facts.equal("the unit is installed", done.returncode, 0)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    plan = _nri_pin("migrate", "to-plugin")
    facts.expect("the plan names each step", " 8. " in plan.stdout, plan.stdout + plan.stderr)
    facts.expect("the plan has no doubts", "would leave the kubelet stopped" not in plan.stdout, plan.stdout)


def the_node_goes_to_the_agent_and_back(facts: Expectations, kubelet: StandaloneKubelet) -> None:
    """Both directions; every process of a pod stays, on its CPUs."""
    before = _seen()
    _goes(facts, kubelet, "to-plugin", before)
    _goes(facts, kubelet, "to-kubelet", before)


def a_failed_start_of_the_kubelet_is_undone(facts: Expectations, kubelet: StandaloneKubelet) -> None:
    """A kubelet that does not start without its managers: the last step that can fail before anything is new."""
    before, text = _seen(), CONFIG.read_text()
    _OBSTACLE.parent.mkdir(parents=True, exist_ok=True)
    _OBSTACLE.write_text(
        "[Service]\nExecStartPre=/bin/sh -c '! grep -q \"cpuManagerPolicy: none\" /var/lib/kubelet/config.yaml'\n"
    )
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    done = _migrate("to-plugin")
    facts.expect("it fails", done.returncode == 1, done.stdout + done.stderr)
    facts.expect(
        "it says that all is as before", "everything is as it was before" in done.stderr, done.stderr
    )
    _is_with(facts, kubelet, "static", before)
    facts.equal("the kubelet has its configuration", CONFIG.read_text(), text)
    _OBSTACLE.unlink()
    subprocess.run(["systemctl", "daemon-reload"], check=True)


def a_failure_in_any_step_is_undone(facts: Expectations, kubelet: StandaloneKubelet) -> None:
    """Each step of both directions is done and then fails."""
    before = _seen()
    for direction, here, _ in _WAYS:
        for step in _steps(direction):
            text = CONFIG.read_text()
            done = _injected("fail", step, direction)
            told = done.returncode == 1 and "everything is as it was before" in done.stderr
            facts.expect(f"{direction}, {step} failed: it says so", told, done.stdout + done.stderr)
            _is_with(facts, kubelet, here, before, f"{direction}, {step} failed, ")
            facts.equal(f"{direction}, {step} failed: the configuration", CONFIG.read_text(), text)
        _goes(facts, kubelet, direction, before)


def sigkill_after_any_step_is_undone_or_finished(facts: Expectations, kubelet: StandaloneKubelet) -> None:
    """The same command undoes what was interrupted before the kubelet's start, and finishes the rest."""
    before = _seen()
    for direction, here, there in _WAYS:
        back = next(way for way, start, _ in _WAYS if start == there)
        steps = _steps(direction)
        for step in steps:
            when = f"{direction}, killed after {step}"
            facts.equal(f"{when}: it is killed", _injected("kill", step, direction).returncode, -9)
            again = _migrate(direction)
            if steps.index(step) < steps.index(_START):
                told = again.returncode == 1 and "was undone" in again.stderr
                facts.expect(f"{when}: again undoes", told, again.stdout + again.stderr)
                _is_with(facts, kubelet, here, before, f"{when}, ")
            else:
                facts.expect(f"{when}: again finishes", again.returncode == 0, again.stdout + again.stderr)
                _is_with(facts, kubelet, there, before, f"{when}, ")
                _goes(facts, kubelet, back, before)
        _goes(facts, kubelet, direction, before)


def a_privileged_pod_migrates_for_the_agent_s_pod(facts: Expectations, kubelet: StandaloneKubelet) -> None:
    """As in the guide for a DaemonSet: a pod with the host's files and processes migrates, then the agent's pod comes; and back."""
    before = _seen()
    done = _nri_pin("install", "--systemd", "--uninstall")
    facts.equal("no unit of the agent is there", (done.returncode, unit_is(_AGENT)), (0, "inactive"))
    _migrates_in_a_pod(facts, kubelet, "to-plugin")
    _is_with(facts, kubelet, "none", before, "before the agent's pod, ", agent="")
    kubelet.run_pod(manifest.AGENT_POD, manifest.agent_as_static_pod(_CONFIG_MAP))
    wait_for(
        lambda: _nri_pin("state", "verify").returncode == 0,
        PATIENCE_S,
        "the agent's pod has placed what runs",
    )
    _is_with(facts, kubelet, "none", before, "with the agent's pod, ", agent="pod")
    kubelet.end_pod(manifest.AGENT_POD)
    _is_with(facts, kubelet, "none", before, "after the agent's pod, ", agent="")
    _migrates_in_a_pod(facts, kubelet, "to-kubelet")
    _is_with(facts, kubelet, "static", before, "back, ", agent="")


def _migrates_in_a_pod(facts: Expectations, kubelet: StandaloneKubelet, direction: str) -> None:
    name = f"debugger-{direction}"
    told, code = Path(f"/out/{name}.log"), Path(f"/out/{name}.code")
    command = shlex.join(
        ["/opt/nri-pin/bin/nri-pin", "migrate", direction, "--yes", "--timeout", str(PATIENCE_S)]
    )
    kubelet.run_pod(name, manifest.debugger(f"{command} > /host{told} 2>&1; echo $? > /host{code}"))
    wait_for(lambda: code.exists() and code.read_text().strip(), PATIENCE_S, "the pod has migrated the node")
    facts.equal(f"{direction} in a pod ends well: {told.read_text()}", code.read_text().strip(), "0")
    kubelet.end_pod(name)


def _goes(facts: Expectations, kubelet: StandaloneKubelet, direction: str, before: dict[int, str]) -> None:
    done = _migrate(direction)
    facts.expect(f"{direction} ends well", done.returncode == 0, done.stdout + done.stderr)
    _is_with(facts, kubelet, "none" if direction == "to-plugin" else "static", before)


def _is_with(
    facts: Expectations,
    kubelet: StandaloneKubelet,
    policy: str,
    before: dict[int, str],
    when: str = "",
    agent: str = "unit",
) -> None:
    """The node is as it has to be where the kubelet has this policy; the agent may be a unit, a pod, or not there."""
    when = f"{when}{policy}"
    facts.equal(f"{when}: processes, CPUs and memory nodes are those of before", _seen(), before)
    facts.equal(f"{when}: the kubelet runs", unit_is(UNIT), "active")
    facts.equal(f"{when}: its configuration says so", kubelet.settings()["cpuManagerPolicy"], policy)
    facts.equal(f"{when}: its file says so", kubelet.state_policy(), policy)
    runs = "active" if policy == "none" and agent == "unit" else "inactive"
    facts.equal(f"{when}: the agent's unit runs or not", unit_is(_AGENT), runs)
    facts.expect(f"{when}: no migration is left over", not _RECORD.exists())
    if policy == "none" and agent:
        found = _nri_pin("state", "verify")
        facts.expect(f"{when}: state verify is content", found.returncode == 0, found.stdout + found.stderr)


def _steps(direction: str) -> list[str]:
    """The names of the steps, by the plan."""
    return [row["name"] for row in json.loads(_nri_pin("migrate", direction, "-o", "json").stdout)["steps"]]


def _seen() -> dict[int, str]:
    """By process id: pod, CPUs and memory nodes of the pods that stay all the time."""
    rows = (row for row in processes() if row["pod"] in UIDS)
    return {int(str(row["pid"])): f"{row['pod']} {row['cpus']} {row['mems']}" for row in rows}


def _migrate(direction: str) -> "subprocess.CompletedProcess[str]":
    return _nri_pin("migrate", direction, "--yes", "--timeout", str(PATIENCE_S))


def _injected(how: str, step: str, direction: str) -> "subprocess.CompletedProcess[str]":
    program = str(Path(__file__).with_name("injected_migration.py"))
    words = [PYTHON, program, how, step, "migrate", direction, "--yes", "--timeout", str(PATIENCE_S)]
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=1200)


def _nri_pin(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*_PROGRAM, *words], check=False, capture_output=True, text=True, timeout=1200)
