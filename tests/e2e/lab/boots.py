"""Which boots `hack/lab all` makes: every scenario on its machine under every runtime, a few in each boot."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .accelerator import accelerator
from .cells import Cell
from .ready import Lab
from .results import keep, kept, passed
from .rules import MACHINE as RULES
from .rules import perform_rules
from .running import RUNNING
from .session import COLUMNS, Column, perform, session
from .shell import Interrupted

_IN_A_BOOT = 6
_DECIDED = (
    "an-l3-over",
    "isolated-cpus",
    "kep-",
    "many-nodes",
    "nic-",
    "nodes-without",
    "pod-scope",
    "split-l3",
    "thirty-two",
)
"""How scenarios begin that show what is decided, whoever then makes the cgroups."""
_PLAY_WHAT_IS_DECIDED = ("containerd-1.7", "containerd-2-systemd")


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot of a machine under a runtime; without scenarios it plays the table of kernel rules."""

    machine: str
    column: Column
    scenarios: tuple[str, ...]
    number: int

    def perform(self, lab: Lab) -> list[Cell]:
        """Play it, and keep what it showed at once, so that an interrupted run is not lost.

        Raises:
            Interrupted: it was broken off; what was kept before stays.
        """
        place = lab.work / "runs" / f"lab-{self.machine}-{self.column.name}-{self.number}"
        if self.scenarios:
            found = perform(session(self.machine, self.column, self.scenarios), lab, place)
        else:
            found = perform_rules(self.column, lab, place)
        if RUNNING.is_interrupted:
            raise Interrupted(f"{self.machine}, {self.column.name}: broken off, nothing is kept of it")
        keep(lab.work, self.machine, self.column.name, found, accelerator(lab, self.column.root))
        return found


def boots(
    wanted: Mapping[str, Sequence[str]], columns: Sequence[Column], lacking_in: Path | None
) -> list[Boot]:
    """The boots that these scenarios need.

    Args:
        wanted: scenarios by machine; none asks for the table of kernel rules.
        lacking_in: leave out what passed with today's code according to the results kept there.
    """
    found = []
    results = kept(lacking_in) if lacking_in else []
    for column in columns:
        for machine, names in wanted.items():
            done = passed(results, machine, column.name)
            asked = [name for name in names or (RULES,) if name not in done and not left_out(name, column)]
            found += list(_of_machine(machine, column, asked))
    return found


def left_out(scenario: str, column: Column) -> str:
    """Why it is not played there by design; empty where it is played."""
    if scenario == RULES and column != COLUMNS[0]:
        return "the table of kernel rules needs no runtime, and all guests have one kernel"
    if scenario.startswith(_DECIDED) and column.name not in _PLAY_WHAT_IS_DECIDED:
        where = " and ".join(_PLAY_WHAT_IS_DECIDED)
        return f"what is decided does not depend on who makes the cgroups: such scenarios play under {where}"
    return ""


def perform_boots(asked: Sequence[Boot], lab: Lab, at_once: int) -> list[Cell]:
    """Play them, so many guests side by side: each keeps one CPU busy."""
    for root in sorted({boot.column.root for boot in asked}):
        accelerator(lab, root)
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        try:
            played = list(pool.map(lambda boot: boot.perform(lab), asked))
        except BaseException:  # most of all Ctrl-C: leaving the pool waits for what runs
            RUNNING.interrupt()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [cell for cells in played for cell in cells]


def chunks(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """What is played in one boot each: few enough that a guest that hangs costs little."""
    for at in range(0, len(names), _IN_A_BOOT):
        yield tuple(names[at : at + _IN_A_BOOT])


def _of_machine(machine: str, column: Column, names: Sequence[str]) -> Iterator[Boot]:
    for number, some in enumerate(chunks(names), 1):
        yield Boot(machine, column, () if some == (RULES,) else some, number)
