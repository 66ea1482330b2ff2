"""The results of checks, each a verdict, a sentence and the next step; and how they are printed."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import click

from nri_plugin.cli.doctor.view import Hidden
from nri_plugin.cli.output import plain, render
from nri_plugin.model.bounds import visible


class Verdict(StrEnum):
    """The outcome of a check."""

    OK = "OK"
    TO_DO = "TO DO"
    """Something is wrong and there is a next step."""
    ADVICE = "ADVICE"
    """Placements are correct without it; something would be better with it."""
    NOT_VISIBLE = "NOT VISIBLE"
    """The evidence cannot be seen from here, so the check is undecided."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """One step of several, which can be checked before the next.

    Attributes:
        do: what it is for, and how to see that it succeeded.
        command: one command; empty when the step is no command.
    """

    do: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check.

    Attributes:
        check: its name, stable, for scripts.
        says: the observation, one sentence.
        do: the next step; empty when there is none.
        command: a line to paste; empty when the next step is no command.
        mount: the folder of the node that would show the evidence.
        mount_at: where to mount it.
        steps: where one command is not enough; each is done only when the one before it succeeded.
        items: what was found, one by one.
    """

    check: str
    verdict: Verdict
    says: str
    do: str = ""
    command: str = ""
    mount: str = ""
    mount_at: str = ""
    steps: tuple[NextStep, ...] = ()
    items: tuple[str, ...] = ()


def fine(says: str) -> Finding:
    """Nothing to do."""
    return Finding("", Verdict.OK, says)


def to_do(says: str, do: str, command: str = "", steps: Sequence[NextStep] = ()) -> Finding:
    """Something is wrong."""
    return Finding("", Verdict.TO_DO, says, do, command, steps=tuple(steps))


def advice(says: str, do: str, command: str = "") -> Finding:
    """Something could be better."""
    return Finding("", Verdict.ADVICE, says, do, command)


def not_visible(hidden: Hidden, says: str, do: str = "") -> Finding:
    """The evidence cannot be seen; never counted as OK.

    Args:
        hidden: the evidence; the mount that would show it goes before `do`.
        says: the fact that is not known therefore.
        do: how to see it where no mount helps.
    """
    if hidden.at:
        step = f"mount {hidden.path} of the node at {hidden.at}"
        return Finding("", Verdict.NOT_VISIBLE, says, step, mount=hidden.path, mount_at=hidden.at)
    return Finding("", Verdict.NOT_VISIBLE, says, do or f"{hidden.path}: {hidden.why}")


class _Mark(NamedTuple):
    """How a verdict is shown before a finding, and counted at the end."""

    label: str
    colour: str
    counted: str


MARKS = {
    Verdict.OK: _Mark("OK", "green", "OK"),
    Verdict.TO_DO: _Mark("TO DO", "red", "to do"),
    Verdict.ADVICE: _Mark("ADVICE", "yellow", "with advice"),
    Verdict.NOT_VISIBLE: _Mark("?", "magenta", "not visible"),
}
INDENT = " " * 9
STEP_INDENT = INDENT + " " * 4
ITEM_INDENT = INDENT + " " * 2
MOST_ITEMS = 12
"""Items of a finding that are shown as text."""
WHOLE_NODE = "kubectl debug node/NODE -it --profile=sysadmin --image=IMAGE -- nri-pin doctor --root /host"
"""A temporary pod that has the whole node below /host."""

Groups = Mapping[str, Sequence[Finding]]


def exit_code(groups: Groups, *, strict: bool) -> int:
    """0 when there is nothing to do; evidence that is not visible counts only with `strict`."""
    bad = {Verdict.TO_DO, Verdict.ADVICE, Verdict.NOT_VISIBLE} if strict else {Verdict.TO_DO}
    return int(any(finding.verdict in bad for found in groups.values() for finding in found))


def as_text(groups: Groups, width: int | None, *, colour: bool) -> Iterator[str]:
    """A paragraph for each group, and a line that sums up. Commands are never broken, so that they can be pasted."""
    for group, found in groups.items():
        if not found:
            continue
        yield group
        for finding in found:
            yield from _lines(finding, width, colour=colour)
        yield ""
    yield summary(groups)
    mounts = sorted({finding.mount for found in groups.values() for finding in found if finding.mount})
    if mounts:
        yield from _paragraph(
            f"To see the rest, mount {', '.join(mounts)} of the node, or, in a cluster:", width
        )
        yield f"  {WHOLE_NODE}"


def summary(groups: Groups) -> str:
    """How many of each."""
    counts = count(groups)
    words = [f"{number} {MARKS[verdict].counted}" for verdict, number in counts.items() if number]
    return f"{sum(counts.values())} checks: {', '.join(words)}"


def count(groups: Groups) -> dict[Verdict, int]:
    """How many findings have each verdict."""
    verdicts = [finding.verdict for found in groups.values() for finding in found]
    return {verdict: verdicts.count(verdict) for verdict in Verdict}


def _lines(finding: Finding, width: int | None, *, colour: bool) -> Iterator[str]:
    label = f"{MARKS[finding.verdict].label:<6}"
    if colour:
        label = click.style(label, fg=MARKS[finding.verdict].colour, bold=finding.verdict is Verdict.TO_DO)
    if finding.verdict is Verdict.NOT_VISIBLE:
        text = f"{finding.check}: not visible: {finding.do} ({finding.says})"
    else:
        text = f"{finding.check}: {finding.says}"
    yield from _paragraph(text, width, f"  {label} ", INDENT)
    for item in finding.items[:MOST_ITEMS]:
        yield from _paragraph(item, width, ITEM_INDENT, ITEM_INDENT)
    if len(finding.items) > MOST_ITEMS:
        yield f"{ITEM_INDENT}and {len(finding.items) - MOST_ITEMS} more; -o json has all"
    if finding.verdict is Verdict.NOT_VISIBLE or not finding.do:
        return
    follows = ":" if finding.command or finding.steps else ""
    yield from _paragraph(f"-> {finding.do}{follows}", width, INDENT, INDENT)
    if finding.command:
        yield f"{INDENT}   {visible(finding.command)}"
    for number, step in enumerate(finding.steps, 1):
        head = f"{INDENT}{f'{number}.':<4}"
        yield from _paragraph(step.do + (":" if step.command else ""), width, head, STEP_INDENT)
        if step.command:
            yield f"{STEP_INDENT}   {visible(step.command)}"


def _paragraph(text: str, width: int | None, first: str = "", rest: str = "") -> Iterator[str]:
    """The lines of a text: what stands before the first of them, and before the others."""
    lines = [text]
    if width is not None:
        room = max(width - len(rest), 20)
        lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines):
        yield (rest if number else first) + visible(line)


def as_json(groups: Groups, *, strict: bool, form: str = "json") -> str:
    """Everything, for programs."""
    checks = [{"group": group} | plain(finding) for group, found in groups.items() for finding in found]
    report = {"exit_code": exit_code(groups, strict=strict), "counts": count(groups), "checks": checks}
    return render(report, form)
