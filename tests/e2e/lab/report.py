"""The lab's report: machine x scenario x runtime, as Markdown and as a page, from the results that were kept."""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cells import Cell
from .lab_files import machine_text, scenario_named, scenarios_by_machine
from .results import Result
from .session import COLUMNS, EMBEDDED
from .shell import LabError

_RUNTIMES = (EMBEDDED, *(column.name for column in COLUMNS))
_RUNTIMES_REAL = {column.name for column in COLUMNS}
_STYLE = """
:root { color-scheme: light dark; --ok: #1a7f37; --bad: #b42318; --dim: #6b7280; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.ok { color: var(--ok); } td.bad { color: var(--bad); font-weight: 600; } td.none { color: var(--dim); }
small { color: var(--dim); } code { font-size: .9em; }
"""


@dataclass(frozen=True, slots=True)
class Page:
    """What a report says, before it has a form.

    Attributes:
        facts: lines of the head, (what, value).
        tables: (machine, its description, rows of scenario, its name and one cell for each runtime).
        remarks: failures and limitations, a sentence each.
        figures: rows of (what, least, most) in seconds or counts.
        measured: rows of (what, value) of each real runtime outside guests.
    """

    facts: tuple[tuple[str, str], ...]
    tables: tuple[tuple[str, str, tuple[tuple[str, str, tuple[Cell | None, ...]], ...]], ...]
    remarks: tuple[str, ...]
    figures: tuple[tuple[str, str, str], ...]
    measured: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()


def write_report(
    results: Sequence[Result], folder: Path, measured: Mapping[str, Mapping[str, Any]]
) -> tuple[Path, Path]:
    """Write `report.md` and `report.html`; `measured` are figures of runtimes on this machine itself."""
    page = gather(results, measured)
    markdown, web = folder / "report.md", folder / "report.html"
    markdown.write_text(as_markdown(page))
    web.write_text(as_html(page))
    return markdown, web


def gather(results: Sequence[Result], measured: Mapping[str, Mapping[str, Any]]) -> Page:
    """Bring all cells into one order."""
    cells: dict[tuple[str, str], dict[str, Cell]] = {
        (machine, scenario): {} for machine, names in scenarios_by_machine().items() for scenario in names
    }
    for result in results:
        for cell in result.cells:
            row = cells.setdefault((cell.machine, cell.scenario), {})
            row[cell.runtime] = cell  # the latest counts
    machines = sorted({machine for machine, _ in cells})
    tables = tuple(
        (
            machine,
            _title(machine),
            tuple(
                (scenario, _name(scenario), tuple(row.get(runtime) for runtime in _RUNTIMES))
                for (of, scenario), row in sorted(cells.items())
                if of == machine
            ),
        )
        for machine in machines
    )
    every = [cell for row in cells.values() for cell in row.values()]
    return Page(
        _facts(results, every),
        tables,
        (*_remarks(every), *_gaps(cells)),
        tuple(_figures(every)),
        tuple(
            (runtime, tuple((what, str(value)) for what, value in found.items()))
            for runtime, found in measured.items()
        ),
    )


def as_markdown(page: Page) -> str:
    """The report for a terminal or a forge."""
    lines = ["# What the machine lab found", ""]
    lines += [f"* {what}: {value}" for what, value in page.facts]
    lines += [
        "",
        "`ok 25 / 12 s`: 25 facts held, none did not, in 12 seconds. Every cell of a real runtime also holds",
    ]
    lines += ["that every container is where the embedded runtime has it, after every step."]
    for machine, title, rows in page.tables:
        lines += ["", f"## {machine}", "", f"{title}", "", f"| scenario | {' | '.join(_RUNTIMES)} |"]
        lines += ["|---" * (len(_RUNTIMES) + 1) + "|"]
        lines += [f"| {name} | {' | '.join(map(_text, row))} |" for _, name, row in rows]
    lines += ["", "## Failures and limitations", ""]
    lines += [f"* {remark}" for remark in page.remarks] or ["None."]
    lines += ["", "## Figures", "", "| what | least | most |", "|---|---|---|"]
    lines += [f"| {what} | {least} | {most} |" for what, least, most in page.figures]
    for runtime, rows in page.measured:
        lines += [
            "",
            f"## {runtime} outside guests, on this machine's CPUs",
            "",
            "| what | value |",
            "|---|---|",
        ]
        lines += [f"| {what} | {value} |" for what, value in rows]
    return "\n".join([*lines, ""])


