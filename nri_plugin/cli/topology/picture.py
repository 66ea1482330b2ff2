"""A machine in the terminal: sockets around NUMA nodes around caches around cores, and the distances between nodes.

`stack` puts boxes side by side as far as the width allows, the rest below. With owners every CPU is one character, the
letter of its owner; without, it is its number. A machine that would need too many lines is shown in ranges: a line for
each cache, or for each NUMA node.

`heat_map` shows distances as numbers where they fit, else as one shaded cell for each pair of nodes with a key of the
shades.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from nri_plugin.cli.output import cut, fold_words, memory_text, memory_words
from nri_plugin.cli.topology.machine_view import (
    CachePart,
    CPUOwner,
    NodePart,
    SocketPart,
    machine_parts,
    members,
    nodes_without_cpus,
    owner_paints,
)
from nri_plugin.cli.topology.palette import LETTERS, SHARED, UNKNOWN, Paint, Scale, ink_on, scale_of
from nri_plugin.model import bits
from nri_plugin.model.bounds import visible
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import NUMANode, Topology

Span = tuple[str, str]
"""Text and its ANSI parameters; empty parameters for plain text."""
Line = tuple[Span, ...]

MAX_COLUMNS = 8
FRAME = 4
"""Columns of the frame, left and right together."""
BLANK: Span = (" ", "")


@dataclass(frozen=True, slots=True)
class Box:
    """A frame around other boxes or around groups of cells.

    Attributes:
        titles: alternatives for the title, longest first.
        ansi: the colour of frame and title.
        boxes: the boxes inside; where there are any, `groups` is empty.
        groups: cells that belong together (those of a cache); a group begins a new line where it does not fit.
        brackets: the characters before and after each group; empty for none.
    """

    titles: Sequence[str]
    ansi: str = ""
    boxes: Sequence["Box"] = ()
    groups: Sequence[Sequence[Line]] = ()
    brackets: str = ""


def least_width(box: Box) -> int:
    """The least width at which no cell is folded, frame included."""
    if box.boxes:
        content = max(least_width(inner) for inner in box.boxes)
    elif box.brackets:
        content = max((length(_joined(group)) + 2 for group in box.groups), default=0)
    else:
        content = max((length(_joined(group[:4])) for group in box.groups), default=0)
    return FRAME + max(content, len(box.titles[-1]))


def stack(boxes: Sequence[Box], width: int) -> list[Line]:
    """The boxes in as many columns as fit. No line is longer than `width`, which is at least 24."""
    if not boxes:
        return []
    columns = column_count(len(boxes), max(map(least_width, boxes)), width)
    room = (width - columns + 1) // columns - FRAME
    contents = [stack(box.boxes, room) if box.boxes else _grouped(box, room) for box in boxes]
    titles = [_title(box, room) for box in boxes]
    inner = max(
        min(room, max(len(title) + 1, *map(length, content)))
        for title, content in zip(titles, contents, strict=True)
    )
    lines: list[Line] = []
    for start in range(0, len(boxes), columns):
        row = range(start, min(start + columns, len(boxes)))
        height = max(len(contents[at]) for at in row)
        framed = [_frame(titles[at], boxes[at].ansi, contents[at], inner, height) for at in row]
        lines += [_joined(parts) for parts in zip(*framed, strict=True)]
    return lines


def column_count(boxes: int, least: int, width: int) -> int:
    """The number of boxes side by side: as many as fit, in rows of about equal length."""
    fitting = max(1, min(boxes, MAX_COLUMNS, (width + 1) // (least + 1)))
    rows = -(-boxes // fitting)
    return -(-boxes // rows)


def length(line: Line) -> int:
    """The number of characters of a line."""
    return sum(len(text) for text, _ in line)


def paint(line: Line, *, colour: bool) -> str:
    """The line with its escape sequences; the characters are the same with and without colour."""
    if not colour:
        return "".join(visible(text) for text, _ in line).rstrip()
    return "".join(f"\x1b[{how}m{visible(text)}\x1b[0m" if how else visible(text) for text, how in line)


def _grouped(box: Box, width: int) -> list[Line]:
    """Groups side by side where they fit; a group that is wider than the box takes several lines."""
    begin, end = box.brackets[:1], box.brackets[1:]
    lines: list[Line] = []
    can_join = False
    for group in box.groups:
        whole: Line = ((begin, ""), *_joined(group), (end, ""))
        if length(whole) > width:
            lines += _wrapped(group, width, begin, end)
            can_join = False
        elif can_join and length(lines[-1]) + 1 + length(whole) <= width:
            lines[-1] = (*lines[-1], BLANK, *whole)
        else:
            lines.append(whole)
            can_join = bool(box.brackets)
    return lines


def _wrapped(cells: Sequence[Line], width: int, begin: str, end: str) -> list[Line]:
    room = width - len(begin) - len(end)
    short = [piece for cell in cells for piece in _folded(cell, room)]
    per_line = max(1, (room + 1) // (max(map(length, short)) + 1))
    rows = [_joined(short[start : start + per_line]) for start in range(0, len(short), per_line)]
    lines: list[Line] = [
        ((begin if not number else " " * len(begin), ""), *row) for number, row in enumerate(rows)
    ]
    lines[-1] = (*lines[-1], (end, ""))
    return lines


def _folded(cell: Line, width: int) -> list[Line]:
    """A cell in lines that fit: broken between its spans, else behind commas, else anywhere."""
    if length(cell) <= width:
        return [cell]
    lines: list[Line] = [()]
    for text, how in cell:
        left = text
        while left:
            room = width - length(lines[-1])
            at = len(left) if len(left) <= room else left.rfind(",", 0, room) + 1
            if not at and lines[-1]:
                lines.append(())
                left = left.lstrip()
                continue
            at = at or room
            lines[-1] = (*lines[-1], (left[:at], how))
            left = left[at:]
    return lines


def _title(box: Box, room: int) -> str:
    return next((title for title in box.titles if len(title) <= room), cut(box.titles[-1], room))


def _frame(title: str, ansi: str, content: Sequence[Line], inner: int, height: int) -> list[Line]:
    top = f"┌ {title} {'─' * (inner - len(title))}┐"
    side = ("│", ansi)
    filled = [*content, *[()] * (height - len(content))]
    body = [(side, BLANK, *line, (" " * (inner - length(line) + 1), ""), side) for line in filled]
    return [((top, ansi),), *body, (("└" + "─" * (inner + 2) + "┘", ansi),)]


def _joined(parts: Iterable[Line]) -> Line:
    spans: list[Span] = []
    for part in parts:
        spans += [BLANK] * bool(spans) + list(part)
    return tuple(spans)


Cell = Callable[[int], Line]
"""Draws the CPUs of a mask."""

NARROWEST = 40
TIMES = "\N{MULTIPLICATION SIGN}"
SOCKET_FRAME, NODE_FRAME, CACHE_FRAME = "38;5;245", "38;5;32", "38;5;65"
"""Colours of frames, legible on white and on black."""

_ASCII = {ord(plain): other for plain, other in zip(f"┌┐└┘─│·…░▒▓█{TIMES}", "++++-|.~:+#@x", strict=True)}
_ASCII |= {ord(letter): "*" for letter in LETTERS if not letter.isascii()}


class Style(Enum):
    """The amount of detail, most first; the value is the number of lines that a picture may have."""

    BOXES = 46
    """A box for each cache."""
    BRACKETS = 60
    """Brackets for each cache."""
    CACHES = 100
    """A line for each cache, in ranges."""
    NODES = 101
    """A line for each NUMA node, in ranges."""
    LINES = 0
    """A line for each NUMA node, without boxes; any number of lines."""


def draw(
    topology: Topology,
    owners: Sequence[CPUOwner] | None = None,
    *,
    width: int = 80,
    colour: bool = False,
    style: Style | None = Style.BRACKETS,
) -> str:
    """The picture, as lines of at most `width` characters.

    Args:
        topology: the machine.
        owners: of CPUs; CPUs without an owner are drawn as the shared pool. None for CPU numbers.
        width: columns of the terminal, at least 40.
        colour: whether to use ANSI colours; the picture has the same content without.
        style: the amount of detail; None for the most detail that its lines allow.
    """
    width = max(width, NARROWEST)
    lines = [*_machine(topology, owners, width, style), *_other_lines(topology, owners, width)]
    if owners is not None:
        lines += _legend(topology, owners, width)
    return "\n".join(paint(line, colour=colour) for line in lines)


def in_encoding(text: str, encoding: str) -> str:
    """The text, in ASCII where the encoding lacks one of its characters."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def _machine(
    topology: Topology, owners: Sequence[CPUOwner] | None, width: int, style: Style | None
) -> list[Line]:
    marks = None if owners is None else _marks(owners)
    sockets = machine_parts(topology)
    for each in Style if style is None else [style]:
        if each is not Style.LINES:
            lines = stack(_sockets(topology, sockets, marks, each), width)
            if len(lines) <= each.value or style is not None:
                return lines
    return _lines(sockets, marks, width)


