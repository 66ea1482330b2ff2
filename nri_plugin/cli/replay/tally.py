"""The outcome of a replay: counts of both runs, the containers that they treat differently, and the text about them.

A `Tally` counts what one run decided. A `ReplayComparison` takes the recorded and the replayed decision of each event and
keeps the differences.
"""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from nri_plugin.cli.output import table
from nri_plugin.cli.replay.other_life import Met
from nri_plugin.core.decision import Decision, InformedCreate, UnsavedStart
from nri_plugin.core.requests import pod_uid
from nri_plugin.model.options import REGISTRY, Node, ReservedMemory
from nri_plugin.model.quantity import format_bytes
from nri_plugin.model.state import State, allocation_key
from nri_plugin.policy.alignment import footprint
from nri_plugin.recording.reader import Moment, RecordedChange
from nri_plugin.recording.rows import Event
from nri_plugin.wire.nri.events import CreateContainer, UpdateContainer

LEVELS = ("numa_node", "socket", "uncore_cache", "whole_cores")

PLACED_OTHERWISE = "placed otherwise"
REFUSED = "refused instead of admitted"
ADMITTED = "admitted instead of refused"
SHARED = "shared instead of exclusive"
EXCLUSIVE = "exclusive instead of shared"
RESIZE_REFUSED = "resize refused instead of done"
RESIZE_DONE = "resize done instead of refused"


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """What one container got.

    Attributes:
        refused: the reason word; empty when it was admitted.
        text: the refusal in full.
        cpus: its exclusive CPUs; empty where it shares the pool.
        mems: the memory nodes it is bound to.
        aligned: the levels at which its exclusive CPUs are aligned.
    """

    refused: str = ""
    text: str = ""
    cpus: str = ""
    mems: str = ""
    aligned: tuple[str, ...] = ()


@dataclass(slots=True)
class ReplayDifference:
    """A container that fares otherwise; `times` counts its tries with the same end."""

    when: datetime
    place: str
    container: str
    kind: str
    recorded: ReplayVerdict
    replayed: ReplayVerdict
    times: int = 1

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "when": self.when.isoformat(),
            "place": self.place,
            "container": self.container,
            "kind": self.kind,
            "times": self.times,
            "recorded": asdict(self.recorded),
            "replayed": asdict(self.replayed),
        }


@dataclass(slots=True)
class Tally:
    """The sums of one life; of a container that was tried several times the last try counts."""

    verdicts: dict[str, ReplayVerdict] = field(default_factory=dict)
    refused_tries: int = 0
    peak_cpus: int = 0
    peak_at: datetime | None = None

    def count(self, key: str, verdict: ReplayVerdict) -> None:
        """One try to create a container."""
        self.verdicts[key] = verdict
        self.refused_tries += bool(verdict.refused)

    def reach(self, state: State, when: datetime) -> None:
        """The state after an event."""
        exclusive = len(state.exclusive)
        if exclusive > self.peak_cpus:
            self.peak_cpus, self.peak_at = exclusive, when

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        found = list(self.verdicts.values())
        exclusive = [one for one in found if one.cpus]
        return {
            "containers": len(found),
            "refused": sum(1 for one in found if one.refused),
            "refused_by_reason": dict(Counter(one.refused for one in found if one.refused)),
            "refused_tries": self.refused_tries,
            "exclusive": len(exclusive),
            "shared": sum(1 for one in found if not one.refused and not one.cpus),
            "aligned": {level: sum(1 for one in exclusive if level in one.aligned) for level in LEVELS},
            "peak_exclusive_cpus": self.peak_cpus,
            "peak_at": None if self.peak_at is None else self.peak_at.isoformat(),
        }