def as_html(page: Page) -> str:
    """The report as one page without scripts."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Machine lab</title>"]
    parts += [f"<style>{_STYLE}</style><h1>What the machine lab found</h1><ul>"]
    parts += [f"<li>{_esc(what)}: <b>{_esc(value)}</b>" for what, value in page.facts]
    parts.append("</ul>")
    for machine, title, rows in page.tables:
        parts.append(f"<h2>{_esc(machine)}</h2><p>{_esc(title)}<table><tr><th>scenario")
        parts += [f"<th>{_esc(runtime)}" for runtime in _RUNTIMES]
        for scenario, name, row in rows:
            parts.append(f"<tr><td>{_esc(name)} <small><code>{_esc(scenario)}</code></small>")
            parts += [f'<td class="{_class(cell)}">{_esc(_text(cell))}' for cell in row]
        parts.append("</table>")
    parts.append("<h2>Failures and limitations</h2><ul>")
    parts += [f"<li>{_esc(remark)}" for remark in page.remarks] or ["<li>None."]
    parts.append("</ul><h2>Figures</h2><table><tr><th>what<th>least<th>most")
    parts += [f"<tr><td>{_esc(what)}<td>{_esc(least)}<td>{_esc(most)}" for what, least, most in page.figures]
    parts.append("</table>")
    for runtime, found in page.measured:
        parts.append(f"<h2>{_esc(runtime)} outside guests, on this machine's CPUs</h2><table>")
        parts += [f"<tr><td>{_esc(what)}<td>{_esc(value)}" for what, value in found]
        parts.append("</table>")
    return "\n".join([*parts, "</html>", ""])


def _facts(results: Sequence[Result], cells: Sequence[Cell]) -> tuple[tuple[str, str], ...]:
    about = [result.about for result in results]
    versions = sorted(
        {f"{cell.figures['version']} ({cell.runtime})" for cell in cells if "version" in cell.figures}
    )
    kernels = sorted({cell.figures["kernel"] for cell in cells if "kernel" in cell.figures})
    real = [cell for cell in cells if cell.runtime != EMBEDDED]
    seen = len({(cell.machine, cell.scenario) for cell in real})
    return (
        ("played", f"{_span(each['date'] for each in about)}, checkout {_listed(about, 'checkout')}"),
        ("host", f"{_listed(about, 'host')}; load {_listed(about, 'load')}; {_listed(about, 'qemu')}"),
        ("accelerator", _listed(about, "accelerator")),
        ("guest kernel", ", ".join(kernels)),
        ("containerd", ", ".join(versions)),
        ("cells", f"{len(cells)}, of which {sum(not cell.failures for cell in cells)} passed"),
        ("scenarios seen on a real kernel", f"{seen}"),
        ("facts on real kernels", f"{sum(cell.passed for cell in real)} held, {sum(len(c.failures) for c in real)} did not"),
    )  # fmt: skip


def _remarks(cells: Iterable[Cell]) -> Iterable[str]:
    limited: dict[str, list[str]] = {}
    for cell in cells:
        for failure in cell.failures:
            yield f"FAILED {cell.machine}, {cell.scenario}, {cell.runtime}: {_one_line(failure)}"
        if cell.limitation:
            limited.setdefault(f"{cell.scenario}: {cell.limitation}", []).append(cell.runtime)
    for what, runtimes in limited.items():
        yield f"{what} ({', '.join(sorted(set(runtimes)))})"


def _one_line(text: str) -> str:
    """A text of any length on a line: its head, and its end where that says what happened."""
    line = " ".join(text.split())
    return line if len(line) <= 400 else f"{line[:250]} ... {line[-140:]}"


def _gaps(cells: Mapping[tuple[str, str], Mapping[str, Cell]]) -> Iterable[str]:
    """What this report does not show, and how to have it shown."""
    unseen = [
        f"{name} on {machine}" for (machine, name), row in cells.items() if not _RUNTIMES_REAL & set(row)
    ]
    holes = sum(len(_RUNTIMES_REAL - set(row)) for row in cells.values())
    if holes:
        yield f"{holes} cells were not played for want of time; `hack/lab all` plays what is asked for and keeps the others' results"
    if unseen:
        yield f"not seen on a real kernel in this report: {', '.join(sorted(unseen))}"


def _figures(cells: Iterable[Cell]) -> Iterable[tuple[str, str, str]]:
    found: dict[str, list[float]] = {}
    for cell in cells:
        for what, value in cell.figures.items():
            if isinstance(value, int | float):
                label = f"{what} ({cell.machine})" if what.startswith("boot") else what
                found.setdefault(label, []).append(float(value))
    for what, values in sorted(found.items()):
        yield what, f"{min(values):g}", f"{max(values):g}"


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "not played"
    if cell.failures:
        return f"FAILED {len(cell.failures)}"
    return f"ok {cell.passed} / {cell.seconds:.0f} s" + (" (limited)" if cell.limitation else "")


def _class(cell: Cell | None) -> str:
    return "none" if cell is None else "bad" if cell.failures else "ok"


def _title(machine: str) -> str:
    return machine_text(machine)[0].splitlines()[0].lstrip("# ")


def _name(scenario: str) -> str:
    try:
        return scenario_named(scenario)[1].name
    except LabError:
        return scenario.replace("-", " ")


def _listed(about: Sequence[dict[str, Any]], key: str) -> str:
    return (
        _span(each[key] for each in about)
        if key == "load"
        else ", ".join(sorted({each[key] for each in about} - {""}))
    )


def _span(values: Iterable[str]) -> str:
    found = sorted(values)
    return found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def _esc(text: str) -> str:
    return html.escape(str(text))
