"""Figures of the real container runtimes, measured on this machine itself and kept for the report."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from .direct import run_in_root
from .prepare import inside
from .progress import say
from .ready import Lab
from .shell import LabError

_MARK = "@@"
_LOOK_S = 5.0
ROOTS = {"trixie": "containerd 1.7", "sid": "containerd 2"}


def measure(lab: Lab, root: str, plugin: Path | None = None) -> None:
    """Measure one runtime and keep what came out.

    Args:
        lab: has the roots.
        root: that of the runtime.
        plugin: another plugin's program, measured in turns with ours; its only word is the path of the NRI socket.

    Raises:
        LabError: it broke off.
    """
    found: dict[str, Any] = {}
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        if line.startswith(_MARK) and (message := json.loads(line.removeprefix(_MARK)))["kind"] == "figure":
            found[message["what"]] = message["value"]
            say(f"  {ROOTS[root]}: {message['what']}: {message['value']}")
        elif line.startswith(_MARK) and "version" in line:
            found["version"] = json.loads(line.removeprefix(_MARK))["version"]

    before = busy_cpus()
    prepared = lab.roots[root]
    place = lab.work / "runs" / f"measure-{root}"
    inside_plugin = place / "out/plugin"
    inside_plugin.unlink(missing_ok=True)
    if plugin is not None:
        inside_plugin.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(plugin, inside_plugin)
    if run_in_root(prepared.root, prepared.payload, place / "out", inside("measure"), hear):
        raise LabError(f"measuring {ROOTS[root]} broke off: {said[-5:]}")
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    found |= others(before, busy_cpus(), os.cpu_count() or 1) | {
        "measured": f"{date}, {os.cpu_count()} CPUs, cgroups of this machine",
    }
    folder = lab.work / "figures"
    folder.mkdir(exist_ok=True)
    (folder / f"{root}.json").write_text(json.dumps(found, indent=1) + "\n")


def busy_cpus() -> float:
    """How many CPUs are at work while we only look; a load average would still count what we did a minute ago."""
    work, idle = _ticks()
    time.sleep(_LOOK_S)
    later_work, later_idle = _ticks()
    passed = later_work + later_idle - work - idle
    return (os.cpu_count() or 1) * (later_work - work) / max(1, passed)


def _ticks() -> tuple[int, int]:
    """Time at work and idle (waiting for a disk counts as that) since the boot, of all CPUs. Source: proc_stat(5)."""
    user, nice, system, idle, iowait, *rest = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return user + nice + system + sum(rest[:3]), idle + iowait


def others(before: float, after: float, cpus: int) -> dict[str, str]:
    """What others did on the CPUs at both ends, and a word of warning where it was more than a quarter of them."""
    said = {"CPUs that others kept busy before and after": f"{before:.1f} and {after:.1f} of {cpus}"}
    if max(before, after) > cpus / 4:
        said["busy machine"] = "not representative: others had more than a quarter of the CPUs"
    return said


def measured(work: Path) -> dict[str, dict[str, Any]]:
    """What was kept, by runtime."""
    found = {}
    for path in sorted((work / "figures").glob("*.json")):
        read = json.loads(path.read_text())
        found[f"containerd {read.pop('version', '?')}"] = read
    return found
