"""`nri-pin state history`: the decisions for each container, and the checkpoints that are kept.

Decisions come from the agent's bounded recording: each event is decided again, and the change of the state becomes one or
more entries. Below them stand the present checkpoint, the generation before it and damaged ones.
"""

import fnmatch
import glob
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import click

from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint
from nri_plugin.cli.output import (
    FOR_PROGRAMS,
    columns,
    echo,
    fold_words,
    format_option,
    plain,
    render,
    table,
    told,
)
from nri_plugin.cli.state.changes import StateChange, changes, node_changes
from nri_plugin.cli.state.source import FailedError, WrongUsageError, state_dir_option
from nri_plugin.core.decision import InformedCreate, UnsavedStart
from nri_plugin.core.drift import CpusetsObserved
from nri_plugin.model.bounds import visible_line
from nri_plugin.model.errors import CheckpointError, HostError
from nri_plugin.model.options import Node
from nri_plugin.model.records import is_whole_pod, owner_of
from nri_plugin.model.state import State
from nri_plugin.recording.file import DIRECTORY
from nri_plugin.recording.reader import RecordedEntry, Recording, read
from nri_plugin.wire.nri import events as nri

CHECKSUM = re.compile(rb'"checksum":"crc32:([0-9a-f]{8})"\}\n\Z')


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint that is there.

    Attributes:
        file: its name.
        written: when, UTC.
        size: bytes.
        generation: None when it cannot be read.
        checksum: as it stands in the file; None when there is none.
        verdict: `sound`, or the error.
    """

    file: str
    written: str
    size: int
    generation: int | None
    checksum: str | None
    verdict: str


def checkpoints(state_dir: str) -> list[Kept]:
    """The checkpoint, the generation before it and damaged ones, the newest first."""
    try:
        names = [name for name in os.listdir(state_dir) if _is_checkpoint(name)]
    except OSError as error:
        raise FailedError(f"{state_dir}: cannot be read: {error.strerror}; run as root") from None
    paths = (os.path.join(state_dir, name) for name in names)
    return sorted(
        (_kept(path) for path in paths if os.path.isfile(path)), key=lambda one: one.written, reverse=True
    )


def _is_checkpoint(name: str) -> bool:
    return name in {FILE_NAME, f"{FILE_NAME}.previous"} or name.startswith(f"{FILE_NAME}.damaged-")


def _kept(path: str) -> Kept:
    status = os.stat(path)
    written = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
    generation, verdict = None, "sound"
    try:
        checkpoint = read_checkpoint(path)
        generation = checkpoint.generation if checkpoint else None
    except CheckpointError as error:
        verdict = error.detail
    return Kept(os.path.basename(path), written, status.st_size, generation, _checksum(path), verdict)


def _checksum(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
            match = CHECKSUM.search(file.read())
    except OSError:
        return None
    return match[1].decode() if match else None


def kept_lines(kept: Sequence[Kept], output_format: str) -> list[str]:
    """The lines about them."""
    if output_format in FOR_PROGRAMS:
        return list(_for_programs(({"what": "checkpoint"} | plain(one) for one in kept), output_format))
    if not kept:
        return []
    head = ("CHECKPOINT", "WRITTEN", "GENERATION", "BYTES", "CHECKSUM")
    rows = [
        (
            one.file,
            datetime.fromisoformat(one.written).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            "?" if one.generation is None else str(one.generation),
            str(one.size),
            one.checksum or "-",
        )
        for one in kept
    ]
    lines = ["", *table([head, *rows])]
    width = columns()
    for one in kept:
        if one.verdict != "sound":
            lines += fold_words(f"{one.file}: {one.verdict}", width, "  ")
    return lines


KINDS = (
    "placed",
    "shared",
    "unplaced",
    "refused",
    "failed",
    "resizing",
    "resized",
    "moved",
    "released",
    "drift",
    "machine",
    "synchronized",
    "started",
    "gap",
)
BEGINS = ("start", "gap")
"""Why a recording has the whole state: the agent started, or events before it were not recorded."""

WORDS = {"lost": "released", "grew": "resized", "shrank": "resized", "moved": "moved", "gained": "placed"}


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of the history.

    Attributes:
        at: when, UTC.
        what: one of `KINDS`.
        name: `namespace/pod/container`; empty where it concerns all.
        text: what was decided, in words.
        op: as in the agent's log; empty where nothing was decided.
        cpus: that it has from then on.
        took_us: until the answer was ready.
    """

    at: datetime
    what: str
    name: str
    text: str
    op: str = ""
    cpus: str = ""
    took_us: int = 0


def happened(recording: Recording) -> Iterator[Happened]:
    """All entries, in order.

    Raises:
        HostError: a file can no longer be read.
    """
    node: Node | None = None
    for entry, moment in recording.lived():
        if entry.state is not None:
            if entry.why in BEGINS:
                yield _began(entry, entry.state)
        elif entry.node is not None and node is not None:
            yield Happened(entry.at, "machine", "", f"another one: {_difference(node, entry.node)}")
        node = entry.node or node
        if moment is not None:
            yield from _decided(entry, moment.state_before, moment.state_after)


