"""A terminal for programs that draw: a pty, the screen as it stands, keys and another size at will."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 30.0
"""Only ever waited for by a failing test."""

DRAWN = re.compile(r"\x1b\[(\d+);1H(.*?)\x1b\[K", re.DOTALL)
CLEARED = "\x1b[2J"
STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A program on a pty of its own.

    Attributes:
        lines: the screen, by the number of the line.
        raw: everything it ever wrote.
    """

    def __init__(self, *words: str, columns: int = 80, rows: int = 24, **environment: str) -> None:
        self.lines: dict[int, str] = {}
        self.raw = ""
        self._rest = ""
        self.code: int | None = None
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            with suppress(OSError):
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                repository = str(Path(__file__).parents[1])
                os.execve(
                    sys.executable,
                    [sys.executable, "-P", "-m", "nri_plugin", *words],
                    {"PATH": os.environ["PATH"], "TERM": "xterm", "PYTHONPATH": repository, **environment},
                )
            os._exit(127)

    @property
    def text(self) -> str:
        """What a person sees, without colours."""
        return "\n".join(STYLE.sub("", self.lines[number]) for number in sorted(self.lines))

    def wait_for(self, wanted: str | Callable[[str], bool]) -> str:
        """Read until the screen shows it."""
        until = time.monotonic() + PATIENCE_S
        while not (wanted in self.text if isinstance(wanted, str) else wanted(self.text)):
            assert time.monotonic() < until, f"never shown: {wanted!r}; last:\n{self.text}\n{self.raw[-400:]}"
            assert self._read(), f"it ended before: {wanted!r}; {self.raw[-400:]}"
        return self.text

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def wait(self) -> int:
        """Its exit code."""
        while self._read():
            pass
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def attributes(self) -> list[object]:
        """The modes of the terminal as they are now."""
        return termios.tcgetattr(self._master)

    def close(self) -> None:
        """End it when it still runs."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)

    def _read(self) -> bool:
        """Take in what it wrote; False when it ended."""
        ready, _, _ = select.select([self._master], [], [], PATIENCE_S)
        try:
            data = os.read(self._master, 1 << 16) if ready else b""
        except OSError:  # how a pty tells that the other side is closed
            data = b""
        text = data.decode("utf-8", "replace")
        self.raw += text
        self._rest += text
        if CLEARED in self._rest:
            self._rest = self._rest.rpartition(CLEARED)[2]
            self.lines.clear()
        end = 0
        for match in DRAWN.finditer(self._rest):
            self.lines[int(match[1])] = match[2]
            end = match.end()
        self._rest = self._rest[end:]
        return bool(data)
