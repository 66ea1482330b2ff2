"""Parts of sysfs: CPUs and the groups that share a core, socket or cache; NUMA nodes; PCI devices and interfaces.

A group is the set of its CPUs and never the kernel's id: core ids repeat across sockets and even within one, package ids
may be -1, cache ids are not unique. CPUs belong to one group if they report the same set of online CPUs. So each grouping
is a partition of the online CPUs, also if files contradict each other.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.model import bits
from nri_plugin.model.errors import HostError

CPU_DIR = "sys/devices/system/cpu"

_CORE = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
_PACKAGE = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
"""Files with the same content; new names and lists first."""


@dataclass(frozen=True, slots=True)
class CPULists:
    """CPUs by state, as masks.

    Attributes:
        online: never empty.
        present: None where the kernel has no such file.
        possible: likewise.
        isolated: likewise.
        nohz_full: CPUs whose tick stops; None without that file, whose content is `(null)` for none.
        offline: present (or, without that file, listed) but not online.
        offline_file: the content of `cpu/offline`, which also has CPUs that are only possible.
    """

    online: int
    present: int | None
    possible: int | None
    isolated: int | None
    nohz_full: int | None
    offline: int
    offline_file: int | None


@dataclass(frozen=True, slots=True)
class Sockets:
    """Sockets as masks.

    Attributes:
        groups: by socket id, ascending.
        kernel_ids: the kernel's package ids and their CPUs; may hold -1.
        has_ids: whether the groups follow the kernel's ids. Otherwise they follow the sibling lists, and ids count from 0.
    """

    groups: tuple[tuple[int, int], ...]
    kernel_ids: Mapping[int, int]
    has_ids: bool


def read_cpus(files: KernelFiles) -> CPULists:
    """The CPUs of the machine by state.

    Raises:
        HostError: no CPU directory, no online CPU, or a file that cannot be read.
    """
    if files.names(CPU_DIR) is None:
        raise HostError(
            files.path(CPU_DIR), "no such directory; the root must be a directory that holds sys and proc"
        )
    listed = bits.from_ids(files.numbered(CPU_DIR, "cpu"))
    online = files.id_list(f"{CPU_DIR}/online")
    if online is None:
        online = bits.from_ids(cpu for cpu in bits.iterate(listed) if _is_up(files, cpu))
    if not online:
        raise HostError(files.path(f"{CPU_DIR}/online"), "expected at least one online cpu, found none")
    present = files.id_list(f"{CPU_DIR}/present")
    return CPULists(
        online=online,
        present=present,
        possible=files.id_list(f"{CPU_DIR}/possible"),
        isolated=files.id_list(f"{CPU_DIR}/isolated"),
        nohz_full=_nohz_full(files),
        offline=(listed if present is None else present) & ~online,
        offline_file=files.id_list(f"{CPU_DIR}/offline"),
    )


def _nohz_full(files: KernelFiles) -> int | None:
    """Source: kernel drivers/base/cpu.c print_cpus_nohz_full(); `%*pbl` of no mask at all is `(null)`."""
    name = f"{CPU_DIR}/nohz_full"
    return 0 if files.text(name) == "(null)" else files.id_list(name)


def read_cores(files: KernelFiles, online: int) -> tuple[int, ...]:
    """Online hardware threads of each core, by lowest CPU; a CPU without a sibling list is a core."""
    return groups_by_members((cpu, topology_ids(files, cpu, _CORE)) for cpu in bits.iterate(online))


def read_sockets(files: KernelFiles, online: int) -> Sockets:
    """Sockets by package id; where an id is missing or negative, by the lists of package siblings.

    The id is preferred, because some firmware gives wrong sibling lists and correct ids.
    """
    kernel_ids: dict[int, int] = {}
    for cpu in bits.iterate(online):
        number = files.number(f"{CPU_DIR}/cpu{cpu}/topology/physical_package_id")
        package = -1 if number is None else number
        kernel_ids[package] = kernel_ids.get(package, 0) | 1 << cpu
    # -1 stands for an unknown id. CPUs with and without an id cannot be told apart by it, so the lists decide for all.
    if min(kernel_ids) >= 0:
        return Sockets(tuple(sorted(kernel_ids.items())), kernel_ids, has_ids=True)
    siblings = groups_by_members((cpu, _package_siblings(files, cpu, online)) for cpu in bits.iterate(online))
    return Sockets(tuple(enumerate(siblings)), kernel_ids, has_ids=False)


def read_l3(files: KernelFiles, online: int) -> tuple[int, ...]:
    """Online CPUs of each level 3 cache, by lowest CPU; CPUs without one are in no group."""
    return groups_by_members(
        (cpu, mask)
        for cpu in bits.iterate(online)
        if (mask := _l3_of(files, f"{CPU_DIR}/cpu{cpu}/cache")) is not None
    )


def topology_ids(files: KernelFiles, cpu: int, names: Iterable[str]) -> int | None:
    """The mask in the first of these files of a CPU's `topology` directory."""
    return files.ids(*(f"{CPU_DIR}/cpu{cpu}/topology/{name}" for name in names))


