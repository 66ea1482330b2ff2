"""A simulation as one HTML file for a browser, for mail and for print; the page loads no other file.

The modules `report_*` compute the content of the page, the templates in `templates/` write it as HTML and escape every
value. The page is complete without its script, which adds highlighting, sorting and filtering. The content security
policy of the page admits only our own style and script, by their hashes: markup from a name could neither load nor run
anything.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from nri_plugin import __version__
from nri_plugin.cli.output import count_of, memory_words
from nri_plugin.cli.simulate import report_tables as tables
from nri_plugin.cli.simulate.report_marks import Marks, Row, blocks, letters, names, showable
from nri_plugin.cli.simulate.report_plots import plots
from nri_plugin.cli.topology.palette import ISOLATED, OFFLINE, RESERVED, SHARED
from nri_plugin.model import bits

FREE = "·"
SMALL = 256
"""The most CPUs whose numbers are shown."""
UNNAMED = ("", "machine")
"""Names of a machine that the scenario itself describes."""
FORMAT = 1
"""Version of the JSON in the page, the output of `nri-pin simulate -o json`."""


def render(simulations: Sequence[Mapping[str, Any]], comparison: Mapping[str, Any] | None = None) -> str:
    """The page.

    Args:
        simulations: one, or two of the same pods on the same machine, each as `Simulation.as_dict` makes it.
        comparison: the differences of two.

    Raises:
        ValueError: not one or two simulations.
    """
    if len(simulations) not in {1, 2}:
        raise ValueError(f"a report shows one simulation or two, not {len(simulations)}")
    marks = Marks(simulations)
    is_pair = len(simulations) == 2
    style, script = "\n".join([_file("report.css"), marks.css()]), _file("report.js")
    numbered = enumerate(zip(simulations, letters(simulations), names(simulations), strict=True))
    parts = [SimulationPart(number, *part, marks) for number, part in numbered]
    machine = simulations[0]["machine"]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=_title(simulations[0]),
            policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
            style=style,
            script=script,
            version=__version__,
            is_pair=is_pair,
            parts=parts,
            machine_name=_machine_name(machine),
            machine_summary=machine["summary"],
            notes=list(dict.fromkeys(note for simulation in simulations for note in simulation["notes"])),
            total_rows=tables.total_rows(simulations),
            total_heads=letters(simulations) if is_pair else ["At the end"],
            differences=tables.differences(comparison, simulations, marks)
            if comparison and is_pair
            else None,
            plots=plots(simulations, marks),
            tables=[
                *(kind(part.tables) for kind in tables.KINDS for part in parts),
                tables.orders(simulations, letters(simulations)),
            ],
            letters=_LETTERS,
            result={"format": FORMAT, "simulations": simulations, "comparison": comparison},
            says={"containers": marks.says(), "pools": marks.pools(), "names": letters(simulations)},
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nri_plugin.cli.simulate"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if hasattr(value, "__html__") else showable(value),
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals["count_of"] = count_of
    return environment


def _file(name: str) -> str:
    return (resources.files("nri_plugin.cli.simulate") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _title(simulation: Row) -> str:
    scenario = simulation["scenario"] or simulation["file"] or "Simulation"
    machine = simulation["machine"]["name"]
    return scenario if machine in UNNAMED else f"{scenario} on {machine}"


def _machine_name(machine: Row) -> str:
    """The name and the title of a machine."""
    words = [machine["name"]] * (machine["name"] not in UNNAMED) + [machine["title"]] * bool(machine["title"])
    return ": ".join(words) or "described in the scenario"


class SimulationPart:
    """The parts of the page about one simulation.

    Args:
        number: of the simulation in the report, from 0.
        simulation: as JSON.
        letter: empty where the report has one simulation.
        name: of its configuration.
        marks: of the containers.
    """

    def __init__(self, number: int, simulation: Row, letter: str, name: str, marks: Marks) -> None:
        self.number, self.name, self._letter = number, name, letter
        self.configuration = simulation["configuration"]
        self.outcome = _outcome(simulation["totals"])
        self.refused = [_refused(row, simulation["shapes"]) for row in simulation["refused"]]
        self.machine = MachineBoxes(simulation, number, marks)
        self.tables = tables.SimulationTables(simulation, number, letter, marks)

    def titled(self, title: str) -> str:
        """The title with the letter of the simulation."""
        return f"{title} {self._letter}".rstrip()


def _outcome(totals: Row) -> str:
    """The outcome in one sentence."""
    words = f"{totals['pods_placed']} of {totals['pods']} pods placed"
    if totals["pods_partly"]:
        words += f", {totals['pods_partly']} in part"
    words += f", {totals['pods_refused']} refused" if totals["pods_refused"] else ", none refused"
    return f"{words}; {totals['exclusive_cpus']} CPUs exclusive, {totals['available_cpus']} available."


def _refused(row: Row, shapes: Row) -> str:
    """The number of pods of one shape that were refused for one reason."""
    pods = {key.rpartition("/")[0] for key in row["containers"]}
    return f"{len(pods)} x {row['reason']}: {shapes.get(row['shape'], row['shape'])}"


_LETTERS = {
    "shared": SHARED.letter,
    "reserved": RESERVED.letter,
    "isolated": ISOLATED.letter,
    "offline": OFFLINE.letter,
}
"""The letters of CPUs without a container and a pod."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A CPU or device: letter, CSS classes, the container or pool that it belongs to, and its name for screen readers."""

    letter: str
    look: str
    joins: str | None
    label: str
    cpu: int = -1