def _lines(sockets: Sequence[SocketPart], marks: dict[int, Span] | None, width: int) -> list[Line]:
    """A line for each node, without boxes."""
    left = max(len(f"socket {socket.id}") for socket in sockets) + 2
    lines: list[Line] = []
    for socket in sockets:
        name = f"socket {socket.id}".ljust(left)
        for part in socket.nodes:
            counts = "" if marks is None else "".join(text for text, _ in _count_cell(marks)(part.cpus))
            rows = fold_words(f"{_node_titles(part)[0]}  {counts}", width - left, indent="  ")
            for row in rows:
                lines.append(((name, SOCKET_FRAME), (row, "")))
                name = " " * left
    return lines


def _marks(owners: Sequence[CPUOwner]) -> dict[int, Span]:
    """The mark of every CPU that has an owner."""
    marks: dict[int, Span] = {}
    for owner, drawn in zip(owners, owner_paints(owners), strict=True):
        marks.update(dict.fromkeys(bits.iterate(owner.cpus.mask), (drawn.letter, drawn.ansi)))
    return marks


def _sockets(
    topology: Topology, sockets: Sequence[SocketPart], marks: dict[int, Span] | None, style: Style
) -> list[Box]:
    each_cpu = _number_cell(topology) if marks is None else _mark_cell(marks)
    ranges = _range_cell if marks is None else _count_cell(marks)
    boxes = []
    for socket in sockets:
        title = (f"socket {socket.id}",)
        if style is Style.NODES:
            cells = [_node_line(part, None if marks is None else ranges) for part in socket.nodes]
            boxes.append(Box(title, SOCKET_FRAME, groups=[[cell] for cell in cells]))
        else:
            cell = ranges if style is Style.CACHES else each_cpu
            nodes = [_node(part, style, cell, has_l3=topology.caches_known) for part in socket.nodes]
            boxes.append(Box(title, SOCKET_FRAME, boxes=nodes))
    return boxes


