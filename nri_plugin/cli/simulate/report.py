"""A simulation as one HTML file: opened from a disk, mailed, printed; it loads nothing from anywhere.

Everything is in the page before any script runs. The script adds what a mouse and keys do, and may be refused.
The policy in the page lets only our own style and script through, by their hashes: markup that got in through a
name would neither load nor run anything, and `report_markup` lets none in.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

from nri_plugin import __version__
from nri_plugin.cli.simulate import report_tables as tables
from nri_plugin.cli.simulate.report_marks import (
    NOTHING,
    Marks,
    Markup,
    Row,
    element,
    escape,
    joined,
    letters,
    names,
    raw_element,
    script_json,
)
from nri_plugin.cli.simulate.report_plots import plots
from nri_plugin.cli.topology.palette import ISOLATED, OFFLINE, RESERVED, SHARED
from nri_plugin.cli.topology.picture import memory_text
from nri_plugin.model import bits

# ----------------------------------------------------------------------------------------------------
# Devices in the picture of a machine: a chip for each, with the letter and colour of who has it.


FREE = "·"


def devices_of_node(devices: Sequence[Row], node: int, marks: Marks) -> list[Markup]:
    """A line for each resource of which the NUMA node has devices."""
    return _lines((device for device in devices if node in device["numa_nodes"]), marks)


def devices_elsewhere(devices: Sequence[Row], shown: frozenset[int], marks: Marks) -> list[Markup]:
    """Lines of devices that are at none of the NUMA nodes that have a box."""
    rest = [device for device in devices if shown.isdisjoint(device["numa_nodes"])]
    return (
        [element("div", "At no NUMA node with CPUs: ", *_lines(rest, marks), class_="aside")] if rest else []
    )


def _lines(devices: Iterable[Row], marks: Marks) -> list[Markup]:
    by_resource: dict[str, list[Row]] = {}
    for device in devices:
        by_resource.setdefault(device["resource"], []).append(device)
    return [
        element("p", element("span", resource), *(_chip(device, marks) for device in group), class_="devices")
        for resource, group in by_resource.items()
    ]


def _chip(device: Row, marks: Marks) -> Markup:
    """Joined to its container; one that has no CPUs of its own has no letter, and a ring instead."""
    key = device["container"]
    look = "free" if not key else marks.colour(key) or "sharing"
    words = f"{device['resource']} {device['id']}: {key or 'free'}"
    letter = (marks.letter(key) or "o") if key else FREE
    return element(
        "b",
        letter,
        class_=f"device {look}",
        data_c=marks.number(key) if key else None,
        title=words,
        role="img",
        aria_label=words,
    )


# ----------------------------------------------------------------------------------------------------
# The machine at the end of a simulation as nested boxes: sockets, NUMA nodes, uncore caches, cores, CPUs.
#
# Boxes are HTML, so that they fold to any width; every CPU carries its letter, so that colour says nothing alone.
# A node over two sockets, or a cache over two nodes, appears in each with its part.


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


# ----------------------------------------------------------------------------------------------------


UNNAMED = ("", "machine")
"""Names of a machine that the scenario itself describes."""
FORMAT = 1
"""Of the JSON that stands in the page, as `nri-pin simulate -o json` prints it."""


def render(simulations: Sequence[Mapping[str, Any]], comparison: Mapping[str, Any] | None = None) -> str:
    """The page.

    Args:
        simulations: one, or two of the same pods on the same machine, each as `Simulation.as_dict` says it.
        comparison: what differs between two.

    Raises:
        ValueError: not one or two simulations.
    """
    if len(simulations) not in {1, 2}:
        raise ValueError(f"a report shows one simulation or two, not {len(simulations)}")
    marks = Marks(simulations)
    style = "\n".join([_file("report.css"), marks.css()])
    script = _file("report.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", _title(simulations)),
        raw_element("style", style),
    )
    body = element(
        "body",
        *_body(simulations, comparison, marks),
        *_data(simulations, comparison, marks),
        raw_element("script", script),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _body(simulations: Sequence[Row], comparison: Row | None, marks: Marks) -> list[Markup]:
    return [
        _header(simulations),
        element(
            "main",
            _summary(simulations),
            _machines(simulations, marks),
            tables.differences(comparison, simulations, marks)
            if comparison and len(simulations) == 2
            else NOTHING,
            element(
                "section",
                element("h2", "Plots"),
                element("div", plots(simulations, marks), class_="plots"),
                id="plots",
            ),
            _tables(simulations, marks),
        ),
        element(
            "footer",
            f"Made by nri-pin {__version__} from a simulation; no node was asked and none was changed.",
        ),
        element("aside", class_="detail", id="detail", role="status", hidden=True),
    ]


def _header(simulations: Sequence[Row]) -> Markup:
    places = {"#machine": "Machine", "#plots": "Plots", "#tables": "Tables"}
    if len(simulations) == 2:
        places = {"#machine": "Machine", "#differs": "What differs", "#plots": "Plots", "#tables": "Tables"}
    links = [element("a", words, href=where) for where, words in places.items()]
    return element("header", element("h1", _title(simulations)), element("nav", *links, aria_label="Parts"))


def _title(simulations: Sequence[Row]) -> Markup:
    first = simulations[0]
    scenario = first["scenario"] or first["file"] or "Simulation"
    machine_name = first["machine"]["name"]
    return escape(scenario if machine_name in UNNAMED else f"{scenario} on {machine_name}")


def _summary(simulations: Sequence[Row]) -> Markup:
    first = simulations[0]["machine"]
    titles = names(simulations) if len(simulations) > 1 else [""]
    lead = [
        element("p", *[element("small", title)] * bool(title), element("b", _told(simulation)))
        for simulation, title in zip(simulations, titles, strict=True)
    ]
    facts = [
        ("Machine", _machine_words(first)),
        ("It has", first["summary"]),
    ]
    facts += [
        (f"Configuration{letter and ' ' + letter}", _configuration(simulation["configuration"]))
        for simulation, letter in zip(simulations, letters(simulations), strict=True)
    ]
    facts += [
        (f"Refused{letter and ' ' + letter}", _refused(simulation))
        for simulation, letter in zip(simulations, letters(simulations), strict=True)
        if simulation["refused"]
    ]
    rows = [element("div", element("dt", words), element("dd", value)) for words, value in facts]
    notes = list(dict.fromkeys(note for simulation in simulations for note in simulation["notes"]))
    noted = [element("ul", *(element("li", note) for note in notes), class_="notes")] if notes else []
    told = element("div", element("dl", *rows), *noted)
    return element(
        "section",
        element("div", *lead, class_="lead"),
        element("div", told, tables.figures(simulations), class_="summary"),
        id="summary",
    )


def _machine_words(machine: Row) -> str:
    """Its name and its title, as far as it has them."""
    words = [machine["name"]] * (machine["name"] not in UNNAMED) + [machine["title"]] * bool(machine["title"])
    return ": ".join(words) or "described in the scenario"


def _told(simulation: Row) -> str:
    """The outcome in one sentence."""
    totals = simulation["totals"]
    words = f"{totals['pods_placed']} of {totals['pods']} pods placed"
    if totals["pods_partly"]:
        words += f", {totals['pods_partly']} in part"
    words += f", {totals['pods_refused']} refused" if totals["pods_refused"] else ", none refused"
    return (
        f"{words}; {totals['exclusive_cpus']} CPUs exclusive, {totals['available_cpus']} can still become so."
    )


def _refused(simulation: Row) -> Markup:
    """How many pods of which shape for which reason, the most frequent first."""
    lines = [
        f"{len(_pods(row['containers']))} x {row['reason']}: {simulation['shapes'].get(row['shape'], row['shape'])}"
        for row in simulation["refused"]
    ]
    return element("ul", *(element("li", line) for line in lines), class_="said")


def _pods(containers: Sequence[str]) -> frozenset[str]:
    return frozenset(key.rpartition("/")[0] for key in containers)


def _configuration(configuration: Row) -> Markup:
    said = [element("li", element("code", f"{key}: {value}")) for key, value in _key_values(configuration)]
    reserved = f"Reserved: {configuration['reserved'] or 'no CPU'}; {configuration['why_reserved']}"
    return joined(
        [element("b", configuration["name"]), element("ul", *said, class_="said"), element("p", reserved)]
    )


def _key_values(configuration: Row) -> list[tuple[str, str]]:
    """Texts that repeat their key are told without it."""
    pairs = configuration["said"].items()
    return [(key, str(value).removeprefix(f"{key}: ")) for key, value in pairs]


def _machines(simulations: Sequence[Row], marks: Marks) -> Markup:
    parts = []
    for number, (simulation, name) in enumerate(zip(simulations, names(simulations), strict=True)):
        title = [element("h3", name)] if len(simulations) > 1 else []
        parts.append(
            element(
                "div", *title, machine(simulation, number, marks), class_="simulated", data_simulation=number
            )
        )
    hint = "Point at a CPU, a piece of a plot or a row to see the container everywhere; click to keep it, Esc to let go."
    return element(
        "section",
        element("h2", "The machine at the end"),
        element("p", hint, class_="hint"),
        element("div", *parts, class_="pair"),
        id="machine",
    )


def _tables(simulations: Sequence[Row], marks: Marks) -> Markup:
    box = element(
        "input",
        type="search",
        id="filter",
        placeholder="name, CPU list, reason",
        autocomplete="off",
        aria_controls="tables",
    )
    asked = element(
        "p",
        element("label", "Filter rows ", box),
        element("output", id="filtered", for_="filter"),
        class_="filter",
    )
    numbered = list(zip(range(len(simulations)), simulations, letters(simulations), strict=True))
    parts = [
        *(tables.placements(simulation, number, marks, letter) for number, simulation, letter in numbered),
        *(tables.refusals(simulation, number, marks, letter) for number, simulation, letter in numbered),
        *(tables.devices(simulation, number, marks, letter) for number, simulation, letter in numbered),
        *(tables.memory(simulation, number, letter) for number, simulation, letter in numbered),
        *(tables.happened(simulation, number, letter) for number, simulation, letter in numbered),
    ]
    return element("section", element("h2", "Tables"), asked, *parts, tables.orders(simulations), id="tables")


def _data(simulations: Sequence[Row], comparison: Row | None, marks: Marks) -> list[Markup]:
    """What the script reads, and whoever wants the figures back out of the page."""
    result = {"format": FORMAT, "simulations": simulations, "comparison": comparison}
    said = {"containers": marks.says(), "pools": marks.pools(), "names": letters(simulations)}
    return [
        raw_element("script", script_json(value), type="application/json", id=name)
        for name, value in (("result", result), ("says", said))
    ]


def _policy(style: str, script: str) -> str:
    return f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _file(name: str) -> str:
    return (resources.files("nri_plugin.cli.simulate") / name).read_text(encoding="utf-8")
