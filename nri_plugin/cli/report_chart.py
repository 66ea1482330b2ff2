"""What the plots of a report share: the frame, axes, bars and lines of small SVG drawings.

Colours are CSS classes, so that a plot follows the page into the dark and onto paper. Every figure has its
number written beside it or is said in a title, so that nothing needs a mouse.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nri_plugin.cli.report_markup import Markup, Value, element

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
