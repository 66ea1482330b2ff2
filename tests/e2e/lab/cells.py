"""One cell of the report: one scenario on one machine under one runtime, and how the inner half's words fill it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .progress import say
from .shell import LabError

MARK = "@@"


def message_of(line: str) -> dict[str, Any]:
    """The message that a marked line holds.

    Raises:
        LabError: it holds none; something else was written between its characters.
    """
    try:
        message: dict[str, Any] = json.loads(line.removeprefix(MARK))
    except ValueError as error:
        raise LabError(f"the inner half told something that is no message: {line[:200]}") from error
    return message


@dataclass
class Cell:
    """What one scenario showed.

    Attributes:
        runtime: the column, `embedded` or the name of a real one.
        failures: facts that did not hold, a sentence each.
        limitation: what it does not show there although it was played; empty where it shows all.
        steps: what was seen after every step.
        too_slow: how it showed that the host is too slow to judge anything by failures; empty where it is not.
    """

    machine: str
    scenario: str
    runtime: str
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    limitation: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    too_slow: str = ""

    @property
    def verdict(self) -> str:
        """What came out: `ok`, `FAILED`, or `TOO SLOW` where failures say nothing about the product."""
        if not self.failures:
            return "ok"
        return "TOO SLOW" if self.too_slow else "FAILED"

    @property
    def reasons(self) -> list[str]:
        """Why it is not `ok`."""
        told = (
            f"the host is too slow: {self.too_slow}; the product was not judged, run it again with more CPU"
        )
        return [told, *self.failures] if self.too_slow and self.failures else self.failures

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass
class Listener:
    """Takes the lines of a guest, by scenario.

    Attributes:
        cells: by scenario, filled as the lines come.
        versions: what the guest said of itself.
    """

    cells: dict[str, Cell]
    log: Path
    versions: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    _playing: str = ""

    def hear(self, line: str) -> None:
        """Take one line that the inner half printed.

        Raises:
            LabError: it should be a message, and is none.
        """
        with self.log.open("a") as log:
            log.write(line + "\n")
        if not line.startswith(MARK):
            return
        message = message_of(line)
        kind = message.pop("kind")
        cell = self.cells.get(message.get("scenario", ""))
        if kind == "runtime":
            self.versions = message
        elif kind == "slow":
            self._note_slow(message["what"])
        elif kind == "begin":
            self._playing = message["scenario"]
        elif cell is not None:
            self._fill(cell, kind, message)

    def _note_slow(self, what: str) -> None:
        """Of the scenario that is played; of all before the first."""
        playing = self.cells.get(self._playing)
        for cell in [playing] if playing is not None else self.cells.values():
            cell.too_slow = cell.too_slow or what
            say(f"  {cell.scenario}, {cell.runtime}: the host is too slow: {what}")

    def _fill(self, cell: Cell, kind: str, message: dict[str, Any]) -> None:
        if kind == "fact" and message["holds"]:
            cell.passed += 1
        elif kind == "fact":
            cell.failures.append(f"{message['fact']}: {message['detail']}")
            say(f"  {cell.scenario}, {cell.runtime}: NOT {cell.failures[-1][:300]}")
        elif kind == "figure":
            cell.figures[message["what"]] = message["value"]
        elif kind == "step":
            cell.steps.append({key: value for key, value in message.items() if key != "scenario"})
        elif kind == "end":
            cell.seconds = message["seconds"]
            self.ended.add(cell.scenario)
            say(
                f"  {cell.scenario}, {cell.runtime}: {cell.seconds} s, {cell.passed} held, {len(cell.failures)} did not"
            )
