"""Boxes of an svg picture, laid out from the inside out: every item knows its size before it is placed."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nri_plugin.topology import Topology

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
class Item:
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
    """A coordinate without digits that nobody sees."""
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


def grid(items: Sequence[Item], columns: int, gap: float = GAP) -> Item:
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

    return Item(_total(widths, gap), _total(heights, gap), draw)


def best_grid(items: Sequence[Item], gap: float = GAP, widest: float = math.inf) -> Item:
    """The grid whose shape comes nearest to a good one, rather without a half-empty last row."""
    candidates = [grid(items, columns, gap) for columns in _column_counts(len(items))]
    fitting = [one for one in candidates if one.width <= widest] or candidates[:1]
    counts = dict(zip(map(id, candidates), _column_counts(len(items)), strict=True))

    def badness(one: Item) -> float:
        empty = -len(items) % counts[id(one)] / counts[id(one)]
        return abs(math.log(one.width / max(one.height, 1) / BEST_RATIO)) + empty

    return min(fitting, key=badness)


def stacked(items: Sequence[Item], gap: float = GAP) -> Item:
    """The items below each other."""
    return grid(items, 1, gap)


def frame(title: str, hover: str, kind: str, content: Item, aside: Item | None = None) -> Item:
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

    return Item(width, height, draw)


def describe_node(topology: Topology, place: int) -> str:
    """What is said of the NUMA node at a place of the machine's list."""
    from nri_plugin.cli.picture import memory_text

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
