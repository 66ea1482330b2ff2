"""Described machines: shipped by name, in a file or in a scenario, as a `Topology` or as kernel files.

Invariant: discovery reads the `Topology` of `build_topology` from the files that `build_sysfs` writes for the same
description.

The files are those that topology tools read: CPU lists, topology and cache directories, NUMA nodes with memory, huge
pages and distances, devices, and a short `proc`. An offline CPU has no topology and no cache directory, and no node
lists it.
"""

import os
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

from nri_plugin.config import yaml_tree
from nri_plugin.config.yaml_tree import Section
from nri_plugin.model import bits
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import NO_CPUS, CoreID, CPUSet, NUMANodeID, SocketID, UncoreCacheID
from nri_plugin.model.topology import NUMANode, SharedQueue, Topology
from nri_plugin.simulator.machine.description import DescribedCore, DescribedNode, Description, parse
from nri_plugin.simulator.machine.devices import Files, device_files

__all__ = [
    "Description",
    "build_sysfs",
    "build_topology",
    "described_in",
    "is_description",
    "load",
    "machine_files",
    "parse",
    "shipped",
    "shipped_text",
]

_SUFFIX = ".yaml"
_RECORDED = re.compile(rb"\x1f\x8b|\s*(?:<|\{\s*\")")
"""How gzip, XML and JSON begin; `nri_plugin.simulator.machine.source` reads such files."""

CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"
HUGEPAGES_DIR = "sys/kernel/mm/hugepages"
BLOCK_DIR = "sys/block"
IRQ_DIR = "proc/irq"

_CORE_CACHES = (("0", "1", "Data", "32K"), ("1", "1", "Instruction", "32K"), ("2", "2", "Unified", "1024K"))
"""(index, level, type, size) of the caches each core has for itself."""

# Descriptions


def shipped() -> dict[str, Description]:
    """The machines that come with the package, by name."""
    folder = resources.files("nri_plugin.simulator") / "machines"
    found = {
        entry.name.removesuffix(_SUFFIX): entry.read_text("ascii")
        for entry in folder.iterdir()
        if entry.name.endswith(_SUFFIX)
    }
    return {name: parse(found[name], name) for name in sorted(found)}


def shipped_text(name: str) -> str | None:
    """The description of a shipped machine; None when there is none of that name."""
    entry = resources.files("nri_plugin.simulator") / "machines" / (name + _SUFFIX)
    return entry.read_text("ascii") if "/" not in name and entry.is_file() else None


def is_description(text: str) -> bool:
    """Whether a text describes a machine; otherwise it names one."""
    return any(mark in text for mark in ":,\n")


def described_in(top: Section, text: str) -> str:
    """The machine of a scenario: a name, or the text of a description, on the lines where the scenario has it.

    Args:
        top: the scenario; it has the key `machine`.
        text: the text that `top` was read from.
    """
    value = top.entries["machine"]
    line, column = value.place.line - 1, value.place.column - 1
    if not isinstance(value, Section):
        said = yaml_tree.text(value)
        # a block of text begins on the line after its key
        return (
            "\n" * (line + said.endswith("\n")) + said.strip()
            if is_description(said.strip())
            else said.strip()
        )
    lines = text.split("\n")
    end = min((place.line - 1 for place in top.keys.values() if place.line - 1 > line), default=len(lines))
    return "\n" * line + "\n".join([" " * column + lines[line][column:], *lines[line + 1 : end]])


def load(name_or_path: str) -> Description:
    """A shipped machine by its name, else the description in a file.

    Raises:
        ConfigError: the file is no description; names line and column.
        HostError: neither a shipped machine nor a readable file, or a file that was recorded.
    """
    shipped_one = shipped_text(name_or_path)
    if shipped_one is not None:
        return parse(shipped_one, name_or_path)
    path = Path(name_or_path)
    try:
        with path.open("rb") as file:
            data = file.read(4 * yaml_tree.MAX_TEXT_CHARS + 1)
        if _RECORDED.match(data):
            detail = "is the file of a real machine; a name or a description can be played, nri-pin simulate takes both"
            raise HostError(name_or_path, detail)
        text = data.decode("utf-8")
    except FileNotFoundError as err:
        detail = "is neither a file nor the name of a shipped machine; nri-pin topology --list names them"
        raise HostError(name_or_path, detail) from err
    except (OSError, UnicodeDecodeError) as err:
        why = err.strerror if isinstance(err, OSError) else "is not text"
        raise HostError(name_or_path, f"cannot be read: {(why or 'unknown error').lower()}") from err
    return parse(text, path.stem, source=name_or_path)


