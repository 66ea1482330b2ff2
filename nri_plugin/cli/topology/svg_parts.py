"""Parts of the SVG picture of a machine: style sheet, boxes, and the matrix of distances.

Boxes are laid out from the inside out: every box knows its size before it is placed. Colours are in classes, never in
variables, because converters such as rsvg-convert know no variables.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nri_plugin.cli.topology.distances import UNKNOWN, Scale, scale_of
from nri_plugin.cli.topology.palette import Paint, ink_on
from nri_plugin.cli.topology.picture import CPUOwner
from nri_plugin.model.topology import Topology

FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
SHARED_FILL = "#d8dee4"

_LIGHT = {
    ".page": "fill:#ffffff",
    ".title,.number,.label": "fill:#1f2328",
    ".muted": "fill:#59636e",
    ".frame": "stroke-width:1",
    ".socket>.frame": "fill:#f6f8fa;stroke:#6e7781",
    ".node>.frame": "fill:#e6f1fb;stroke:#0087d7",
    ".cache>.frame": "fill:#f3f8f1;stroke:#5f875f",
    ".core>.frame": "fill:#ffffff;stroke:#b6bec7",
    ".plain": f"fill:{SHARED_FILL}",
    ".offline": "fill:none;stroke:#6e7781;stroke-dasharray:3 2",
    ".hatch": "stroke:#8c959f;stroke-width:1.4",
    ".dot": "fill:#99a2ac",
}
_DARK = {
    ".page": "fill:#0d1117",
    ".title,.number,.label": "fill:#e6edf3",
    ".muted": "fill:#9198a1",
    ".socket>.frame": "fill:#161b22;stroke:#8b949e",
    ".node>.frame": "fill:#12263a;stroke:#2f8fd8",
    ".cache>.frame": "fill:#15241a;stroke:#6f9f6f",
    ".core>.frame": "fill:#0d1117;stroke:#484f58",
    ".plain": "fill:#3d444d",
    ".offline": "fill:none;stroke:#8b949e;stroke-dasharray:3 2",
    ".hatch": "stroke:#6e7681;stroke-width:1.4",
    ".dot": "fill:#6e7681",
}

PATTERNS = (
    '<defs><pattern id="reserved" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect class="plain" width="8" height="8"/><line class="hatch" x1="0" y1="0" x2="0" y2="8"/></pattern>'
    '<pattern id="isolated" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect class="plain" width="6" height="6"/><circle class="dot" cx="3" cy="3" r="1.1"/></pattern></defs>'
)


def style_sheet(owners: Sequence[CPUOwner], paints: Sequence[Paint]) -> str:
    """The style sheet; it highlights the owner under the pointer in machine and legend, without a script."""
    lines = [f"text{{font-family:{FONT};font-variant-ligatures:none}}", ".letter{font-weight:700}"]
    lines += [".strong{font-weight:700}", ".cpu:hover>rect{stroke:#e3b341;stroke-width:2}"]
    lines += _rules(_LIGHT)
    lines += [
        f".k{at}{{fill:{paint.fill}}}.i{at}{{fill:{paint.ink}}}"
        for at, paint in enumerate(paints)
        if paint.fill
    ]
    lines += [
        f"svg:has(.o{at}:hover) .cpu:not(.o{at}){{opacity:.25}}"
        for at, owner in enumerate(owners)
        if owner.cpus
    ]
    lines.append("@media (prefers-color-scheme:dark){" + "".join(_rules(_DARK)) + "}")
    lines.append("@media print{" + "".join(_rules(_LIGHT)) + "}")
    return "<style>" + "\n".join(lines) + "</style>"


def _rules(look: dict[str, str]) -> list[str]:
    return [f"{what}{{{how}}}" for what, how in look.items()]


CHARACTER = 0.61
"""Width of a character, in font sizes; monospaced fonts have 0.55 to 0.6."""
GAP = 6
PADDING = 7
TITLE = 13
"""Font size of what stands in a frame."""
BEST_RATIO = 1.7
"""Width to height of a grid that is pleasant to look at on a screen."""

Drawing = Callable[[float, float], Iterable[str]]


@dataclass(frozen=True, slots=True)
class SVGBox:
    """Something of a known size; `draw` gives its elements with the upper left corner at (x, y)."""

    width: float
    height: float
    draw: Drawing


def escape(text: str) -> str:
    """Text that can stand anywhere in XML: no markup, and no character that XML does not know."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def text_width(text: str, size: float) -> float:
    """How wide a text is."""
    return len(text) * size * CHARACTER


