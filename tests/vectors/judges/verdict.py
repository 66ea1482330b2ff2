"""How a recorded case compares with our answer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Document = dict[str, Any]
Case = dict[str, Any]


class Verdict(StrEnum):
    PASSED = "passed"
    REPAIRED = "repaired"
    """The recorded answer is a fault; ours differs and is sound."""
    FAILED = "failed"
    NOT_YET = "not yet supported"


@dataclass(frozen=True)
class Judged:
    """One case.

    Attributes:
        id: of the case.
        verdict: the outcome.
        detail: what differs, or which feature is missing.
    """

    id: str
    verdict: Verdict
    detail: str = ""


Judge = Callable[[Document], Iterator[Judged]]


def compare(case_id: str, ours: object, theirs: object, what: str = "") -> Judged:
    """Passed when equal."""
    if ours == theirs:
        return Judged(case_id, Verdict.PASSED)
    return Judged(case_id, Verdict.FAILED, f"{what} ours {ours!r} recorded {theirs!r}".strip())
