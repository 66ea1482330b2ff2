"""CreateContainer calls of a real containerd, with the plugin and without: the ratios that `hack/lab measure` finds."""

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.against_peers import NOTHING, OURS
from tests.e2e.lab.figures import measured
from tests.e2e.lab.setting_up import CANNOT_RUN, default_work

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {
    "p50": "CreateContainer with / without the {}, p50",
    "p99": "CreateContainer with / without the {}, p99",
}
WHICH = {NOTHING.name: "other plugin", OURS.name: "plugin"}


class NoRuntimeError(Exception):
    """No containerd can be measured here; says why."""


def creations(nothing: Path) -> list[tuple[str, dict[str, float]]]:
    """Ratios by plugin for p50 and p99 of each containerd, 200 containers at once; takes some minutes.

    `nothing` is the program of the plugin that does nothing: what NRI itself costs a creation.

    What the lab says, such as what it waits for, goes on to standard error.

    Raises:
        NoRuntimeError: this machine cannot run one.
    """
    command = [sys.executable, "-P", "-m", "tests.e2e.lab", "measure", "--plugin", str(nothing)]
    last = "it said nothing"
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as lab:
        assert lab.stdout is not None
        for line in lab.stdout:
            sys.stderr.write(line)
            last = line.strip() or last
    if lab.returncode:
        raise NoRuntimeError(last if lab.returncode == CANNOT_RUN else f"hack/lab measure failed: {last}")
    return [
        (
            f"CRI CreateContainer with / without the plugin, {percent}, {runtime}, 200 containers",
            {name: float(found[what.format(which)]) for name, which in WHICH.items()},
        )
        for runtime, found in measured(default_work()).items()
        for percent, what in FIGURES.items()
    ]
