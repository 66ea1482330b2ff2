"""The machine as one SVG file without scripts or external files; every part has a tooltip."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from nri_plugin.cli.topology.machine_view import View, pci_by_node, resources_by_node, summary
from nri_plugin.cli.topology.palette import Paint
from nri_plugin.cli.topology.picture import (
    CachePart,
    CPUOwner,
    NodePart,
    fold,
    machine_parts,
    members,
    memory_text,
    nodes_without_cpus,
    owner_paints,
)
from nri_plugin.cli.topology.svg_parts import (
    CHARACTER,
    GAP,
    PADDING,
    PATTERNS,
    TITLE,
    SVGBox,
    best_grid,
    describe_node,
    escape,
    frame,
    grid,
    matrix,
    number,
    rectangle,
    stacked,
    style_sheet,
    text,
    text_width,
)
from nri_plugin.model import bits
from nri_plugin.model.topology import Topology

MARGIN = 16
NARROWEST, WIDEST = 640.0, 1900.0
NUMBER = 11
"""Font size of a CPU's number."""
CELL_HEIGHT = 20
SWATCH = 16
LEGEND_SIZE = 12
MANY = 12
"""Containers that stand below each other in the legend."""
BARE_WIDTH = 150
"""Of what is in the box of a node without CPUs."""
_MARKED = {
    "reserved": 'fill="url(#reserved)"',
    "isolated": 'fill="url(#isolated)"',
    "offline": 'class="offline"',
}


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
    """The picture as a file of its own, in ASCII: characters beyond it are written as references."""
    artist = _artist(view)
    machine = _machine(artist)
    width = min(max(machine.width, NARROWEST), WIDEST)
    page = stacked([_head(view, width), machine, *_below(artist, width)], 1.2 * MARGIN)
    full = (max(page.width, width) + 2 * MARGIN, page.height + 2 * MARGIN)
    size = f'width="{number(full[0])}" height="{number(full[1])}" viewBox="0 0 {number(full[0])} {number(full[1])}"'
    lines = chain(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'],
        [f"<title>{escape(view.machine.name)}</title><desc>{escape(summary(view.topology))}</desc>"],
        [style_sheet(artist.owners, artist.paints), PATTERNS],
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
    return Artist(topology, owners, owner_paints(owners), owner_by_cpu, cell_width, _devices(view))


def _devices(view: View) -> dict[int, list[str]]:
    found = resources_by_node(view.machine.description)
    for node, line in pci_by_node(view.machine).items():
        found.setdefault(node, []).append(line)
    return found


def _head(view: View, width: float) -> SVGBox:
    topology = view.topology
    remark = view.remark if view.placements is None else f"containers: {view.placements.source}"
    rows = [(view.machine.name, "label strong", 18.0)]
    rows += [(row, "muted", float(TITLE)) for row in _folded(summary(topology), width, TITLE)]
    rows += [(row, "muted", 11.0) for row in _folded(remark, width, 11)]
    return stacked([_row(*row) for row in rows], 4)


def _row(what: str, kind: str, size: float) -> SVGBox:
    return SVGBox(text_width(what, size), size + 2, lambda x, y: [text(x, y + size - 2, what, kind, size)])


def _folded(what: str, width: float, size: float) -> list[str]:
    return fold(what, max(int(width / (size * CHARACTER)), 24)) if what else []


def _machine(artist: Artist) -> SVGBox:
    """Sockets, and below them what is in none: nodes without CPUs, CPUs that are offline."""
    sockets = [_socket(artist, part.id, part.cpus, part.nodes) for part in machine_parts(artist.topology)]
    items = [best_grid(sockets, 2 * GAP, WIDEST)]
    bare = [_bare_node(artist, node.id) for node in nodes_without_cpus(artist.topology)]
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
        title += f" · {_size(part.node.memory_bytes)}"
    if artist.topology.caches_known:
        content = best_grid([_cache(artist, cache) for cache in part.caches])
    else:
        content = best_grid([_core(artist, core, cache) for cache in part.caches for core in cache.cores], 4)
    if part.is_first and part.node.id in artist.devices:
        content = stacked([content, *_device_rows(artist.devices[part.node.id], content.width)], 3)
    place = artist.topology.node_ids.index(part.node.id)
    aside = (
        _memory_of(artist, part.node.id, content.width - text_width(title, TITLE)) if part.is_first else None
    )
    return frame(title, describe_node(artist.topology, place), "node", content, aside)


def _bare_node(artist: Artist, node: int) -> SVGBox:
    place = next(at for at, other in enumerate(artist.topology.nodes) if other.id == node)
    title = f"NUMA {node} · {_size(artist.topology.nodes[place].memory_bytes)}"
    aside = _memory_of(artist, node, BARE_WIDTH - text_width(title, TITLE))
    empty = SVGBox(BARE_WIDTH, 0, lambda _x, _y: [])
    return frame(title, describe_node(artist.topology, place), "node", empty, aside)


def _device_rows(lines: Sequence[str], width: float) -> Iterable[SVGBox]:
    for line in lines:
        for row in _folded(line, width, NUMBER):
            yield _row(row, "muted", NUMBER)


def _size(memory_bytes: int | None) -> str:
    return (
        "memory unknown"
        if memory_bytes is None
        else memory_text(memory_bytes)
        if memory_bytes
        else "no memory"
    )


def _memory_of(artist: Artist, node: int, room: float) -> SVGBox | None:
    """Letters of the containers with memory bound to the node, as many as there is room for."""
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
    cells = [_cpu(artist, cpu, where) for cpu in members(core)]
    inside = grid(cells, 4, 1)
    width, height = inside.width + 4, inside.height + 4

    def draw(x: float, y: float) -> Iterable[str]:
        yield '<g class="core">' + rectangle(x, y, width, height, 'class="frame"')
        yield from inside.draw(x + 2, y + 2)
        yield "</g>"

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
    look = _look(artist, owner) if where != "offline" else _MARKED["offline"]
    kind = "cpu" if owner is None else f"cpu o{owner}"
    width = artist.cell_width

    def draw(x: float, y: float) -> Iterable[str]:
        yield f'<g class="{kind}"><title>{escape(f"CPU {cpu}, {where}{holder}")}</title>'
        yield rectangle(x, y, width, CELL_HEIGHT, look, 2)
        base = y + CELL_HEIGHT / 2 + 4
        ink = f"i{owner}" if owner is not None and artist.paints[owner].fill else "number"
        letter = "" if owner is None or artist.owners[owner].kind == "shared" else artist.paints[owner].letter
        if letter:
            yield text(x + 4, base, str(cpu), ink, NUMBER)
            yield text(x + width - 4, base, letter, f"{ink} letter", NUMBER + 1, "end")
        else:
            yield text(x + width / 2, base, str(cpu), ink, NUMBER, "middle")
        yield "</g>"

    return SVGBox(width, CELL_HEIGHT, draw)


def _look(artist: Artist, owner: int | None) -> str:
    if owner is None:
        return 'class="plain"'
    if artist.paints[owner].fill:
        return f'class="k{owner}"'
    return _MARKED.get(artist.owners[owner].kind, 'class="plain"')


def _swatch(artist: Artist, owner: int, hover: str) -> SVGBox:
    def draw(x: float, y: float) -> Iterable[str]:
        yield f'<g class="o{owner}"><title>{escape(hover)}</title>'
        yield rectangle(x, y, SWATCH, SWATCH, _look(artist, owner), 2)
        ink = f"i{owner}" if artist.paints[owner].fill else "number"
        yield text(
            x + SWATCH / 2,
            y + SWATCH - 4,
            artist.paints[owner].letter,
            f"{ink} letter",
            LEGEND_SIZE,
            "middle",
        )
        yield "</g>"

    return SVGBox(SWATCH, SWATCH, draw)


def _below(artist: Artist, width: float) -> list[SVGBox]:
    """The legend with the matrix of distances beside it, or below it where there is no room."""
    distances = matrix(artist.topology)
    if not artist.owners:
        return [distances] if distances else []
    if distances and width - distances.width - 3 * MARGIN >= NARROWEST / 2:
        legend = _legend(artist, width - distances.width - 3 * MARGIN)
        return [grid([legend, distances], 2, 3 * MARGIN)]
    return [_legend(artist, width), *([distances] if distances else [])]


def _legend(artist: Artist, width: float) -> SVGBox:
    """Containers, many of them in columns, and below them the owners of the other CPUs."""
    entries = [_entry(artist, at, width) for at in range(len(artist.owners))]
    of_containers = [
        entry for entry, owner in zip(entries, artist.owners, strict=True) if owner.kind == "exclusive"
    ]
    others = [entry for entry, owner in zip(entries, artist.owners, strict=True) if owner.kind != "exclusive"]
    widest = max((entry.width for entry in of_containers), default=width) + 2 * MARGIN
    columns = int(width // widest) if len(of_containers) > MANY else 1
    return stacked([*([grid(of_containers, max(columns, 1), 4)] if of_containers else []), *others], 4)


def _entry(artist: Artist, at: int, width: float) -> SVGBox:
    owner = artist.owners[at]
    swatch = _swatch(artist, at, owner.label)
    count = f"{len(owner.cpus)} cpu" + "s" * (len(owner.cpus) != 1)
    details = f"{owner.cpus} ({count})" if owner.cpus else "none"
    details += f", {owner.note}" if owner.note else ""
    details += ": " + ", ".join(owner.members) if owner.members else ""
    left = SWATCH + PADDING
    rows = [(row, "label strong") for row in _folded(owner.label, width - left, LEGEND_SIZE)]
    rows += [(row, "muted") for row in _folded(details, width - left, LEGEND_SIZE)]
    if sum(len(row) for row, _ in rows) * LEGEND_SIZE * CHARACTER < width - left - 20 and len(rows) == 2:
        return _one_line(at, swatch, rows[0][0], rows[1][0])
    lines = stacked([_row(row, kind, LEGEND_SIZE) for row, kind in rows], 2)

    def draw(x: float, y: float) -> Iterable[str]:
        yield f'<g class="legend o{at}">'
        yield from swatch.draw(x, y)
        yield from lines.draw(x + left, y + 1)
        yield "</g>"

    return SVGBox(left + lines.width, max(SWATCH, lines.height + 2), draw)


def _one_line(at: int, swatch: SVGBox, label: str, details: str) -> SVGBox:
    left = SWATCH + PADDING
    name = text_width(label, LEGEND_SIZE) + 12

    def draw(x: float, y: float) -> Iterable[str]:
        yield f'<g class="legend o{at}">'
        yield from swatch.draw(x, y)
        yield text(x + left, y + SWATCH - 4, label, "label strong", LEGEND_SIZE)
        yield text(x + left + name, y + SWATCH - 4, details, "muted", LEGEND_SIZE)
        yield "</g>"

    return SVGBox(left + name + text_width(details, LEGEND_SIZE), SWATCH, draw)
