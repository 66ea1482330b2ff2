"""The plots of a report: CPUs over the steps, by NUMA node and by container, and what still fits."""

from collections.abc import Sequence

from nri_plugin import bits
from nri_plugin.cli.report_chart import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Field,
    bar,
    drawing,
    figure,
    rounded_top,
    staircase,
    text,
    ticks,
    y_axis,
)
from nri_plugin.cli.report_marks import Marks, Row, cpu_count, letters, names
from nri_plugin.cli.report_markup import Markup, element, joined

WIDTH, HEIGHT = 640, 230
_LEAST_COLUMN = 18
"""Pixels that a NUMA node has at least: its number must be readable."""
_ROW = 24
"""Pixels of a horizontal bar with its words."""


def plots(simulations: Sequence[Row], marks: Marks) -> Markup:
    """All of them; one that has nothing to show is left out."""
    return joined(
        [
            over_steps(simulations),
            by_numa_node(simulations, marks),
            fragmentation(simulations),
            *([capacity(simulations)] if any(simulation["capacity"] for simulation in simulations) else []),
        ]
    )


def over_steps(simulations: Sequence[Row]) -> Markup:
    """Exclusive CPUs after each step, a line for each simulation, and a cross for every refusal."""
    steps = max(len(simulation["steps"]) for simulation in simulations)
    most = max(allocatable(simulation) for simulation in simulations)
    field = Field(WIDTH, HEIGHT, steps, rounded_top(most))
    shapes = [*y_axis(field, "exclusive CPUs"), *_step_axis(field), _ceiling(field, most)]
    for number, (simulation, name) in enumerate(zip(simulations, names(simulations), strict=True)):
        values = [step["exclusive_cpus"] for step in simulation["steps"]]
        shapes.append(staircase(field, values, class_=f"line s{number}"))
        shapes += _crosses(field, simulation, number)
        if len(simulations) > 1:
            shapes += _key(number, name)
    last = "; ".join(
        _last_words(simulation, name)
        for simulation, name in zip(simulations, names(simulations), strict=True)
    )
    caption = "After each step of the scenario. A cross is a step in which something was refused; the dotted line is all that may be exclusive."
    return figure(
        "Exclusive CPUs over the steps",
        caption,
        drawing(WIDTH, HEIGHT, *shapes, label=last),
        id_="plot-steps",
    )


def allocatable(simulation: Row) -> int:
    """How many CPUs of the machine may be exclusive at all."""
    return sum(node["allocatable"] for node in simulation["numa_nodes"])


def by_numa_node(simulations: Sequence[Row], marks: Marks) -> Markup:
    """A column for each NUMA node, cut into containers: who has how many CPUs where."""
    caption = "Each piece is the CPUs that one container has of its own on that node; grey is shared, hatched reserved."
    pictures = [
        _columns(simulation, number, name, marks)
        for number, (simulation, name) in enumerate(zip(simulations, names(simulations), strict=True))
    ]
    return figure("CPUs per container by NUMA node", caption, *pictures, id_="plot-numa")


def fragmentation(simulations: Sequence[Row]) -> Markup:
    """Bars from 0 to 100 % for each NUMA node that has CPUs, one beside the other for two simulations."""
    nodes = [node for node in simulations[0]["numa_nodes"] if node["cpus"]]
    width = _wide_enough(len(nodes) * len(simulations))
    field = Field(width, HEIGHT, len(nodes), 100)
    shapes = y_axis(field, "%")
    for number, simulation in enumerate(simulations):
        rows = {row["id"]: row for row in simulation["numa_nodes"]}
        for column, node in enumerate(nodes):
            shapes.append(_fragmentation_bar(field, column, number, len(simulations), rows[node["id"]]))
    shapes += _node_axis(field, [node["id"] for node in nodes])
    if len(simulations) > 1:
        for number, name in enumerate(names(simulations)):
            shapes += _key(number, name)
    caption = "The share of the available CPUs that sit in L3 caches which others already use in part: 0 % is unbroken."
    return figure(
        "Fragmentation by NUMA node",
        caption,
        drawing(width, HEIGHT, *shapes, label="Fragmentation by NUMA node"),
        id_="plot-fragmentation",
    )


