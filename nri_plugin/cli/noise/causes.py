"""What causes each source of noise, and what would end it: a table by kind and name, and sentences for interrupts of devices."""

from collections.abc import Mapping
from typing import NamedTuple

from nri_plugin.host.cpu_noise import NoiseKind, NoiseRow, Unseen
from nri_plugin.host.kernel_work import ReachingInterrupt
from nri_plugin.model.sets import CPUSet


class NoiseCause(NamedTuple):
    """The explanation of one source.

    Attributes:
        says: what causes it, one sentence without a full stop.
        ends: what would end it, the same.
        command: a line to paste, an option of the configuration or a boot parameter; empty for none.
    """

    says: str
    ends: str
    command: str = ""


PARTITION = "isolation: partition"
TO_MEASURE = "nothing has to: it is a sign of the sources above"

CAUSES: Mapping[tuple[NoiseKind, str], NoiseCause] = {
    (NoiseKind.TICK, ""): NoiseCause(
        "the scheduler's tick, which runs while a thread does, and timers of the container's own threads",
        "a CPU without a tick, which only the boot gives, and on it a single thread that does not sleep",
        "nohz_full={cpus}",
    ),
    (NoiseKind.IPI, "RES"): NoiseCause(
        "a thread on another CPU woke one that runs or waits here",
        "one thread for each CPU that does not wait for others, and no balancing from outside",
        PARTITION,
    ),
    (NoiseKind.IPI, "CAL"): NoiseCause(
        "another CPU had a function run here: flushes of the address space, memory compaction, changes of the kernel's code",
        "no threads of one process outside these CPUs that unmap memory, and no compaction in the background",
        "sysctl -w vm.compaction_proactiveness=0",
    ),
    (NoiseKind.IPI, "TLB"): NoiseCause(
        "a thread of the same process unmapped memory, or the kernel moved or merged pages of it",
        "memory that is allocated once and kept, and no balancing of memory",
        "sysctl -w kernel.numa_balancing=0",
    ),
    (NoiseKind.IPI, "IWI"): NoiseCause(
        "the kernel put off work of its own to this CPU: messages, performance events, RCU",
        "no performance events on this CPU; the rest is rare",
    ),
    (NoiseKind.IPI, ""): NoiseCause(
        "another CPU interrupted this one", "fewer threads that wake or flush each other", PARTITION
    ),
    (NoiseKind.OTHER, "NMI"): NoiseCause(
        "the watchdog for hard lockups, or a performance event",
        "no watchdog, or one that leaves these CPUs out",
        "sysctl -w kernel.nmi_watchdog=0",
    ),
    (NoiseKind.OTHER, "PMI"): NoiseCause(
        "the watchdog for hard lockups, or a performance event",
        "no watchdog, or one that leaves these CPUs out",
        "sysctl -w kernel.nmi_watchdog=0",
    ),
    (NoiseKind.OTHER, "MCP"): NoiseCause(
        "the kernel polls for machine checks",
        "a longer interval, or none",
        "echo 0 > /sys/devices/system/machinecheck/machinecheck0/check_interval",
    ),
    (NoiseKind.OTHER, "TRM"): NoiseCause("the CPU became too hot, or cooled down", "better cooling"),
    (NoiseKind.OTHER, "THR"): NoiseCause(
        "a corrected memory error passed its threshold", "other memory modules"
    ),
    (NoiseKind.OTHER, ""): NoiseCause(
        "the processor or the hypervisor interrupted the CPU", "nothing that is known here"
    ),
    (NoiseKind.SOFTIRQ, "TIMER"): NoiseCause(
        "timers that expired on this CPU, those of the container's threads among them",
        "timers of idle CPUs queued elsewhere, and a CPU without a tick",
        "sysctl -w kernel.timer_migration=1",
    ),
    (NoiseKind.SOFTIRQ, "HRTIMER"): NoiseCause(
        "precise timers that expired, as for nanosleep and timerfd",
        "no such timers in the container's threads",
    ),
    (NoiseKind.SOFTIRQ, "NET_RX"): NoiseCause(
        "packets that were received where their interrupt came, or that were steered here",
        "the interrupts of the network device elsewhere, and no receive steering to these CPUs",
        "grep . /sys/class/net/*/queues/rx-*/rps_cpus",
    ),
    (NoiseKind.SOFTIRQ, "NET_TX"): NoiseCause(
        "packets that were sent from here", "the container's own traffic; other senders on other CPUs"
    ),
    (NoiseKind.SOFTIRQ, "BLOCK"): NoiseCause(
        "requests to a disk that were completed here", "the interrupts of the disk elsewhere"
    ),
    (NoiseKind.SOFTIRQ, "SCHED"): NoiseCause(
        "the scheduler balanced load from the tick", "a scheduling domain of the container's own", PARTITION
    ),
    (NoiseKind.SOFTIRQ, "RCU"): NoiseCause(
        "callbacks that free memory of the kernel",
        "these callbacks in threads elsewhere, which only the boot gives",
        "rcu_nocbs={cpus}",
    ),
    (NoiseKind.SOFTIRQ, ""): NoiseCause(
        "a driver put off work to where its interrupt came", "the interrupts of that device elsewhere"
    ),
    (NoiseKind.STRANGERS, ""): NoiseCause(
        "threads of others ran here: kernel threads, or daemons that pin themselves",
        "kernel threads elsewhere as far as they can be moved",
        "nri-pin doctor",
    ),
    (NoiseKind.STEAL, ""): NoiseCause(
        "the host ran something else while this machine could have run",
        "CPUs of the host that belong to this machine alone",
    ),
    (NoiseKind.QUEUE, ""): NoiseCause(
        "threads waited on these CPUs while others ran there, the container's own among them",
        "no more threads that run than CPUs, and no strangers",
    ),
    (NoiseKind.WAIT, ""): NoiseCause(
        "threads of the container could run, and something else did",
        "no more threads that run than CPUs, and no strangers",
    ),
    (NoiseKind.INVOLUNTARY, ""): NoiseCause(
        "threads of the container were preempted, by one another or by strangers",
        "no more threads that run than CPUs, and no strangers",
    ),
    (NoiseKind.MIGRATION, ""): NoiseCause(
        "threads of the container were moved between its CPUs", "threads that pin themselves"
    ),
    (NoiseKind.THROTTLED, ""): NoiseCause(
        "a CPU quota stopped the container's threads, its own or that of a cgroup above",
        "no quota on containers with exclusive CPUs",
        "featureGates: {DisableCPUQuotaWithExclusiveCPUs: true}",
    ),
    (NoiseKind.PRESSURE, ""): NoiseCause("some thread of the container waited for a CPU", TO_MEASURE),
    (NoiseKind.IRQ_PRESSURE, ""): NoiseCause("interrupts and softirqs held all its threads up", TO_MEASURE),
    (NoiseKind.HINT_FAULT, ""): NoiseCause(
        "NUMA balancing takes pages away to see who uses them",
        "no NUMA balancing where containers are pinned",
        "sysctl -w kernel.numa_balancing=0",
    ),
    (NoiseKind.PAGE, ""): NoiseCause(
        "NUMA balancing moved pages",
        "no NUMA balancing where containers are pinned",
        "sysctl -w kernel.numa_balancing=0",
    ),
    (NoiseKind.MEMORY, ""): NoiseCause(
        "memory was allocated on NUMA nodes that are not those of its CPUs",
        "memory nodes that are bound at creation",
        "memoryManagerPolicy: Static",
    ),
}
"""By kind and name; an empty name is any other."""


