"""Discovery: from a sysfs and proc tree to the facts of the machine as JSON, and to the frozen `Topology`.

The facts are the content of the kernel's files. CPU sets are kernel lists of online CPUs, groups are ordered by their
lowest CPU, and null or an absent key means "not recorded", never zero. The facts repair nothing; `discover` does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.host.sysfs_parts import (
    CPU_DIR,
    HUGEPAGES_DIR,
    NODE_DIR,
    CPULists,
    NodeReading,
    Sockets,
    cache_ids,
    groups_by_members,
    read_cores,
    read_cpus,
    read_hugepages,
    read_l3,
    read_memory_kb,
    read_net,
    read_nodes,
    read_pci,
    read_queues,
    read_sockets,
    topology_ids,
)
from nri_plugin.model import bits
from nri_plugin.model.sets import NO_CPUS, CoreID, CPUSet, NUMANodeID, SocketID, UncoreCacheID
from nri_plugin.model.topology import NUMANode, SharedQueue, Topology

Object = dict[str, Any]

_CACHE_KINDS = {"Data": "d", "Instruction": "i", "Unified": ""}
_CLUSTER = ("cluster_cpus_list", "cluster_cpus")


FACTS_OF_SOME = (
    "offline_file",
    "dies",
    "dies_per_package",
    "clusters",
    "core_types",
    "cpu_capacity",
    "l3_per_node",
    "nodes_per_package",
    "distance_values",
    "distances_symmetric",
    "distances_valid",
)
"""Facts that some kinds of machine do not have: they come last, or are absent. Others are null if not recorded."""


def read_facts(files: KernelFiles) -> Object:
    """All facts of the machine with these files: the JSON object of `nri-pin topology -o json`.

    Raises:
        HostError: a file cannot be read or does not have its format.
    """
    cpus = read_cpus(files)
    nodes = read_nodes(files)
    sockets = read_sockets(files, cpus.online)
    socket_lists = _lists(mask for _, mask in sockets.groups)
    caches, llc = _read_caches(files, cpus.online)
    found = {
        **_cpu_facts(files, cpus),
        "sockets": socket_lists,
        "sockets_from": (
            "physical_package_id"
            if sockets.has_ids
            else "core_siblings/package_cpus (physical_package_id absent or -1)"
        ),
        "packages": socket_lists,
        "package_ids": _listed(sockets.kernel_ids),
        "num_sockets": len(socket_lists),
        **_die_facts(files, cpus.online),
        "caches": caches,
        "llc": llc,
        "num_l3": len(caches["L3"]["groups"]) if "L3" in caches else 0,
        **_node_facts(files, nodes, cpus.online),
        **_shape_facts(nodes, cpus.online, sockets.kernel_ids.values(), caches),
        **_distance_facts(nodes),
        "hugepages_total": _pools(read_hugepages(files, HUGEPAGES_DIR)),
        **_device_facts(files, cpus.online),
    }
    some = {name: found.pop(name, None) for name in FACTS_OF_SOME}
    return found | {name: value for name, value in some.items() if value is not None}


def _cpu_facts(files: KernelFiles, cpus: CPULists) -> Object:
    cores = read_cores(files, cpus.online)
    core_types = _core_types(files, cpus.online)
    capacity = _by_number(files, cpus.online, "cpu_capacity")
    return {
        "cpus_online": bits.format_list(cpus.online),
        "cpus_present": _text(cpus.present),
        "cpus_possible": _text(cpus.possible),
        "cpus_offline": bits.format_list(cpus.offline),
        "cpus_isolated": _text(cpus.isolated),
        "cpus_nohz_full": _text(cpus.nohz_full),
        "offline_file": _text(cpus.offline_file) if cpus.offline_file not in (None, cpus.offline) else None,
        "num_cpus_online": cpus.online.bit_count(),
        "cores": _lists(cores),
        "num_cores": len(cores),
        "smt_widths": _widths(cores),
        "smt_active": files.text(f"{CPU_DIR}/smt/active"),
        "smt_control": files.text(f"{CPU_DIR}/smt/control"),
        "core_types": core_types or None,
        "cpu_capacity": capacity or None,
        "hybrid": len(core_types) > 1 or len(capacity) > 1,
        "clusters": _clusters(files, cpus.online),
    }


def _core_types(files: KernelFiles, online: int) -> dict[str, str]:
    """CPUs of each kind of core, by the kernel's name of the kind on hybrid x86."""
    kinds = sorted(name for name in files.names("sys/devices") or () if name.startswith("cpu_"))
    masks = {kind: files.id_list(f"sys/devices/{kind}/cpus") for kind in kinds}
    return _listed({kind: mask & online for kind, mask in masks.items() if mask is not None})


