"""`nri-pin replay`: recorded events, decided again, by today's program or under another configuration.

A `Tally` counts what one run decided. A `ReplayComparison` takes the recorded and the replayed decision of each event and
keeps the differences.
"""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import click

from nri_plugin.cli.output import FOR_PROGRAMS, columns, echo, format_option, render, table, told
from nri_plugin.cli.replay.other_life import Met, OtherLife
from nri_plugin.cli.state.changes import node_changes
from nri_plugin.cli.state.source import usage_errors
from nri_plugin.config.checks import Capacity
from nri_plugin.config.loading import load, load_hint_providers
from nri_plugin.core.decision import Decision, InformedCreate, UnsavedStart
from nri_plugin.core.requests import pod_uid
from nri_plugin.model.options import Node
from nri_plugin.model.records import allocation_key
from nri_plugin.model.state import State
from nri_plugin.policy.alignment import footprint
from nri_plugin.recording.reader import Moment, RecordedChange, Recording, changes, read
from nri_plugin.recording.rows import Event
from nri_plugin.wire.nri.events import CreateContainer, UpdateContainer

LEVELS = ("numa_node", "socket", "uncore_cache", "whole_cores")

PLACED_OTHERWISE = "placed otherwise"
REFUSED = "refused instead of admitted"
ADMITTED = "admitted instead of refused"
SHARINGS = ("shared", "pod shared", "exclusive")
"""How a container has its CPUs, the worst first: in the shared pool, in that of its pod, alone."""
RESIZE_REFUSED = "resize refused instead of done"
RESIZE_DONE = "resize done instead of refused"


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """The outcome of one container.

    Attributes:
        refused: the reason word; empty when it was admitted.
        text: the refusal in full.
        cpus: its exclusive CPUs, or the pod shared pool; empty where it shares the pool of the node.
        is_pod_shared: `cpus` are the pod shared pool.
        mems: the memory nodes it is bound to.
        aligned: the levels at which its exclusive CPUs are aligned.
    """

    refused: str = ""
    text: str = ""
    cpus: str = ""
    mems: str = ""
    aligned: tuple[str, ...] = ()
    is_pod_shared: bool = False

    @property
    def sharing(self) -> str:
        """One of `SHARINGS`."""
        if not self.cpus:
            return "shared"
        return "pod shared" if self.is_pod_shared else "exclusive"


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
        sharings = Counter(one.sharing for one in found if not one.refused)
        return {
            "containers": len(found),
            "refused": sum(1 for one in found if one.refused),
            "refused_by_reason": dict(Counter(one.refused for one in found if one.refused)),
            "refused_tries": self.refused_tries,
            "exclusive": sharings["exclusive"],
            "pod_shared": sharings["pod shared"],
            "shared": sharings["shared"],
            "aligned": {level: sum(1 for one in found if level in one.aligned) for level in LEVELS},
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
        # A further try of a container that runs here already: it keeps its CPUs.
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
    if recorded.sharing != replayed.sharing:
        return f"{replayed.sharing} instead of {recorded.sharing}"
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
    """The decision; `refused` is the recorded reason, empty for none, and None where nothing was recorded."""
    error = decision.refusal
    reason = refused if refused is not None else error.reason if error else ""
    if reason:
        return ReplayVerdict(refused=reason, text=str(error or ""))
    return _held(node, decision.state, key)


def _held(node: Node, state: State, key: str) -> ReplayVerdict:
    held = state.allocations.get(key)
    if held is None:
        return ReplayVerdict()
    is_own = bool(held.cpus) and not held.is_pod_shared
    aligned = asdict(footprint(node.topology, held.cpus, held.mems).aligned) if is_own else {}
    return ReplayVerdict(
        cpus=str(held.cpus),
        mems=str(held.mems),
        aligned=tuple(level for level in LEVELS if aligned.get(level)),
        is_pod_shared=held.is_pod_shared,
    )


NO_VALUE = "-"

MOST_ROWS = 40
"""Rows of differences; with -o json there are all."""

_PAIRS = tuple(combinations(SHARINGS, 2))
WORDS = {
    REFUSED: "refused",
    RESIZE_REFUSED: "no resize",
    **{f"{worse} instead of {better}": worse for worse, better in _PAIRS},
    ADMITTED: "admitted",
    RESIZE_DONE: "resized",
    **{f"{better} instead of {worse}": better for worse, better in _PAIRS},
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
    ("pod_shared", "  pod shared pool"),
    ("shared", "  shared pool"),
    ("peak_exclusive_cpus", "exclusive CPUs at peak"),
    ("refused_tries", "refused tries"),
)


def span(path: str, events: int, first: datetime | None, last: datetime | None) -> str:
    """The recording, the number of its events, and its first and last time."""
    counted = f"{events} event{'' if events == 1 else 's'}"
    if first is None or last is None:
        return f"recording  {path}: {counted}"
    end = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M:%S}"
    return f"recording  {path}: {counted}, {first:%Y-%m-%d %H:%M:%S} to {end}Z"


