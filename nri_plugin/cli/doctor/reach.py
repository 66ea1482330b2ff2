"""The checks of `nri-pin doctor` on interrupts and kernel threads that can reach exclusive CPUs; pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nri_plugin.cli.doctor.findings import Finding, advice, fine, named, not_visible
from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.cli.output import count_of
from nri_plugin.host.kernel_work import KernelThread, ReachingInterrupt
from nri_plugin.model.sets import NO_CPUS, CPUSet

UNBOUND_WORKERS = "/sys/devices/virtual/workqueue/cpumask"
_STEMS = (
    (re.compile(r"kworker/u\d+:.*"), "kworker/u*"),
    (re.compile(r"kworker/R-.*"), "kworker/R-*"),
    (re.compile(r"kworker/\d+:.*"), "kworker/N:*"),
    (re.compile(r"(.*?)[/-]?\d+$"), r"\1/N"),
)
"""Kernel threads of one kind have one line."""


@dataclass(frozen=True, slots=True)
class ReachEvidence:
    """The evidence.

    Attributes:
        interrupts: those with a handler.
        threads: all kernel threads.
        exclusive: exclusive CPUs by container; None where no state of an agent is there.
    """

    interrupts: Sequence[ReachingInterrupt] | Hidden
    threads: Sequence[KernelThread] | Hidden
    exclusive: Mapping[str, CPUSet] | None = None


def judge(seen: ReachEvidence) -> Iterator[Finding]:
    """The findings; none where no container has exclusive CPUs."""
    if not seen.exclusive:
        return
    yield from named("interrupts", _interrupts(seen.interrupts, seen.exclusive))
    yield from named("kernel-threads", _threads(seen.threads, _union(seen.exclusive)))


def _union(exclusive: Mapping[str, CPUSet]) -> CPUSet:
    found = NO_CPUS
    for cpus in exclusive.values():
        found |= cpus
    return found


def _interrupts(found: Sequence[ReachingInterrupt] | Hidden, exclusive: Mapping[str, CPUSet]) -> Finding:
    if isinstance(found, Hidden):
        return not_visible(found, "which interrupts can reach exclusive CPUs")
    cpus = _union(exclusive)
    reaching = [one for one in found if one.allowed & cpus]
    if not reaching:
        return fine(f"none can reach exclusive CPUs {cpus}")
    movable = [one for one in reaching if one.is_movable]
    shared = [one for one in reaching if not one.is_movable and not _is_own(one, exclusive)]
    items = tuple(f"{one.number} {one.name}: {reason_of(one, exclusive)}" for one in reaching)
    says = (
        f"{count_of(len(reaching), 'interrupt')} can reach exclusive CPUs {cpus}: {len(movable)} movable, "
        f"{len(reaching) - len(movable)} kernel-managed"
    )
    if movable:
        do = "keep movable ones off by irqs: exclusive, or write another smp_affinity_list by hand"
        return replace(advice(says, do), items=items)
    if shared:
        do = "boot with isolcpus=managed_irq and these CPUs, or set preferWholeQueues: true"
        return replace(advice(says, do), items=items)
    return replace(fine(f"{says}, which fire only for the containers' own I/O"), items=items)


def _is_own(one: ReachingInterrupt, exclusive: Mapping[str, CPUSet]) -> bool:
    """Whether only one container's I/O raises a managed interrupt."""
    return any(one.allowed <= cpus for cpus in exclusive.values())


def reason_of(one: ReachingInterrupt, exclusive: Mapping[str, CPUSet]) -> str:
    """Why an interrupt can reach exclusive CPUs."""
    if one.is_movable:
        now = f", now delivered to {one.effective}" if one.effective else ""
        return f"movable, its affinity is CPUs {one.allowed}{now}"
    own = next((name for name, cpus in exclusive.items() if one.allowed <= cpus), "")
    whose = f", all of {own}" if own else ", not all of one container"
    return f"kernel-managed, fires only for I/O of CPUs {one.allowed}{whose}"


def _threads(found: Sequence[KernelThread] | Hidden, cpus: CPUSet) -> Finding:
    if isinstance(found, Hidden):
        return not_visible(found, "which kernel threads can reach exclusive CPUs")
    reaching = [one for one in found if one.allowed & cpus]
    if not reaching:
        return fine(f"none can reach exclusive CPUs {cpus}")
    movable = sum(not one.is_bound for one in reaching)
    says = (
        f"{count_of(len(reaching), 'kernel thread')} can reach exclusive CPUs {cpus}: {movable} movable, "
        f"{len(reaching) - movable} bound"
    )
    return replace(fine(says), items=tuple(_kinds(reaching, cpus)))


def _kinds(reaching: Sequence[KernelThread], cpus: CPUSet) -> Iterator[str]:
    """A line for each kind of thread: how many, where, and why."""
    kinds: dict[tuple[str, str], list[KernelThread]] = {}
    for one in reaching:
        kinds.setdefault((stem_of(one.name), _why(one)), []).append(one)
    for (stem, why), threads in sorted(kinds.items()):
        where = NO_CPUS
        for one in threads:
            where |= one.allowed & cpus
        name = threads[0].name if len(threads) == 1 else f"{stem} ({len(threads)})"
        yield f"{name} on CPUs {where}: {why}"


def stem_of(name: str) -> str:
    """The kind of a kernel thread by its name."""
    for pattern, stem in _STEMS:
        found = pattern.fullmatch(name)
        if found is not None:
            return found.expand(stem)
    return name


def _why(one: KernelThread) -> str:
    if one.name.startswith("irq/"):
        return "handles an interrupt, and follows it"
    if not one.is_bound:
        return "movable, by its affinity (taskset -p)"
    if one.name.startswith("kworker/u"):
        return f"a worker of unbound workqueues, by {UNBOUND_WORKERS}"
    if len(one.allowed) == 1:
        return "bound, does the kernel's own work for this CPU"
    return "bound, its affinity cannot be set"
