"""What `nri-pin state repair` says: what is wrong, what stays, what does not, what is to be done."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass

from nri_plugin.cli.cell_table import folded
from nri_plugin.cli.output import columns
from nri_plugin.host.repair import Plan

NARROW = 80


@dataclass(frozen=True, slots=True)
class Case:
    """What is wrong, and what is to be done about it.

    Attributes:
        path: of the checkpoint.
        problems: what keeps it from being read, a sentence each.
        cgroups: how the cgroups were looked at, in words.
        planned: what would be written.
        remains: what verify will still find in it.
    """

    path: str
    problems: tuple[str, ...]
    cgroups: str
    planned: Plan
    remains: tuple[str, ...]

    @property
    def is_wrong(self) -> bool:
        """Whether there is anything to repair."""
        return bool(self.problems or self.planned.left_out or self.planned.undecided)


def repair_text(case: Case, aside: str, *, is_done: bool) -> str:
    """For people."""
    if not case.is_wrong:
        return f"{case.path}: nothing to repair"
    planned = case.planned
    lines = [f"wrong: {text}" for text in case.problems]
    lines += [f"undecided: {text}" for text in planned.undecided]
    lines += [f"left out: {text}" for text in planned.left_out]
    lines += [f"stays: {text}" for text in planned.kept]
    lines += [f"verify will still say: {text}" for text in case.remains if not planned.undecided]
    lines += [f"cgroups: {case.cgroups}", *_end(case, aside, is_done=is_done)]
    width = columns() or NARROW
    return "\n".join(part for line in lines for part in folded(line, width, 2))


def _end(case: Case, aside: str, *, is_done: bool) -> Iterable[str]:
    planned = case.planned
    what = f"generation {planned.generation} with {len(planned.state.allocations)} promises"
    if is_done:
        yield f"{case.path}: repaired, {what}" + (f"; what was there is now {aside}" if aside else "")
    elif planned.undecided:
        yield (
            f"{case.path}: nothing was changed; name the promise that is over with --give-up, or let the cgroups be "
            "seen with --cgroup-root"
        )
    else:
        keeps = ", and keeps what is there as state.json.damaged-N" if os.path.lexists(case.path) else ""
        yield f"{case.path}: nothing was changed; --yes writes {what}{keeps}"


def repair_json(case: Case, aside: str, *, is_done: bool) -> str:
    """For programs."""
    planned = case.planned
    return json.dumps(
        {
            "file": case.path,
            "wrong": list(case.problems),
            "undecided": planned.undecided,
            "left_out": planned.left_out,
            "stays": planned.kept,
            "remains": list(case.remains),
            "cgroups": case.cgroups,
            "generation": planned.generation,
            "repaired": is_done,
            "kept_aside": aside or None,
        },
        indent=2,
    )
