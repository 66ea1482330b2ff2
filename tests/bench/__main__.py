"""Measure and print; see `hack/bench --help`."""

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tests.bench import (
    against_go,
    against_peers,
    cri,
    decisions,
    extender,
    packing,
    peers_table,
    scale,
    search,
    simulating,
    stages,
    starting,
    wire,
)
from tests.bench.figures import Figure, as_json, machine, table

PARTS = {
    "decisions": decisions.figures,
    "wire": wire.figures,
    "simulate": simulating.figures,
    "start": starting.figures,
}
USUAL = ("decisions", "wire")
STUDIES = ("packing", "search", "extender", "stages", "peers")
CROWDS = {
    "empty": against_peers.EMPTY,
    "100": against_peers.SMALL,
    "3000": against_peers.FULL,
    "10000": against_peers.HUGE,
}
CRI = "cri"


def main() -> int:
    """Run the chosen parts, print a table, write JSON and a plot where asked."""
    chosen = _arguments()
    if not chosen.part and chosen.plot is not None:
        _scale(chosen.plot, min(chosen.rounds, 200))
        return 0
    parts = chosen.part or list(USUAL)
    measured = [part for part in parts if part in PARTS]
    if measured:
        _figures(measured, chosen.rounds, chosen.json)
    if "search" in parts:
        _search(quick=chosen.quick)
    if "packing" in parts:
        _packing(chosen.plot, quick=chosen.quick)
    if "extender" in parts:
        _extender(chosen.plot, 50 if chosen.quick else 300)
    if "stages" in parts:
        _stages(5 if chosen.quick else 200)
    if "peers" in parts:
        return _peers(chosen.only or [*CROWDS, CRI], quick=chosen.quick)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/bench", description="Measure nri-pin on this machine.")
    parser.add_argument(
        "part",
        nargs="*",
        choices=[*PARTS, *STUDIES, []],
        help="parts to measure (default: decisions and wire). packing: churn, first fit against best fit. search: the "
        "merge on up to 64 NUMA nodes. simulate: the whole command. start: start times of commands, in starts of the "
        "bare interpreter. peers: the hook beside Go plugins, one that does nothing and the topology-aware policy of nri-plugins, asked by the "
        "runtime's side of NRI, and creations by a real containerd; needs Go. stages: where the time of a CreateContainer goes. "
        "extender: requests of a scheduler for 5,000 nodes, of which 100 change a second",
    )
    parser.add_argument(
        "--rounds", type=int, default=1000, metavar="N", help="samples of each decision and call"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures as JSON, - for standard output"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="alone: time of a decision against NUMA nodes and CPUs, as SVG; with packing: the study as SVG; "
        "with extender: time against nodes",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="packing, search, extender, stages and peers with a fifth of the samples or less",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[*CROWDS, CRI],
        help="peers beside so many containers only, or only the creations by a real containerd; may be given several times "
        "(growth is in times the figures of empty)",
    )
    return parser.parse_args()


def _figures(parts: list[str], rounds: int, json: Path | None) -> None:
    figures = list(_measured(parts, rounds))
    if json is not None and str(json) != "-":
        json.write_text(as_json(figures) + "\n", "utf-8")
    if str(json) == "-":
        _say(sys.stdout, as_json(figures) + "\n")
        return
    _say(sys.stdout, f"{machine()}\n\n{table(figures)}\n")
    recordings = os.environ.get("NRI_PIN_VECTORS")
    if "decisions" not in parts:
        return
    if recordings:
        _say(sys.stdout, "\n" + against_go.table(list(against_go.against(Path(recordings)))) + "\n")
    else:
        _say(
            sys.stdout, "\nset NRI_PIN_VECTORS=DIR to the recordings to compare with the kubelet's own code\n"
        )


def _measured(parts: list[str], rounds: int) -> Iterator[Figure]:
    for part in parts:
        yield from _noted(PARTS[part](rounds))


def _noted(figures: Iterator[Figure]) -> Iterator[Figure]:
    for figure in figures:
        _say(sys.stderr, f"\r\033[K{figure.what}")
        yield figure
    _say(sys.stderr, "\r\033[K")


