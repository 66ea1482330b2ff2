"""Runtimes of releases that Debian does not have, built from released source and kept.

The module proxy has containerd and CRI-O as modules of their own, so a `go.mod` that requires one is all that a build needs. runc,
conmon, the images and the rest of the root are Debian's.
"""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .progress import step
from .shell import CannotRun, LabError
from .writing import write_whole

_LOG_PART = 2000


@dataclass(frozen=True, slots=True)
class BuiltRuntime:
    """A runtime that Go builds, and a program of it in C where it has one.

    Attributes:
        module: the Go module.
        programs: their packages in the module by name.
        flags: of `go build`, `{version}` is filled in.
        c_sources: the folder of the C program in the module.
    """

    module: str
    programs: tuple[str, ...]
    flags: tuple[str, ...]
    c_program: str = ""
    c_sources: str = ""


_CONTAINERD = "github.com/containerd/containerd/v2"
RUNTIMES = {
    "containerd": BuiltRuntime(
        _CONTAINERD,
        ("containerd", "containerd-shim-runc-v2"),
        ("-ldflags", f"-s -w -X {_CONTAINERD}/version.Version=v{{version}}"),
    ),
    # without the libraries for signatures, btrfs and device mapper, none of which a node of the lab uses
    "crio": BuiltRuntime(
        "github.com/cri-o/cri-o",
        ("crio",),
        ("-tags", "containers_image_openpgp exclude_graphdriver_btrfs", "-ldflags", "-s -w"),
        "pinns",
        "pinns/src",
    ),
}


def built(runtime: str, version: str, work: Path, more: tuple[str, ...] = ()) -> list[Path]:
    """Return the programs of this version; builds them first where they are missing, which takes minutes.

    Args:
        runtime: a key of `RUNTIMES`.
        version: its release.
        work: for what is kept from run to run.
        more: further programs of the module.

    Raises:
        CannotRun: there is no Go compiler, or no C compiler for a runtime that needs one.
        LabError: there is no such version, or it could not be built.
    """
    recipe = RUNTIMES[runtime]
    folder = work / f"{runtime}-{version}"
    names = recipe.programs + more
    missing = [name for name in names if not (folder / name).exists()]
    if missing and shutil.which("go") is None:
        raise CannotRun(f"it builds {runtime} {version} with Go 1.21 or newer; install golang")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "go.mod", f"module runtimes\n\ngo 1.21\n\nrequire {recipe.module} v{version}\n")
    if missing:
        # its own checksums, which also cover commits without a tag that the checksum database does not know
        write_whole(folder / "go.sum", (_source(recipe, version, folder) / "go.sum").read_text())
    for name in missing:
        with step(f"building {name} {version}, once"):
            flags = [flag.format(version=version) for flag in recipe.flags]
            _go(folder, "build", *flags, "-o", f"{name}.new", f"{recipe.module}/cmd/{name}")
        (folder / f"{name}.new").replace(folder / name)
    programs = [folder / name for name in names]
    if recipe.c_program:
        programs.append(_c_program(recipe, version, folder))
    return programs


def _source(recipe: BuiltRuntime, version: str, folder: Path) -> Path:
    """The module as Go keeps it."""
    about = _go(folder, "mod", "download", "-json", f"{recipe.module}@v{version}")
    return Path(json.loads(about)["Dir"])


def _c_program(recipe: BuiltRuntime, version: str, folder: Path) -> Path:
    target = folder / recipe.c_program
    if target.exists():
        return target
    if shutil.which("gcc") is None:
        raise CannotRun(f"it builds {recipe.c_program} with a C compiler; install gcc and libc6-dev")
    sources = _source(recipe, version, folder) / recipe.c_sources
    words = ["gcc", "-std=c99", "-O2", "-static", "-o", f"{target}.new", *sorted(sources.glob("*.c"))]
    _run(words, folder, recipe.c_program)
    Path(f"{target}.new").replace(target)
    return target


def _go(folder: Path, *words: str) -> str:
    """Run Go; return what it printed."""
    return _run(["nice", "-n", "10", "go", *words], folder, words[-1])


def _run(words: list[str | Path], folder: Path, what: str) -> str:
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=mod -buildvcs=false",
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "auto",
    }
    done = subprocess.run(words, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"building {what} failed: {done.stderr.strip()[-_LOG_PART:]}")
    return done.stdout.strip()
