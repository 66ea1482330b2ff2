"""What `nri-pin doctor` says of the kernel and the machine; pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nri_plugin.cli.doctor_findings import Finding, advice, fine, not_visible, to_do
from nri_plugin.cpuset import CPUSet
from nri_plugin.host.node_evidence import Hidden
from nri_plugin.host.node_evidence_kernel import Kernel
from nri_plugin.topology import Topology

FIRST_V2_CPUSET = (5, 0)
"""Source: Linux 5.0, the cpuset controller of cgroup v2."""


@dataclass(frozen=True, slots=True)
class KernelEvidence:
    """What was seen.

    Attributes:
        topology: a text when the machine's files make no sense.
        reserved: what the agent keeps for the system; None where that is not known.
        irqbalance: whether it runs; None where processes cannot be seen.
    """

    kernel: Kernel | Hidden
    topology: Topology | Hidden | str
    reserved: CPUSet | None = None
    irqbalance: bool | None = None


def judge(seen: KernelEvidence) -> Iterator[Finding]:
    """The findings."""
    yield _machine(seen.topology)
    topology = seen.topology if isinstance(seen.topology, Topology) else None
    if topology is not None:
        yield _offline(topology)
        yield _memory(topology)
        yield from _reserved_cores(topology, seen.reserved)
    if isinstance(seen.kernel, Hidden):
        yield not_visible("kernel", seen.kernel, "the kernel's command line cannot be seen")
        return
    yield _release(seen.kernel)
    yield _isolation(seen.kernel, topology, seen.reserved)
    yield _balancing(seen.kernel, topology)
    if seen.irqbalance:
        yield advice(
            "irqbalance",
            "irqbalance runs and sends interrupts to exclusive CPUs as well",
            "name the CPUs to spare in IRQBALANCE_BANNED_CPULIST",
        )


def _machine(topology: Topology | Hidden | str) -> Finding:
    if isinstance(topology, Hidden):
        return not_visible("machine", topology, "the machine's CPUs and NUMA nodes cannot be seen")
    if isinstance(topology, str):
        return to_do("machine", topology, "report it with the output of hack/record-machine")
    nodes, cpus = len(topology.nodes), len(topology.online)
    return fine(
        "machine",
        f"{cpus} CPU{'s' * (cpus != 1)} ({topology.online}) on {nodes} NUMA node{'s' * (nodes != 1)}",
    )


def _offline(topology: Topology) -> Finding:
    if not topology.offline:
        return fine("offline-cpus", "none")
    return advice(
        "offline-cpus",
        f"CPUs {topology.offline} are offline and given to nobody",
        "bring them online where that is not meant",
        f"for c in {' '.join(map(str, topology.offline))}; do echo 1 > /sys/devices/system/cpu/cpu$c/online; done",
    )


def _memory(topology: Topology) -> Finding:
    bare = [str(node.id) for node in topology.nodes if not node.has_memory]
    without = [str(node.id) for node in topology.nodes if not node.cpus]
    if bare:
        return advice(
            "numa-nodes",
            f"NUMA node {', '.join(bare)} has no memory: containers there use that of other nodes",
            "populate its memory slots, or leave it to containers that do not mind",
        )
    if without:
        return fine("numa-nodes", f"all have memory; {', '.join(without)} has no CPUs")
    return fine("numa-nodes", "all have memory")


def _reserved_cores(topology: Topology, reserved: CPUSet | None) -> Iterator[Finding]:
    """Half a core that is kept for the system leaves a half that is never part of a whole core."""
    if not reserved:
        return
    whole = topology.whole_cores(reserved)
    if whole == reserved:
        yield fine("reserved-cores", f"CPUs {reserved} are kept for the system, whole cores")
        return
    yield advice(
        "reserved-cores",
        f"CPUs {reserved} are kept for the system and CPUs {whole - reserved} are the other threads of their cores: "
        "these can never be given as whole cores, and share their core with the system",
        f'write reservedSystemCPUs: "{whole}" into the configurations of the agent and of the kubelet',
    )


def _release(kernel: Kernel) -> Finding:
    found = re.match(r"(\d+)\.(\d+)", kernel.release)
    if found is None:
        return not_visible(
            "kernel", Hidden("/proc/sys/kernel/osrelease", why="says no version"), "the kernel's version"
        )
    if (int(found[1]), int(found[2])) < FIRST_V2_CPUSET:
        return advice(
            "kernel", f"Linux {kernel.release} has no cpusets in cgroup v2", "use Linux 5.0 or later"
        )
    return fine("kernel", f"Linux {kernel.release}")


def _isolation(kernel: Kernel, topology: Topology | None, reserved: CPUSet | None) -> Finding:
    if kernel.unread:
        name, value = next(iter(kernel.unread.items()))
        return not_visible(
            "isolated-cpus",
            Hidden(""),
            f"{name}={value} of the kernel's command line is a form that is not read here",
            "compare with the shared pool by hand: cat /sys/devices/system/cpu/isolated",
        )
    options = dict(kernel.options)
    if topology is not None:
        told = options.get("isolcpus", CPUSet()) | options.get("nohz_full", CPUSet())
        if topology.isolated - told:
            options["isolcpus"] = options.get("isolcpus", CPUSet()) | (topology.isolated - told)
    if not options:
        return fine("isolated-cpus", "no CPU is kept from the kernel's scheduler")
    words = ", ".join(f"{name}={cpus}" for name, cpus in options.items())
    isolated = options.get("isolcpus", CPUSet())
    if reserved is not None and reserved & isolated:
        return to_do(
            "isolated-cpus",
            f"CPUs {reserved & isolated} are kept for the system and isolated from it ({words})",
            "reserve others, or take them out of isolcpus",
        )
    return _isolated_in_pool(words, isolated)


def _isolated_in_pool(words: str, isolated: CPUSet) -> Finding:
    if not isolated:
        return fine("isolated-cpus", f"{words}; none is isolated from the scheduler")
    return advice(
        "isolated-cpus",
        f"{words}: on isolated CPUs the kernel balances no load, so that the threads of a container with several of "
        "them stay where they start",
        "nothing, where only containers run there that pin their threads; else isolatedCPUs: on-request gives them only "
        "to those that ask, or boot without isolcpus: exclusive CPUs need none",
    )


def _balancing(kernel: Kernel, topology: Topology | None) -> Finding:
    several = topology is not None and len(topology.nodes) > 1
    if several and isinstance(kernel.numa_balancing, Hidden):
        return not_visible("numa-balancing", kernel.numa_balancing, "whether the kernel moves memory about")
    if not kernel.numa_balancing or not several:
        return fine(
            "numa-balancing", "off" if several and kernel.numa_balancing is False else "moves nothing here"
        )
    return advice(
        "numa-balancing",
        "on: the kernel samples memory of pinned containers, too, which costs page faults and moves nothing useful",
        "switch it off where containers are pinned",
        "sysctl -w kernel.numa_balancing=0",
    )
