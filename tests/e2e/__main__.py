"""Command line of `hack/e2e`.

Exit status: 0 everything held, 1 something did not, 77 this machine cannot do it and nothing was tested.
"""

import argparse
import fcntl
import io
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .lab.apt import Mirror, install_on_this_machine, mirror_of_this_machine, upstream_version
from .lab.outcome import Outcome, table
from .lab.prepare import prepare_guest, prepare_root
from .lab.progress import say, step
from .lab.runs import KERNEL_FROM, RUNS, Lab, Run, perform_all
from .lab.shell import CannotRun, LabError

CANNOT_RUN = 77
_CHECKOUT = Path(__file__).resolve().parents[2]
_NEEDED = {"zstd": "zstd", "xz": "xz-utils", "mke2fs": "e2fsprogs", "dpkg-deb": "dpkg", "tar": "tar"}
_OLDEST_QEMU = 8
_LOCK = Path("/run/nri-pin-e2e.lock")


def main() -> int:
    """Prepare, perform, print; return the exit status."""
    arguments = _arguments()
    try:
        runs = _possible([run for run in RUNS if arguments.runs in (run.letter, "all")])
        mirror = _check_machine()
        arguments.work.mkdir(parents=True, exist_ok=True)
        lock = _lock()
        lab = _prepare(runs, mirror, arguments.work)
    except CannotRun as error:
        print(f"hack/e2e: CANNOT RUN HERE, NOTHING WAS TESTED: {error}", flush=True)  # noqa: T201
        return CANNOT_RUN
    except LabError as error:
        print(f"hack/e2e: the lab could not be built: {error}", flush=True)  # noqa: T201
        return 1
    with lock:
        outcomes = perform_all(runs, lab)
    return _conclude(outcomes, arguments.work, keep=arguments.keep)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hack/e2e", description="Real containerd around the agent of this checkout."
    )
    parser.add_argument("runs", nargs="?", default="all", choices=["a", "b", "c", "all"])
    parser.add_argument(
        "--work", type=Path, default=_default_work(), metavar="DIR", help="roots, disks and reports"
    )
    parser.add_argument("--keep", action="store_true", help="keep the reports of a run that succeeded")
    return parser.parse_args()


def _default_work() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NRI_PIN_E2E_WORK") or cache / "nri-pin" / "e2e")


def _check_machine() -> Mirror:
    """Say what is missing before anything is built.

    Raises:
        CannotRun: this machine cannot run containers of its own.
    """
    if os.geteuid() != 0:
        raise CannotRun("it needs root, for namespaces, cgroups and a container runtime")
    for program in ("apt-get", "dpkg-deb", "unshare", "chroot"):
        if shutil.which(program) is None:
            raise CannotRun(f"it needs a Debian machine; {program} is not here")
    tried = subprocess.run(
        ["unshare", "-m", "-p", "-f", "-u", "-i", "true"], check=False, capture_output=True, text=True
    )
    if tried.returncode:
        raise CannotRun(f"it may not make namespaces here: {tried.stderr.strip()}")
    return mirror_of_this_machine()


def _possible(runs: list[Run]) -> list[Run]:
    """Leave out what needs more than this machine has, and say so.

    Raises:
        CannotRun: nothing is left.
    """
    reason = _why_not_directly()
    left = [run for run in runs if not reason or run.letter != "a"]
    for run in runs:
        if run not in left:
            say(f"NOT RUN: {run.title}: {reason}")
    if not left:
        raise CannotRun(reason)
    return left


def _why_not_directly() -> str:
    """Why containers cannot be pinned on this machine itself; empty when they can."""
    if (os.cpu_count() or 1) < 2:
        return "it needs two CPUs, one reserved and one exclusive"
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    on_v2 = controllers.exists() and "cpuset" in controllers.read_text().split()
    return (
        ""
        if on_v2 or Path("/sys/fs/cgroup/cpuset").is_dir()
        else "the cpuset controller is not available here"
    )


def _lock() -> io.TextIOWrapper:
    """Keep a second command off this machine's cgroups until this one ends."""
    file = _LOCK.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another hack/e2e on this machine")
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _prepare(runs: list[Run], mirror: Mirror, work: Path) -> Lab:
    shutil.rmtree(work / "runs", ignore_errors=True)
    say(f"working in {work}")
    guests = sorted({run.root for run in runs if run.in_guest})
    names = sorted({run.root for run in runs} | ({KERNEL_FROM} if guests else set()))
    with ThreadPoolExecutor() as pool:
        installed = pool.submit(_install, mirror, bool(guests), work)
        building = {name: pool.submit(prepare_root, name, mirror, _CHECKOUT, work) for name in names}
        installed.result()
        roots = {name: future.result() for name, future in building.items()}
    return Lab(work, roots, {name: prepare_guest(roots[name], roots[KERNEL_FROM], work) for name in guests})


def _install(mirror: Mirror, guests: bool, work: Path) -> None:
    missing = [package for program, package in _NEEDED.items() if shutil.which(program) is None]
    if guests and upstream_version(["qemu-system-x86_64", "--version"]) < _OLDEST_QEMU:
        missing.append("qemu-system-x86")
    if missing:
        suite = mirror.codename + ("-backports" if mirror.codename == "bookworm" else "")
        with step(f"installing {' '.join(missing)}"):
            install_on_this_machine(mirror, missing, suite, work / "apt-here")


def _conclude(outcomes: list[Outcome], work: Path, *, keep: bool) -> int:
    passed, failed = sum(o.passed for o in outcomes), sum(o.failed for o in outcomes)
    lines = ["", table(outcomes), ""]
    for outcome in outcomes:
        wrong = [*outcome.failures, *([outcome.broken] if outcome.broken else [])]
        lines += [f"FAILED {outcome.run}: {text}" for text in wrong]
    if failed or keep:
        lines.append(f"reports and logs: {work / 'runs'}")
    else:
        shutil.rmtree(work / "runs", ignore_errors=True)
    print("\n".join([*lines, f"{passed} passed, {failed} failed"]), flush=True)  # noqa: T201
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