def _by_number(files: KernelFiles, online: int, name: str) -> dict[str, str]:
    masks: dict[int, int] = {}
    for cpu in bits.iterate(online):
        number = files.number(f"{CPU_DIR}/cpu{cpu}/{name}")
        if number is not None:
            masks[number] = masks.get(number, 0) | 1 << cpu
    return _listed(masks)


def _clusters(files: KernelFiles, online: int) -> list[str] | None:
    sets = [(cpu, topology_ids(files, cpu, _CLUSTER)) for cpu in bits.iterate(online)]
    known = [(cpu, mask) for cpu, mask in sets if mask is not None]
    return _lists(groups_by_members(known)) if known else None


def _die_facts(files: KernelFiles, online: int) -> Object:
    """Dies by `package/die`. A kernel that does not know them reports -1."""
    masks: dict[tuple[int, int], int] = {}
    for cpu in bits.iterate(online):
        die = files.number(f"{CPU_DIR}/cpu{cpu}/topology/die_id")
        package = files.number(f"{CPU_DIR}/cpu{cpu}/topology/physical_package_id")
        if die is not None and die >= 0:
            key = (-1 if package is None else package, die)
            masks[key] = masks.get(key, 0) | 1 << cpu
    if not masks:
        return {"num_dies": None}
    packages = [package for package, _ in masks]
    return {
        "num_dies": len(masks),
        "dies": _listed({f"{package}/{die}": mask for (package, die), mask in sorted(masks.items())}),
        "dies_per_package": sorted({packages.count(package) for package in packages}),
    }


def _read_caches(files: KernelFiles, online: int) -> tuple[Object, list[dict[str, str]]]:
    """All cache levels, and the last level of each CPU (instruction caches do not count)."""
    sets: dict[str, dict[int, int]] = {}
    sizes: dict[str, set[str]] = {}
    last: dict[int, str] = {}
    for cpu in bits.iterate(online):
        for index in files.numbered(f"{CPU_DIR}/cpu{cpu}/cache", "index"):
            where = f"{CPU_DIR}/cpu{cpu}/cache/index{index}"
            name = _cache_name(files, where)
            mask = cache_ids(files, where)
            if name is None or mask is None:
                continue
            sets.setdefault(name, {})[cpu] = mask & online
            sizes.setdefault(name, set()).add(files.text(f"{where}/size") or "?")
            # The digit of the name is the level.
            if not name.endswith("i"):
                last[cpu] = max(last.get(cpu, ""), name, key=lambda cache: cache[1:2])
    caches = {name: _cache_level(sets[name], sizes[name]) for name in sorted(sets)}
    groups = {(name, sets[name][cpu]) for cpu, name in last.items()}
    ordered = sorted(groups, key=lambda group: bits.lowest(group[1]))
    return caches, [{"cpus": bits.format_list(mask), "level": name} for name, mask in ordered]


def _cache_name(files: KernelFiles, where: str) -> str | None:
    level = files.text(f"{where}/level")
    kind = _CACHE_KINDS.get(files.text(f"{where}/type") or "")
    return None if not level or kind is None else f"L{level}{kind}"


