"""A guest for a person: a shell on a terminal of its own there, joined to the terminal here."""

import contextlib
import os
import select
import shlex
import shutil
import socket
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence

from .guest import Guest

_HELP = """The guest runs; what is typed here goes to a shell there, Ctrl-C too. `exit` or Ctrl-D powers it off.
containerd and the agent are not started: `up` does that.
"""
_DEVICE = "/dev/hvc0"
_RC = """stty rows {rows} cols {columns}
export TERM={term} PATH=/opt/nri-pin/bin:$PATH PS1='guest# '
up() {{ (cd /run && PYTHONPATH=/opt/e2e/src:/opt/e2e/client python3 -m e2e.inside.up {words}); }}
cd /root 2>/dev/null || cd /
"""
_END_OF_INPUT = b"\x04"


def attach(guest: Guest, terminal: str, words: Sequence[str]) -> None:
    """Join both terminals until the shell ends.

    Args:
        terminal: the socket on which QEMU offers the guest's.
        words: what `up` is told.
    """
    sys.stdout.write(_HELP)
    sys.stdout.flush()
    size = shutil.get_terminal_size()
    rc = _RC.format(
        rows=size.lines,
        columns=size.columns,
        term=shlex.quote(os.environ.get("TERM", "dumb")),
        words=shlex.join(words),
    )
    guest.must_run(f"printf %s {shlex.quote(rc)} >/run/shellrc", "writing the shell's settings")
    with socket.socket(socket.AF_UNIX) as console, _raw(sys.stdin.fileno()):
        console.connect(terminal)
        shell = threading.Thread(target=_run_shell, args=(guest, console), daemon=True)
        shell.start()
        _forward(console, sys.stdin.fileno())
        shell.join(5)


def _run_shell(guest: Guest, console: socket.socket) -> None:
    """The shell leads its session, so that the terminal that it opens is the one that interrupts it."""
    try:
        guest.be_patient()
        guest.run(f"exec bash --rcfile /run/shellrc -i <>{_DEVICE} >&0 2>&1")
    finally:
        with contextlib.suppress(OSError):
            console.shutdown(socket.SHUT_RDWR)


def _forward(console: socket.socket, typed: int) -> None:
    sources = [console.fileno(), typed]
    while True:
        for source in select.select(sources, [], [])[0]:
            data = os.read(source, 4096)
            if source != typed:
                if not data:
                    return
                os.write(sys.stdout.fileno(), data)
                continue
            console.sendall(data or _END_OF_INPUT)
            if not data:
                sources.remove(typed)


@contextlib.contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key as it is typed; what is no terminal stays as it is."""
    if not os.isatty(terminal):
        yield
        return
    before = termios.tcgetattr(terminal)
    tty.setraw(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
