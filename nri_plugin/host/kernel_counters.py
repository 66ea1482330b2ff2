"""Counters of the kernel that tell what ran on a CPU: interrupts, softirqs, CPU time, and those of containers.

* Parsers take the text of one file of /proc, and return the counts of the CPUs that are asked for.
* `CounterFiles` reads the files of a node below a root. A file that is absent, or masked as in most containers, is None.
* `ContainerFiles` reads the files of a container's cgroup, version 1 or 2.
* `read_threads` reads the threads of containers below the node's /proc.

This module only reads, and takes no differences: `nri_plugin.host.cpu_noise` does. A counter that is not there is absent from
its mapping, never 0.

Source: Linux, Documentation/filesystems/proc.rst, Documentation/scheduler/sched-stats.rst and
    Documentation/admin-guide/cgroup-v2.rst; kernel/irq/proc.c, show_interrupts().
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from nri_plugin.host.cgroup import Cgroups, cgroup_path
from nri_plugin.host.cpu_quota import CPUQuotas
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model.errors import HostError
from nri_plugin.model.records import CgroupRef
from nri_plugin.model.sets import CPUSet

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
"""Microseconds of a tick of /proc/stat, the resolution of its times."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

WITHOUT_CPUS = frozenset({"ERR", "MIS", "Err"})
"""Lines with one count for the whole machine."""

_CPU = re.compile(r"cpu(\d+)\Z", re.IGNORECASE)
_DEVICE = re.compile(r"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")
_BLANKS = re.compile(r"\s{2,}")


class LineID(NamedTuple):
    """The identity of a line of /proc/interrupts; a number that is used again has another text.

    Attributes:
        label: the number of an interrupt, or letters such as `LOC`.
        text: the text behind the counts with single blanks: chip, hardware number, trigger and handlers, or words.
        name: the handlers, empty where nobody uses the line; the words of a line with letters.
        device: the PCI address of its device, empty where the text has none.
    """

    label: str
    text: str
    name: str
    device: str = ""

    @property
    def number(self) -> int | None:
        """The number of the interrupt; None for a line with letters."""
        return int(self.label) if self.label.isdecimal() else None


Counts = Mapping[int, int]
"""A count by CPU."""


def parse_interrupts(text: str, cpus: CPUSet) -> dict[LineID, Counts] | None:
    """The lines of /proc/interrupts with the counts of these CPUs; None for a text without a header.

    Columns are those of the header, which names online CPUs only: an offline CPU has no count. A line that does not
    follow the format is left out.
    """
    header, _, body = text.partition("\n")
    columns = _columns(header)
    if not columns:
        return None
    wanted = [(place, cpu) for place, cpu in enumerate(columns) if cpu in cpus]
    pick = itemgetter(*(place for place, _ in wanted)) if wanted else None
    names = [cpu for _, cpu in wanted]
    found: dict[LineID, Counts] = {}
    for line in body.splitlines():
        label, colon, rest = line.partition(":")
        label = label.strip()
        cells = rest.split(None, len(columns))
        if not colon or label in WITHOUT_CPUS or len(cells) < len(columns):
            continue
        try:
            picked = pick(cells) if pick else ()
            counts = map(int, picked if len(names) > 1 or not names else (picked,))
            about = cells[len(columns)] if len(cells) > len(columns) else ""
            found[_line_id(label, about)] = dict(zip(names, counts, strict=True))
        except ValueError:
            continue
    return found


@lru_cache(maxsize=8192)
def _line_id(label: str, about: str) -> LineID:
    """Each reading has the same lines; most machines have fewer than are kept."""
    text = " ".join(about.split())
    if not label.isdecimal():
        return LineID(label, text, text)
    device = _DEVICE.search(text)
    return LineID(label, text, handlers(about), device[1] if device else "")


def handlers(about: str) -> str:
    """The handlers in the text behind the counts of a numbered line, separated by `, `; empty for none.

    The kernel pads the trigger with blanks and puts two before the handlers. A name may itself hold single blanks.
    """
    if about.endswith(" ") or not about:
        return ""
    parts = _BLANKS.split(about)
    return parts[-1] if len(parts) > 1 else about.rpartition(" ")[2]