class ReplayComparison:
    """Both lives, side by side.

    Args:
        only: `NAMESPACE/POD` whose containers count; empty for all.
    """

    def __init__(self, only: str = "") -> None:
        self.only = only
        self.recorded, self.replayed = Tally(), Tally()
        self.differences: dict[tuple[str, str, ReplayVerdict, ReplayVerdict], ReplayDifference] = {}

    def add(self, met: Met) -> None:
        """One event."""
        moment = met.moment
        self.recorded.reach(moment.state_after, moment.when)
        self.replayed.reach(met.after, moment.when)
        event = _bare(moment.event)
        if not isinstance(event, CreateContainer | UpdateContainer) or moment.outcome.failed:
            return
        if self.only and f"{event.pod.namespace}/{event.pod.name}" != self.only:
            return
        key = allocation_key(pod_uid(event.pod), event.container.name)
        recorded = _verdict(moment.node, moment.decision, key, _refused(moment))
        if isinstance(event, UpdateContainer):
            self._resize(met, event, recorded)
            return
        self.recorded.count(key, recorded)
        # A further try of what runs here already: it has what it has.
        replayed = (
            _held(met.node, met.before, key)
            if met.decision is None
            else _verdict(met.node, met.decision, key)
        )
        self.replayed.count(key, replayed)
        self._differ(met, event, key, kind_of(recorded, replayed), recorded, replayed)

    def _resize(self, met: Met, event: UpdateContainer, recorded: ReplayVerdict) -> None:
        if met.decision is None:
            return
        key = allocation_key(pod_uid(event.pod), event.container.name)
        replayed = _verdict(met.node, met.decision, key)
        if bool(recorded.refused) != bool(replayed.refused):
            kind = RESIZE_REFUSED if replayed.refused else RESIZE_DONE
            self._differ(met, event, key, kind, recorded, replayed)

    def _differ(
        self,
        met: Met,
        event: CreateContainer | UpdateContainer,
        key: str,
        kind: str,
        recorded: ReplayVerdict,
        replayed: ReplayVerdict,
    ) -> None:
        if not kind:
            return
        mark = (key, kind, recorded, replayed)
        if mark in self.differences:
            self.differences[mark].times += 1
            return
        name = f"{event.pod.namespace}/{event.pod.name}/{event.container.name or event.container.id}"
        self.differences[mark] = ReplayDifference(
            met.moment.when, met.moment.place, name, kind, recorded, replayed
        )


def kind_of(recorded: ReplayVerdict, replayed: ReplayVerdict) -> str:
    """How the two differ; empty when they do not."""
    if bool(recorded.refused) != bool(replayed.refused):
        return REFUSED if replayed.refused else ADMITTED
    if replayed.refused:
        return ""
    if bool(recorded.cpus) != bool(replayed.cpus):
        return EXCLUSIVE if replayed.cpus else SHARED
    return "" if (recorded.cpus, recorded.mems) == (replayed.cpus, replayed.mems) else PLACED_OTHERWISE


def name_of(event: Event) -> str:
    """The container or pod of an event, `namespace/pod/container` as far as known."""
    event = _bare(event)
    pod, container = getattr(event, "pod", None), getattr(event, "container", None)
    parts: Iterator[str] = (
        part
        for part in (
            getattr(pod, "namespace", ""),
            getattr(pod, "name", ""),
            getattr(container, "name", "") or getattr(container, "id", ""),
        )
        if part
    )
    return "/".join(parts)


def _bare(event: Event) -> Event:
    return event.event if isinstance(event, InformedCreate | UnsavedStart) else event


def _refused(moment: Moment) -> str:
    return moment.outcome.reason or ("refused" if moment.outcome.refusal else "")


def _verdict(node: Node, decision: Decision, key: str, refused: str | None = None) -> ReplayVerdict:
    """What was decided; `refused` is what was recorded of that, where something was."""
    error = decision.refusal
    reason = refused if refused is not None else error.reason if error else ""
    if reason:
        return ReplayVerdict(refused=reason, text=str(error or ""))
    return _held(node, decision.state, key)


def _held(node: Node, state: State, key: str) -> ReplayVerdict:
    held = state.allocations.get(key)
    if held is None:
        return ReplayVerdict()
    aligned = asdict(footprint(node.topology, held.cpus, held.mems).aligned)
    return ReplayVerdict(
        cpus=str(held.cpus),
        mems=str(held.mems),
        aligned=tuple(level for level in LEVELS if held.cpus and aligned[level]),
    )


NOTHING = "-"

MOST_ROWS = 40
"""Rows of differences; with -o json there are all."""

WORDS = {
    REFUSED: "refused",
    RESIZE_REFUSED: "no resize",
    SHARED: "shared",
    ADMITTED: "admitted",
    RESIZE_DONE: "resized",
    EXCLUSIVE: "exclusive",
    PLACED_OTHERWISE: "elsewhere",
}
"""The differences, the worst first, and how the table has them."""

SUMS = (
    ("containers", "containers"),
    ("refused", "  refused"),
    ("exclusive", "  exclusive CPUs"),
    ("numa_node", "    one NUMA node"),
    ("socket", "    one socket"),
    ("uncore_cache", "    one uncore cache"),
    ("whole_cores", "    whole cores"),
    ("shared", "  shared pool"),
    ("peak_exclusive_cpus", "exclusive CPUs at peak"),
    ("refused_tries", "refused tries"),
)


