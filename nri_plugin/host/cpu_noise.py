"""The noise on the CPUs of a container in an interval: the differences of two readings of `kernel_counters.py`. Pure.

Invariants:

* A count is that of CPUs which both readings have. Other CPUs were offline at one end, and are named instead of guessed.
* Counters of interrupts and softirqs have 32 bits and wrap. One that went back by more than the CPUs can count in the interval
  began again at 0: what it shows now is counted.
* A line that appears began at 0. One that vanished counted nothing that can be told.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from operator import and_
from typing import TypeVar

from nri_plugin.host.kernel_counters import (
    TICK_US,
    ContainerCounters,
    Counts,
    LineID,
    NodeCounters,
    ThreadCounters,
)
from nri_plugin.model.sets import CPUID, NO_CPUS, CPUSet, NodeMask

Key = TypeVar("Key")

NO_COUNTS: Counts = {}

WRAP = 1 << 32
MOST_PER_SECOND = 10_000_000
"""No CPU takes more interrupts of a kind: each costs it at least a tenth of a microsecond."""


class NoiseKind(StrEnum):
    """A source of noise, or a sign of it; the order is that of the output."""

    DEVICE = "device-interrupt"
    TICK = "timer-tick"
    IPI = "ipi"
    OTHER = "other-interrupt"
    SOFTIRQ = "softirq"
    STRANGERS = "foreign-run-time"
    STEAL = "steal"
    QUEUE = "run-queue-wait"
    WAIT = "thread-wait"
    INVOLUNTARY = "involuntary-switch"
    MIGRATION = "migration"
    THROTTLED = "throttled"
    PRESSURE = "cpu-pressure"
    IRQ_PRESSURE = "irq-pressure"
    HINT_FAULT = "numa-hint-fault"
    PAGE = "numa-page-migration"
    MEMORY = "foreign-memory"


ORDER = {kind: place for place, kind in enumerate(NoiseKind)}

TIMES = frozenset(
    {
        NoiseKind.STRANGERS,
        NoiseKind.STEAL,
        NoiseKind.QUEUE,
        NoiseKind.WAIT,
        NoiseKind.THROTTLED,
        NoiseKind.PRESSURE,
        NoiseKind.IRQ_PRESSURE,
    }
)
"""Kinds that are measured in microseconds; `MEMORY` is in bytes, and all others are counts."""


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """One source of noise.

    Attributes:
        name: the handlers of an interrupt or the letters of its line, the kind of a softirq; empty for others.
        total: the sum over the CPUs.
        by_cpu: by CPU; empty where only the sum can be told.
        interrupt: the number of an interrupt; None for others.
        device: the PCI address of its device, empty for none.
    """

    kind: NoiseKind
    name: str
    total: int
    by_cpu: Mapping[int, int] = field(default_factory=dict)
    interrupt: int | None = None
    device: str = ""


class Unseen(StrEnum):
    """A reading that is not there, and so the kinds that cannot be told."""

    INTERRUPTS = "interrupts"
    SOFTIRQS = "softirqs"
    CPU_TIME = "cpu-time"
    QUEUE = "run-queue"
    THREADS = "threads"
    CGROUP = "cgroup"
    IRQ_PRESSURE = "irq-pressure"
    NUMA_FAULTS = "numa-faults"


@dataclass(frozen=True, slots=True)
class CPUNoise:
    """The noise of one container in an interval.

    Attributes:
        cpus: its exclusive CPUs.
        uncounted: those of them that were offline at one end of the interval.
        seconds: the length of the interval.
        rows: sources that were seen, those with a count of 0 too, in the order of `NoiseKind`.
        unseen: what cannot be told.
    """

    cpus: CPUSet
    uncounted: CPUSet
    seconds: float
    rows: tuple[NoiseRow, ...]
    unseen: tuple[Unseen, ...]

    def totals(self, cpu: int | None = None) -> dict[NoiseKind, int]:
        """The sums by kind, of one CPU where one is named; without kinds that were not seen.

        A TLB shootdown is a function call on some kernels, and counted as both there, so only the larger of the two counts.
        """
        found: dict[NoiseKind, int] = {}
        calls: list[int] = []
        for row in self.rows:
            count = row.total if cpu is None else row.by_cpu.get(cpu)
            if count is not None:
                found[row.kind] = found.get(row.kind, 0) + count
                if row.kind is NoiseKind.IPI and row.name in CALLS:
                    calls.append(count)
        if len(calls) == len(CALLS):
            found[NoiseKind.IPI] -= min(calls)
        return found

    def total(self, *kinds: NoiseKind, cpu: int | None = None) -> int | None:
        """The sum of these kinds, of one CPU where one is named; None where none of them was seen."""
        found = self.totals(cpu)
        seen = [found[kind] for kind in kinds if kind in found]
        return sum(seen) if seen else None


CALLS = frozenset({"CAL", "TLB"})
IPIS = frozenset({"RES", "IWI"}) | CALLS
"""Letters of x86; arm64 has `IPI0` and so on."""

TICKS = frozenset({"LOC"})
TIMERS = frozenset({"arch_timer", "timer"})
"""Handlers of the tick where it is a numbered interrupt: arm64, and x86 at its start."""


def kind_of(line: LineID) -> NoiseKind:
    """The kind of a line of /proc/interrupts."""
    if line.number is not None:
        return NoiseKind.TICK if line.name in TIMERS else NoiseKind.DEVICE
    if line.label in TICKS:
        return NoiseKind.TICK
    is_ipi = line.label in IPIS or line.label.startswith("IPI")
    return NoiseKind.IPI if is_ipi else NoiseKind.OTHER


def counted(before: int, after: int, most: int) -> int:
    """How far a counter of 32 bits went on, at most `most` times if it wrapped."""
    if after >= before:
        return after - before
    wrapped = after - before + WRAP
    return wrapped if 0 <= wrapped <= most else after


def noise_of(
    cpus: CPUSet,
    before: NodeCounters,
    after: NodeCounters,
    own: tuple[ContainerCounters | None, ContainerCounters | None] = (None, None),
    mems: NodeMask | None = None,
) -> CPUNoise:
    """The noise of a container.

    Args:
        cpus: its exclusive CPUs; both readings asked for them.
        before: the first reading of the node.
        after: the second.
        own: the readings of the container; None where its cgroup cannot be seen.
        mems: the NUMA nodes of its CPUs, on which its memory should be; None where they are not known.
    """
    seconds = max(after.at_s - before.at_s, 0.0)
    difference = _Difference(cpus, before, after, int(MOST_PER_SECOND * max(seconds, 1.0)))
    rows = [
        *(difference.rows(own) if difference.cpus else ()),
        *(_of_container(*own, mems) if own[0] and own[1] else ()),
    ]
    rows.sort(key=lambda row: (ORDER[row.kind], row.interrupt is None, -row.total, row.name))
    return CPUNoise(cpus, difference.uncounted, seconds, tuple(rows), tuple(_unseen(before, after, own)))


class _Difference:
    """Two readings of the node, seen from the CPUs of one container."""

    def __init__(self, cpus: CPUSet, before: NodeCounters, after: NodeCounters, most: int) -> None:
        self.before, self.after, self.most = before, after, most
        self.uncounted = NO_CPUS
        for one in (before, after):
            online = _online(one)
            if online is not None:
                self.uncounted |= cpus - online
        self.cpus = cpus - self.uncounted

    def rows(self, own: tuple[ContainerCounters | None, ContainerCounters | None]) -> Iterator[NoiseRow]:
        """All that the files of the node tell of these CPUs."""
        yield from self.interrupts()
        yield from self.softirqs()
        yield from self.times(*own)
        yield from self.queue()

    def interrupts(self) -> Iterator[NoiseRow]:
        for line, by_cpu in self._counts(self.before.interrupts, self.after.interrupts):
            name = line.name if line.number is not None else line.label
            yield NoiseRow(kind_of(line), name, sum(by_cpu.values()), by_cpu, line.number, line.device)

    def softirqs(self) -> Iterator[NoiseRow]:
        for name, by_cpu in self._counts(self.before.softirqs, self.after.softirqs):
            yield NoiseRow(NoiseKind.SOFTIRQ, name, sum(by_cpu.values()), by_cpu)

    def times(self, first: ContainerCounters | None, second: ContainerCounters | None) -> Iterator[NoiseRow]:
        """Run time of others, and time that the host of a virtual machine kept."""
        before, after = self.before.times, self.after.times
        if before is None or after is None:
            return
        both = [int(cpu) for cpu in self.cpus if cpu in before and cpu in after]
        steal = {cpu: max(0, after[cpu].steal_us - before[cpu].steal_us) for cpu in both}
        yield NoiseRow(NoiseKind.STEAL, "", sum(steal.values()), steal)
        used = _rise(first, second, lambda one: one.used_us)
        # The cgroup's time has no CPU beside it, so that with a CPU missing nothing can be subtracted.
        if used is not None and not self.uncounted:
            busy = sum(after[cpu].busy_us - before[cpu].busy_us for cpu in both)
            yield NoiseRow(NoiseKind.STRANGERS, "", max(0, busy - used))

    def queue(self) -> Iterator[NoiseRow]:
        before, after = self.before.queue_us, self.after.queue_us
        if before is not None and after is not None:
            both = [cpu for cpu in self.cpus if cpu in before and cpu in after]
            by_cpu = {int(cpu): max(0, after[cpu] - before[cpu]) for cpu in both}
            yield NoiseRow(NoiseKind.QUEUE, "", sum(by_cpu.values()), by_cpu)

    def _counts(
        self, before: Mapping[Key, Counts] | None, after: Mapping[Key, Counts] | None
    ) -> Iterator[tuple[Key, dict[int, int]]]:
        """By line: the counts by CPU."""
        if before is None or after is None:
            return
        cpus, most = [int(cpu) for cpu in self.cpus], self.most
        for key, now in after.items():
            then = before.get(key, NO_COUNTS)
            yield key, {cpu: counted(then.get(cpu, 0), now[cpu], most) for cpu in cpus if cpu in now}


def _online(reading: NodeCounters) -> CPUSet | None:
    """The CPUs that all files of a reading have, of those asked for; None where no file tells.

    A CPU may go offline between two files. /proc/softirqs has all possible CPUs, so it tells nothing.
    """
    tables = [reading.times, reading.queue_us, *list((reading.interrupts or {}).values())[:1]]
    found = [CPUSet.from_ids(table) for table in tables if table is not None]
    return reduce(and_, found) if found else None


def _rise(
    before: ContainerCounters | None,
    after: ContainerCounters | None,
    field_of: Callable[[ContainerCounters], int | None],
) -> int | None:
    """How far a counter of the cgroup went on; a cgroup that was made anew began at 0."""
    first = None if before is None else field_of(before)
    second = None if after is None else field_of(after)
    if first is None or second is None:
        return None
    return second - first if second >= first else second


OF_CGROUP: Mapping[NoiseKind, Callable[[ContainerCounters], int | None]] = {
    NoiseKind.THROTTLED: lambda one: one.throttled_us,
    NoiseKind.PRESSURE: lambda one: one.cpu_pressure_us,
    NoiseKind.IRQ_PRESSURE: lambda one: one.irq_pressure_us,
    NoiseKind.HINT_FAULT: lambda one: one.numa_hint_faults,
    NoiseKind.PAGE: lambda one: one.numa_pages_migrated,
}

OF_THREAD: Mapping[NoiseKind, Callable[[ThreadCounters], int | None]] = {
    NoiseKind.WAIT: lambda one: one.waited_us,
    NoiseKind.INVOLUNTARY: lambda one: one.involuntary,
    NoiseKind.MIGRATION: lambda one: one.migrations,
}


def _of_container(
    before: ContainerCounters | None, after: ContainerCounters | None, mems: NodeMask | None
) -> Iterator[NoiseRow]:
    for kind, field_of in OF_CGROUP.items():
        rise = _rise(before, after, field_of)
        if rise is not None:
            yield NoiseRow(kind, "", rise)
    if before and after and before.threads is not None and after.threads is not None:
        for kind, value_of in OF_THREAD.items():
            total = _of_threads(before.threads, after.threads, value_of)
            if total is not None:
                yield NoiseRow(kind, "", total)
    if after and after.memory_bytes is not None and mems is not None:
        foreign = sum(size for node, size in after.memory_bytes.items() if node not in mems)
        yield NoiseRow(NoiseKind.MEMORY, "", foreign)


def _of_threads(
    before: Mapping[int, ThreadCounters],
    after: Mapping[int, ThreadCounters],
    value_of: Callable[[ThreadCounters], int | None],
) -> int | None:
    """The sum over threads that live at the end; a new one, or one with a number used again, began at 0."""
    rises: list[int] = []
    for tid, now in after.items():
        last, then = value_of(now), before.get(tid)
        if last is None:
            continue
        first = (value_of(then) if then else 0) or 0
        rises.append(last - first if last >= first else last)
    return sum(rises) if rises or not after else None


def _unseen(
    before: NodeCounters, after: NodeCounters, own: Collection[ContainerCounters | None]
) -> Iterator[Unseen]:
    tables = {
        Unseen.INTERRUPTS: (before.interrupts, after.interrupts),
        Unseen.SOFTIRQS: (before.softirqs, after.softirqs),
        Unseen.CPU_TIME: (before.times, after.times),
        Unseen.QUEUE: (before.queue_us, after.queue_us),
    }
    for what, pair in tables.items():
        if None in pair:
            yield what
    if None in own:
        yield Unseen.CGROUP
        return
    known = [one for one in own if one is not None]
    if any(one.threads is None for one in known):
        yield Unseen.THREADS
    if any(one.irq_pressure_us is None for one in known):
        yield Unseen.IRQ_PRESSURE
    if any(one.numa_hint_faults is None for one in known):
        yield Unseen.NUMA_FAULTS


def resolution_us(cpus: CPUSet) -> int:
    """The least run time of others that can be told from none: a tick for each CPU."""
    return TICK_US * len(cpus)


def loudest(noise: CPUNoise) -> list[CPUID]:
    """The CPUs, those with the most interrupts first."""
    kinds = {NoiseKind.DEVICE, NoiseKind.TICK, NoiseKind.IPI, NoiseKind.OTHER}
    rows = [row for row in noise.rows if row.kind in kinds]
    return sorted(noise.cpus, key=lambda cpu: (-sum(row.by_cpu.get(cpu, 0) for row in rows), cpu))
