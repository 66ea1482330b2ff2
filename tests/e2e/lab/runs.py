"""The runs: which scenarios are played where."""

import os
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tests.e2e.cluster.components import DEFAULT_VERSION, programs, programs_work
from tests.e2e.inside.report import ONLY

from .accelerator import accelerator
from .built_runtimes import built
from .direct import run_in_root
from .lab_files import machine_named
from .outcome import Outcome
from .prepare import inside
from .progress import say, step
from .ready import KERNEL_FROM, Lab
from .results import keep
from .running import RUNNING
from .session import booted, column_named
from .shell import LabError


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its letter on the command line, its row in the table, the root it needs and what is played.

    A guest has a machine of the lab, the kernel of a suite, and perhaps further devices in QEMU's words and drivers:
    names of modules. One that `reboots` is booted a second time, with `/out/state` of the first as
    `/out/before`. `built` is a runtime, as `containerd 2.3.4`, that is built from source and takes the place of the root's.
    `scenarios` are parts of names: others are left out; empty for all.
    With `has_kubelet` a kubelet, built as for the cluster, is the disk `/dev/vda`, and the module is told its size.
    """

    letter: str
    title: str
    root: str
    module: str
    arguments: tuple[str, ...] = ()
    in_guest: bool = False
    with_systemd: bool = False
    column: str = ""
    machine: str = "four-nodes"
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    kernel: str = KERNEL_FROM
    built: str = ""
    has_kubelet: bool = False
    reboots: bool = False
    scenarios: tuple[str, ...] = ()

    def has_title(self, words: str) -> bool:
        """Whether these words are in the title: `Linux 6.1` is not in that of Linux 6.12."""
        return re.search(rf"(?<!\w){re.escape(words)}(?![\w.])", self.title) is not None


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

# movable interrupts, and queues that only the kernel moves: two for four CPUs
_INTERRUPTING = (
    *("-device", "virtio-rng-pci,bus=pcie.0,addr=0x1d"),
    *("-drive", "if=none,id=shared,format=raw,file=null-co://,file.size=64M"),
    *("-device", "virtio-blk-pci,drive=shared,num-queues=2,bus=pcie.0,addr=0x1e"),
    *("-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,bus=pcie.0,addr=0x1c"),
)

# eight devices with 64 queues each: an interrupt for each queue that may be moved at once, where the machine remaps them
_CROWD = tuple(
    word
    for number in range(8)
    for word in (
        "-device",
        f"virtio-serial-pci,id=crowd{number},max_ports=31,vectors=66,bus=pcie.0,addr={hex(0x10 + number)}",
    )
)
_REMAPPING = ("-device", "intel-iommu,intremap=on")

# what the kernel lets anybody move, and says when it does not, differs between them
_KERNELS = (("Linux 6.1", "bookworm"), ("Linux 6.12", "trixie"), ("the newest Linux", "sid"))

_BUILT = ("containerd 2.2.7", "containerd 2.3.4")
_CRIO = "crio 1.34.0"

RUNS = (
    Run("a", "a: this machine, containerd 1.7", "trixie", "run_machine"),
    Run("a", "a: this machine, containerd 2", "sid", "run_machine"),
    Run("b", "b: described machines, containerd 1.7", "trixie", "run_described", _MACHINES),
    Run("b", "b: described machines, containerd 2", "sid", "run_described", _MACHINES),
    Run(
        "c",
        "c: guest, containerd 2, cgroupfs driver",
        "sid",
        "run_guest",
        in_guest=True,
        column="containerd-2",
    ),
    Run(
        "c",
        "c: guest, containerd 1.7, systemd driver",
        "trixie",
        "run_guest",
        in_guest=True,
        with_systemd=True,
        column="containerd-1.7-systemd",
    ),
    *(
        Run(
            "d",
            f"d: quiet CPUs in a guest, {linux}",
            "sid",
            "run_quiet",
            in_guest=True,
            column="containerd-2",
            machine="quiet-cpus",
            devices=_INTERRUPTING,
            drivers=("virtio_rng", "virtio_blk", "virtio_net"),
            kernel=suite,
        )
        for linux, suite in _KERNELS
    ),
    Run(
        "d",
        "d: quiet CPUs in a guest with 500 interrupts",
        "sid",
        "run_crowded",
        in_guest=True,
        column="containerd-2",
        machine="quiet-cpus",
        devices=(*_REMAPPING, *_CROWD, *_INTERRUPTING),
        drivers=("virtio_rng",),
    ),
    Run(
        "d",
        "d: quiet CPUs over a reboot",
        "sid",
        "run_rebooted",
        in_guest=True,
        column="containerd-2",
        machine="quiet-cpus",
        devices=_INTERRUPTING,
        drivers=("virtio_rng",),
        reboots=True,
    ),
    *(
        Run("e", f"e: this machine, {runtime} from source", "sid", "run_machine", built=runtime)
        for runtime in _BUILT
    ),
    Run("e", "e: this machine, CRI-O 1.34.0 from source", "crio", "run_machine", ("crio",), built=_CRIO),
    Run(
        "f",
        "f: systemd starts the agent in a guest, containerd 1.7",
        "trixie",
        "run_unit",
        in_guest=True,
        with_systemd=True,
        column="containerd-1.7-systemd",
    ),
    Run(
        "g",
        "g: a kubelet under systemd and the agent change places in a guest, containerd 1.7",
        "trixie",
        "run_migrate",
        in_guest=True,
        column="containerd-1.7-systemd",
        has_kubelet=True,
    ),
    Run("r", "r: events of containerd 1.7", "trixie", "run_events"),
    Run("r", "r: events of containerd 2", "sid", "run_events"),
    *(
        Run("r", f"r: events of {runtime} from source", "sid", "run_events", built=runtime)
        for runtime in _BUILT
    ),
)


def perform_all(runs: Sequence[Run], lab: Lab) -> list[Outcome]:
    """Play the runs on this machine one by one, then the guests side by side: each of them keeps one CPU busy."""
    outcomes = [perform(run, lab) for run in runs if not run.in_guest]
    guests = [run for run in runs if run.in_guest]
    for root in sorted({run.root for run in guests}):
        accelerator(lab, root)  # asked once, before two of them ask at the same time
    with ThreadPoolExecutor(max_workers=max(1, min(2, (os.cpu_count() or 1)))) as pool:
        try:
            return outcomes + list(pool.map(lambda run: perform(run, lab), guests))
        except BaseException:  # most of all Ctrl-C: leaving the pool waits for what runs
            RUNNING.interrupt()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def place_of(run: Run, work: Path) -> Path:
    """Where a run leaves its logs."""
    return work / "runs" / run.title.replace(":", "").replace(",", "").replace(" ", "-")


def results_of(work: Path) -> Path:
    """Where what scenarios in guests showed is kept, apart from what `hack/lab` keeps."""
    return work / "e2e"


def perform(run: Run, lab: Lab) -> Outcome:
    """Play one run; whatever breaks becomes its outcome."""
    place = place_of(run, lab.work)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    outcome = Outcome(run.title, place / "output.log")
    if run.in_guest:
        outcome.keep = lambda cell: keep(
            results_of(lab.work), run.machine, run.title, [cell], accelerator(lab, run.root)
        )
    began = time.monotonic()
    try:
        with step(run.title):
            status = (_in_guest if run.in_guest else _directly)(run, lab, place, outcome)
        if status:
            outcome.broken = f"ended with status {status}: {_tail(outcome.log)}"
    except (LabError, OSError) as error:
        outcome.broken = str(error)
    if outcome.broken:
        say(f"  {run.title}: {outcome.broken}")
    outcome.seconds = time.monotonic() - began
    return outcome


def _directly(run: Run, lab: Lab, place: Path, outcome: Outcome) -> int:
    prepared = lab.roots[run.root]
    command = _command(run, *run.arguments)
    if run.built:
        (place / "out/bin").mkdir(parents=True, exist_ok=True)
        for program in built(*run.built.split(), lab.work):
            shutil.copy2(program, place / "out/bin")
        command = ["env", "PATH=/out/bin:/usr/sbin:/usr/bin", *command]
    return run_in_root(prepared.root, prepared.payload, place / "out", command, outcome.hear)


def _in_guest(run: Run, lab: Lab, place: Path, outcome: Outcome) -> int:
    status = _in_a_boot(run, lab, place, outcome)
    if status or not run.reboots:
        return status
    return _in_a_boot(run, lab, place / "after-the-reboot", outcome, place / "out/state")


def _in_a_boot(run: Run, lab: Lab, place: Path, outcome: Outcome, before: Path | None = None) -> int:
    words = ["--systemd"] if run.with_systemd else []
    devices = run.devices
    if run.has_kubelet:
        kubelet = programs(DEFAULT_VERSION, ("kubelet",), programs_work()) / "kubelet"
        words.append(str(kubelet.stat().st_size))
        devices += ("-drive", f"if=none,id=kubelet,format=raw,readonly=on,file={kubelet}")
        devices += ("-device", "virtio-blk-pci,drive=kubelet,bus=pcie.0")
    machine = machine_named(run.machine)
    machine = replace(machine, arguments=(*machine.arguments, *devices))
    with booted(machine, column_named(run.column), lab, place, kernel=run.kernel) as guest:
        if before is not None:
            guest.put_directory(before, "/out/before")
        if run.drivers:
            guest.must_run(f"modprobe -a {' '.join(run.drivers)}", "loading drivers")
        return guest.run(shlex.join(_command(run, *words)), outcome.hear)


def _command(run: Run, *words: str) -> list[str]:
    return ["env", f"{ONLY}={';'.join(run.scenarios)}", *inside(run.module, *words)]


def _tail(log: Path) -> str:
    return " | ".join(log.read_text().splitlines()[-5:]) if log.exists() else "it said nothing"
