"""What this project runs, follows by its source, or has not tried: `support.yaml`, for the guides and for `doctor`."""

from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec

Version = tuple[int, int, int]
LINUX = "Linux"


class Basis(StrEnum):
    """What is known of a release."""

    RUN = "run here"
    SOURCE = "by its source"
    """Played runtimes and rules follow the source of the release, and no test of this project has run it."""
    NOT_TRIED = "not tried"


class Support(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row.

    Attributes:
        subject: such as `containerd`.
        which: its releases or kinds.
        how: what ran it, and the exact release; or what it rests on.
        date: of that, as `2026-11-24`; empty where nothing was done.
        since: the first release of the row, for subjects that are judged by version.
    """

    subject: str
    which: str
    basis: Basis
    how: str = ""
    date: str = ""
    since: Version | None = None


@cache
def support() -> list[Support]:
    """All rows."""
    rows = resources.files(__package__).joinpath("support.yaml").read_bytes()
    return msgspec.yaml.decode(rows, type=list[Support])


def support_of(subject: str, version: Version) -> Support | None:
    """The row for a release; None below the oldest one."""
    rows = (row for row in support() if row.subject == subject and row.since and row.since <= version)
    return next(rows, None)


def caveat(subject: str, version: Version) -> str:
    """What a reader should know of a release that was not run, as an end of a sentence; empty for one that was."""
    row = support_of(subject, version)
    if row is None or row.basis is Basis.NOT_TRIED:
        return "nri-pin was not tried with it"
    return "" if row.basis is Basis.RUN else "nri-pin follows its source, and was not run with it"


def support_table() -> str:
    """The table in Markdown."""
    lines = ["| | | tried | how | last |", "|---|---|---|---|---|"]
    lines += [f"| {one.subject} | {one.which} | {one.basis} | {one.how} | {one.date} |" for one in support()]
    return "\n".join(lines) + "\n"
