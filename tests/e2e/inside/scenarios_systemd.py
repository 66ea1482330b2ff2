"""systemd starts the agent, by the unit of `nri-pin install --systemd`: pinned, stopped, started again, uninstalled.

The scenario needs a node without pods under systemd, and leaves it with the ordinary agent.
"""

import subprocess
from pathlib import Path

from .agent import PYTHON
from .laws import check_exclusive, check_laws
from .node import Node
from .observe import CGROUPS, Observed, machine_cpus
from .pods import burstable, guaranteed
from .promises import promises
from .waiting import wait_for
from .write_watch import WriteWatch

_INSTALL = (PYTHON, "-m", "nri_plugin", "install", "--systemd")
_UNIT = "nri-pin.service"
_STATE = Path("/run/nri-pin")
_TREE = CGROUPS / "cpuset" if (CGROUPS / "cpuset").is_dir() else CGROUPS
_READ_ONLY = ("/etc", "/usr", "/run", "/sys/devices/system/cpu", "/proc/irq")


def systemd_starts_the_agent_and_takes_it_away_again(node: Node, cpus: int) -> None:
    """The whole life of the unit, beside pods that nobody may move."""
    node.agent.stop()
    _call(*_INSTALL, "--config", str(node.agent.config_file))
    _call("systemctl", "daemon-reload")
    _started(node, "enable", "--now")
    _rights_are_few(node)
    shared, exclusive = node.run(burstable("beside")), node.run(guaranteed("by-unit", cpus))
    check_exclusive(node, "by-unit/main", cpus)
    check_laws(node)
    own = node.observe(exclusive.id).allowed_cpus
    _stop_and_restart_move_nothing(node)
    late = node.run(burstable("after-restart"))
    check_exclusive(node, "by-unit/main", cpus)
    check_laws(node)
    _is_uninstalled(node)
    node.agent.start()
    wait_for(lambda: node.observe(exclusive.id).allowed_cpus == own, 60, "the ordinary agent pins it again")
    check_laws(node)
    node.agent.excuse(node.agent.complaints())  # it found everything given back
    # systemd takes the controller from a slice with its last pod
    node.agent.excuse(["cpuset drifted and was repaired name=kubepods-burstable.slice "])
    for pod in (late, exclusive, shared):
        node.remove(pod)


def _rights_are_few(node: Node) -> None:
    """What the kernel says of the process."""
    process = Path("/proc", _property("MainPID"))
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    node.equal(
        "it has no capability", {lines[name].strip("\t0") for name in ("CapEff", "CapPrm", "CapBnd")}, {""}
    )
    node.equal("it gets no new privileges", lines["NoNewPrivs"].strip(), "1")
    node.equal("its system calls are filtered", lines["Seccomp"].strip(), "2")
    node.equal(
        "it has a network of its own, and thus none", _network(process) == _network(Path("/proc/1")), False
    )
    for place in _READ_ONLY:
        node.expect(f"it cannot write {place}", _is_read_only(process, place))
    for place in (str(_TREE), str(_STATE)):
        node.expect(f"it can write {place}", not _is_read_only(process, place))
    rated = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", _UNIT], check=False, capture_output=True, text=True
    )
    node.figure("systemd-analyze security", (rated.stdout.splitlines() or [rated.stderr])[-1].strip("→ "))


def _stop_and_restart_move_nothing(node: Node) -> None:
    before, promised = _observe_all(node), promises(node.agent.state())
    watch = WriteWatch(*_TREE.glob("kubepods*"))
    _call("systemctl", "stop", _UNIT)
    node.equal("it has stopped", _property("ActiveState"), "inactive")
    node.equal("stopped, every container runs where it ran", _observe_all(node), before)
    node.equal("the checkpoint outlives the service", promises(node.agent.state()), promised)
    _started(node, "start")
    node.equal("started, every container runs where it ran", _observe_all(node), before)
    _started(node, "restart")
    check_laws(node)
    node.equal("restarted, every container runs where it ran", _observe_all(node), before)
    node.equal("the checkpoint says the same", promises(node.agent.state()), promised)
    node.equal("no cpuset file was written", watch.writes(), [])
    watch.close()


def _is_uninstalled(node: Node) -> None:
    said = _call(*_INSTALL, "--uninstall")
    node.expect("it says what it gave back", "cgroups were given CPUs" in said, said)
    everything = machine_cpus()
    for name, seen in _observe_all(node).items():
        node.equal(f"{name} has all CPUs", seen.allowed_cpus, everything)
    node.equal("systemd does not know the unit any more", _property("LoadState"), "not-found")


def _started(node: Node, *how: str) -> None:
    """Start the unit; the runtime takes it as a plugin and tells it what runs."""
    joined = node.agent.times_joined()
    _call("systemctl", *how, _UNIT)
    wait_for(
        lambda: node.agent.times_joined() > joined or _property("ActiveState") == "failed",
        300,
        f"the runtime has taken the agent as a plugin after {how[0]}",
    )
    node.equal(f"it runs after {how[0]}", _property("ActiveState"), "active")


def _observe_all(node: Node) -> dict[str, Observed]:
    return {name: node.observe(identity) for name, identity in node.running().items()}


def _property(name: str) -> str:
    return _call("systemctl", "show", "--value", "-p", name, _UNIT).strip()


def _network(process: Path) -> str:
    return str((process / "ns/net").readlink())


def _is_read_only(process: Path, place: str) -> bool:
    """Whether the mount that the process sees at a place is read-only."""
    best, options = "", ""
    for line in (process / "mountinfo").read_text().splitlines():
        point, flags = line.split()[4:6]
        if (f"{place}/".startswith(f"{point.rstrip('/')}/")) and len(point) >= len(best):
            best, options = point, flags
    return "ro" in options.split(",")


def _call(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with status {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done.stdout
