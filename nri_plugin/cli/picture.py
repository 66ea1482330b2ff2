"""A machine in the terminal: sockets around NUMA nodes around caches around cores.

With owners every CPU is one character that says who has it; without, it is its number. A machine that would
need too many lines so is told in ranges: a line for each cache, or for each NUMA node.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from nri_plugin import bits
from nri_plugin.cli.palette import ISOLATED, LETTERS, OFFLINE, RESERVED, SHARED, Paint, Palette
from nri_plugin.cli.picture_boxes import Box, Line, Span, cut, fold, paint, stack
from nri_plugin.cli.picture_parts import (
    CachePart,
    NodePart,
    SocketPart,
    machine_parts,
    members,
    nodes_without_cpus,
)
from nri_plugin.cpuset import CPUSet
from nri_plugin.nodemask import NO_NODES, NodeMask
from nri_plugin.topology import Topology

Kind = Literal["exclusive", "shared", "reserved", "isolated", "offline"]
Cell = Callable[[int], Line]
"""How CPUs (a mask) are drawn."""

NARROWEST = 40
TIMES = "\N{MULTIPLICATION SIGN}"
SOCKET_FRAME, NODE_FRAME, CACHE_FRAME = "38;5;245", "38;5;32", "38;5;65"
"""Colours of frames, read on white and on black."""

_OF_NO_ONE = {"shared": SHARED, "reserved": RESERVED, "isolated": ISOLATED, "offline": OFFLINE}
_ASCII = {ord(plain): other for plain, other in zip(f"┌┐└┘─│·…░▒▓█{TIMES}", "++++-|.~:+#@x", strict=True)}
_ASCII |= {ord(letter): "*" for letter in LETTERS if not letter.isascii()}


class Style(Enum):
    """How much is drawn, most first; with the lines that it may take."""

    BOXES = 46
    """Each cache a box of its own."""
    BRACKETS = 60
    """Each cache in brackets."""
    CACHES = 100
    """A line for each cache, in ranges."""
    NODES = 101
    """A line for each NUMA node, in ranges."""
    LINES = 0
    """The same without boxes, however many."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has which CPUs.

    Attributes:
        label: a line of the legend.
        cpus: the CPUs.
        kind: `exclusive` owners have a letter each; later owners are drawn over earlier ones.
        note: what else the legend says.
        members: who shares these CPUs.
        mems: NUMA nodes its memory is bound to.
    """

    label: str
    cpus: CPUSet
    kind: Kind = "exclusive"
    note: str = ""
    members: tuple[str, ...] = ()
    mems: NodeMask = NO_NODES


def draw(
    topology: Topology,
    owners: Sequence[Owner] | None = None,
    *,
    width: int = 80,
    colour: bool = False,
    style: Style | None = Style.BRACKETS,
) -> str:
    """The picture, as lines of at most `width` characters.

    Args:
        topology: the machine.
        owners: who has which CPUs; CPUs that nobody has are drawn as the shared pool. None for CPU numbers.
        width: columns of the terminal, at least 40.
        colour: whether to use ANSI colours; the picture says the same without.
        style: how much is drawn; None for as much as its lines allow.
    """
    width = max(width, NARROWEST)
    lines = [*_machine(topology, owners, width, style), *_other_lines(topology, owners, width)]
    if owners is not None:
        lines += _legend(topology, owners, width)
    return "\n".join(paint(line, colour=colour) for line in lines)


def in_encoding(text: str, encoding: str | None) -> str:
    """The text with plain characters for lines and marks where the terminal cannot show others."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def memory_text(memory_bytes: int) -> str:
    """A size as people write it."""
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if memory_bytes >> shift:
            return f"{(memory_bytes + (1 << shift >> 1)) >> shift}{unit}"
    return str(memory_bytes)


def owner_paints(owners: Sequence[Owner]) -> list[Paint]:
    """What each is drawn with, in their order: letters by the order of those that have any."""
    palette = Palette()
    return [
        palette.paint(f"{number}") if owner.kind == "exclusive" else _OF_NO_ONE[owner.kind]
        for number, owner in enumerate(owners)
    ]


def _machine(
    topology: Topology, owners: Sequence[Owner] | None, width: int, style: Style | None
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
    """A line for each node, without boxes, for machines of very many."""
    left = max(len(f"socket {socket.id}") for socket in sockets) + 2
    lines: list[Line] = []
    for socket in sockets:
        name = f"socket {socket.id}".ljust(left)
        for part in socket.nodes:
            counts = "" if marks is None else "".join(text for text, _ in _count_cell(marks)(part.cpus))
            rows = fold(f"{_node_titles(part)[0]}  {counts}", width - left, indent="  ")
            for row in rows:
                lines.append(((name, SOCKET_FRAME), (row, "")))
                name = " " * left
    return lines


def _marks(owners: Sequence[Owner]) -> dict[int, Span]:
    """The mark of every CPU that somebody has."""
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
    nobody = (SHARED.letter, SHARED.ansi)
    return lambda mask: tuple(marks.get(cpu, nobody) for cpu in members(mask))


def _number_cell(topology: Topology) -> Cell:
    wide = max(len(str(cpus)) for _, cpus in topology.cores)
    return lambda mask: ((bits.format_list(mask).ljust(wide), ""),)


def _range_cell(mask: int) -> Line:
    return ((bits.format_list(mask), ""),)


def _count_cell(marks: dict[int, Span]) -> Cell:
    """How many CPUs of a set each owner has, as in `A x 16`."""

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
    """A part of a node always shows its CPUs, and only the first part the memory of the whole."""
    node = part.node
    name = f"NUMA {node.id}" + (" (part)" if part.is_part else "")
    named = f"{name}: {bits.format_list(part.cpus)}"
    if node.memory_bytes is None or not part.is_first:
        return (named, name)
    size = f", {memory_text(node.memory_bytes)}" if node.memory_bytes else ", no memory"
    return (f"{named}{size} in all", named, name) if part.is_part else (named + size, name + size, name)


def _other_lines(topology: Topology, owners: Sequence[Owner] | None, width: int) -> list[Line]:
    """What has no place in a box: nodes without CPUs, caches over several nodes, offline and isolated CPUs."""
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
    return [((row, ""),) for text in texts for row in fold(text, width, indent="  ")]


def _legend(topology: Topology, owners: Sequence[Owner], width: int) -> list[Line]:
    lines: list[Line] = []
    shown = 0
    for owner, drawn in zip(owners, owner_paints(owners), strict=True):
        shown |= owner.cpus.mask
        lines += _legend_lines(drawn, owner, width)
    left = CPUSet(topology.online.mask & ~shown)
    if left and not any(owner.kind == "shared" for owner in owners):
        lines += _legend_lines(SHARED, Owner("shared pool", left, "shared"), width)
    return lines


def _legend_lines(drawn: Paint, owner: Owner, width: int) -> Iterable[Line]:
    """A line that is too long goes on below; CPUs and names are never cut, only a label that fills half of it."""
    count = f"{len(owner.cpus)} cpu" + "s" * (len(owner.cpus) != 1)
    text = f"{cut(owner.label, width - 3)}: {owner.cpus} ({count})" if owner.cpus else f"{owner.label}: none"
    text += f", {owner.note}" if owner.note else ""
    text += ": " + ", ".join(owner.members) if owner.members else ""
    rows = fold(text, width - 2, indent="  ")
    yield ((drawn.letter, drawn.ansi), (f" {rows[0]}", ""))
    for row in rows[1:]:
        yield ((f"  {row}", ""),)