def cache_ids(files: KernelFiles, where: str) -> int | None:
    """The CPUs that share the cache whose directory this is."""
    return files.ids(f"{where}/shared_cpu_list", f"{where}/shared_cpu_map")


def groups_by_members(sets: Iterable[tuple[int, int | None]]) -> tuple[int, ...]:
    """A partition of the given CPUs: those that report the same set are one group, by lowest CPU.

    Args:
        sets: each CPU and the set it reports; None stands for the CPU alone. Other CPUs (offline, absent) do not count
            in a reported set.
    """
    table = [(cpu, 1 << cpu if mask is None else mask) for cpu, mask in sets]
    known = bits.from_ids(cpu for cpu, _ in table)
    groups: dict[int, int] = {}
    for cpu, mask in table:
        key = mask & known
        groups[key] = groups.get(key, 0) | 1 << cpu
    return tuple(sorted(groups.values(), key=bits.lowest))


def _is_up(files: KernelFiles, cpu: int) -> bool:
    """Whether a CPU is online on a kernel without a list. A CPU that cannot go offline has no file.

    Some archives of sysfs have the file without its content. It counts as missing.
    """
    name = f"{CPU_DIR}/cpu{cpu}/online"
    return not files.text(name) or files.number(name) != 0


def _package_siblings(files: KernelFiles, cpu: int, online: int) -> int:
    mask = topology_ids(files, cpu, _PACKAGE)
    return online if mask is None else mask


def _l3_of(files: KernelFiles, where: str) -> int | None:
    """The CPUs that share this CPU's L3; on most machines that is `index3`."""
    if files.text(f"{where}/index3/level") == "3":
        return cache_ids(files, f"{where}/index3")
    for index in files.numbered(where, "index"):
        if files.text(f"{where}/index{index}/level") == "3":
            return cache_ids(files, f"{where}/index{index}")
    return None


BLOCK_DIR = "sys/block"
IRQ_DIR = "proc/irq"


def read_queues(files: KernelFiles, online: int) -> tuple[tuple[int, int], ...]:
    """(CPUs, those that the interrupt comes to) of the queues of disks that several CPUs share, but not all.

    Each set of CPUs comes once, ascending. What cannot be read counts as missing: no agent needs disks to start.

    Source: kernel block/blk-mq-sysfs.c, blk_mq_hw_sysfs_cpus_show: the CPUs with commas and blanks between them.
    """
    found = {_ids(files, name) & online for name in _queue_files(files)}
    shared = sorted(mask for mask in found if mask.bit_count() > 1 and mask != online)
    if not shared:
        return ()
    delivered = dict.fromkeys(shared, 0)
    for entry in _entries(files, IRQ_DIR):
        mask = _ids(files, f"{IRQ_DIR}/{entry}/smp_affinity_list") & online if entry.isdecimal() else 0
        if mask in delivered:
            delivered[mask] |= _ids(files, f"{IRQ_DIR}/{entry}/effective_affinity_list") & mask
    return tuple(delivered.items())


def _queue_files(files: KernelFiles) -> Iterator[str]:
    for disk in _entries(files, BLOCK_DIR):
        for queue in _entries(files, f"{BLOCK_DIR}/{disk}/mq"):
            yield f"{BLOCK_DIR}/{disk}/mq/{queue}/cpu_list"


def _entries(files: KernelFiles, name: str) -> list[str]:
    try:
        return files.names(name) or []
    except HostError:
        return []


def _ids(files: KernelFiles, name: str) -> int:
    try:
        return bits.parse_list((files.text(name) or "").replace(" ", ""))
    except (HostError, ValueError):
        return 0


NODE_DIR = "sys/devices/system/node"
HUGEPAGES_DIR = "sys/kernel/mm/hugepages"

_COUNT = re.compile(r"[0-9]{1,18}\Z")
_PAGE_POOL = re.compile(r"hugepages-([0-9]{1,12})kB\Z")


