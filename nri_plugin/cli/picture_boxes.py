"""Boxes within boxes for the terminal: what fits in the width stands side by side, the rest below."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nri_plugin.visible import visible

Span = tuple[str, str]
"""Text and the ANSI parameters it is drawn with (empty for plain)."""
Line = tuple[Span, ...]

_PIECE = re.compile(r"[^ ,]*[ ,]+|[^ ,]+")
MAX_COLUMNS = 8
FRAME = 4
"""Columns that a box has around its content."""
BLANK: Span = (" ", "")


@dataclass(frozen=True, slots=True)
class Box:
    """One box.

    Attributes:
        titles: what may stand in its frame, longest first.
        ansi: how frame and title are drawn.
        boxes: what is in it; where there are any, `groups` is empty.
        groups: cells that belong together (those of a cache); a group begins a new line where it does not fit.
        brackets: what stands around each group; empty for nothing.
    """

    titles: Sequence[str]
    ansi: str = ""
    boxes: Sequence["Box"] = ()
    groups: Sequence[Sequence[Line]] = ()
    brackets: str = ""


def least_width(box: Box) -> int:
    """The narrowest that the box can be without folding a cell, frame included."""
    if box.boxes:
        content = max(least_width(inner) for inner in box.boxes)
    elif box.brackets:
        content = max((length(_joined(group)) + 2 for group in box.groups), default=0)
    else:
        content = max((length(_joined(group[:4])) for group in box.groups), default=0)
    return FRAME + max(content, len(box.titles[-1]))


def stack(boxes: Sequence[Box], width: int) -> list[Line]:
    """The boxes in as many columns as fit, no line longer than `width`, which is at least 24."""
    if not boxes:
        return []
    columns = column_count(len(boxes), max(map(least_width, boxes)), width)
    room = (width - columns + 1) // columns - FRAME
    contents = [_content(box, room) for box in boxes]
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
    """How many boxes stand side by side: as many as fit, but no half-empty last row."""
    fitting = max(1, min(boxes, MAX_COLUMNS, (width + 1) // (least + 1)))
    rows = -(-boxes // fitting)
    return -(-boxes // rows)


def length(line: Line) -> int:
    """Columns that a line takes."""
    return sum(len(text) for text, _ in line)


def paint(line: Line, *, colour: bool) -> str:
    """The line for the terminal; the characters are the same with and without colour."""
    if not colour:
        return "".join(visible(text) for text, _ in line).rstrip()
    return "".join(f"\x1b[{how}m{visible(text)}\x1b[0m" if how else visible(text) for text, how in line)


def cut(text: str, width: int) -> str:
    """The text, or as much as fits with a sign that there was more."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"[:width]


def fold(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width`, broken at blanks and behind commas, in words only where nothing else helps."""
    lines, line = [], ""
    for piece in _PIECE.findall(text):
        if line.strip() and len((line + piece).rstrip()) > width:
            lines.append(line.rstrip())
            line = indent
        line += piece
        while len(line.rstrip()) > width:
            lines.append(line[:width])
            line = indent + line[width:]
    return [*lines, line.rstrip()]


def _content(box: Box, width: int) -> list[Line]:
    return stack(box.boxes, width) if box.boxes else _grouped(box, width)


def _grouped(box: Box, width: int) -> list[Line]:
    """Groups side by side where they fit; one that is wider than the box goes over several lines."""
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
    """A cell in lines that fit: broken between its spans, and within one behind commas where it can be."""
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
