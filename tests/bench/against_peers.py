"""The hook against Go: the same driver, the runtime's side of NRI, asks nri-pin and a Go plugin that does nothing.

The plugins take turns (A B B A ...), because a slow moment of the machine lasts longer than one run. The programs are
built from `tests/bench/peers` with Go and kept below `.cache`.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.agent import rss_mib, site_in
from tests.bench.figures import at

HERE = Path(__file__).parent / "peers"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench-peers"
LONGEST_S = 300
"""A run that takes longer hangs."""

NOTHING = "Go plugin that does nothing"
OURS = "nri-pin"
SERIES = ("shared", "exclusive", "shared-20ms", "exclusive-20ms")


class NoPeersError(Exception):
    """The programs cannot be built here; says what is missing."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """What runs on the node already."""

    name: str
    pods: int
    each: int


EMPTY, FULL = Crowd("empty node", 0, 0), Crowd("600 pods + 3,000 containers", 600, 5)
SMALL = Crowd("60 pods + 300 containers", 60, 5)


@dataclass(slots=True)
class Samples:
    """What was measured of one plugin beside one crowd, in all its runs.

    Attributes:
        us: microseconds by series; `synchronize` has one sample a run.
        rss_mib: resident memory at the end of each run.
    """

    us: dict[str, list[float]] = field(default_factory=dict)
    rss_mib: list[float] = field(default_factory=list)


def build() -> Path:
    """The folder with the built programs; built when their source has changed.

    Raises:
        NoPeersError: Go is missing, or a module cannot be had.
    """
    go = shutil.which("go")
    if go is None:
        raise NoPeersError(
            "hack/bench peers needs Go 1.24 or newer to build the runtime's side of NRI; install golang"
        )
    sources = sorted(path for path in HERE.rglob("*") if path.is_file())
    stamp = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = CACHE / stamp
    if not (folder / "driver").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [go, "build", "-buildvcs=false", "-o", f"{folder}/", "./driver", "./noop"]
        built = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
        if built.returncode:
            raise NoPeersError(f"go build in {HERE} failed: {built.stderr.strip()[-600:]}")
    return folder


def measure(programs: Path, crowd: Crowd, *, turns: int, rounds: int, slow: int) -> dict[str, Samples]:
    """Both plugins beside that crowd, in turns."""
    found = {NOTHING: Samples(), OURS: Samples()}
    for turn in range(turns):
        order = (NOTHING, OURS) if turn % 2 == 0 else (OURS, NOTHING)
        for name in order:
            _run(programs, name, crowd, rounds, slow, found[name])
    return found


def _run(programs: Path, name: str, crowd: Crowd, rounds: int, slow: int, into: Samples) -> None:
    with site_in(_memory()) as base, _driven(programs, base, crowd, rounds, slow) as driver:
        command = (
            [str(programs / "noop"), f"{base}/nri.sock"]
            if name == NOTHING
            else [sys.executable, "-m", "nri_plugin", "run", "--config", f"{base}/config.yaml"]
        )
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        with (
            open(base / "log", "wb") as log,
            subprocess.Popen(command, stderr=log, stdout=log, env=environment) as plugin,
        ):
            try:
                assert driver.stdout is not None
                for line in driver.stdout:
                    told = json.loads(line)
                    if told["name"] == "end":
                        into.rss_mib.append(rss_mib(plugin.pid))
                        return
                    into.us.setdefault(told["name"], []).extend(told["us"])
            finally:
                plugin.terminate()
        said = "".join((base / file).read_text()[-600:] for file in ("driver.log", "log"))
        raise NoPeersError(f"the driver ended early beside {name}: {said}")


@contextmanager
def _driven(
    programs: Path, base: Path, crowd: Crowd, rounds: int, slow: int
) -> Iterator["subprocess.Popen[str]"]:
    flags = {
        "socket": f"{base}/nri.sock",
        "cgroups": f"{base}/cgroup",
        "pods": crowd.pods,
        "each": crowd.each,
        "rounds": rounds,
        "slow": slow,
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


def _memory() -> str:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def table(by_crowd: Sequence[tuple[Crowd, dict[str, Samples]]]) -> str:
    """Milliseconds of both and their ratio, p50 and p99, for eyes."""
    lines = [
        f"{'':44} {'Go p50':>8} {'p99':>8}   {'ours p50':>8} {'p99':>8} {'ms':>3}   {'p50':>5} {'p99/p50':>8}"
    ]
    first: dict[str, float] = {}
    for crowd, found in by_crowd:
        for series in ("synchronize", *SERIES):
            go, ours = (found[name].us.get(series, []) for name in (NOTHING, OURS))
            if not go or not ours:
                continue
            values = [at(go, 0.5), at(go, 0.99), at(ours, 0.5), at(ours, 0.99)]
            tails = (values[3] / values[2]) / (values[1] / values[0])
            what = f"{_words(series)}, {crowd.name}"
            lines.append(
                f"{what:44} {values[0] / 1e3:8.2f} {values[1] / 1e3:8.2f}   {values[2] / 1e3:8.2f} {values[3] / 1e3:8.2f}     "
                f"x {values[2] / values[0]:5.1f} {tails:8.2f}"
            )
            if series in first:
                lines.append(
                    f"{'    against our own on an empty node':44} {'':35}     x {values[2] / first[series]:5.2f}"
                )
            else:
                first[series] = values[2]
        go_mib, ours_mib = (at(found[name].rss_mib, 0.5) for name in (NOTHING, OURS))
        lines.append(
            f"{f'resident memory, {crowd.name}':44} {go_mib:8.1f} {'':8}   {ours_mib:8.1f} {'':8} MiB x {ours_mib / go_mib:5.1f}"
        )
    return "\n".join(lines)


def _words(series: str) -> str:
    if series == "synchronize":
        return "Synchronize"
    kind, _, pause = series.partition("-")
    return f"CreateContainer {kind}{', every 20 ms' if pause else ''}"
