"""The lab's report: machine x scenario x runtime, as Markdown and as a page, from the results that were kept."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .cells import Cell
from .report_page import RUNTIMES, Page, gather
from .results import Result
from .writing import write_whole

_BAR = r"\|"  # in a table of Markdown a bare one ends the cell
_LEGEND = (
    "`ok 25 / 12 s`: 25 facts held, none did not, in 12 seconds. Every cell of a real runtime also holds",
    "that every container is where the embedded runtime has it, after every step. `(limited)`: see the limitations;",
    "`-`: left out by design, with the reason there.",
)
STYLE = """
:root { color-scheme: light dark; --ok: #1a7f37; --bad: #b42318; --dim: #6b7280; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.ok { color: var(--ok); } td.bad { color: var(--bad); font-weight: 600; } td.none { color: var(--dim); }
small { color: var(--dim); } code { font-size: .9em; }
"""


def write_report(
    results: Sequence[Result], folder: Path, measured: Mapping[str, Mapping[str, Any]]
) -> tuple[Path, Path]:
    """Write `report.md` and `report.html`; `measured` are figures of runtimes on this machine itself.

    Raises:
        LabError: one could not be written.
    """
    page = gather(results, measured)
    markdown, web = folder / "report.md", folder / "report.html"
    write_whole(markdown, as_markdown(page))
    write_whole(web, as_html(page))
    return markdown, web


def as_markdown(page: Page) -> str:
    """The report for a terminal or a forge."""
    lines = ["# What the machine lab found", ""]
    lines += [f"* {what}: {value}" for what, value in page.facts]
    lines += [
        "",
        *_LEGEND,
    ]
    for machine, title, rows in page.tables:
        lines += ["", f"## {machine}", "", f"{title}", "", f"| scenario | {' | '.join(RUNTIMES)} |"]
        lines += ["|---" * (len(RUNTIMES) + 1) + "|"]
        lines += [f"| {name} | {' | '.join(map(_text, row))} |" for _, name, row in rows]
    lines += ["", "## Failures and limitations", ""]
    lines += [f"* {remark}" for remark in page.remarks] or ["None."]
    lines += ["", "## Figures", "", "| what | least | most |", "|---|---|---|"]
    lines += [f"| {what} | {least} | {most} |" for what, least, most in page.figures]
    if page.seen:
        lines += ["", "## Seen", "", "| scenario | runtime | what | seen |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(word.replace('|', _BAR) for word in row)} |" for row in page.seen]
    for runtime, measured in page.measured:
        lines += [
            "",
            f"## {runtime} outside guests, on this machine's CPUs",
            "",
            "| what | value |",
            "|---|---|",
        ]
        lines += [f"| {what} | {value} |" for what, value in measured]
    return "\n".join([*lines, ""])


def as_html(page: Page) -> str:
    """The report as one page without scripts."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Machine lab</title>"]
    parts += [f"<style>{STYLE}</style><h1>What the machine lab found</h1><ul>"]
    parts += [f"<li>{_esc(what)}: <b>{_esc(value)}</b>" for what, value in page.facts]
    parts.append(f"</ul><p>{' '.join(_LEGEND).replace('`', '')}")
    for machine, title, rows in page.tables:
        parts.append(f"<h2>{_esc(machine)}</h2><p>{_esc(title)}<table><tr><th>scenario")
        parts += [f"<th>{_esc(runtime)}" for runtime in RUNTIMES]
        for scenario, name, row in rows:
            parts.append(f"<tr><td>{_esc(name)} <small><code>{_esc(scenario)}</code></small>")
            parts += [f'<td class="{_class(cell)}">{_esc(_text(cell))}' for cell in row]
        parts.append("</table>")
    parts.append("<h2>Failures and limitations</h2><ul>")
    parts += [f"<li>{_esc(remark)}" for remark in page.remarks] or ["<li>None."]
    parts.append("</ul><h2>Figures</h2><table><tr><th>what<th>least<th>most")
    parts += [f"<tr><td>{_esc(what)}<td>{_esc(least)}<td>{_esc(most)}" for what, least, most in page.figures]
    parts.append("</table>")
    if page.seen:
        parts.append("<h2>Seen</h2><table><tr><th>scenario<th>runtime<th>what<th>seen")
        parts += ["<tr>" + "".join(f"<td>{_esc(word)}" for word in row) for row in page.seen]
        parts.append("</table>")
    for runtime, found in page.measured:
        parts.append(f"<h2>{_esc(runtime)} outside guests, on this machine's CPUs</h2><table>")
        parts += [f"<tr><td>{_esc(what)}<td>{_esc(value)}" for what, value in found]
        parts.append("</table>")
    return "\n".join([*parts, "</html>", ""])


def _text(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    if cell.failures:
        return cell.verdict + (f" {len(cell.failures)}" if cell.verdict == "FAILED" else "")
    return f"ok {cell.passed} / {cell.seconds:.0f} s" + (" (limited)" if cell.limitation else "")


def _class(cell: Cell | str) -> str:
    return "none" if isinstance(cell, str) else "bad" if cell.failures else "ok"


def _esc(text: str) -> str:
    return html.escape(str(text))