def _cache_level(sets: Mapping[int, int], sizes: Iterable[str]) -> Object:
    groups = groups_by_members(sets.items())
    return {"cpus_per_group": _widths(groups), "groups": _lists(groups), "sizes": sorted(sizes)}


def _node_facts(files: KernelFiles, nodes: Sequence[NodeReading], online: int) -> Object:
    sizes = [node.mem_total_kb for node in nodes]
    return {
        "nodes": {str(node.id): _node(node, online) | _memory_facts(files, node.id) for node in nodes},
        "nodes_online": _ids(nodes),
        "nodes_possible": files.text(f"{NODE_DIR}/possible"),
        "num_nodes": len(nodes),
        "cpuless_nodes": _ids(node for node in nodes if not node.cpus & online),
        "memoryless_nodes": _ids(node for node in nodes if node.mem_total_kb == 0),
        "memory_known": bool(nodes) and None not in sizes,
    }


def _node(node: NodeReading, online: int) -> Object:
    return {
        "cpus": bits.format_list(node.cpus & online),
        "cpus_raw": bits.format_list(node.cpus),
        "distance": None if node.distance is None else list(node.distance),
        "hugepages_kb_nr": _pools(node.hugepages),
        "mem_free_kb": node.mem_free_kb,
        "mem_total_kb": node.mem_total_kb,
    }


def _memory_facts(files: KernelFiles, node: int) -> Object:
    """Memory-side caches and the nearest initiators of memory, on machines whose firmware reports them."""
    where = f"{NODE_DIR}/node{node}"
    caches = {
        str(index): files.number(f"{where}/memory_side_cache/index{index}/size")
        for index in files.numbered(f"{where}/memory_side_cache", "index")
    }
    initiators = {
        str(access): sorted(
            name
            for name in files.names(f"{where}/access{access}/initiators") or ()
            if name.startswith("node")
        )
        for access in files.numbered(where, "access")
    }
    facts = {
        "access_initiators": {access: names for access, names in initiators.items() if names},
        "access0_read_bandwidth": files.number(f"{where}/access0/initiators/read_bandwidth"),
        "access0_read_latency": files.number(f"{where}/access0/initiators/read_latency"),
        "memory_side_cache": caches,
    }
    return {name: value for name, value in facts.items() if value not in (None, {})}


def _shape_facts(
    nodes: Sequence[NodeReading], online: int, packages: Iterable[int], caches: Object
) -> Object:
    """The number of nodes with CPUs of one package (by kernel id), and of L3 caches with CPUs of one node."""
    masks = [node.cpus & online for node in nodes if node.cpus & online]
    l3 = [bits.parse_list(group) for group in caches["L3"]["groups"]] if "L3" in caches else []
    if not nodes:
        return {}
    return {
        "nodes_per_package": sorted({sum(bool(mask & package) for mask in masks) for package in packages}),
        "l3_per_node": sorted({sum(bool(mask & group) for group in l3) for mask in masks}) if l3 else None,
    }


def _distance_facts(nodes: Sequence[NodeReading]) -> Object:
    """The distance table and its properties.

    Source: kernel drivers/acpi/numa/srat.c, `slit_valid`: 10 to itself, more to every other node.
    """
    rows = [None if node.distance is None else list(node.distance) for node in nodes]
    full = [row for row in rows if row is not None]
    if not full:
        return {"distances": None}
    if len(full) != len(rows) or any(len(row) != len(rows) for row in full):
        return {"distances": rows, "distances_valid": False}
    pairs = [(i, j) for i in range(len(full)) for j in range(len(full))]
    return {
        "distances": rows,
        "distances_valid": all(full[i][j] == 10 if i == j else full[i][j] > 10 for i, j in pairs),
        "distance_values": sorted({value for row in full for value in row}),
        "distances_symmetric": all(full[i][j] == full[j][i] for i, j in pairs),
    }