# As a topology


def build_topology(machine: Description) -> Topology:
    """The machine as a value for placement."""
    online = machine.online
    sockets = _masks((core.socket, core.cpus) for core in machine.cores)
    caches = _masks((core.cache, core.cpus) for core in machine.cores)
    has_l3 = machine.with_l3 & online
    # CPUs without an L3 form one group in each socket, as discovery groups them
    groups = [mask & has_l3 for mask in caches.values()]
    groups += [mask & online & ~has_l3 for mask in sockets.values()]
    return Topology(
        online=CPUSet(online),
        cores=_cores(machine),
        sockets=tuple(
            (SocketID(number), CPUSet(mask & online))
            for number, mask in sorted(sockets.items())
            if mask & online
        ),
        nodes=_nodes(machine),
        caches=tuple(
            (UncoreCacheID(number), CPUSet(mask))
            for number, mask in enumerate(sorted(filter(None, groups), key=bits.lowest))
        ),
        caches_known=bool(has_l3),
        without_l3=CPUSet(online & ~has_l3) if has_l3 else NO_CPUS,
        offline=CPUSet(machine.present & ~online),
        isolated=CPUSet(machine.isolated | machine.tickless),
        queues=_queues(machine),
    )


def _queues(machine: Description) -> tuple[SharedQueue, ...]:
    """As discovery finds them: of online CPUs, several and not all, each set once."""
    found: dict[int, int] = {}
    for cpus, delivered in machine.queues:
        shared = cpus & machine.online
        if shared.bit_count() > 1 and shared != machine.online:
            found[shared] = found.get(shared, 0) | delivered & shared
    return tuple(SharedQueue(CPUSet(cpus), CPUSet(delivered)) for cpus, delivered in sorted(found.items()))


def _queue_files(machine: Description) -> Files:
    """A disk with these queues, and their interrupts."""
    files: Files = {}
    for number, (cpus, delivered) in enumerate(machine.queues):
        files[f"{BLOCK_DIR}/nvme0n1/mq/{number}/cpu_list"] = ", ".join(map(str, bits.iterate(cpus)))
        if delivered:
            files[f"{IRQ_DIR}/{FIRST_IRQ + number}/smp_affinity_list"] = bits.format_list(cpus)
            files[f"{IRQ_DIR}/{FIRST_IRQ + number}/effective_affinity_list"] = bits.format_list(delivered)
    return files


FIRST_IRQ = 32
"""Of the queues; the kernel's own interrupts have lower numbers."""


def _cores(machine: Description) -> tuple[tuple[CoreID, CPUSet], ...]:
    masks = [bits.from_ids(core.cpus) & machine.online for core in machine.cores]
    return tuple(
        (CoreID(bits.lowest(mask)), CPUSet(mask)) for mask in sorted(filter(None, masks), key=bits.lowest)
    )


def _nodes(machine: Description) -> tuple[NUMANode, ...]:
    if not machine.has_numa:
        total_kb = sum(node.memory_kb for node in machine.nodes)
        pages = [dict(node.hugepages) for node in machine.nodes]
        pools = tuple((size_kb, sum(node[size_kb] for node in pages)) for size_kb in pages[0])
        return (NUMANode(NUMANodeID(0), CPUSet(machine.online), total_kb * 1024, pools, (10,)),)
    return tuple(
        NUMANode(
            id=NUMANodeID(node.id),
            cpus=CPUSet(node.cpus & machine.online),
            memory_bytes=node.memory_kb * 1024,
            hugepages=node.hugepages,
            distances=node.distances,
        )
        for node in machine.nodes
    )