@dataclass(frozen=True, slots=True)
class NodeReading:
    """The files of one NUMA node.

    Attributes:
        id: the kernel's node number.
        cpus: mask; may contain offline and absent CPUs, and CPUs that other nodes list too.
        mem_total_kb: None where it was not recorded.
        mem_free_kb: likewise.
        hugepages: (page size in kB, number of pages), ascending by size.
        distance: the row of the distance table as it stands; None where there is none.
    """

    id: int
    cpus: int
    mem_total_kb: int | None
    mem_free_kb: int | None
    hugepages: tuple[tuple[int, int], ...]
    distance: tuple[int, ...] | None


def read_nodes(files: KernelFiles) -> tuple[NodeReading, ...]:
    """The online NUMA nodes by id; empty on a kernel without NUMA.

    Raises:
        HostError: a file cannot be read or does not have its format.
    """
    online = files.id_list(f"{NODE_DIR}/online")
    listed = files.numbered(NODE_DIR, "node")
    ids = listed if online is None else bits.iterate(online)
    return tuple(_read_node(files, node) for node in ids)


def read_hugepages(files: KernelFiles, where: str) -> tuple[tuple[int, int], ...]:
    """Huge page pools of a directory: (page size in kB, number of pages), ascending by size."""
    pools = []
    for entry in files.names(where) or ():
        match = _PAGE_POOL.match(entry)
        pages = files.number(f"{where}/{entry}/nr_hugepages") if match else None
        if match and pages is not None:
            pools.append((int(match[1]), pages))
    return tuple(sorted(pools))


def read_memory_kb(files: KernelFiles, name: str, key: str) -> int | None:
    """A value of a `meminfo` file, in kB; None when file or line is missing.

    Raises:
        HostError: the file cannot be read, or the line holds no number of kB.
    """
    for line in (files.text(name) or "").splitlines():
        label, colon, value = line.partition(":")
        if colon and label.split()[-1:] == [key]:
            words = value.split()
            if not words or not _COUNT.match(words[0]) or words[1:] not in (["kB"], []):
                raise HostError(files.path(name), f"expected '{key}: <number> kB', found {line[:60]!r}")
            return int(words[0])
    return None


def _read_node(files: KernelFiles, node: int) -> NodeReading:
    where = f"{NODE_DIR}/node{node}"
    return NodeReading(
        id=node,
        cpus=_node_cpus(files, where),
        mem_total_kb=read_memory_kb(files, f"{where}/meminfo", "MemTotal"),
        mem_free_kb=read_memory_kb(files, f"{where}/meminfo", "MemFree"),
        hugepages=read_hugepages(files, f"{where}/hugepages"),
        distance=_read_distance(files, f"{where}/distance"),
    )


def _node_cpus(files: KernelFiles, where: str) -> int:
    """The list, else the map, else the links to CPU directories."""
    for mask in (files.id_list(f"{where}/cpulist"), files.id_map(f"{where}/cpumap")):
        if mask is not None:
            return mask
    return bits.from_ids(files.numbered(where, "cpu"))


def _read_distance(files: KernelFiles, name: str) -> tuple[int, ...] | None:
    text = files.text(name)
    if not text:
        return None
    words = text.split()
    if not all(map(_COUNT.match, words)):
        raise HostError(files.path(name), f"expected distances such as '10 20', found {text[:60]!r}")
    return tuple(map(int, words))


PCI_DIR = "sys/bus/pci/devices"
NET_DIR = "sys/class/net"


def read_pci(files: KernelFiles, online: int) -> dict[str, dict[str, Any]]:
    """PCI devices by address: class, NUMA node (-1 where firmware does not say), local CPUs.

    Raises:
        HostError: a file cannot be read or does not have its format.
    """
    return {
        address: _device(files, f"{PCI_DIR}/{address}", online)
        for address in sorted(files.names(PCI_DIR) or ())
    }


def read_net(files: KernelFiles) -> dict[str, dict[str, Any]]:
    """Network interfaces of PCI devices, by name.

    Raises:
        HostError: a file cannot be read or does not have its format.
    """
    found = {}
    for name in sorted(files.names(NET_DIR) or ()):
        where = f"{NET_DIR}/{name}/device"
        address = files.end_of_link(where)
        if address is not None:
            found[name] = {"numa_node": files.number(f"{where}/numa_node"), "pci": address}
    return found


def _device(files: KernelFiles, where: str, online: int) -> dict[str, Any]:
    local = files.id_list(f"{where}/local_cpulist")
    if local is None:
        local = files.id_map(f"{where}/local_cpus")
    return {
        "class": files.text(f"{where}/class"),
        "local_cpus": None if local is None else bits.format_list(local & online),
        "numa_node": files.number(f"{where}/numa_node"),
    }
