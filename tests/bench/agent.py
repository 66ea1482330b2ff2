"""The real agent as a process, with a made-up machine below it and a made-up runtime above."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nri_plugin.simulator.machine.machine import build_sysfs, load
from nri_plugin.wire.nri.events import Synchronize
from tests.lab.runtime.plugin_link import PluginLink
from tests.lab.runtime.profile import RuntimeProfile


@dataclass(frozen=True, slots=True)
class Machine:
    """A shipped machine, and its CPUs."""

    name: str
    cpus: str


LARGE = Machine("epyc7742-2p-64c-smt-nps4", "0-255")
MEDIUM = Machine("epyc7303-2p-16c-per-socket-smt-nps1", "0-63")
"""64 CPUs on two NUMA nodes."""

CONFIG = """\
cpuManagerPolicy: static
topologyManagerPolicy: best-effort
reservedSystemCPUs: "0-1"
stateDir: {base}/state
nriSocket: {base}/nri.sock
sysfsRoot: {machine}
cgroupRoot: {base}/cgroup
"""

LOOK_S, LONGEST_LOOKS = 0.3, 40


@dataclass(slots=True)
class Running:
    """An agent that is registered and synchronized.

    Attributes:
        link: the runtime's end of its connection.
        pid: its process.
        start_s: from starting the process to its being configured.
        synchronize_s: from sending Synchronize to its answer.
    """

    link: PluginLink
    pid: int
    start_s: float
    synchronize_s: float

    def rss_mib(self) -> float:
        """Its resident memory."""
        return rss_mib(self.pid)


def rss_mib(pid: int, field: str = "VmRSS") -> float:
    """The resident memory of a process; `VmHWM` for the most that it ever was."""
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def let_settle(pid: int) -> None:
    """Wait until a process has nothing left to do: it used no CPU for a while."""
    before = None
    for _ in range(LONGEST_LOOKS):
        used = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[11:13]
        if used == before:
            return
        before = used
        time.sleep(LOOK_S)


@contextmanager
def site() -> Iterator[Path]:
    """A node's files, for one agent or for several one after another."""
    with site_in(in_memory()) as base:
        yield base


@contextmanager
def site_in(folder: str | None, machine: Machine = LARGE) -> Iterator[Path]:
    """The same in a folder; None for the usual place."""
    with tempfile.TemporaryDirectory(prefix="nri-pin-bench-", dir=folder) as base:
        _prepare(Path(base), machine)
        yield Path(base)


@contextmanager
def running(profile: RuntimeProfile, truth: Synchronize) -> Iterator[Running]:
    """Start an agent, hand it `truth`, stop it in the end."""
    with site() as base, running_at(base, profile, truth) as agent:
        yield agent


@contextmanager
def running_at(base: Path, profile: RuntimeProfile, truth: Synchronize) -> Iterator[Running]:
    """The same on files that are there."""
    with socket.socket(socket.AF_UNIX) as server:
        (base / "nri.sock").unlink(missing_ok=True)
        server.bind(f"{base}/nri.sock")
        server.listen(1)
        began = time.monotonic()
        command = [sys.executable, "-m", "nri_plugin", "run", "--config", f"{base}/config.yaml"]
        with (
            open(f"{base}/log", "wb") as log,
            subprocess.Popen(command, stderr=log, env=installed()) as agent,
        ):
            try:
                yield _joined(server, profile, truth, agent.pid, began)
            finally:
                agent.terminate()


@cache
def installed() -> dict[str, str]:
    """The environment of an agent as it is installed: its modules are compiled, so it starts without compiling them."""
    own = {"PYTHONPATH": os.getcwd(), "PYTHONPYCACHEPREFIX": f"{os.getcwd()}/.cache/bench-bytecode"}
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    } | own
    modules = "nri_plugin.__main__, nri_plugin.agent.agent, nri_plugin.agent.start"
    subprocess.run([sys.executable, "-c", f"import {modules}"], env=environment, check=True)
    return environment


def make_cgroups(base: Path, truth: Synchronize) -> None:
    """A cpuset directory for every container and all above it, as runc leaves them for who has no cpuset."""
    every = (base / "cgroup" / "cpuset.cpus.effective").read_text()
    for container in truth.containers:
        parts = container.cgroups_path.strip("/").split("/")
        for count in range(1, len(parts) + 1):
            folder = base / "cgroup" / "/".join(parts[:count])
            if not folder.exists():
                folder.mkdir()
                (folder / "cpuset.cpus").write_text(every)
                os.link(folder / "cpuset.cpus", folder / "cpuset.cpus.effective")  # as the kernel has it here


def written_since(base: Path, before: Mapping[str, int]) -> int:
    """How many cpuset files were written since `stamps`."""
    return sum(1 for name, stamp in stamps(base).items() if before.get(name) != stamp)


def stamps(base: Path) -> dict[str, int]:
    """When each cpuset file was written last, in nanoseconds."""
    return {str(path): path.stat().st_mtime_ns for path in (base / "cgroup").rglob("cpuset.cpus")}


def _joined(
    server: socket.socket, profile: RuntimeProfile, truth: Synchronize, pid: int, began: float
) -> Running:
    server.settimeout(20)
    connection, _ = server.accept()
    link = PluginLink(connection, profile)
    told: list[float] = []
    link.join(_noting(told, truth))
    return Running(link, pid, told[0] - began, time.monotonic() - told[0])


def _noting(told: list[float], truth: Synchronize) -> Callable[[], Synchronize]:
    def tell() -> Synchronize:
        told.append(time.monotonic())
        return truth

    return tell


def in_memory() -> str | None:
    """Where files live in memory, as the default state directory does; the usual place where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@cache
def machine_tree(machine: Machine) -> tempfile.TemporaryDirectory[str]:
    """The made-up machine's tree, built once."""
    folder = tempfile.TemporaryDirectory(prefix="nri-pin-bench-", dir=in_memory())
    build_sysfs(load(machine.name), folder.name)
    return folder


def _prepare(base: Path, machine: Machine) -> None:
    (base / "cgroup").mkdir()
    (base / "cgroup" / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (base / "cgroup" / "cpuset.cpus.effective").write_text(f"{machine.cpus}\n")
    (base / "config.yaml").write_text(CONFIG.format(base=base, machine=machine_tree(machine).name))
