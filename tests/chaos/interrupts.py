"""A played `/proc/irq` beside a life: what others do to it, what refuses, what is killed, and a judge that knows only them.

The passes of the agent follow the state of the life's agent. Nothing here draws from the life's own chance, so a life is
the same with and without it.
"""

import errno
import logging
from collections import Counter
from dataclasses import replace
from random import Random

from nri_plugin.agent.repair.interrupts import LONGEST_PAUSE_S, SWEEP_S, QuietCPUs
from nri_plugin.checkpoint.quiet_file import Originals
from nri_plugin.core.quiet import QuietWanted, wanted
from nri_plugin.host.interrupts import RefusedError
from nri_plugin.model.errors import CheckpointError
from nri_plugin.model.options import IRQs, Node, ReceiveSteering, Workqueues
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from tests.chaos.faults import Killed
from tests.played_interrupts import PlayedKernel

LOG = logging.getLogger("chaos.interrupts")
LOG.disabled = True
ERRORS = (
    *(errno.ENOSPC, errno.EBUSY, errno.EAGAIN, errno.ENOMEM, errno.EINVAL, errno.ERANGE, errno.EOVERFLOW),
    *(errno.ENOENT, errno.EROFS, errno.EACCES),
)
LINES = 24
STEERED = "rps/eth0/queues/rx-0"


class MortalKernel(PlayedKernel):
    """Kills the agent before or after a write.

    Attributes:
        denied: settings whose write in this pass was answered by ENOENT.
    """

    dies_in = -1
    takes_the_last = False
    denied: frozenset[str] = frozenset()

    def write(self, name: str, value: str) -> None:
        if self.dies_in == 0:
            self.dies_in = -1
            if self.takes_the_last:
                super().write(name, value)
            raise Killed
        self.dies_in -= self.dies_in > 0
        try:
            super().write(name, value)
        except RefusedError as error:
            if error.number == errno.ENOENT:
                self.denied |= {name}
            raise


class PlayedStore:
    """`quiet.json` in memory; it may refuse to be written."""

    def __init__(self) -> None:
        self.held = Originals()
        self.exists = False
        self.is_full = False

    def load(self) -> Originals:
        return Originals(dict(self.held.kept), dict(self.held.bans))

    def save(self, originals: Originals) -> None:
        if self.is_full:
            raise CheckpointError("quiet.json", "cannot be written: No space left on device")
        self.held = Originals(dict(originals.kept), dict(originals.bans))
        self.exists = True

    def remove(self) -> None:
        self.held, self.exists = Originals(), False


