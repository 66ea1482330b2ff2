"""A machine in the terminal: sockets around NUMA nodes around caches around cores.

With owners every CPU is one character that says who has it; without, it is its
number. What fits in the width stands side by side, the rest below. A node
over two sockets, or a cache over two nodes, appears in each with its part.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from nri_plugin import bits
from nri_plugin.cpuset import CPUSet
from nri_plugin.topology import NUMANode, Topology

Kind = Literal["exclusive", "shared", "reserved"]
Span = tuple[str, str]
"""Text and the ANSI parameters it is drawn with (empty for plain)."""
Line = tuple[Span, ...]
Cell = Callable[[int], Line]
"""How the threads of a core (a mask) are drawn."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
SHARED, RESERVED, BEYOND = "·", "=", "*"
"""Marks of the shared pool, of reserved CPUs, and of owners after the last letter."""

_COLOURS = ("1;97;44", "1;97;42", "1;97;45", "1;30;43", "1;97;41", "1;30;46", "1;30;47", "1;97;100")
_DIM = "2"
_PLAIN = str.maketrans("┌┐└┘─│·…", "++++-|.~")
_MAX_COLUMNS = 8


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has which CPUs.

    Attributes:
        label: a line of the legend.
        cpus: the CPUs.
        kind: `exclusive` owners have a letter each; later owners are drawn over earlier ones.
    """

    label: str
    cpus: CPUSet
    kind: Kind = "exclusive"


def draw(
    topology: Topology, owners: Sequence[Owner] | None = None, *, width: int = 80, colour: bool = False
) -> str:
    """The picture, as lines of at most `width` characters.

    Args:
        topology: the machine.
        owners: who has which CPUs; CPUs that nobody has are drawn as the shared pool. None for CPU numbers.
        width: columns of the terminal, at least 40.
        colour: whether to use ANSI colours; the picture says the same without.
    """
    width = max(width, 40)
    marks = None if owners is None else _marks(owners)
    cell = _number_cell(topology) if marks is None else _mark_cell(marks)
    lines = [*_sockets(topology, cell, width), *_other_lines(topology, width)]
    if owners is not None:
        lines += _legend(topology, owners, width)
    return "\n".join(_paint(line, colour=colour) for line in lines)


def in_encoding(text: str, encoding: str | None) -> str:
    """The text with plain characters for lines and marks where the terminal cannot show others."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
    return text


def memory_text(memory_bytes: int) -> str:
    """A size as people write it."""
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if memory_bytes >> shift:
            return f"{(memory_bytes + (1 << shift >> 1)) >> shift}{unit}"
    return str(memory_bytes)


def _marks(owners: Sequence[Owner]) -> dict[int, Span]:
    """The mark of every CPU that somebody has."""
    marks: dict[int, Span] = {}
    for owner, mark in zip(owners, _owner_marks(owners), strict=True):
        marks.update(dict.fromkeys(bits.iterate(owner.cpus.mask), mark))
    return marks


def _owner_marks(owners: Sequence[Owner]) -> list[Span]:
    marks: list[Span] = []
    letters = 0
    for owner in owners:
        if owner.kind == "exclusive":
            letter = LETTERS[letters] if letters < len(LETTERS) else BEYOND
            marks.append((letter, _COLOURS[letters % len(_COLOURS)]))
            letters += 1
        else:
            marks.append((SHARED, _DIM) if owner.kind == "shared" else (RESERVED, ""))
    return marks


def _mark_cell(marks: dict[int, Span]) -> Cell:
    return lambda mask: tuple(marks.get(cpu, (SHARED, _DIM)) for cpu in bits.iterate(mask))


def _number_cell(topology: Topology) -> Cell:
    wide = max(len(str(cpus)) for _, cpus in topology.cores)
    return lambda mask: ((bits.format_list(mask).ljust(wide), ""),)


def _sockets(topology: Topology, cell: Cell, width: int) -> list[Line]:
    sockets = [(f"socket {number}", _parts(topology, cpus.mask, cell)) for number, cpus in topology.sockets]
    least = 4 + max(_least(title, lines) for _, nodes in sockets for title, lines in nodes)
    columns = _column_count(len(sockets), least, width)
    inner = (width - columns + 1) // columns - 4
    boxes = [(title, _in_columns(_node_boxes(nodes, inner), inner)) for title, nodes in sockets]
    return _in_columns([(box, inner) for box in boxes], width, columns)


Caches = list[list[Line]]
Part = tuple[Sequence[str], Caches]
"""Possible titles, longest first, and the cells of each cache."""
Box = tuple[str, list[Line]]


def _parts(topology: Topology, socket: int, cell: Cell) -> list[Part]:
    """The NUMA nodes of a socket (their part of it) with the cores of each cache."""
    parts: list[Part] = []
    for node in topology.nodes:
        mask = node.cpus.mask & socket
        if mask:
            groups = [cpus.mask & mask for _, cpus in topology.caches if cpus.mask & mask]
            cores = [cpus.mask for _, cpus in topology.cores]
            caches = [[cell(core & group) for core in cores if core & group] for group in groups]
            parts.append((_node_titles(node, mask), caches))
    return parts


def _node_titles(node: NUMANode, mask: int) -> Sequence[str]:
    """A part of a node always shows its CPUs, and only the first part the memory of the whole."""
    is_part = mask != node.cpus.mask
    name = f"NUMA {node.id}" + (" (part)" if is_part else "")
    named = f"{name}: {bits.format_list(mask)}"
    if node.memory_bytes is None or (is_part and bits.lowest(mask) != bits.lowest(node.cpus.mask)):
        return (named, name)
    size = f", {memory_text(node.memory_bytes)}"
    return (f"{named}{size} in all", named, name) if is_part else (named + size, name + size, name)


