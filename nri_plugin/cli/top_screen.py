"""The terminal while `nri-pin top` has it: keys one by one, a screen of its own, only changed lines written."""

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

from nri_plugin.cli.top_frame import Text
from nri_plugin.visible import visible_line

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
    """The terminal on standard input and output; use it in a `with`, which gives it back as it was.

    Args:
        colour: whether colours may be used; without them what stands out does by weight and reversal.
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
        """Make the terminal ours, at the start and when we come back from the background."""
        tty.setcbreak(self._input)
        self._shown = []
        self._write(ENTER)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            return tuple(os.get_terminal_size(self._output))  # type: ignore[return-value]
        except OSError:
            return tuple(shutil.get_terminal_size())  # type: ignore[return-value]

    def draw(self, lines: Sequence[Text]) -> None:
        """Write those lines that are other ones, all at once."""
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
        """The keys pressed, when there are any, or when another descriptor has something, or after a while."""
        watched = [self._input, self._wake[0], *others]
        ready, _, _ = select.select(watched, [], [], max(0.0, timeout_s))
        if self._wake[0] in ready:
            with suppress(BlockingIOError):
                os.read(self._wake[0], 64)
        return self._keys() if self._input in ready else []

    def _keys(self) -> list[str]:
        """Empty input is a terminal that went away."""
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
    """The keys that a piece of input stands for: names of special ones, letters as they are."""
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
