"""`nri-pin replay`: yesterday's events, decided again, by today's program or under another configuration."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from nri_plugin.cli.output import echo, format_option, told

if TYPE_CHECKING:
    from nri_plugin.config.loading import Config
    from nri_plugin.model.options import Node
    from nri_plugin.recording.reader import Moment, RecordedChange, Recording


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
    from nri_plugin.cli.state.source import WrongUsageError
    from nri_plugin.config.loading import load_hint_providers
    from nri_plugin.model.errors import HostError
    from nri_plugin.recording.reader import read

    if only and only.count("/") != 1:
        raise click.UsageError(f"--only needs NAMESPACE/POD such as default/web-0, found {only}")
    try:
        recording = read(file, load_hint_providers())
    except HostError as error:
        raise WrongUsageError(str(error)) from error
    course = _Course(recording, until, only)
    width = shutil.get_terminal_size().columns
    if config_path is None:
        answer, code = _verify(course, width)
    else:
        answer, code = _compare(course, config_path, width), 0
    for problem in recording.problems:
        echo(f"nri-pin: {problem}", err=True)
    if course.events and not course.is_met:
        echo(f"nri-pin: --only {only}: none of these events is of such a pod", err=True)
        code = EXIT_NOTHING
    echo(json.dumps(answer.data, indent=1) if output_format == "json" else "\n".join(answer.lines))
    return code


@dataclass(frozen=True, slots=True)
class _ReplayAnswer:
    data: dict[str, Any]
    lines: list[str]


class _Course:
    """The moments up to an end, counted; says how far it is once it takes longer than a second."""

    def __init__(self, recording: "Recording", until: str | None, only: str) -> None:
        self.recording = recording
        self.only = only
        self._until = until
        self.events = 0
        self.is_met = False
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.observing = False

    def moments(self) -> Iterator["Moment"]:
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

    def counts(self, moment: "Moment") -> bool:
        """Whether it is of the pod that was asked for; without one every moment is."""
        from nri_plugin.cli.replay.tally import name_of

        return not self.only or f"{name_of(moment.event)}/".startswith(f"{self.only}/")

    def _is_there(self, moment: "Moment") -> bool:
        """Whether the pod that was asked for is known by then: it may have come before the recording began."""
        return any(f"{pod.namespace}/{pod.name}" == self.only for pod in moment.state_after.pods.values())

    def why_nothing(self) -> str:
        """Why no event was decided again."""
        if self.first is None:
            return "nothing in it can be decided again"
        return f"nothing in it is before --until: it begins {self.first:%Y-%m-%d %H:%M:%S} UTC"

    def lines(self) -> list[str]:
        """The same for people."""
        from nri_plugin.cli.replay import tally as text

        said = [text.span(self.recording.path, self.events, self.first, self.last)]
        return [*said, OBSERVED] if self.observing else said

    def data(self) -> dict[str, Any]:
        """The JSON form of what was replayed."""
        return {
            "recording": self.recording.path,
            "events": self.events,
            "from": self.first.isoformat() if self.first else None,
            "to": self.last.isoformat() if self.last else None,
            "observed": self.observing,
            "problems": self.recording.problems,
        }


def _verify(course: _Course, width: int) -> tuple[_ReplayAnswer, int]:
    from nri_plugin.cli.replay import tally as text
    from nri_plugin.cli.replay.tally import name_of
    from nri_plugin.recording.reader import changes

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
                "when": one.moment.when.isoformat(),
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
    lines += text.verified(found, width) if course.events else [course.why_nothing()]
    return _ReplayAnswer(data, lines), 1 if found or not course.events else 0


def _compare(course: _Course, config_path: str, width: int) -> _ReplayAnswer:
    from nri_plugin.cli.replay import tally as text
    from nri_plugin.cli.replay.other_life import OtherLife
    from nri_plugin.cli.replay.tally import ReplayComparison
    from nri_plugin.config.loading import load

    config = load(config_path)
    other = OtherLife(lambda recorded, former: _node(config, recorded, former))
    comparison = ReplayComparison(course.only)
    nodes: tuple[Node, Node] | None = None
    for met in other.live(course.moments()):
        nodes = nodes or (met.moment.node, met.node)
        comparison.add(met)
    recorded, replayed = comparison.recorded.as_dict(), comparison.replayed.as_dict()
    found = list(comparison.differences.values())
    chosen = list(text.options_of(*nodes)) if nodes else []
    notes = [NOTE_ANEW] if other.restarts else []
    data = {
        **course.data(),
        "configuration": config_path,
        "changed": chosen,
        "begun_anew": other.restarts,
        "differences": [one.as_dict() for one in found],
        "recorded": recorded,
        "replayed": replayed,
    }
    lines = [
        *course.lines(),
        f"replayed   under {config_path}",
        *(f"           {one}" for one in chosen or ["which decides by the same options"]),
        "",
        *text.differences(found, width),
        *text.reasons(found, width),
        "",
        *text.sums(recorded, replayed),
        *notes,
    ]
    return _ReplayAnswer(data, lines)


OBSERVED = "observed   the agent only observed: what is recorded was decided and not carried out"
NOTE_ANEW = (
    "lines or the checkpoint were lost on the way: from there on both begin with the recorded placements"
)


def _node(config: "Config", recorded: "Node", former: "Node | None") -> "Node":
    """The recorded machine under the other configuration; what is reserved stays when the machine changes."""
    if former is not None:
        return replace(former, topology=recorded.topology)
    node = config.node(recorded.topology)
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
