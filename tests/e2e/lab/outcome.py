"""What the inner half tells, line by line, turned into progress lines and one row of the final table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .cells import MARK, Cell, message_of
from .progress import say

ABOUT, LINUX = "what it shows", "Linux"
"""Two figures of each scenario's cell: what the inner half says of the scenario, and of the kernel."""


@dataclass
class Outcome:
    """One run: which runtime it was, what held and what did not; `broken` is why it ended too early.

    Where `too_slow` says how the host showed to be too slow, what did not hold says nothing about the product.
    `keep` is given each scenario that ended, at once: an interrupted run loses none.
    """

    run: str
    log: Path
    runtime: str = "?"
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    broken: str = ""
    seconds: float = 0.0
    too_slow: str = ""
    keep: Callable[[Cell], None] = lambda _cell: None
    _linux: str = ""
    _playing: Cell = field(default_factory=lambda: Cell("", "", ""))

    @property
    def failed(self) -> int:
        """Number of facts that did not hold; a run that broke off is one of them."""
        return len(self.failures) + bool(self.broken)

    def hear(self, line: str) -> None:
        """Take one line that the inner half printed."""
        with self.log.open("a") as log:
            log.write(line + "\n")
        if not line.startswith(MARK):
            return
        message = message_of(line)
        kind = message["kind"]
        if kind == "runtime":
            self.runtime, self._linux = message["version"], message.get("linux", "")
        elif kind == "begin":
            self._playing = Cell("", message["scenario"], self.run)
            self._playing.figures |= {ABOUT: message.get("about", ""), LINUX: self._linux}
        elif kind == "fact":
            self._hear_fact(message)
        elif kind == "slow":
            self.too_slow = self.too_slow or message["what"]
            say(f"  {self.run}: the host is too slow: {message['what']}")
        elif kind == "figure":
            self._playing.figures[message["what"]] = message["value"]
            say(f"  {self.run}: {message['what']}: {message['value']}")
        elif kind == "end":
            self._playing.seconds, self._playing.too_slow = message["seconds"], self.too_slow
            self.keep(self._playing)
            say(f"  {self.run}: {message['scenario']}: {message['seconds']} s")

    def _hear_fact(self, message: dict[str, str]) -> None:
        if message["holds"]:
            self.passed += 1
            self._playing.passed += 1
            return
        told = f"{message['scenario']}: NOT {message['fact']}: {message['detail']}"
        self.failures.append(told)
        self._playing.failures.append(f"{message['fact']}: {message['detail']}")
        say(f"  {self.run}: {told}")


def table(outcomes: list[Outcome]) -> str:
    """Return the final table."""
    rows = [("run", "runtime", "passed", "failed", "seconds")]
    rows += [(o.run, o.runtime, str(o.passed), str(o.failed), f"{o.seconds:.0f}") for o in outcomes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
