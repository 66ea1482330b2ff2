"""Records with which configurations a released kubelet starts, and what it then goes by: `tests/kubelet_starts.json`.

    python -m tests.e2e.cluster.kubelet_starts 1.36.0 1.37.2

A case has files and flags. The record has for each release either why it does not start, or the settings that concern
placements. The kubelet that the tests play is compared with it. To add a case, write it into the file and record again.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.played_migration import SETTINGS

from .components import check_tools, kubernetes_module, programs_work, run_go

RECORD = Path(__file__).parents[2] / "kubelet_starts.json"
PROGRAM = Path(__file__).with_name("kubelet_start") / "main.go"


def build(version: str, work: Path) -> Path:
    """The program that goes through a kubelet's start; built when it is missing or another.

    Raises:
        CannotRun: there is no Go compiler, or the proxy does not give the module.
        LabError: it could not be built.
    """
    source = kubernetes_module(version, work / f"kubernetes-{version}" / "kubelet_start")
    check_tools()
    shutil.copy(PROGRAM, source / "main.go")
    run_go(source, "build", "-o", "start", ".")
    return source / "start"


def answer(program: Path, case: dict[str, Any]) -> dict[str, Any]:
    """What this kubelet says of the configuration."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            path = Path(folder + name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name, target in case.get("links", {}).items():
            Path(folder + name).symlink_to(target)
        flags = [flag.replace("=/", f"={folder}/") for flag in case["flags"]]
        done = subprocess.run([program, *flags], check=False, capture_output=True, text=True)
    if done.returncode:  # an unknown gate
        return {"refused": next(line for line in done.stderr.splitlines() if line.startswith("panic: "))}
    found = json.loads(done.stdout.replace(folder, ""))
    if "refused" in found:
        return {"refused": found["refused"]}
    return {"settings": {key: found["settings"][key] for key in SETTINGS if found["settings"].get(key)}}


def main() -> None:
    """Record the releases that are named."""
    cases = json.loads(RECORD.read_text())
    for version in sys.argv[1:]:
        program = build(version, programs_work())
        for case in cases:
            case["answers"][version] = answer(program, case)
    RECORD.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
