"""The machine as one SVG file without scripts or external files; every part has a tooltip.

Boxes are laid out from the inside out: the size of a box is known before it is placed. `svg.css` has the style. Its colours
are in classes, never in variables, because converters such as rsvg-convert do not support variables.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain

from nri_plugin.cli.output import fold_words, memory_text, memory_words
from nri_plugin.cli.topology.machine_view import (
    CachePart,
    CPUOwner,
    NodePart,
    Paint,
    View,
    machine_parts,
    members,
    nodes_without_cpus,
    owner_paints,
    pci_by_node,
    resources_by_node,
    summary,
)
from nri_plugin.model import bits
from nri_plugin.model.topology import NUMANode, Topology


def style_sheet(owners: Sequence[CPUOwner]) -> str:
    """The style sheet; it also highlights the CPUs of the owner under the pointer, without a script."""
    lines = [resources.files(__package__).joinpath("svg.css").read_text("utf-8").rstrip()]
    for at, owner in enumerate(owners):
        if owner.cpus:
            lines.append(f"svg:has(.o{at}:hover) .cpu:not(.o{at}){{opacity:.25}}")
    return "<style>" + "\n".join(lines) + "</style>"


CHARACTER = 0.61
"""Width of a character as a share of the font size; monospaced fonts have 0.55 to 0.6."""
GAP = 6
PADDING = 7
TITLE = 13
"""Font size of a title in a frame."""
BEST_RATIO = 1.7
"""Width to height that a grid should have on a screen."""

Drawing = Callable[[float, float], Iterable[str]]


@dataclass(frozen=True, slots=True)
class SVGBox:
    """A part of known size, in pixels; `draw` returns its elements with the upper left corner at (x, y)."""

    width: float
    height: float
    draw: Drawing


def escape(text: str) -> str:
    """Text without markup and without characters that XML does not allow."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def text_width(text: str, size: float) -> float:
    """The width of a text, in pixels."""
    return len(text) * size * CHARACTER