def parse_softirqs(text: str, cpus: CPUSet) -> dict[str, Counts] | None:
    """The kinds of softirqs with the counts of these CPUs; None for a text without a header."""
    lines = parse_interrupts(text, cpus)
    return None if lines is None else {line.label: counts for line, counts in lines.items()}


def _columns(header: str) -> list[int]:
    found = [_CPU.match(word) for word in header.split()]
    return [int(one[1]) for one in found if one] if all(found) else []


@dataclass(frozen=True, slots=True)
class CPUTime:
    """CPU time of one CPU since it was first online, in microseconds.

    Attributes:
        busy_us: of threads, interrupts and softirqs; neither idle nor stolen.
        steal_us: kept from this machine by its host.
    """

    busy_us: int
    steal_us: int


def parse_stat(text: str, cpus: CPUSet) -> dict[int, CPUTime]:
    """The times of /proc/stat by CPU; an offline CPU has none.

    Guest time is part of user time. Idle time is not used: it may go back.
    """
    found = {}
    for cpu, values in _numbered(text, cpus):
        if len(values) >= 8:
            user, nice, system, _, _, irq, softirq, steal = values[:8]
            found[cpu] = CPUTime((user + nice + system + irq + softirq) * TICK_US, steal * TICK_US)
    return found


def parse_schedstat(text: str, cpus: CPUSet) -> dict[int, int]:
    """By CPU: microseconds that threads waited in its run queue while others ran.

    The place of this field is the same in versions 15 (Linux 6.1), 16 (6.12) and 17 (7.2).
    """
    return {cpu: values[7] // 1000 for cpu, values in _numbered(text, cpus) if len(values) >= 9}


def _numbered(text: str, cpus: CPUSet) -> Iterator[tuple[int, list[int]]]:
    """The lines `cpuN VALUE...`; malformed lines are left out."""
    for line in text.splitlines():
        words = line.split()
        found = _CPU.match(words[0]) if words else None
        if found is None or int(found[1]) not in cpus:
            continue
        try:
            yield int(found[1]), list(map(int, words[1:]))
        except ValueError:
            continue


def parse_pairs(text: str) -> dict[str, int]:
    """Lines `NAME VALUE`, such as those of cpu.stat, memory.stat and /proc/vmstat."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def parse_pressure(text: str) -> dict[str, int]:
    """By `some` and `full`: the microseconds of a pressure file."""
    found = re.findall(r"^(some|full) .*\btotal=(\d+)", text, re.MULTILINE)
    return {kind: int(total) for kind, total in found}


def parse_numa_stat(text: str) -> dict[int, int] | None:
    """By NUMA node: bytes of a container's memory in memory.numa_stat; None where the file has no such line.

    Version 2 has bytes by type; anonymous memory, files and the kernel's count. Version 1 has pages, and `hierarchical_total`.
    """
    lines = {line.replace("=", " ", 1).split(" ")[0]: line for line in text.splitlines()}
    v1 = lines.get("hierarchical_total") or lines.get("total")
    if v1 is not None:
        return {node: pages * PAGE_BYTES for node, pages in _by_node(v1)}
    found: dict[int, int] = {}
    for kind in ("anon", "file", "kernel_stack", "pagetables", "slab_reclaimable", "slab_unreclaimable"):
        for node, size in _by_node(lines.get(kind, "")):
            found[node] = found.get(node, 0) + size
    return found or None


def _by_node(line: str) -> Iterator[tuple[int, int]]:
    return ((int(node), int(value)) for node, value in re.findall(r"\bN(\d+)=(\d+)", line))


@dataclass(frozen=True, slots=True)
class NodeCounters:
    """Counters of the whole node at one moment. A table is None where its file cannot be seen.

    Attributes:
        at_s: seconds of a monotonic clock.
        cpus: the CPUs that were asked for.
        interrupts: counts by line.
        softirqs: counts by kind.
        times: CPU times by CPU.
        queue_us: waits in the run queue by CPU.
    """

    at_s: float
    cpus: CPUSet
    interrupts: Mapping[LineID, Counts] | None = None
    softirqs: Mapping[str, Counts] | None = None
    times: Mapping[int, CPUTime] | None = None
    queue_us: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ThreadCounters:
    """Counters of one thread since it began; None where a kernel lacks the file.

    Attributes:
        waited_us: while it could run, and something else did.
        involuntary: times that it was preempted.
        migrations: times that it was moved to another CPU.
    """

    waited_us: int | None = None
    involuntary: int | None = None
    migrations: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerCounters:
    """Counters of a container at one moment; a value that cannot be seen is None.

    Attributes:
        used_us: CPU time.
        throttled_us: by a CPU quota, its own or one above it.
        throttled_periods: periods in which it was throttled.
        cpu_pressure_us: some thread waited for a CPU.
        irq_pressure_us: interrupts held all its threads up.
        numa_hint_faults: page faults that NUMA balancing caused.
        numa_pages_migrated: pages that it moved.
        memory_bytes: by NUMA node.
        threads: by thread id; None where processes cannot be seen.
    """

    used_us: int | None = None
    throttled_us: int | None = None
    throttled_periods: int | None = None
    cpu_pressure_us: int | None = None
    irq_pressure_us: int | None = None
    numa_hint_faults: int | None = None
    numa_pages_migrated: int | None = None
    memory_bytes: Mapping[int, int] | None = None
    threads: Mapping[int, ThreadCounters] | None = None


class CounterFiles:
    """The files of the node.

    Args:
        roots: directories that contain `proc`; each file is read from the first that has it.
        clock: seconds, monotonic.
    """

    def __init__(self, roots: Sequence[str], clock: Callable[[], float]) -> None:
        self._roots, self._clock = [KernelFiles(root) for root in roots], clock

    def now(self) -> float:
        """The time of the clock."""
        return self._clock()

    def read(self, cpus: CPUSet) -> NodeCounters:
        """All counters of these CPUs."""
        at_s = self._clock()
        interrupts, softirqs = self.text("proc/interrupts"), self.text("proc/softirqs")
        stat, schedstat = self.text("proc/stat"), self.text("proc/schedstat")
        return NodeCounters(
            at_s,
            cpus,
            parse_interrupts(interrupts, cpus) if interrupts else None,
            parse_softirqs(softirqs, cpus) if softirqs else None,
            parse_stat(stat, cpus) if stat else None,
            parse_schedstat(schedstat, cpus) if schedstat else None,
        )

    def text(self, name: str) -> str | None:
        """A file; None where it is absent, masked or cannot be read.

        These files say the same in each mount of proc. Most runtimes mask /proc/interrupts in containers: it is empty.
        """
        for files in self._roots:
            try:
                text = _raw(files.path(name))
            except OSError:
                continue
            if text:
                return text
        return None


def _raw(path: str) -> str:
    """The text as it is: blanks at the end of a line say that an interrupt has no handler."""
    with open(path, "rb", buffering=1 << 20) as file:
        return file.read().decode("ascii", "replace")


V1_ACCOUNTING = ("cpuacct", "cpu,cpuacct", "cpuacct,cpu")


class ContainerFiles:
    """The counters of containers in a cgroup tree.

    Args:
        cgroups: the tree.
    """

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups, self._quotas = cgroups, CPUQuotas.beside(cgroups.tree)
        above = os.path.dirname(cgroups.tree.directory)
        tops = (os.path.join(above, name) for name in V1_ACCOUNTING)
        self._accounting = next((top for top in tops if os.path.isdir(top)), "")
        self._memory = os.path.join(above, "memory")

    def read(self, ref: CgroupRef) -> ContainerCounters | None:
        """The counters of a container without those of its threads; None where its cgroup does not exist."""
        try:
            directory, path = self._cgroups.directory(ref), cgroup_path(ref)
        except HostError:
            return None
        if not os.path.isdir(directory):
            return None
        return self._read_v2(directory) if self._cgroups.version == 2 else self._read_v1(path)

    def _read_v2(self, directory: str) -> ContainerCounters:
        cpu, memory = _pairs(directory, "cpu.stat"), _pairs(directory, "memory.stat")
        local = _pairs(directory, "cpu.stat.local").get("throttled_usec")
        throttled = [one for one in (cpu.get("throttled_usec"), local) if one is not None]
        return ContainerCounters(
            used_us=cpu.get("usage_usec"),
            # Its own quota is in cpu.stat. Since Linux 6.6 cpu.stat.local also has the time of a quota above it.
            throttled_us=max(throttled) if throttled else None,
            throttled_periods=cpu.get("nr_throttled"),
            cpu_pressure_us=parse_pressure(_text(directory, "cpu.pressure")).get("some"),
            irq_pressure_us=parse_pressure(_text(directory, "irq.pressure")).get("full"),
            numa_hint_faults=memory.get("numa_hint_faults"),
            numa_pages_migrated=memory.get("numa_pages_migrated"),
            memory_bytes=parse_numa_stat(_text(directory, "memory.numa_stat")),
        )

    def _read_v1(self, path: str) -> ContainerCounters:
        used = _text(os.path.join(self._accounting, path), "cpuacct.usage").strip()
        cpu = _pairs(os.path.join(self._quotas.directory, path), "cpu.stat") if self._quotas else {}
        throttled_ns = cpu.get("throttled_time")
        return ContainerCounters(
            used_us=int(used) // 1000 if used.isdecimal() else None,
            throttled_us=None if throttled_ns is None else throttled_ns // 1000,
            throttled_periods=cpu.get("nr_throttled"),
            memory_bytes=parse_numa_stat(_text(os.path.join(self._memory, path), "memory.numa_stat")),
        )


def _pairs(directory: str, name: str) -> dict[str, int]:
    return parse_pairs(_text(directory, name))


def _text(directory: str, name: str) -> str:
    """A small file; empty where it cannot be read: kernels and controllers differ in the files they have."""
    try:
        return _raw(os.path.join(directory, name))
    except OSError:
        return ""


# Threads. A process is found by the cgroup that /proc/PID/cgroup names: cgroup.procs has no numbers of processes outside the
# reader's own PID namespace. The last part of the path names the container, in any cgroup namespace.

MOST_THREADS = 20_000
"""Threads that are read at most; more would take seconds."""

_SWITCHES = re.compile(r"^nonvoluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
_MIGRATIONS = re.compile(r"^se\.nr_migrations\s*:\s*(\d+)", re.MULTILINE)


def read_threads(proc: str, refs: Collection[CgroupRef]) -> dict[CgroupRef, dict[int, ThreadCounters]]:
    """By container: its threads, by their ids. A thread that ends meanwhile is left out.

    Args:
        proc: a mount of proc that has the node's processes.
        refs: the cgroups of the containers.
    """
    by_name = {cgroup_path(ref).rpartition("/")[2]: ref for ref in refs}
    found: dict[CgroupRef, dict[int, ThreadCounters]] = {ref: {} for ref in refs}
    left = MOST_THREADS
    for pid in _numbers(proc):
        ref = _container_of(_text(os.path.join(proc, pid), "cgroup"), by_name)
        if ref is None:
            continue
        for tid in _numbers(os.path.join(proc, pid, "task")):
            left -= 1
            counters = _thread(os.path.join(proc, pid, "task", tid)) if left >= 0 else None
            if counters is not None:
                found[ref][int(tid)] = counters
    return found


def _container_of(text: str, by_name: Mapping[str, CgroupRef]) -> CgroupRef | None:
    for line in text.splitlines():
        for part in line.split("/")[1:]:
            if part in by_name:
                return by_name[part]
    return None


def _thread(directory: str) -> ThreadCounters | None:
    schedstat, status = _text(directory, "schedstat").split(), _text(directory, "status")
    if not status:
        return None
    switches, migrations = _SWITCHES.search(status), _MIGRATIONS.search(_text(directory, "sched"))
    return ThreadCounters(
        int(schedstat[1]) // 1000 if len(schedstat) == 3 and schedstat[1].isdecimal() else None,
        int(switches[1]) if switches else None,
        int(migrations[1]) if migrations else None,
    )


def _numbers(directory: str) -> Iterable[str]:
    try:
        return [name for name in os.listdir(directory) if name.isdecimal()]
    except OSError:
        return ()
