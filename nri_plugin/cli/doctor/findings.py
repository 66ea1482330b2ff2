"""The result of a check: a verdict, a sentence, and the next step."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.cli.doctor.node_evidence import Hidden


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
        undo: a line for when it fails: the node is then as before the first step.
    """

    do: str
    command: str = ""
    undo: str = ""


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
    """

    check: str
    verdict: Verdict
    says: str
    do: str = ""
    command: str = ""
    mount: str = ""
    mount_at: str = ""
    steps: tuple[NextStep, ...] = ()


def fine(check: str, says: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Verdict.OK, says)


def to_do(check: str, says: str, do: str, command: str = "", steps: Sequence[NextStep] = ()) -> Finding:
    """Something is wrong."""
    return Finding(check, Verdict.TO_DO, says, do, command, steps=tuple(steps))


def advice(check: str, says: str, do: str, command: str = "", steps: Sequence[NextStep] = ()) -> Finding:
    """Something could be better."""
    return Finding(check, Verdict.ADVICE, says, do, command, steps=tuple(steps))


def not_visible(check: str, what: Hidden, says: str, do: str = "") -> Finding:
    """The evidence cannot be seen; never counted as OK.

    Args:
        check: its name.
        what: cannot be seen; the mount that would show it goes before `do`.
        says: what is not known therefore.
        do: how to see it where no mount helps.
    """
    if what.at:
        step = f"mount {what.path} of the node at {what.at}"
        return Finding(check, Verdict.NOT_VISIBLE, says, step, mount=what.path, mount_at=what.at)
    return Finding(check, Verdict.NOT_VISIBLE, says, do or f"{what.path}: {what.why}")
