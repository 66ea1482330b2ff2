"""What hack/e2e and hack/lab do before anything runs: look at the machine, take its lock, build what is missing."""

import fcntl
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .apt import Mirror, install_on_this_machine, mirror_of_this_machine, upstream_version
from .code_state import checkout, code_state
from .prepare import prepare_guest, prepare_guest_with, prepare_root
from .progress import say, step
from .ready import CHECKOUT, KERNEL_FROM, Lab
from .shell import CannotRun

CANNOT_RUN = 77
_NEEDED = {
    "zstd": "zstd",
    "xz": "xz-utils",
    "lz4": "lz4",
    "mke2fs": "e2fsprogs",
    "dpkg-deb": "dpkg",
    "tar": "tar",
}
_OLDEST_QEMU = 8
MACHINE_LOCK = Path("/run/nri-pin-e2e.lock")
"""Held by whoever runs containers on this machine itself; guests need the lock of their folder only."""


def default_work() -> Path:
    """Where roots, disks and reports are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NRI_PIN_E2E_WORK") or cache / "nri-pin" / "e2e")


def check_machine() -> Mirror:
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


def take_lock(path: Path) -> io.TextIOWrapper:
    """Keep a second command off this machine's cgroups, or off a folder's disks, until this one ends.

    The file names who holds it. Waiting has no limit: the other may play for hours, and Ctrl-C ends the wait.
    """
    file = path.open("a+")  # whoever waits must not wipe out the holder's name
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for {_holder(file)}, which holds {path}; Ctrl-C ends the wait")
        fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write(f"process {os.getpid()}: {_own_words()}\n")
    file.flush()
    return file


def _holder(file: io.TextIOWrapper) -> str:
    file.seek(0)
    return file.readline().strip() or "another hack/e2e or hack/lab"


def _own_words() -> str:
    command = "hack/lab" if Path(sys.argv[0]).parent.name == "lab" else "hack/e2e"
    return shlex.join([command, *sys.argv[1:]])


def prepare(
    roots_wanted: list[str],
    guests: list[str],
    mirror: Mirror,
    work: Path,
    other_kernels: Iterable[tuple[str, str]] = (),
) -> Lab:
    """Build roots and guests that are missing, and pack the checkout.

    `other_kernels` are guests, too: roots, each with the suite of its kernel.

    What this machine itself lacks is installed first: a root takes minutes, and would be waited for in vain.
    """
    say(f"working in {work}")
    names = sorted({*roots_wanted, *guests} | ({KERNEL_FROM} if guests else set()))
    _install(mirror, bool(guests), work)
    code_state()  # results name what is packed now, also where somebody edits or commits meanwhile
    checkout()
    with ThreadPoolExecutor() as pool:
        building = {name: pool.submit(prepare_root, name, mirror, CHECKOUT, work) for name in names}
        roots = {name: future.result() for name, future in building.items()}
    disks = {(name, KERNEL_FROM): prepare_guest(roots[name], roots[KERNEL_FROM], work) for name in guests}
    for name, suite in other_kernels:
        disks[name, suite] = prepare_guest_with(suite, roots[name], mirror, work)
    return Lab(work, roots, disks)


def _install(mirror: Mirror, guests: bool, work: Path) -> None:
    missing = [package for program, package in _NEEDED.items() if shutil.which(program) is None]
    if guests and upstream_version(["qemu-system-x86_64", "--version"]) < _OLDEST_QEMU:
        missing.append("qemu-system-x86")
    if missing:
        suite = mirror.codename + ("-backports" if mirror.codename == "bookworm" else "")
        with step(f"installing {' '.join(missing)}"):
            install_on_this_machine(mirror, missing, suite, work / "apt-here")
