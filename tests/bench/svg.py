"""Line charts side by side as SVG text, by hand: no plotting library is worth it for two panels."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 460, 320
LEFT, RIGHT, TOP, BOTTOM = 80, 24, 44, 92
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b7791f", "#555555")

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; `spread` is half the height of the bar at each point, if it has any."""

    name: str
    points: Sequence[Point]
    spread: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart; `ticks` are the labelled values of either axis, whose first and last bound it."""

    title: str
    x_name: str
    y_name: str
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    lines: Sequence[Line]
    is_log: bool = True


def chart(title: str, panels: Sequence[Panel], columns: int = 2) -> str:
    """The panels, row by row, below a title."""
    rows = -(-len(panels) // columns)
    width, height = WIDTH * min(columns, len(panels)), HEIGHT * rows + 30
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text { font-family: sans-serif }</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(width / 2, 20, title, size=15),
    ]
    for number, panel in enumerate(panels):
        x, y = WIDTH * (number % columns), HEIGHT * (number // columns) + 30
        body += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*body, "</svg>", ""])


def _panel(panel: Panel) -> Iterator[str]:
    across = _scale(panel.x_ticks, LEFT, WIDTH - RIGHT, is_log=panel.is_log)
    up = _scale(panel.y_ticks, HEIGHT - BOTTOM, TOP, is_log=panel.is_log)
    yield _text((LEFT + WIDTH - RIGHT) / 2, 26, panel.title, size=13)
    yield from _axes(panel, across, up)
    for number, line in enumerate(panel.lines):
        yield from _line(line, COLOURS[number % len(COLOURS)], across, up)
        yield from _legend(line.name, number)


def _scale(ticks: Sequence[float], begin: float, end: float, *, is_log: bool) -> Callable[[float], float]:
    low, high = ticks[0], ticks[-1]

    def place(value: float) -> float:
        value = min(max(value, low), high)
        part = math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)
        return round(begin + part * (end - begin), 1)

    return place


def _axes(panel: Panel, across: Callable[[float], float], up: Callable[[float], float]) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in panel.y_ticks:
        yield f'<path d="M{LEFT} {up(value)}H{right}" stroke="#ddd"/>'
        yield _text(LEFT - 6, up(value) + 4, f"{value:,g}", anchor="end")
    for value in panel.x_ticks:
        yield f'<path d="M{across(value)} {bottom}v5" stroke="#333"/>'
        yield _text(across(value), bottom + 18, f"{value:,g}")
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#333"/>'
    yield _text((LEFT + right) / 2, bottom + 36, panel.x_name)
    yield _text(16, (TOP + bottom) / 2, panel.y_name, turn=True)


def _line(
    line: Line, colour: str, across: Callable[[float], float], up: Callable[[float], float]
) -> Iterator[str]:
    path = " ".join(f"{across(x)},{up(y)}" for x, y in line.points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in line.points:
        yield f'<circle cx="{across(x)}" cy="{up(y)}" r="3" fill="{colour}"/>'
    for (x, y), half in zip(line.points, line.spread, strict=False):
        yield f'<path d="M{across(x)} {up(y - half)}V{up(y + half)}" stroke="{colour}"/>'


def _legend(name: str, number: int) -> Iterator[str]:
    x, y = LEFT + (number % 2) * 190, HEIGHT - BOTTOM + 58 + (number // 2) * 18
    yield f'<path d="M{x} {y - 4}h18" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="3"/>'
    yield _text(x + 24, y, name, anchor="start")


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "middle", turn: bool = False
) -> str:
    turned = f' transform="rotate(-90 {x:g} {y:g})"' if turn else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{turned}>{escape(text)}</text>'
    )
