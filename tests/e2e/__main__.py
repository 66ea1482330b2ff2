"""Command line of `hack/e2e`.

Exit status: 0 everything held, 1 something did not, 130 interrupted, 77 this machine cannot do it and nothing was tested.
"""

import argparse
import contextlib
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from .lab.lab_files import REPORTS
from .lab.outcome import Outcome, table
from .lab.progress import say
from .lab.quiet_report import write_quiet_report
from .lab.ready import KERNEL_FROM
from .lab.results import kept
from .lab.runs import RUNS, Run, perform_all, place_of, results_of
from .lab.setting_up import CANNOT_RUN, MACHINE_LOCK, check_machine, default_work, prepare, take_lock
from .lab.shell import CannotRun, LabError

_INTERRUPTED = 130
USUAL, REPORT = "usual", "quiet-report"
"""Runs a to c. Run d plays quiet CPUs on three kernels and takes most of an hour."""


def main() -> int:
    """Prepare, perform, print; return the exit status."""
    arguments = _arguments()
    if arguments.runs == REPORT:
        return _report(arguments.work)
    try:
        runs = _possible(_asked(arguments))
        mirror = check_machine()
        arguments.work.mkdir(parents=True, exist_ok=True)
        locks = contextlib.ExitStack()
        for path in locks_of(runs, arguments.work):
            locks.enter_context(take_lock(path))
        guests = sorted({run.root for run in runs if run.in_guest})
        kernels = sorted({(run.root, run.kernel) for run in runs if run.kernel != KERNEL_FROM})
        lab = prepare(sorted({run.root for run in runs}), guests, mirror, arguments.work, kernels)
    except CannotRun as error:
        print(f"hack/e2e: CANNOT RUN HERE, NOTHING WAS TESTED: {error}", flush=True)  # noqa: T201
        return CANNOT_RUN
    except LabError as error:
        print(f"hack/e2e: the lab could not be built: {error}", flush=True)  # noqa: T201
        return 1
    except OSError as error:
        print(f"hack/e2e: {error.filename or 'this machine'}: {error.strerror or error}", flush=True)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    try:
        with locks:
            outcomes = perform_all(runs, lab)
    except KeyboardInterrupt:
        return _INTERRUPTED
    status = _conclude(outcomes, arguments.work, keep=arguments.keep)
    if not status and not arguments.keep:
        for run in runs:  # those of other runs, which may have failed, stay
            shutil.rmtree(place_of(run, arguments.work), ignore_errors=True)
    return status


def locks_of(runs: list[Run], work: Path) -> list[Path]:
    """What keeps others off: the lock of this machine, unless all runs are in guests, and that of the folder."""
    return [*([] if all(run.in_guest for run in runs) else [MACHINE_LOCK]), work / "lock"]


def _asked(arguments: argparse.Namespace) -> list[Run]:
    """The runs of a command line, narrowed to its titles and scenarios.

    Raises:
        CannotRun: no run has such a title.
    """
    runs = [run for run in RUNS if _is_asked(run, arguments.runs)]
    titles = arguments.title or [""]
    found = [run for run in runs if any(not words or run.has_title(words) for words in titles)]
    if not found:
        raise CannotRun(f"no run has such a title; there are: {'; '.join(run.title for run in runs)}")
    scenarios = tuple(words.replace("_", " ") for words in arguments.scenario or ())
    return [replace(run, scenarios=scenarios) for run in found]


def _is_asked(run: Run, asked: str) -> bool:
    return asked in {run.letter, "all"} or (asked == USUAL and run.letter in "abc")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hack/e2e", description="Real containerd or CRI-O around the agent of this checkout."
    )
    parser.add_argument("runs", nargs="?", default=USUAL, choices=[*"abcdefgr", USUAL, "all", REPORT])
    parser.add_argument(
        "--work", type=Path, default=default_work(), metavar="DIR", help="roots, disks and reports"
    )
    parser.add_argument(
        "--title",
        action="append",
        metavar="WORDS",
        help="only runs with such a title, as 'Linux 6.1'; may be repeated",
    )
    parser.add_argument(
        "--scenario",
        action="append",
        metavar="WORDS",
        help="only scenarios with these words in their name, as 'foreign write'; may be repeated",
    )
    parser.add_argument("--keep", action="store_true", help="keep the reports of a run that succeeded")
    return parser.parse_args()


def _report(work: Path) -> int:
    """Write the report of run d."""
    try:
        titles = [run.title for run in RUNS if run.letter == "d"]
        print(write_quiet_report(kept(results_of(work)), titles, REPORTS))  # noqa: T201
    except LabError as error:
        print(f"hack/e2e: {error}", flush=True)  # noqa: T201
        return 1
    return 0


def _possible(runs: list[Run]) -> list[Run]:
    """Leave out what needs more than this machine has, and say so.

    Raises:
        CannotRun: nothing is left.
    """
    reason = _why_not_directly()
    left = [run for run in runs if not reason or run.letter not in "aer"]
    for run in runs:
        if run not in left:
            say(f"NOT RUN: {run.title}: {reason}")
    if not left:
        raise CannotRun(reason)
    return left


def _why_not_directly() -> str:
    """Why containers cannot be pinned on this machine itself; empty when they can."""
    if (os.cpu_count() or 1) < 2:
        return "it needs two CPUs, one reserved and one exclusive"
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    on_v2 = controllers.exists() and "cpuset" in controllers.read_text().split()
    return (
        ""
        if on_v2 or Path("/sys/fs/cgroup/cpuset").is_dir()
        else "the cpuset controller is not available here"
    )


def _conclude(outcomes: list[Outcome], work: Path, *, keep: bool) -> int:
    passed, failed = sum(o.passed for o in outcomes), sum(o.failed for o in outcomes)
    lines = ["", table(outcomes), ""]
    for outcome in outcomes:
        wrong = [*outcome.failures, *([outcome.broken] if outcome.broken else [])]
        if wrong and outcome.too_slow:
            told = "the product was not judged, run it again with more CPU"
            lines.append(f"TOO SLOW {outcome.run}: the host is too slow: {outcome.too_slow}; {told}")
        lines += [f"FAILED {outcome.run}: {text}" for text in wrong]
    if failed or keep:
        lines.append(f"reports and logs: {work / 'runs'}")
    print("\n".join([*lines, f"{passed} passed, {failed} failed"]), flush=True)  # noqa: T201
    if failed and all(outcome.too_slow for outcome in outcomes if outcome.failed):
        return CANNOT_RUN
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
