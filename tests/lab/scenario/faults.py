"""Faults of a scenario: foreign writes, CPUs that go offline, a second agent, and the release of the node.

Each function waits until the fault has taken effect, and then until the agent has reacted.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.machine.devices import Files
from nri_plugin.simulator.machine.machine import CPU_DIR
from tests.lab.runtime.cgroup_tree import ROOT, CpusetFile
from tests.lab.runtime.runtime import ContainerPlacement
from tests.lab.scenario.stage import ScenarioNode
from tests.lab.scenario.steps import PartitionKind

LIMIT_S = 60.0
"""The agent sweeps every 5 s, and a repair may need two sweeps on a busy machine."""
CALM_S = 1.2
"""More than two periods of the agent's watch of the machine, which looks every 0.5 s."""
ISOLATED = "cpuset.cpus.isolated"
_PAUSE_S = 0.02
_SECOND_S = 60.0
_FOLLOWED = "the machine changed"


def foreign_write(stage: ScenarioNode, key: str, cpus: CPUSet) -> str:
    """Write `cpuset.cpus` of a container, then wait until the agent has repaired it.

    Without an agent there is only the write.

    Returns:
        The problem; empty if the drift took effect and was repaired.
    """
    mirror = stage.runtime.cgroups.mirror
    path = stage.runtime.record(key).names.path
    before = _effective(stage, key)
    with frozen(stage.agent_pid):  # else the agent could repair the drift before it is seen
        mirror.tree.write(path, CpusetFile.CPUS, str(cpus))
        mirror.flush()
        if (now := _effective(stage, key)) != cpus:
            return f"{key} should have drifted to {cpus}, it runs on {now}"
    if not stage.agent_pid:
        return ""
    if _until(lambda: _effective(stage, key) == before):
        return ""
    return f"{key} drifted to {cpus} and was not put back on {before} within {LIMIT_S:g} s"


def switch_cpus(stage: ScenarioNode, cpus: CPUSet) -> None:
    """Make exactly these CPUs online, in the machine's files and in the cgroups, and wait until placements are stable.

    Raises:
        HostError: the machine's files cannot be written.
    """
    files, links = stage.machine_files(cpus)
    mirror = stage.runtime.cgroups.mirror
    is_news = mirror.tree.effective_cpus(ROOT) != cpus
    logged = stage.places.log.stat().st_size if stage.agent_pid else 0
    _rewrite(stage.places.machine, files, links)
    mirror.tree.set_online(cpus)
    mirror.flush()
    if stage.agent_pid and is_news:
        has_logged(stage, _FOLLOWED, logged)
    _calm(stage)


def foreign_partition(stage: ScenarioNode, kind: PartitionKind, cpus: CPUSet) -> None:
    """Take CPUs away as the partition of another program does.

    Only the effects on other cgroups are simulated: their CPUs, and the kernel's list of isolated CPUs.
    """
    mirror = stage.runtime.cgroups.mirror
    logged = stage.places.log.stat().st_size if stage.agent_pid else 0
    left = stage.topology.online - cpus
    is_news = mirror.tree.effective_cpus(ROOT) != left
    mirror.tree.set_online(left)
    mirror.flush()
    isolated = str(cpus) if kind is PartitionKind.ISOLATED else ""
    (stage.places.cgroups / ISOLATED).write_text(f"{isolated}\n", "ascii")
    if stage.agent_pid and is_news:
        has_logged(stage, _FOLLOWED, logged)
    _calm(stage)


def reachable(stage: ScenarioNode) -> CPUSet:
    """The CPUs that the kernel gives to pods."""
    return stage.runtime.cgroups.mirror.tree.effective_cpus(_kubepods(stage))


def give_kubepods(stage: ScenarioNode, cpus: CPUSet) -> None:
    """Give the cgroup above all pods exactly these CPUs.

    Raises:
        CgroupWriteError: on v1, a cgroup below has others.
    """
    mirror, top = stage.runtime.cgroups.mirror, _kubepods(stage)
    logged = stage.places.log.stat().st_size if stage.agent_pid else 0
    is_news = reachable(stage) != cpus
    mirror.tree.write(top, CpusetFile.CPUS, str(cpus))
    mirror.flush()
    if stage.agent_pid and is_news:
        has_logged(stage, _FOLLOWED, logged)
    _calm(stage)


def _kubepods(stage: ScenarioNode) -> str:
    return next(path for path in stage.runtime.cgroups.mirror.tree if path.startswith("kubepods"))


