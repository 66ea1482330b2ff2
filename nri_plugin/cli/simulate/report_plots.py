"""The plots of a report: CPUs over the steps, by NUMA node and by container, and what still fits."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from nri_plugin.cli.simulate.report_marks import (
    Marks,
    Markup,
    Row,
    Value,
    cpu_count,
    element,
    is_refused,
    joined,
    letters,
    names,
)
from nri_plugin.model import bits

# ----------------------------------------------------------------------------------------------------
# What the plots of a report share: the frame, axes, bars and lines of small SVG drawings.
#
# Colours are CSS classes, so that a plot follows the page into the dark and onto paper. Every figure has its
# number written beside it or is said in a title, so that nothing needs a mouse.


LEFT, RIGHT, TOP, BOTTOM = 46, 14, 26, 34
"""Pixels around the field of a plot."""


@dataclass(frozen=True, slots=True)
class Field:
    """Where values fall: x from 0 to `columns`, y from 0 to `top`.

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


def drawing(width: int, height: int, *shapes: Markup, label: str) -> Markup:
    """An SVG picture that a screen reader hears as `label`."""
    size: dict[str, Value] = {"width": width, "height": height, "viewBox": f"0 0 {width} {height}"}
    return element("svg", *shapes, class_="plot", role="img", aria_label=label, **size)


def figure(title: str, caption: str, *pictures: Markup, id_: str, keys: Sequence[str] = ()) -> Markup:
    """Drawings with what they show; wider than the screen they scroll by themselves.

    Args:
        title: its name.
        caption: how to read it.
        pictures: drawings.
        id_: to find it by.
        keys: names of the series, where there are several.
    """
    legend = [
        element("span", element("i", class_=f"key s{number}"), " ", name) for number, name in enumerate(keys)
    ]
    words = element(
        "figcaption", element("h3", title), element("p", caption), element("p", *legend, class_="keys")
    )
    return element(
        "figure", words, *(element("div", picture, class_="scroll") for picture in pictures), id=id_
    )


def y_axis(field: Field, unit: str) -> list[Markup]:
    """Lines across the field with their values at the left."""
    lines = [text(8, TOP - 14, unit, class_="unit")]
    for value in ticks(field.top):
        height = field.y(value)
        lines += [
            element("line", x1=LEFT, x2=field.width - RIGHT, y1=height, y2=height, class_="grid"),
            text(LEFT - 6, height + 4, f"{value:g}", text_anchor="end"),
        ]
    return lines


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


def text(x: float, y: float, words: object, **attributes: Value) -> Markup:
    """Words at a place."""
    return element("text", words, x=x, y=y, **attributes)


def bar(x: float, y: float, width: float, height: float, title: str = "", **attributes: Value) -> Markup:
    """A rectangle, with what a mouse is told over it."""
    size = {
        "x": round(x, 1),
        "y": round(y, 1),
        "width": round(max(width, 0), 1),
        "height": round(max(height, 0), 1),
    }
    if not title:
        return element("rect", **size, **attributes)
    return Markup(f"<g>{element('title', title)}{element('rect', **size, **attributes)}</g>")


def staircase(field: Field, values: Sequence[float], **attributes: Value) -> Markup:
    """A line that stays where it is until the next value."""
    path = [f"M{field.x(0)} {field.y(0)}"]
    for number, value in enumerate(values):
        path.append(f"H{field.x(number + 1)}V{field.y(value)}")
    return element("path", d="".join(path), **attributes)


def _round_step(about: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * (1 - 1e-9))


# ----------------------------------------------------------------------------------------------------


WIDTH, HEIGHT = 600, 240
TALLEST = 480
"""Pixels; columns of many containers grow up to it, so that each piece can be pointed at."""
_LEAST_COLUMN = 18
"""Pixels that a NUMA node has at least: its number must be readable."""
_WIDEST_COLUMN = 96
_ROW, _TEXT, _LINE, _BAR = 24, 16, 78, 260
"""Pixels of a horizontal bar's line, of a line of text, characters in one, pixels of a whole bar."""