def span(path: str, events: int, first: datetime | None, last: datetime | None) -> str:
    """What was replayed."""
    counted = f"{events} event{'' if events == 1 else 's'}"
    if first is None or last is None:
        return f"recording  {path}: {counted}"
    end = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M:%S}"
    return f"recording  {path}: {counted}, {first:%Y-%m-%d %H:%M:%S} to {end} UTC"


def verified(changes: Sequence[RecordedChange], width: int) -> Iterator[str]:
    """What is decided otherwise today."""
    if not changes:
        yield "today's program decides the same"
        return
    clock = _clock([one.moment.when for one in changes])
    rows = [("WHEN", "EVENT", "WHO", "WHAT", "RECORDED", "TODAY")]
    rows += [
        (
            f"{one.moment.when:{clock}}",
            type(one.moment.event).__name__,
            name_of(one.moment.event) or NOTHING,
            one.what,
            one.recorded,
            one.today,
        )
        for one in changes[:MOST_ROWS]
    ]
    yield from table(rows, width, (2, 4, 5))
    yield from _more(len(changes))
    where = changes[0].moment.place
    yield f"today's program decides otherwise, first at {where}"
    yield "what comes after the first difference may follow from it"


def options_of(recorded: Node, replayed: Node) -> Iterator[str]:
    """What the two configurations differ in, by the names of the configuration."""
    for one in REGISTRY.values():
        before, after = one.value(recorded.options), one.value(replayed.options)
        if before != after:
            yield f"{one.name}: {_value(before)} -> {_value(after)}"
    if recorded.reserved != replayed.reserved:
        yield f"reserved CPUs: {recorded.reserved or NOTHING} -> {replayed.reserved or NOTHING}"


def differences(found: Sequence[ReplayDifference], width: int) -> Iterator[str]:
    """The table of changes under another configuration, losses first."""
    if not found:
        yield "every container gets the same"
        return
    clock = _clock([one.when for one in found])
    rows = [("WHEN", "CONTAINER", "RECORDED", "REPLAYED", "")]
    rows += [
        (
            f"{one.when:{clock}}",
            one.container,
            _got(one.recorded),
            _got(one.replayed),
            WORDS[one.kind] + (f" x{one.times}" if one.times > 1 else ""),
        )
        for one in sorted(found, key=lambda one: (tuple(WORDS).index(one.kind), one.when))[:MOST_ROWS]
    ]
    yield from table(rows, width, (1, 2, 3))
    yield from _more(len(found))
    counts = {kind: sum(1 for one in found if one.kind == kind) for kind in WORDS}
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    total = f"{len(found)} difference{'' if len(found) == 1 else 's'}"
    yield from textwrap.wrap(f"{total}: {said}", width)


def reasons(found: Sequence[ReplayDifference], width: int) -> Iterator[str]:
    """Why something would have been refused, one text for each reason."""
    texts = {
        one.replayed.refused: one.replayed.text
        for one in reversed(found)
        if one.replayed.refused and not one.recorded.refused
    }
    for text in texts.values():
        yield from textwrap.wrap(f"for example {text}", width, subsequent_indent="  ", break_on_hyphens=False)


def sums(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> Iterator[str]:
    """Both lives in numbers."""
    yield f"{'':<24}{'recorded':>10}{'replayed':>10}"
    for key, title in SUMS:
        before, after = (one.get(key, one["aligned"].get(key)) for one in (recorded, replayed))
        yield f"{title:<24}{before:>10}{after:>10}"


def _got(verdict: ReplayVerdict) -> str:
    if verdict.refused:
        return verdict.refused.removesuffix("Error")
    mems = f" mems {verdict.mems}" if verdict.mems else ""
    return (verdict.cpus or "shared pool") + mems


def _more(count: int) -> Iterator[str]:
    if count > MOST_ROWS:
        yield f"... and {count - MOST_ROWS} more; all are in -o json"


def _value(value: object) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], ReservedMemory):
        return ", ".join(
            f"{one.resource} {format_bytes(one.size_bytes)} on NUMA node {one.node}" for one in value
        )
    if isinstance(value, frozenset | tuple):
        return ",".join(sorted(map(str, value))) or NOTHING
    return str(value)


def _clock(times: Sequence[datetime]) -> str:
    """With the day only where there are several."""
    return "%H:%M:%S" if len({when.date() for when in times}) == 1 else "%m-%d %H:%M"
