"""Keeps interrupts and other kernel work off quiet CPUs: puts the settings of the kernel right again and again.

`core.quiet` decides; here the settings are read, remembered and written. The order is always the same: read, decide, store
what has to be given back, write, read back. While that cannot be stored, nothing is written.

`QuietCPUs` does one pass at a time. `quiet_thread.py` runs it, in a thread of its own.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from errno import EPERM

from nri_plugin.checkpoint.quiet_file import Originals, QuietFile
from nri_plugin.core.quiet import (
    Interrupt,
    KeptSetting,
    QuietWanted,
    SettingKind,
    SettledSetting,
    is_controlled,
    settle_cpus,
    settle_interrupt,
    settle_latency,
    settle_steering,
)
from nri_plugin.host.interrupts import ABSENT, FIXED, NOT_GRANTED, KernelSettingFiles, Listed, RefusedError
from nri_plugin.host.irqbalance import IRQBalanceProcess
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.sets import NO_CPUS, CPUSet
from nri_plugin.process.logs import LogRateLimit, Repeats, say

SWEEP_S = 4.0
"""Seconds between two passes over all settings; a new interrupt and a CPU that went offline are put right within 5 s."""

PATIENT = 10
"""Values in a row that are undone at once; from then on the pause doubles."""

LONGEST_PAUSE_S = 300.0

MOST_DEFAULTS = 32
"""Values of the mask for later interrupts that are remembered."""

REMEDY = "mount what deploy/guide/quiet-cpus.md lists into the agent's container, or set irqs: none and workqueues: none"
NOT_STORED = "interrupts are not touched: what they were before cannot be stored"


@dataclass(frozen=True, slots=True)
class Reach:
    """An interrupt that can still reach quiet CPUs.

    Attributes:
        number: of the interrupt.
        actions: names of its handlers.
        cpus: the CPUs that it may be delivered to.
        quiet: those of them that are quiet.
        reason: `kernel-managed`, `next-interrupt`, `left-alone`, `rival`, `claimed`, or the errno of the write.
    """

    number: int
    actions: tuple[str, ...]
    cpus: CPUSet
    quiet: CPUSet
    reason: str


@dataclass(frozen=True, slots=True)
class QuietReport:
    """What the last pass found; frozen, so that other threads may read it.

    Attributes:
        quiet: the quiet CPUs.
        moved: settings that have a value of ours now.
        changed: settings that another program has set, and that keep that value.
        reaches: interrupts that can still reach quiet CPUs.
        rivals: settings that another program sets again and again.
        trouble: why nothing is done; empty while it is.
    """

    quiet: CPUSet = NO_CPUS
    moved: int = 0
    changed: int = 0
    reaches: tuple[Reach, ...] = ()
    rivals: tuple[str, ...] = ()
    trouble: str = ""


# irqbalance
#
# irqbalance: tells each one that runs to leave quiet CPUs alone, and gives it back the CPUs that it had banned by itself.
#
# Source: irqbalance 1.9, its socket: a ban is in force until the process ends, and counts from its next round.

OBEYS_S = 60.0
"""Seconds until irqbalance is told again: its rounds have 10 s unless it was started with others."""


class Balancers:
    """Tells every irqbalance of the machine.

    Args:
        running: returns every irqbalance that runs.
        bans: those that were told before, as stored.
        log: takes a line when one is told other CPUs, and for trouble.
        clock: seconds, monotonic.

    Attributes:
        bans: by socket: the CPUs that each one that is told had banned by itself. To be stored before it is told.
    """

    def __init__(
        self,
        running: Callable[[], Iterable[IRQBalanceProcess]],
        bans: Mapping[str, str],
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self._running, self._log, self._clock = running, log, clock
        self.bans = dict(bans)
        self._told: dict[str, tuple[CPUSet, float]] = {}
        self._trouble = LogRateLimit()

    def look(self, wish: QuietWanted) -> None:
        """Remember which CPUs each irqbalance has banned by itself, before it is told others."""
        if not wish.tells_irqbalance and not self.bans:
            return
        running = {one.path: one for one in self._running()}
        for path in self.bans.keys() - running.keys():
            del self.bans[path]  # it has ended, and what it was told with it
            self._told.pop(path, None)
        for path, one in running.items():
            if path not in self.bans and wish.quiet and wish.tells_irqbalance:
                try:
                    self.bans[path] = str(one.banned())
                except HostError as error:
                    self._warn(error)

    def tell(self, wish: QuietWanted) -> None:
        """Tell each one of `bans` which CPUs to leave alone, or that it may use them again."""
        if not self.bans:
            return
        running = {one.path: one for one in self._running()}
        for path, ban in list(self.bans.items()):
            one, own = running.get(path), CPUSet.parse(ban)
            if one is None:
                continue
            leaves = wish.quiet if wish.tells_irqbalance else NO_CPUS
            try:
                self._tell(one, own, leaves)
            except HostError as error:
                self._warn(error)
                continue
            if not leaves:
                del self.bans[path]

    def _tell(self, one: IRQBalanceProcess, own: CPUSet, leaves: CPUSet) -> None:
        """Tell one its CPUs, once: it obeys with its next round, and shows the former ones until then.

        Raises:
            HostError: it does not answer.
        """
        desired, now = own | leaves, self._clock()
        told, at = self._told.get(one.path, (None, 0.0))
        if (told == desired and now < at + OBEYS_S) or one.banned() == desired:
            return
        one.ban(desired)
        self._told[one.path] = desired, now
        if told != desired:
            text = "irqbalance told which CPUs to leave alone"
            say(self._log, logging.INFO, text, cpus=desired or "none")

    def _warn(self, error: HostError) -> None:
        if self._trouble.is_due(str(error), self._clock()):
            say(
                self._log,
                logging.WARNING,
                "irqbalance cannot be told to leave quiet CPUs alone",
                todo="set IRQBALANCE_BANNED_CPULIST in its configuration, or stop it",
                err=error,
            )


@dataclass(slots=True)
class _Round:
    count: int = 0
    at: float = 0.0
    next_at: float = 0.0

    def is_over(self, now: float) -> bool:
        """Whether it was calm for twice its pause."""
        return now - self.at > 2 * max(self.next_at - self.at, SWEEP_S)


class Pauses:
    """Pauses that double, by name of a setting.

    Args:
        free: attempts without a pause.
        first_s: the first pause.
    """

    def __init__(self, free: int, first_s: float) -> None:
        self._free, self._first_s = free, first_s
        self._rounds: dict[str, _Round] = {}

    def is_due(self, name: str, now: float) -> bool:
        """Whether its pause is over."""
        one = self._rounds.get(name)
        return one is None or now >= one.next_at

    def noted(self, name: str, now: float) -> int:
        """Note an attempt; returns how many there were in a row."""
        one = self._rounds.setdefault(name, _Round())
        if one.is_over(now):
            one.count = 0
        one.count, one.at = one.count + 1, now
        beyond = one.count - self._free
        pause_s = min(self._first_s * 2.0 ** min(beyond - 1, 30), LONGEST_PAUSE_S) if beyond > 0 else 0.0
        one.next_at = now + pause_s
        return one.count

    def forget(self, name: str) -> None:
        """Begin anew with this one."""
        self._rounds.pop(name, None)

    def waiting(self, now: float) -> tuple[str, ...]:
        """Those that have had a pause, and were not calm since."""
        return tuple(
            sorted(
                name for name, one in self._rounds.items() if one.count > self._free and not one.is_over(now)
            )
        )


@dataclass(slots=True)
class _Pass:
    """One pass: what was decided, and `left` of that: what could not be written."""

    kept: dict[str, KeptSetting]
    writes: dict[str, str] = field(default_factory=dict)
    undone: dict[str, str] = field(default_factory=dict)
    listed: Listed = field(default_factory=lambda: Listed((), ()))
    left: set[str] = field(default_factory=set)

    def take(self, one: SettledSetting) -> None:
        name = one.kept.name
        self.kept[name] = one.kept
        if one.write is not None:
            self.writes[name] = one.write
        if one.undone:
            self.undone[name] = one.undone


class QuietCPUs:
    """Puts the settings of the kernel right, one pass at a time.

    Args:
        files: of the kernel.
        store: of the originals.
        log: takes a line for each change of what is wanted, and for each trouble.
        clock: seconds, monotonic.
        balancers: returns every irqbalance that runs.

    Attributes:
        report: what the last pass found; replaced as a whole.
        counts: (what, why) by number: `moved`, `undone`, `failed`, `given-back`; only added to.
    """

    def __init__(
        self,
        files: KernelSettingFiles,
        store: QuietFile,
        log: logging.Logger,
        clock: Callable[[], float],
        balancers: Callable[[], Iterable[IRQBalanceProcess]] = tuple,
    ) -> None:
        self._files, self._store, self._log, self._clock = files, store, log, clock
        self._wish = QuietWanted()
        self._stored = Originals()
        self._kept: dict[str, KeptSetting] = {}
        self._fights, self._failures = Pauses(PATIENT, 1.0), Pauses(0, SWEEP_S)
        self._failed_by: dict[str, str] = {}
        self._trouble, self._rival_line = LogRateLimit(), Repeats[str]()
        self.report = QuietReport()
        self.counts: Counter[tuple[str, str]] = Counter()
        try:
            self._stored = store.load()
        except CheckpointError as error:
            say(log, logging.ERROR, "interrupts cannot be given back", err=error)
        self._kept = dict(self._stored.kept)
        self._balancers = Balancers(balancers, self._stored.bans, log, clock)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is wanted, and nothing has to be given back."""
        return (
            self._wish.is_nothing
            and not self._balancers.bans
            and all(one.refused for one in self._kept.values())
        )

    @property
    def left(self) -> tuple[str, ...]:
        """Settings that have to be given back."""
        return (*(name for name, one in self._kept.items() if not one.refused), *self._balancers.bans)

    @property
    def awaits_cpus(self) -> dict[str, str]:
        """Settings that cannot be given back until one of their own CPUs is online, with these CPUs."""
        return {name: one.original for name, one in self._kept.items() if self._awaits_cpus(one)}

    @property
    def watched(self) -> tuple[int, ...]:
        """Numbers of the interrupts whose writes matter."""
        return tuple(
            int(name.partition("/")[2]) for name in self._kept if name.startswith(f"{SettingKind.IRQ}/")
        )

    def apply(self, wish: QuietWanted) -> None:
        """Make a pass for what is wanted from now on."""
        if _sets(wish) != _sets(self._wish):
            for name in list(self._failed_by):
                self._failures.forget(name)
        self._wish = wish
        self.look()

    def look(self, only: Iterable[int] | None = None) -> None:
        """Make a pass over all settings, or over these interrupts and the mask for later ones."""
        if self.is_idle:
            self.report = QuietReport()
            if not self._kept:
                self._remove_file()  # of another boot
            return
        trouble = self._try(only)
        if trouble:
            self.report = replace(self.report, quiet=self._wish.quiet, trouble=trouble)
            if self._trouble.is_due(trouble, self._clock()):
                say(self._log, logging.WARNING, "quiet CPUs are not kept quiet", todo=REMEDY, err=trouble)
        elif self.report.trouble:
            self._trouble.forget()
            self.report = replace(self.report, trouble="")

    # One pass

    def _try(self, only: Iterable[int] | None) -> str:
        """Make one pass; returns why nothing is done, if so."""
        in_use = self._in_use()
        missing = self._files.missing(in_use)
        if missing:
            return missing
        try:
            done, trouble = self._decide_and_write(in_use, only)
        except CheckpointError as error:
            return f"{NOT_STORED}: {error}"
        except HostError as error:
            return str(error)
        if only is None:
            self._balancers.tell(self._wish)
            if not trouble:
                self._drop_given_back(done)
            self._report(done)
        return trouble

    def _in_use(self) -> frozenset[SettingKind]:
        """The kinds of settings that a container asks for, or that have to be given back."""
        wish, kinds = self._wish, {SettingKind(name.partition("/")[0]) for name in self._kept}
        if wish.quiet or wish.claims or wish.masks or SettingKind.DEFAULT in kinds:
            kinds |= {SettingKind.IRQ, SettingKind.DEFAULT}
        if wish.no_workqueues:
            kinds.add(SettingKind.WORKQUEUE)
        if wish.latency_us:
            kinds.add(SettingKind.LATENCY)
        if wish.no_steering:
            kinds.add(SettingKind.STEERING)
        return frozenset(kinds)

    def _decide_and_write(
        self, in_use: frozenset[SettingKind], only: Iterable[int] | None
    ) -> tuple[_Pass, str]:
        """Raises: CheckpointError, HostError: nothing was written."""
        done = _Pass(dict(self._kept))
        if SettingKind.IRQ in in_use:
            is_first = SettingKind.DEFAULT not in self._kept
            former = self._kept.get(SettingKind.DEFAULT)
            self._settle_default(done)
            if not is_first:
                # By itself: an interrupt that is requested from here on has the right mask already. The first time all
                # others are remembered before, so that each without an original has come after that.
                trouble = self._carry_out(done)
                if trouble:
                    return done, trouble
                done = _Pass(dict(self._kept), left=done.left)
            self._settle_interrupts(done, None if is_first else only, former)
        if only is None:
            if SettingKind.WORKQUEUE in in_use:
                for name in self._files.workqueues():
                    self._settle_mask(done, name, self._wish.no_workqueues)
            if SettingKind.LATENCY in in_use:
                self._settle_latencies(done)
            # Last: what needs a capability must not keep the others from being written.
            if SettingKind.STEERING in in_use:
                self._settle_steering(done)
            self._balancers.look(self._wish)
        return done, self._carry_out(done)

    def _carry_out(self, done: _Pass) -> str:
        """Store what has to be given back, then write; returns why nothing can be written, if so.

        Raises:
            CheckpointError: it cannot be stored.
        """
        self._save(done)
        trouble = self._write(done)
        # What was refused, and what a controller made of a value, must outlive this process, too.
        with suppress(CheckpointError):
            self._save(done)
        return trouble

    def _settle_interrupts(self, done: _Pass, only: Iterable[int] | None, former: KeptSetting | None) -> None:
        """Decide for interrupts; `former` is what was known of the mask for later ones before this pass."""
        wish = self._wish
        named = bool(wish.claims or wish.masks or wish.controlled or wish.left_alone)
        done.listed = self._files.interrupts(with_devices=named, only=only)
        default = self._kept.get(SettingKind.DEFAULT)
        if default is not None and former is not None:
            # Those that are new were requested under the former mask, or have the value of the present one by themselves.
            default = replace(former, written=tuple(dict.fromkeys((*former.written, *default.written))))
        # Without a wish only those are of interest that have something to be given back, or had our mask from the start.
        is_any = not wish.is_nothing or (default is not None and bool(default.written))
        online = self._files.online_cpus()
        is_stale = online is not None and online != wish.online
        for found in done.listed.movable:
            known = done.kept.get(found.name)
            if is_stale and (known is None or not known.is_of(found)):
                # CPUs came or went since the wish was made. Which mask the interrupt was given follows from those that
                # are online, so it is looked at with the next wish.
                continue
            if known is not None or is_any:
                done.take(settle_interrupt(wish, known, found, default))

    def _settle_mask(self, done: _Pass, name: str, leaves: CPUSet) -> None:
        value = self._files.read(name)
        if value is None or (not leaves and name not in done.kept):
            return
        known = done.kept.get(name) or KeptSetting(name, value)
        done.take(settle_cpus(self._wish, known, CPUSet.parse(value), leaves))

    def _settle_default(self, done: _Pass) -> None:
        """Decide for the mask of later interrupts, and remember former values of ours.

        An interrupt that was requested under one of them may not have been looked at since.
        """
        former = done.kept.get(SettingKind.DEFAULT)
        self._settle_mask(done, SettingKind.DEFAULT, self._wish.quiet)
        if former is not None and former.original == done.kept[SettingKind.DEFAULT].original:
            one = done.kept[SettingKind.DEFAULT]
            given = dict.fromkeys(
                [*(each for each in former.written if each not in one.written), *one.written]
            )
            done.kept[SettingKind.DEFAULT] = replace(one, written=tuple(given)[-MOST_DEFAULTS:])

    def _settle_latencies(self, done: _Pass) -> None:
        asked = dict(self._wish.latency_us)
        known = {int(name.partition("/")[2]) for name in done.kept if _is_of(name, SettingKind.LATENCY)}
        for cpu in sorted(known | asked.keys()):
            name = f"{SettingKind.LATENCY}/{cpu}"
            value = self._files.read(name)
            if value is not None:
                done.take(
                    settle_latency(done.kept.get(name) or KeptSetting(name, value), value, asked.get(cpu))
                )

    def _settle_steering(self, done: _Pass) -> None:
        known = {name for name in done.kept if _is_of(name, SettingKind.STEERING)}
        for name in sorted(known | set(self._files.receive_queues())):
            value = self._files.read(name)
            if value is None:
                continue
            found = CPUSet.parse(value)
            if name in known or not found.isdisjoint(self._wish.no_steering):
                done.take(settle_steering(self._wish, done.kept.get(name) or KeptSetting(name, value), found))

    def _save(self, done: _Pass) -> None:
        """Store what has to be given back, where the file does not hold it yet.

        Raises:
            CheckpointError: it cannot be stored.
        """
        stored = self._stored.kept
        is_covered = self._balancers.bans == self._stored.bans and all(
            (known := stored.get(name)) is not None
            and replace(known, written=(), actions=()) == replace(one, written=(), actions=())
            and set(one.written) <= set(known.written)
            for name, one in done.kept.items()
        )
        if not is_covered:
            originals = Originals(dict(done.kept), dict(self._balancers.bans))
            self._store.save(originals)
            self._stored = originals
        self._kept = done.kept

    def _write(self, done: _Pass) -> str:
        """Write what was decided; returns why nothing can be written, if so."""
        now = self._clock()
        for name, value in done.writes.items():
            if not (self._fights.is_due(name, now) and self._failures.is_due(name, now)):
                done.left.add(name)
                continue
            try:
                self._files.write(name, value)
            except RefusedError as error:
                done.left.add(name)
                if error.number in NOT_GRANTED:
                    return str(error)
                if error.number == EPERM and _is_of(name, SettingKind.STEERING):
                    return f"{error}: the steering of received packets needs the capability NET_ADMIN"
                self._refused(done, name, error, now)
                continue
            self._written(done, name, value, now)
        return ""

    def _written(self, done: _Pass, name: str, value: str, now: float) -> None:
        self._failures.forget(name)
        self._failed_by.pop(name, None)
        kept = self._kept[name]
        self.counts["given-back" if value == kept.original else "moved", name.partition("/")[0]] += 1
        shown = self._files.read(name)
        is_irq = _is_of(name, SettingKind.IRQ)
        if is_irq and shown and shown != value and CPUSet.parse(shown) <= CPUSet.parse(value):
            # Some controllers show only the CPU that they deliver to. Any other value is a write of another program.
            self._kept[name] = replace(kept, shown=shown)
        if name in done.undone:
            self.counts["undone", name.partition("/")[0]] += 1
            count = self._fights.noted(name, now)
            if count >= PATIENT and self._rival_line.is_first(name, "", now):
                say(
                    self._log,
                    logging.WARNING,
                    "another program sets an interrupt again and again, the agent backs off",
                    setting=name,
                    to=done.undone[name],
                    ours=value,
                    todo="find the writer (irqbalance, tuned, a driver's script) and let it leave these CPUs alone",
                )

    def _refused(self, done: _Pass, name: str, error: RefusedError, now: float) -> None:
        if error.number in ABSENT:
            if self._files.read(name) is None:
                done.left.discard(name)  # freed since it was listed: nothing has to be given back
            return
        self.counts["failed", error.word] += 1
        if error.number in FIXED:
            self._kept[name] = replace(self._kept[name], refused=error.word, written=())
            done.left.discard(name)
            return
        self._failed_by[name] = error.word
        self._failures.noted(name, now)

    def _drop_given_back(self, done: _Pass) -> None:
        """Forget everything once no container asks any more and all settings have a value that is not ours."""
        if not self._wish.is_nothing:
            return
        # An interrupt that the kernel does not let any program set is remembered until the next boot.
        # While the mask for later interrupts is ours, an interrupt without a record counts as requested under it, so all
        # records of interrupts stay.
        default = self._kept.get(SettingKind.DEFAULT)
        is_default_ours = default is not None and (default.name in done.left or self._awaits_cpus(default))
        left = {
            name: one
            for name, one in self._kept.items()
            if name in done.left
            or one.refused
            or self._awaits_cpus(one)
            or (is_default_ours and name.startswith(f"{SettingKind.IRQ}/"))
        }
        changed = [name for name, one in self._kept.items() if one.is_changed and name not in left]
        if changed:
            say(
                self._log,
                logging.INFO,
                "settings that another program has changed stay as they are",
                count=len(changed),
                settings=",".join(changed[:10]),
            )
        self._kept = left
        if not left and not self._balancers.bans:
            self._remove_file()
        elif len(left) < len(self._stored.kept):
            with suppress(CheckpointError):
                self._store.save(Originals(dict(left), dict(self._balancers.bans)))
                self._stored = Originals(dict(left), dict(self._balancers.bans))

    def _awaits_cpus(self, one: KeptSetting) -> bool:
        """Whether no CPU of the original is online.

        The kernel takes no such value. The setting has all online CPUs, as the kernel would give it, until one of its own
        is back.
        """
        if not one.written or _is_of(one.name, SettingKind.LATENCY, SettingKind.STEERING):
            return False
        return not CPUSet.parse(one.original) & self._wish.online

    def _remove_file(self) -> None:
        with suppress(CheckpointError):
            self._store.remove()
            self._stored = Originals()

    # The report

    def _report(self, done: _Pass) -> None:
        movable = (self._reach(found, is_written=found.name in done.writes) for found in done.listed.movable)
        reaches = [*movable, *map(self._fixed_reach, done.listed.fixed)]
        report = QuietReport(
            quiet=self._wish.quiet,
            moved=sum(bool(one.written) for one in self._kept.values()),
            changed=sum(one.is_changed for one in self._kept.values()),
            reaches=tuple(one for one in reaches if one is not None),
            rivals=self._fights.waiting(self._clock()),
        )
        if (
            report != self.report
        ):  # an equal one stays the same object, so that its readers are not told again
            self.report = report

    def _reach(self, found: Interrupt, *, is_written: bool) -> Reach | None:
        """Whether it can reach quiet CPUs after the pass, and why."""
        wish, name = self._wish, found.name
        kept = self._kept.get(name)
        if not wish.quiet or kept is None:
            return None
        now, delivered = found.cpus, found.effective
        if is_written:
            now, delivered = CPUSet.parse(self._files.read(name) or ""), self._files.effective(found.number)
        delivered = delivered or now
        quiet = (now | delivered) & wish.quiet
        if not quiet:
            return None
        if kept.refused:
            reason = "kernel-managed" if kept.refused in ("EIO", "EPERM") else kept.refused
        elif not is_controlled(wish, found):
            reason = "left-alone"
        elif any(found.matches(one.patterns) for one in wish.claims):
            reason = "claimed"
        elif now.isdisjoint(wish.quiet):
            reason = "next-interrupt"
        else:
            reason = self._failed_by.get(name) or "rival"
        return Reach(found.number, found.actions, now, quiet, reason)

    def _fixed_reach(self, found: Interrupt) -> Reach | None:
        quiet = found.cpus & self._wish.quiet
        return Reach(found.number, found.actions, found.cpus, quiet, "kernel-managed") if quiet else None


def _sets(wish: QuietWanted) -> tuple[CPUSet, ...]:
    return wish.quiet, wish.no_workqueues, wish.no_steering


def _is_of(name: str, *kinds: SettingKind) -> bool:
    return name.partition("/")[0] in kinds


def give_back(
    files: KernelSettingFiles,
    store: QuietFile,
    online: CPUSet,
    log: logging.Logger,
    clock: Callable[[], float],
    balancers: Callable[[], Iterable[IRQBalanceProcess]],
) -> tuple[int, list[str]]:
    """Give every setting back, without an agent; returns how many were given back, and why others were not."""
    if not store.exists:
        return 0, []
    quiet = QuietCPUs(files, store, log, clock, balancers)
    quiet.apply(QuietWanted(online=online))
    count = sum(number for (what, _), number in quiet.counts.items() if what == "given-back")
    if quiet.is_idle:
        return count, []
    waiting = quiet.awaits_cpus
    return count, [
        f"{name} was {waiting[name]} before, and none of these CPUs is online; bring one online and try again"
        if name in waiting
        else quiet.report.trouble or f"{name} was not given back"
        for name in quiet.left
    ]
