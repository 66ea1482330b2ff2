"""Judge mutants and print what became of them; see `hack/mutants --help`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.mutation.baseline import Baseline
from tests.mutation.installing import MutantFinder
from tests.mutation.judging import ManyMutants, OneMutant, Outcome
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.processes import Say, Task, run_apart
from tests.mutation.reasons import FILE, read_reasons
from tests.mutation.report import Report
from tests.mutation.results import Results

TESTS = (
    "tests/unit/policy",
    "tests/unit/model/test_bits.py",
    "tests/unit/core/test_engine.py",
    "tests/unit/core/test_engine_ends.py",
    "tests/unit/core/test_hint_providers.py",
    "tests/unit/core/test_placement.py",
    "tests/unit/model/test_state.py",
    "tests/unit/core/test_synchronize.py",
    "tests/property/test_assignment_laws.py",
    "tests/property/test_best_fit_laws.py",
    "tests/property/test_device_allocation.py",
    "tests/property/test_device_hints.py",
    "tests/property/test_device_proportion.py",
    "tests/property/test_engine.py",
    "tests/property/test_hints_laws.py",
    "tests/property/test_memory_laws.py",
    "tests/property/test_merge_laws.py",
    "tests/property/test_option_laws.py",
)
"""The tests that know the policy: quick, alone, without threads or other processes."""

PYTEST = ["-q", "-s", "--no-header", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
PYTEST += ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]


def main() -> int:
    """Judge the mutants of the files, print the survivors and a table; 1 where something is to be done."""
    chosen = _arguments()
    results = Results(_test_files(), fresh=chosen.fresh, keep=chosen.keep)
    files = [name for name in _files(chosen.files) if name.endswith(".py")]
    mutants = [mutant for name in files for mutant in mutants_of(name)]
    _judge([mutant for mutant in mutants if results.of(mutant) is None], results, chosen.jobs)
    outcomes = {mutant: results.of(mutant) or Outcome("untested") for mutant in mutants}
    report = Report(files, outcomes, read_reasons(FILE.read_text("utf-8")), chosen.at_least)
    sys.stdout.write(report.text(killed=chosen.killed))
    return 0 if report.is_good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hack/mutants",
        description="Change the policy's code in small ways, one at a time, and see whether a test fails.",
    )
    parser.add_argument("files", nargs="*", default=["nri_plugin/policy"], help="default: nri_plugin/policy")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time (default: 2)")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    parser.add_argument(
        "--keep", action="store_true", help="do not try survivors again because a test has changed"
    )
    parser.add_argument("--killed", action="store_true", help="also print who noticed the others")
    parser.add_argument(
        "--at-least", type=float, default=95, metavar="PERCENT", help="killed of all mutants (default: 95)"
    )
    return parser.parse_args()


def _files(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield from sorted(map(str, Path(name).glob("**/*.py"))) if Path(name).is_dir() else [name]


def _test_files() -> list[str]:
    """What a survivor's fate may hang on: the tests and what they are built from."""
    named = [*map(Path, TESTS), Path("tests/conftest.py"), Path("tests/builders.py"), Path("tests/oracles")]
    files = [file for path in named for file in (path.glob("*.py") if path.is_dir() else [path])]
    files += [file for file in Path("tests/property").glob("*.py") if not file.name.startswith("test_")]
    return sorted(map(str, files))


def _judge(mutants: list[Mutant], results: Results, jobs: int) -> None:
    """First those that can be put into loaded functions; then, from the start, what matters while loading."""
    if not mutants:
        return
    progress = _Progress(len(mutants))
    outcomes: dict[int, Outcome] = {}

    def judge_loaded(say: Say) -> None:
        numbers = {id(mutant): number for number, mutant in enumerate(mutants)}

        def report(mutant: Mutant, outcome: Outcome) -> None:
            outcomes[numbers[id(mutant)]] = outcome
            if outcome.how != "loading":
                results.note(mutant, outcome)
                progress.step(mutant, outcome)

        plugin = ManyMutants(mutants, jobs, report)
        status = pytest.main([*PYTEST, *TESTS], plugins=[plugin])
        say((int(status), outcomes, plugin.baseline))

    [(_, answer)] = run_apart([(None, judge_loaded)], 1, quiet=False)
    if answer is None or not answer[1]:
        raise SystemExit("the tests cannot be run without a mutant: see hack/test")
    _, outcomes, baseline = answer
    for number, outcome in outcomes.items():
        if outcome.how != "loading":
            results.note(mutants[number], outcome)
    left = [mutants[number] for number, outcome in sorted(outcomes.items()) if outcome.how == "loading"]
    for mutant, outcome in run_apart(_from_the_start(left, baseline), jobs):
        results.note(mutant, outcome or Outcome("failed", "the process died"))
    for test in sorted(baseline.failing):
        sys.stdout.write(f"left out, fails without a mutant: {test}\n")


def _from_the_start(mutants: list[Mutant], baseline: Baseline) -> Iterator[Task]:
    for mutant in mutants:
        yield mutant, lambda say, mutant=mutant: _load_and_try(mutant, baseline, say)


def _load_and_try(mutant: Mutant, baseline: Baseline, say: Say) -> None:
    """The tests of the same name first: they load quicker than all."""
    say(Outcome("failed", "loading"))
    sys.meta_path.insert(0, MutantFinder(mutant))
    tests = baseline.tests_of_file(mutant.path)
    name = f"/test_{Path(mutant.path).name}::"
    tests.sort(key=lambda test: name not in test)
    files = list(dict.fromkeys(test.split("::", 1)[0] for test in tests))
    pytest.main([*PYTEST, *files], plugins=[OneMutant(tests, baseline, say)])


class _Progress:
    """A line now and then."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._survived = total, 0, 0

    def step(self, mutant: Mutant, outcome: Outcome) -> None:
        self._done += 1
        self._survived += not outcome.killed
        if self._done % 100 == 0:
            sys.stderr.write(f"{self._done} of {self._total}, {self._survived} survived, at {mutant.path}\n")


if __name__ == "__main__":
    raise SystemExit(main())