def _node_line(part: NodePart, counts: Cell | None) -> Line:
    title = (_node_titles(part)[0], "")
    return (title,) if counts is None else (title, ("  ", ""), *counts(part.cpus))


def _node(part: NodePart, style: Style, cell: Cell, *, has_l3: bool) -> Box:
    titles = _node_titles(part)
    if not has_l3 and style is not Style.CACHES:
        cores = [cell(core) for cache in part.caches for core in cache.cores]
        return Box(titles, NODE_FRAME, groups=[cores])
    if style is Style.BOXES:
        caches = [
            Box(_cache_titles(cache), CACHE_FRAME, groups=[list(map(cell, cache.cores))])
            for cache in part.caches
        ]
        return Box(titles, NODE_FRAME, boxes=caches)
    if style is Style.BRACKETS:
        groups = [list(map(cell, cache.cores)) for cache in part.caches]
        return Box(titles, NODE_FRAME, groups=groups, brackets="[]")
    lines = [
        ((f"{_cache_titles(cache)[0]}: " if has_l3 else "", ""), *cell(cache.cpus)) for cache in part.caches
    ]
    return Box(titles, NODE_FRAME, groups=[[line] for line in lines])


def _mark_cell(marks: dict[int, Span]) -> Cell:
    shared = (SHARED.letter, SHARED.ansi)
    return lambda mask: tuple(marks.get(cpu, shared) for cpu in members(mask))


def _number_cell(topology: Topology) -> Cell:
    wide = max(len(str(cpus)) for _, cpus in topology.cores)
    return lambda mask: ((bits.format_list(mask).ljust(wide), ""),)


def _range_cell(mask: int) -> Line:
    return ((bits.format_list(mask), ""),)


