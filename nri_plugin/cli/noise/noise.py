"""`nri-pin noise`: what disturbs the exclusive CPUs of containers, measured from counters of the kernel."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from nri_plugin.cli.noise.meter import NoiseMeter, NoiseReading, measured, noise_between
from nri_plugin.cli.noise.text import MeasuredContainer, facts, overview, report
from nri_plugin.cli.output import (
    FOR_PROGRAMS,
    UNLIMITED,
    columns,
    cut,
    echo,
    format_option,
    render,
    waiting,
    wants_colour,
)
from nri_plugin.cli.state.rows import StateRow, rows_of
from nri_plugin.cli.state.source import (
    WrongUsageError,
    cgroup_root_here,
    cgroup_root_option,
    state_dir_option,
)
from nri_plugin.cli.top.model import Sample, TopFeed
from nri_plugin.cli.top.screen import CUT, Screen, Text
from nri_plugin.model.errors import HostError

EXAMPLES = """\b
Examples:
  nri-pin noise                            a row for each container
  nri-pin noise shop/web-0/app --for 30s   sources, causes, what would end them
  nri-pin noise web-0/app --live
  nri-pin noise -o json | jq '.containers[] | {container, totals}'

\b
DEVICE     interrupts of devices
TICKS      of the timer
IPIS       interrupts from other CPUs
STRANGER   run time of anything but the container, exact to a tick of 10 ms
WAITS      of its threads while others ran
SWITCHES   of its threads that were preempted
?          cannot be seen; the lines below the table say why
"""

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
LEAST_S, MOST_S = 0.1, 24 * 3600.0


class Duration(click.ParamType[float]):
    """A time such as `10s`, `500ms` or `2m`; a bare number is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)", str(value))
        seconds = float(found[1]) * UNITS_S[found[2]] if found else -1.0
        if not LEAST_S <= seconds <= MOST_S:
            self.fail(f"expected a time between 0.1s and 24h, such as 10s or 2m, found {value}", param, ctx)
        return seconds


@click.command(name="noise", epilog=EXAMPLES)
@click.argument("container", metavar="[CONTAINER]", default="")
@click.option(
    "--for",
    "seconds",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="The length of the interval: 10s, 500ms, 2m. Run time of strangers is exact to a tick, so measure for 10 s "
    "or more.",
)
@click.option("--live", is_flag=True, help="Measure interval after interval; q quits.")
@state_dir_option
@click.option(
    "--root",
    metavar="DIR",
    help="The directory that holds the node's proc.  [default: each file from /host if it is there, else from /]",
)
@cgroup_root_option
@format_option("text", "wide", "json")
def command(
    container: str,
    seconds: float,
    *,
    live: bool,
    state_dir: str,
    root: str | None,
    cgroup_root: str | None,
    output_format: str,
) -> None:
    """Show what disturbs the exclusive CPUs of containers: interrupts, timers, strangers, waits, throttling, memory.

    CONTAINER is the path namespace/pod/container, the end of it, or an id; without it each container with exclusive
    CPUs has a row. Two readings of the kernel's counters are compared; nothing is changed, and nothing runs on
    these CPUs. The agent tells which containers there are; its checkpoint while it does not answer.

    Exit code: 0; 1 when no container has such a name or exclusive CPUs; 2 when the options are wrong, or
    there is neither agent nor checkpoint.
    """
    feed = TopFeed(state_dir)
    meter = NoiseMeter(root, cgroup_root or cgroup_root_here())
    try:
        _measure(feed, meter, container, seconds, output_format, live=live)
    except HostError as error:
        raise WrongUsageError(str(error)) from error
    finally:
        feed.close()


def _measure(
    feed: TopFeed, meter: NoiseMeter, word: str, seconds: float, output_format: str, *, live: bool
) -> None:
    if live and output_format not in FOR_PROGRAMS:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise WrongUsageError(
                "there is no terminal to draw on; leave --live out, or -o json writes a line each time"
            )
        _watch(feed, meter, word, seconds, output_format)
        return
    sample = feed.first()
    while True:
        rows = measured(rows_of(sample.seen), word, sample.seen)
        before = meter.read(rows)
        with waiting("measuring"):
            time.sleep(seconds)
        found = _noises(rows, before, meter.read(rows))
        if output_format in FOR_PROGRAMS:
            echo(render(_facts(sample, found, meter), output_format, is_one_of_many=live))
        else:
            echo("\n".join(_text(found, meter, word, output_format, columns())))
        if not live:
            return
        sys.stdout.flush()
        sample = feed.next() or sample


def _noises(rows: Sequence[StateRow], before: NoiseReading, after: NoiseReading) -> list[MeasuredContainer]:
    return [MeasuredContainer(row, noise_between(row, before, after)) for row in rows]


def _text(
    found: Sequence[MeasuredContainer], meter: NoiseMeter, word: str, output_format: str, width: int
) -> list[str]:
    limit = UNLIMITED if output_format == "wide" else width
    if not found:
        return ["no container runs on exclusive CPUs"]
    if word:
        return report(found[0], meter.interrupts(), limit)
    if output_format == "wide":
        interrupts = meter.interrupts()
        return [line for one in found for line in (*report(one, interrupts, limit), "")][:-1]
    return overview(found, limit)


def _facts(sample: Sample, found: Sequence[MeasuredContainer], meter: NoiseMeter) -> Mapping[str, Any]:
    interrupts = meter.interrupts()
    return {
        "source": sample.source,
        "agent": sample.is_connected,
        "containers": [facts(one, interrupts) for one in found],
    }


KEYS = "q quit  up/down scroll"


def _watch(feed: TopFeed, meter: NoiseMeter, word: str, seconds: float, output_format: str) -> None:
    """Draw the noise of each interval until the reader quits."""
    sample, lines, first = feed.first(), ["measuring"], 0
    with Screen(colour=wants_colour()) as screen:
        while True:
            rows = measured(rows_of(sample.seen), word, sample.seen)
            before, due = meter.read(rows), time.monotonic() + seconds
            while (left := due - time.monotonic()) > 0:
                width, height = screen.size
                first = max(0, min(first, len(lines) - (height - 1)))
                screen.draw(_picture(lines[first:], width, height))
                keys = screen.wait(left, ())
                if {"q", "gone"} & set(keys):
                    return
                first += sum(_step(key, height) for key in keys)
            lines = _text(_noises(rows, before, meter.read(rows)), meter, word, output_format, screen.size[0])
            sample = feed.next() or sample


def _picture(lines: Sequence[str], width: int, height: int) -> list[Text]:
    room = max(height - 1, 0)
    shown = [Text(cut(line, width, CUT)) for line in lines[:room]]
    return [*shown, *[Text("")] * (room - len(shown)), Text(cut(KEYS, width, CUT), "dim")]


def _step(key: str, height: int) -> int:
    """Lines that a key scrolls by."""
    far = 10**9
    steps = {"up": -1, "down": 1, "page up": -height // 2, "page down": height // 2, "home": -far, "end": far}
    return steps.get(key, 0)