def cause_of(row: NoiseRow, cpus: CPUSet, interrupts: Mapping[int, ReachingInterrupt]) -> NoiseCause:
    """The explanation of a row.

    Args:
        row: the source.
        cpus: the container's CPUs.
        interrupts: those of the node by number; empty where they cannot be seen.
    """
    if row.kind is NoiseKind.DEVICE:
        return of_device(interrupts.get(row.interrupt or 0), cpus, row.interrupt or 0)
    found = CAUSES.get((row.kind, row.name)) or CAUSES[row.kind, ""]
    return found._replace(command=found.command.replace("{cpus}", str(cpus)))


def of_device(interrupt: ReachingInterrupt | None, cpus: CPUSet, number: int) -> NoiseCause:
    """The explanation of a device's interrupt, by its affinity."""
    if interrupt is None:
        return NoiseCause(
            "a device, or its driver, interrupted the CPU", "its interrupt on other CPUs", by_hand(number)
        )
    if interrupt.is_movable:
        return NoiseCause(
            f"the interrupt may be delivered to CPUs {interrupt.allowed}",
            "irqs: exclusive, or another affinity by hand (where the kernel manages it after all, which those before "
            "6.12 do not show, the write fails)",
            by_hand(number),
        )
    others = interrupt.allowed - cpus
    if not others:
        return NoiseCause(
            f"kernel-managed, fires only for I/O of CPUs {interrupt.allowed}",
            "no I/O to that device from these CPUs: it is the container's own",
        )
    return NoiseCause(
        f"kernel-managed, fires only for I/O of CPUs {interrupt.allowed}, of which {others} are not the container's",
        "CPUs that share no queue with others, or a boot that sends such interrupts elsewhere",
        f"isolcpus=managed_irq,{cpus}",
    )


def by_hand(number: int) -> str:
    """The line that moves an interrupt."""
    return f"echo CPUS > /proc/irq/{number}/smp_affinity_list"


class Reason(NamedTuple):
    """Why something cannot be told, and how it could be.

    Attributes:
        says: what is not told and why, one sentence without a full stop.
        see: what would show it; empty where nothing would.
    """

    says: str
    see: str = ""


UNSEEN: Mapping[Unseen, Reason] = {
    Unseen.INTERRUPTS: Reason(
        "interrupts: /proc/interrupts of the node is not here, or masked as in most containers",
        "mount it at /host/proc/interrupts (chart: agent.hostProc: interrupts)",
    ),
    Unseen.SOFTIRQS: Reason("softirqs: /proc/softirqs cannot be read", "mount it at /host/proc/softirqs"),
    Unseen.CPU_TIME: Reason("run time of others: /proc/stat cannot be read", "mount it at /host/proc/stat"),
    Unseen.QUEUE: Reason("waits in run queues: this kernel has no /proc/schedstat (CONFIG_SCHEDSTATS)"),
    Unseen.THREADS: Reason(
        "waits, involuntary switches and migrations of threads: they need the node's /proc, which is not mounted by "
        "default",
        "mount it at /host/proc (chart: agent.hostProc: all), or run this on the node",
    ),
    Unseen.CGROUP: Reason(
        "run time of others, throttling and memory: the container's cgroup is not there",
        "name the tree with --cgroup-root",
    ),
    Unseen.IRQ_PRESSURE: Reason(
        "time held up by interrupts: irq.pressure needs cgroup v2, Linux 6.1 and CONFIG_IRQ_TIME_ACCOUNTING"
    ),
    Unseen.NUMA_FAULTS: Reason(
        "page faults of NUMA balancing: memory.stat of this kernel or cgroup version has none"
    ),
}
