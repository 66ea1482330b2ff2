"""Output of the commands: the format option, tables, text layout, and a progress line.

A table fits the terminal: where a row is too wide, the widest cells are folded after their commas, never cut. The
progress line appears on a terminal at standard error after a second, and is wiped at the end; it is never written to
files or pipes.
"""

import codecs
import errno
import json
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from itertools import chain
from types import FrameType
from typing import Any, TypeVar

import click

from nri_plugin.cli import PROGRAM
from nri_plugin.model.bounds import visible, visible_line
from nri_plugin.model.sets import IDSet

F = TypeVar("F", bound=Callable[..., Any])


FOR_PROGRAMS = frozenset({"json", "yaml"})
"""The forms of `-o` that `render` makes."""


def format_option(*formats: str) -> Callable[[F], F]:
    """The one option `-o`, `--output`; the first of `formats` is the default, `text` and `json` if none is named.

    Where there is `json` there is `yaml`.
    """
    named = formats or ("text", "json")
    choices = tuple(part for one in named for part in ((one, "yaml") if one == "json" else (one,)))
    return click.option(
        "-o",
        "--output",
        "output_format",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="Output format.",
    )


def render(data: Any, form: str, *, is_one_of_many: bool = False) -> str:
    """Records, and what is made of them, as programs read them.

    Args:
        data: records, mappings, lists and plain values; a set of CPUs or NUMA nodes becomes a kernel list.
        form: one of `FOR_PROGRAMS`.
        is_one_of_many: more answers may follow, so it is one line of JSON or one document of YAML.
    """
    facts = plain(data)
    if form == "json":
        return json.dumps(facts, indent=None if is_one_of_many else 2)
    import yaml

    text: str = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, explicit_start=is_one_of_many)
    return text.rstrip("\n")


def plain(data: Any) -> Any:
    """Records as mappings of plain values."""
    if isinstance(data, IDSet):
        return str(data)
    if isinstance(data, datetime):
        return data.isoformat()
    if isinstance(data, Enum):
        return data.value
    names = getattr(data, "__struct_fields__", None) or getattr(data, "__dataclass_fields__", None)
    if names is None:
        names = getattr(data, "_fields", None)  # of a named tuple
    if names is not None:
        return {name: plain(getattr(data, name)) for name in names}
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [plain(one) for one in data]
    return data


def echo(text: str, *, err: bool = False, styled: bool = False) -> None:
    """Print text for people; all such output passes here.

    Args:
        text: may hold names of pods, of files and of other programs.
        err: to standard error.
        styled: whether the text has our own colours; foreign parts of it have passed `visible` already.
    """
    click.echo(_visible_but(COLOUR, text) if styled else visible(text), err=err)


COLOUR = re.compile(r"\x1b\[[0-9;]{0,16}m")
SCREEN = re.compile(r"\x1b\[(?:\?(?:25|1049)[hl]|[0-9;]{0,16}[HJKm])|\r")
"""What `nri-pin top` draws with."""
UNFINISHED = re.compile(r"\x1b(?:\[[?0-9;]{0,16})?\Z")
CHUNK_BYTES = 1 << 16


