"""The display of `nri-pin top`: the text of a frame, and the terminal.

`frame` makes the lines of a picture from a `Model`; no line is wider than the terminal. `Screen` switches to the
alternate screen, writes only the lines that changed, and reads keys one by one. It always restores the terminal.
"""

import os
import select
import shutil
import signal
import sys
import termios
import textwrap
import time
import tty
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

from nri_plugin.cli.output import cut, table
from nri_plugin.cli.state.rows import block_of
from nri_plugin.cli.state.show import cells_of, marked_name
from nri_plugin.cli.state.source import NO_RUNTIME, look_closer
from nri_plugin.cli.top.model import Model, TopEvent, TopRow, drifted, refused
from nri_plugin.model.bounds import visible_line
from nri_plugin.model.options import Node
from nri_plugin.model.records import is_whole_pod, named, pod_of
from nri_plugin.model.state import State
from nri_plugin.model.topology import NUMANode

MOST_BLOCKS = 3
"""Pods with CPUs of their own that have a line."""

HEAD = ("  CONTAINER", "COUNT", "CPUS", "NUMA", "CACHE", "MEMS", "ALIGNED", "USE", "AGE")
BAR = 12
WIDEST_LIST = 18
LEAST_NAME = 16
LOG_LINES = 5
KEYS = "q quit  s sort: {sort}  n filter: {filter}  p {pause}  up/down scroll"
FRESH = "* "
CUT = "~"
"""Marks a text whose end or beginning is left out."""


@dataclass(frozen=True, slots=True)
class Text:
    """A line and its style: `head`, `fresh`, `dim` or empty."""

    text: str
    style: str = ""


