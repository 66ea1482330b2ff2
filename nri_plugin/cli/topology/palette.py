"""A letter and a colour for every container: the same in text, svg and html.

The first name gets A and the first colour. A name keeps its letter and colour for as long as the palette
lives, so that two pictures drawn with one palette can be compared. The letter alone tells containers apart;
colours come again after the sixteenth.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LETTERS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    "αβγδεζηθκλμξπρστφχψωΓΔΘΛΞΠΣΦΨΩБДЖЗИЛЦЧШЩЫЭЮЯбджзилцчшщыэюя"
)
BEYOND = "*"
"""Of all that come after the last letter."""


@dataclass(frozen=True, slots=True)
class Paint:
    """How something is drawn.

    Attributes:
        letter: one character.
        fill: the colour behind it, `#rrggbb`; empty for the background's own.
        ink: a colour that is read on it; empty for the ordinary one.
        ansi: the same two for a terminal, as the parameters of an escape sequence.
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
"""Neighbours differ in hue and lightness; all are read on white and on black."""


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
    """Black or white, whichever is read better on a colour."""
    return max(_BLACK, _WHITE, key=lambda ink: contrast(fill, ink))


def _paint(letter: str, number: int) -> Paint:
    place = number - 16
    fill = "#" + "".join(f"{_LEVELS[digit]:02x}" for digit in (place // 36, place // 6 % 6, place % 6))
    ink = ink_on(fill)
    return Paint(letter, fill, ink, f"1;38;5;{231 if ink == _WHITE else 16};48;5;{number}")


class Palette:
    """Letters and colours by name.

    Args:
        names: asked for at once, in this order.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._paints: dict[str, Paint] = {}
        for name in names:
            self.paint(name)

    def paint(self, name: str) -> Paint:
        """What the container of this name is drawn with, now and later."""
        known = self._paints.get(name)
        if known is None:
            number = len(self._paints)
            letter = LETTERS[number] if number < len(LETTERS) else BEYOND
            known = self._paints[name] = _paint(letter, _CUBE[number % len(_CUBE)])
        return known