def relay(descriptor: int, *, is_screen: bool = False) -> None:
    """Print what comes from another program until it ends; a program of another computer, so nothing of it is obeyed.

    Args:
        descriptor: to read from.
        is_screen: keep the sequences that draw a screen.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while data := _piece(descriptor):
        text, rest = rest + decoder.decode(data), ""
        if is_screen:
            cut = UNFINISHED.search(text)
            text, rest = (text[: cut.start()], cut[0]) if cut else (text, "")
        click.echo(_visible_but(SCREEN, text) if is_screen else visible(text), nl=False, color=True)
    click.echo(visible(rest + decoder.decode(b"", final=True)), nl=False)


def _piece(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except OSError as error:
        if error.errno == errno.EIO:  # the program at the other end of a terminal has ended
            return b""
        raise


def _visible_but(kept: re.Pattern[str], text: str) -> str:
    """The text as `visible` spells it, except for these sequences."""
    at = 0
    parts: list[str] = []
    for found in kept.finditer(text):
        parts += visible(text[at : found.start()]), found[0]
        at = found.end()
    return "".join((*parts, visible(text[at:])))


CALLED_AS = "NRI_PIN_CALLED_AS"
"""The environment variable that `kubectl nri-pin` sets: how the user called this program."""
CALLED_ON = "NRI_PIN_CALLED_ON"
"""The one with the node that the user named, or the node of the pod."""


def to_run(words: str, about: str = "") -> str:
    """A command that a text recommends, as the reader has to type it: `nri-pin WORDS`, or `kubectl nri-pin WORDS node/NODE`.

    Args:
        words: the command.
        about: a container or pod, NAMESPACE/POD or longer, which tells the node as well.
    """
    parts = (os.environ.get(CALLED_AS, PROGRAM), words, about or os.environ.get(CALLED_ON, ""))
    return " ".join(part for part in parts if part)


def wants_colour() -> bool:
    """Whether to use colours: on a terminal that can show them, without NO_COLOR. Source: no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def output_encoding() -> str:
    """The encoding that pictures have to keep to: ASCII in the locale C, else that of standard output.

    Python writes UTF-8 in the locale C, whatever the terminal shows. Where only LANG names it, Python has set LC_CTYPE.
    Source: PEP 538, PEP 540.
    """
    everything, ctype, lang = (os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    chosen = everything or (ctype if ctype != "C.UTF-8" else "") or lang
    return "ascii" if chosen in ("C", "POSIX") else sys.stdout.encoding or "ascii"


UNLIMITED = 1 << 20
"""The width of output that does not go to a terminal: other programs read whole rows."""


def columns() -> int:
    """The width of output: COLUMNS where it is set, else the terminal's, else `UNLIMITED`."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return UNLIMITED


GAP = "  "
NARROWEST = 8
"""The least width of a folded cell, so that a name stays readable."""


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
    """The lines of each row of a table; see `table`."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if width is not None:
        widths = _narrowed(rows, widths, width, foldable)
    return [_lines(row, widths) for row in rows]


def folded(line: str, width: int, indent: int) -> list[str]:
    """A line folded at blanks, further lines indented; a list that is too long is broken after its commas."""
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
    # The widest column gives up one character at a time, so that columns end up about equally wide. Where no column can
    # give up more, the table stays too wide: a name that is torn apart is worse than a line that the terminal wraps.
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        able = [column for column, small in least.items() if widths[column] > small]
        if not able:
            break
        widths[max(able, key=lambda column: widths[column])] -= 1
    return widths


def _least(rows: Sequence[Sequence[str]], column: int) -> int:
    """The least width of a column: members of lists and the head are not broken."""
    members = (len(part) for row in rows[1:] for part in _parts(row[column]) if part.endswith(","))
    return max(NARROWEST, len(rows[0][column]), *members, 0)


def _parts(cell: str) -> list[str]:
    """The members of a list with their commas; a name is one part."""
    pieces = cell.split(",")
    return [f"{piece}," for piece in pieces[:-1]] + pieces[-1:]


def _steps(part: str) -> list[str]:
    """The steps of NAMESPACE/POD/CONTAINER with their slashes; text with blanks is one part."""
    return [part] if " " in part.strip() else re.findall("[^/]*/|[^/]+", part)


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
    """The cell in lines of at most `width`, broken after commas.

    A single word that is wider is broken after a slash, and where it is still wider anywhere.
    """
    indent = cell[: len(cell) - len(cell.lstrip())]
    lines = [indent]
    parts = (_steps(part) if len(part) > width else [part] for part in _parts(cell.lstrip()))
    for part in chain.from_iterable(parts):
        if lines[-1].strip() and len(lines[-1]) + len(part) > width:
            lines.append(indent)
        lines[-1] += part if lines[-1].strip() else part.lstrip()
    return [
        piece
        for line in lines
        for piece in textwrap.wrap(line, max(width, 1), subsequent_indent=indent) or [""]
    ]


def cut(text: str, width: int, mark: str = "…") -> str:
    """The text, or its beginning with a mark where it is longer than `width`."""
    return text if len(text) <= width else text[: max(width - len(mark), 0)] + mark[:width]


_PIECE = re.compile(r"[^ ,]*[ ,]+|[^ ,]+")


def fold_words(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width`, broken at blanks and behind commas; a longer word is broken anywhere."""
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


def count_of(number: int, what: str) -> str:
    """A number with its noun: `1 core`, `2 cores`."""
    return f"{number} {what}" + "s" * (number != 1)


def memory_text(memory_bytes: int) -> str:
    """A size in the largest binary unit that it reaches, rounded to a whole number."""
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if memory_bytes >> shift:
            return f"{(memory_bytes + (1 << shift >> 1)) >> shift}{unit}"
    return str(memory_bytes)


def memory_words(memory_bytes: int | None) -> str:
    """The size of a NUMA node's memory; None for an unknown size."""
    if memory_bytes is None:
        return "memory unknown"
    return memory_text(memory_bytes) if memory_bytes else "no memory"


Item = TypeVar("Item")

AFTER_S = 1.0
AGAIN_S = 0.25
WIPE = "\r\x1b[K"


class ProgressLine:
    """The progress line; it appears after a second.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + AFTER_S
        self._is_seen = sys.stderr.isatty()
        self._is_written = False

    def say(self, text: str) -> None:
        """Replace the text of the line, at most every `AGAIN_S` seconds."""
        if not self._is_seen or self._clock() < self._due:
            return
        self._due, self._is_written = self._clock() + AGAIN_S, True
        sys.stderr.write(f"{WIPE}{visible_line(text)}")
        sys.stderr.flush()

    def wipe(self) -> None:
        """Remove the line from the terminal."""
        if self._is_written:
            self._is_written = False
            sys.stderr.write(WIPE)
            sys.stderr.flush()


def told(items: Iterable[Item], text: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Item]:
    """Yield the items and count them in the progress line: `replayed {} events`."""
    line = ProgressLine(clock)
    try:
        for count, item in enumerate(items):
            line.say(text.format(count))
            yield item
    finally:
        line.wipe()


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Show the text and the elapsed time while the body of the `with` runs.

    A timer signal of the process updates the line, so the body needs neither a thread nor calls.
    """
    if not sys.stderr.isatty() or threading.current_thread() is not threading.main_thread():
        yield
        return
    line, began = ProgressLine(), time.monotonic()

    def tell(_number: int, _frame: FrameType | None) -> None:
        line.say(f"{text}, {time.monotonic() - began:.0f} s")

    # The former handler and timer are put back at the end: a caller may use its own.
    former = signal.signal(signal.SIGALRM, tell)
    pending = signal.setitimer(signal.ITIMER_REAL, AFTER_S, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        signal.setitimer(signal.ITIMER_REAL, *pending)
        line.wipe()
