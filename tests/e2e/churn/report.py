"""The report of a churn, as Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.lab.writing import write_whole

from .judge import Verdict

REPORT = Path(__file__).resolve().parents[1] / "churn-report.md"


def write_report(plan: dict[str, Any], verdicts: Sequence[Verdict], path: Path) -> str:
    """Write it; returns the text.

    Raises:
        LabError: it could not be written.
    """
    violations = [(one.node, each) for one in verdicts for each in one.violations]
    about = (
        f"`hack/churn --seed {plan['seed']}`, commit {plan['commit'] or 'unknown'}: kubelet and control plane {plan['kubelet']}, "
        f"{plan['nodes']} nodes at once, machine `{plan['machine']}`."
    )
    lines = [
        "# What the churn found", "",
        about, "",
        f"{len(violations)} violations.", "", "| node | round |", "|---|---|",
    ]  # fmt: skip
    lines += [f"| {one.node} | {words} |" for one in verdicts for words in one.rounds]
    for one in verdicts:
        lines += [
            "",
            f"## Figures of {one.node}",
            "",
            *(f"* {name}: {value}" for name, value in one.figures.items()),
        ]
    lines += ["", "## Violations", "", *([f"* {node}: {each}" for node, each in violations] or ["None."]), ""]
    text = "\n".join(lines)
    write_whole(path, text)
    return text
