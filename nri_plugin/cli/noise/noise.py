"""`nri-pin noise`: what disturbs the exclusive CPUs of containers, measured from counters of the kernel."""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import click

from nri_plugin.cli.doctor.view import is_in_pod
from nri_plugin.cli.noise import probe as probing
from nri_plugin.cli.noise.meter import NoiseMeter, NoiseReading, measured, noise_between
from nri_plugin.cli.noise.text import MeasuredContainer, facts, overview, report
from nri_plugin.cli.output import NARROW, columns, cut, echo, format_option, waiting, wants_colour
from nri_plugin.cli.state.rows import StateRow, rows_of
from nri_plugin.cli.state.source import (
    FailedError,
    WrongUsageError,
    cgroup_root_here,
    cgroup_root_option,
    state_dir_option,
)
from nri_plugin.cli.top.model import Sample, TopFeed
from nri_plugin.cli.top.screen import CUT, Screen, Text
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import CPUSet

EXAMPLES = """\b
Examples:
  nri-pin noise                            a row for each container
  nri-pin noise shop/web-0/app --for 30s   sources, causes, what would end them
  nri-pin noise web-0/app --live
  nri-pin noise -o json | jq '.containers[] | {container, totals}'
  nri-pin noise --probe-manifest --cpus 2 > probe.yaml
  kubectl logs nri-pin-probe | nri-pin noise --probe-result -

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
@click.option(
    "--probe", is_flag=True, help="In a pod: measure gaps on its own CPUs by a busy reader of the clock."
)
@click.option("--probe-manifest", is_flag=True, help="Print the manifest of a pod that does that.")
@click.option("--probe-result", metavar="FILE", help="Show the log of such a pod; - is standard input.")
@click.option(
    "--cpus",
    "cpu_count",
    type=click.IntRange(1, 4096),
    metavar="COUNT",
    help="With --probe: refuse unless the container has just so many CPUs; with --probe-manifest: request so many.  "
    "[default: 1]",
)
@click.option(
    "--threshold-us",
    type=click.IntRange(1, 1_000_000),
    default=5,
    show_default=True,
    metavar="COUNT",
    help="Microseconds; shorter gaps between two reads of the clock are not counted.",
)
@click.option(
    "--image",
    default=probing.DEFAULT_IMAGE,
    show_default=True,
    metavar="IMAGE",
    help="The agent's image in your registry, for --probe-manifest.",
)
@format_option("text", "wide", "json")
def command(
    container: str,
    seconds: float,
    *,
    live: bool,
    state_dir: str,
    root: str | None,
    cgroup_root: str | None,
    probe: bool,
    probe_manifest: bool,
    probe_result: str | None,
    cpu_count: int | None,
    threshold_us: int,
    image: str,
    output_format: str,
) -> None:
    """Show what disturbs the exclusive CPUs of containers: interrupts, timers, strangers, waits, throttling, memory.

    CONTAINER is the path namespace/pod/container, the end of it, or an id; without it each container with exclusive
    CPUs has a row. Two readings of the kernel's counters are compared; nothing is changed, and only --probe runs
    anything on these CPUs. The agent tells which containers there are; its checkpoint while it does not answer.

    Exit code: 0; 1 when no container has such a name or exclusive CPUs; 2 when the options are wrong, there is
    neither agent nor checkpoint, or --probe may not run here.
    """
    if sum((live, probe, probe_manifest, probe_result is not None)) > 1:
        raise WrongUsageError(
            "--live, --probe, --probe-manifest and --probe-result exclude each other; give one"
        )
    if (probe or probe_manifest or probe_result is not None) and container:
        raise WrongUsageError(f"{container}: a probe measures the CPUs of its own pod; leave the name out")
    if probe_manifest:
        echo(probing.manifest(image, cpu_count or 1, seconds, threshold_us).rstrip())
    elif probe:
        _probe(seconds, threshold_us, cpu_count, output_format)
    elif probe_result is not None:
        _show_result(probe_result, state_dir, output_format)
    else:
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
    if live and output_format != "json":
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
        if output_format == "json":
            echo(json.dumps(_facts(sample, found, meter), indent=None if live else 2))
        else:
            echo("\n".join(_text(found, meter, word, output_format, columns() or NARROW)))
        if not live:
            return
        sys.stdout.flush()
        sample = feed.next() or sample


def _noises(rows: Sequence[StateRow], before: NoiseReading, after: NoiseReading) -> list[MeasuredContainer]:
    return [MeasuredContainer(row, noise_between(row, before, after)) for row in rows]


def _text(
    found: Sequence[MeasuredContainer], meter: NoiseMeter, word: str, output_format: str, width: int
) -> list[str]:
    limit = None if output_format == "wide" else width
    if not found:
        return ["no container runs on exclusive CPUs"]
    if word:
        return report(found[0], meter.interrupts(), limit)
    if output_format == "wide":
        interrupts = meter.interrupts()
        return [line for one in found for line in (*report(one, interrupts, None), "")][:-1]
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


def _probe(seconds: float, threshold_us: int, cpu_count: int | None, output_format: str) -> None:
    cpus = probing.checked_cpus(cpu_count, in_pod=is_in_pod())
    with waiting("measuring"):
        found = probing.probe(cpus, seconds, threshold_us)
    if output_format == "json":
        echo(json.dumps(probing.result_facts(found, threshold_us)))
    else:
        echo("\n".join(probing.histogram(found, threshold_us)))


LONGEST_RESULT = 16 << 20
"""Characters; a probe prints some kilobytes for each CPU."""


def _show_result(path: str, state_dir: str, output_format: str) -> None:
    """Show the result of a probe, and whose CPUs it measured, as far as a state of this node tells."""
    try:
        with (
            nullcontext(sys.stdin) if path == "-" else open(path, encoding="utf-8", errors="replace") as file
        ):
            text = file.read(LONGEST_RESULT)
    except OSError as error:
        raise WrongUsageError(f"{path}: cannot be read: {error.strerror}; name the log of the pod") from None
    found, threshold_us = probing.read_result(text, "standard input" if path == "-" else path)
    owner = _owner(found, state_dir)
    if output_format == "json":
        echo(json.dumps(probing.result_facts(found, threshold_us) | {"exclusive_of": owner}))
        return
    echo("\n".join(probing.histogram(found, threshold_us)))
    if owner is not None:
        cpus = CPUSet.from_ids(found)
        echo(f"CPUs {cpus} are exclusive CPUs of {owner}" if owner else NOT_OWN.format(cpus=cpus))


NOT_OWN = (
    "CPUs {cpus} are exclusive CPUs of no container of this node now: the pod is gone, or ran on another node"
)


def _owner(cpus: Mapping[int, probing.Gaps], state_dir: str) -> str | None:
    """The container that owns just these CPUs; empty for none, None where no state is here."""
    feed = TopFeed(state_dir)
    try:
        rows = rows_of(feed.first().seen)
    except (HostError, FailedError):
        return None
    finally:
        feed.close()
    return probing.exclusive_owner(
        cpus, [(row.name, row.allocation.in_force) for row in rows if row.is_exclusive]
    )
