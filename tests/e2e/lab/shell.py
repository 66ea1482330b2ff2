"""Commands of the lab: quiet when they succeed, complete when they fail."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: it ends when the thread that started it does, however that ends."""


class LabError(Exception):
    """Something of the lab itself broke; the product was not judged."""


class WrongUse(LabError):  # noqa: N818 - it is an answer, not a fault
    """What was asked for does not exist or contradicts itself."""


class Interrupted(LabError):  # noqa: N818 - it is an answer, not a fault
    """Somebody ended the command; nothing that came to light afterwards counts."""


class CannotRun(Exception):  # noqa: N818 - it is an answer, not a fault
    """This machine lacks something that the lab needs; nothing was tested."""


def run(
    command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run a command and return what it printed.

    Raises:
        LabError: it ended with another status than 0; the text carries the end of its output.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        check=False,
        env=env,
        cwd=cwd,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise LabError(
            f"{' '.join(words[:6])} ... ended with status {done.returncode}: {done.stdout[-2000:]}"
        )
    return done.stdout


def first_line(*command: str) -> str:
    """What a program says of itself; nothing where it is not here."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.partition("\n")[0].split("(")[0].strip()
