"""The hook against Go: the same driver, the runtime's side of NRI, asks nri-pin and Go plugins, each on a played node.

The plugins take turns (A B C C B A ...), because a slow moment of the machine lasts longer than one run. The programs
are built from `tests/bench/peers` with Go and kept below `.cache`. The played machine has 64 CPUs on two NUMA nodes and a
cgroup v2 tree; all files, the state of the plugins among them, are in memory.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.agent import MEDIUM, in_memory, installed, let_settle, machine_tree, rss_mib, site_in

HERE = Path(__file__).parent / "peers"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench-peers"
LONGEST_S = 600
"""A run that takes longer hangs."""

AWARE_PROGRAM = "github.com/containers/nri-plugins/cmd/plugins/topology-aware"
AWARE_CONFIG = """\
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata:
  name: default
spec:
  pinCPU: true
  pinMemory: false
  reservedResources:
    cpu: cpuset:0-1
"""
"""What nri-pin is told, too: memory nodes are not chosen, and two CPUs are reserved."""

LOG_PART = 600
"""The last characters of a log that tell why it ended."""


class NoPeersError(Exception):
    """The programs cannot be built here; says what is missing."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """What runs on the node already; some pods have an exclusive CPU for each container.

    Attributes:
        asked: whether containers are created beside it, or only Synchronize and memory are measured.
    """

    name: str
    pods: int
    each: int = 5
    exclusive: int = 4
    asked: bool = True


EMPTY = Crowd("empty node", 0)
SMALL = Crowd("20 pods + 100 containers", 20)
FULL = Crowd("600 pods + 3,000 containers", 600)
HUGE = Crowd("2,000 pods + 10,000 containers", 2000, asked=False)
CROWDS = (EMPTY, SMALL, FULL, HUGE)


@dataclass(frozen=True, slots=True)
class Peer:
    """A plugin.

    Attributes:
        name: what the tables call it.
        command: starts it on the files of a node.
        most: the largest crowd, in pods, that it is asked beside; None for any.
    """

    name: str
    command: Callable[[Path, Path], Sequence[str]]
    most: int | None = None

    def is_asked_beside(self, crowd: Crowd) -> bool:
        """Whether it can be asked beside that crowd."""
        return self.most is None or crowd.pods <= self.most


def _noop(programs: Path, base: Path) -> Sequence[str]:
    return (f"{programs}/noop", f"{base}/nri.sock")


def _ours(_: Path, base: Path) -> Sequence[str]:
    return (sys.executable, "-m", "nri_plugin", "run", "--config", f"{base}/config.yaml")


def _aware(programs: Path, base: Path) -> Sequence[str]:
    (base / "aware.yaml").write_text(AWARE_CONFIG)
    flags = {
        "host-root": machine_tree(MEDIUM).name,
        "config-file": f"{base}/aware.yaml",
        "nri-socket": f"{base}/nri.sock",
        "nri-plugin-index": "10",
        "pid-file": f"{base}/pid",
        "state-dir": f"{base}/aware",
        "cgroup-mount": f"{base}/cgroup",
    }
    return (f"{programs}/topology-aware", *(f"-{key}={value}" for key, value in flags.items()))


NOTHING = Peer("Go, does nothing", _noop)
OURS = Peer("nri-pin", _ours)
AWARE = Peer("topology-aware", _aware, most=SMALL.pods)
"""Its Synchronize takes the square of the containers: a second for 100, 40 s for 600. The runtime drops it after 2 s."""


@dataclass(slots=True)
class Samples:
    """What was measured of one plugin beside one crowd, in all its runs.

    Attributes:
        us: microseconds by series; `synchronize` has one sample a run.
        updates: of other containers in all answers, by series; a runtime makes each of them.
        rss_mib: resident memory once Synchronize was answered, one sample a run.
        peak_mib: the most it was until then.
    """

    us: dict[str, list[float]] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)
    rss_mib: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Beside:
    """What was measured beside one crowd, by the name of the plugin."""

    crowd: Crowd
    found: dict[str, Samples]


# Programs


def build() -> Path:
    """The folder with the driver and the plugin that does nothing; built when their source has changed.

    Raises:
        NoPeersError: Go is missing, or a module cannot be had.
    """
    return _built("peers", HERE, {"driver": "./driver", "noop": "./noop"}, "1.24")


def build_aware(programs: Path, *, only_kept: bool) -> str:
    """Lay the topology-aware policy of nri-plugins beside the programs; returns why it is not there, else nothing.

    Args:
        programs: their folder.
        only_kept: do not build it, which takes minutes and 80 modules.
    """
    source = HERE / "topologyaware"
    kept = CACHE / f"aware-{_stamp(source)}" / "topology-aware"
    if only_kept and not kept.exists():
        return "not built yet; hack/bench peers without --quick builds it"
    try:
        _built("aware", source, {"topology-aware": AWARE_PROGRAM}, "1.26")
    except NoPeersError as error:
        return str(error)
    (programs / "topology-aware").unlink(missing_ok=True)
    os.link(kept, programs / "topology-aware")
    return ""


def _built(name: str, source: Path, packages: dict[str, str], version: str) -> Path:
    folder = CACHE / f"{name}-{_stamp(source)}"
    if all((folder / program).exists() for program in packages):
        return folder
    go = shutil.which("go")
    if go is None:
        raise NoPeersError(
            f"hack/bench peers needs Go {version} or newer to build {' and '.join(packages)}; install golang"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for program, package in packages.items():
        command = [go, "build", "-buildvcs=false", "-o", f"{folder}/{program}", package]
        built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        if built.returncode:
            raise NoPeersError(f"go build in {source.name} failed: {built.stderr.strip()[-LOG_PART:]}")
    return folder


def _stamp(source: Path) -> str:
    files = sorted(path for path in source.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


# Runs


def measure(
    programs: Path, crowd: Crowd, peers: Sequence[Peer], turns: int, rounds: int, slow: int
) -> Beside:
    """All plugins beside that crowd, as far as they can be asked there, in turns.

    Args:
        programs: their folder.
        crowd: what runs already.
        peers: the plugins.
        turns: runs of each.
        rounds: creations of each kind in a run.
        slow: of each kind at a distance of 20 ms.
    """
    able = [peer for peer in peers if peer.is_asked_beside(crowd)]
    found = {peer.name: Samples() for peer in able}
    for turn in range(turns):
        for peer in able if turn % 2 == 0 else reversed(able):
            _run(programs, peer, crowd, rounds, slow, found[peer.name])
    return Beside(crowd, found)


def _run(programs: Path, peer: Peer, crowd: Crowd, rounds: int, slow: int, into: Samples) -> None:
    with (
        site_in(in_memory() or tempfile.gettempdir(), MEDIUM) as base,
        _driven(programs, base, crowd, rounds, slow) as driver,
    ):
        command = peer.command(programs, base)
        with (
            open(base / "log", "wb") as log,
            subprocess.Popen(command, stderr=log, stdout=log, env=installed()) as plugin,
        ):
            try:
                if _heard(driver, plugin.pid, into):
                    return
            finally:
                plugin.terminate()
        said = "".join((base / file).read_text()[-LOG_PART:] for file in ("driver.log", "log"))
        raise NoPeersError(f"the driver ended early beside {peer.name}: {said}")


def _heard(driver: "subprocess.Popen[str]", plugin: int, into: Samples) -> bool:
    """Keep what the driver says; returns whether it came to its end."""
    assert driver.stdout is not None
    assert driver.stdin is not None
    for line in driver.stdout:
        told = json.loads(line)
        if told["name"] == "end":
            return True
        into.us.setdefault(told["name"], []).extend(told["us"])
        into.updates[told["name"]] = into.updates.get(told["name"], 0) + told["updates"]
        if told["name"] == "synchronize":
            let_settle(plugin)
            into.rss_mib.append(rss_mib(plugin))
            into.peak_mib.append(rss_mib(plugin, "VmHWM"))
            driver.stdin.write("\n")
            driver.stdin.flush()
    return False


@contextmanager
def _driven(
    programs: Path, base: Path, crowd: Crowd, rounds: int, slow: int
) -> Iterator["subprocess.Popen[str]"]:
    flags = {
        "socket": f"{base}/nri.sock",
        "cgroups": f"{base}/cgroup",
        "cpus": MEDIUM.cpus,
        "pods": crowd.pods,
        "each": crowd.each,
        "exclusive": crowd.exclusive,
        "rounds": rounds,
        "slow": slow,
        "limit": "60s",  # an answer that comes too late for a runtime is measured, too
    }
    command = [
        "timeout",
        str(LONGEST_S),
        str(programs / "driver"),
        *(f"-{key}={value}" for key, value in flags.items()),
    ]
    with (
        open(base / "driver.log", "wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as driver,
    ):
        try:
            assert driver.stdout is not None
            driver.stdout.readline()  # it listens
            yield driver
        finally:
            driver.terminate()
