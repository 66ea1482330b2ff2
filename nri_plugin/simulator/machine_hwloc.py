"""A machine out of lstopo's XML, as the kernel files that discovery reads.

Every CPU that the file holds an object for is online; one that is only in the complete cpuset is offline,
or was kept from lstopo by a cgroup (`lstopo --disallowed` writes it all the same): XML does not tell which.
What hwloc does not know, such as isolated CPUs, is missing, as on a kernel that does not show it. So are huge pages
in version 3, which only lists the page sizes that a machine supports.

Source: hwloc 2.9, hwloc2.dtd and hwloc.dtd; hwloc 3.0, NEWS and topology-xml.c (objects as in version 2); bitmaps as
    `hwloc_bitmap_snprintf` writes them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nri_plugin import bits
from nri_plugin.simulator.hwloc_distances import latencies
from nri_plugin.simulator.hwloc_xml import Element, NotTopologyError, read_topology_element

CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"
PCI_DIR = "sys/bus/pci/devices"
Files = dict[str, str]

_INFINITE = "0xf...f"
_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]{1,8}\Z")
_NUMBER = re.compile(r"[0-9]{1,19}\Z")
_CACHE = re.compile(r"L([1-9])(i?)Cache\Z")
_CACHE_KINDS = {"0": "Unified", "1": "Data", "2": "Instruction"}
_SOCKETS = ("Package", "Socket")
_FAR_MEMORY = ("HBM", "MCDRAM", "SPM", "NVM", "GPUMemory", "CXL")
"""Subtypes of nodes that no CPU is on, although their CPU set names those that are near."""


@dataclass(slots=True)
class _Found:
    """The objects of a file.

    Attributes:
        groups: CPUs by kind of object, with the number the object has (None where it has none).
        caches: (level, type, size in bytes or None, CPUs).
        nodes: the elements of NUMA nodes, by their number.
        pci: (element, the number of the NUMA node around it, or -1).
    """

    cpus: int = 0
    groups: dict[str, list[tuple[int | None, int]]] = field(default_factory=dict)
    caches: list[tuple[str, str, int | None, int]] = field(default_factory=list)
    nodes: dict[int, Element] = field(default_factory=dict)
    pci: list[tuple[Element, int]] = field(default_factory=list)


def read_hwloc(data: bytes) -> Files:
    """The files of the machine that lstopo saw.

    Raises:
        NotTopologyError: not lstopo's XML, or one that contradicts itself.
    """
    root = read_topology_element(data)
    version = root.attributes.get("version", "1")
    if version.partition(".")[0] not in {"1", "2", "3"}:
        raise NotTopologyError(f"XML version {version[:20]} of lstopo is not yet supported, 1 to 3 are")
    machine = next(root.named("object"), None)
    if machine is None:
        raise NotTopologyError("it holds no object")
    found = _Found()
    _collect(machine, found, -1)
    online = found.cpus & _mask(machine, "cpuset", found.cpus) & _mask(machine, "online_cpuset", found.cpus)
    if not online:
        raise NotTopologyError(
            "it holds no PU, lstopo's word for a cpu; write it with 'lstopo --of xml FILE'"
        )
    present = online | _mask(machine, "complete_cpuset", 0) | found.cpus
    files = _lists(online, present) | _cpu_files(found, online) | _kind_files(root, online)
    files |= _node_files(found, online, latencies(root, sorted(found.nodes))) | _pci_files(found, online)
    if not found.nodes and (memory := _number(machine, "local_memory")):
        files["proc/meminfo"] = f"MemTotal: {memory >> 10} kB"
    return files


def bitmap(text: str) -> int:
    """The mask of hwloc's text: words of 32 bits in hexadecimal, highest first; a missing word is 0.

    Raises:
        NotTopologyError: anything else, or a set without end.
    """
    mask = 0
    for word in text.split(","):
        if word == _INFINITE or (word and _WORD.match(word) is None):
            raise NotTopologyError(f"a cpuset is {text[:60]!r}, expected words such as 0x000000ff")
        mask = mask << 32 | int(word or "0", 16)
    if mask.bit_length() > bits.MAX_ID + 1:
        raise NotTopologyError(f"a cpuset has members above {bits.MAX_ID}")
    return mask


def _collect(element: Element, found: _Found, node: int) -> None:
    kind = element.attributes.get("type", "")
    mask = _mask(element, "cpuset", 0)
    if kind == "NUMANode":
        node = _number(element, "os_index") or 0
        if node > bits.MAX_ID or node in found.nodes:
            raise NotTopologyError(f"NUMA node {node} is there twice, or above {bits.MAX_ID}")
        found.nodes[node] = element
    elif kind == "PU":
        number = _number(element, "os_index")
        if number is None or number > bits.MAX_ID:
            raise NotTopologyError("a PU has no os_index that a cpu can have")
        found.cpus |= 1 << number
    elif kind == "PCIDev":
        found.pci.append((element, node))
    elif cache := _cache(element, kind):
        found.caches.append((*cache, _number(element, "cache_size"), mask))
    else:
        name = "Package" if kind in _SOCKETS else kind
        found.groups.setdefault(name, []).append((_number(element, "os_index"), mask))
    # memory stands beside what it is local to: in version 2 as a child without CPUs below it
    inside = [_number(child, "os_index") for child in element.named("object") if _is(child, "NUMANode")]
    for child in element.named("object"):
        _collect(child, found, inside[0] if len(inside) == 1 and inside[0] is not None else node)


def _is(element: Element, kind: str) -> bool:
    return element.attributes.get("type") == kind


def _cache(element: Element, kind: str) -> tuple[str, str] | None:
    """Level and type, in the kernel's words."""
    if match := _CACHE.match(kind):
        level = match[1]
    elif kind == "Cache":
        level = element.attributes.get("depth", "")
    else:
        return None
    word = _CACHE_KINDS.get(element.attributes.get("cache_type", "0"))
    return None if word is None else (level, word)


