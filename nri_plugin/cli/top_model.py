"""What `nri-pin top` knows between two pictures: the present, what changed lately, and what the reader wants to see."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nri_plugin.cli.state_agent import NO_RUNTIME
from nri_plugin.cli.state_changes import changes
from nri_plugin.cli.state_rows import Row, rows_of
from nri_plugin.cli.top_feed import Sample

HIGHLIGHT_S = 5.0
LONGEST_LOG = 200

SortKey = Callable[["Line"], Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A container.

    Attributes:
        row: what it has.
        used: CPUs that it used lately; None where that is not known.
        age_s: seconds since it began; None where that is not known.
        is_fresh: changed within the last seconds.
    """

    row: Row
    used: float | None
    age_s: float | None
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that changed.

    Attributes:
        at: seconds since the epoch.
        text: in one line.
        facts: for programs.
    """

    at: float
    text: str
    facts: Mapping[str, Any]


SORTS: Mapping[str, SortKey] = {
    "name": lambda line: (not line.row.is_exclusive, line.row.name),
    "cpus": lambda line: (not line.row.is_exclusive, -len(line.row.cpus or ()), line.row.name),
    "use": lambda line: (-(line.used or 0.0), line.row.name),
    "numa": lambda line: (
        not line.row.is_exclusive,
        line.row.numa_nodes.mask if line.row.numa_nodes else 0,
        line.row.name,
    ),
    "age": lambda line: (line.age_s is None, line.age_s or 0.0, line.row.name),
}


@dataclass(slots=True)
class Model:
    """The present.

    Attributes:
        sample: what is known now.
        log: what changed, the newest last.
        sort: one of `SORTS`.
        pattern: only containers whose name holds it.
        is_paused: nothing new is taken in.
        scroll: containers above the first shown.
    """

    sample: Sample
    log: deque[Happening] = field(default_factory=lambda: deque(maxlen=LONGEST_LOG))
    sort: str = "name"
    pattern: str = ""
    is_paused: bool = False
    scroll: int = 0
    fresh: dict[str, float] = field(default_factory=dict)

    def take(self, sample: Sample, at: float) -> list[Happening]:
        """Make `sample` the present; returns what is new in it."""
        new = happenings(self.sample, sample, at)
        for one in new:
            key = one.facts.get("key")
            if key is not None:
                self.fresh[str(key)] = at
        self.fresh = {key: since for key, since in self.fresh.items() if at - since < HIGHLIGHT_S}
        self.sample = sample
        self.log.extend(new)
        return new

    def next_sort(self) -> None:
        """Sort by the next key."""
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]

    def lines(
        self, used: Mapping[str, float], age_of: Callable[[Row], float | None], at: float
    ) -> list[Line]:
        """The containers to show, in order."""
        lines = [
            Line(
                row,
                used.get(row.record.id),
                age_of(row),
                at - self.fresh.get(row.record.key, 0.0) < HIGHLIGHT_S,
            )
            for row in rows_of(self.sample.seen)
            if self.pattern in row.name
        ]
        return sorted(lines, key=SORTS[self.sort])


def happenings(before: Sample, after: Sample, at: float) -> list[Happening]:
    """What changed from one moment to the next."""
    from nri_plugin.cli.state_diff import change_facts, change_line

    found = []
    if before.is_connected != after.is_connected:
        text = "the agent answers" if after.is_connected else "the agent is away; this is its checkpoint"
        found.append(Happening(at, text, {"what": "agent", "connected": after.is_connected}))
    elif after.is_connected and before.is_placing != after.is_placing:
        name = f"{after.runtime.name} {after.runtime.version}" if after.runtime else ""
        text = f"{name} asks the agent" if after.runtime else NO_RUNTIME
        found.append(Happening(at, text, {"what": "runtime", "connected": after.is_placing}))
    found += [
        Happening(at, " ".join(change_line(change).split()), change_facts(change))
        for change in changes(before.seen.state, after.seen.state)
    ]
    if before.is_connected and after.is_connected:
        found += _refusals(before, after, at) + _drifts(before, after, at)
    return found


def _refusals(before: Sample, after: Sample, at: float) -> list[Happening]:
    known = refused(before)
    return [
        Happening(
            at,
            f"refused {row.namespace}/{row.pod}/{row.container}: {row.detail}",
            {
                "what": "refused",
                "name": f"{row.namespace}/{row.pod}/{row.container}",
                "reason": row.reason,
                "detail": row.detail,
            },
        )
        for row in after.refusals
        if row.number > known
    ]


def _drifts(before: Sample, after: Sample, at: float) -> list[Happening]:
    known = drifted(before)
    return [
        Happening(
            at,
            f"drift {row.name}: found CPUs {row.found or '-'}, should be {row.desired} ({row.cause})",
            {
                "what": "drift",
                "name": row.name,
                "found": row.found,
                "desired": row.desired,
                "cause": row.cause,
                "error": row.error,
            },
        )
        for row in after.drifts
        if row.number > known
    ]


def refused(sample: Sample) -> int:
    """Containers refused since the agent began."""
    return sample.refusals[-1].number if sample.refusals else 0


def drifted(sample: Sample) -> int:
    """Drifts since the agent began."""
    return sample.drifts[-1].number if sample.drifts else 0
