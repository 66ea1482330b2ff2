"""Writing a machine as the sysfs and proc files a kernel would show, for tools that read them.

Holds what topology tools look at: CPU lists, topology and cache directories,
NUMA nodes with memory, huge pages and distances, and a short proc. An offline
CPU has no topology and no cache directory, and no node lists it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, zip_longest
from typing import NoReturn

from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.model.sets import NodeMask
from nri_plugin.simulator.machine.device_places import PlacedDevice, device_files, place_devices
from nri_plugin.simulator.machine.text import MAX_CPUS, MAX_NODES, Description, Hugepages

# ----------------------------------------------------------------------------------------------------
# From a description to the place of every CPU and node.
#
# The layout is what the hardware is; what is online, and what the kernel shows of
# it, is decided by those who read it (`build_topology`, `build_sysfs`).


@dataclass(frozen=True, slots=True)
class Core:
    """One core.

    Attributes:
        cpus: its hardware threads, first thread first.
        socket: the kernel's id.
        node: likewise.
        cache: counted from 0 over the machine; CPUs named by `no L3` are not part of it.
        number: counted from 0 within the socket.
    """

    cpus: tuple[int, ...]
    socket: int
    node: int
    cache: int
    number: int


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node; `distances` to all nodes by ascending id."""

    id: int
    cpus: int
    memory_kb: int
    hugepages: tuple[tuple[int, int], ...]
    distances: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """A machine worked out.

    Attributes:
        cores: in the order of the shape.
        nodes: by ascending id; CPUs of `no NUMA` machines are in nodes here too.
        present: mask of all CPUs.
        online: present without the offline ones; never empty.
        isolated: mask.
        tickless: mask; the kernel calls them nohz_full.
        with_l3: mask of CPUs that have a level 3 cache.
        has_numa: whether the kernel shows the nodes.
        devices: what pods can ask for; on no NUMA node where the kernel shows none.
    """

    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    present: int
    online: int
    isolated: int
    tickless: int
    with_l3: int
    has_numa: bool
    devices: tuple[PlacedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a core goes, counted in units of the shape."""

    socket: int
    node: int
    cache: int
    threads: int


def lay_out(description: Description) -> Layout:
    """The place of every CPU and node.

    Raises:
        ConfigError: the clauses do not fit together; says which, and both numbers.
    """
    places = list(_places(description))
    total = sum(place.threads for place in places)
    if total > MAX_CPUS:
        _refuse(description, f"{total} cpus are more than the {MAX_CPUS} the kernel can have")
    socket_ids = _named(
        description, "socket", description.socket_ids, 1 + max(place.socket for place in places)
    )
    node_ids = _named(description, "node", description.node_ids, 1 + max(place.node for place in places))
    cores = _cores(description, places, socket_ids, node_ids)
    present = (1 << total) - 1
    for what, mask in _named_cpus(description).items():
        if mask & ~present:
            where = next((where for named, where in description.cpu_places if named & mask & ~present), "")
            detail = f"'{what} {bits.format_list(mask)}' names cpus beyond 0-{total - 1}"
            _refuse(description, detail, where)
    if not present & ~description.offline:
        _refuse(description, "every cpu is offline; leave at least one online")
    nodes = _nodes(description, cores, node_ids)
    return Layout(
        cores=cores,
        nodes=nodes,
        present=present,
        online=present & ~description.offline,
        isolated=description.isolated,
        tickless=description.tickless,
        with_l3=0 if description.without_l3 < 0 else present & ~description.without_l3,
        has_numa=description.has_numa,
        devices=_devices(description, [node.id for node in nodes]),
    )


def _places(description: Description) -> Iterator[_Place]:
    """The cores in the order of the shape; what the shape does not name is one per socket."""
    names = [level for level, _ in description.levels]
    counts = [how_many for _, how_many in description.levels]
    kinds = [(how_many, threads or description.smt) for how_many, threads in description.cores]
    units = 1
    for how_many in counts:
        units *= how_many
    if units * sum(how_many for how_many, _ in kinds) > MAX_CPUS:
        _refuse(description, f"the shape has more than the {MAX_CPUS} cpus the kernel can have")
    for unit in range(units):
        index = _indexes(names, counts, unit)
        socket = index.get("socket", 0)
        for how_many, threads in kinds:
            for _ in range(how_many):
                yield _Place(socket, index.get("node", socket), index.get("cache", socket), threads)


def _indexes(names: Sequence[str], counts: Sequence[int], unit: int) -> dict[str, int]:
    """The number, over the whole machine, of the unit of each level that holds innermost unit `unit`."""
    index = {}
    for name, how_many in zip(reversed(names), reversed(counts), strict=True):
        index[name] = unit
        unit //= how_many
    return index


def _cores(
    description: Description, places: Sequence[_Place], socket_ids: Sequence[int], node_ids: Sequence[int]
) -> tuple[Core, ...]:
    cpus: list[list[int]] = [[] for _ in places]
    for cpu, place in enumerate(_numbering(description, places)):
        cpus[place].append(cpu)
    seen: dict[int, count[int]] = {}
    return tuple(
        Core(
            cpus=tuple(cpus[position]),
            socket=socket_ids[place.socket],
            node=node_ids[place.node],
            cache=place.cache,
            number=next(seen.setdefault(place.socket, count())),
        )
        for position, place in enumerate(places)
    )


def _numbering(description: Description, places: Sequence[_Place]) -> Iterator[int]:
    """Positions of cores in the order in which CPU numbers are given to them, one per thread."""
    order: Sequence[int] = range(len(places))
    if description.interleaved_by:
        groups: dict[int, list[int]] = {}
        for position in order:
            groups.setdefault(getattr(places[position], description.interleaved_by), []).append(position)
        turns = chain.from_iterable(zip_longest(*groups.values()))
        order = [position for position in turns if position is not None]
    if description.are_siblings_adjacent:
        for position in order:
            yield from [position] * places[position].threads
        return
    for thread in range(max(place.threads for place in places)):
        yield from (position for position in order if thread < places[position].threads)


def _nodes(description: Description, cores: Sequence[Core], node_ids: Sequence[int]) -> tuple[Node, ...]:
    cpus = dict.fromkeys(sorted(node_ids), 0)
    for core in cores:
        cpus[core.node] |= bits.from_ids(core.cpus)
    memory = dict(zip(sorted(node_ids), _memory(description, len(node_ids)), strict=True))
    for node, size_kb in description.cpuless:
        if node in cpus or node >= MAX_NODES:
            why = "has cpus or was named before" if node in cpus else f"is above {MAX_NODES - 1}"
            _refuse(description, f"cpu-less node {node} {why}")
        cpus[node] = 0
        memory[node] = size_kb
    ids = sorted(cpus)
    sockets = {node: {core.socket for core in cores if core.node == node} for node in ids}
    for pool in description.hugepages:
        if (pool.nodes or 0) & ~bits.from_ids(ids):
            _refuse(
                description, f"hugepages on {bits.format_list(pool.nodes or 0)}: the nodes are {_list(ids)}"
            )
    return tuple(
        Node(
            id=node,
            cpus=cpus[node],
            memory_kb=memory[node],
            hugepages=_hugepages(description.hugepages, node, has_cpus=bool(cpus[node])),
            distances=_distance_row(description, position, ids, sockets),
        )
        for position, node in enumerate(ids)
    )


def _memory(description: Description, nodes: int) -> Sequence[int]:
    sizes = description.memory_kb
    if len(sizes) not in {1, nodes}:
        _refuse(
            description, f"{len(sizes)} memory sizes for {nodes} nodes with cpus: give one, or one for each"
        )
    return sizes if len(sizes) == nodes else sizes * nodes


def _hugepages(pools: Sequence[Hugepages], node: int, *, has_cpus: bool) -> tuple[tuple[int, int], ...]:
    """Every size there is, as the kernel shows it: also where a node has none of it."""
    pages = dict.fromkeys(sorted(pool.size_kb for pool in pools), 0)
    for pool in pools:
        if has_cpus if pool.nodes is None else pool.nodes >> node & 1:
            pages[pool.size_kb] += pool.pages
    return tuple(pages.items())


def _distance_row(
    description: Description, position: int, ids: Sequence[int], sockets: Mapping[int, set[int]]
) -> tuple[int, ...] | None:
    distances = description.distances
    if distances is None:
        return None
    if distances.rows is not None:
        widths = sorted({len(row) for row in distances.rows})
        if len(distances.rows) != len(ids) or widths != [len(ids)]:
            found = f"{len(distances.rows)} rows of {' or '.join(map(str, widths))} distances"
            _refuse(description, f"{found} for the {len(ids)} nodes {_list(ids)}: give a square table")
        return distances.rows[position]
    own = ids[position]
    remote = distances.remote if distances.cpuless is None else distances.cpuless

    def distance(other: int) -> int:
        if other == own:
            return distances.local
        if not sockets[own] or not sockets[other]:
            return remote
        return distances.socket if sockets[own] & sockets[other] else distances.remote

    return tuple(map(distance, ids))


def _named(description: Description, what: str, ids: Sequence[int], needed: int) -> Sequence[int]:
    if ids and len(ids) != needed:
        _refuse(description, f"{len(ids)} {what} ids for {needed} {what}s: give one for each")
    numbers = ids or range(needed)
    if what == "node" and max(numbers) >= MAX_NODES:
        _refuse(description, f"node {max(numbers)} is above {MAX_NODES - 1}, the highest the kernel can have")
    return numbers


def _named_cpus(description: Description) -> dict[str, int]:
    without_l3 = max(description.without_l3, 0)
    return {
        "offline": description.offline,
        "isolated": description.isolated,
        "nohz_full": description.tickless,
        "no L3 on": without_l3,
    }


def _list(ids: Sequence[int]) -> str:
    return bits.format_list(bits.from_ids(ids))


def _devices(description: Description, ids: Sequence[int]) -> tuple[PlacedDevice, ...]:
    devices = description.devices
    for device in devices:
        if device.nodes.mask & ~bits.from_ids(ids):
            detail = f"devices {device.resource} on {bits.format_list(device.nodes.mask)}: the nodes are {_list(ids)}"
            _refuse(description, detail, device.where)
    if not description.has_numa:
        devices = tuple(replace(device, nodes=NodeMask()) for device in devices)
    return place_devices(devices)


def _refuse(description: Description, detail: str, where: str = "") -> NoReturn:
    raise ConfigError(where or description.file or f"machine {description.name}", detail)


# ----------------------------------------------------------------------------------------------------


CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"
HUGEPAGES_DIR = "sys/kernel/mm/hugepages"

_CORE_CACHES = (("0", "1", "Data", "32K"), ("1", "1", "Instruction", "32K"), ("2", "2", "Unified", "1024K"))
"""(index, level, type, size) of the caches each core has for itself."""

Files = dict[str, str]


def write_tree(layout: Layout, model: str, destination: str) -> None:
    """Write the files below a directory that has no `sys` yet; it is made when missing.

    Raises:
        HostError: something cannot be written; names it.
    """
    if os.path.lexists(os.path.join(destination, "sys")):
        raise HostError(
            os.path.join(destination, "sys"), "is there already; name an empty directory for the machine"
        )
    files, links = machine_files(layout, model)
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


def machine_files(layout: Layout, model: str) -> tuple[Files, Files]:
    """Files by path and symbolic links by path, all relative to the root."""
    files = _cpu_lists(layout) | _proc(layout, model)
    links: Files = {}
    sockets = _shared(layout, ((core.socket, core) for core in layout.cores))
    caches = _shared(layout, ((core.cache, core) for core in layout.cores))
    for core in layout.cores:
        threads = bits.from_ids(core.cpus) & layout.online
        for cpu in core.cpus:
            where = f"{CPU_DIR}/cpu{cpu}"
            is_online = bool(layout.online >> cpu & 1)
            if cpu:  # the boot CPU of most machines cannot go offline and has no switch
                files[f"{where}/online"] = str(int(is_online))
            elif not is_online:
                files[f"{where}/online"] = "0"
            if is_online:
                files |= _topology_files(where, core, threads, sockets[core.socket])
                files |= _cache_files(where, layout, cpu, core, threads, caches[core.cache])
    if layout.has_numa:
        files |= _node_lists(layout)
        for node in layout.nodes:
            files |= _node_files(node, layout.online)
            links |= _node_links(node, layout.online)
    more = device_files(layout.devices, {node.id: node.cpus & layout.online for node in layout.nodes})
    return files | more[0], links | more[1]


def _cpu_lists(layout: Layout) -> Files:
    return {
        f"{CPU_DIR}/{name}": bits.format_list(mask)
        for name, mask in {
            "online": layout.online,
            "present": layout.present,
            "possible": layout.present,
            "offline": layout.present & ~layout.online,
            "isolated": layout.isolated,
            **({"nohz_full": layout.tickless} if layout.tickless else {}),
        }.items()
    } | {f"{CPU_DIR}/kernel_max": "8191"}


def _topology_files(where: str, core: Core, threads: int, package: int) -> Files:
    files = {
        f"{where}/topology/core_id": str(core.number),
        f"{where}/topology/physical_package_id": str(core.socket),
        f"{where}/topology/die_id": "0",  # a description knows no dies, so a socket is one
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


def _cache_files(where: str, layout: Layout, cpu: int, core: Core, threads: int, group: int) -> Files:
    """The caches of a CPU; ids are unique among caches of one level and type, as the kernel's are."""
    files: Files = {}
    for index, level, kind, size in _CORE_CACHES:
        files |= _cache(f"{where}/cache/index{index}", level, kind, size, min(core.cpus), threads)
    if layout.with_l3 >> cpu & 1:
        shared = group & layout.with_l3
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


def _node_lists(layout: Layout) -> Files:
    ids = bits.from_ids(node.id for node in layout.nodes)
    with_cpus = bits.from_ids(node.id for node in layout.nodes if node.cpus & layout.online)
    with_memory = bits.from_ids(node.id for node in layout.nodes if node.memory_kb)
    lists = {
        "online": ids,
        "possible": ids,
        "has_cpu": with_cpus,
        "has_memory": with_memory,
        "has_normal_memory": with_memory,
    }
    return {f"{NODE_DIR}/{name}": bits.format_list(mask) for name, mask in lists.items()}


def _node_files(node: Node, online: int) -> Files:
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


def _node_links(node: Node, online: int) -> Files:
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


def _proc(layout: Layout, model: str) -> Files:
    total_kb = sum(node.memory_kb for node in layout.nodes)
    memory = {"MemTotal": total_kb, "MemFree": total_kb, "MemAvailable": total_kb}
    pages: dict[int, int] = {}
    for node in layout.nodes:
        for size_kb, number in node.hugepages:
            pages[size_kb] = pages.get(size_kb, 0) + number
    files = {
        "proc/meminfo": "\n".join(f"{key + ':':<15}{kb:>9} kB" for key, kb in memory.items()),
        "proc/cpuinfo": "\n\n".join(_cpuinfo(layout, model)) + "\n",
    }
    return files | _pool_files(HUGEPAGES_DIR, pages)


def _cpuinfo(layout: Layout, model: str) -> list[str]:
    place = {cpu: core for core in layout.cores for cpu in core.cpus}
    return [
        f"processor\t: {cpu}\nmodel name\t: {model}\nphysical id\t: {place[cpu].socket}\ncore id\t\t: {place[cpu].number}"
        for cpu in bits.iterate(layout.online)
    ]


def _shared(layout: Layout, members: Iterable[tuple[int, Core]]) -> dict[int, int]:
    """Online CPUs by what they share."""
    masks: dict[int, int] = {}
    for key, core in members:
        masks[key] = masks.get(key, 0) | bits.from_ids(core.cpus) & layout.online
    return masks


def _bit_map(mask: int) -> str:
    """The kernel's form: groups of 32 bits, highest first."""
    groups: list[str] = []
    while mask or not groups:
        groups.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
    return ",".join(reversed(groups))