def number(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def text(
    x: float, y: float, what: str, kind: str, size: float = TITLE, anchor: str = "", more: str = ""
) -> str:
    """One line of text with its base line at y; `more` holds other attributes."""
    where = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text{more} class="{kind}" x="{number(x)}" y="{number(y)}" font-size="{number(size)}"{where}>{escape(what)}</text>'


def rectangle(x: float, y: float, width: float, height: float, more: str, radius: float = 3) -> str:
    """A rectangle; `more` holds its other attributes."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
        f'rx="{number(radius)}" {more}/>'
    )


def group(kind: str, hover: str, *parts: Iterable[str]) -> Iterable[str]:
    """Elements that share a class and a tooltip; an empty `hover` for none."""
    yield f'<g class="{kind}">' + (f"<title>{escape(hover)}</title>" if hover else "")
    yield from chain(*parts)
    yield "</g>"


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
    """The grid whose shape is closest to `BEST_RATIO`; a half-empty last row counts against it.

    If every grid is wider than `widest`, the result has one column.
    """
    count = len(items)
    best, least = None, math.inf
    for columns in range(1, count + 1):
        # Small numbers of columns are tried, and those that leave no empty place.
        if columns > 16 and count % columns:
            continue
        tried = grid(items, columns, gap)
        ratio = tried.width / max(tried.height, 1)
        badness = abs(math.log(ratio / BEST_RATIO)) + -count % columns / columns
        if best is None or (tried.width <= widest and badness < least):
            best, least = tried, badness if tried.width <= widest else math.inf
    return best or grid(items, 1, gap)


def stacked(items: Sequence[SVGBox], gap: float = GAP) -> SVGBox:
    """The items below each other."""
    return grid(items, 1, gap)


def frame(title: str, hover: str, kind: str, content: SVGBox, aside: SVGBox | None = None) -> SVGBox:
    """A box with a title above its content; `aside` is at the right end of the title."""
    aside_width = aside.width + GAP if aside else 0
    width = max(content.width, text_width(title, TITLE) + aside_width) + 2 * PADDING
    top = PADDING + TITLE + 5
    height = top + content.height + PADDING if content.height else top + PADDING - 5

    def draw(x: float, y: float) -> Iterable[str]:
        own = [
            rectangle(x, y, width, height, 'class="frame"'),
            text(x + PADDING, y + PADDING + TITLE - 3, title, "title"),
        ]
        beside = aside.draw(x + width - PADDING - aside.width, y + PADDING - 2) if aside else []
        return group(kind, hover, own, beside, content.draw(x + PADDING, y + top))

    return SVGBox(width, height, draw)


def describe_node(node: NUMANode) -> str:
    """The tooltip of a NUMA node."""
    parts = [f"NUMA node {node.id}", f"CPUs {node.cpus}" if node.cpus else "no CPUs"]
    parts.append(
        "memory unknown" if node.memory_bytes is None else f"{memory_text(node.memory_bytes)} memory"
    )
    parts += [f"{pages} huge pages of {memory_text(size << 10)}" for size, pages in node.hugepages if pages]
    if node.distances is not None:
        parts.append("distances " + " ".join(map(str, node.distances)))
    return "\n".join(parts)


def _total(sizes: Sequence[float], gap: float) -> float:
    return sum(sizes) + gap * (len(sizes) - 1) if sizes else 0


MARGIN = 16
NARROWEST, WIDEST = 640.0, 1900.0
NUMBER = 11
"""Font size of a CPU's number."""
CELL_HEIGHT = 20
SWATCH = 16
LEGEND_SIZE = 12
MANY = 12
"""The most containers that the legend lists in one column."""
BARE_WIDTH = 150
"""Width of the content of a node without CPUs."""


@dataclass(frozen=True, slots=True)
class Artist:
    """The data that all parts of one picture share.

    Attributes:
        topology: the machine.
        owners: of CPUs; empty where they are not known.
        paints: letter and colour of each owner, in the same order.
        owner_by_cpu: the index into `owners`.
        cell_width: of every CPU.
        devices: lines about the devices of a NUMA node.
    """

    topology: Topology
    owners: Sequence[CPUOwner]
    paints: Sequence[Paint]
    owner_by_cpu: Mapping[int, int]
    cell_width: float
    devices: Mapping[int, Sequence[str]]


def draw_svg(view: View) -> str:
    """The picture as an SVG file in ASCII; other characters are written as references."""
    artist = _artist(view)
    machine = _machine(artist)
    width = min(max(machine.width, NARROWEST), WIDEST)
    page = stacked([_head(view, width), machine, *_legend(artist, width)], 1.2 * MARGIN)
    full = (max(page.width, width) + 2 * MARGIN, page.height + 2 * MARGIN)
    size = f'width="{number(full[0])}" height="{number(full[1])}" viewBox="0 0 {number(full[0])} {number(full[1])}"'
    lines = chain(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'],
        [f"<title>{escape(view.machine.name)}</title><desc>{escape(summary(view.topology))}</desc>"],
        [style_sheet(artist.owners)],
        [rectangle(0, 0, *full, 'class="page"', 0)],
        page.draw(MARGIN, MARGIN),
        ["</svg>"],
    )
    return "\n".join(lines).encode("ascii", "xmlcharrefreplace").decode("ascii")


def _artist(view: View) -> Artist:
    topology, owners = view.topology, view.owners or []
    owner_by_cpu: dict[int, int] = {}
    for at, owner in enumerate(owners):
        owner_by_cpu.update(dict.fromkeys(bits.iterate(owner.cpus.mask), at))
    highest = max((topology.online | topology.offline).mask.bit_length() - 1, 0)
    letters = 13 if owners else 0
    cell_width = max(text_width(str(highest), NUMBER) + 9 + letters, 22)
    devices = resources_by_node(view.machine.description)
    for node, line in pci_by_node(view.machine).items():
        devices.setdefault(node, []).append(line)
    return Artist(topology, owners, owner_paints(owners), owner_by_cpu, cell_width, devices)


def _head(view: View, width: float) -> SVGBox:
    rows = [_row(view.machine.name, "label strong", 18)]
    rows += [*_rows(summary(view.topology), "muted", TITLE, width), *_rows(view.source, "muted", 11, width)]
    return stacked(rows, 4)


def _row(what: str, kind: str, size: float) -> SVGBox:
    return SVGBox(text_width(what, size), size + 2, lambda x, y: [text(x, y + size - 2, what, kind, size)])


def _rows(what: str, kind: str, size: float, width: float) -> list[SVGBox]:
    """A text in rows of at most this width; none for an empty text."""
    rows = fold_words(what, max(int(width / (size * CHARACTER)), 24)) if what else []
    return [_row(row, kind, size) for row in rows]


def _machine(artist: Artist) -> SVGBox:
    """Sockets, and below them nodes without CPUs and offline CPUs."""
    sockets = [_socket(artist, part.id, part.cpus, part.nodes) for part in machine_parts(artist.topology)]
    items = [best_grid(sockets, 2 * GAP, WIDEST)]
    bare = [_bare_node(artist, node) for node in nodes_without_cpus(artist.topology)]
    if bare:
        items.append(grid(bare, max(1, int((max(items[0].width, NARROWEST) + GAP) / (bare[0].width + GAP)))))
    if artist.topology.offline:
        cells = [_cpu(artist, cpu, "offline") for cpu in artist.topology.offline]
        hover = f"offline CPUs {artist.topology.offline}"
        items.append(frame("offline", hover, "socket", best_grid(cells, 3, WIDEST)))
    return stacked(items, 2 * GAP)


def _socket(artist: Artist, socket: int, cpus: int, nodes: Sequence[NodePart]) -> SVGBox:
    hover = f"socket {socket}\nCPUs {bits.format_list(cpus)}"
    content = best_grid([_node(artist, part) for part in nodes], GAP, WIDEST)
    return frame(f"socket {socket}", hover, "socket", content)


def _node(artist: Artist, part: NodePart) -> SVGBox:
    title = f"NUMA {part.node.id}" + (" (part)" if part.is_part else "")
    if part.is_first and part.node.memory_bytes is not None:
        title += f" · {memory_words(part.node.memory_bytes)}"
    if artist.topology.caches_known:
        content = best_grid([_cache(artist, cache) for cache in part.caches])
    else:
        content = best_grid([_core(artist, core, cache) for cache in part.caches for core in cache.cores], 4)
    if part.is_first and part.node.id in artist.devices:
        lines = (_rows(line, "muted", NUMBER, content.width) for line in artist.devices[part.node.id])
        content = stacked([content, *chain.from_iterable(lines)], 3)
    room = content.width - text_width(title, TITLE)
    aside = _memory_of(artist, part.node.id, room) if part.is_first else None
    return frame(title, describe_node(part.node), "node", content, aside)


def _bare_node(artist: Artist, node: NUMANode) -> SVGBox:
    title = f"NUMA {node.id} · {memory_words(node.memory_bytes)}"
    aside = _memory_of(artist, node.id, BARE_WIDTH - text_width(title, TITLE))
    return frame(title, describe_node(node), "node", SVGBox(BARE_WIDTH, 0, lambda _x, _y: []), aside)


def _memory_of(artist: Artist, node: int, room: float) -> SVGBox | None:
    """Letters of the containers with memory bound to the node, as many as fit."""
    bound = [at for at, owner in enumerate(artist.owners) if node in owner.mems]
    if not bound:
        return None
    most = max(int((room - 2 * GAP) // (SWATCH + 2)), 1)
    return grid([_swatch(artist, at, f"memory of {artist.owners[at].label}") for at in bound[:most]], most, 2)


def _cache(artist: Artist, cache: CachePart) -> SVGBox:
    title = cache.name + (" (part)" if cache.is_part else "")
    name = f"L3 cache {cache.id}" if cache.is_l3 else "no L3 cache"
    hover = f"{name}\nCPUs {bits.format_list(cache.whole)}"
    if cache.is_part:
        hover += f"\nof which {bits.format_list(cache.cpus)} here"
    return frame(title, hover, "cache", best_grid([_core(artist, core, cache) for core in cache.cores], 4))


def _core(artist: Artist, core: int, cache: CachePart) -> SVGBox:
    where = _whereabouts(artist, core, cache)
    inside = grid([_cpu(artist, cpu, where) for cpu in members(core)], 4, 1)
    width, height = inside.width + 4, inside.height + 4

    def draw(x: float, y: float) -> Iterable[str]:
        outline = [rectangle(x, y, width, height, 'class="frame"')]
        return group("core", "", outline, inside.draw(x + 2, y + 2))

    return SVGBox(width, height, draw)


def _whereabouts(artist: Artist, core: int, cache: CachePart) -> str:
    topology = artist.topology
    first = next(members(core))
    parts = [f"core of CPUs {bits.format_list(core)}"] if core.bit_count() > 1 else []
    if topology.caches_known:
        parts.append(cache.name)
    return ", ".join(
        [*parts, f"NUMA {topology.node_by_cpu[first]}", f"socket {topology.socket_by_cpu[first]}"]
    )


def _cpu(artist: Artist, cpu: int, where: str) -> SVGBox:
    owner = artist.owner_by_cpu.get(cpu)
    holder = "" if owner is None else f"\n{artist.owners[owner].label}"
    look = _look(artist, owner) if where != "offline" else 'class="offline"'
    kind = "cpu" if owner is None else f"cpu o{owner}"
    width = artist.cell_width
    kind_of_text, ink = _ink(artist, owner)

    def draw(x: float, y: float) -> Iterable[str]:
        base = y + CELL_HEIGHT / 2 + 4
        letter = "" if owner is None or artist.owners[owner].kind == "shared" else artist.paints[owner].letter
        parts = [rectangle(x, y, width, CELL_HEIGHT, look, 2)]
        if letter:
            parts += [
                text(x + 4, base, str(cpu), kind_of_text, NUMBER, more=ink),
                text(x + width - 4, base, letter, f"{kind_of_text} letter", NUMBER + 1, "end", ink),
            ]
        else:
            parts.append(text(x + width / 2, base, str(cpu), kind_of_text, NUMBER, "middle", ink))
        return group(kind, f"CPU {cpu}, {where}{holder}", parts)

    return SVGBox(width, CELL_HEIGHT, draw)


def _look(artist: Artist, owner: int | None) -> str:
    if owner is None:
        return 'class="plain"'
    fill, kind = artist.paints[owner].fill, artist.owners[owner].kind
    return f'fill="{fill}"' if fill else f'class="{"plain" if kind == "shared" else kind}"'


def _ink(artist: Artist, owner: int | None) -> tuple[str, str]:
    """The class of a text on the colour of an owner, and its other attributes."""
    ink = "" if owner is None else artist.paints[owner].ink
    return ("ink", f' fill="{ink}"') if ink else ("number", "")


def _swatch(artist: Artist, owner: int, hover: str) -> SVGBox:
    look, letter = _look(artist, owner), artist.paints[owner].letter
    kind, ink = _ink(artist, owner)

    def draw(x: float, y: float) -> Iterable[str]:
        parts = [
            rectangle(x, y, SWATCH, SWATCH, look, 2),
            text(x + SWATCH / 2, y + SWATCH - 4, letter, f"{kind} letter", LEGEND_SIZE, "middle", ink),
        ]
        return group(f"o{owner}", hover, parts)

    return SVGBox(SWATCH, SWATCH, draw)


def _legend(artist: Artist, width: float) -> list[SVGBox]:
    """Containers, many of them in columns, and below them the owners of the other CPUs."""
    containers: list[SVGBox] = []
    others: list[SVGBox] = []
    for at, owner in enumerate(artist.owners):
        (containers if owner.kind == "exclusive" else others).append(_entry(artist, at, width))
    columns = 1
    if len(containers) > MANY:
        columns = max(int(width // (max(entry.width for entry in containers) + 2 * MARGIN)), 1)
    above = [grid(containers, columns, 4)] if containers else []
    return [stacked([*above, *others], 4)] if artist.owners else []


def _entry(artist: Artist, at: int, width: float) -> SVGBox:
    """The swatch of an owner with its label and details, in one line if there is room."""
    owner = artist.owners[at]
    swatch = _swatch(artist, at, owner.label)
    left = SWATCH + PADDING
    labels = _rows(owner.label, "label strong", LEGEND_SIZE, width - left)
    rows = [*labels, *_rows(owner.details, "muted", LEGEND_SIZE, width - left)]
    is_line = len(rows) == 2 and sum(row.width for row in rows) < width - left - 20
    lines = grid(rows, 2, 12) if is_line else stacked(rows, 2)

    def draw(x: float, y: float) -> Iterable[str]:
        return group(f"legend o{at}", "", swatch.draw(x, y), lines.draw(x + left, y + 2))

    return SVGBox(left + lines.width, max(SWATCH, lines.height + 2), draw)