def capacity(simulations: Sequence[Row]) -> Markup:
    """How many more pods of each shape fit, against how many fit on an empty machine."""
    shapes = list(dict.fromkeys(row["shape"] for simulation in simulations for row in simulation["capacity"]))
    rows_by_simulation = [{row["shape"]: row for row in simulation["capacity"]} for simulation in simulations]
    most = max(max(row["fits_empty"], row["fits"]) for rows in rows_by_simulation for row in rows.values())
    height = TOP + len(shapes) * (_ROW * (len(simulations) + 1) + 8)
    pieces: list[Markup] = []
    top = TOP
    for shape in shapes:
        row = next(rows[shape] for rows in rows_by_simulation if shape in rows)
        pieces.append(text(8, top + 12, row["text"], class_="strong"))
        for number, (rows, letter) in enumerate(zip(rows_by_simulation, letters(simulations), strict=True)):
            top += _ROW
            pieces += _room(rows.get(shape), number, letter, top - 4, most)
        top += _ROW + 8
    caption = (
        "Tried until one is refused. The pale bar is how many fit on the same machine with nothing on it."
    )
    return figure(
        "How many more pods fit",
        caption,
        drawing(WIDTH, height, *pieces, label="How many more pods fit"),
        id_="plot-capacity",
    )


def _last_words(simulation: Row, name: str) -> str:
    values = [step["exclusive_cpus"] for step in simulation["steps"]]
    return f"{name}: {cpu_count(values[-1] if values else 0)} exclusive after {len(values)} steps"


def _step_axis(field: Field) -> list[Markup]:
    foot = field.height - BOTTOM + 16
    numbers = [value for value in ticks(field.columns) if value == int(value)]
    return [text(field.x(value), foot, f"{value:g}", text_anchor="middle") for value in numbers] + [
        text(field.width - RIGHT, field.height - 4, "step", text_anchor="end", class_="unit")
    ]


def _ceiling(field: Field, most: int) -> Markup:
    height = field.y(most)
    return element("line", x1=LEFT, x2=field.width - RIGHT, y1=height, y2=height, class_="ceiling")


def _crosses(field: Field, simulation: Row, number: int) -> list[Markup]:
    crosses = []
    for place, step in enumerate(simulation["steps"]):
        refused = [row["key"] for row in step["containers"] if row["refusal"]]
        if refused:
            x, y = field.x(place + 1), field.y(step["exclusive_cpus"])
            path = f"M{x - 3} {y - 3}l6 6m0 -6l-6 6"
            words = element("title", f"step {step['number']}: refused {', '.join(refused)}")
            crosses.append(element("g", words, element("path", d=path, class_=f"cross s{number}")))
    return crosses


def _key(number: int, name: str) -> list[Markup]:
    """A line of the key, in the upper part of the field."""
    y = TOP + 10 + 16 * number
    return [
        element("path", d=f"M{LEFT + 8} {y - 4}h22", class_=f"line s{number}"),
        text(LEFT + 36, y, name, class_="halo"),
    ]


def _columns(simulation: Row, number: int, name: str, marks: Marks) -> Markup:
    nodes = [node for node in simulation["machine"]["numa_nodes"] if node["cpus"]]
    width = _wide_enough(len(nodes))
    field = Field(width, HEIGHT, len(nodes), rounded_top(max(len(node["cpus"]) for node in nodes)))
    shapes = y_axis(field, f"CPUs, {name}" if len(name) > 1 else "CPUs")
    for column, node in enumerate(nodes):
        shapes += _column(field, column, node, simulation, number, marks)
    shapes += _node_axis(field, [node["id"] for node in nodes])
    return drawing(width, HEIGHT, *shapes, label=f"CPUs per container by NUMA node, {name}")


