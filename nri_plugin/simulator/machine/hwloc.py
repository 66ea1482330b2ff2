"""XML of lstopo as the kernel files that discovery reads.

A CPU with an object in the file is online. A CPU that is only in the complete cpuset is offline, or the cgroup of lstopo
excluded it (`lstopo --disallowed` writes it nevertheless); the XML does not tell which. Facts that hwloc does not have,
such as isolated CPUs, are missing, as on a kernel that does not show them. Version 3 lists page sizes without counts, so
huge pages are missing there.

The work is bounded by the size of the file, also for a hostile one. The reader does not fetch the DOCTYPE that hwloc
writes, and refuses documents that declare entities or attributes, because hwloc declares none. It reads the distances
of all versions.

Source: hwloc 2.9, hwloc2.dtd and hwloc.dtd; hwloc 3.0, NEWS and topology-xml.c (objects as in version 2); bitmaps as
    `hwloc_bitmap_snprintf` writes them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from nri_plugin.model import bits

MAX_ELEMENTS = 1_000_000
MAX_DEPTH = 200
"""hwloc nests some 20 deep on the largest machines."""


LATENCY = 1 << 2
"""Source: hwloc/distances.h, HWLOC_DISTANCES_KIND_MEANS_LATENCY."""
_INTEGERS = re.compile(r"[0-9]{1,19}(?: [0-9]{1,19})*\Z")
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?\Z")

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
"""Subtypes of nodes without CPUs; their cpuset names the CPUs near them."""


class NotTopologyError(ValueError):
    """The file is not XML of lstopo; says why, and where in the file."""


class _Builder:
    """Builds the tree from the parser's events, within the bounds on its size."""

    def __init__(self) -> None:
        self.tree = TreeBuilder()
        self.open: list[str] = []
        self.count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.open) >= MAX_DEPTH:
            raise NotTopologyError(
                f"it has more than {MAX_ELEMENTS} elements, or they nest deeper than {MAX_DEPTH}"
            )
        self.open.append(tag)
        self.tree.start(tag, attributes)

    def end(self, tag: str) -> None:
        self.open.pop()
        self.tree.end(tag)

    def characters(self, text: str) -> None:
        if self.open[-1] in {"indexes", "u64values"}:
            self.tree.data(text)


def _doctype(_name: str, _system: str | None, _public: str | None, has_internal_subset: int) -> None:
    if has_internal_subset:
        raise NotTopologyError("it declares entities or elements of its own, which lstopo's files never do")


def read_topology_element(data: bytes) -> Element:
    """The document's element `topology`.

    Raises:
        NotTopologyError: no XML, XML of something else, or one that declares entities.
    """
    builder = _Builder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    parser.StartDoctypeDeclHandler = _doctype
    try:
        parser.Parse(data, True)
    except expat.ExpatError as err:
        raise NotTopologyError(f"line {err.lineno}: {expat.ErrorString(err.code)}") from err
    except NotTopologyError:  # from the handlers; it is a ValueError, too
        raise
    except (LookupError, ValueError) as err:
        raise NotTopologyError(f"its first line names an encoding that cannot be read: {err}") from err
    root = builder.tree.close()
    if root.tag != "topology":
        raise NotTopologyError(f"its outermost element is <{root.tag[:40]}>, not <topology>")
    return root


def latencies(root: Element, nodes: Sequence[int]) -> dict[int, str]:
    """The row of each node as its kernel file has it; empty where there is no table of all nodes.

    Args:
        root: the element `topology`.
        nodes: ascending numbers.
    """
    for ids, values in [*_second(root), *_first(root, nodes)]:
        size = len(ids)
        if sorted(ids) == list(nodes) and len(values) == size * size:
            place = {node: position for position, node in enumerate(ids)}
            return {
                one: " ".join(str(values[place[one] * size + place[other]]) for other in nodes)
                for one in nodes
            }
    return {nodes[0]: "10"} if len(nodes) == 1 else {}  # lstopo writes no table of one


def _second(root: Element) -> Iterator[tuple[list[int], list[int]]]:
    """Version 2: a table, indexed by kernel number or by number in the file."""
    for table in root.findall("distances2"):
        kind = table.get("kind", "0")
        if table.get("type") != "NUMANode" or not (kind.isdecimal() and int(kind) & LATENCY):
            continue
        ids = _integers(table, "indexes")
        if table.get("indexing") == "gp":
            numbers = dict(_numa_nodes(root))
            ids = [numbers.get(str(index), -1) for index in ids]
        yield ids, _integers(table, "u64values")


