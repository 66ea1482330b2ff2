"""containerd of releases that Debian does not have, built from released source and kept.

The module proxy has containerd as a module of its own, so a `go.mod` that requires it is all that a build needs. runc, the
images and the rest of the root are Debian's.
"""

import os
import shutil
import subprocess
from pathlib import Path

from .progress import step
from .shell import CannotRun, LabError
from .writing import write_whole

MODULE = "github.com/containerd/containerd/v2"
PROGRAMS = ("containerd", "containerd-shim-runc-v2")
_LOG_PART = 2000


def built_containerd(version: str, work: Path) -> Path:
    """Return the folder with the programs of this version; builds them first where they are missing, which takes minutes.

    Raises:
        CannotRun: there is no Go compiler.
        LabError: there is no such version, or it could not be built.
    """
    folder = work / f"containerd-{version}"
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if missing and shutil.which("go") is None:
        raise CannotRun(f"it builds containerd {version} with Go 1.21 or newer; install golang")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "go.mod", f"module runtimes\n\ngo 1.21\n\nrequire {MODULE} v{version}\n")
    for name in missing:
        with step(f"building {name} {version}, once"):
            _build(folder, name, version)
    return folder


def _build(folder: Path, name: str, version: str) -> None:
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=mod -buildvcs=false",
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "auto",
    }
    words = ["nice", "-n", "10", "go", "build", "-ldflags", f"-s -w -X {MODULE}/version.Version=v{version}"]
    done = subprocess.run(
        [*words, "-o", f"{name}.new", f"{MODULE}/cmd/{name}"],
        cwd=folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise LabError(f"building {name} {version} failed: {done.stderr.strip()[-_LOG_PART:]}")
    (folder / f"{name}.new").replace(folder / name)