def _began(entry: RecordedEntry, state: State) -> Happened:
    if entry.why == "gap":
        return Happened(entry.at, "gap", "", "events before this were not recorded")
    counts = f"{len(state.allocations)} allocations and {len(state.containers)} containers"
    observing = ", only observing" if entry.observing else ""
    return Happened(entry.at, "started", "", f"the agent, with {counts}{observing}")


def _difference(before: Node, after: Node) -> str:
    """The differences between two nodes in one line."""
    found = list(node_changes(before, after))
    if before.topology.online != after.topology.online:
        found.insert(0, f"online CPUs {before.topology.online} -> {after.topology.online}")
    return "; ".join(found) or "its memory or devices"


def _decided(entry: RecordedEntry, before: State, after: State) -> Iterator[Happened]:
    known = entry.event
    event = known.event if isinstance(known, InformedCreate | UnsavedStart) else known
    if isinstance(event, CpusetsObserved):
        yield from _drifted(entry, event, before)
    elif entry.outcome is not None and (entry.outcome.refusal or entry.outcome.failed):
        what = "failed" if entry.outcome.failed else "refused"
        yield _line(entry, what, _event_name(event), entry.outcome.refusal or "see the agent's log")
    elif isinstance(event, nri.CreateContainer):
        yield _created(entry, event, after)
        yield from _others(entry, before, after, but=_event_name(event))
    else:
        if isinstance(event, nri.Synchronize):
            counts = f"{len(event.pods)} pods and {len(event.containers)} containers in the runtime"
            yield _line(entry, "synchronized", "", counts)
        yield from _others(entry, before, after)


def _created(entry: RecordedEntry, event: nri.CreateContainer, after: State) -> Happened:
    name, outcome = _event_name(event), entry.outcome
    record = after.containers.get(event.container.id)
    held = after.allocation_of(record) if record else None
    given = outcome.cpus if outcome else ""
    mems = f", memory nodes {held.mems}" if held and held.mems else ""
    if record is not None and record.unplaced:
        return _line(entry, "unplaced", name, record.unplaced, given)
    if held is not None and held.cpus:
        shared = ", pod shared pool" if held.is_pod_shared else ""
        return _line(entry, "placed", name, f"CPUs {held.cpus}{shared}{mems}", str(held.cpus))
    return _line(entry, "shared", name, f"shared pool{f', CPUs {given}' if given else ''}{mems}", given)


def _others(entry: RecordedEntry, before: State, after: State, but: str = "") -> Iterator[Happened]:
    """Entries for containers whose CPUs changed, and for resizes that began or ended."""
    if before is after:
        return
    for change in changes(before, after):
        if change.name == but:
            continue
        resize = next((field for field in change.others if field.name == "resize"), None)
        if resize is not None and resize.before == "-":
            yield _line(entry, "resizing", change.name, _words(change), str(change.after))
        elif change.before != change.after:
            text = _words(change) + _which(change, after)
            yield _line(entry, WORDS[change.what], change.name, text, str(change.after))
        elif resize is not None:
            yield _line(entry, "resized", change.name, f"CPUs {change.after or '-'}", str(change.after))


def _which(change: StateChange, after: State) -> str:
    """Whose the CPUs are, where they are not those of a container that exists."""
    if change.key not in after.allocations:
        return ""
    if is_whole_pod(change.key):
        return ", of the pod as a whole"
    shared = ", pod shared pool" if after.allocations[change.key].is_pod_shared else ""
    uid, name = owner_of(change.key)
    is_created = any(one.name == name for one in after.containers_of(uid))
    return shared + ("" if is_created else ", allocated, not created")


def _words(change: StateChange) -> str:
    if not change.before or not change.after:
        return f"CPUs {change.before or change.after or '-'}"
    return (
        f"CPUs {change.before} -> {change.after}" if change.before != change.after else f"CPUs {change.after}"
    )


def _drifted(entry: RecordedEntry, event: CpusetsObserved, state: State) -> Iterator[Happened]:
    steps = entry.outcome.steps if entry.outcome else ()
    causes = dict.fromkeys(step.removeprefix("drift-") for step in steps if step.startswith("drift-"))
    cause = ", ".join(causes)
    if not cause:
        return
    for one in event.observed:
        record = state.containers.get(one.target.container_id)
        pod = state.pods.get(record.pod_uid) if record else None
        where = one.target.cgroup.path or one.target.cgroup.parent
        name = f"{pod.namespace}/{pod.name}/{record.name}" if pod and record else where
        found = "no cpuset files" if one.cpus is None else f"CPUs {one.cpus or 'none'}"
        is_elsewhere = one.effective is not None and one.effective != one.cpus
        ran_on = f", ran on {one.effective}" if is_elsewhere else ""
        yield _line(entry, "drift", name, f"found {found}{ran_on} ({cause}), put right")