def _count_cell(marks: dict[int, Span]) -> Cell:
    """The number of CPUs of each owner, as in `A x 16`."""

    def cell(mask: int) -> Line:
        counts: dict[Span, int] = {}
        for cpu in bits.iterate(mask):
            mark = marks.get(cpu, (SHARED.letter, SHARED.ansi))
            counts[mark] = counts.get(mark, 0) + 1
        spans: list[Span] = []
        for (letter, how), count in counts.items():
            spans += [(" ", "")] * bool(spans) + [(f"{letter}{TIMES}{count}", how)]
        return tuple(spans)

    return cell


def _cache_titles(cache: CachePart) -> Sequence[str]:
    return (f"{cache.name} (part)", cache.name) if cache.is_part else (cache.name,)


def _node_titles(part: NodePart) -> Sequence[str]:
    """Alternatives for the title, longest first; only the first part of a node shows the memory of the node."""
    node = part.node
    name = f"NUMA {node.id}" + (" (part)" if part.is_part else "")
    named = f"{name}: {bits.format_list(part.cpus)}"
    if node.memory_bytes is None or not part.is_first:
        return (named, name)
    size = f", {memory_words(node.memory_bytes)}"
    return (f"{named}{size} in all", named, name) if part.is_part else (named + size, name + size, name)


def _other_lines(topology: Topology, owners: Sequence[CPUOwner] | None, width: int) -> list[Line]:
    """Lines below the boxes: nodes without CPUs, caches over several nodes, offline and isolated CPUs."""
    ids_by_size: dict[str, int] = {}
    for node in nodes_without_cpus(topology):
        size = "size unknown" if node.memory_bytes is None else f"{memory_text(node.memory_bytes)} each"
        size = size if node.has_memory else "no memory"
        ids_by_size[size] = ids_by_size.get(size, 0) | 1 << node.id
    texts = [f"NUMA {bits.format_list(ids)}: no cpus, {size}" for size, ids in ids_by_size.items()]
    for _, cpus in topology.caches:
        nodes = topology.nodes_of(cpus)
        if len(nodes) > 1 and topology.is_l3(cpus):
            texts.append(f"one L3 over NUMA {nodes}: {cpus}")
    told = {owner.kind for owner in owners or ()}
    for name, cpus in (("offline", topology.offline), ("isolated", topology.isolated)):
        if cpus and name not in told:
            texts.append(f"{name} {cpus}")
    return _folded_lines(texts, width)


def _folded_lines(texts: Iterable[str], width: int) -> list[Line]:
    return [((row, ""),) for text in texts for row in fold_words(text, width, indent="  ")]


def _legend(topology: Topology, owners: Sequence[CPUOwner], width: int) -> list[Line]:
    lines: list[Line] = []
    shown = 0
    for owner, drawn in zip(owners, owner_paints(owners), strict=True):
        shown |= owner.cpus.mask
        lines += _legend_lines(drawn, owner, width)
    left = CPUSet(topology.online.mask & ~shown)
    if left and not any(owner.kind == "shared" for owner in owners):
        lines += _legend_lines(SHARED, CPUOwner("shared pool", left, "shared"), width)
    return lines


def _legend_lines(drawn: Paint, owner: CPUOwner, width: int) -> Iterable[Line]:
    """The entry of an owner: CPUs and names go on in further lines; only a label wider than the picture is cut."""
    rows = fold_words(f"{cut(owner.label, width - 3)}: {owner.details}", width - 2, indent="  ")
    yield ((drawn.letter, drawn.ansi), (f" {rows[0]}", ""))
    for row in rows[1:]:
        yield ((f"  {row}", ""),)


MOST_ROWS = 128
"""Rows of a map of distances; on larger machines nodes with equal distances are grouped."""


def heat_map(topology: Topology, width: int, *, colour: bool = False) -> str:
    """The distances between NUMA nodes; empty where a machine has none. No line is longer than `width`."""
    scale = scale_of(topology)
    if scale is None:
        return ""
    left = max(len("distance"), len(f"NUMA {topology.node_ids[-1]}")) + 1
    digits = max(len(str(scale.values[-1])), len(str(topology.node_ids[-1])))
    count = len(topology.nodes)
    if left + (digits + 2) * count <= width and count <= 32:
        lines = _numbers(topology, scale, left, digits)
    elif left + count <= width and count <= MOST_ROWS:
        lines = _shades(topology, scale, left, 2 if left + 2 * count <= width else 1)
        lines += _key(scale, width)
    else:
        lines = _groups(topology, width)
    return "\n".join(paint(line, colour=colour) for line in lines)