def number(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def text(x: float, y: float, what: str, kind: str, size: float = TITLE, anchor: str = "") -> str:
    """One line of text with its base line at y."""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{kind}" x="{number(x)}" y="{number(y)}" font-size="{number(size)}"{where}>{escape(what)}</text>'


def rectangle(x: float, y: float, width: float, height: float, more: str, radius: float = 3) -> str:
    """A rectangle; `more` are its other attributes."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
        f'rx="{number(radius)}" {more}/>'
    )


def grid(items: Sequence[SVGBox], columns: int, gap: float = GAP) -> SVGBox:
    """The items in rows, each column as wide as its widest and each row as high as its highest."""
    rows = [items[start : start + columns] for start in range(0, len(items), columns)]
    widths = [max(row[at].width for row in rows if at < len(row)) for at in range(min(columns, len(items)))]
    heights = [max(item.height for item in row) for row in rows]

    def draw(x: float, y: float) -> Iterable[str]:
        for row, height in zip(rows, heights, strict=True):
            left = x
            for item, width in zip(row, widths, strict=False):
                yield from item.draw(left, y)
                left += width + gap
            y += height + gap

    return SVGBox(_total(widths, gap), _total(heights, gap), draw)


def best_grid(items: Sequence[SVGBox], gap: float = GAP, widest: float = math.inf) -> SVGBox:
    """The grid whose shape is closest to `BEST_RATIO`; a half-empty last row counts against it."""
    # Few numbers of columns are tried, so each grid is laid out; where all are too wide the narrowest is taken.
    candidates = [grid(items, columns, gap) for columns in _column_counts(len(items))]
    fitting = [one for one in candidates if one.width <= widest] or candidates[:1]
    counts = dict(zip(map(id, candidates), _column_counts(len(items)), strict=True))

    def badness(one: SVGBox) -> float:
        empty = -len(items) % counts[id(one)] / counts[id(one)]
        return abs(math.log(one.width / max(one.height, 1) / BEST_RATIO)) + empty

    return min(fitting, key=badness)


def stacked(items: Sequence[SVGBox], gap: float = GAP) -> SVGBox:
    """The items below each other."""
    return grid(items, 1, gap)


def frame(title: str, hover: str, kind: str, content: SVGBox, aside: SVGBox | None = None) -> SVGBox:
    """A box with a title above its content; what stands aside is at the right end of the title."""
    aside_width = aside.width + GAP if aside else 0
    width = max(content.width, text_width(title, TITLE) + aside_width) + 2 * PADDING
    top = PADDING + TITLE + 5
    height = top + content.height + PADDING if content.height else top + PADDING - 5

    def draw(x: float, y: float) -> Iterable[str]:
        yield f'<g class="{kind}"><title>{escape(hover)}</title>'
        yield rectangle(x, y, width, height, 'class="frame"')
        yield text(x + PADDING, y + PADDING + TITLE - 3, title, "title")
        if aside:
            yield from aside.draw(x + width - PADDING - aside.width, y + PADDING - 2)
        yield from content.draw(x + PADDING, y + top)
        yield "</g>"

    return SVGBox(width, height, draw)


def describe_node(topology: Topology, place: int) -> str:
    """The tooltip of the NUMA node at an index of the machine's list."""
    from nri_plugin.cli.topology.picture import memory_text

    node = topology.nodes[place]
    parts = [f"NUMA node {node.id}", f"CPUs {node.cpus}" if node.cpus else "no CPUs"]
    parts.append(
        "memory unknown" if node.memory_bytes is None else f"{memory_text(node.memory_bytes)} memory"
    )
    parts += [f"{pages} huge pages of {memory_text(size << 10)}" for size, pages in node.hugepages if pages]
    return "\n".join(parts)


def _total(sizes: Sequence[float], gap: float) -> float:
    return sum(sizes) + gap * (len(sizes) - 1) if sizes else 0


def _column_counts(count: int) -> list[int]:
    """Numbers of columns worth trying: all small ones, and those that leave no empty place."""
    return [n for n in range(1, count + 1) if n <= 16 or count % n == 0]


SMALL = 10


def matrix(topology: Topology) -> SVGBox | None:
    """The matrix with its heading and a key of colours; None where a machine has no distances."""
    scale = scale_of(topology)
    if scale is None:
        return None
    side = 34 if len(topology.nodes) <= 16 else 24 if len(topology.nodes) <= 40 else 11
    return stacked(
        [_heading("distances between NUMA nodes"), _cells(topology, scale, side), _key(scale)], 2 * GAP
    )


def _heading(what: str) -> SVGBox:
    return SVGBox(text_width(what, TITLE), TITLE, lambda x, y: [text(x, y + TITLE - 3, what, "label strong")])


def _cells(topology: Topology, scale: Scale, side: float) -> SVGBox:
    names = [str(node) for node in topology.node_ids]
    size = 12 if side > 30 else 9 if side > 20 else 7
    left = text_width(names[-1], size) + GAP
    top = size + 4
    high = side if side <= 30 else 24

    def draw(x: float, y: float) -> Iterable[str]:
        is_crowded = side < 20
        for at, name in enumerate(names):
            if not is_crowded or at % 4 == 0:
                yield text(x + left + (at + 0.5) * side, y + size, name, "muted", size, "middle")
                yield text(
                    x + left - GAP / 2, y + top + (at + 0.5) * high + size * 0.35, name, "muted", size, "end"
                )
        for row, node in enumerate(topology.nodes):
            for column, value in enumerate(node.distances or ()):
                place = (x + left + column * side, y + top + row * high, side, high)
                words = f"NUMA {node.id} to NUMA {names[column]}: {value}"
                yield from _cell(scale, value, place, words, size)
            if node.distances is None:
                yield text(
                    x + left + side / 2, y + top + (row + 0.5) * high + size * 0.35, UNKNOWN, "muted", size
                )

    return SVGBox(left + side * len(names), top + high * len(names), draw)


def _cell(
    scale: Scale, value: int, place: tuple[float, float, float, float], hover: str, size: float
) -> Iterable[str]:
    x, y, width, height = place
    fill = scale.colour(value)[0]
    yield f'<g class="far"><title>{escape(hover)}</title>'
    yield rectangle(x + 0.5, y + 0.5, width - 1, height - 1, f'fill="{fill}"', 1)
    if width > 20:
        middle = (x + width / 2, y + height / 2 + size * 0.35)
        number = text(*middle, str(value), "value", size, "middle")
        yield number.replace("<text ", f'<text fill="{ink_on(fill)}" ', 1)
    yield "</g>"


def _key(scale: Scale) -> SVGBox:
    """The values of each colour, near ones first."""
    values_by_colour: dict[str, list[int]] = {}
    for value in scale.values:
        values_by_colour.setdefault(scale.colour(value)[0], []).append(value)
    return grid([_swatch(fill, values) for fill, values in values_by_colour.items()], 6, 2 * GAP)


def _swatch(fill: str, values: list[int]) -> SVGBox:
    words = str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"

    def draw(x: float, y: float) -> Iterable[str]:
        yield rectangle(x, y, 14, 12, f'fill="{fill}" class="key"', 1)
        yield text(x + 19, y + SMALL, words, "muted", SMALL + 1)

    return SVGBox(19 + text_width(words, SMALL + 1), 14, draw)
