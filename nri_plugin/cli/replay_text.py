"""A replay as a person reads it."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from nri_plugin.app.config import QUOTA_GATE
from nri_plugin.app.config_keys import KEYS
from nri_plugin.cli.cell_table import table
from nri_plugin.cli.replay_tally import (
    ADMITTED,
    EXCLUSIVE,
    PLACED_OTHERWISE,
    REFUSED,
    RESIZE_DONE,
    RESIZE_REFUSED,
    SHARED,
    Difference,
    Verdict,
    name_of,
)
from nri_plugin.host.recording_verify import Change
from nri_plugin.options import Node, Options, ReservedMemory
from nri_plugin.policy.option_checks import CPU_OPTIONS, TOPOLOGY_OPTIONS
from nri_plugin.quantity import format_bytes

NOTHING = "-"
SAID_OTHERWISE = {
    "lift_cpu_quota": f"featureGates.{QUOTA_GATE}",
    "kept_memory_bytes": "memory kept for the system",
}
"""Of options that follow from keys of other names."""

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


def verified(changes: Sequence[Change], width: int) -> Iterator[str]:
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
    names = {key.attribute: name for name, key in KEYS.items()}
    for one in fields(Options):
        before, after = getattr(recorded.options, one.name), getattr(replayed.options, one.name)
        if before != after:
            name = names.get(one.name) or _option_name(one.name)
            yield f"{name}: {_value(before)} -> {_value(after)}"
    if recorded.reserved != replayed.reserved:
        yield f"reserved CPUs: {recorded.reserved or NOTHING} -> {replayed.reserved or NOTHING}"


def differences(found: Sequence[Difference], width: int) -> Iterator[str]:
    """The table of what would have come otherwise: who fares worse first."""
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


def reasons(found: Sequence[Difference], width: int) -> Iterator[str]:
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


def _got(verdict: Verdict) -> str:
    if verdict.refused:
        return verdict.refused.removesuffix("Error")
    mems = f" mems {verdict.mems}" if verdict.mems else ""
    return (verdict.cpus or "shared pool") + mems


def _more(count: int) -> Iterator[str]:
    if count > MOST_ROWS:
        yield f"... and {count - MOST_ROWS} more; all are in -o json"


def _option_name(attribute: str) -> str:
    """As the kubelet spells it: `prefer-align-cpus-by-uncorecache` has two words less than our attribute."""
    plain = attribute.replace("_", "")
    known = (name for name in (*CPU_OPTIONS, *TOPOLOGY_OPTIONS) if name.replace("-", "") == plain)
    return SAID_OTHERWISE.get(attribute) or next(known, attribute.replace("_", "-"))


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
