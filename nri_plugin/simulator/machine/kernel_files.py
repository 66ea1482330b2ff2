"""A described machine as the `sys` and `proc` files that a kernel would show.

The tree holds what topology tools read: CPU lists, topology and cache directories, NUMA nodes with memory, huge pages
and distances, devices, and a short `proc`. An offline CPU has no topology and no cache directory, and no node lists it.
`discover` reads the `Topology` that `build_topology` makes of the same description back from it.
"""

import os
from collections.abc import Iterable, Mapping

from nri_plugin.model import bits
from nri_plugin.model.errors import HostError
from nri_plugin.simulator.machine.description import DescribedCore, DescribedNode, Description
from nri_plugin.simulator.machine.devices import Files, device_files

CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"
HUGEPAGES_DIR = "sys/kernel/mm/hugepages"

_CORE_CACHES = (("0", "1", "Data", "32K"), ("1", "1", "Instruction", "32K"), ("2", "2", "Unified", "1024K"))
"""(index, level, type, size) of the caches each core has for itself."""


def write_tree(machine: Description, destination: str) -> None:
    """Write the files below a directory that has no `sys` yet; it is made when missing.

    Raises:
        HostError: something cannot be written; names it.
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
    sockets = _shared(machine, ((core.socket, core) for core in machine.cores))
    caches = _shared(machine, ((core.cache, core) for core in machine.cores))
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
                files |= _topology_files(where, core, threads, sockets[core.socket])
                files |= _cache_files(where, machine, cpu, core, threads, caches[core.cache])
    if machine.has_numa:
        files |= _node_lists(machine)
        for node in machine.nodes:
            files |= _node_files(node, machine.online)
            links |= _node_links(node, machine.online)
    more = device_files(machine.devices, {node.id: node.cpus & machine.online for node in machine.nodes})
    return files | more[0], links | more[1]


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
        shared = group & machine.with_l3
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


def _shared(machine: Description, members: Iterable[tuple[int, DescribedCore]]) -> dict[int, int]:
    """Online CPUs by what they share."""
    masks: dict[int, int] = {}
    for key, core in members:
        masks[key] = masks.get(key, 0) | bits.from_ids(core.cpus) & machine.online
    return masks


def _bit_map(mask: int) -> str:
    """The kernel's form: groups of 32 bits, highest first."""
    groups: list[str] = []
    while mask or not groups:
        groups.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(groups))
