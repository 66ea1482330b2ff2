"""`nri-pin state history`: what was decided for whom, from the agent's bounded recording, and the files it kept."""

import fnmatch
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import chain

import click

from nri_plugin.cli.cell_table import folded
from nri_plugin.cli.output import columns, echo, format_option
from nri_plugin.cli.progress import told
from nri_plugin.cli.state_happened import KINDS, Happened, happened
from nri_plugin.cli.state_kept import checkpoints, kept_lines
from nri_plugin.cli.state_source import FailedError, WrongUsageError, state_dir_option
from nri_plugin.errors import HostError
from nri_plugin.host.recording import Recording, read
from nri_plugin.host.recording_lines import DIRECTORY
from nri_plugin.visible import visible_line

NARROW = 80
INDENT = 36
LOOK_S = 0.5
"""Between two looks for more."""
RESTS = 4
"""Times as long as a look took: a full history is decided again at each, on a node that has better to do."""
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

EXAMPLES = """\b
Examples:
  nri-pin state history
  nri-pin state history --since 10m -n 0
  nri-pin state history --container 'shop/db-*/*'
  nri-pin state history --what refused --what drift
  nri-pin state history --follow
  nri-pin state history --recording ./yesterday.jsonl -o json
"""


@click.command(name="history", epilog=EXAMPLES)
@click.option(
    "-c",
    "--container",
    "pattern",
    metavar="NAME",
    default="",
    help="Only this container: its name, or namespace/pod/container; may hold * and ?.",
)
@click.option(
    "--what",
    "kinds",
    metavar="KIND",
    type=click.Choice(KINDS),
    multiple=True,
    help=f"Only what is called so; may be given again: {', '.join(KINDS)}.",
)
@click.option(
    "--since",
    metavar="TIME",
    default="",
    help="Only what is younger: 90s, 10m, 2h, 1d, or a time such as 2026-01-31T12:00, in UTC like all times here.",
)
@click.option(
    "-n",
    "--last",
    "count",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Only the last; 0 for all.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on telling what happens; ends with Ctrl-C.")
@click.option(
    "--recording",
    metavar="FILE",
    help="A recording of nri-pin run --record, instead of the state directory's.",
)
@state_dir_option
@format_option()
def command(
    pattern: str,
    kinds: tuple[str, ...],
    since: str,
    count: int,
    *,
    follow: bool,
    recording: str | None,
    state_dir: str,
    output_format: str,
) -> None:
    """Tell what was decided for whom: placements, refusals with their reasons, resizes, drift, restarts.

    Below stand the checkpoints of the state directory: the present one, the generation before, and damaged ones that
    were kept. -o json writes one line for each entry and each checkpoint.

    Exit code: 0; 1 when there is neither a recording nor a checkpoint, or it cannot be read; 2 when the options are wrong.
    """
    after = _time(since) if since else None
    if not os.path.exists(recording or state_dir):
        raise WrongUsageError(
            f"{recording or state_dir}: is not there; name the agent's --state-dir, or --recording FILE"
        )
    kept = [] if recording or pattern or kinds or follow else checkpoints(state_dir)
    problems: list[str] = []
    path = recording or os.path.join(state_dir, DIRECTORY)
    size = _size(path)  # before it is read, so that nothing is missed that comes meanwhile
    found = _found(path, problems)
    chosen = [one for one in found if _is_wanted(one, pattern, kinds, after)]
    if problems and not kept and not chosen:
        raise FailedError(problems[0])
    shown = chosen[-count:] if count else chosen
    show = _json_lines if output_format == "json" else _text_lines
    if len(shown) < len(chosen) and output_format == "text":
        echo(f"{len(chosen) - len(shown)} earlier ones; -n 0 shows all")
    for line in chain(show(shown), kept_lines(kept, output_format)):
        echo(visible_line(line))
    for text in problems:
        echo(f"nri-pin: {text}", err=True)
    if found and not chosen and not follow and output_format == "text":
        echo(f"nri-pin: none of the {len(found)} entries is such a one; ask for less", err=True)
    if follow:
        _follow(path, size, found, (pattern, kinds, after), output_format)


def _found(path: str, problems: list[str]) -> list[Happened]:
    """All that happened; what cannot be read is told in `problems`."""
    from nri_plugin.app.outside_providers import load_hint_providers

    try:
        recording: Recording = read(path, load_hint_providers())
        found = list(told(happened(recording), "read {} entries of the history"))
        problems += recording.problems
    except HostError as error:
        problems.append(str(error))
        return []
    return found


def _is_wanted(one: Happened, pattern: str, kinds: Sequence[str], after: datetime | None) -> bool:
    name = one.name if "/" in pattern else one.name.rpartition("/")[2]
    return (
        (not pattern or (bool(one.name) and fnmatch.fnmatchcase(name, pattern)))
        and (not kinds or one.what in kinds)
        and (after is None or one.at >= after)
    )


def _time(text: str) -> datetime:
    """A moment, from an age or a time, which is UTC where it names no zone.

    Raises:
        UsageError: it is neither.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    try:
        if match:
            return datetime.now(UTC) - timedelta(**{UNITS[match[2]]: float(match[1])})
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (OverflowError, ValueError):
        raise click.UsageError(
            f"--since takes an age such as 90s, 10m, 2h or 1d, or a time such as 2026-01-31T12:00, not {text!r}"
        ) from None


def _text_lines(found: Iterable[Happened]) -> Iterator[str]:
    width = columns() or NARROW
    for one in found:
        when = one.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        words = f"{one.name}: {one.text}" if one.name else one.text
        yield from folded(f"{when}  {one.what:<12}  {words}", width, INDENT)


def _json_lines(found: Iterable[Happened]) -> Iterator[str]:
    for one in found:
        yield json.dumps(asdict(one) | {"at": one.at.astimezone(UTC).isoformat()})


Size = tuple[tuple[str, int, int], ...]


def _follow(
    path: str,
    size: Size,
    known: Sequence[Happened],
    wanted: tuple[str, Sequence[str], datetime | None],
    output_format: str,
) -> None:
    """Tell what is new whenever the recording grew."""
    sys.stdout.flush()
    known_ones, pause_s = set(known), LOOK_S
    while True:
        time.sleep(pause_s)
        if _size(path) == size:
            continue
        size, began = _size(path), time.monotonic()
        found = [one for one in _found(path, []) if one not in known_ones]
        known_ones.update(found)
        pause_s = max(LOOK_S, (time.monotonic() - began) * RESTS)
        shown = [one for one in found if _is_wanted(one, *wanted)]
        for line in (_json_lines if output_format == "json" else _text_lines)(shown):
            echo(visible_line(line))
        sys.stdout.flush()


def _size(path: str) -> Size:
    """What is another value whenever there is more to read."""
    paths = [path] if os.path.isfile(path) else [os.path.join(path, name) for name in _names(path)]
    found = []
    for one in paths:
        try:
            status = os.stat(one)
        except OSError:
            continue
        found.append((one, status.st_ino, status.st_size))
    return tuple(found)


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []
