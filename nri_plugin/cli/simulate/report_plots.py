"""The plots of a report as data: CPUs over the steps, by NUMA node and by container, and how many more pods fit.

Each plot becomes labels, bars and paths in pixels; `templates/plots.html.j2` writes them as SVG. Colours are CSS
classes.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from nri_plugin.cli.output import count_of
from nri_plugin.cli.simulate.report_marks import Marks, Row, is_refused, letters, names
from nri_plugin.model import bits

LEFT, RIGHT, TOP, BOTTOM = 46, 14, 26, 34
"""Pixels around the field of a plot."""
WIDTH, HEIGHT = 600, 240
TALLEST = 480
"""Pixels; columns of many containers grow up to this height, so that a pointer can hit each piece."""
_LEAST_COLUMN = 18
"""Pixels that a NUMA node has at least: its number must be readable."""
_WIDEST_COLUMN = 96
_ROW, _TEXT, _LINE, _BAR = 24, 16, 78, 260
"""Pixels of a horizontal bar's line, of a line of text, characters in one, pixels of a whole bar."""
_PIECES = ("exclusive", "pod-shared", "reserved", "shared", "isolated", "offline")
"""Kinds of owners of CPUs from the foot of a column upwards."""


@dataclass(frozen=True, slots=True)
class PlotLabel:
    """Text at a place, with the class `look`."""

    kind: ClassVar = "label"
    x: float
    y: float
    words: object
    look: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle with the tooltip `title`; `joins` identifies its container or pool."""

    kind: ClassVar = "bar"
    x: float
    y: float
    width: float
    height: float
    look: str
    title: str = ""
    joins: str | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """A line, as the attribute `d` of an SVG path."""

    kind: ClassVar = "path"
    d: str
    look: str
    title: str = ""


Shape = PlotLabel | Bar | Path


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG picture; `label` is for screen readers."""

    width: int
    height: int
    label: str
    shapes: Sequence[Shape]
    has_hatch: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Drawings with a title and a caption, and the names of the series if there are several."""

    id: str
    title: str
    caption: str
    drawings: Sequence[Drawing]
    keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PlotField:
    """The field of a plot: maps x from 0 to `columns` and y from 0 to `top` to pixels of a drawing.

    Attributes:
        width: pixels of the drawing.
        height: the same.
        columns: how many units there are along x.
        top: the largest y that is drawn.
    """

    width: int
    height: int
    columns: float
    top: float

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return round(LEFT + value * (self.width - LEFT - RIGHT) / max(self.columns, 1), 1)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        room = self.height - TOP - BOTTOM
        return round(TOP + room - value * room / (self.top or 1), 1)

    def middle_part(self, column: int) -> tuple[float, float]:
        """Left edge and width of a column, in pixels, with a limit on the width."""
        middle = self.x(column + 0.5)
        width = min(_WIDEST_COLUMN, 2 * (self.x(column + 0.88) - middle))
        return middle - width / 2, width

    def across(self, value: float, look: str) -> Path:
        """A horizontal line through the whole field."""
        return Path(f"M{LEFT} {self.y(value)}H{self.width - RIGHT}", look)

    def y_axis(self, unit: str) -> list[Shape]:
        """Lines across the field with their values at the left."""
        shapes: list[Shape] = [PlotLabel(8, TOP - 14, unit, "unit")]
        for value in ticks(self.top):
            shapes += [
                self.across(value, "grid"),
                PlotLabel(LEFT - 6, self.y(value) + 4, f"{value:g}", anchor="end"),
            ]
        return shapes

    def x_axis(self, marks: Iterable[tuple[float, object]], unit: str) -> list[Shape]:
        """Values or names below the field."""
        foot = self.height - BOTTOM + 16
        return [
            *(PlotLabel(self.x(place), foot, words, anchor="middle") for place, words in marks),
            PlotLabel(self.width - RIGHT, self.height - 4, unit, "unit", "end"),
        ]


def bar(
    x: float, y: float, width: float, height: float, look: str, title: str = "", joins: str | None = None
) -> Bar:
    """A bar, rounded to tenths of a pixel and without a negative size."""
    return Bar(
        round(x, 1), round(y, 1), round(max(width, 0), 1), round(max(height, 0), 1), look, title, joins
    )


def ticks(top: float) -> list[float]:
    """Round values from 0 to `top`, about five."""
    if top <= 0:
        return [0]
    step = _round_step(top / 4)
    return [round(step * number, 10) for number in range(int(top / step + 1e-9) + 1)]


def rounded_top(top: float) -> float:
    """The first round value that is not below `top`."""
    if top <= 0:
        return 1
    step = _round_step(top / 4)
    return round(math.ceil(top / step - 1e-9) * step, 10)


def _round_step(about: float) -> float:
    # 1, 2, 5 or 10 times a power of ten; the tolerance keeps 0.2 from being rounded up to 0.5 by a rounding error.
    power: float = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * (1 - 1e-9))


def plots(simulations: Sequence[Row], marks: Marks) -> list[Plot]:
    """The plots that have data."""
    shown = [over_steps(simulations), by_numa_node(simulations, marks), fragmentation(simulations)]
    return shown + [capacity(simulations)] * any(simulation["capacity"] for simulation in simulations)


def over_steps(simulations: Sequence[Row]) -> Plot:
    """Exclusive CPUs after each step, a line for each simulation, and a cross for every refusal."""
    steps = max(len(simulation["steps"]) for simulation in simulations)
    most = max(allocatable(simulation) for simulation in simulations)
    field = PlotField(WIDTH, HEIGHT, steps, rounded_top(most))
    numbers = [(value, f"{value:g}") for value in ticks(steps) if value == int(value)]
    shapes = [*field.y_axis("exclusive CPUs"), *field.x_axis(numbers, "step"), field.across(most, "ceiling")]
    told = []
    for number, (simulation, name) in enumerate(zip(simulations, names(simulations), strict=True)):
        values = [step["exclusive_cpus"] for step in simulation["steps"]]
        shapes += [Path(staircase(field, values), f"line s{number}"), *_crosses(field, simulation, number)]
        told.append(
            f"{name}: {count_of(values[-1] if values else 0, 'CPU')} exclusive after {len(values)} steps"
        )
    caption = "After each step of the scenario. A cross is a step in which something was refused; the dotted line is all that may be exclusive."
    drawing = Drawing(WIDTH, HEIGHT, "; ".join(told), shapes)
    return Plot("plot-steps", "Exclusive CPUs over the steps", caption, [drawing], keys(simulations))


def staircase(field: PlotField, values: Sequence[float]) -> str:
    """The path of a line that is level until the next value."""
    steps = (f"H{field.x(number)}V{field.y(value)}" for number, value in enumerate(values, 1))
    return f"M{field.x(0)} {field.y(0)}" + "".join(steps)


def _crosses(field: PlotField, simulation: Row, series: int) -> Iterable[Path]:
    for place, step in enumerate(simulation["steps"], 1):
        refused = [row["key"] for row in step["containers"] if is_refused(row)]
        refused += [step["target"]] * bool(step["refusal"])
        if refused:
            x, y = field.x(place), field.y(step["exclusive_cpus"])
            words = f"step {step['number']}: refused {', '.join(refused)}"
            yield Path(f"M{x - 3} {y - 3}l6 6m0 -6l-6 6", f"cross s{series}", words)


def keys(simulations: Sequence[Row]) -> list[str]:
    """Names for the key of a plot; none where there is only one series."""
    return names(simulations) if len(simulations) > 1 else []


def allocatable(simulation: Row) -> int:
    """The number of CPUs that can be exclusive."""
    return sum(node["allocatable"] for node in simulation["numa_nodes"])


def by_numa_node(simulations: Sequence[Row], marks: Marks) -> Plot:
    """A column for each NUMA node, cut into the CPUs of each container."""
    caption = (
        "Each piece is the CPUs of one container, or those that the containers of one pod share, on that node; "
        "grey is shared, hatched reserved."
    )
    drawings = [
        _columns(simulation, number, f"CPUs {letter}".rstrip(), marks)
        for number, (simulation, letter) in enumerate(zip(simulations, letters(simulations), strict=True))
    ]
    return Plot("plot-numa", "CPUs per container by NUMA node", caption, drawings)


def _columns(simulation: Row, number: int, unit: str, marks: Marks) -> Drawing:
    nodes = [node for node in simulation["machine"]["numa_nodes"] if node["cpus"]]
    pieces_by_node = [_pieces(node, simulation) for node in nodes]
    # A pointer must hit each piece, so the node with most pieces sets the height.
    height = min(TALLEST, max(HEIGHT, 6 * max(map(len, pieces_by_node))))
    field = PlotField(
        _width_of(len(nodes)), height, len(nodes), rounded_top(max(len(node["cpus"]) for node in nodes))
    )
    pool = bits.parse_list(simulation["totals"]["shared_pool"])
    shapes = field.y_axis(unit)
    for column, (node, pieces) in enumerate(zip(nodes, pieces_by_node, strict=True)):
        left, width = field.middle_part(column)
        below = 0
        for (kind, key), cpus in pieces:
            y = field.y(below + len(cpus))
            tall = field.y(below) - y
            below += len(cpus)
            joins = str(marks.number(key)) if key else f"p{number}" if pool & bits.from_ids(cpus) else None
            colour = marks.colour(key)
            whose = f"{key}, shared in the pod" if kind == "pod-shared" else key or kind
            words = f"NUMA {node['id']}: {whose}, {count_of(len(cpus), 'CPU')}"
            shapes.append(bar(left, y, width, tall, f"piece {kind} {colour}".rstrip(), words, joins))
            if key and tall >= 11 and width >= 12:
                place = left + width / 2, y + tall / 2 + 4
                shapes.append(PlotLabel(*place, marks.letter(key), f"letter {colour}", "middle"))
    shapes += _node_axis(field, nodes)
    label = f"{unit} per container by NUMA node"
    return Drawing(field.width, height, label, shapes, has_hatch=number == 0)


def _pieces(node: Row, simulation: Row) -> list[tuple[tuple[str, str], list[int]]]:
    """The CPUs of a node by kind and owner: containers in order, pods, then reserved and shared ones."""
    pieces: dict[tuple[str, str], list[int]] = {}
    owners = {owner["cpu"]: owner for owner in simulation["owners"]}
    for cpu in node["cpus"]:
        owner = owners.get(cpu, {"kind": "shared", "container": "", "pod": ""})
        pieces.setdefault((owner["kind"], owner["container"] or owner["pod"]), []).append(cpu)
    return sorted(pieces.items(), key=lambda piece: _PIECES.index(piece[0][0]))


def _node_axis(field: PlotField, nodes: Sequence[Row]) -> list[Shape]:
    return field.x_axis(((column + 0.5, node["id"]) for column, node in enumerate(nodes)), "NUMA node")


def fragmentation(simulations: Sequence[Row]) -> Plot:
    """Bars from 0 to 100 % for each NUMA node that has CPUs, one beside the other for two simulations."""
    title = "Fragmentation by NUMA node"
    nodes = [node for node in simulations[0]["numa_nodes"] if node["cpus"]]
    field = PlotField(_width_of(len(nodes) * len(simulations)), HEIGHT, len(nodes), 100)
    shapes = field.y_axis("%")
    for number, simulation in enumerate(simulations):
        rows = {row["id"]: row for row in simulation["numa_nodes"]}
        for column, node in enumerate(nodes):
            row = rows[node["id"]]
            start, whole = field.middle_part(column)
            width = whole / len(simulations)
            left = start + width * number
            percent = 100 * row["fragmentation"]
            top = field.y(percent)
            words = f"NUMA {row['id']}: {percent:.0f} % of {row['available']} available CPUs"
            shapes.append(bar(left, top, width - 1, field.y(0) - top, f"area s{number}", words))
            if width >= 20:
                value = f"{percent:.0f}" if row["available"] else "full"
                shapes.append(PlotLabel(left + width / 2, top - 3, value, "value", "middle"))
    shapes += _node_axis(field, nodes)
    caption = "The share of the available CPUs that sit in L3 caches which others already use in part: 0 % is unbroken."
    drawing = Drawing(field.width, HEIGHT, title, shapes)
    return Plot("plot-fragmentation", title, caption, [drawing], keys(simulations))


def capacity(simulations: Sequence[Row]) -> Plot:
    """The number of further pods of each shape that fit, beside the number that fits on an empty machine."""
    title = "How many more pods fit"
    rows_by_simulation = [{row["shape"]: row for row in simulation["capacity"]} for simulation in simulations]
    text_by_shape: dict[str, str] = {}
    for rows in rows_by_simulation:
        for shape, row in rows.items():
            text_by_shape.setdefault(shape, row["text"])
    shapes: list[Shape] = []
    top = 0
    for shape, text in text_by_shape.items():
        for line in textwrap.wrap(text, _LINE):
            top += _TEXT
            shapes.append(PlotLabel(8, top, line, "strong"))
        top += 6
        for number, (rows, letter) in enumerate(zip(rows_by_simulation, letters(simulations), strict=True)):
            shapes += _room(rows.get(shape), number, letter, top)
            top += _ROW
        top += 6
    caption = (
        "Tried until one is refused. The pale bar is how many fit on the same machine with nothing on it."
    )
    return Plot("plot-capacity", title, caption, [Drawing(WIDTH, top, title, shapes)], keys(simulations))


def _room(row: Row | None, number: int, letter: str, top: float) -> Iterable[Shape]:
    """The bar of one shape: its whole length is the empty machine, its full colour the pods that still fit."""
    left = 8
    if letter:
        yield PlotLabel(8, top + 12, letter, "strong")
        left = 26
    if row is None:
        yield PlotLabel(left, top + 12, "not tried")
        return
    empty = row["fits_empty"]
    words = f"{row['fits']}{'' if row['bounded'] else ' or more'}"
    words += "" if empty is None else f", {empty} when empty"
    if row["refusal"]:
        words += f"; then {row['refusal']['reason']}"
    share = row["fits"] / max(empty or 0, row["fits"], 1)
    yield bar(left, top, _BAR, 16, f"area pale s{number}")
    yield bar(left, top, _BAR * share, 16, f"area s{number}", row["text"])
    yield PlotLabel(left + _BAR + 8, top + 12, words)


def _width_of(columns: int) -> int:
    return max(WIDTH, LEFT + RIGHT + columns * _LEAST_COLUMN)
