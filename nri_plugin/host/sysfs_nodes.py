"""What sysfs says about NUMA nodes: CPUs, memory, huge pages and distances."""

import re
from dataclasses import dataclass

from nri_plugin import bits
from nri_plugin.errors import HostError
from nri_plugin.host.sysfs_files import KernelFiles

NODE_DIR = "sys/devices/system/node"
HUGEPAGES_DIR = "sys/kernel/mm/hugepages"

_COUNT = re.compile(r"[0-9]{1,18}\Z")
_PAGE_POOL = re.compile(r"hugepages-([0-9]{1,12})kB\Z")


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One NUMA node as its files tell it.

    Attributes:
        id: the kernel's node number.
        cpus: mask; may name offline and absent CPUs, and CPUs other nodes name too.
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
        HostError: a file cannot be read or does not hold what it should.
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
