"""Interrupts and kernel threads that can run on a CPU, as the kernel tells them. This module only reads.

An interrupt is *movable* when its file of affinity may be written, *managed* when the kernel alone decides. Since Linux 6.12 the
mode of the file tells them apart; before, only a write would. A kernel thread is *bound* when its affinity cannot be set.

Source: Linux, Documentation/core-api/irq/irq-affinity.rst; kernel/irq/proc.c; include/linux/sched.h for the flags.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nri_plugin.model.sets import CPUSet

IRQ = "/proc/irq"
AFFINITY, EFFECTIVE = "smp_affinity_list", "effective_affinity_list"
FILES = frozenset(
    {AFFINITY, EFFECTIVE, "smp_affinity", "effective_affinity", "affinity_hint", "node", "spurious"}
)
"""Everything in the directory of an interrupt that is no handler."""

PF_NO_SETAFFINITY, PF_KTHREAD = 0x04000000, 0x00200000
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReachingInterrupt:
    """An interrupt that has a handler.

    Attributes:
        handlers: their names, sorted.
        allowed: the CPUs that it may be delivered to; also CPUs that are offline.
        effective: the CPUs that it is delivered to now; empty where the kernel does not tell.
        is_movable: whether its affinity may be written, by the mode of the file.
    """

    number: int
    handlers: tuple[str, ...]
    allowed: CPUSet
    effective: CPUSet
    is_movable: bool

    @property
    def name(self) -> str:
        """Its handlers, separated as in /proc/interrupts."""
        return ", ".join(self.handlers)


@dataclass(frozen=True, slots=True)
class KernelThread:
    """A kernel thread.

    Attributes:
        allowed: the CPUs that it may run on.
        is_bound: whether its affinity cannot be set.
    """

    pid: int
    name: str
    allowed: CPUSet
    is_bound: bool


def read_interrupts(irq: str = IRQ) -> list[ReachingInterrupt] | None:
    """The interrupts with a handler, by number; None where the directory cannot be read.

    Args:
        irq: the directory; it says the same in each mount of proc.
    """
    try:
        numbers = sorted(int(name) for name in os.listdir(irq) if name.isdecimal())
    except OSError:
        return None
    found = (_interrupt(os.path.join(irq, str(number)), number) for number in numbers)
    return [one for one in found if one is not None]


def _interrupt(directory: str, number: int) -> ReachingInterrupt | None:
    """None where nobody uses the line, or it went away meanwhile."""
    try:
        handlers = tuple(sorted(set(os.listdir(directory)) - FILES))
        mode = os.stat(os.path.join(directory, AFFINITY)).st_mode
        allowed = CPUSet.parse(Path(directory, AFFINITY).read_text("ascii"))
    except (OSError, ValueError):
        return None
    effective = CPUSet()
    with suppress(OSError, ValueError):
        effective = CPUSet.parse(Path(directory, EFFECTIVE).read_text("ascii"))
    if not handlers:
        return None
    return ReachingInterrupt(number, handlers, allowed, effective, bool(mode & stat.S_IWUSR))


def read_kernel_threads(proc: str) -> list[KernelThread]:
    """All kernel threads, by their numbers.

    Args:
        proc: a mount of proc that has the node's processes.
    """
    pids = sorted(int(name) for name in os.listdir(proc) if name.isdecimal())
    return list(_threads(proc, pids))


def _threads(proc: str, pids: list[int]) -> Iterator[KernelThread]:
    for pid in pids:
        try:
            line = Path(proc, str(pid), "stat").read_text("utf-8", "replace")
            # The name is in parentheses and may hold some itself. The flags are the ninth field.
            before, _, after = line.rpartition(")")
            flags = int(after.split()[6])
            if not flags & PF_KTHREAD:
                continue
            status = Path(proc, str(pid), "status").read_text("utf-8", "replace")
            allowed = _ALLOWED.search(status)
            cpus = CPUSet.parse(allowed[1]) if allowed else CPUSet()
        except (OSError, ValueError, IndexError):
            continue
        yield KernelThread(pid, before.partition("(")[2], cpus, bool(flags & PF_NO_SETAFFINITY))