def _least(titles: Sequence[str], caches: Caches) -> int:
    """The width of a node's box with each cache on a line of its own."""
    return 4 + max(len(titles[-1]), *(_length(_cache_line(cells)) for cells in caches))


def _cache_line(cells: Iterable[Line]) -> Line:
    spans: list[Span] = [("[", "")]
    for number, cell in enumerate(cells):
        spans += [(" ", "")] * bool(number) + list(cell)
    return (*spans, ("]", ""))


def _node_boxes(parts: Sequence[Part], width: int) -> list[tuple[Box, int]]:
    columns = _column_count(len(parts), max(_least(*part) for part in parts), width)
    inner = (width - columns + 1) // columns - 4
    return [((_fitting(titles, inner), _cache_lines(caches, inner)), inner) for titles, caches in parts]


def _fitting(titles: Sequence[str], width: int) -> str:
    return next((title for title in titles if len(title) <= width), titles[-1][:width])


def _cache_lines(caches: Caches, width: int) -> list[Line]:
    """Caches side by side where they fit; one that is wider than the box goes over several lines."""
    lines: list[Line] = []
    for cells in caches:
        whole = _cache_line(cells)
        if _length(whole) > width:
            lines += _wrapped(cells, width)
        elif lines and _length(lines[-1]) + 1 + _length(whole) <= width and lines[-1][-1][0] == "]":
            lines[-1] = (*lines[-1], (" ", ""), *whole)
        else:
            lines.append(whole)
    return lines


def _wrapped(cells: Sequence[Line], width: int) -> list[Line]:
    per_line = max(1, (width - 1) // (max(map(_length, cells)) + 1))
    lines: list[Line] = []
    for start in range(0, len(cells), per_line):
        row = _cache_line(cells[start : start + per_line])
        lines.append((("[" if start == 0 else " ", ""), *row[1:-1]))
    lines[-1] = (*lines[-1], ("]", ""))
    return lines


def _column_count(boxes: int, least: int, width: int) -> int:
    """How many boxes stand side by side: as many as fit, but no half-empty last row."""
    fitting = max(1, min(boxes, _MAX_COLUMNS, (width + 1) // (least + 1)))
    rows = -(-boxes // fitting)
    return -(-boxes // rows)


def _in_columns(boxes: Sequence[tuple[Box, int]], width: int, columns: int = 0) -> list[Line]:
    columns = columns or max(1, (width + 1) // (boxes[0][1] + 5))
    lines: list[Line] = []
    for start in range(0, len(boxes), columns):
        row = boxes[start : start + columns]
        height = max(len(content) for (_, content), _ in row)
        framed = [_frame(title, content, inner, height) for (title, content), inner in row]
        lines += [_joined(parts) for parts in zip(*framed, strict=True)]
    return lines


def _frame(title: str, content: Sequence[Line], inner: int, height: int) -> list[Line]:
    top = f"┌ {title[:inner]} ".ljust(inner + 3, "─") + "┐"
    blank: Line = ()
    rows = [*content, *[blank] * (height - len(content))]
    body: list[Line] = [
        (("│ ", _DIM), *row, (" " * (inner - _length(row)), ""), (" │", _DIM)) for row in rows
    ]
    return [((top, _DIM),), *body, (("└" + "─" * (inner + 2) + "┘", _DIM),)]


def _joined(parts: Iterable[Line]) -> Line:
    spans: list[Span] = []
    for part in parts:
        spans += [(" ", "")] * bool(spans) + list(part)
    return tuple(spans)


def _other_lines(topology: Topology, width: int) -> list[Line]:
    """What has no place in a box: nodes without CPUs, caches over several nodes, offline and isolated CPUs."""
    ids_by_size: dict[str, int] = {}
    for node in topology.nodes:
        if not node.cpus:
            size = "size unknown" if node.memory_bytes is None else f"{memory_text(node.memory_bytes)} each"
            ids_by_size[size] = ids_by_size.get(size, 0) | 1 << node.id
    texts = [f"NUMA {bits.format_list(ids)}: no cpus, {size}" for size, ids in ids_by_size.items()]
    for _, cpus in topology.caches if topology.caches_known else ():
        nodes = topology.nodes_of(cpus)
        if len(nodes) > 1:
            texts.append(f"one L3 over NUMA {nodes}: {cpus}")
    texts += [
        f"{name} {cpus}"
        for name, cpus in (("offline", topology.offline), ("isolated", topology.isolated))
        if cpus
    ]
    return [((_cut(text, width), ""),) for text in texts]


def _legend(topology: Topology, owners: Sequence[Owner], width: int) -> list[Line]:
    lines: list[Line] = []
    shown = 0
    for owner, mark in zip(owners, _owner_marks(owners), strict=True):
        shown |= owner.cpus.mask
        lines.append(_legend_line(mark, owner.label, owner.cpus, width))
    left = CPUSet(topology.online.mask & ~shown)
    if left and not any(owner.kind == "shared" for owner in owners):
        lines.append(_legend_line((SHARED, _DIM), "shared pool", left, width))
    return lines


def _legend_line(mark: Span, label: str, cpus: CPUSet, width: int) -> Line:
    count = f"{len(cpus)} cpu" + "s" * (len(cpus) != 1)
    text = f" {label}: {cpus} ({count})" if cpus else f" {label}: none"
    return (mark, (_cut(text, width - 1), ""))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _length(line: Line) -> int:
    return sum(len(text) for text, _ in line)


def _paint(line: Line, *, colour: bool) -> str:
    if not colour:
        return "".join(text for text, _ in line).rstrip()
    return "".join(f"\x1b[{how}m{text}\x1b[0m" if how else text for text, how in line)
