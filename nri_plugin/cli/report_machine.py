"""The machine at the end of a simulation as nested boxes: sockets, NUMA nodes, uncore caches, cores, CPUs.

Boxes are HTML, so that they fold to any width; every CPU carries its letter, so that colour says nothing alone.
A node over two sockets, or a cache over two nodes, appears in each with its part.
"""

from collections.abc import Iterable

from nri_plugin import bits
from nri_plugin.cli.palette import ISOLATED, OFFLINE, RESERVED, SHARED
from nri_plugin.cli.picture import memory_text
from nri_plugin.cli.report_devices import devices_elsewhere, devices_of_node
from nri_plugin.cli.report_marks import Marks, Row
from nri_plugin.cli.report_markup import NOTHING, Markup, element, joined

SMALL = 256
"""Up to so many CPUs each one shows its number."""


def machine(simulation: Row, number: int, marks: Marks) -> Markup:
    """The picture with its legend.

    Args:
        simulation: as JSON.
        number: of the simulation in the report, from 0.
        marks: letters and colours.
    """
    drawing = _Drawing(simulation, number, marks)
    described = simulation["machine"]
    size = "cpus" if len(described["online"]) <= SMALL else "cpus many"
    boxes = [drawing.socket(row) for row in described["sockets"]]
    picture = element(
        "div",
        *boxes,
        class_=f"machine {size}",
        role="group",
        aria_label="CPUs of the machine; arrow keys move",
    )
    return joined([picture, *drawing.others(), _legend(described)])


class _Drawing:
    """What all boxes of one picture need to know."""

    def __init__(self, simulation: Row, number: int, marks: Marks) -> None:
        self._machine = simulation["machine"]
        self._devices = simulation["devices"]
        self._marks = marks
        self._owner_by_cpu = {owner["cpu"]: owner for owner in simulation["owners"]}
        self._available = {row["id"]: row for row in simulation["numa_nodes"]}
        self._isolated = frozenset(self._machine["isolated"])
        self._pool = bits.parse_list(simulation["totals"]["shared_pool"])
        self._pool_name = f"p{number}"
        self._caches = [(row["id"], _mask(row)) for row in self._machine["caches"]]
        self._cores = [_mask(row) for row in self._machine["cores"]]
        self._without_l3 = bits.from_ids(self._machine["without_l3"])

    def socket(self, row: Row) -> Markup:
        """A socket around its parts of NUMA nodes."""
        cpus = _mask(row)
        nodes = [
            self._node(node, _mask(node) & cpus) for node in self._machine["numa_nodes"] if _mask(node) & cpus
        ]
        return element(
            "section",
            element("h4", f"Socket {row['id']}"),
            element("div", *nodes, class_="nodes"),
            class_="socket",
        )

    def others(self) -> Iterable[Markup]:
        """NUMA nodes without CPUs, devices that are at none with some, and CPUs that are offline."""
        ids_by_size: dict[str, int] = {}
        for node in self._machine["numa_nodes"]:
            if not node["cpus"]:
                ids_by_size[_size(node)] = ids_by_size.get(_size(node), 0) | 1 << node["id"]
        for size, ids in ids_by_size.items():
            yield element("p", f"NUMA {bits.format_list(ids)}: no CPUs, {size}", class_="aside")
        with_cpus = frozenset(node["id"] for node in self._machine["numa_nodes"] if node["cpus"])
        yield from devices_elsewhere(self._devices, with_cpus, self._marks)
        if self._machine["offline"]:
            yield element("p", f"Offline: CPU {_kernel_list(self._machine['offline'])}", class_="aside")

    def _node(self, node: Row, cpus: int) -> Markup:
        is_part = cpus != _mask(node)
        title = element("b", f"NUMA {node['id']}" + " (part)" * is_part)
        caches = [self._cache(number, mask & cpus) for number, mask in self._caches if mask & cpus]
        return element(
            "section",
            element("h5", title, " ", element("small", self._facts(node))),
            element("div", *caches, class_="caches"),
            *devices_of_node(self._devices, node["id"], self._marks),
            class_="node",
        )

    def _facts(self, node: Row) -> str:
        broken = self._available.get(node["id"])
        left = f"{broken['available']} of {broken['allocatable']} available" if broken else ""
        return ", ".join(word for word in (_size(node, ""), left) if word)

    def _cache(self, number: int, cpus: int) -> Markup:
        cores = [
            element("span", *map(self._cpu, bits.iterate(core & cpus)), class_="core")
            for core in self._cores
            if core & cpus
        ]
        name = "no L3" if cpus & self._without_l3 else f"L3 {number}"
        label = element("span", name, class_="name") if self._machine["caches_known"] else NOTHING
        return element("div", label, element("div", *cores, class_="cores"), class_="cache")

    def _cpu(self, cpu: int) -> Markup:
        owner = self._owner_by_cpu.get(cpu, {"kind": "shared", "container": ""})
        kind, key = owner["kind"], owner["container"]
        is_isolated = cpu in self._isolated and kind != "isolated"
        words = ["cpu", kind, self._marks.colour(key), *["isolated"] * is_isolated]
        joins = str(self._marks.number(key)) if key else self._pool_name if self._pool >> cpu & 1 else None
        return element(
            "span",
            element("b", self._letter(cpu, kind, key)),
            element("i", cpu),
            class_=" ".join(filter(None, words)),
            data_cpu=cpu,
            data_c=joins,
            aria_label=f"CPU {cpu}: {key or kind}",
            role="img",
        )

    def _letter(self, cpu: int, kind: str, key: str) -> str:
        if key:
            return self._marks.letter(key)
        if kind == "reserved":
            return RESERVED.letter
        if kind == "offline":
            return OFFLINE.letter
        return ISOLATED.letter if cpu in self._isolated else SHARED.letter


def _legend(machine: Row) -> Markup:
    kinds = [
        ("exclusive", "A", "has one container to itself"),
        ("shared", SHARED.letter, "shared pool"),
        ("reserved", RESERVED.letter, "reserved for the system"),
    ]
    if machine["isolated"]:
        kinds.append(("isolated", ISOLATED.letter, "isolated by the kernel"))
    keys = [
        element("li", element("span", element("b", letter), class_=f"cpu {kind}"), " ", words)
        for kind, letter, words in kinds
    ]
    return element("ul", *keys, class_="legend")


def _size(node: Row, unknown: str = "memory unknown") -> str:
    size = node["memory_bytes"]
    return unknown if size is None else memory_text(size) if size else "no memory"


def _mask(row: Row) -> int:
    return bits.from_ids(row["cpus"])


def _kernel_list(cpus: Iterable[int]) -> str:
    return bits.format_list(bits.from_ids(cpus))
