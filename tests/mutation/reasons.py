"""Why a mutant that survives does no harm: a text file of entries, each matched by what its lines say.

An entry, ended by an empty line:

    nri_plugin/policy/cpu_assignment.py cpu_tables
    - the line as it is
    + the line as the mutant has it (several such lines: several mutants)
    why the two do the same
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE = Path("tests/mutation/survivors.txt")


@dataclass(frozen=True, slots=True)
class Reason:
    """One mutant that may survive; `known_by` as of `Mutant`, `text` says why, `line` is where that is said."""

    known_by: tuple[str, str, str, str]
    text: str
    line: int


class BadEntryError(Exception):
    """An entry of the file that cannot be read."""


def read_reasons(text: str) -> list[Reason]:
    """All entries.

    Raises:
        BadEntryError: an entry lacks its head, the lines before and after, or the reason.
    """
    lines = text.splitlines()
    reasons: list[Reason] = []
    begin = 0
    for number, line in enumerate([*lines, ""]):
        if not line.strip():
            reasons += _entry([x for x in lines[begin:number] if not x.startswith("#")], begin + 1)
            begin = number + 1
    return reasons


def _entry(lines: list[str], number: int) -> Iterable[Reason]:
    if not lines:
        return []
    path, _, function = lines[0].partition(" ")
    old = [line[2:] for line in lines if line.startswith("- ")]
    new = [line[1:].strip() for line in lines if line.startswith("+")]
    why = " ".join(line.strip() for line in lines[1:] if not line.startswith(("- ", "+")))
    if len(old) != 1 or not new or not why:
        raise BadEntryError(
            f"{FILE}:{number}: an entry is a file and a function, one - line, + lines and why"
        )
    return [Reason((path, function, old[0], line), why, number) for line in new]


def as_entry(known_by: tuple[str, str, str, str], why: str) -> str:
    """The text of an entry."""
    path, function, old, new = known_by
    return f"{path} {function}".rstrip() + f"\n- {old}\n+ {new}\n{why}"
