"""What the tests do without a mutant."""

import os
import warnings
from dataclasses import dataclass, field
from pathlib import PurePath

import coverage

from tests.mutation.mutants import Mutant

LOADING = ""
"""Stands for the time before the first test, when tests are imported and collected."""

PATIENCE_S, PATIENCE = 2.0, 20
"""A test may take so many seconds and so many times as long as without a mutant; more is a loop without end."""


@dataclass
class Baseline:
    """Which tests run a line, how long each takes, which fail even without a mutant."""

    by_line: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)

    def add(self, test: str, lines: dict[str, list[int]]) -> None:
        for path, numbers in lines.items():
            of_file = self.by_line.setdefault(path, {})
            for number in numbers:
                of_file.setdefault(number, []).append(test)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run a line of the mutant, quickest first."""
        of_file = self.by_line.get(mutant.path, {})
        return self._in_order({test for line in mutant.lines for test in of_file.get(line, ())})

    def tests_of_file(self, path: str) -> list[str]:
        """The tests that run anything of a file or are named like it, quickest first."""
        named = {test for test in self.seconds if f"/test_{PurePath(path).name}::" in test}
        running = {test for tests in self.by_line.get(path, {}).values() for test in tests}
        return self._in_order(running | named)

    def runs_while_loading(self, mutant: Mutant) -> bool:
        of_file = self.by_line.get(mutant.path, {})
        return any(LOADING in of_file.get(line, ()) for line in mutant.lines)

    def limit_s(self, test: str) -> float:
        return PATIENCE_S + PATIENCE * self.seconds[test]

    def _in_order(self, tests: set[str]) -> list[str]:
        return sorted(tests - self.failing - {LOADING}, key=lambda test: (self.seconds[test], test))


class Lines:
    """Which lines of the package run, from now on."""

    def __init__(self) -> None:
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=["nri_plugin"])
        self._coverage.start()

    def end(self) -> dict[str, list[int]]:
        """The lines by file, from the root of the repository."""
        self._coverage.stop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a test that runs nothing of the package is none to warn of
            data = self._coverage.get_data()
        return {os.path.relpath(name): data.lines(name) or [] for name in data.measured_files()}
