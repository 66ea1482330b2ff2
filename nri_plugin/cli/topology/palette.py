"""Letters and colours of containers, and shades of distances: the same in text, SVG and HTML.

The first container gets the letter A and the first colour. The letter alone identifies a container: colours repeat after
the sixteenth. The shade of a distance shows without any colour how far a NUMA node is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nri_plugin.model.topology import Topology

LETTERS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    "αβγδεζηθκλμξπρστφχψωΓΔΘΛΞΠΣΦΨΩБДЖЗИЛЦЧШЩЫЭЮЯбджзилцчшщыэюя"
)
BEYOND = "*"
"""The letter of all containers after the last letter."""


@dataclass(frozen=True, slots=True)
class Paint:
    """How something is drawn.

    Attributes:
        letter: one character.
        fill: the background colour, `#rrggbb`; empty for the background of the page.
        ink: a text colour with enough contrast on `fill`; empty for the ordinary one.
        ansi: both colours for a terminal, as the parameters of an escape sequence.
    """

    letter: str
    fill: str = ""
    ink: str = ""
    ansi: str = ""


SHARED = Paint("·", ansi="2")
RESERVED = Paint("=")
ISOLATED = Paint(":")
OFFLINE = Paint("-", ansi="2")

_LEVELS = (0, 95, 135, 175, 215, 255)
"""Source: xterm's 256 colours, of which 16 to 231 are a cube of these."""
_BLACK, _WHITE = "#000000", "#ffffff"
_CUBE = (26, 208, 28, 169, 38, 160, 220, 91, 112, 94, 30, 218, 111, 60, 210, 122)
"""Neighbours differ in hue and lightness; each is legible on white and on black."""


def luminance(colour: str) -> float:
    """How light `#rrggbb` is, from 0 to 1. Source: WCAG 2.2, relative luminance."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """From 1 to 21; 4.5 is enough for small text. Source: WCAG 2.2, contrast ratio."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink_on(fill: str) -> str:
    """Black or white: the one with more contrast on a colour."""
    return max(_BLACK, _WHITE, key=lambda ink: contrast(fill, ink))


def paint_of(place: int) -> Paint:
    """The paint of the container at this place, counted from 0."""
    number = _CUBE[place % len(_CUBE)]
    digits = number - 16
    fill = "#" + "".join(f"{_LEVELS[digit]:02x}" for digit in (digits // 36, digits // 6 % 6, digits % 6))
    ink = ink_on(fill)
    letter = LETTERS[place] if place < len(LETTERS) else BEYOND
    return Paint(letter, fill, ink, f"1;38;5;{231 if ink == _WHITE else 16};48;5;{number}")


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
UNKNOWN = "?"
"""In place of a distance that the machine does not give."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The distances between NUMA nodes of one machine.

    Attributes:
        values: the distances that occur, ascending.
        local: the distance from a node to itself; None where nodes differ in it.
    """

    values: tuple[int, ...]
    local: int | None

    def shade(self, value: int) -> str:
        """A character, the denser the farther."""
        return SHADES[self._step(value, 2 if len(self._far) == 1 else len(SHADES) - 1)]

    def colour(self, value: int) -> tuple[str, int]:
        """As `#rrggbb` and as a number of 256; the darkest only where there are many values."""
        return COLOURS[self._step(value, min(3 + len(self._far), len(COLOURS) - 1))]

    def key(self, look_of: Callable[[int], str]) -> list[tuple[int, str]]:
        """For each look that occurs, near ones first: the nearest distance that has it, and all in words."""
        values_by_look: dict[str, list[int]] = {}
        for value in self.values:
            values_by_look.setdefault(look_of(value), []).append(value)
        return [
            (values[0], f"{values[0]}-{values[-1]}" if values[1:] else str(values[0]))
            for values in values_by_look.values()
        ]

    @property
    def _far(self) -> list[int]:
        return [value for value in self.values if value != self.local]

    def _step(self, value: int, last: int) -> int:
        """0 for a node to itself, else from 1 for the nearest others to `last` for the farthest."""
        far = self._far
        if value == self.local:
            return 0
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