def _numbers(topology: Topology, scale: Scale, left: int, digits: int) -> list[Line]:
    """A number for each pair of nodes, with its shade behind it."""

    def cell(value: int | None) -> Iterable[Span]:
        if value is None:
            return [(f" {UNKNOWN:>{digits}} ", "")]
        name, number = scale.colour(value)
        ink = 231 if ink_on(name) == "#ffffff" else 16
        # With colours, the shade has the colour of the background and cannot be seen.
        shade = (scale.shade(value), f"38;5;{number};48;5;{number}")
        return [(f" {value:>{digits}}", f"38;5;{ink};48;5;{number}"), shade]

    head = "distance".ljust(left) + "".join(f" {node:>{digits}} " for node in topology.node_ids)
    return [((head.rstrip(), ""),), *_rows(topology, left, cell)]


def _shades(topology: Topology, scale: Scale, left: int, wide: int) -> list[Line]:
    """A shade for each pair of nodes; node numbers stand upright above their columns: tens, then ones."""

    def cell(value: int | None) -> Iterable[Span]:
        return [(UNKNOWN * wide, "") if value is None else _shade(scale, value, wide)]

    ids = [str(node).rjust(len(str(topology.node_ids[-1]))) for node in topology.node_ids]
    heads = []
    for place in range(len(ids[-1])):
        column = [digits[place] for digits in ids]
        if place < len(ids[-1]) - 1:  # tens are written where they change
            column = [" " if at and digit == column[at - 1] else digit for at, digit in enumerate(column)]
        name = "" if place else "distance"
        heads.append(name.ljust(left) + "".join(digit.ljust(wide) for digit in column))
    return [*(((head.rstrip(), ""),) for head in heads), *_rows(topology, left, cell)]


def _rows(topology: Topology, left: int, cell: Callable[[int | None], Iterable[Span]]) -> Iterable[Line]:
    for node in topology.nodes:
        values = node.distances or [None] * len(topology.nodes)
        yield ((f"NUMA {node.id}".ljust(left), ""), *(span for value in values for span in cell(value)))


def _shade(scale: Scale, value: int, wide: int) -> Span:
    number = scale.colour(value)[1]
    return scale.shade(value) * wide, f"38;5;{number};48;5;{number}"


def _key(scale: Scale, width: int) -> list[Line]:
    """The distances of each shade."""
    lines: list[Line] = [()]
    for value, text in scale.key(scale.shade):
        entry: Line = (_shade(scale, value, 2), (f" {text}   ", ""))
        if length((*lines[-1], *entry)) > width + 3:
            lines.append(())
        lines[-1] += entry
    return [(*line[:-1], (line[-1][0].rstrip(), "")) for line in lines]


def _groups(topology: Topology, width: int) -> list[Line]:
    """One sentence for all nodes that have the same distances to the others."""
    ids_by_text: dict[str, int] = {}
    for at, node in enumerate(topology.nodes):
        if node.distances is not None:
            text = _distances(topology, node, node.distances[at])
            ids_by_text[text] = ids_by_text.get(text, 0) | 1 << node.id
    return _folded_lines(
        [f"NUMA {bits.format_list(ids)} distance {text}" for text, ids in ids_by_text.items()], width
    )


def _distances(topology: Topology, node: NUMANode, own: int) -> str:
    ids_by_value: dict[int, int] = {}
    for other, value in zip(topology.node_ids, node.distances or (), strict=True):
        ids_by_value[value] = ids_by_value.get(value, 0) | 1 << other
    most = max(ids_by_value, key=lambda value: ids_by_value[value].bit_count())
    others = {value: ids & ~(1 << node.id) for value, ids in sorted(ids_by_value.items())}
    rest = [f"{most} to all others"] if others[most] else []
    near = [f"{value} to {bits.format_list(ids)}" for value, ids in others.items() if ids and value != most]
    return ", ".join([f"{own} to itself", *near, *rest])
