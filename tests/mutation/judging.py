"""Plugins of pytest: one runs tests on many mutants without loading anything twice, one on a single mutant."""

import gc
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import hypothesis
import pytest

from tests.mutation.baseline import LOADING, Baseline, Lines
from tests.mutation.installing import CannotSwapError, swap
from tests.mutation.mutants import Mutant
from tests.mutation.processes import Say, Task, limit_time, run_apart

EXAMPLES, MACHINE_RUNS, MACHINE_STEPS = 60, 25, 25


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        how: `failed` (a test), `did not end`, `survived`, `untested` (no test runs the line), or `loading`:
            not known yet, what it changes happens when tests are loaded.
        by: the test that noticed.
    """

    how: str
    by: str = ""

    @property
    def killed(self) -> bool:
        return self.how in ("failed", "did not end")


class ManyMutants:
    """Measures the tests, then runs them on each mutant, each time in a process that has all tests loaded.

    Args:
        mutants: what to judge.
        jobs: processes at a time.
        report: told of each mutant's outcome, in any order.
    """

    def __init__(
        self, mutants: Iterable[Mutant], jobs: int, report: Callable[[Mutant, Outcome], None]
    ) -> None:
        self.baseline = Baseline()
        self._mutants, self._jobs, self._report = mutants, jobs, report
        self._killers: dict[tuple[str, str], list[str]] = {}
        self._loading = Lines()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.baseline.add(LOADING, self._loading.end())
        for item in items:
            draw_few_examples(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Failed("a test cannot be loaded")
        self._items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()
        for test, measured in run_apart(self._measurements(), self._jobs):
            lines, seconds, failed = measured or ({}, 0.0, True)
            self.baseline.add(test, lines)
            self.baseline.seconds[test] = seconds
            if failed:
                self.baseline.failing.add(test)
        for mutant, outcome in run_apart(self._trials(), self._jobs):
            self._note(mutant, outcome or Outcome("failed", "the process died"))
        return True

    def _note(self, mutant: Mutant, outcome: Outcome) -> None:
        killers = self._killers.setdefault((mutant.path, mutant.function), [])
        if outcome.killed and outcome.by not in killers:
            killers.append(outcome.by)
        self._report(mutant, outcome)

    def _measurements(self) -> Iterator[Task]:
        for test, item in self._items.items():
            yield test, lambda say, item=item: say(_measured(item))

    def _trials(self) -> Iterator[Task]:
        """Those tests go first that noticed a change of the same function."""
        for mutant in self._mutants:
            killers = self._killers.get((mutant.path, mutant.function), [])
            tests = sorted(self.baseline.tests_of(mutant), key=lambda test, k=killers: test not in k)
            yield mutant, lambda say, mutant=mutant, tests=tests: self._try(mutant, tests, say)

    def _try(self, mutant: Mutant, tests: Sequence[str], say: Say) -> None:
        loading = self.baseline.runs_while_loading(mutant)
        try:
            swap(mutant)
        except CannotSwapError:
            return say(Outcome("loading"))
        for test, following in zip(tests, [*tests[1:], None], strict=True) if tests else ():
            say(Outcome("did not end", test))
            limit_time(self.baseline.limit_s(test))
            if fails(self._items[test], self._items[following] if following else None):
                return say(Outcome("failed", test))
        return say(Outcome("loading" if loading else "survived" if tests else "untested"))


class OneMutant:
    """Runs the given tests in their order until one fails; the mutant's file is loaded with them."""

    def __init__(self, tests: Sequence[str], baseline: Baseline, say: Say) -> None:
        self._order = {test: number for number, test in enumerate(tests)}
        self._baseline, self._say = baseline, say

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )
        for item in items:
            draw_few_examples(item)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._say(Outcome("failed", f"loading {report.nodeid}"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return True
        for number, item in enumerate(session.items):
            self._say(Outcome("did not end", item.nodeid))
            limit_time(self._baseline.limit_s(item.nodeid))
            if fails(item, session.items[number + 1] if number + 1 < len(session.items) else None):
                self._say(Outcome("failed", item.nodeid))
                return True
        self._say(Outcome("survived" if session.items else "untested"))
        return True


def _measured(item: pytest.Item) -> tuple[dict[str, list[int]], float, bool]:
    lines = Lines()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    failed = fails(item, None)
    return lines.end(), resource.getrusage(resource.RUSAGE_SELF).ru_utime - before, failed


def fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test; whether it fails."""
    item.session.testsfailed = 0
    item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    return item.session.testsfailed > 0


def draw_few_examples(item: pytest.Item) -> None:
    """Make a property draw the same few examples each time and stop at the first that fails."""
    test = getattr(item, "obj", None)
    function = getattr(test, "__func__", test)
    drawn = getattr(function, "_hypothesis_internal_use_settings", None)
    if drawn is not None:
        function._hypothesis_internal_use_settings = _few(drawn, EXAMPLES)
    machine = getattr(item, "cls", None)
    if isinstance(getattr(machine, "settings", None), hypothesis.settings):
        machine.settings = hypothesis.settings(
            _few(machine.settings, MACHINE_RUNS), stateful_step_count=MACHINE_STEPS
        )


def _few(drawn: hypothesis.settings, examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        drawn,
        max_examples=min(drawn.max_examples, examples),
        derandomize=True,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