def verified(found: Sequence[RecordedChange]) -> Iterator[str]:
    """The decisions that differ today."""
    if not found:
        yield "today's program decides the same"
        return
    clock = _clock([one.moment.when for one in found])
    rows = [("WHEN", "EVENT", "WHO", "WHAT", "RECORDED", "TODAY")]
    rows += [
        (
            f"{one.moment.when:{clock}}",
            type(one.moment.event).__name__,
            name_of(one.moment.event) or NO_VALUE,
            one.what,
            one.recorded,
            one.today,
        )
        for one in found[:MOST_ROWS]
    ]
    yield from table(rows)
    yield from _more(len(found))
    where = found[0].moment.place
    yield f"today's program decides differently, first at {where}"
    yield "what comes after the first difference may follow from it"


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
    yield from table(rows)
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
    of_pod = " in pod" if verdict.is_pod_shared else ""
    return (verdict.cpus or "shared pool") + of_pod + mems


def _more(count: int) -> Iterator[str]:
    if count > MOST_ROWS:
        yield f"... and {count - MOST_ROWS} more; all are in -o json"


def _clock(times: Sequence[datetime]) -> str:
    """With the day only where there are several."""
    return "%H:%M:%S" if len({when.date() for when in times}) == 1 else "%m-%d %H:%M"


EXIT_NOTHING = 1
EPILOG = """\b
Examples:
  nri-pin replay /run/nri-pin                          whether this version decides the same
  nri-pin replay ./day.jsonl --config ./other.yaml     what another configuration changes
  nri-pin replay ./day.jsonl --config ./other.yaml --until 14:30 --only default/web-0
  nri-pin replay ./day.jsonl --config ./other.yaml -o json | jq .replayed

FILE is what nri-pin run --record wrote, or a state directory: the agent keeps the latest
events in its folder history. A recording holds its machine, so any computer will do.

Exit code: 0 done; 1 without --config: something is decided otherwise today, or nothing
could be decided again, or with --only: that pod is not in it; 2 wrong usage or configuration,
or no recording.
"""


@click.command(epilog=EPILOG)
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    help="Decide by this configuration instead of the recorded one.",
)
@click.option(
    "--until",
    metavar="TIME",
    help="Stop before this time: 14:30 (of the first day), or 2026-01-31T14:30; UTC.",
)
@click.option("--only", metavar="NAMESPACE/POD", default="", help="Count and list the containers of one pod.")
@format_option()
def command(file: str, config_path: str | None, until: str | None, only: str, output_format: str) -> int:
    """Decide recorded events again: with the recorded configuration, or with another one."""
    if only and only.count("/") != 1:
        raise click.UsageError(f"--only needs NAMESPACE/POD such as default/web-0, found {only}")
    with usage_errors():
        recording = read(file, load_hint_providers())
    course = _Course(recording, until, only)
    width = columns()
    if config_path is None:
        data, lines, code = _verify(course)
    else:
        data, lines, code = _compare(course, config_path, width)
    for problem in recording.problems:
        echo(f"nri-pin: {problem}", err=True)
    if course.events and not course.is_met:
        echo(f"nri-pin: --only {only}: none of these events is of such a pod", err=True)
        code = EXIT_NOTHING
    echo(render(data, output_format) if output_format in FOR_PROGRAMS else "\n".join(lines))
    return code


