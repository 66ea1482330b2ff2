"""Output of the commands: the format option, tables, text layout, and a progress line.

A row of a table is one line, which a terminal wraps and other programs read whole; sentences are folded on a terminal. The
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
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
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


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, one for each row, as kubectl prints them; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def cut(text: str, width: int, mark: str = "…") -> str:
    """The text, or its beginning with a mark where it is longer than `width`."""
    return text if len(text) <= width else text[: max(width - len(mark), 0)] + mark[:width]


_PIECE = re.compile(r"[^ ,]*[ ,]+|[^ ,]+")


def fold_words(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width`, broken at blanks and behind commas; a longer word is broken anywhere."""
    width = max(width, 2 * len(indent), 1)
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


def fold_all(lines: Iterable[str], width: int, indent: int) -> list[str]:
    """Each line as `fold_words` folds it; further lines of it begin with so many blanks."""
    return [part for line in lines for part in fold_words(line, width, " " * indent)]


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