def _column(field: Field, column: int, node: Row, simulation: Row, number: int, marks: Marks) -> list[Markup]:
    left, width = field.x(column + 0.12), field.x(column + 0.88) - field.x(column + 0.12)
    pool = bits.parse_list(simulation["totals"]["shared_pool"])
    shapes = []
    below = 0
    for (kind, key), cpus in _pieces(node, simulation):
        joins = (
            str(marks.number(key))
            if key
            else f"p{number}"
            if kind == "shared" or pool & bits.from_ids(cpus)
            else None
        )
        y, height = field.y(below + len(cpus)), field.y(below) - field.y(below + len(cpus))
        words = f"NUMA {node['id']}: {key or kind}, {cpu_count(len(cpus))}"
        shapes.append(
            bar(
                left,
                y,
                width,
                height,
                words,
                class_=f"piece {kind} {marks.colour(key)}".rstrip(),
                data_c=joins,
            )
        )
        if key and height >= 11 and width >= 12:
            shapes.append(
                text(
                    left + width / 2,
                    y + height / 2 + 4,
                    marks.letter(key),
                    class_=f"letter {marks.colour(key)}",
                    text_anchor="middle",
                )
            )
        below += len(cpus)
    return shapes


def _pieces(node: Row, simulation: Row) -> list[tuple[tuple[str, str], list[int]]]:
    """The CPUs of a node by who has them: containers in order, then reserved and shared ones."""
    pieces: dict[tuple[str, str], list[int]] = {}
    owners = {owner["cpu"]: owner for owner in simulation["owners"]}
    for cpu in node["cpus"]:
        owner = owners.get(cpu, {"kind": "shared", "container": ""})
        pieces.setdefault((owner["kind"], owner["container"]), []).append(cpu)
    return sorted(
        pieces.items(), key=lambda piece: ("exclusive", "reserved", "shared", "offline").index(piece[0][0])
    )


def _node_axis(field: Field, ids: Sequence[int]) -> list[Markup]:
    foot = field.height - BOTTOM + 16
    numbers = [
        text(field.x(column + 0.5), foot, number, text_anchor="middle") for column, number in enumerate(ids)
    ]
    return [
        *numbers,
        text(field.width - RIGHT, field.height - 4, "NUMA node", text_anchor="end", class_="unit"),
    ]


def _fragmentation_bar(field: Field, column: int, number: int, of: int, row: Row) -> Markup:
    part = 0.76 / of
    left = field.x(column + 0.12 + part * number)
    width = field.x(column + 0.12 + part * (number + 1)) - left
    percent = 100 * row["fragmentation"]
    top = field.y(percent)
    words = f"NUMA {row['id']}: {percent:.0f} % of {row['available']} available CPUs"
    shapes = [bar(left, top, width - 1, field.y(0) - top, words, class_=f"area s{number}")]
    if width >= 20:
        shapes.append(
            text(
                left + width / 2,
                top - 3,
                f"{percent:.0f}" if row["available"] else "full",
                text_anchor="middle",
                class_="value",
            )
        )
    return joined(shapes)


def _room(row: Row | None, number: int, letter: str, top: float, most: int) -> list[Markup]:
    name = [text(8, top + 12, letter, class_="strong")] if letter else []
    left = 26 if letter else 8
    if row is None:
        return [*name, text(left, top + 12, "not tried")]
    scale = (WIDTH - 300) / max(most, 1)
    words = f"{row['fits']}{'' if row['bounded'] else ' or more'} of {row['fits_empty']}"
    if row["refusal"]:
        words += f", then {row['refusal']['reason']}"
    return [
        *name,
        bar(left, top, row["fits_empty"] * scale, 16, class_=f"area pale s{number}"),
        bar(left, top, row["fits"] * scale, 16, row["text"], class_=f"area s{number}"),
        text(left + max(row["fits_empty"], row["fits"]) * scale + 6, top + 12, words),
    ]


def _wide_enough(columns: int) -> int:
    return max(WIDTH, LEFT + RIGHT + columns * _LEAST_COLUMN)