def _masks(members: Iterable[tuple[int, tuple[int, ...]]]) -> dict[int, int]:
    masks: dict[int, int] = {}
    for key, cpus in members:
        masks[key] = masks.get(key, 0) | bits.from_ids(cpus)
    return masks


# As kernel files


def build_sysfs(machine: Description, destination: str) -> None:
    """Write the machine as `sys` and `proc` trees below a directory that has no `sys` yet.

    Raises:
        HostError: a file cannot be written, or `sys` exists.
    """
    if os.path.lexists(os.path.join(destination, "sys")):
        raise HostError(
            os.path.join(destination, "sys"), "is there already; name an empty directory for the machine"
        )
    files, links = machine_files(machine)
    try:
        for folder in sorted({os.path.dirname(name) for name in [*files, *links]}):
            os.makedirs(os.path.join(destination, folder), exist_ok=True)
        for name, text in files.items():
            with open(os.path.join(destination, name), "x", encoding="ascii") as file:
                file.write(text + "\n")
        for name, target in links.items():
            os.symlink(target, os.path.join(destination, name))
    except OSError as err:
        where = err.filename or destination
        raise HostError(
            str(where), f"cannot be written: {(err.strerror or 'unknown error').lower()}"
        ) from err


def machine_files(machine: Description) -> tuple[Files, Files]:
    """Files by path and symbolic links by path, all relative to the root."""
    files = _cpu_lists(machine) | _proc(machine)
    links: Files = {}
    sockets = _masks((core.socket, core.cpus) for core in machine.cores)
    caches = _masks((core.cache, core.cpus) for core in machine.cores)
    for core in machine.cores:
        threads = bits.from_ids(core.cpus) & machine.online
        for cpu in core.cpus:
            where = f"{CPU_DIR}/cpu{cpu}"
            is_online = bool(machine.online >> cpu & 1)
            if cpu:  # the boot CPU of most machines cannot go offline and has no switch
                files[f"{where}/online"] = str(int(is_online))
            elif not is_online:
                files[f"{where}/online"] = "0"
            if is_online:
                files |= _topology_files(where, core, threads, sockets[core.socket] & machine.online)
                files |= _cache_files(where, machine, cpu, core, threads, caches[core.cache])
    if machine.has_numa:
        files |= _node_lists(machine)
        for node in machine.nodes:
            files |= _node_files(node, machine.online)
            links |= _node_links(node, machine.online)
    more = device_files(machine.devices, {node.id: node.cpus & machine.online for node in machine.nodes})
    return files | more[0] | _queue_files(machine), links | more[1]


def _cpu_lists(machine: Description) -> Files:
    return {
        f"{CPU_DIR}/{name}": bits.format_list(mask)
        for name, mask in {
            "online": machine.online,
            "present": machine.present,
            "possible": machine.present,
            "offline": machine.present & ~machine.online,
            "isolated": machine.isolated,
            **({"nohz_full": machine.tickless} if machine.tickless else {}),
        }.items()
    } | {f"{CPU_DIR}/kernel_max": "8191"}


def _topology_files(where: str, core: DescribedCore, threads: int, package: int) -> Files:
    files = {
        f"{where}/topology/core_id": str(core.number),
        f"{where}/topology/physical_package_id": str(core.socket),
        f"{where}/topology/die_id": "0",  # levels of dies in a description only count, so a socket is one die
    }
    for names, mask in (
        (("core_cpus", "thread_siblings"), threads),
        (("package_cpus", "core_siblings"), package),
        (("die_cpus",), package),
    ):
        for name in names:
            files[f"{where}/topology/{name}"] = _bit_map(mask)
            files[f"{where}/topology/{name}_list"] = bits.format_list(mask)
    return files