def frame(
    model: Model,
    lines: Sequence[TopRow],
    width: int,
    height: int | None,
    at: float,
    prompt: str | None = None,
) -> list[Text]:
    """The picture.

    Args:
        model: the state of the display.
        lines: the containers, in order.
        width: of the terminal.
        height: of the terminal; None for any number of lines without the line of keys.
        at: seconds since the epoch.
        prompt: the filter text that is being typed; None for none.
    """
    most = len(lines) + 99 if height is None else max(1, height // 4)
    top = header(model, width, at, most)
    if height is None:
        body, _ = containers(model, lines, width, None)
        return _fitting([*top, Text(""), *body, *log(model.log, len(model.log))], width)
    log_lines = log(model.log, min(LOG_LINES, max(0, height // 5)))
    room = max(2, height - len(top) - len(log_lines) - 3)
    body, more = containers(model, lines, width, room)
    body += [Text("")] * (room - len(body))
    shown = [*top, Text(""), *body, Text(more, "dim"), *log_lines]
    return _fitting([*shown[: height - 1], keys(model, prompt)], width)


def _fitting(lines: Iterable[Text], width: int) -> list[Text]:
    """The lines, cut where they are wider than the terminal."""
    return [Text(cut(line.text, width, CUT), line.style) for line in lines]


def header(model: Model, width: int, at: float, most: int) -> list[Text]:
    """The source, totals, and a bar for each NUMA node."""
    sample = model.sample
    paused = "  PAUSED" if model.is_paused else ""
    away = "" if sample.is_connected else "  AGENT AWAY; from its checkpoint"
    lines = [
        Text(f"nri-pin top  {clock_time(at)}{paused}{away}", "head"),
        Text(f"from {sample.source}", "" if sample.is_connected else "fresh"),
    ]
    if sample.is_connected and not sample.is_placing:
        lines += [
            Text(text, "fresh") for text in textwrap.wrap(f"{NO_RUNTIME}; {look_closer()}", max(width, 20))
        ]
    node, state = sample.seen.node, sample.seen.state
    lines += [Text(text) for text in _wrapped(totals(model, node, state), width)]
    lines += [Text(cut(text, width, CUT)) for text in blocks(state)]
    return lines + [Text(text) for text in ([] if node is None else bars(node, state, width, most))]


def totals(model: Model, node: Node | None, state: State) -> list[str]:
    """Totals of containers, CPUs, refusals and drifts."""
    sample = model.sample
    told = sample.is_connected
    numbers = [
        f"containers {len(state.containers)}",
        f"unplaced {sum(1 for record in state.containers.values() if record.unplaced)}",
        f"exclusive {len(state.exclusive)}",
    ]
    if node is not None:
        numbers += [
            f"shared pool {len(state.shared_pool(node))}",
            f"reserved {len(node.reserved)}",
            f"available {len(state.available(node))} of {len(node.topology.online)} CPUs",
        ]
    return [
        *numbers,
        *([f"incomplete pods {len(sample.incomplete)}"] if sample.incomplete else []),
        f"refused {refused(sample) if told else '?'}",
        f"drifts {drifted(sample) if told else '?'}",
    ]


def blocks(state: State) -> list[str]:
    """What pods own as wholes, a line each; the others are counted."""
    keys = [key for key in state.allocations if is_whole_pod(key)]
    lines = []
    for key in sorted(keys, key=lambda key: named(state.pods, key))[:MOST_BLOCKS]:
        block = block_of(state, pod_of(key))
        assert block is not None
        lines.append(f"pod {named(state.pods, key)}: {block.text}")
    more = len(keys) - len(lines)
    return [*lines, *([f"and {more} more pods with CPUs of their own"] if more > 0 else [])]


def bars(node: Node, state: State, width: int, most: int) -> list[str]:
    """Bars of exclusive (#), reserved (r) and available (.) CPUs of each NUMA node, several in a line."""
    nodes = [numa for numa in node.topology.nodes if numa.cpus]
    free = state.available(node)
    # Shorter bars until the nodes fit into `most` lines; without bars the last lines are summed up.
    rows: list[str] = []
    for length in (BAR, 6, 0):
        cells = [_bar(node, state, numa, len(numa.cpus & free), length) for numa in nodes]
        wide = max(map(len, cells), default=0) + 2
        count = max(1, width // wide)
        rows = [
            "".join(cell.ljust(wide) for cell in cells[i : i + count]).rstrip()
            for i in range(0, len(cells), count)
        ]
        if len(rows) <= most:
            return rows
    return [*rows[: most - 1], f"and {len(rows) - most + 1} more lines of NUMA nodes"]


def _bar(node: Node, state: State, numa: NUMANode, free: int, length: int) -> str:
    number, cpus = numa.id, numa.cpus
    told = f"{free:>3}/{len(cpus)} free"
    if not length:
        return f"NUMA {number:<2}{told}"
    taken = _share(len(cpus & state.exclusive), len(cpus), length)
    kept = _share(len((cpus & node.reserved) - state.exclusive), len(cpus), length)
    kept = min(kept, length - taken)
    return f"NUMA {number:<2} [{'#' * taken}{'r' * kept}{'.' * (length - taken - kept)}]{told}"


def _share(part: int, whole: int, length: int) -> int:
    """Marks for a part of the whole: at least one for any part, and at least one left for any rest."""
    if not part or not whole:
        return 0
    return min(max(1, round(length * part / whole)), length - (part < whole))


def containers(model: Model, lines: Sequence[TopRow], width: int, room: int | None) -> tuple[list[Text], str]:
    """The rows that fit, and a note about hidden rows."""
    first = 0 if room is None else max(0, min(model.scroll, len(lines) - (room - 1)))
    model.scroll = first
    shown = lines[first:] if room is None else lines[first : first + room - 1]
    texts = table(_narrowed([HEAD, *map(_cells, shown)], width))
    styles = ["head", *("fresh" if line.is_fresh else "" for line in shown)]
    hidden = len(lines) - len(shown)
    more = f"{first} above, {hidden - first} below" if hidden else ""
    if not lines:
        more = "no container" + (f" has {model.pattern!r} in its name" if model.pattern else "")
    return list(map(Text, texts, styles)), more


def _cells(line: TopRow) -> tuple[str, ...]:
    count, cpus, _, numa, caches, mems, aligned = cells_of(line.row, spell_pool=False)
    is_marked = line.row.kept or (line.row.in_block and not line.row.is_ended)
    mark = f" [{line.row.kind}]" if is_marked else ""
    name = f"{line.row.namespace}/{line.row.pod_name}/{marked_name(line.row)}{mark}"
    return (
        (FRESH if line.is_fresh else "  ")
        + name
        + (" !" if line.row.record.unplaced or line.row.lost else ""),
        count,
        *(cut(ids, WIDEST_LIST, CUT) for ids in (cpus, numa, caches, mems)),
        aligned,
        "-" if line.used is None else f"{line.used:.2f}",
        age_words(line.age_s),
    )


def _narrowed(cells: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Rows that fit: names lose their beginning, which identifies a container least."""
    others = sum(max(len(row[column]) for row in cells) + 2 for column in range(1, len(HEAD)))
    room = max(LEAST_NAME, width - others)
    return [(_cut_left(row[0], room) if number else row[0], *row[1:]) for number, row in enumerate(cells)]


def _cut_left(text: str, room: int) -> str:
    mark, name = text[:2], text[2:]
    return text if len(text) <= room else f"{mark}{CUT}{name[len(name) - room + 3 :]}"


def clock_time(at: float) -> str:
    """The time of day in UTC, as in the agent's log."""
    return time.strftime("%H:%M:%SZ", time.gmtime(at))


def log(happened: Sequence[TopEvent], count: int) -> list[Text]:
    """The last changes, the newest last."""
    if not count or not happened:
        return []
    lines = [Text(f"{clock_time(one.at)} {one.text}") for one in list(happened)[-count:]]
    return [Text("CHANGES", "head"), *lines]


def keys(model: Model, prompt: str | None) -> Text:
    """The last line: the keys, or the filter that is being typed."""
    if prompt is not None:
        return Text(f"show names with (Enter to take, Esc to leave): {prompt}", "head")
    text = KEYS.format(
        sort=model.sort, filter=model.pattern or "none", pause="go on" if model.is_paused else "pause"
    )
    return Text(text, "dim")


def age_words(seconds: float | None) -> str:
    """An age in the two largest units, as kubectl writes it."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        count, whole = divmod(whole, size)
        if count or parts or name == "s":
            parts.append(f"{count}{name}")
    return "".join(part for part in parts[:2] if not part.startswith("0")) or "0s"


def _wrapped(words: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 2 + len(word) > width:
            lines.append("")
        lines[-1] += f"  {word}" if lines[-1] else word
    return lines


ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
LEAVE = "\x1b[?25h\x1b[?1049l"
PLAIN = "\x1b[0m"
STYLES = {"head": "\x1b[1m", "fresh": "\x1b[7m", "dim": "\x1b[2m"}
COLOURS = {"head": "\x1b[1;36m", "fresh": "\x1b[1;33m", "dim": "\x1b[2m"}
SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
}
NAMED = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}


class Screen:
    """The terminal on standard input and output; the context manager restores it at the end.

    Args:
        colour: whether to use colours; without them, styles are bold and reversed text.
    """

    def __init__(self, *, colour: bool) -> None:
        self._styles = COLOURS if colour else STYLES
        self._shown: list[Text] = []
        self._size = (0, 0)
        self._input = sys.stdin.fileno()
        self._output = sys.stdout.fileno()
        self._former: list[object] = []
        self._wake = os.pipe()
        self._resized = False
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> Self:
        self._former = termios.tcgetattr(self._input)
        for end in self._wake:
            os.set_blocking(end, False)
        self._handlers = {
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, self._on_resize),
            signal.SIGTERM: signal.signal(signal.SIGTERM, _on_end),
            signal.SIGCONT: signal.signal(signal.SIGCONT, self._on_resize),
        }
        self._size = self.size
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        with suppress(OSError, termios.error):
            self._write(LEAVE)
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._former)  # type: ignore[arg-type]
        for end in self._wake:
            os.close(end)

    def take(self) -> None:
        """Set up the terminal, at the start and when the process returns to the foreground."""
        tty.setcbreak(self._input)
        self._shown = []
        self._write(ENTER)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal."""
        try:
            return tuple(os.get_terminal_size(self._output))  # type: ignore[return-value]
        except OSError:
            return tuple(shutil.get_terminal_size())  # type: ignore[return-value]

    def draw(self, lines: Sequence[Text]) -> None:
        """Write the lines that have changed, in one write."""
        if self._resized or self.size != self._size:
            self._resized, self._size = False, self.size
            self.take()
        old, parts = self._shown, []
        for number in range(max(len(lines), len(old))):
            line = lines[number] if number < len(lines) else Text("")
            if number >= len(old) or old[number] != line:
                parts.append(f"\x1b[{number + 1};1H{self._styled(line)}\x1b[K")
        self._shown = list(lines)
        if parts:
            self._write("".join(parts))

    def wait(self, timeout_s: float, others: Iterable[int]) -> list[str]:
        """Wait for a key, for data on another descriptor, or for the time; returns the keys."""
        watched = [self._input, self._wake[0], *others]
        ready, _, _ = select.select(watched, [], [], max(0.0, timeout_s))
        if self._wake[0] in ready:
            with suppress(BlockingIOError):
                os.read(self._wake[0], 64)
        return self._keys() if self._input in ready else []

    def _keys(self) -> list[str]:
        """The keys of the input; `gone` where the terminal was closed."""
        text = os.read(self._input, 1024).decode("utf-8", "replace")
        return keys_in(text) if text else ["gone"]

    def _styled(self, line: Text) -> str:
        text = visible_line(line.text)
        return f"{self._styles[line.style]}{text}{PLAIN}" if line.style and text else text

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        while data:
            data = data[os.write(self._output, data) :]

    def _on_resize(self, _number: int, _frame: FrameType | None) -> None:
        self._resized = True
        with suppress(BlockingIOError):
            os.write(self._wake[1], b"!")


def keys_in(text: str) -> list[str]:
    """The keys in a piece of input: names of special keys, and letters."""
    keys = []
    while text:
        sequence = next((one for one in SEQUENCES if text.startswith(one)), "")
        if sequence:
            keys.append(SEQUENCES[sequence])
            text = text[len(sequence) :]
        elif text.startswith("\x1b["):
            text = text[2:].lstrip("0123456789;?")[1:]  # a key that is not known here
        else:
            keys.append(NAMED.get(text[0], text[0]))
            text = text[1:]
    return keys


def _on_end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
