"""The distances between NUMA nodes as a heat map: numbers where they fit, else one shaded cell for each pair.

The shade says how far without any colour; a legend gives the values of each shade.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nri_plugin.cli.topology.palette import ink_on
from nri_plugin.cli.topology.picture import Line, Span, fold, paint
from nri_plugin.model import bits
from nri_plugin.model.topology import NUMANode, Topology

SHADES = "·░▒▓█"
"""The first is for a node to itself, the others for increasing distances."""
COLOURS: tuple[tuple[str, int], ...] = (
    ("#afd7af", 151),
    ("#ffffaf", 229),
    ("#ffd787", 222),
    ("#ffaf5f", 215),
    ("#ff8700", 208),
    ("#d75f00", 166),
    ("#af0000", 124),
    ("#5f0000", 52),
)
"""From near to far, with their numbers in xterm's 256 colours; the first is for a node to itself."""
MOST = 128
"""Rows of a map; on larger machines nodes with equal distances are grouped."""
UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Scale:
    """How far is far on one machine.

    Attributes:
        values: all that there are, ascending.
        local: the one from a node to itself; None where nodes differ in it.
    """

    values: tuple[int, ...]
    local: int | None

    def shade(self, value: int) -> str:
        """A character, the denser the farther."""
        return SHADES[self._step(value, 2 if len(self._far) == 1 else len(SHADES) - 1)]

    def colour(self, value: int) -> tuple[str, int]:
        """As `#rrggbb` and as a number of 256; the darkest only where there are many values."""
        return COLOURS[self._step(value, min(3 + len(self._far), len(COLOURS) - 1))]

    @property
    def _far(self) -> list[int]:
        return [value for value in self.values if value != self.local]

    def _step(self, value: int, last: int) -> int:
        """0 for a node to itself, else from 1 for the nearest others to `last` for the farthest."""
        if value == self.local:
            return 0
        far = self._far
        return last if len(far) == 1 else 1 + far.index(value) * (last - 1) // (len(far) - 1)


def scale_of(topology: Topology) -> Scale | None:
    """The scale of a machine; None where there are no two nodes with distances."""
    rows = [(at, node.distances) for at, node in enumerate(topology.nodes) if node.distances is not None]
    if len(topology.nodes) < 2 or not rows:
        return None
    own = {row[at] for at, row in rows}
    return Scale(
        tuple(sorted({value for _, row in rows for value in row})), own.pop() if len(own) == 1 else None
    )


def heat_map(topology: Topology, width: int, *, colour: bool = False) -> str:
    """The map, or nothing where a machine has no distances; no line is longer than `width`."""
    scale = scale_of(topology)
    if scale is None:
        return ""
    digits = max(len(str(scale.values[-1])), len(str(topology.node_ids[-1])))
    count = len(topology.nodes)
    if _label_width(topology) + (digits + 2) * count <= width and count <= 32:
        lines = _numbers(topology, scale, digits)
    elif _label_width(topology) + count <= width and count <= MOST:
        lines = _cells(topology, scale, 2 if _label_width(topology) + 2 * count <= width else 1)
        lines += _key(scale, width)
    else:
        lines = _words(topology, width)
    return "\n".join(paint(line, colour=colour) for line in lines)


def _numbers(topology: Topology, scale: Scale, digits: int) -> list[Line]:
    left = _label_width(topology)
    head = "distance".ljust(left) + "".join(f" {node:>{digits}} " for node in topology.node_ids)
    lines: list[Line] = [((head.rstrip(), ""),)]
    for node in topology.nodes:
        spans: list[Span] = [(f"NUMA {node.id}".ljust(left), "")]
        for value in node.distances or [None] * len(topology.nodes):
            spans += _cell(scale, value, f" {value if value is not None else UNKNOWN:>{digits}}")
        lines.append(tuple(spans))
    return lines


def _cell(scale: Scale, value: int | None, text: str) -> Iterable[Span]:
    """A number and its shade; with colours the shade is hidden in the colour that says the same."""
    if value is None:
        return [(text + " ", "")]
    name, number = scale.colour(value)
    ink = 231 if ink_on(name) == "#ffffff" else 16
    return [(text, f"38;5;{ink};48;5;{number}"), (scale.shade(value), f"38;5;{number};48;5;{number}")]


def _cells(topology: Topology, scale: Scale, wide: int) -> list[Line]:
    left = _label_width(topology)
    ids = [str(node) for node in topology.node_ids]
    lines: list[Line] = []
    for place in reversed(range(len(ids[-1]))):
        # numbers stand upright above their columns: tens, then ones
        digits = "".join((_digit(ids, at, place)).ljust(wide) for at in range(len(ids)))
        lines.append((((("distance" if not lines else "").ljust(left) + digits).rstrip(), ""),))
    for node in topology.nodes:
        spans: list[Span] = [(f"NUMA {node.id}".ljust(left), "")]
        for value in node.distances or [None] * len(ids):
            if value is None:
                spans.append((UNKNOWN * wide, ""))
            else:
                number = scale.colour(value)[1]
                spans.append((scale.shade(value) * wide, f"38;5;{number};48;5;{number}"))
        lines.append(tuple(spans))
    return lines


def _digit(ids: Sequence[str], at: int, place: int) -> str:
    """A digit of a column's number; higher ones are written where they change, ones always."""
    digit = ids[at][-1 - place : len(ids[at]) - place] if len(ids[at]) > place else " "
    before = ids[at - 1][-1 - place : len(ids[at - 1]) - place] if at and len(ids[at - 1]) > place else " "
    return digit if place == 0 or digit != before else " "


def _key(scale: Scale, width: int) -> list[Line]:
    """The values of each shade."""
    values_by_shade: dict[str, list[int]] = {}
    for value in scale.values:
        values_by_shade.setdefault(scale.shade(value), []).append(value)
    lines: list[Line] = [()]
    for shade, values in values_by_shade.items():
        number = scale.colour(values[0])[1]
        text = str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"
        entry: Line = ((shade * 2, f"38;5;{number};48;5;{number}"), (f" {text}   ", ""))
        if sum(len(part) for part, _ in (*lines[-1], *entry)) > width + 3:
            lines.append(())
        lines[-1] += entry
    return [(*line[:-1], (line[-1][0].rstrip(), "")) for line in lines]


def _words(topology: Topology, width: int) -> list[Line]:
    """One sentence for nodes that are equally far from all others."""
    texts: dict[str, int] = {}
    for at, node in enumerate(topology.nodes):
        if node.distances is not None:
            text = _far(topology, node, at)
            texts[text] = texts.get(text, 0) | 1 << node.id
    lines = [f"NUMA {bits.format_list(ids)} distance {text}" for text, ids in texts.items()]
    return [((row, ""),) for line in lines for row in fold(line, width, indent="  ")]


def _far(topology: Topology, node: NUMANode, own: int) -> str:
    to: dict[int, int] = {}
    for other, value in zip(topology.node_ids, node.distances or (), strict=True):
        to[value] = to.get(value, 0) | 1 << other
    most = max(to, key=lambda value: to[value].bit_count())
    own_value = (node.distances or ())[own]
    words = [f"{own_value} to itself"]
    for value in sorted(to):
        mask = to[value] & ~(1 << node.id)
        if mask and value != most:
            words.append(f"{value} to {bits.format_list(mask)}")
    rest = to[most] & ~(1 << node.id)
    return ", ".join([*words, f"{most} to all others"] if rest else words)


def _label_width(topology: Topology) -> int:
    return max(len("distance"), len(f"NUMA {topology.node_ids[-1]}")) + 1