def _cache_files(
    where: str, machine: Description, cpu: int, core: DescribedCore, threads: int, group: int
) -> Files:
    """The caches of a CPU; ids are unique among caches of one level and type, as the kernel's are."""
    files: Files = {}
    for index, level, kind, size in _CORE_CACHES:
        files |= _cache(f"{where}/cache/index{index}", level, kind, size, min(core.cpus), threads)
    if machine.with_l3 >> cpu & 1:
        shared = group & machine.online & machine.with_l3
        files |= _cache(f"{where}/cache/index3", "3", "Unified", "32768K", core.cache, shared)
    return files


def _cache(where: str, level: str, kind: str, size: str, number: int, mask: int) -> Files:
    return {
        f"{where}/id": str(number),
        f"{where}/level": level,
        f"{where}/type": kind,
        f"{where}/size": size,
        f"{where}/shared_cpu_list": bits.format_list(mask),
        f"{where}/shared_cpu_map": _bit_map(mask),
    }


def _node_lists(machine: Description) -> Files:
    ids = bits.from_ids(node.id for node in machine.nodes)
    with_cpus = bits.from_ids(node.id for node in machine.nodes if node.cpus & machine.online)
    with_memory = bits.from_ids(node.id for node in machine.nodes if node.memory_kb)
    lists = {
        "online": ids,
        "possible": ids,
        "has_cpu": with_cpus,
        "has_memory": with_memory,
        "has_normal_memory": with_memory,
    }
    return {f"{NODE_DIR}/{name}": bits.format_list(mask) for name, mask in lists.items()}


def _node_files(node: DescribedNode, online: int) -> Files:
    where = f"{NODE_DIR}/node{node.id}"
    cpus = node.cpus & online
    memory = {"MemTotal": node.memory_kb, "MemFree": node.memory_kb, "MemUsed": 0}
    files = {
        f"{where}/cpulist": bits.format_list(cpus),
        f"{where}/cpumap": _bit_map(cpus),
        f"{where}/meminfo": "\n".join(
            f"Node {node.id} {key + ':':<15}{kb:>8} kB" for key, kb in memory.items()
        ),
    }
    if node.distances is not None:
        files[f"{where}/distance"] = " ".join(map(str, node.distances))
    return files | _pool_files(f"{where}/hugepages", dict(node.hugepages))


def _node_links(node: DescribedNode, online: int) -> Files:
    links: Files = {}
    for cpu in bits.iterate(node.cpus & online):
        links[f"{NODE_DIR}/node{node.id}/cpu{cpu}"] = f"../../cpu/cpu{cpu}"
        links[f"{CPU_DIR}/cpu{cpu}/node{node.id}"] = f"../../node/node{node.id}"
    return links


def _pool_files(where: str, pages: Mapping[int, int]) -> Files:
    return {
        f"{where}/hugepages-{size_kb}kB/{name}": str(number)
        for size_kb, number in pages.items()
        for name in ("nr_hugepages", "free_hugepages")
    }


def _proc(machine: Description) -> Files:
    total_kb = sum(node.memory_kb for node in machine.nodes)
    memory = {"MemTotal": total_kb, "MemFree": total_kb, "MemAvailable": total_kb}
    pages: dict[int, int] = {}
    for node in machine.nodes:
        for size_kb, number in node.hugepages:
            pages[size_kb] = pages.get(size_kb, 0) + number
    files = {
        "proc/meminfo": "\n".join(f"{key + ':':<15}{kb:>9} kB" for key, kb in memory.items()),
        "proc/cpuinfo": "\n\n".join(_cpuinfo(machine)) + "\n",
    }
    return files | _pool_files(HUGEPAGES_DIR, pages)


def _cpuinfo(machine: Description) -> list[str]:
    place = {cpu: core for core in machine.cores for cpu in core.cpus}
    return [
        f"processor\t: {cpu}\nmodel name\t: {machine.title or machine.name}\nphysical id\t: {place[cpu].socket}\ncore id\t\t: {place[cpu].number}"
        for cpu in bits.iterate(machine.online)
    ]


def _bit_map(mask: int) -> str:
    """The kernel's form: groups of 32 bits, highest first."""
    groups: list[str] = []
    while mask or not groups:
        groups.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(groups))
