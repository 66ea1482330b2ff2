"""What can change what a scenario shows, as a short hash: the product, the half in the guest, the two texts."""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from tests.cpuset_table import TABLE

from .lab_files import MACHINES, SCENARIOS
from .ready import CHECKOUT
from .shell import first_line

_SHORT = 12


def state_of(machine: str, scenario: str) -> str:
    """The state of everything that matters to a scenario on a machine of the lab."""
    texts = (MACHINES / f"{machine}.yaml", SCENARIOS / f"{scenario}.yaml", TABLE)
    relevant = texts[:2] if texts[1].exists() else (texts[0], texts[2])
    return _hash([code_state().encode(), *_contents(relevant)])


@functools.cache
def code_state() -> str:
    """That of the code alone, as it was when this was asked first: before guests were given it."""
    folders = ("nri_plugin", "tests/e2e/inside", "tests/lab")
    found = [path for folder in folders for path in (CHECKOUT / folder).rglob("*.py")]
    return _hash(_contents(sorted(found)))


@functools.cache
def checkout() -> str:
    """The commit, and whether files differ from it, at that time, too."""
    return first_line("git", "-C", str(CHECKOUT), "describe", "--always", "--dirty") or "unknown"


def _contents(files: Iterable[Path]) -> Iterable[bytes]:
    for file in files:
        if file.is_file():
            yield str(file.relative_to(CHECKOUT)).encode()
            yield file.read_bytes()


def _hash(parts: Iterable[bytes]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "big") + part)
    return made.hexdigest()[:_SHORT]
