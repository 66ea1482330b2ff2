"""Feeds every target and sums up: `hack/fuzz [--runs N] [TARGET...]`.

Prints target, executions, edges covered and how many of them were new in the last tenth. What was found is kept in
the corpus of the cache, from which `--keep` takes the smallest that covers as much into `tests/fuzz/corpus`. Exit code:
0 all targets ran as often as asked and raised only what they may, 1 otherwise.
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import seeds
from tests.fuzz.targets import CORPUS, TARGETS

CACHE = Path(__file__).parents[2] / ".cache" / "fuzz"
LINE = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+)")
DONE = re.compile(r"Done (\d+) (?:runs )?in")
SHOWN_LINES = 25


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a target: a line of the table."""

    name: str
    executions: int
    edges: int
    late_edges: int
    took_s: float
    trouble: str


def main() -> int:
    parser = argparse.ArgumentParser(prog="hack/fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}  [default: all]"
    )
    parser.add_argument("--runs", type=int, default=1_000_000, help="executions of each  [default: 1000000]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="take what covers more into tests/fuzz/corpus")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    sys.stdout.write(
        "| target | executions | edges | new in the last tenth | unlisted exceptions | took |\n|---|---|---|---|---|---|\n"
    )
    is_good = True
    for name in arguments.targets or TARGETS:
        outcome = fuzz(name, arguments.runs, arguments.seed)
        is_good &= not outcome.trouble and outcome.executions >= arguments.runs
        sys.stdout.write(row(outcome) + "\n")
        sys.stdout.flush()
        if outcome.trouble:
            sys.stderr.write(outcome.trouble + "\n")
        if arguments.keep:
            keep(name)
    return 0 if is_good else 1


def row(outcome: Outcome) -> str:
    """The target's line of the table."""
    troubles = 1 if outcome.trouble else 0
    return (
        f"| {outcome.name} | {outcome.executions:,} | {outcome.edges} | {outcome.late_edges} | {troubles} | "
        f"{outcome.took_s:.0f} s |"
    )


def fuzz(name: str, runs: int, seed: int) -> Outcome:
    """Feed one target in a process of its own."""
    found = CACHE / name
    found.mkdir(parents=True, exist_ok=True)
    seeds.write(name, found)
    command = [sys.executable, "-m", "tests.fuzz.one", name, str(found)]
    if (CORPUS / name).is_dir():
        command.append(str(CORPUS / name))
    command += [f"-runs={runs}", f"-seed={seed}", f"-artifact_prefix={CACHE}/{name}.", "-print_final_stats=0"]
    began = time.monotonic()
    child = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    took_s = time.monotonic() - began
    said = child.stderr + child.stdout
    done = DONE.search(said)
    executions = int(done[1]) if done else 0
    seen = list(coverage(said))
    edges = max((edges for _, edges in seen), default=0)
    before = max((edges for at, edges in seen if at <= runs * 9 // 10), default=0)
    trouble = "" if child.returncode == 0 else "\n".join(said.splitlines()[-SHOWN_LINES:])
    return Outcome(name, executions, edges, edges - before, took_s, trouble)


def coverage(said: str) -> Iterator[tuple[int, int]]:
    """(executions, edges) of each line in which libFuzzer tells them."""
    return ((int(line[1]), int(line[2])) for line in LINE.finditer(said))


def keep(name: str) -> None:
    """Make the checked-in corpus the smallest that covers what both corpora cover."""
    target, fresh = CORPUS / name, CACHE / f"{name}.merged"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.fuzz.one", name, "-merge=1", str(fresh), str(CACHE / name)]
    if target.is_dir():
        command.append(str(target))
    subprocess.run(command, capture_output=True, check=True)
    shutil.rmtree(target, ignore_errors=True)
    shutil.move(fresh, target)


if __name__ == "__main__":
    sys.exit(main())
