"""What the lab's report says, gathered from the results that were kept; `report` gives it a form."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .boots import left_out
from .cells import Cell
from .lab_files import machine_text, scenario_named, scenarios_by_machine
from .results import Result
from .rules import MACHINE as RULES
from .session import COLUMNS, EMBEDDED
from .shell import LabError

RUNTIMES = (EMBEDDED, *(column.name for column in COLUMNS))
_LIMITS = "60 s to register, 20 s for a request, for CPUs are emulated; `hack/e2e` works within the runtime's own 5 s and 2 s"
_LABELS = {"whole boot seconds": "seconds of a boot with its scenarios"}  # as older results have it
_SAID_IN_THE_HEAD = {"version", "kernel"}

Row = tuple[str, str, tuple[Cell | str, ...]]
"""Scenario, its name, and for each runtime a cell, or why there is none."""

Cells = dict[tuple[str, str], dict[str, Cell]]
"""By machine and scenario, then by runtime."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a report says, before it has a form.

    Attributes:
        facts: lines of the head, (what, value).
        tables: (machine, its description, its rows).
        remarks: failures and limitations, a sentence each.
        figures: rows of (what, least, most) in seconds or counts.
        seen: rows of (scenario, runtime, what, value) of what is told in words.
        measured: rows of (what, value) of each real runtime outside guests.
    """

    facts: tuple[tuple[str, str], ...]
    tables: tuple[tuple[str, str, tuple[Row, ...]], ...]
    remarks: tuple[str, ...]
    figures: tuple[tuple[str, str, str], ...]
    seen: tuple[tuple[str, str, str, str], ...] = ()
    measured: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()


def gather(results: Sequence[Result], measured: Mapping[str, Mapping[str, Any]]) -> Page:
    """Bring all cells into one order."""
    cells, old = _shown(results)
    every = [cell for row in cells.values() for cell in row.values()]
    return Page(
        _facts(results, cells, old),
        tuple(
            (machine, _title(machine), tuple(_rows(cells, machine)))
            for machine in sorted({machine for machine, _ in cells})
        ),
        (*_remarks(every), *_gaps(cells)),
        tuple(_figures(every)),
        tuple(_seen(every)),
        tuple(
            (runtime, tuple((what, str(value)) for what, value in found.items()))
            for runtime, found in measured.items()
        ),
    )


def _shown(results: Sequence[Result]) -> tuple[Cells, int]:
    """The cells that count, and how many of them another state of the code has made.

    The embedded runtime plays a scenario once for every real one; the worst of these is shown.
    """
    found: Cells = {
        (machine, name): {} for machine, names in scenarios_by_machine().items() for name in names
    }
    found[RULES, RULES] = {}
    weights: dict[tuple[str, str, str], tuple[bool, bool]] = {}
    for result in results:
        for cell in result.cells:
            weight = (result.is_current(cell), bool(cell.failures) and cell.runtime == EMBEDDED)
            key = (cell.machine, cell.scenario, cell.runtime)
            if weight >= weights.get(key, weight):  # of equals the latest counts
                weights[key] = weight
                found.setdefault(key[:2], {})[cell.runtime] = _attributed(cell, result.column)
    return found, sum(not is_current for is_current, _ in weights.values())


def _attributed(cell: Cell, column: str) -> Cell:
    """Failures of the embedded runtime, with the real one that it played."""
    if cell.runtime != EMBEDDED or column in ("", EMBEDDED):
        return cell
    return replace(cell, failures=[f"as {column}: {failure}" for failure in cell.failures])


def _rows(cells: Cells, machine: str) -> Iterable[Row]:
    for (of, scenario), row in sorted(cells.items()):
        if of == machine:
            yield (
                scenario,
                _name(scenario),
                tuple(_shown_cell(row, scenario, runtime) for runtime in RUNTIMES),
            )


def _shown_cell(row: Mapping[str, Cell], scenario: str, runtime: str) -> Cell | str:
    is_asked = runtime == EMBEDDED or runtime in _asked(scenario)
    return row.get(runtime) or ("not played" if is_asked else "-")


def _facts(results: Sequence[Result], cells: Cells, old: int) -> tuple[tuple[str, str], ...]:
    about = [result.about for result in results]
    every = [cell for row in cells.values() for cell in row.values()]
    real = [cell for cell in every if cell.runtime != EMBEDDED]
    versions = {f"{cell.figures['version']} ({cell.runtime})" for cell in real if cell.figures.get("version")}
    kernels = {cell.figures["kernel"] for cell in real if "kernel" in cell.figures}
    seen = len({(cell.machine, cell.scenario) for cell in real})
    head = (
        ("played", f"{_span(each['date'] for each in about)}, checkout {_listed(about, 'checkout')}"),
        ("host", f"{_listed(about, 'host')}; load {_load(about)}; {_listed(about, 'qemu')}"),
        ("accelerator", _listed(about, "accelerator")),
        ("guest kernel", ", ".join(sorted(kernels))),
        ("containerd", ", ".join(sorted(versions))),
        ("its limits in the guests", _LIMITS),
        ("cells", _counted(every, len(cells) + sum(len(_asked(scenario)) for _, scenario in cells))),
        (
            "cells of another state of the code",
            f"{old} of {len(every)}; `hack/lab all --missing` plays them anew",
        ),
        ("scenarios seen on a real kernel", f"{seen} of {len(cells)}"),
        (
            "facts on real kernels",
            f"{sum(cell.passed for cell in real)} held, {sum(len(c.failures) for c in real)} did not",
        ),
    )
    return tuple((what, value) for what, value in head if value)


def _counted(cells: Sequence[Cell], possible: int) -> str:
    failed = sum(bool(cell.failures) for cell in cells)
    return f"{possible}: {len(cells) - failed} passed, {failed} failed, {possible - len(cells)} not played"


def _remarks(cells: Iterable[Cell]) -> Iterable[str]:
    limited: dict[str, dict[str, set[str]]] = {}
    for cell in cells:
        for reason in cell.reasons:
            yield f"{cell.verdict} {cell.machine}, {cell.scenario}, {cell.runtime}: {_one_line(reason)}"
        if cell.limitation:
            limited.setdefault(cell.limitation, {}).setdefault(cell.runtime, set()).add(cell.scenario)
    for limitation, places in limited.items():
        where = (
            f"{runtime}: {', '.join(sorted(scenarios))}" for runtime, scenarios in sorted(places.items())
        )
        yield f"{limitation} ({'; '.join(where)})"


def _one_line(text: str) -> str:
    """A text of any length on a line: its head, and its end where that says what happened."""
    line = " ".join(text.split())
    return line if len(line) <= 400 else f"{line[:250]} ... {line[-140:]}"


def _gaps(cells: Cells) -> Iterable[str]:
    """What this report does not show, and how to have it shown."""
    unseen = [f"{name} on {machine}" for (machine, name), row in cells.items() if not _asked(name) & set(row)]
    holes = sum(len(_asked(name) - set(row)) for (_, name), row in cells.items())
    reasons = {left_out(name, column) for _, name in cells for column in COLUMNS}
    yield from (f"left out by design: {why}" for why in sorted(reasons) if why)
    if holes:
        yield f"{holes} cells of real runtimes are not played yet; `hack/lab all --missing` plays them and keeps the others' results"
    if unseen:
        yield f"not seen on a real kernel in this report: {', '.join(sorted(unseen))}"


def _asked(scenario: str) -> set[str]:
    """The real runtimes under which it is played."""
    return {column.name for column in COLUMNS if not left_out(scenario, column)}


def _figures(cells: Iterable[Cell]) -> Iterable[tuple[str, str, str]]:
    found: dict[str, list[float]] = {}
    for cell in cells:
        for what, value in cell.figures.items():
            if isinstance(value, int | float):
                label = f"{what} ({cell.machine})" if what.startswith("boot") else _LABELS.get(what, what)
                found.setdefault(label, []).append(float(value))
    for what, values in sorted(found.items()):
        yield what, f"{min(values):g}", f"{max(values):g}"


def _seen(cells: Iterable[Cell]) -> Iterable[tuple[str, str, str, str]]:
    for cell in cells:
        for what, value in cell.figures.items():
            if what not in _SAID_IN_THE_HEAD and not isinstance(value, int | float):
                yield cell.scenario, cell.runtime, what, str(value)


def _title(machine: str) -> str:
    return machine_text(machine)[0].splitlines()[0].lstrip("# ")


def _name(scenario: str) -> str:
    try:
        return scenario_named(scenario)[1].name
    except LabError:
        return scenario.replace("-", " ")


def _listed(about: Sequence[Mapping[str, Any]], key: str) -> str:
    return ", ".join(sorted({str(each.get(key, "")) for each in about} - {""}))


def _load(about: Sequence[Mapping[str, Any]]) -> str:
    loads = sorted(float(each.get("load", 0)) for each in about)
    return f"{loads[0]:.1f}" if loads[0] == loads[-1] else f"{loads[0]:.1f} to {loads[-1]:.1f}"


def _span(values: Iterable[str]) -> str:
    found = sorted(values)
    return found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"