Chips = Mapping[str, Sequence[Chip]]
"""Devices by resource."""


class MachineBoxes:
    """The boxes of one machine at the end of a simulation, from sockets to CPUs.

    A node over two sockets, or a cache over two nodes, appears in each with its part.

    Args:
        simulation: as JSON.
        number: of the simulation in the report, from 0.
        marks: letters and colours.
    """

    def __init__(self, simulation: Row, number: int, marks: Marks) -> None:
        self._machine = machine = simulation["machine"]
        self._devices, self._marks = simulation["devices"], marks
        self._owner_by_cpu = {owner["cpu"]: owner for owner in simulation["owners"]}
        self._available = {row["id"]: row for row in simulation["numa_nodes"]}
        self._isolated = frozenset(machine["isolated"])
        self._pool = bits.parse_list(simulation["totals"]["shared_pool"])
        self._pool_name = f"p{number}"
        self._caches = [(row["id"], _mask(row)) for row in machine["caches"]]
        self._cores = [_mask(row) for row in machine["cores"]]
        self._without_l3 = bits.from_ids(machine["without_l3"])
        self.size = "cpus" if len(machine["online"]) <= SMALL else "cpus many"
        self.has_isolated = bool(self._isolated)
        self.has_pods = bool(blocks(simulation))
        self.offline = bits.format_list(bits.from_ids(machine["offline"]))

    @property
    def sockets(self) -> Iterable[Row]:
        """Sockets with their parts of NUMA nodes."""
        for row in self._machine["sockets"]:
            masks = ((node, _mask(node) & _mask(row)) for node in self._machine["numa_nodes"])
            yield {"id": row["id"], "nodes": [self._node(node, cpus) for node, cpus in masks if cpus]}

    @property
    def nodes_without_cpus(self) -> Mapping[str, str]:
        """NUMA nodes by their size, as kernel lists."""
        ids_by_size: dict[str, int] = {}
        for node in self._machine["numa_nodes"]:
            if not node["cpus"]:
                size = memory_words(node["memory_bytes"])
                ids_by_size[size] = ids_by_size.get(size, 0) | 1 << node["id"]
        return {size: bits.format_list(ids) for size, ids in ids_by_size.items()}

    @property
    def devices_elsewhere(self) -> Chips:
        """Devices that belong to no NUMA node with a box."""
        shown = frozenset(node["id"] for node in self._machine["numa_nodes"] if node["cpus"])
        return self._chips(device for device in self._devices if shown.isdisjoint(device["numa_nodes"]))

    def _node(self, node: Row, cpus: int) -> Row:
        available = self._available.get(node["id"])
        size = "" if node["memory_bytes"] is None else memory_words(node["memory_bytes"])
        left = f"{available['available']} of {available['allocatable']} available" if available else ""
        return {
            "title": f"NUMA {node['id']}" + " (part)" * (cpus != _mask(node)),
            "facts": ", ".join(filter(None, (size, left))),
            "caches": [self._cache(number, mask & cpus) for number, mask in self._caches if mask & cpus],
            "devices": self._chips(device for device in self._devices if node["id"] in device["numa_nodes"]),
        }

    def _cache(self, number: int, cpus: int) -> Row:
        name = "no L3" if cpus & self._without_l3 else f"L3 {number}"
        cores = [[self._cpu(cpu) for cpu in bits.iterate(core & cpus)] for core in self._cores if core & cpus]
        return {"name": name if self._machine["caches_known"] else "", "cores": cores}

    def _cpu(self, cpu: int) -> Chip:
        owner = self._owner_by_cpu.get(cpu, {"kind": "shared", "container": "", "pod": ""})
        kind, key = owner["kind"], owner["container"] or owner["pod"]
        is_isolated = cpu in self._isolated and kind != "isolated"
        words = ["cpu", kind, self._marks.colour(key), *["isolated"] * is_isolated]
        whose = f"{key}, shared in the pod" if kind == "pod-shared" else key
        joins = str(self._marks.number(key)) if key else self._pool_name if self._pool >> cpu & 1 else None
        return Chip(
            self._letter(cpu, kind, key),
            " ".join(filter(None, words)),
            joins,
            f"CPU {cpu}: {whose or kind}",
            cpu,
        )

    def _letter(self, cpu: int, kind: str, key: str) -> str:
        if key:
            return self._marks.letter(key)
        return _LETTERS["isolated" if kind == "shared" and cpu in self._isolated else kind]

    def _chips(self, devices: Iterable[Row]) -> Chips:
        """Chips by resource; a container in the shared pool has no letter, so its devices have a ring."""
        by_resource: dict[str, list[Chip]] = {}
        for device in devices:
            key = device["container"]
            letter, look, joins = FREE, "free", None
            if key:
                letter, look = self._marks.letter(key) or "o", self._marks.colour(key) or "sharing"
                joins = str(self._marks.number(key))
            label = f"{device['resource']} {device['id']}: {key or 'free'}"
            by_resource.setdefault(device["resource"], []).append(Chip(letter, look, joins, label))
        return by_resource


def _mask(row: Row) -> int:
    return bits.from_ids(row["cpus"])