class _Course:
    """The moments up to an end, counted; says how far it is once it takes longer than a second."""

    def __init__(self, recording: Recording, until: str | None, only: str) -> None:
        self.recording = recording
        self.only = only
        self._until = until
        self.events = 0
        self.is_met = False
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.observing = False

    def moments(self) -> Iterator[Moment]:
        """Those to be replayed."""
        end: datetime | None = None
        for moment in told(self.recording.moments(), "replayed {} events"):
            if self.first is None:
                self.first = moment.when
                end = _end(self._until, moment.when) if self._until else None
            if end is not None and moment.when >= end:
                return
            self.events += 1
            self.is_met = self.is_met or self.counts(moment) or self._is_there(moment)
            self.last = moment.when
            self.observing |= moment.observing
            yield moment

    def counts(self, moment: Moment) -> bool:
        """Whether it is of the pod that was asked for; without one every moment is."""
        return not self.only or f"{name_of(moment.event)}/".startswith(f"{self.only}/")

    def _is_there(self, moment: Moment) -> bool:
        """Whether the pod that was asked for is known by then: it may have come before the recording began."""
        return any(f"{pod.namespace}/{pod.name}" == self.only for pod in moment.state_after.pods.values())

    def why_nothing(self) -> str:
        """Why no event was decided again."""
        if self.first is None:
            return "nothing in it can be decided again"
        return f"nothing in it is before --until: it begins {self.first:%Y-%m-%d %H:%M:%S}Z"

    def lines(self) -> list[str]:
        """The same for people."""
        said = [span(self.recording.path, self.events, self.first, self.last)]
        return [*said, OBSERVED] if self.observing else said

    def data(self) -> dict[str, Any]:
        """The JSON form of what was replayed."""
        return {
            "recording": self.recording.path,
            "events": self.events,
            "from": self.first,
            "to": self.last,
            "observed": self.observing,
            "problems": self.recording.problems,
        }


def _verify(course: _Course) -> tuple[dict[str, Any], list[str], int]:
    found: list[RecordedChange] = []
    former = None
    for moment in course.moments():
        if course.counts(moment):
            found += changes(moment, former)
        former = moment
    data = {
        **course.data(),
        "differences": [
            {
                "when": one.moment.when,
                "place": one.moment.place,
                "event": type(one.moment.event).__name__,
                "who": name_of(one.moment.event),
                "what": one.what,
                "recorded": one.recorded,
                "today": one.today,
            }
            for one in found
        ],
    }
    lines = course.lines()
    lines += verified(found) if course.events else [course.why_nothing()]
    return data, lines, 1 if found or not course.events else 0


def _compare(course: _Course, config_path: str, width: int) -> tuple[dict[str, Any], list[str], int]:
    other = OtherLife(lambda recorded, former: _node(config_path, recorded, former))
    comparison = ReplayComparison(course.only)
    nodes: tuple[Node, Node] | None = None
    for met in other.live(course.moments()):
        nodes = nodes or (met.moment.node, met.node)
        comparison.add(met)
    recorded, replayed = comparison.recorded.as_dict(), comparison.replayed.as_dict()
    found = list(comparison.differences.values())
    chosen = list(node_changes(*nodes)) if nodes else []
    notes = [NOTE_ANEW] if other.restarts else []
    data = {
        **course.data(),
        "configuration": config_path,
        "changed": chosen,
        "begun_anew": other.restarts,
        "differences": found,
        "recorded": recorded,
        "replayed": replayed,
    }
    lines = [
        *course.lines(),
        f"replayed   under {config_path}",
        *(f"           {one}" for one in chosen or ["which decides by the same options"]),
        "",
        *differences(found, width),
        *reasons(found, width),
        "",
        *sums(recorded, replayed),
        *notes,
    ]
    return data, lines, 0


OBSERVED = "observed   the agent only observed: the recorded decisions were not carried out"
NOTE_ANEW = (
    "lines or the checkpoint were lost on the way: from there on both begin with the recorded placements"
)


def _node(config_path: str, recorded: Node, former: Node | None) -> Node:
    """The recorded machine under the other configuration; reserved CPUs stay when the machine changes."""
    if former is not None:
        return replace(former, topology=recorded.topology)
    node = load(config_path, machine=Capacity.of(recorded.topology)).node(recorded.topology)
    node = replace(node, hint_providers=recorded.hint_providers)
    # How running containers are reached is no choice: it is what the node offered.
    floor = node.options.pool_floor and recorded.options.pool_floor
    return replace(node, options=replace(node.options, effect=recorded.options.effect, pool_floor=floor))


def _end(text: str, first: datetime) -> datetime:
    """The moment `--until` names.

    Raises:
        UsageError: it names none.
    """
    try:
        if len(text) <= len("HH:MM:SS") and ":" in text:
            found = datetime.combine(first.date(), datetime.fromisoformat(f"2000-01-01T{text}").time(), UTC)
        else:
            found = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--until needs a time such as 14:30 or 2026-01-31T14:30, found {text}"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