class PlayedInterrupts:
    """The interrupts of one life.

    Attributes:
        events: what happened, by kind.
        broken: what was wrong, a line each.
    """

    def __init__(self, seed: int, cpus: int) -> None:
        self.random = Random(f"interrupts {seed}")
        made = PlayedKernel.of(cpus, shows_mode=self.random.random() < 0.5)
        self.kernel = MortalKernel(made.present, made.online, made.shows_mode, values=made.values)
        for number in range(LINES):
            own = str(self.any_cpus()) if self.random.random() < 0.4 else ""
            managed = self.random.random() < 0.3
            self.kernel.add(
                24 + number, f"dev{number}", own, managed=managed, remaps=self.random.random() < 0.5
            )
        self.theirs = {name: {value} for name, value in self.kernel.snapshot().items()}
        self.last, self.now = 24 + LINES, 0.0
        self.store = PlayedStore()
        self.agent = self.start()
        self.wish = QuietWanted(online=self.kernel.online)
        self.events: Counter[str] = Counter()
        self.broken: list[str] = []
        self.refused: set[str] = set()  # lines that answered an errno which is tried again

    def start(self) -> QuietCPUs:
        # One that was killed behind a write, or could not store that it was refused, leaves the next one to find out.
        self.kernel.writes.clear()
        return QuietCPUs(self.kernel, self.store, LOG, lambda: self.now)  # type: ignore[arg-type]

    def any_cpus(self) -> CPUSet:
        return CPUSet(self.random.getrandbits(len(self.kernel.present)) or 1)

    # What the life does

    def follow(self, node: Node, state: State) -> None:
        """The life went on: perhaps something happens to the interrupts, then the agent makes a pass."""
        options = replace(
            node.options,
            irqs=IRQs.EXCLUSIVE,
            workqueues=Workqueues.EXCLUSIVE,
            receive_steering=ReceiveSteering.EXCLUSIVE,
        )
        if node.topology.kernel_online != self.kernel.online:
            # A device that came while originals could not be stored, and a CPU that goes before they can, are not told apart.
            self.recover()
            self.passes()
            self.events["CPUs went offline or came back"] += 1
            self.set_online(node.topology.kernel_online)
        if self.random.random() < 0.5:
            self.something()
        self.wish = wanted(replace(node, options=options), state)
        self.now += self.random.choice([0.01, SWEEP_S, LONGEST_PAUSE_S])
        self.passes()
        self.judge()

    def end(self) -> None:
        """The last container has ended; nothing fails any more."""
        self.recover()
        self.passes()
        # The last asker may end while CPUs are offline that an original names.
        if self.random.random() < 0.5:
            self.wish = QuietWanted(online=self.kernel.online)
            self.now += 2 * LONGEST_PAUSE_S
            self.passes()
        self.set_online(self.kernel.present)
        self.wish = QuietWanted(online=self.kernel.present)
        for _ in range(3):
            self.now += 2 * LONGEST_PAUSE_S
            self.passes()
        for name, value in self.kernel.snapshot().items():
            if value not in self.theirs[name]:
                self.broken.append(f"{name} is {value} in the end, others had {sorted(self.theirs[name])}")
        if self.agent.left or any(not one.refused for one in self.store.held.kept.values()):
            self.broken.append("originals are left in the end")

    def passes(self) -> None:
        races = len(self.kernel.races)
        self._pass()
        if len(self.kernel.races) < races:
            self._pass()  # as inotify would have it

    def _pass(self) -> None:
        self.kernel.denied = frozenset()
        try:
            self.agent.apply(self.wish)
        except Killed:
            self.events["agent killed at a write"] += 1
            self.agent = self.start()
            self.agent.apply(self.wish)

    def judge(self) -> None:
        report, kernel = self.agent.report, self.kernel
        housekeeping = kernel.online - self.wish.quiet
        if kernel.refuse or self.store.is_full or report.trouble or not housekeeping:
            return
        # A setting of which the kernel says that it is not there has not failed: the next pass finds it again, or not.
        excused = {*report.rivals, *self.agent._failed_by, *kernel.denied}
        if STEERED not in excused and CPUSet.parse(kernel.values[STEERED]) & self.wish.no_steering:
            self.broken.append(f"packets are steered to exclusive CPUs {kernel.values[STEERED]}")
        for number, line in kernel.lines.items():
            if line.is_managed or f"irq/{number}" in excused:
                continue
            if not line.cpus.isdisjoint(self.wish.quiet):
                self.broken.append(f"irq {number} may come to quiet CPUs {line.cpus & self.wish.quiet}")
        tried = Counter(name for name, _ in kernel.writes)
        for number, line in kernel.lines.items():
            if line.is_managed and tried[f"irq/{number}"] > 1 and f"irq/{number}" not in self.refused:
                self.broken.append(f"the managed irq {number} was written {tried[f'irq/{number}']} times")

    # What others do

    def something(self) -> None:
        kinds = {
            "another wrote": self.another_writes,
            "another wrote right behind us": self.another_races,
            "a device was added": self.added,
            "a number was used again": self.used_again,
            "writes are refused": self.refuse,
            "originals cannot be stored": self.fill,
            "all is well again": self.recover,
            "agent will be killed": self.doom,
            "agent restarted": self.restart,
            "an interrupt came": self.fire,
        }
        kind = self.random.choice(list(kinds))
        self.events[kind] += 1
        kinds[kind]()

    def any_setting(self) -> str:
        return self.random.choice(
            [*(f"irq/{number}" for number in self.kernel.lines), "default", "workqueue/", STEERED]
        )

    def another_writes(self) -> None:
        name, value = self.any_setting(), self.any_cpus()
        if value & self.kernel.online:
            self.kernel.foreign(name, str(value))
            self.theirs[name].add(self.kernel.snapshot()[name])

    def another_races(self) -> None:
        name, value = self.any_setting(), self.any_cpus()
        if value & self.kernel.online:
            self.kernel.races[name] = str(value)
            self.theirs[name].add(str(value))

    def set_online(self, online: CPUSet) -> None:
        self.kernel.set_online(online)
        for number, line in self.kernel.lines.items():
            if line.cpus == online:
                self.theirs[f"irq/{number}"].add(str(online))

    def of_default(self) -> set[str]:
        given = {CPUSet.parse(value) & self.kernel.online for value in self.theirs["default"]}
        return {str(one or self.kernel.online) for one in given}

    def added(self) -> None:
        self.passes()
        self.last += 1
        hint = (
            str(self.any_cpus() & self.kernel.online or self.kernel.online)
            if self.random.random() < 0.5
            else ""
        )
        self.kernel.add(self.last, f"new{self.last}", hint)
        self.theirs[f"irq/{self.last}"] = {hint} if hint else self.of_default()
        self.passes()

    def used_again(self) -> None:
        self.passes()
        number = self.random.choice(list(self.kernel.lines))
        self.last += 1
        self.kernel.add(number, f"other{self.last}").chip = f"PCI-MSIX other {self.last}"
        self.theirs[f"irq/{number}"] = self.of_default()
        self.kernel.races.pop(f"irq/{number}", None)
        self.kernel.writes = [(name, value) for name, value in self.kernel.writes if name != f"irq/{number}"]
        self.passes()

    def refuse(self) -> None:
        name = self.random.choice([*(f"irq/{number}" for number in self.kernel.lines), "default", "*"])
        self.kernel.refuse[name] = self.random.choice(ERRORS)
        self.refused.add(name)

    def fill(self) -> None:
        self.store.is_full = True

    def recover(self) -> None:
        self.kernel.refuse.clear()
        self.store.is_full = False
        self.kernel.dies_in = -1
        self.now += 2 * LONGEST_PAUSE_S

    def doom(self) -> None:
        self.kernel.dies_in, self.kernel.takes_the_last = self.random.randrange(8), self.random.random() < 0.5

    def restart(self) -> None:
        self.agent = self.start()

    def fire(self) -> None:
        self.kernel.lines[self.random.choice(list(self.kernel.lines))].fire()
