"""`nri-pin migrate` between a real kubelet and the agent, both units of systemd: there, back, with a failure, with SIGKILL.

What is judged is what the kernel says of the processes of the pods, what systemd says of the units, and the kubelet's own
files. The kubelet of the agent's node does not pin; its pods keep running all the time, with the same process ids.
"""

import json
import signal
import subprocess
from pathlib import Path

from .agent import PYTHON
from .pod_processes import processes
from .report import Expectations
from .standalone_kubelet import PATIENCE_S, UNIT, StandaloneKubelet, unit_is
from .waiting import wait_for

_PROGRAM = (PYTHON, "-m", "nri_plugin")
_AGENT = "nri-pin.service"
_RECORD = Path("/var/lib/nri-pin/migration.json")
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
    before, text = _seen(), Path("/var/lib/kubelet/config.yaml").read_text()
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
    facts.equal("the kubelet has its configuration", Path("/var/lib/kubelet/config.yaml").read_text(), text)
    _OBSTACLE.unlink()
    subprocess.run(["systemctl", "daemon-reload"], check=True)


def a_killed_migration_is_undone_and_then_done(facts: Expectations, kubelet: StandaloneKubelet) -> None:
    """SIGKILL while the agent starts: the same command first undoes, then migrates."""
    before = _seen()
    _is_killed_at(facts, "to-plugin", "start-agent")
    again = _migrate("to-plugin")
    facts.expect(
        "running it again undoes",
        again.returncode == 1 and "was undone" in again.stderr,
        again.stdout + again.stderr,
    )
    _is_with(facts, kubelet, "static", before)
    _goes(facts, kubelet, "to-plugin", before)


def a_killed_migration_whose_kubelet_has_started_is_finished(
    facts: Expectations, kubelet: StandaloneKubelet
) -> None:
    """SIGKILL while the kubelet starts, on the way back: the same command finishes."""
    before = _seen()
    _is_killed_at(facts, "to-kubelet", "start-kubelet")
    again = _migrate("to-kubelet")
    facts.expect("running it again finishes", again.returncode == 0, again.stdout + again.stderr)
    _is_with(facts, kubelet, "static", before)


def _goes(facts: Expectations, kubelet: StandaloneKubelet, direction: str, before: dict[int, str]) -> None:
    done = _migrate(direction)
    facts.expect(f"{direction} ends well", done.returncode == 0, done.stdout + done.stderr)
    _is_with(facts, kubelet, "none" if direction == "to-plugin" else "static", before)


def _is_with(facts: Expectations, kubelet: StandaloneKubelet, policy: str, before: dict[int, str]) -> None:
    """The node is as it has to be where the kubelet has this policy."""
    facts.equal(f"{policy}: processes, CPUs and memory nodes are those of before", _seen(), before)
    facts.equal(f"{policy}: the kubelet runs", unit_is(UNIT), "active")
    facts.equal(f"{policy}: its configuration says so", kubelet.settings()["cpuManagerPolicy"], policy)
    facts.equal(f"{policy}: its file says so", kubelet.state_policy(), policy)
    facts.equal(
        f"{policy}: the agent runs or not", unit_is(_AGENT), "active" if policy == "none" else "inactive"
    )
    facts.expect(f"{policy}: no migration is left over", not _RECORD.exists())
    if policy == "none":
        found = _nri_pin("state", "verify")
        facts.expect(f"{policy}: state verify is content", found.returncode == 0, found.stdout + found.stderr)


def _is_killed_at(facts: Expectations, direction: str, step: str) -> None:
    """Start it, and kill it as soon as its record names the step."""
    running = subprocess.Popen(
        [*_PROGRAM, "migrate", direction, "--yes", "--timeout", str(PATIENCE_S)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: step in _begun() or running.poll() is not None, PATIENCE_S, f"the step {step} begins")
    running.send_signal(signal.SIGKILL)
    running.wait(60)
    facts.equal(f"it was killed in {step}", (running.returncode, _begun()[-1:]), (-signal.SIGKILL, [step]))


def _begun() -> list[str]:
    try:
        return list(json.loads(_RECORD.read_text())["begun"])
    except (FileNotFoundError, ValueError):
        return []


def _seen() -> dict[int, str]:
    """By process id: pod, CPUs and memory nodes."""
    return {int(str(row["pid"])): f"{row['pod']} {row['cpus']} {row['mems']}" for row in processes()}


def _migrate(direction: str) -> "subprocess.CompletedProcess[str]":
    return _nri_pin("migrate", direction, "--yes", "--timeout", str(PATIENCE_S))


def _nri_pin(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*_PROGRAM, *words], check=False, capture_output=True, text=True, timeout=1200)
