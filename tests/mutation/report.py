"""What became of the mutants: survivors with their diff, a table by file, and what is to be done."""

from collections.abc import Iterable, Mapping, Sequence

from tests.mutation.judging import Outcome
from tests.mutation.mutants import Mutant
from tests.mutation.reasons import FILE, Reason, as_entry


class Report:
    """Outcomes against the reasons that are written down.

    Args:
        files: what was judged.
        outcomes: by mutant.
        reasons: why some may survive.
        at_least: percent of all mutants that must be killed.
    """

    def __init__(
        self,
        files: Sequence[str],
        outcomes: Mapping[Mutant, Outcome],
        reasons: Iterable[Reason],
        at_least: float,
    ) -> None:
        self._files, self._outcomes, self._at_least = files, outcomes, at_least
        self._reasons = {reason.known_by: reason for reason in reasons if reason.known_by[0] in files}
        self.survivors = [mutant for mutant, outcome in outcomes.items() if not outcome.killed]
        self.unexplained = [mutant for mutant in self.survivors if mutant.known_by not in self._reasons]
        alive = {mutant.known_by for mutant in self.survivors}
        self.stale = [reason for known_by, reason in self._reasons.items() if known_by not in alive]

    @property
    def percent(self) -> float:
        """Killed of all mutants, those included that behave like the original."""
        total = len(self._outcomes)
        return 100 * (total - len(self.survivors)) / total if total else 100.0

    @property
    def is_good(self) -> bool:
        """Whether enough are killed, every survivor has its reason, and every reason a survivor."""
        return self.percent >= self._at_least and not self.unexplained and not self.stale

    def text(self, *, killed: bool) -> str:
        parts = [f"{mutant.diff}\n{_shown(mutant, self._outcomes[mutant])}\n" for mutant in self.unexplained]
        if killed:
            parts += [_line(mutant, outcome) for mutant, outcome in self._outcomes.items() if outcome.killed]
        parts += [
            f"{FILE}:{reason.line}: no such survivor any more, take the entry out:\n"
            f"{as_entry(reason.known_by, reason.text)}\n"
            for reason in self.stale
        ]
        return "\n".join([*parts, self._table()]) + "\n"

    def _table(self) -> str:
        rows = [self._row(name, [m for m in self._outcomes if m.path == name]) for name in self._files]
        head = f"{'file':44} {'mutants':>8} {'killed':>8} {'survived':>9} {'with reason':>12} {'%':>7}"
        return "\n".join([head, *rows, self._row("total", list(self._outcomes))])

    def _row(self, name: str, mutants: list[Mutant]) -> str:
        alive = [mutant for mutant in mutants if not self._outcomes[mutant].killed]
        reasoned = sum(mutant.known_by in self._reasons for mutant in alive)
        killed = len(mutants) - len(alive)
        percent = 100 * killed / len(mutants) if mutants else 100.0
        short = name.removeprefix("nri_plugin/")
        return f"{short:44} {len(mutants):8} {killed:8} {len(alive):9} {reasoned:12} {percent:7.1f}"


def _shown(mutant: Mutant, outcome: Outcome) -> str:
    why = "no test runs it" if outcome.how == "untested" else "no test fails"
    return as_entry(mutant.known_by, why)


def _line(mutant: Mutant, outcome: Outcome) -> str:
    return f"{as_entry(mutant.known_by, outcome.how)}: {outcome.by}\n"
