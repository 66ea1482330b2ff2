"""The report of `hack/cluster`: scenario x version with times, as Markdown and as a page, from the results that were kept."""

import html
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.lab.report import STYLE
from tests.e2e.lab.writing import write_whole

from .running import Result

REPORTS = Path(__file__).resolve().parents[1]
_TITLE = "What the real cluster found"
_LEGEND = (
    "`ok 25 / 12 s`: 25 facts held, none did not, in 12 seconds on a busy machine. Times are not judged. "
    "Scenarios were played when the last list says, not all with the same commit."
)

WHY_REFUSED = {
    "401": "its token had expired, or was bound to a pod or Node that was deleted",
    "403": "an API server that had just started did not know the roles yet, or the Node of its token, or its roles, were deleted before it",
    "404": "the Node, or the pod to be bound, had been deleted, or a server that had just started did not know the kind yet",
    "409": "the exporter's first apply is without force: it found fields of another writer, or an object that was being deleted",
    "500": "an API server that had just started had not read everything yet",
    "503": "an API server that had just started was not ready",
    "422": "an admission policy refused what is not of the exporter's own node, or more of it than one taint, as it should",
    "429": "an API server that had just started, or whose kind had just been made, asked to come again",
}
"""By status: scenarios name each kind of request that may be refused, and any other is a failure."""


def write_report(results: Sequence[Result], folder: Path) -> tuple[Path, Path]:
    """Write `cluster-report.md` and `cluster-report.html`.

    Raises:
        LabError: one could not be written.
    """
    markdown, web = folder / "cluster-report.md", folder / "cluster-report.html"
    write_whole(markdown, as_markdown(results))
    write_whole(web, as_html(results))
    return markdown, web


def as_markdown(results: Sequence[Result]) -> str:
    """The report for a terminal or a forge."""
    versions, rows = _table(results)
    lines = [f"# {_TITLE}", "", _LEGEND, "", f"| scenario | what it shows | {' | '.join(versions)} |"]
    lines.append("|---" * (len(versions) + 2) + "|")
    lines += [f"| `{name}` | {_cell(title)} | {' | '.join(cells)} |" for name, title, cells in rows]
    for head, entries in _lists(results):
        lines += ["", f"## {head}", "", *(f"* {_cell(entry)}" for entry in entries)]
    return "\n".join([*lines, ""])


def as_html(results: Sequence[Result]) -> str:
    """The report as one page without scripts."""
    versions, rows = _table(results)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{_TITLE}</title><style>{STYLE}</style>"
    ]
    parts += [f"<h1>{_TITLE}</h1><p>{_LEGEND.replace('`', '')}<table><tr><th>scenario"]
    parts += [f"<th>{html.escape(version)}" for version in versions]
    for name, title, cells in rows:
        parts.append(f"<tr><td>{html.escape(title)} <small><code>{html.escape(name)}</code></small>")
        parts += [f'<td class="{_class(cell)}">{cell}' for cell in cells]
    parts.append("</table>")
    for head, entries in _lists(results):
        parts.append(f"<h2>{head}</h2><ul>")
        parts += [f"<li>{html.escape(entry)}" for entry in entries]
        parts.append("</ul>")
    return "\n".join([*parts, "</html>", ""])


def _table(results: Sequence[Result]) -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    versions = sorted(
        {one.version for one in results}, key=lambda version: [int(part) for part in version.split(".")]
    )
    by_place = {(one.scenario, one.version): one for one in results}
    titles = {one.scenario: one.title for one in results}
    rows = [
        (name, title, [_text(by_place.get((name, version))) for version in versions])
        for name, title in sorted(titles.items())
    ]
    return [f"Kubernetes {version}" for version in versions], rows


def _text(result: Result | None) -> str:
    if result is None:
        return "-"
    if result.failures:
        return f"FAILED {len(result.failures)}"
    return f"ok {len(result.held)} / {result.seconds:.0f} s"


def _class(cell: str) -> str:
    return "none" if cell == "-" else "bad" if cell.startswith("FAILED") else "ok"


def _lists(results: Sequence[Result]) -> list[tuple[str, list[str]]]:
    """The lists behind the table that are not empty."""
    failures = [f"{one.scenario}, {one.version}: {text}" for one in results for text in one.failures]
    seen = [f"{one.scenario}, {one.version}: {text}" for one in results for text in one.seen]
    figures = [
        f"{one.scenario}, {one.version}: {what}: {value}"
        for one in results
        for what, value in one.figures.items()
    ]
    looks, shared = (sum(getattr(one, what) for one in results) for what in ("looks", "shared_exclusive"))
    judged = [
        (
            f"All processes of the real node were looked at {looks} times, in its /proc: "
            f"{shared} exclusive CPU sets were shared with another container."
        )
    ]
    refused = [
        f"{one.scenario}, {one.version}: {count} x {words}: {WHY_REFUSED.get(words.split()[-1], 'unexplained')}"
        for one in results
        for words, count in one.refused.items()
    ]
    named = (
        ("Failures", failures or ["None."]),
        ("Exclusive CPUs, judged from outside", judged if looks else []),
        ("Requests of our service accounts that were refused", refused or ["None."]),
        ("Seen", seen),
        ("Figures", figures),
        ("When each was played, and with which commit", _played(results)),
    )
    return [(head, entries) for head, entries in named if entries]


def _played(results: Sequence[Result]) -> list[str]:
    """The days and commits, the newest first, with the scenarios of each."""
    days = sorted({one.played for one in results if one.played}, reverse=True)
    return [f"{day}: {', '.join(one.scenario for one in results if one.played == day)}" for day in days]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())