_HATCH = element(
    "pattern",
    element("rect", width=2, height=5, class_="stripe"),
    id="hatch",
    width=5,
    height=5,
    patternUnits="userSpaceOnUse",
    patternTransform="rotate(45)",
)
"""Of reserved CPUs; drawn once, meant by the style."""

Pieces = list[tuple[tuple[str, str], list[int]]]
"""Kind and container of an owner with its CPUs."""


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
    for number, simulation in enumerate(simulations):
        values = [step["exclusive_cpus"] for step in simulation["steps"]]
        shapes.append(staircase(field, values, class_=f"line s{number}"))
        shapes += _crosses(field, simulation, number)
    last = "; ".join(
        _last_words(simulation, name)
        for simulation, name in zip(simulations, names(simulations), strict=True)
    )
    caption = "After each step of the scenario. A cross is a step in which something was refused; the dotted line is all that may be exclusive."
    return figure(
        "Exclusive CPUs over the steps",
        caption,
        drawing(WIDTH, HEIGHT, *shapes, label=last),
        keys=keys(simulations),
        id_="plot-steps",
    )


def keys(simulations: Sequence[Row]) -> list[str]:
    """Names for the key of a plot; none where there is nothing to tell apart."""
    return names(simulations) if len(simulations) > 1 else []


def allocatable(simulation: Row) -> int:
    """How many CPUs of the machine may be exclusive at all."""
    return sum(node["allocatable"] for node in simulation["numa_nodes"])


