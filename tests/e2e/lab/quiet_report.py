"""The report of run d: scenario x guest, as Markdown, from the results that were kept."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .cells import Cell
from .outcome import ABOUT, LINUX
from .results import Result
from .writing import write_whole

FILE = "quiet-report.md"
_LEGEND = (
    "Made by `hack/e2e quiet-report` from what `hack/e2e d` has kept. `ok 25 / 12 s`: 25 facts held, none did not, in 12",
    "seconds on emulated CPUs. Times are not judged.",
)
_LONGEST = 400


def write_quiet_report(results: Sequence[Result], titles: Sequence[str], folder: Path) -> Path:
    """Write it; `titles` are the guests, in the order of their columns.

    Raises:
        LabError: it could not be written.
    """
    path = folder / FILE
    write_whole(path, as_markdown(results, titles))
    return path


def as_markdown(results: Sequence[Result], titles: Sequence[str]) -> str:
    """The report for a terminal or a forge."""
    found = [(cell, result) for result in results for cell in result.cells if cell.runtime in titles]
    cells = {(cell.scenario, cell.runtime): cell for cell, _ in found}
    kernels = {title: _kernels(cells.values(), title) for title in titles}
    lines = ["# What quiet CPUs showed on real kernels", "", *_LEGEND, ""]
    lines += [f"* {what}: {value}" for what, value in _facts([result for _, result in found])]
    lines += [f"* {title}: {kernels[title] or 'not played'}" for title in titles]
    lines += [
        "",
        f"| scenario | what it shows | {' | '.join(map(_head, titles))} |",
        "|---" * (len(titles) + 2) + "|",
    ]
    for scenario in sorted({scenario for scenario, _ in cells}):
        shown = [_text(cells[scenario, title]) if (scenario, title) in cells else "-" for title in titles]
        about = next(
            (
                cell.figures[ABOUT]
                for (name, _), cell in cells.items()
                if name == scenario and cell.figures.get(ABOUT)
            ),
            "",
        )
        lines.append(f"| {_escaped(scenario)} | {_escaped(about)} | {' | '.join(shown)} |")
    failures = [
        f"* {cell.scenario}, {cell.runtime}: {text}" for cell in cells.values() for text in cell.reasons
    ]
    lines += ["", "## Failures", "", *map(_escaped, failures or ["None."])]
    lines += ["", "## Seen", "", "| scenario | guest | what | seen |", "|---|---|---|---|"]
    for (scenario, title), cell in sorted(cells.items()):
        for what, value in cell.figures.items():
            if what not in (ABOUT, LINUX):
                row = (scenario, _head(title), what, str(value))
                lines.append(f"| {' | '.join(map(_escaped, row))} |")
    return "\n".join([*lines, ""])


def _head(title: str) -> str:
    """A title without what all of them say."""
    return title.removeprefix("d: quiet CPUs ").removeprefix("in a guest, ")


def _facts(results: Iterable[Result]) -> list[tuple[str, str]]:
    abouts = [result.about for result in results]
    dates = sorted(about["date"] for about in abouts)
    found = [("played", f"{dates[0]} to {dates[-1]}")] if dates else []
    return [*found, *((name, _all(abouts, name)) for name in ("checkout", "host", "qemu", "accelerator"))]


def _all(abouts: Iterable[dict[str, Any]], name: str) -> str:
    return ", ".join(sorted({str(about[name]) for about in abouts if about.get(name)}))


def _kernels(cells: Iterable[Cell], title: str) -> str:
    found = {cell.figures[LINUX] for cell in cells if cell.runtime == title and LINUX in cell.figures}
    return ", ".join(sorted(found))


def _text(cell: Cell) -> str:
    if cell.failures:
        return f"{cell.verdict} {len(cell.failures)}"
    return f"ok {cell.passed} / {cell.seconds:.0f} s"


def _escaped(text: str) -> str:
    one_line = " ".join(text.split())
    return (one_line if len(one_line) <= _LONGEST else f"{one_line[:_LONGEST]} ...").replace("|", r"\|")
