import os
import pty
import re
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from nri_plugin.cli import output
from nri_plugin.cli.output import WIPE, told, waiting


class Terminal:
    """Standard error as a person sees it."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        self.is_terminal = is_terminal
        self.written: list[str] = []

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> None:
        self.written.append(text)

    def flush(self) -> None:
        pass


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(output, "sys", SimpleNamespace(stderr=made))
    return made


def ticking(step_s: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is looked at."""
    times = iter(range(10_000))
    return lambda: next(times) * step_s


def test_what_is_quick_is_not_told(terminal: Terminal) -> None:
    assert list(told(range(100), "seen {}", ticking(0.001))) == list(range(100))
    assert terminal.written == []


def test_what_takes_longer_is_told_now_and_then_and_wiped(terminal: Terminal) -> None:
    assert list(told(range(30), "seen {}", ticking(0.1))) == list(range(30))
    assert terminal.written[0].startswith(f"{WIPE}seen ")
    assert 2 < len(terminal.written) < 16
    assert terminal.written[-1] == WIPE


def test_a_break_wipes_it_too(terminal: Terminal) -> None:
    for item in (items := told(range(30), "seen {}", ticking(0.5))):
        if item == 5:
            break
    items.close()
    assert terminal.written[-1] == WIPE


def test_pipes_and_files_get_nothing(terminal: Terminal) -> None:
    terminal.is_terminal = False
    list(told(range(30), "seen {}", ticking(1.0)))
    before = signal.getsignal(signal.SIGALRM)
    with waiting("working"):
        assert signal.getsignal(signal.SIGALRM) is before
    assert terminal.written == []


def test_waiting_is_told_by_the_timer_and_leaves_it_as_it_was(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "AFTER_S", 0.001)
    before = signal.getsignal(signal.SIGALRM)
    with waiting("working"):
        while not terminal.written:
            signal.raise_signal(signal.SIGALRM)
    assert re.fullmatch(re.escape(WIPE) + r"working, \d+ s", terminal.written[0])
    assert terminal.written[-1] == WIPE
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0.0


def test_another_thread_is_not_told_of(terminal: Terminal) -> None:
    def work() -> None:
        with waiting("working"):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert terminal.written == []


def test_a_real_terminal_shows_it() -> None:
    code = (
        "from nri_plugin.cli import output\n"
        "output.AFTER_S = 0.01\n"
        "with output.waiting('working'):\n"
        "    sum(range(20_000_000))\n"
    )
    child, end = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    printed = b""
    while select.select([end], [], [], 30.0)[0]:
        try:
            printed += os.read(end, 4096)
        except OSError:  # what a terminal says when nobody is left
            break
    os.close(end)
    os.waitpid(child, 0)
    assert re.search(rb"working, \d+ s", printed)
    assert printed.endswith(WIPE.encode())
