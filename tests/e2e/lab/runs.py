"""The runs: which scenarios are played where."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from .direct import run_in_root
from .guest import GuestRecipe, boot
from .guest_units import INIT
from .lab_files import machine_named
from .outcome import Outcome
from .prepare import Prepared, inside
from .progress import say, step
from .shell import LabError


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its letter on the command line, its row in the table, the root it needs and what is played."""

    letter: str
    title: str
    root: str
    module: str
    arguments: tuple[str, ...] = ()
    in_guest: bool = False
    with_systemd: bool = False


# shipped descriptions, by what is odd about them
_MACHINES = (
    "demo",  # small, several last-level caches per NUMA node
    "kep3545-8-numa",  # NUMA nodes at four distances
    "epyc7742-2p-64c-smt-nps4",  # 256 CPUs
    "xeon8490h-2p-60c-smt-snc2",  # a last-level cache over two NUMA nodes
    "2-sockets-1-numa",  # a NUMA node over two sockets
    "gb200-34-numa",  # NUMA nodes without CPUs, and without memory
    "i7-12850hx-1p-hybrid",  # cores with one thread beside cores with two
)

RUNS = (
    Run("a", "a: this machine, containerd 1.7", "trixie", "run_machine"),
    Run("a", "a: this machine, containerd 2", "sid", "run_machine"),
    Run("b", "b: described machines, containerd 1.7", "trixie", "run_described", _MACHINES),
    Run("b", "b: described machines, containerd 2", "sid", "run_described", _MACHINES),
    Run("c", "c: guest, containerd 2, cgroupfs driver", "sid", "run_guest", in_guest=True),
    Run(
        "c",
        "c: guest, containerd 1.7, systemd driver",
        "trixie",
        "run_guest",
        in_guest=True,
        with_systemd=True,
    ),
)
CHECKOUT = Path(__file__).resolve().parents[3]
KERNEL_FROM = "trixie"  # every guest runs the kernel that this root holds


@dataclass(frozen=True, slots=True)
class Lab:
    """Everything that was prepared; `disks` are (image, kernel) by root name."""

    work: Path
    roots: Mapping[str, Prepared]
    disks: Mapping[str, tuple[Path, Path]]


def perform_all(runs: Sequence[Run], lab: Lab) -> list[Outcome]:
    """Play the runs on this machine one by one, then the guests side by side: each of them keeps one CPU busy."""
    outcomes = [perform(run, lab) for run in runs if not run.in_guest]
    with ThreadPoolExecutor(max_workers=max(1, min(2, (os.cpu_count() or 1)))) as pool:
        return outcomes + list(pool.map(lambda run: perform(run, lab), [run for run in runs if run.in_guest]))


def perform(run: Run, lab: Lab) -> Outcome:
    """Play one run; whatever breaks becomes its outcome."""
    place = lab.work / "runs" / run.title.replace(":", "").replace(",", "").replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    outcome = Outcome(run.title, place / "output.log")
    began = time.monotonic()
    try:
        with step(run.title):
            status = (_in_guest if run.in_guest else _directly)(run, lab, place, outcome.hear)
        if status:
            outcome.broken = f"ended with status {status}: {_tail(outcome.log)}"
    except (LabError, OSError) as error:
        outcome.broken = str(error)
    if outcome.broken:
        say(f"  {run.title}: {outcome.broken}")
    outcome.seconds = time.monotonic() - began
    return outcome


def _directly(run: Run, lab: Lab, place: Path, hear: Callable[[str], None]) -> int:
    prepared = lab.roots[run.root]
    return run_in_root(
        prepared.root, prepared.payload, place / "out", inside(run.module, *run.arguments), hear
    )


def _in_guest(run: Run, lab: Lab, place: Path, hear: Callable[[str], None]) -> int:
    recipe = GuestRecipe(*lab.disks[run.root], machine_named("four-nodes"))
    if run.with_systemd:
        recipe = replace(recipe, init=INIT)
    with boot(recipe, place / "console.log") as guest:
        say(f"  {run.title}: booted in {guest.seconds_to_boot} s")
        guest.put(lab.roots[run.root].payload, "/run/payload.tar.gz")
        guest.run("mkdir -p /out && tar -C / -xzf /run/payload.tar.gz")
        try:
            return guest.run(" ".join(inside(run.module, *(["--systemd"] if run.with_systemd else []))), hear)
        finally:
            guest.get_directory("/out", place / "out")


def _tail(log: Path) -> str:
    return " | ".join(log.read_text().splitlines()[-5:]) if log.exists() else "it said nothing"
