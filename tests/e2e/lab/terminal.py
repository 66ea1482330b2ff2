"""A guest for a person: lines typed here are run there, one after the other, until the end of the input."""

import sys

from .guest import Guest

_HELP = """The guest runs. Every line is a shell command of its own; `exit` or Ctrl-D powers it off.
containerd and the agent are not started; the lab's inner half does that:
  cd /run && PYTHONPATH=/opt/e2e/src:/opt/e2e/client python3 -m e2e.inside.up    starts both
  /opt/nri-pin/bin/nri-pin topology
"""


def attach(guest: Guest) -> None:
    """Read commands until the input ends."""
    _write(_HELP)
    while True:
        _write("guest# ")
        line = sys.stdin.readline()
        if not line or line.strip() == "exit":
            _write("\n")
            return
        if line.strip():
            status = guest.run(line, lambda text: _write(text + "\n"))
            if status:
                _write(f"[{status}]\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