def _event_name(event: Any) -> str:
    pod, container = getattr(event, "pod", None), getattr(event, "container", None)
    parts = [pod.namespace, pod.name] if pod else []
    return "/".join([*parts, *([container.name] if container else [])])


def _line(entry: RecordedEntry, what: str, name: str, text: str, cpus: str = "") -> Happened:
    return Happened(entry.at, what, name, text, entry.op, cpus, entry.outcome.took_us if entry.outcome else 0)


INDENT = 36
LOOK_S = 0.5
"""Between two looks for more."""
RESTS = 4
"""The pause is so many times as long as the last look, because a look decides the whole history again on a busy node."""
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
    help=f"Only entries of this kind; may be given more than once: {', '.join(KINDS)}.",
)
@click.option(
    "--since",
    metavar="TIME",
    default="",
    help="Only entries after this time: 90s, 10m, 2h, 1d ago, or a time in UTC such as 2026-01-31T12:00.",
)
@click.option(
    "-n",
    "--last",
    "count",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Only the last N entries; 0 for all.",
)
@click.option("-f", "--follow", is_flag=True, help="Follow new entries until Ctrl-C.")
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
    """List decisions: placements, refusals with their reasons, resizes, drift, restarts.

    Below stand the checkpoints of the state directory: the present one, the generation before, and damaged ones that
    were kept. -o json writes one line for each entry and each checkpoint.

    Exit code: 0; 1 when the recording cannot be read and no checkpoint is there; 2 when the options are wrong, or the
    directory or the recording is not there.
    """
    after = _time(since) if since else None
    if not os.path.exists(recording or state_dir):
        raise WrongUsageError(
            f"{recording or state_dir}: is not there; name the agent's --state-dir, or --recording FILE"
        )
    kept = [] if recording or pattern or kinds or follow else checkpoints(state_dir)
    problems: list[str] = []
    path = recording or os.path.join(state_dir, DIRECTORY)
    size = _size(path)  # before the read, so that no line of meanwhile is missed
    found = _found(path, problems)
    chosen = [one for one in found if _is_wanted(one, pattern, kinds, after)]
    if problems and not kept and not chosen:
        raise FailedError(problems[0])
    shown = chosen[-count:] if count else chosen
    if len(shown) < len(chosen) and output_format == "text":
        echo(f"{len(chosen) - len(shown)} earlier ones; -n 0 shows all")
    for line in chain(_lines(shown, output_format), kept_lines(kept, output_format)):
        echo(visible_line(line))
    for text in problems:
        echo(f"nri-pin: {text}", err=True)
    if found and not chosen and not follow and output_format == "text":
        echo(f"nri-pin: none of the {len(found)} entries matches; leave an option out", err=True)
    if follow:
        _follow(path, size, found, (pattern, kinds, after), output_format)


def _found(path: str, problems: list[str]) -> list[Happened]:
    """All entries; read errors are added to `problems`."""
    from nri_plugin.config.loading import load_hint_providers

    try:
        recording: Recording = read(path, load_hint_providers())
        found = list(told(happened(recording), "read {} entries of the history"))
        problems += recording.problems
    except HostError as error:
        problems.append(str(error))
        return []
    return found


def _is_wanted(one: Happened, pattern: str, kinds: Sequence[str], after: datetime | None) -> bool:
    pod, _, container = one.name.rpartition("/")
    names = (one.name, pod) if "/" in pattern else (container,)
    return (
        (not pattern or (bool(one.name) and any(fnmatch.fnmatchcase(name, pattern) for name in names)))
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


def _lines(found: Iterable[Happened], output_format: str) -> Iterator[str]:
    return _text_lines(found) if output_format == "text" else _for_programs(found, output_format)


def _text_lines(found: Iterable[Happened]) -> Iterator[str]:
    width = columns()
    for one in found:
        when = one.at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        words = f"{one.name}: {one.text}" if one.name else one.text
        yield from fold_words(f"{when}  {one.what:<12}  {words}", width, " " * min(INDENT, width // 2))


def _for_programs(found: Iterable[Any], output_format: str) -> Iterator[str]:
    return (render(one, output_format, is_one_of_many=True) for one in found)


Size = tuple[tuple[str, int, int], ...]


def _follow(
    path: str,
    size: Size,
    known: Sequence[Happened],
    wanted: tuple[str, Sequence[str], datetime | None],
    output_format: str,
) -> None:
    """Print new entries whenever the recording grew."""
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
        for line in _lines(shown, output_format):
            echo(visible_line(line))
        sys.stdout.flush()


def _size(path: str) -> Size:
    """A value that changes whenever there is more to read."""
    found = []
    for one in [path] if os.path.isfile(path) else sorted(glob.glob(f"{glob.escape(path)}/*")):
        with suppress(OSError):
            status = os.stat(one)
            found.append((one, status.st_ino, status.st_size))
    return tuple(found)