def _lists(online: int, present: int) -> Files:
    masks = {"online": online, "present": present, "possible": present, "offline": present & ~online}
    return {f"{CPU_DIR}/{name}": bits.format_list(mask) for name, mask in masks.items()}


def _cpu_files(found: _Found, online: int) -> Files:
    files: Files = {}
    for name, what in (("Package", "package_cpus_list"), ("Core", "core_cpus_list")):
        for _, mask in found.groups.get(name, ()):
            members = bits.format_list(mask & online)
            files |= {f"{_topology(cpu)}/{what}": members for cpu in bits.iterate(mask & online)}
    for name, what in (("Package", "physical_package_id"), ("Core", "core_id"), ("Die", "die_id")):
        numbered = [(number, mask) for number, mask in found.groups.get(name, ()) if number is not None]
        for number, mask in numbered:
            files |= {f"{_topology(cpu)}/{what}": str(number) for cpu in bits.iterate(mask & online)}
    for cpu in bits.iterate(online):
        files.setdefault(f"{_topology(cpu)}/core_cpus_list", str(cpu))
    return files | _cache_files(found, online)


def _topology(cpu: int) -> str:
    return f"{CPU_DIR}/cpu{cpu}/topology"


def _cache_files(found: _Found, online: int) -> Files:
    files: Files = {}
    counts: dict[int, int] = {}
    for level, kind, size, mask in found.caches:
        for cpu in bits.iterate(mask & online):
            index = counts.get(cpu, 0)
            counts[cpu] = index + 1
            where = f"{CPU_DIR}/cpu{cpu}/cache/index{index}"
            files |= {
                f"{where}/level": level,
                f"{where}/type": kind,
                f"{where}/shared_cpu_list": bits.format_list(mask & online),
            }
            if size:
                files[f"{where}/size"] = f"{size >> 10}K"
    return files


def _kind_files(root: Element, online: int) -> Files:
    """Kinds of cores on hybrid machines."""
    files: Files = {}
    for kind in root.named("cpukind"):
        mask = _mask(kind, "cpuset", 0) & online
        infos = {info.attributes.get("name"): info.attributes.get("value", "") for info in kind.named("info")}
        name = {"IntelAtom": "cpu_atom", "IntelCore": "cpu_core"}.get(infos.get("CoreType", ""))
        if name:
            files[f"sys/devices/{name}/cpus"] = bits.format_list(mask)
        if _NUMBER.match(capacity := infos.get("LinuxCapacity", "")):
            files |= {f"{CPU_DIR}/cpu{cpu}/cpu_capacity": capacity for cpu in bits.iterate(mask)}
    return files


def _node_files(found: _Found, online: int, distances: Mapping[int, str]) -> Files:
    if not found.nodes:
        return {}
    files = {f"{NODE_DIR}/online": bits.format_list(bits.from_ids(found.nodes))}
    cpus = _cpus_by_node(found.nodes, online)
    # a node without memory has no size in the file, and neither have those of a machine whose sizes nobody knows
    is_known = any(_number(element, "local_memory") for element in found.nodes.values())
    for node, element in found.nodes.items():
        where = f"{NODE_DIR}/node{node}"
        files[f"{where}/cpulist"] = bits.format_list(cpus[node])
        if is_known:
            memory = _number(element, "local_memory") or 0
            files[f"{where}/meminfo"] = f"Node {node} MemTotal: {memory >> 10} kB"
        if node in distances:
            files[f"{where}/distance"] = distances[node]
        for size, count in _huge_pages(element):
            files[f"{where}/hugepages/hugepages-{size >> 10}kB/nr_hugepages"] = str(count)
    return files


def _cpus_by_node(nodes: Mapping[int, Element], online: int) -> dict[int, int]:
    """Each CPU goes to one node: the narrowest that names it, ordinary memory first, the lowest number last.

    hwloc gives a node without CPUs the set of those that are near it, which others have, too.
    """

    def rank(node: int) -> tuple[bool, int, int]:
        subtype = nodes[node].attributes.get("subtype", "")
        return (subtype in _FAR_MEMORY, _mask(nodes[node], "cpuset", 0).bit_count(), node)

    placed: dict[int, int] = {}
    left = online
    for node in sorted(nodes, key=rank):
        placed[node] = _mask(nodes[node], "cpuset", 0) & left
        left &= ~placed[node]
    return placed


def _huge_pages(element: Element) -> Iterable[tuple[int, int]]:
    """All page sizes but the smallest, which is the ordinary one."""
    pools = [(_number(page, "size") or 0, _number(page, "count") or 0) for page in element.named("page_type")]
    return sorted(pool for pool in pools if pool[0])[1:]


def _pci_files(found: _Found, online: int) -> Files:
    files: Files = {}
    for element, node in found.pci:
        address = element.attributes.get("pci_busid", "")
        if re.fullmatch(r"[0-9a-fA-F:.]{5,20}", address):
            mask = _mask(found.nodes[node], "cpuset", online) if node in found.nodes else online
            files |= {
                f"{PCI_DIR}/{address}/class": "0x" + element.attributes.get("pci_type", "")[:4],
                f"{PCI_DIR}/{address}/numa_node": str(node),
                f"{PCI_DIR}/{address}/local_cpulist": bits.format_list(mask & online),
            }
    return files


def _mask(element: Element, name: str, default: int) -> int:
    text = element.attributes.get(name)
    return default if text is None else bitmap(text)


def _number(element: Element, name: str) -> int | None:
    text = element.attributes.get(name, "")
    return int(text) if _NUMBER.match(text) else None
