"""A machine out of a dump: what `nri-pin topology -o json` printed on the node itself.

The dump holds the kernel's facts before repair, so that the machine is made of them as discovery makes it
of the files.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from nri_plugin import bits
from nri_plugin.simulator.recorded_files import Entries

CPU_DIR = "sys/devices/system/cpu"
NODE_DIR = "sys/devices/system/node"

Dump = Mapping[str, Any]

MARK = "cpus_online"
"""The key that every dump has and nothing else does."""


def dumped_files(dump: Dump) -> Entries:
    """The kernel files that discovery would have read to say this.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: a key is missing or holds something else.
    """
    return {name: text for name, text in _files(dump) if text is not None}


def _files(dump: Dump) -> Iterator[tuple[str, str | None]]:
    for name in ("online", "present", "possible", "isolated", "nohz_full"):
        yield f"{CPU_DIR}/{name}", _optional(dump.get(f"cpus_{name}"))
    if dump.get("cpus_present") is None:
        for cpu in bits.iterate(bits.parse_list(dump["cpus_offline"])):
            yield f"{CPU_DIR}/cpu{cpu}/online", "0"
    yield from _topology(dump)
    for number, group in enumerate(dump["caches"].get("L3", {}).get("groups", ())):
        for cpu in _cpus(group):
            where = f"{CPU_DIR}/cpu{cpu}/cache/index3"
            yield from ((f"{where}/level", "3"), (f"{where}/type", "Unified"), (f"{where}/id", str(number)))
            yield f"{where}/shared_cpu_list", group
    yield from _nodes(dump)


def _topology(dump: Dump) -> Iterator[tuple[str, str | None]]:
    for cpu in _cpus(dump["cpus_online"]):
        yield f"{CPU_DIR}/cpu{cpu}/topology/core_cpus_list", str(cpu)
    for group in dump["cores"]:
        for cpu in _cpus(group):
            yield f"{CPU_DIR}/cpu{cpu}/topology/core_cpus_list", group
    for group in dump["sockets"]:
        for cpu in _cpus(group):
            yield f"{CPU_DIR}/cpu{cpu}/topology/package_cpus_list", group
    for number, group in dump["package_ids"].items():
        for cpu in _cpus(group):
            yield f"{CPU_DIR}/cpu{cpu}/topology/physical_package_id", str(int(number))


def _nodes(dump: Dump) -> Iterator[tuple[str, str | None]]:
    if not dump["nodes"]:
        memory = dump.get("mem_total_kb")
        yield "proc/meminfo", None if memory is None else f"MemTotal: {int(memory)} kB"
        yield from _pools("sys/kernel/mm/hugepages", dump["hugepages_total"])
        return
    yield f"{NODE_DIR}/online", text_of(dump["nodes_online"])
    for number, node in dump["nodes"].items():
        where = f"{NODE_DIR}/node{int(number)}"
        yield f"{where}/cpulist", text_of(node["cpus_raw"])
        if node["distance"] is not None:
            yield f"{where}/distance", " ".join(str(int(value)) for value in node["distance"])
        if node["mem_total_kb"] is not None:
            yield f"{where}/meminfo", f"Node {number} MemTotal: {int(node['mem_total_kb'])} kB"
        yield from _pools(f"{where}/hugepages", node["hugepages_kb_nr"])


def _pools(where: str, pools: Mapping[str, int]) -> Iterator[tuple[str, str | None]]:
    for size_kb, pages in pools.items():
        yield f"{where}/hugepages-{int(size_kb)}kB/nr_hugepages", str(int(pages))


def _cpus(group: object) -> Iterator[int]:
    return bits.iterate(bits.parse_list(text_of(group)))


def _optional(value: object) -> str | None:
    return None if value is None else text_of(value)


def text_of(value: object) -> str:
    """The value, which must be a text.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected a list such as '0-3', found {value!r}")
    return value