def _device_facts(files: KernelFiles, online: int) -> Object:
    pci = read_pci(files, online)
    counts: dict[str, int] = {}
    for device in pci.values():
        if device["numa_node"] is not None:
            counts[str(device["numa_node"])] = counts.get(str(device["numa_node"]), 0) + 1
    return {"pci": pci, "pci_by_node": counts, "num_pci": len(pci), "net": read_net(files)}


def _widths(masks: Iterable[int]) -> list[int]:
    return sorted({mask.bit_count() for mask in masks})


def _lists(masks: Iterable[int]) -> list[str]:
    return [bits.format_list(mask) for mask in sorted(masks, key=bits.lowest)]


def _listed(masks: Mapping[Any, int]) -> dict[str, str]:
    return {str(key): bits.format_list(mask) for key, mask in masks.items()}


def _pools(pools: Iterable[tuple[int, int]]) -> dict[str, int]:
    return {str(size_kb): pages for size_kb, pages in pools}


def _ids(nodes: Iterable[NodeReading]) -> str:
    return bits.format_list(bits.from_ids(node.id for node in nodes))


def _text(mask: int | None) -> str | None:
    return None if mask is None else bits.format_list(mask)


OUTLINE = (
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/online",
    "sys/devices/system/node/has_memory",
)


def discover(root: str = "/") -> Topology:
    """The machine below `root`, with every online CPU in exactly one core, socket, node and cache.

    `place_in_nodes` decides for a CPU that no node or several nodes list. A kernel without NUMA has one node 0 with all
    CPUs and memory.

    Args:
        root: a directory that holds `sys` and `proc`: `/`, a container's `/host`, a fixture.

    Raises:
        HostError: a file cannot be read or does not have its format; names the file.

    Source: kernel Documentation/ABI/stable/sysfs-devices-system-cpu and -node.
    """
    return read_topology(KernelFiles(root))


def read_topology(files: KernelFiles) -> Topology:
    """The machine with these files; see `discover`."""
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
        # A second task on a nohz_full CPU brings its tick back, so these CPUs count as isolated.
        isolated=CPUSet(((cpus.isolated or 0) | (cpus.nohz_full or 0)) & (cpus.online | cpus.offline)),
        queues=tuple(SharedQueue(*map(CPUSet, queue)) for queue in read_queues(files, cpus.online)),
    )


def outline(root: str = "/") -> tuple[str | None, ...]:
    """Return values that differ after CPUs or memory nodes came or went. They have no other meaning.

    Raises:
        HostError: a file cannot be read.
    """
    files = KernelFiles(root)
    return tuple(files.text(name) for name in OUTLINE)


def place_in_nodes(readings: Sequence[NodeReading], online: int, sockets: Sequence[int]) -> dict[int, int]:
    """The CPUs of each node, with every online CPU in exactly one.

    A CPU that several nodes list belongs to the lowest of them, as in the kernel's own table. A CPU that no node lists,
    because its node is offline, belongs to the node with the most CPUs of its socket, else to the lowest node.

    Args:
        readings: at least one node.
        online: mask of online CPUs.
        sockets: masks.

    Differs: the kubelet lets the last node that names a CPU win, and leaves a CPU without a node out; here:
        the lowest node wins, and a CPU without a node belongs to the node with the most CPUs of its socket.
        Why: every online CPU has to be in exactly one node, as in the kernel's own table. Option: none.
    """
    placed: dict[int, int] = {}
    left = online
    for node in readings:
        placed[node.id] = node.cpus & left
        left &= ~node.cpus
    homeless = left
    settled = dict(placed)  # CPUs that this loop places do not count for the next socket
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
    # CPUs without an L3 are grouped by socket; see `Topology.caches`.
    rest = [mask & without for _, mask in sockets.groups if mask & without]
    groups = sorted([*l3, *rest], key=bits.lowest)
    return tuple((UncoreCacheID(number), CPUSet(mask)) for number, mask in enumerate(groups))
