"""A machine in the terminal: a line for each socket, NUMA node and uncore cache, then the legend and the distances.

With owners every CPU is one character, the letter of its owner; without, it is its number. Threads of a core stand
together. A machine of many CPUs is shown in ranges.
"""

from collections.abc import Callable, Iterable, Sequence

from nri_plugin.cli.output import cut, fold_words, memory_text, memory_words
from nri_plugin.cli.topology.machine_view import (
    LETTERS,
    SHARED,
    CachePart,
    CPUOwner,
    NodePart,
    Paint,
    machine_parts,
    members,
    nodes_without_cpus,
    owner_paints,
)
from nri_plugin.model import bits
from nri_plugin.model.bounds import visible
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.topology import NUMANode, Topology

Span = tuple[str, str]
"""Text and its ANSI parameters; empty parameters for plain text."""
Line = tuple[Span, ...]
BLANK: Span = (" ", "")
Cell = Callable[[int], Line]
"""Draws the CPUs of a core."""

NARROWEST = 40
MANY = 256
"""CPUs; the numbers of more are shown in ranges."""
SOCKET, NODE, CACHE = "38;5;245", "38;5;32", "38;5;65"
"""Colours of titles, legible on white and on black."""
UNKNOWN = "?"
"""In place of a distance that the machine does not give."""

_ASCII = {ord("·"): ".", ord("…"): "~"} | {ord(letter): "*" for letter in LETTERS if not letter.isascii()}


def draw(
    topology: Topology,
    owners: Sequence[CPUOwner] | None = None,
    *,
    width: int = 80,
    colour: bool = False,
) -> str:
    """The picture, as lines of at most `width` characters.

    Args:
        topology: the machine.
        owners: of CPUs; CPUs without an owner are drawn as the shared pool. None for CPU numbers.
        width: columns of the terminal, at least 40.
        colour: whether to use ANSI colours; the picture has the same content without.
    """
    width = max(width, NARROWEST)
    cell = _number_cell(topology) if owners is None else _mark_cell(owners)
    is_large = owners is None and len(topology.online) > MANY
    lines: list[Line] = []
    for socket in machine_parts(topology):
        lines.append(((f"socket {socket.id}", SOCKET),))
        for part in socket.nodes:
            lines += [((row, NODE),) for row in fold_words(f"  {_node_title(part)}", width, indent="  ")]
            for cache in part.caches:
                title = f"{_cache_title(cache)}: " if topology.caches_known else ""
                cells = [((bits.format_list(cache.cpus), ""),)] if is_large else map(cell, cache.cores)
                lines += _row(f"    {title}", cells, width)
    lines += _other_lines(topology, owners, width)
    if owners is not None:
        lines += _legend(topology, owners, width)
    return "\n".join(paint(line, colour=colour) for line in lines)


def paint(line: Line, *, colour: bool) -> str:
    """The line with its escape sequences; the characters are the same with and without colour."""
    if not colour:
        return "".join(visible(text) for text, _ in line).rstrip()
    return "".join(f"\x1b[{how}m{visible(text)}\x1b[0m" if how else visible(text) for text, how in line)


def in_encoding(text: str, encoding: str) -> str:
    """The text, in ASCII where the encoding lacks one of its characters."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def _row(title: str, cells: Iterable[Line], width: int) -> list[Line]:
    """A title and its cells, in as many lines as they need; only a cell that is wider than a line is broken."""
    indent: Span = (" " * len(title), "")
    room = width - len(title)
    lines: list[Line] = [((title, CACHE),)]
    used = 0
    for cell in cells:
        length = sum(len(text) for text, _ in cell)
        if length > room:
            lines += [(indent, (row, "")) for text, _ in cell for row in fold_words(text, room)]
            used = room
        elif used + length > room:
            lines.append((indent, *cell))
            used = length + 1
        else:
            lines[-1] += (*[BLANK] * (used > 0), *cell)
            used += length + 1
    return lines


def _mark_cell(owners: Sequence[CPUOwner]) -> Cell:
    shared = (SHARED.letter, SHARED.ansi)
    marks: dict[int, Span] = {}
    for owner, drawn in zip(owners, owner_paints(owners), strict=True):
        marks.update(dict.fromkeys(bits.iterate(owner.cpus.mask), (drawn.letter, drawn.ansi)))
    return lambda mask: tuple(marks.get(cpu, shared) for cpu in members(mask))


def _number_cell(topology: Topology) -> Cell:
    wide = max(len(str(cpus)) for _, cpus in topology.cores)
    return lambda mask: ((bits.format_list(mask).ljust(wide), ""),)


def _cache_title(cache: CachePart) -> str:
    return f"{cache.name} (part)" if cache.is_part else cache.name


def _node_title(part: NodePart) -> str:
    """Only the first part of a node has the memory of the node."""
    named = f"NUMA {part.node.id}{' (part)' if part.is_part else ''}: {bits.format_list(part.cpus)}"
    if part.node.memory_bytes is None or not part.is_first:
        return named
    return f"{named}, {memory_words(part.node.memory_bytes)}{' in all' if part.is_part else ''}"


def _other_lines(topology: Topology, owners: Sequence[CPUOwner] | None, width: int) -> list[Line]:
    """Nodes without CPUs, caches over several nodes, offline and isolated CPUs."""
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


def distance_lines(topology: Topology, width: int) -> list[str]:
    """The distances between NUMA nodes: a table, or sentences where it is wider than `width`; none where there are none."""
    nodes, ids = topology.nodes, topology.node_ids
    if len(nodes) < 2 or all(node.distances is None for node in nodes):
        return []
    left = max(len("distance"), len(f"NUMA {ids[-1]}"))
    values = [value for node in nodes for value in node.distances or ()]
    wide = max(len(str(number)) for number in (*ids, *values)) + 1
    if left + wide * len(ids) <= width:
        rows = [("distance", [str(number) for number in ids])]
        for node in nodes:
            cells = [UNKNOWN] * len(ids) if node.distances is None else list(map(str, node.distances))
            rows.append((f"NUMA {node.id}", cells))
        return [name.ljust(left) + "".join(cell.rjust(wide) for cell in cells) for name, cells in rows]
    ids_by_text: dict[str, int] = {}
    for node in nodes:
        text = _distances(topology, node)
        ids_by_text[text] = ids_by_text.get(text, 0) | 1 << node.id
    texts = [f"NUMA {bits.format_list(mask)} distance {text}" for text, mask in ids_by_text.items()]
    return [row for text in texts for row in fold_words(text, width, indent="  ")]


def _distances(topology: Topology, node: NUMANode) -> str:
    """The distances from one node, those of most nodes last."""
    if node.distances is None:
        return "unknown"
    ids_by_value: dict[int, int] = {}
    own = 0
    for other, value in zip(topology.node_ids, node.distances, strict=True):
        if other == node.id:
            own = value
        else:
            ids_by_value[value] = ids_by_value.get(value, 0) | 1 << other
    most = max(ids_by_value, key=lambda value: ids_by_value[value].bit_count())
    near = [
        f"{value} to {bits.format_list(ids)}" for value, ids in sorted(ids_by_value.items()) if value != most
    ]
    return ", ".join([f"{own} to itself", *near, f"{most} to all others"])
