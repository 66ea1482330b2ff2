"""Tables that fit a terminal: where a row is too wide, the widest cells are folded, never cut."""

import re
import textwrap
from collections.abc import Collection, Sequence

GAP = "  "
NARROWEST = 8
"""Columns a folded cell keeps, so that a name stays readable."""


def table(rows: Sequence[Sequence[str]], width: int | None, foldable: Collection[int] = ()) -> list[str]:
    """The lines of a table; the first row is its head.

    Args:
        rows: cells; all rows have as many.
        width: columns there are; None for no limit.
        foldable: columns whose cells may go on in the next line. Lists are folded after a comma.
    """
    return [line for lines in folded_rows(rows, width, foldable) for line in lines]


def folded_rows(
    rows: Sequence[Sequence[str]], width: int | None, foldable: Collection[int] = ()
) -> list[list[str]]:
    """The same, with the lines of each row apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if width is not None:
        widths = _narrowed(rows, widths, width, foldable)
    return [_lines(row, widths) for row in rows]


def folded(line: str, width: int, indent: int) -> list[str]:
    """A line in several, the further ones indented; a list that is too long for one is broken after its commas."""
    room = max(width, 2 * indent, NARROWEST)
    lines = [""]
    for gap, word in re.findall(r"(\s*)(\S+)", line):
        parts = _parts(word) if len(word) > room - indent else [word]
        for number, part in enumerate(parts):
            piece = (gap if number == 0 else "") + part
            if lines[-1].strip() and len(lines[-1]) + len(piece) > room:
                lines.append(" " * indent)
                piece = part
            lines[-1] += piece
    return lines


def _narrowed(
    rows: Sequence[Sequence[str]], widths: list[int], width: int, foldable: Collection[int]
) -> list[int]:
    least = {column: _least(rows, column) for column in foldable}
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        able = [column for column, small in least.items() if widths[column] > small]
        if not able:
            break
        widths[max(able, key=lambda column: widths[column])] -= 1
    return widths


def _least(rows: Sequence[Sequence[str]], column: int) -> int:
    """No member of a list is torn apart, and no head."""
    members = (len(part) for row in rows[1:] for part in _parts(row[column]) if part.endswith(","))
    return max(NARROWEST, len(rows[0][column]), *members, 0)


def _parts(cell: str) -> list[str]:
    """The members of a list with their commas; a name is one part."""
    pieces = cell.split(",")
    return [f"{piece}," for piece in pieces[:-1]] + pieces[-1:]


def _lines(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = [fold(cell, width) for cell, width in zip(row, widths, strict=True)]
    height = max(map(len, cells))
    return [
        GAP.join(
            (cell[number] if number < len(cell) else "").ljust(width)
            for cell, width in zip(cells, widths, strict=True)
        ).rstrip()
        for number in range(height)
    ]


def fold(cell: str, width: int) -> list[str]:
    """The cell in lines of at most `width`, broken after commas; a single word that is wider is broken anywhere."""
    indent = cell[: len(cell) - len(cell.lstrip())]
    lines = [indent]
    for part in _parts(cell.lstrip()):
        if lines[-1].strip() and len(lines[-1]) + len(part) > width:
            lines.append(indent)
        lines[-1] += part if lines[-1].strip() else part.lstrip()
    return [
        piece
        for line in lines
        for piece in textwrap.wrap(line, max(width, 1), subsequent_indent=indent) or [""]
    ]
