"""Measure and print; see `hack/bench --help`."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tests.bench import decisions, wire
from tests.bench.figures import Figure, as_json, machine, table

PARTS = {"decisions": decisions.figures, "wire": wire.figures}


def main() -> int:
    """Run the chosen parts, print a table, write JSON where asked."""
    parser = argparse.ArgumentParser(prog="hack/bench", description="Measure nri-pin on this machine.")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], help="what to measure (default: everything)")
    parser.add_argument(
        "--rounds", type=int, default=1000, metavar="N", help="samples of each decision and call"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures as JSON, - for standard output"
    )
    chosen = parser.parse_args()
    figures = list(_measured(chosen.part or list(PARTS), chosen.rounds))
    if chosen.json is not None and str(chosen.json) != "-":
        chosen.json.write_text(as_json(figures) + "\n", "utf-8")
    _say(
        sys.stdout,
        as_json(figures) + "\n" if str(chosen.json) == "-" else f"{machine()}\n\n{table(figures)}\n",
    )
    return 0


def _measured(parts: list[str], rounds: int) -> Iterator[Figure]:
    for part in parts:
        for figure in PARTS[part](rounds):
            _say(sys.stderr, f"\r\033[K{figure.what}")
            yield figure
    _say(sys.stderr, "\r\033[K")


def _say(where: TextIO, text: str) -> None:
    if where is sys.stdout or where.isatty():
        where.write(text)
        where.flush()


if __name__ == "__main__":
    sys.exit(main())