def _first(root: Element, nodes: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Version 1: a table below an object, with factors of a base, in the order of the nodes in the file."""
    order = [number for _, number in _numa_nodes(root) if number in nodes]
    for element in root.iter("object"):
        for table in element.findall("distances"):
            base = table.get("latency_base", "")
            factors = [value.get("value", "") for value in table.findall("latency")]
            if _DECIMAL.match(base) and all(map(_DECIMAL.match, factors)):
                yield order, [round(float(factor) * float(base)) for factor in factors]


def _integers(table: Element, name: str) -> list[int]:
    words = " ".join(" ".join((part.text or "").split()) for part in table.findall(name)).strip()
    return [int(word) for word in words.split()] if _INTEGERS.match(words) else []


def _numa_nodes(root: Element) -> Iterator[tuple[str, int]]:
    """The index in the file and the kernel's number of each NUMA node, in the order of the file."""
    for element in root.iter("object"):
        number = element.get("os_index", "")
        if element.get("type") == "NUMANode" and number.isdecimal():
            yield element.get("gp_index", ""), int(number)


@dataclass(slots=True)
class _Objects:
    """The objects of a file.

    Attributes:
        groups: CPUs by kind of object, with the number of the object (None where it has none).
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
        NotTopologyError: the file is not XML of lstopo, or contradicts itself.
    """
    root = read_topology_element(data)
    version = root.get("version", "1")
    if version.partition(".")[0] not in {"1", "2", "3"}:
        raise NotTopologyError(f"XML version {version[:20]} of lstopo is not yet supported, 1 to 3 are")
    machine = root.find("object")
    if machine is None:
        raise NotTopologyError("it holds no object")
    found = _Objects()
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


def _collect(element: Element, found: _Objects, node: int) -> None:
    kind = element.get("type", "")
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
    # in version 2 a node is a child without CPUs below the object that it is local to
    inside = [
        _number(child, "os_index") for child in element.findall("object") if child.get("type") == "NUMANode"
    ]
    for child in element.findall("object"):
        _collect(child, found, inside[0] if len(inside) == 1 and inside[0] is not None else node)


def _cache(element: Element, kind: str) -> tuple[str, str] | None:
    """Level and type, in the kernel's words."""
    if match := _CACHE.match(kind):
        level = match[1]
    elif kind == "Cache":
        level = element.get("depth", "")
    else:
        return None
    word = _CACHE_KINDS.get(element.get("cache_type", "0"))
    return None if word is None else (level, word)


def _lists(online: int, present: int) -> Files:
    masks = {"online": online, "present": present, "possible": present, "offline": present & ~online}
    return {f"{CPU_DIR}/{name}": bits.format_list(mask) for name, mask in masks.items()}


def _cpu_files(found: _Objects, online: int) -> Files:
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


def _cache_files(found: _Objects, online: int) -> Files:
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
    for kind in root.findall("cpukind"):
        mask = _mask(kind, "cpuset", 0) & online
        infos = {info.get("name"): info.get("value", "") for info in kind.findall("info")}
        name = {"IntelAtom": "cpu_atom", "IntelCore": "cpu_core"}.get(infos.get("CoreType", ""))
        if name:
            files[f"sys/devices/{name}/cpus"] = bits.format_list(mask)
        if _NUMBER.match(capacity := infos.get("LinuxCapacity", "")):
            files |= {f"{CPU_DIR}/cpu{cpu}/cpu_capacity": capacity for cpu in bits.iterate(mask)}
    return files


def _node_files(found: _Objects, online: int, distances: Mapping[int, str]) -> Files:
    if not found.nodes:
        return {}
    files = {f"{NODE_DIR}/online": bits.format_list(bits.from_ids(found.nodes))}
    cpus = _cpus_by_node(found.nodes, online)
    # a node without memory has no size in the file; where no node has a size, hwloc knows none
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
    """The node of each CPU: ordinary memory before far memory, then the narrowest, then the lowest number.

    In hwloc a node without CPUs has the cpuset of the CPUs near it, which is the cpuset of another node, too.
    """

    def rank(node: int) -> tuple[bool, int, int]:
        subtype = nodes[node].get("subtype", "")
        return (subtype in _FAR_MEMORY, _mask(nodes[node], "cpuset", 0).bit_count(), node)

    placed: dict[int, int] = {}
    left = online
    for node in sorted(nodes, key=rank):
        placed[node] = _mask(nodes[node], "cpuset", 0) & left
        left &= ~placed[node]
    return placed


def _huge_pages(element: Element) -> Iterable[tuple[int, int]]:
    """All page sizes but the smallest, which is the base page."""
    pools = [
        (_number(page, "size") or 0, _number(page, "count") or 0) for page in element.findall("page_type")
    ]
    return sorted(pool for pool in pools if pool[0])[1:]


def _pci_files(found: _Objects, online: int) -> Files:
    files: Files = {}
    for element, node in found.pci:
        address = element.get("pci_busid", "")
        if re.fullmatch(r"[0-9a-fA-F:.]{5,20}", address):
            mask = _mask(found.nodes[node], "cpuset", online) if node in found.nodes else online
            files |= {
                f"{PCI_DIR}/{address}/class": "0x" + element.get("pci_type", "")[:4],
                f"{PCI_DIR}/{address}/numa_node": str(node),
                f"{PCI_DIR}/{address}/local_cpulist": bits.format_list(mask & online),
            }
    return files


def _mask(element: Element, name: str, default: int) -> int:
    text = element.get(name)
    return default if text is None else bitmap(text)


def _number(element: Element, name: str) -> int | None:
    text = element.get(name, "")
    return int(text) if _NUMBER.match(text) else None
