"""From a described machine to the words QEMU is given, so that a kernel sees the machine of a text.

The language is the simulator's. What QEMU cannot be told is refused with the reason, or fitted where that changes
no shape: QEMU numbers the threads of a core next to each other, and memory above `MOST_MEMORY_MIB` becomes the same
on every node that has any.

    sockets                      sockets
    NUMA nodes of a socket       dies, unless a cache spans several of them; a node over two sockets is no level
    L3 caches of a node          modules that share their L3
    an L3 over several nodes     dies
    devices on a NUMA node       behind a PCI host bridge of that node
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError, HostError
from nri_plugin.simulator.machine import machine
from nri_plugin.simulator.machine.description import DescribedCore, DescribedNode, Description

from .shell import WrongUse

CPU_MODEL = "SapphireRapids,check=off"
"""Shows caches, dies and threads under emulation; models of another vendor show the last-level cache as one."""

MOST_CPUS = 64
"""Beyond that an emulated boot takes minutes."""

MOST_MEMORY_MIB = 4096
"""A larger machine is fitted into half of it: an emulated kernel that touches more takes long to boot."""

_FITTED_TOTAL_MIB, _LEAST_NODE_MIB = 2048, 128
_MIB_KB = 1024
_PU_INDEXES = re.compile(r"(\bpu:[0-9]+)\([^)]*\)", re.IGNORECASE)
_MEMORY = re.compile(r"memory=\S+?(?=[ )])\s*")


@dataclass(frozen=True, slots=True)
class GuestMachine:
    """A machine as a guest gets it.

    Attributes:
        text: the description it was made from, fitted.
        machine: QEMU's board with its properties.
        cpu: QEMU's CPU model.
        arguments: further words for QEMU.
        kernel: words for the kernel's command line.
        offline: CPUs to be switched off before anything starts, as a list.
        notes: what was fitted, a sentence each.
    """

    text: str
    machine: str
    cpu: str
    arguments: tuple[str, ...]
    kernel: tuple[str, ...] = ()
    offline: str = ""
    notes: tuple[str, ...] = ()


def guest_machine(text: str, name: str) -> GuestMachine:
    """The machine that a description asks for.

    Raises:
        WrongUse: the description is wrong, or QEMU has no such machine.
    """
    try:
        fitted, notes = _fitted(text, name)
        layout = machine.parse(fitted, name)
    except (ConfigError, HostError) as error:
        raise WrongUse(str(error)) from error
    if (cpus := layout.present.bit_count()) > MOST_CPUS:
        raise WrongUse(f"{name} has {cpus} CPUs; the lab boots at most {MOST_CPUS}, play it with hack/e2e b")
    smp, cache = _smp(name, layout.cores)
    return GuestMachine(
        text=fitted,
        machine="q35" + (f",smp-cache.0.cache=l3,smp-cache.0.topology={cache}" if cache == "module" else ""),
        cpu=CPU_MODEL + ("" if layout.with_l3 else ",l3-cache=off"),
        arguments=("-smp", smp, *_memory(layout), *_distances(layout.nodes), *_devices(layout)),
        kernel=tuple(_kernel_words(layout)),
        offline=bits.format_list(layout.present & ~layout.online),
        notes=notes,
    )


def _fitted(text: str, name: str) -> tuple[str, tuple[str, ...]]:
    """The text as QEMU can have it: CPUs in the order of the tree, and no more memory than a guest should touch."""
    description = machine.parse(text, name)
    fields = yaml.safe_load(text)
    fields = {"topology": fields} if isinstance(fields, str) else fields
    notes = []
    string = _PU_INDEXES.sub(r"\1", fields["topology"])
    if string != fields["topology"]:
        notes.append("threads of a core are numbered next to each other, as QEMU does")
    mib = [node.memory_kb // _MIB_KB for node in description.nodes]
    if sum(mib) > MOST_MEMORY_MIB:
        if any(not node.cpus for node in description.nodes):
            raise WrongUse(f"{name}: {sum(mib)} MiB of memory are too much; give its CPU-less nodes less")
        each = max(_FITTED_TOTAL_MIB // len(mib), _LEAST_NODE_MIB)
        string = _MEMORY.sub("", string)
        about = fields.setdefault("nodes", {})
        for key, node in list(about.items()):
            node.pop("memory", None)
            about[str(key)] = about.pop(key)
        for node, size in zip(description.nodes, mib, strict=True):
            _one_node(about, node.id)["memory"] = f"{each if size else 0}Mi"
        notes.append(f"every NUMA node has {each} MiB of memory")
    if not notes:
        return text, ()
    title = [text.partition("\n")[0]] if text.startswith("#") else []
    fitted = yaml.safe_dump(fields | {"topology": string}, sort_keys=False, width=4096)
    return "\n".join([*title, fitted]), tuple(notes)


def _one_node(about: dict[str, Any], node: int) -> dict[str, Any]:
    """The entry of one NUMA node, taken out of the entry of several that names it."""
    for key in list(about):
        ids = bits.parse_list(key)
        if ids >> node & 1 and ids & (ids - 1):
            shared = about.pop(key)
            about.update({str(one): dict(shared) for one in bits.iterate(ids)})
    return about.setdefault(str(node), {})


def _smp(name: str, cores: Sequence[DescribedCore]) -> tuple[str, str]:
    """Sockets, dies, modules, cores and threads, and the level that shares an L3."""
    threads = _same(name, "threads in every core", (len(core.cpus) for core in cores))
    sockets = _groups(cores, lambda core: core.socket)
    caches = _groups(cores, lambda core: core.cache)
    in_cache = _same(name, "cores in every L3", map(len, caches.values()))
    in_socket = _same(name, "cores in every socket", map(len, sockets.values()))
    units = {key: {core.node for core in group} for key, group in caches.items()}
    caches_of_socket = in_socket // in_cache
    nests = all(len(nodes) == 1 for nodes in units.values())
    nodes = _groups(cores, lambda core: core.node)
    spans = any(len({core.socket for core in group}) > 1 for group in nodes.values())
    dies = len(nodes) // len(sockets) if nests and not spans else caches_of_socket
    if caches_of_socket % max(dies, 1):
        raise WrongUse(f"{name}: {caches_of_socket} L3 of a socket do not divide into {dies} NUMA nodes")
    modules = caches_of_socket // dies
    counts = f"sockets={len(sockets)},dies={dies},modules={modules},cores={in_cache},threads={threads}"
    return f"{len(cores) * threads},{counts}", "module" if modules > 1 else "die"


def _groups(
    cores: Sequence[DescribedCore], key: Callable[[DescribedCore], int]
) -> Mapping[int, list[DescribedCore]]:
    found: dict[int, list[DescribedCore]] = {}
    for core in cores:
        found.setdefault(key(core), []).append(core)
    return found


def _same(name: str, what: str, numbers: Iterable[int]) -> int:
    found = sorted(set(numbers))
    if len(found) != 1:
        raise WrongUse(f"{name}: QEMU needs the same number of {what}, found {found}")
    return found[0]


def _memory(layout: Description) -> Iterator[str]:
    """Nodes with their CPUs and memory; a kernel without NUMA is one that is told of no nodes."""
    total = sum(node.memory_kb for node in layout.nodes) // _MIB_KB
    yield from ("-m", f"{total}M")
    if not layout.has_numa:
        return
    for number, node in enumerate(layout.nodes):
        if node.id != number:
            raise WrongUse(f"QEMU numbers NUMA nodes from 0 without gaps; there is no node {number}")
        words = [f"node,nodeid={node.id}"]
        words += [f"cpus={part}" for part in bits.format_list(node.cpus).split(",") if part]
        if node.memory_kb:
            size = node.memory_kb // _MIB_KB
            yield from ("-object", f"memory-backend-ram,id=m{node.id},size={size}M")
            words.append(f"memdev=m{node.id}")
        yield from ("-numa", ",".join(words))


def _distances(nodes: Sequence[DescribedNode]) -> Iterator[str]:
    for node in nodes:
        for other, distance in zip(nodes, node.distances or (), strict=False):
            yield from ("-numa", f"dist,src={node.id},dst={other.id},val={distance}")


def _devices(layout: Description) -> Iterator[str]:
    """A host bridge for every NUMA node with devices, a port for every device."""
    buses: dict[int, str] = {}
    for number, device in enumerate(layout.devices):
        nodes = list(bits.iterate(device.nodes.mask))
        if len(nodes) > 1:
            raise WrongUse(f"device {device.id} of {device.resource} is on several nodes; QEMU takes one")
        bus = "pcie.0"
        if nodes and nodes[0] not in buses:
            buses[nodes[0]] = f"bridge{nodes[0]}"
            first = 0x40 + 0x10 * len(buses)
            options = f"id=bridge{nodes[0]},bus_nr={first},numa_node={nodes[0]}"
            yield from ("-device", f"pxb-pcie,{options},bus=pcie.0")
        if nodes:
            bus = buses[nodes[0]]
        yield from ("-device", f"pcie-root-port,id=port{number},bus={bus},chassis={number + 1}")
        yield from ("-device", f"virtio-serial-pci,id=device{number},bus=port{number}")
        yield from ("-device", f"virtserialport,bus=device{number}.0,name=device{number}")


def _kernel_words(layout: Description) -> Iterator[str]:
    """Huge pages by node, and CPUs that are kept free of work or of the tick at boot."""
    sizes = sorted({size for node in layout.nodes for size, _ in node.hugepages})
    for size in sizes:
        pools = [(node.id, dict(node.hugepages).get(size, 0)) for node in layout.nodes]
        given = ",".join(f"{node}:{pages}" for node, pages in pools if pages)
        if given:
            yield f"hugepagesz={size // 1024}M hugepages={given}"
    if layout.isolated:
        yield f"isolcpus={bits.format_list(layout.isolated)}"
    if layout.tickless:
        yield f"nohz_full={bits.format_list(layout.tickless)}"
