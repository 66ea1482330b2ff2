"""The distances between NUMA nodes as a coloured matrix."""

from collections.abc import Iterable

from nri_plugin.cli.palette import ink_on
from nri_plugin.cli.picture_distances import UNKNOWN, Scale, scale_of
from nri_plugin.cli.svg_layout import GAP, TITLE, Item, escape, grid, rectangle, stacked, text, text_width
from nri_plugin.topology import Topology

SMALL = 10


def matrix(topology: Topology) -> Item | None:
    """The matrix with its heading and a key of colours; None where a machine has no distances."""
    scale = scale_of(topology)
    if scale is None:
        return None
    side = 34 if len(topology.nodes) <= 16 else 24 if len(topology.nodes) <= 40 else 11
    return stacked(
        [_heading("distances between NUMA nodes"), _cells(topology, scale, side), _key(scale)], 2 * GAP
    )


def _heading(what: str) -> Item:
    return Item(text_width(what, TITLE), TITLE, lambda x, y: [text(x, y + TITLE - 3, what, "label strong")])


def _cells(topology: Topology, scale: Scale, side: float) -> Item:
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

    return Item(left + side * len(names), top + high * len(names), draw)


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


def _key(scale: Scale) -> Item:
    """The values of each colour, near ones first."""
    values_by_colour: dict[str, list[int]] = {}
    for value in scale.values:
        values_by_colour.setdefault(scale.colour(value)[0], []).append(value)
    return grid([_swatch(fill, values) for fill, values in values_by_colour.items()], 6, 2 * GAP)


def _swatch(fill: str, values: list[int]) -> Item:
    words = str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"

    def draw(x: float, y: float) -> Iterable[str]:
        yield rectangle(x, y, 14, 12, f'fill="{fill}" class="key"', 1)
        yield text(x + 19, y + SMALL, words, "muted", SMALL + 1)

    return Item(19 + text_width(words, SMALL + 1), 14, draw)
