"""Discovery: from a sysfs and proc tree to the frozen `Topology`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nri_plugin import bits
from nri_plugin.cpuset import NO_CPUS, CPUSet
from nri_plugin.host.sysfs_cpus import CPULists, Sockets, read_cores, read_cpus, read_l3, read_sockets
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.host.sysfs_nodes import (
    HUGEPAGES_DIR,
    NodeReading,
    read_hugepages,
    read_memory_kb,
    read_nodes,
)
from nri_plugin.ids import CoreID, NUMANodeID, SocketID, UncoreCacheID
from nri_plugin.topology import NUMANode, Topology

if TYPE_CHECKING:
    from nri_plugin.host.sysfs_facts import MachineFacts


OUTLINE = (
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/online",
    "sys/devices/system/node/has_memory",
)


def discover(root: str = "/") -> Topology:
    """The machine below `root`, with every online CPU in exactly one core, socket, node and cache.

    Where the files leave a CPU without a node or name it in several, see `place_in_nodes`; a
    kernel without NUMA is one node 0 with all CPUs and memory.

    Args:
        root: a directory that holds `sys` and `proc`: `/`, a container's `/host`, a fixture.

    Raises:
        HostError: a file cannot be read or does not hold what it should; names the file.

    Source: kernel Documentation/ABI/stable/sysfs-devices-system-cpu and -node.
    """
    return read_topology(KernelFiles(root))


def read_topology(files: KernelFiles) -> Topology:
    """The machine whose files these are; see `discover`."""
    cpus = read_cpus(files)
    sockets = read_sockets(files, cpus.online)
    l3 = read_l3(files, cpus.online)
    return Topology(
        online=CPUSet(cpus.online),
        cores=tuple((CoreID(bits.lowest(mask)), CPUSet(mask)) for mask in read_cores(files, cpus.online)),
        sockets=tuple((SocketID(number), CPUSet(mask)) for number, mask in sockets.groups),
        nodes=_nodes(files, cpus, sockets),
        caches=_caches(l3, cpus.online, sockets),
        caches_known=bool(l3),
        without_l3=CPUSet(cpus.online & ~sum(l3)) if l3 else NO_CPUS,
        offline=CPUSet(cpus.offline),
        isolated=CPUSet(((cpus.isolated or 0) | (cpus.nohz_full or 0)) & (cpus.online | cpus.offline)),
    )


def outline(root: str = "/") -> tuple[str | None, ...]:
    """What is another text whenever CPUs or memory nodes come or go: cheap to compare, means nothing else.

    Raises:
        HostError: a file cannot be read.
    """
    files = KernelFiles(root)
    return tuple(files.text(name) for name in OUTLINE)


def discover_facts(root: str = "/") -> "MachineFacts":
    """Everything the files below `root` say about the machine, before any repair.

    Raises:
        HostError: a file cannot be read or does not hold what it should; names the file.
    """
    from nri_plugin.host.sysfs_facts import read_facts  # only the command line asks, never the agent

    return read_facts(KernelFiles(root))


def place_in_nodes(readings: Sequence[NodeReading], online: int, sockets: Sequence[int]) -> dict[int, int]:
    """The CPUs of each node, so that every online CPU is in exactly one.

    A CPU that several nodes name belongs to the lowest of them, as in the kernel's own table. One
    that no node names (its node is offline) goes where the most CPUs of its socket are, else to
    the lowest node.

    Args:
        readings: at least one node.
        online: mask of online CPUs.
        sockets: masks.

    Differs: the kubelet lets the last node that names a CPU win and leaves a CPU without a node out.
    """
    placed: dict[int, int] = {}
    left = online
    for node in readings:
        placed[node.id] = node.cpus & left
        left &= ~node.cpus
    homeless = left
    settled = dict(placed)
    for socket in sockets:
        if lost := socket & homeless:
            home = min(placed, key=lambda node: (-(settled[node] & socket).bit_count(), node))
            placed[home] |= lost
    return placed


def _nodes(files: KernelFiles, cpus: CPULists, sockets: Sockets) -> tuple[NUMANode, ...]:
    readings = read_nodes(files)
    if not readings:
        return (_only_node(files, cpus.online),)
    placed = place_in_nodes(readings, cpus.online, [mask for _, mask in sockets.groups])
    return tuple(
        NUMANode(
            id=NUMANodeID(node.id),
            cpus=CPUSet(placed[node.id]),
            memory_bytes=None if node.mem_total_kb is None else node.mem_total_kb * 1024,
            hugepages=node.hugepages,
            # a row of another length was not written for these nodes
            distances=node.distance if node.distance and len(node.distance) == len(readings) else None,
        )
        for node in readings
    )


def _only_node(files: KernelFiles, online: int) -> NUMANode:
    total_kb = read_memory_kb(files, "proc/meminfo", "MemTotal")
    return NUMANode(
        id=NUMANodeID(0),
        cpus=CPUSet(online),
        memory_bytes=None if total_kb is None else total_kb * 1024,
        hugepages=read_hugepages(files, HUGEPAGES_DIR),
        distances=(10,),
    )


def _caches(l3: Sequence[int], online: int, sockets: Sockets) -> tuple[tuple[UncoreCacheID, CPUSet], ...]:
    without = online & ~sum(l3)
    rest = [mask & without for _, mask in sockets.groups if mask & without]
    groups = sorted([*l3, *rest], key=bits.lowest)
    return tuple((UncoreCacheID(number), CPUSet(mask)) for number, mask in enumerate(groups))
