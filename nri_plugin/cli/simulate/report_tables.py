"""The tables of a report: figures, placements, refusals, differences, devices and what happened.

A column whose cells are numbers, or are to be ordered otherwise than they read, says its sort key in `data-v`.
On a narrow screen each row becomes a card whose lines carry the column's name from `data-label`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nri_plugin.cli.simulate.report_marks import (
    LEVELS,
    NOTHING,
    Marks,
    Markup,
    Row,
    alignment,
    count,
    element,
    is_refused,
    letters,
    names,
)
from nri_plugin.cli.topology.picture import memory_text
from nri_plugin.model import bits

NONE = "-"
LONG = 20
"""Characters of a head that may be broken: it is the name of a configuration."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table, and by what it is sorted where that is something else."""

    content: object
    key: int | float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table.

    Attributes:
        cells: as many as there are columns.
        joins: the number of the container it is about.
        also: the name of the shared pool that it runs in.
    """

    cells: Sequence[Cell | object]
    joins: int | None = None
    also: str | None = None


def table(title: str, columns: Sequence[str], lines: Sequence[Line], *, id_: str, note: str = "") -> Markup:
    """A table whose columns are sorted by their heads."""
    head = element("tr", *(_head(column) for column in columns))
    body = [_line(columns, line) for line in lines]
    counted = element("span", count(len(lines), "row"), class_="rows", aria_live="polite")
    caption = element("caption", element("b", title), " ", counted, *([element("p", note)] if note else []))
    return element(
        "table", caption, element("thead", head), element("tbody", *body), id=id_, class_="sortable"
    )


def placements(simulation: Row, number: int, marks: Marks, letter: str) -> Markup:
    """The containers that run at the end."""
    has_devices = bool(simulation["devices"])
    columns = [
        "",
        "Container",
        "Own CPUs",
        "Runs on",
        "NUMA",
        "L3",
        "Memory on",
        "Aligned",
        *["Devices"] * has_devices,
    ]
    lines = []
    for row in simulation["containers"]:
        cells = [
            Cell(marks.swatch(row["key"]) or "·", -1 if not row["exclusive"] else marks.number(row["key"])),
            name(row["key"]),
            Cell(row["exclusive"] or NONE, row["exclusive"]),
            cpu_list(row["cpus"]),
            cpu_list(row["numa_nodes"]),
            cpu_list(row["caches"] if row["exclusive"] else "", "any"),
            cpu_list(row["mems"], "any"),
            _aligned(row),
            *[_devices(row)] * has_devices,
        ]
        lines.append(Line(cells, marks.number(row["key"]), None if row["exclusive"] else f"p{number}"))
    return table(f"Placements{letter and ' ' + letter}", columns, lines, id_=f"placements-{number}")


def refusals(simulation: Row, number: int, marks: Marks, letter: str) -> Markup:
    """Every container that was refused, with the whole sentence."""
    lines = [
        Line(
            [
                Cell(step["number"], step["number"]),
                name(key),
                simulation["shapes"].get(step["shape"]) or step["action"],
                element("span", refusal["reason"], class_="word"),
                element("span", refusal["text"], class_="sentence"),
            ],
            marks.number(key),
        )
        for step in simulation["steps"]
        for key, refusal in _refused(step)
    ]
    if not lines:
        return element("p", f"Nothing was refused{letter and ' in ' + letter}.", class_="nothing")
    columns = ["Step", "Container", "Asked for", "Reason", "Why"]
    return table(f"Refusals{letter and ' ' + letter}", columns, lines, id_=f"refusals-{number}")


def happened(simulation: Row, number: int, letter: str) -> Markup:
    """The steps in order."""
    lines = [
        Line(
            [
                Cell(step["number"], step["number"]),
                step["action"],
                name(step["target"]),
                simulation["shapes"].get(step["shape"], step["shape"]) or NONE,
                _outcome(step),
                Cell(step["exclusive_cpus"], step["exclusive_cpus"]),
            ]
        )
        for step in simulation["steps"]
    ]
    columns = ["Step", "Action", "What", "Asked for", "Outcome", "Exclusive CPUs then"]
    return table(f"Steps{letter and ' ' + letter}", columns, lines, id_=f"steps-{number}")


def figures(simulations: Sequence[Row]) -> Markup:
    """Totals at the end, a column for each simulation; their order says something, so they are not sorted."""
    heads = letters(simulations) if len(simulations) > 1 else ["At the end"]
    per_simulation = [_totals(simulation["totals"]) for simulation in simulations]
    rows = [_figure(words, [totals[words] for totals in per_simulation]) for words in per_simulation[0]]
    head = element("tr", *(element("th", words, scope="col") for words in ("Figure", *heads)))
    caption = element("caption", element("b", "Figures"), class_="unsaid")
    return element("table", caption, element("thead", head), element("tbody", *rows), id="figures")


def _figure(words: str, values: Sequence[object]) -> Markup:
    """A line of figures: marked where they differ, set in where they are part of the one above."""
    head = element("th", words.lstrip(), scope="row", class_="part" if words.startswith(" ") else "")
    return element(
        "tr",
        head,
        *(element("td", value) for value in values),
        class_="differ" if len(set(values)) > 1 else "",
    )


def differences(comparison: Row, simulations: Sequence[Row], marks: Marks) -> Markup:
    """What two configurations treat differently: their keys, then containers."""
    before, after = names(simulations)
    said = [Line([key, one or NONE, other or NONE]) for key, one, other in comparison["configuration"]]
    lines = [
        Line([name(row["key"]), row["what"], row["before"], row["after"]], marks.number(row["key"]))
        for row in comparison["containers"]
    ]
    alike = f"{count(comparison['alike'], 'container')} the same with both."
    parts = [table("Configurations", ["Key", before, after], said, id_="differing-keys")] if said else []
    if lines:
        parts.append(
            table(
                "Containers",
                ["Container", "What", before, after],
                lines,
                id_="differing-containers",
                note=alike,
            )
        )
    else:
        parts.append(element("p", f"No container is treated differently: {alike}", class_="nothing"))
    return element("section", element("h2", "What differs"), *parts, id="differs")


def devices(simulation: Row, number: int, marks: Marks, letter: str) -> Markup:
    """Who has which device; nothing where the machine has none."""
    lines = [
        Line(
            [
                row["resource"],
                row["id"],
                ", ".join(map(str, row["numa_nodes"])) or "any",
                name(row["container"]) if row["container"] else NONE,
            ],
            marks.number(row["container"]),
        )
        for row in simulation["devices"]
    ]
    columns = ["Resource", "Device", "NUMA", "Container"]
    return (
        table(f"Devices{letter and ' ' + letter}", columns, lines, id_=f"devices-{number}")
        if lines
        else NOTHING
    )


def memory(simulation: Row, number: int, letter: str) -> Markup:
    """What the Static memory policy has promised; nothing where it promises none."""
    lines = [
        Line(
            [
                Cell(row["numa_node"], row["numa_node"]),
                row["resource"],
                Cell(memory_text(row["promised"]), row["promised"]),
                Cell(memory_text(row["allocatable"]), row["allocatable"]),
            ]
        )
        for row in simulation["memory"]
    ]
    columns = ["NUMA", "Resource", "Promised", "Of"]
    return (
        table(f"Memory{letter and ' ' + letter}", columns, lines, id_=f"memory-{number}")
        if lines
        else NOTHING
    )


def orders(simulations: Sequence[Row]) -> Markup:
    """The same pods in other orders; nothing where nobody asked for that."""
    lines = [
        Line(
            [
                *[letter] * (len(simulations) > 1),
                Cell(
                    "as written" if row["seed"] is None else f"seed {row['seed']}",
                    -1 if row["seed"] is None else row["seed"],
                ),
                *(Cell(row[key], row[key]) for key in _ORDER_COLUMNS),
                _percent(row["fragmentation_numa"]),
            ]
        )
        for simulation, letter in zip(simulations, letters(simulations), strict=True)
        for row in simulation["orders"]
    ]
    columns = [*["Simulation"] * (len(simulations) > 1), "Order", *_ORDER_COLUMNS.values(), "Fragmentation"]
    return table("Other orders of the same pods", columns, lines, id_="orders") if lines else NOTHING


_ORDER_COLUMNS = {
    "pods_placed": "Pods placed",
    "containers_exclusive": "With own CPUs",
    "exclusive_cpus": "Exclusive CPUs",
    "aligned_numa_node": "On one NUMA node",
    "aligned_uncore_cache": "In one L3",
}


def name(key: str) -> Markup:
    """A name that cannot change the direction of what stands beside it, and breaks at its slashes."""
    parts = key.split("/")
    pieces: list[object] = [parts[0]]
    for part in parts[1:]:
        pieces += ["/", element("wbr"), part]
    return element("bdi", *pieces)


def cpu_list(cpus: str, nothing: str = NONE) -> Cell:
    """A kernel list, sorted by its first number and broken at its commas."""
    if not cpus:
        return Cell(nothing, -1)
    pieces: list[object] = []
    for part in cpus.split(","):
        pieces += [",", element("wbr")] * bool(pieces) + [part]
    return Cell(element("span", *pieces, class_="cpulist"), bits.lowest(bits.parse_list(cpus)))


def _head(column: str) -> Markup:
    words = column or "Mark"
    hidden = "" if column else "unsaid"
    button = element("button", element("span", words, class_=hidden), type="button")
    return element("th", button, scope="col", aria_sort="none", class_="long" if len(column) > LONG else "")


def _line(columns: Sequence[str], line: Line) -> Markup:
    cells = [
        _cell(column, cell, is_first=not number)
        for number, (column, cell) in enumerate(zip(columns, line.cells, strict=True))
    ]
    return element(
        "tr", *cells, data_c=line.joins, data_also=line.also, tabindex=-1 if line.joins is not None else None
    )


def _cell(column: str, cell: object, *, is_first: bool) -> Markup:  # noqa: ARG001
    cell = cell if isinstance(cell, Cell) else Cell(cell)
    is_number = cell.key is not None and isinstance(cell.content, int | float)
    return element(
        "td", cell.content, data_v=cell.key, data_label=column or None, class_="number" if is_number else ""
    )


def _aligned(row: Row) -> Cell:
    aligned = row["aligned"]
    if aligned is None:
        return Cell(NONE, -1)
    return Cell(alignment(aligned).removeprefix("aligned at "), sum(bool(aligned[level]) for level in LEVELS))


def _devices(row: Row) -> str:
    return "; ".join(f"{resource}: {', '.join(ids)}" for resource, ids in row["devices"].items()) or NONE


def _refused(step: Row) -> Iterable[tuple[str, Row]]:
    """Who was refused in a step, with the refusal: containers, and what an update asked for."""
    if step["refusal"]:
        yield step["target"], step["refusal"]
    for row in step["containers"]:
        if is_refused(row):
            yield row["key"], row["refusal"]


def _outcome(step: Row) -> Markup:
    words: list[str] = list(step["problems"])
    if step["refusal"]:
        words.append(f"refused: {step['refusal']['reason']}")
    for row in step["containers"]:
        if is_refused(row):
            words.append(f"{row['container']} refused: {row['refusal']['reason']}")
        elif row["status"] == "skipped":
            words.append(f"{row['container']} never created")
        elif row["exclusive"]:
            words.append(f"{row['container']} has {row['cpus']}")
        else:
            words.append(f"{row['container']} shares")
    return element("span", _listed(words) or NONE, class_="sentence")


def _listed(words: Iterable[str]) -> str:
    return "; ".join(words)


def _totals(totals: Row) -> dict[str, object]:
    """The figures in words, in the order people ask for them."""
    own = totals["containers_exclusive"]
    return {
        "Pods asked for": totals["pods"],
        "Pods placed": totals["pods_placed"],
        "Pods placed in part": totals["pods_partly"],
        "Pods refused": totals["pods_refused"],
        "Containers that run": totals["containers"],
        "Containers with CPUs of their own": own,
        " on one NUMA node": f"{totals['aligned_numa_node']} of {own}",
        " on one socket": f"{totals['aligned_socket']} of {own}",
        " in one L3 cache": f"{totals['aligned_uncore_cache']} of {own}",
        " on whole cores": f"{totals['aligned_whole_cores']} of {own}",
        "Exclusive CPUs": totals["exclusive_cpus"],
        "CPUs that can still become exclusive": totals["available_cpus"],
        "CPUs in the shared pool": totals["shared_cpus"],
        "Reserved CPUs": totals["reserved_cpus"],
        "Fragmentation by NUMA node": _percent(totals["fragmentation_numa"]).content,
        "Fragmentation by L3 cache": _percent(totals["fragmentation_cache"]).content,
        "Memory promised": memory_text(totals["memory_promised_bytes"]),
        "Expectations not met": totals["problems"],
    }


def _percent(ratio: float) -> Cell:
    return Cell(f"{100 * ratio:.0f} %", ratio)