def has_logged(stage: ScenarioNode, text: str, since: int) -> int:
    """Wait for `text` in the agent's log after the byte `since`; returns the byte after it, 0 if it does not come."""
    log = stage.places.log

    def end() -> int:
        place = log.read_bytes().find(text.encode(), since)
        return place + len(text.encode()) if place >= 0 else 0

    _until(lambda: end() > 0)
    return end()


def second_agent(stage: ScenarioNode) -> str:
    """Start a second agent with the same files, and stop it once it waits for the first.

    Returns:
        The problem; empty if it waited, logged the process for which it waits, and ended on SIGTERM.
    """
    said: list[str] = []
    with subprocess.Popen(
        stage.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as second:
        late = threading.Timer(_SECOND_S, second.kill)
        late.start()
        assert second.stderr is not None
        for line in second.stderr:
            said.append(line)
            if "waiting for the right to serve" in line and f"process {stage.agent_pid}" in line:
                second.terminate()
    late.cancel()
    if second.returncode == 0:
        return ""
    return (
        "a second agent should wait for the first and stop when it is told to; "
        f"it ended with {second.returncode}: {''.join(said)[-300:]}"
    )


def release_node(stage: ScenarioNode) -> str:
    """End the agent by SIGTERM, and undo its settings with `nri-pin release`.

    Returns:
        The problem; empty if both succeeded.
    """
    if code := stage.stop_agent():
        return f"the agent should end when it is told to; it ended with {code}"
    for _ in range(2):
        # the simulated kernel takes writes over only between two runs: the second run sees the effect of the first
        done = subprocess.run(
            stage.release_command, check=False, capture_output=True, text=True, timeout=_SECOND_S
        )
        stage.runtime.absorb()
    said = (done.stdout + done.stderr)[-300:]
    return f"release ended with {done.returncode}: {said}" if done.returncode else ""


def write_times(folder: Path) -> dict[Path, int]:
    """When each cpuset and quota file below `folder` was last written, in nanoseconds."""
    found = (path for name in ("cpuset.*", "cpu.max") for path in folder.rglob(name))
    return {path: path.stat().st_mtime_ns for path in found}


def settled_writes(stage: ScenarioNode) -> dict[Path, int]:
    """`write_times` once no file is written any more, because the agent writes some files after its answer.

    The simulated kernel absorbs writes meanwhile: it rewrites files in its own form, which must not count later.
    """
    folder = stage.places.cgroups
    seen: dict[Path, int] = {}
    since = began = time.monotonic()
    while time.monotonic() - since < CALM_S and time.monotonic() - began < LIMIT_S:
        stage.runtime.absorb()
        if (now := write_times(folder)) != seen:
            seen, since = now, time.monotonic()
        time.sleep(_PAUSE_S)
    return seen


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop the agent by SIGSTOP for the time of a `with`; without an agent nothing is done."""
    if pid:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if pid:
            os.kill(pid, signal.SIGCONT)


def _effective(stage: ScenarioNode, key: str) -> CPUSet:
    return stage.runtime.placements()[key].effective


def _until(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


def _calm(stage: ScenarioNode) -> None:
    """Wait until no placement has changed for `CALM_S`."""
    seen: dict[str, ContainerPlacement] = {}
    since = began = time.monotonic()
    while time.monotonic() - since < CALM_S and time.monotonic() - began < LIMIT_S:
        if (now := stage.runtime.placements()) != seen:
            seen, since = now, time.monotonic()
        time.sleep(_PAUSE_S)


def _rewrite(root: Path, files: Files, links: Files) -> None:
    """Make the CPU and node folders hold exactly these files. The online list is written last, as the agent watches it."""
    top = root / CPU_DIR
    last = f"{CPU_DIR}/online"
    try:
        for path in [*top.parent.rglob("*")]:
            name = str(path.relative_to(root))
            if (path.is_symlink() or path.is_file()) and name not in files and name not in links:
                path.unlink()
        for name in sorted(files, key=lambda name: name == last):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text("ascii") != files[name] + "\n":
                path.write_text(files[name] + "\n", "ascii")
        for name, target in links.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            if not (root / name).is_symlink():
                (root / name).symlink_to(target)
        _drop_empty(top)
    except OSError as error:
        raise HostError(str(top), f"cannot be written: {error.strerror}") from error


def _drop_empty(top: Path) -> None:
    """An offline CPU has no topology folder and no cache folder."""
    for folder, _, _ in os.walk(top, topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)
