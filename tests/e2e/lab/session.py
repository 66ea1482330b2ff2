"""Both runners over the same scenarios: the embedded runtime first, then one boot of a guest, which is compared."""

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from nri_plugin.model import bits
from nri_plugin.simulator.simulate.pods import Driver
from tests.lab.scenario.scenario import Scenario
from tests.lab.scenario.steps import DriftStep, Writer

from .accelerator import accelerator
from .cells import Cell, Listener
from .embedded import Played, devices_of, play_embedded
from .guest import Guest, boot
from .guest_recipe import GuestRecipe
from .guest_units import INIT
from .lab_files import machine_text, scenario_named
from .plan import plan
from .prepare import inside
from .progress import say, step
from .qemu_machine import GuestMachine, guest_machine
from .ready import CHECKOUT, KERNEL_FROM, Lab
from .shell import LabError

EMBEDDED = "embedded"
"""The column of the embedded runtime, playing whichever real one it is compared with."""

_OUT_OF_REACH = (
    "systemd's write does not reach the processes below crun's scope: that they stay is what is shown"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A real runtime: its name in reports, the root it is in, who makes its cgroups, and its OCI runtime."""

    name: str
    root: str
    systemd: bool
    embedded: str
    oci: str = "runc"

    @property
    def words(self) -> list[str]:
        """What the inner half is told."""
        return [*(["--systemd"] if self.systemd else []), *(["--crun"] if self.oci == "crun" else [])]


COLUMNS = (
    Column("containerd-1.7", "trixie", False, "containerd-1.7"),
    Column("containerd-1.7-systemd", "trixie", True, "containerd-1.7"),
    Column("containerd-2", "sid", False, "containerd-2.1"),
    Column("containerd-2-systemd", "sid", True, "containerd-2.1"),
    Column("containerd-2-systemd-crun", "sid", True, "containerd-2.1", "crun"),
)


def column_named(name: str) -> Column:
    """The column of that name.

    Raises:
        LabError: there is none.
    """
    for column in COLUMNS:
        if column.name == name:
            return column
    raise LabError(f"no runtime {name}; there are {', '.join(column.name for column in COLUMNS)}")


@dataclass(frozen=True, slots=True)
class Session:
    """Scenarios for one boot of one machine under one runtime."""

    machine: str
    column: Column
    scenarios: tuple[tuple[str, Scenario], ...]


def session(machine: str, column: Column, names: Sequence[str]) -> Session:
    """Read the scenarios.

    Raises:
        LabError: one is wrong.
    """
    return Session(machine, column, tuple(scenario_named(name) for name in names))


def perform(asked: Session, lab: Lab, place: Path) -> list[Cell]:
    """Play everything in both ways; whatever breaks becomes a failure of its cells."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    first, guest, plans = perform_embedded(asked)
    return first + _real(asked, guest, plans, lab, place)


def perform_embedded(asked: Session) -> tuple[list[Cell], GuestMachine, list[dict[str, object]]]:
    """Play everything on the embedded runtime; the plans for a guest hold its pictures."""
    text, name = machine_text(asked.machine)
    guest = guest_machine(text, name)
    for note in guest.notes:
        say(f"  {name}: {note}")
    embedded = {word: _embedded(asked, word, scenario, guest) for word, scenario in asked.scenarios}
    plans = [
        plan(word, scenario, _pictures(scenario, embedded[word]), devices_of(guest.text))
        for word, scenario in asked.scenarios
    ]
    return [_cell_of(name, word, played) for word, played in embedded.items()], guest, plans


def _embedded(asked: Session, word: str, scenario: Scenario, guest: GuestMachine) -> Played:
    driver = Driver.SYSTEMD if asked.column.systemd else Driver.CGROUPFS
    chosen = replace(scenario, runtime=asked.column.embedded, driver=driver)
    played = play_embedded(chosen, guest.text, is_compared=True)
    say(f"  {word}: embedded {played.seconds:.1f} s, {len(played.problems)} problems")
    for problem in played.problems:
        say(f"    {problem}")
    return played


def _cell_of(machine: str, word: str, played: Played) -> Cell:
    failures = list(played.problems)
    return Cell(
        machine, word, EMBEDDED, max(0, played.facts - len(failures)), failures, round(played.seconds, 1),
        played.limitation,
        steps=[{"seen": picture} for picture in played.pictures],
    )  # fmt: skip


def _pictures(scenario: Scenario, played: Played) -> list[dict[str, object] | None]:
    missing = len(scenario.steps) - len(played.pictures)
    return [*played.pictures, *[None] * missing]


def _real(
    asked: Session, guest: GuestMachine, plans: list[dict[str, object]], lab: Lab, place: Path
) -> list[Cell]:
    name = machine_text(asked.machine)[1]
    cells = {
        word: Cell(name, word, asked.column.name, limitation=limitation(scenario, asked.column))
        for word, scenario in asked.scenarios
    }
    listener = Listener(cells, place / "output.log")
    began = time.monotonic()
    try:
        with step(f"{name}, {asked.column.name}"), booted(guest, asked.column, lab, place) as running:
            booted_s = running.seconds_to_boot
            record(running, place / f"lab-{name}.json.gz")
            status = play_plans(running, plans, asked.column, place, listener.hear)
        broken = f"the player ended with status {status}; see {listener.log}" if status else ""
    except (LabError, OSError) as error:
        booted_s, broken = 0.0, str(error)
    for cell in cells.values():
        if broken and cell.scenario not in listener.ended:
            cell.failures.append(broken)
        cell.figures |= {
            "boot seconds": booted_s,
            "seconds of a boot with its scenarios": round(time.monotonic() - began, 1),
        }
        cell.figures |= listener.versions
    return list(cells.values())


def play_plans(
    running: Guest,
    plans: list[dict[str, object]],
    column: Column,
    place: Path,
    hear: Callable[[str], None],
) -> int:
    """Have a guest play plans; return the player's status."""
    (place / "plans.json").write_text(json.dumps(plans))
    running.put(place / "plans.json", "/run/plans.json")
    return running.run(" ".join(inside("play", "/run/plans.json", *column.words)), hear)


def limitation(scenario: Scenario, column: Column) -> str:
    """What its cell does not show, though it passes; empty for nothing."""
    writers = {step.by for step in scenario.steps if isinstance(step, DriftStep)} - {Writer.PERSON}
    if not writers:
        return ""
    if not column.systemd:
        return "without systemd the write that it would make is played instead"
    return _OUT_OF_REACH if column.oci == "crun" else ""


@contextmanager
def booted(
    guest: GuestMachine,
    column: Column,
    lab: Lab,
    place: Path,
    terminal: str = "",
    kernel: str = KERNEL_FROM,
) -> Iterator[Guest]:
    """A guest with the checkout in it; its logs are brought out when it ends.

    Args:
        terminal: the socket to offer a terminal of the guest on.
        kernel: the suite of its kernel.
    """
    place.mkdir(parents=True, exist_ok=True)
    chosen = accelerator(lab, column.root)
    recipe = GuestRecipe(*lab.disks[column.root, kernel], guest, accelerator=chosen, terminal=terminal)
    if column.systemd:
        recipe = replace(recipe, init=INIT)
    with boot(recipe, place / "console.log") as running:
        say(f"  {column.name}: booted in {running.seconds_to_boot} s")
        running.put(lab.roots[column.root].payload, "/run/payload.tar.gz")
        running.must_run("mkdir -p /out && tar -C / -xzf /run/payload.tar.gz", "unpacking the checkout")
        if guest.offline:
            running.must_run(_switch_off(guest.offline), f"switching off CPUs {guest.offline}")
        try:
            yield running
        except Exception:  # not KeyboardInterrupt: the guest is still at what it was told
            _bring_out(running, place / "out")
            raise
        _bring_out(running, place / "out")


def _bring_out(running: Guest, target: Path) -> None:
    """Logs of a guest that has ended do not come; why it ended is said by whoever waited for it."""
    try:
        running.get_directory("/out", target)
    except (LabError, OSError) as error:
        say(f"  the guest's logs did not come out: {str(error)[:200]}")


def _switch_off(cpus: str) -> str:
    switches = [f"/sys/devices/system/cpu/cpu{cpu}/online" for cpu in bits.iterate(bits.parse_list(cpus))]
    return " && ".join(f"echo 0 >{switch}" for switch in switches)


def record(running: Guest, target: Path) -> None:
    """Record the guest's machine with hack/record-machine, as anybody would record theirs.

    Raises:
        LabError: it could not be recorded.
    """
    running.put(CHECKOUT / "hack/record-machine", "/run/record-machine")
    said: list[str] = []
    command = "python3 /run/record-machine /run/machine.json.gz && base64 -w 60000 /run/machine.json.gz"
    if running.run(command, said.append):
        raise LabError(f"the machine could not be recorded: {' '.join(said)[:500]}")
    target.write_bytes(base64.b64decode("".join(said[1:])))
