"""Figures of the real container runtimes, measured on this machine itself and kept for the report."""

import json
import os
import time
from pathlib import Path
from typing import Any

from .direct import run_in_root
from .prepare import inside
from .progress import say
from .ready import Lab
from .shell import LabError

_MARK = "@@"
ROOTS = {"trixie": "containerd 1.7", "sid": "containerd 2"}


def measure(lab: Lab, root: str) -> None:
    """Measure one runtime and keep what came out.

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

    before = os.getloadavg()[0]
    prepared = lab.roots[root]
    place = lab.work / "runs" / f"measure-{root}"
    if run_in_root(prepared.root, prepared.payload, place / "out", inside("measure"), hear):
        raise LabError(f"measuring {ROOTS[root]} broke off: {said[-5:]}")
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    found |= loads(before, os.getloadavg()[0], os.cpu_count() or 1) | {
        "measured": f"{date}, {os.cpu_count()} CPUs, cgroups of this machine",
    }
    folder = lab.work / "figures"
    folder.mkdir(exist_ok=True)
    (folder / f"{root}.json").write_text(json.dumps(found, indent=1) + "\n")


def loads(before: float, after: float, cpus: int) -> dict[str, str]:
    """Load averages at both ends, the second with our own share, and a word of warning where others had the CPUs."""
    said = {"load when it began": f"{before:.1f}", "load when it ended": f"{after:.1f}"}
    if before > cpus:
        said["busy machine"] = f"not representative: the load was above {cpus} CPUs before it began"
    return said


def measured(work: Path) -> dict[str, dict[str, Any]]:
    """What was kept, by runtime."""
    found = {}
    for path in sorted((work / "figures").glob("*.json")):
        read = json.loads(path.read_text())
        found[f"containerd {read.pop('version', '?')}"] = read
    return found
