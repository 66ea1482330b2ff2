"""Cgroups of a node's own, below those that we are in: every hierarchy of cgroup v1 that the machine has mounted, or the one of v2."""

import contextlib
import time
from pathlib import Path

from tests.e2e.lab.shell import CannotRun

ROOT = Path("/sys/fs/cgroup")
V2_CONTROLLERS = "+cpuset +cpu +io +memory +pids"
_V1_NEEDED = {"cpu", "cpuset", "memory", "devices", "freezer", "pids"}
_EMPTYING_S = 5.0


def is_v2() -> bool:
    """Whether the machine has the unified hierarchy alone."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> dict[str, Path]:
    """Of v1: the controllers of each hierarchy, as `cpu,cpuacct` or `name=systemd`, and the cgroup that we are in."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        folder = ROOT / controllers.removeprefix("name=")
        if controllers and folder.is_dir():
            found[controllers] = folder / path.strip("/")
    return found


def make_cgroups(name: str) -> list[Path]:
    """Make the cgroups of a node; a process is in them once its number is in `cgroup.procs` of each.

    Raises:
        CannotRun: this machine has none that a kubelet can use.
    """
    try:
        if is_v2():
            (ROOT / "cgroup.subtree_control").write_text(V2_CONTROLLERS)
            found = [ROOT / name]
        else:
            found = [folder / name for folder in hierarchies().values()]
            has = {one for controllers in hierarchies() for one in controllers.split(",")}
            if not has >= _V1_NEEDED:
                raise CannotRun(f"cgroup v1 without {', '.join(sorted(_V1_NEEDED - has))} holds no kubelet")
        for folder in found:
            folder.mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not is_v2() and (folder / file).exists():
                    (folder / file).write_text((folder.parent / file).read_text())
    except OSError as error:
        raise CannotRun(f"it may not make cgroups here: {error}") from error
    return found


def remove_left_behind(prefix: str) -> None:
    """Remove those of commands that were killed; names go on with the number of the command's process."""
    for top in _tops():
        for folder in top.glob(f"{prefix}[0-9]*"):
            if not Path("/proc", folder.name.removeprefix(prefix).partition("-")[0]).exists():
                remove_cgroups(folder.name)


def _tops() -> list[Path]:
    return [ROOT] if is_v2() else list(hierarchies().values())


def remove_cgroups(prefix: str) -> None:
    """Remove cgroups of that name and all below; whatever ran in them has ended or is ending."""
    tops = _tops()
    deadline = time.monotonic() + _EMPTYING_S
    while left := [folder for top in tops for folder in top.glob(f"{prefix}*")]:
        for folder in left:
            below = sorted(
                (path for path in folder.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts)
            )
            for path in [*below, folder]:
                with contextlib.suppress(OSError):
                    path.rmdir()
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)