def by_numa_node(simulations: Sequence[Row], marks: Marks) -> Markup:
    """A column for each NUMA node, cut into containers: who has how many CPUs where."""
    caption = "Each piece is the CPUs that one container has of its own on that node; grey is shared, hatched reserved."
    pictures = [
        _columns(simulation, number, f"CPUs {letter}".rstrip(), marks)
        for number, (simulation, letter) in enumerate(zip(simulations, letters(simulations), strict=True))
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
    caption = "The share of the available CPUs that sit in L3 caches which others already use in part: 0 % is unbroken."
    return figure(
        "Fragmentation by NUMA node",
        caption,
        drawing(width, HEIGHT, *shapes, label="Fragmentation by NUMA node"),
        keys=keys(simulations),
        id_="plot-fragmentation",
    )


def capacity(simulations: Sequence[Row]) -> Markup:
    """How many more pods of each shape fit, against how many fit on an empty machine."""
    shapes = list(dict.fromkeys(row["shape"] for simulation in simulations for row in simulation["capacity"]))
    rows_by_simulation = [{row["shape"]: row for row in simulation["capacity"]} for simulation in simulations]
    pieces: list[Markup] = []
    top = 0
    for shape in shapes:
        row = next(rows[shape] for rows in rows_by_simulation if shape in rows)
        for line in textwrap.wrap(row["text"], _LINE):
            top += _TEXT
            pieces.append(text(8, top, line, class_="strong"))
        top += 6
        for number, (rows, letter) in enumerate(zip(rows_by_simulation, letters(simulations), strict=True)):
            pieces += _room(rows.get(shape), number, letter, top)
            top += _ROW
        top += 6
    caption = (
        "Tried until one is refused. The pale bar is how many fit on the same machine with nothing on it."
    )
    return figure(
        "How many more pods fit",
        caption,
        drawing(WIDTH, top, *pieces, label="How many more pods fit"),
        keys=keys(simulations),
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
        refused = [row["key"] for row in step["containers"] if is_refused(row)]
        refused += [step["target"]] * bool(step["refusal"])
        if refused:
            x, y = field.x(place + 1), field.y(step["exclusive_cpus"])
            path = f"M{x - 3} {y - 3}l6 6m0 -6l-6 6"
            words = element("title", f"step {step['number']}: refused {', '.join(refused)}")
            crosses.append(element("g", words, element("path", d=path, class_=f"cross s{number}")))
    return crosses


def _columns(simulation: Row, number: int, name: str, marks: Marks) -> Markup:
    nodes = [node for node in simulation["machine"]["numa_nodes"] if node["cpus"]]
    most = max(len(node["cpus"]) for node in nodes)
    pieces_by_column = [_pieces(node, simulation) for node in nodes]
    most_pieces = max(len(pieces) for pieces in pieces_by_column)
    width, height = _wide_enough(len(nodes)), min(TALLEST, max(HEIGHT, 6 * most_pieces))
    field = Field(width, height, len(nodes), rounded_top(most))
    shapes = y_axis(field, name)
    for column, (node, pieces) in enumerate(zip(nodes, pieces_by_column, strict=True)):
        shapes += _column(field, column, node, pieces, _Joins(simulation, number, marks))
    shapes += _node_axis(field, [node["id"] for node in nodes])
    shapes += [_HATCH] * (number == 0)
    return drawing(width, height, *shapes, label=f"{name} per container by NUMA node")


class _Joins:
    """What a piece of a column belongs to in one simulation."""

    def __init__(self, simulation: Row, number: int, marks: Marks) -> None:
        self.marks = marks
        self._pool = bits.parse_list(simulation["totals"]["shared_pool"])
        self._name = f"p{number}"

    def name(self, key: str, cpus: Sequence[int]) -> str | None:
        """The container's number, or the shared pool's name; None for reserved CPUs outside the pool."""
        if key:
            return str(self.marks.number(key))
        return self._name if self._pool & bits.from_ids(cpus) else None


def _column(field: Field, column: int, node: Row, pieces: Pieces, joins: _Joins) -> list[Markup]:
    left, width = _middle_part(field, column)
    shapes = []
    below = 0
    for (kind, key), cpus in pieces:
        y, height = field.y(below + len(cpus)), field.y(below) - field.y(below + len(cpus))
        words = f"NUMA {node['id']}: {key or kind}, {cpu_count(len(cpus))}"
        colour = joins.marks.colour(key)
        look = " ".join(filter(None, ["piece", kind, colour]))
        shapes.append(bar(left, y, width, height, words, class_=look, data_c=joins.name(key, cpus)))
        if key and height >= 11 and width >= 12:
            middle = left + width / 2, y + height / 2 + 4
            shapes.append(
                text(*middle, joins.marks.letter(key), class_=f"letter {colour}", text_anchor="middle")
            )
        below += len(cpus)
    return shapes


def _pieces(node: Row, simulation: Row) -> Pieces:
    """The CPUs of a node by who has them: containers in order, then reserved and shared ones."""
    pieces: dict[tuple[str, str], list[int]] = {}
    owners = {owner["cpu"]: owner for owner in simulation["owners"]}
    for cpu in node["cpus"]:
        owner = owners.get(cpu, {"kind": "shared", "container": ""})
        pieces.setdefault((owner["kind"], owner["container"]), []).append(cpu)
    return sorted(
        pieces.items(),
        key=lambda piece: ("exclusive", "reserved", "shared", "isolated", "offline").index(piece[0][0]),
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
    start, whole = _middle_part(field, column)
    width = whole / of
    left = start + width * number
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


def _room(row: Row | None, number: int, letter: str, top: float) -> list[Markup]:
    """The bar of one shape: its whole length is the empty machine, its full colour what still fits."""
    name = [text(8, top + 12, letter, class_="strong")] if letter else []
    left = 26 if letter else 8
    if row is None:
        return [*name, text(left, top + 12, "not tried")]
    empty = row["fits_empty"]
    words = f"{row['fits']}{'' if row['bounded'] else ' or more'}"
    words += "" if empty is None else f", {empty} when empty"
    if row["refusal"]:
        words += f"; then {row['refusal']['reason']}"
    share = row["fits"] / max(empty or 0, row["fits"], 1)
    return [
        *name,
        bar(left, top, _BAR, 16, class_=f"area pale s{number}"),
        bar(left, top, _BAR * share, 16, row["text"], class_=f"area s{number}"),
        text(left + _BAR + 8, top + 12, words),
    ]


def _middle_part(field: Field, column: int) -> tuple[float, float]:
    """Left edge and width of a column, never so wide that two columns look like two walls."""
    middle = field.x(column + 0.5)
    width = min(_WIDEST_COLUMN, 2 * (field.x(column + 0.88) - middle))
    return middle - width / 2, width


def _wide_enough(columns: int) -> int:
    return max(WIDTH, LEFT + RIGHT + columns * _LEAST_COLUMN)