def _scale(file: Path, rounds: int) -> None:
    figures = list(_noted(scale.figures(rounds)))
    scale.plot(figures, file)
    ratios = "\n".join(scale.ratios(rounds))
    _say(sys.stdout, f"{machine()}\n\n{table(figures)}\n\n{ratios}\n\n")
    _say(sys.stdout, f"plot: {file}\n")


def _search(*, quick: bool) -> None:
    cases = search.QUICK_CASES if quick else search.CASES
    gc.freeze()  # what the imports left behind is not walked in the middle of a merge
    _say(sys.stdout, f"{machine()}\n\n{search.table(list(search.rows(cases)), cases)}\n\n")
    for line in search.machines(cases):
        _say(sys.stdout, line + "\n")


def _packing(file: Path | None, *, quick: bool) -> None:
    seeds = packing.QUICK_SEEDS if quick else packing.SEEDS
    cells = []
    for cell in packing.cells(seeds):
        _say(sys.stderr, f"\r\033[K{cell.policy} {cell.machine} {cell.utilisation} %")
        cells.append(cell)
    _say(sys.stderr, "\r\033[K")
    _say(sys.stdout, f"{seeds} seeds per cell, {packing.COUNTED} containers each\n{packing.table(cells)}\n")
    if file is not None:
        packing.plot(cells, file)
        _say(sys.stdout, f"\nplot: {file}\n")


def _extender(file: Path | None, rounds: int) -> None:
    measured = list(_noted(extender.all_figures(rounds)))
    _say(sys.stdout, f"{machine()}\n\n{table(measured)}\n\n{extender.ratios(measured)}\n")
    if file is not None:
        for line in extender.plot(file, max(20, rounds // 10)):
            _say(sys.stdout, f"{line}\n")
        _say(sys.stdout, f"\nplot: {file}\n")


def _stages(rounds: int) -> None:
    found = {pods: stages.measure(pods, rounds) for pods in stages.CROWDS}
    _say(
        sys.stdout,
        f"{machine()}\n\n{stages.table(found)}\n\n{stages.counted()}\n\n{stages.after_pauses(rounds)}\n",
    )


def _peers(only: list[str], *, quick: bool) -> int:
    """The hook against Go; the short form has small crowds, few samples and no real runtime."""
    turns, rounds, slow = (1, 80, 10) if quick else (2, 400, 100)
    crowds = [crowd for name, crowd in CROWDS.items() if name in only]
    if quick and only == [*CROWDS, CRI]:
        crowds = [against_peers.EMPTY, against_peers.SMALL]
    notes, found = [], []
    try:
        programs = against_peers.build()
        peers = [against_peers.NOTHING, against_peers.OURS]
        if any(map(against_peers.AWARE.is_asked_beside, crowds)):
            missing = against_peers.build_aware(programs, only_kept=quick)
            notes += [f"no topology-aware: {missing}"] if missing else []
            peers += [] if missing else [against_peers.AWARE]
        for crowd in crowds:
            _say(sys.stderr, f"\r\033[K{crowd.name}")
            asked = (rounds, slow) if crowd.asked else (0, 0)
            found.append(against_peers.measure(programs, crowd, peers, turns, *asked))
    except against_peers.NoPeersError as error:
        sys.stderr.write(f"{error}\n")
        return 77
    ratios = []
    if quick:
        notes.append("no creations by a real containerd: not in the short form")
    elif CRI in only:
        _say(sys.stderr, "\r\033[Ka real containerd")
        try:
            ratios = cri.creations(programs / "noop")
        except cri.NoRuntimeError as error:
            notes.append(f"no creations by a real containerd: {error}")
    _say(sys.stderr, "\r\033[K")
    lines = [machine(), "", peers_table.tables(found, ratios), *([""] if notes else []), *notes]
    _say(sys.stdout, "\n".join(lines) + "\n")
    return 0


def _say(where: TextIO, text: str) -> None:
    if where is sys.stdout or where.isatty():
        where.write(text)
        where.flush()


if __name__ == "__main__":
    sys.exit(main())
