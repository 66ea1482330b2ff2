"""The forms of the answer: tables for people, and facts for programs. Names of pods and handlers pass `visible` at the output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nri_plugin.cli.noise.causes import UNSEEN, cause_of
from nri_plugin.cli.output import fold_words, table, to_run
from nri_plugin.cli.state.rows import StateRow
from nri_plugin.host.cpu_noise import TIMES, CPUNoise, NoiseKind, NoiseRow, Unseen, loudest, resolution_us
from nri_plugin.host.kernel_work import ReachingInterrupt
from nri_plugin.model.sets import CPUID

LABELS: Mapping[NoiseKind, str] = {
    NoiseKind.DEVICE: "device interrupts",
    NoiseKind.TICK: "timer ticks",
    NoiseKind.IPI: "IPIs",
    NoiseKind.OTHER: "other interrupts",
    NoiseKind.SOFTIRQ: "softirqs",
    NoiseKind.STRANGERS: "run time of strangers",
    NoiseKind.STEAL: "stolen by the host",
    NoiseKind.QUEUE: "waits in run queues",
    NoiseKind.WAIT: "waits of its threads",
    NoiseKind.INVOLUNTARY: "involuntary switches",
    NoiseKind.MIGRATION: "migrations",
    NoiseKind.THROTTLED: "throttled",
    NoiseKind.PRESSURE: "CPU pressure",
    NoiseKind.IRQ_PRESSURE: "held up by interrupts",
    NoiseKind.HINT_FAULT: "NUMA balancing faults",
    NoiseKind.PAGE: "NUMA pages moved",
    NoiseKind.MEMORY: "memory on other nodes",
}
NAMED = (NoiseKind.DEVICE, NoiseKind.IPI, NoiseKind.OTHER, NoiseKind.SOFTIRQ)
"""Kinds whose rows have names; only names that were seen are shown below them."""

WORDS = {
    "RES": "reschedule (RES)",
    "CAL": "function call (CAL)",
    "TLB": "TLB shootdown (TLB)",
    "IWI": "irq work (IWI)",
}
UNKNOWN = "?"
NOTHING = "-"
INDENT = "  "

HEAD = (
    "CONTAINER",
    "CPUS",
    "DEVICE",
    "TICKS",
    "IPIS",
    "SOFTIRQ",
    "STRANGER",
    "WAITS",
    "SWITCHES",
    "THROTTLED",
)
COLUMNS = (
    NoiseKind.DEVICE,
    NoiseKind.TICK,
    NoiseKind.IPI,
    NoiseKind.SOFTIRQ,
    NoiseKind.STRANGERS,
    NoiseKind.WAIT,
    NoiseKind.INVOLUNTARY,
    NoiseKind.THROTTLED,
)


@dataclass(frozen=True, slots=True)
class MeasuredContainer:
    """A container and its noise."""

    row: StateRow
    noise: CPUNoise


def overview(found: Sequence[MeasuredContainer], width: int) -> list[str]:
    """A row for each container, below its pod."""
    unseen = dict.fromkeys(what for one in found for what in one.noise.unseen)
    offline = [one for one in found if one.noise.uncounted]
    return [
        f"noise on exclusive CPUs in {found[0].noise.seconds:.1f} s",
        "",
        *_by_pod(found),
        *(f"{one.row.name}: {_offline(one.noise)}" for one in offline),
        *_unseen(tuple(unseen), width),
        "",
        *fold_words(
            f"{to_run('noise')} CONTAINER names the sources, what causes each, and what would end it",
            width,
            INDENT,
        ),
    ]


def _by_pod(found: Sequence[MeasuredContainer]) -> list[str]:
    head, *rows = table([HEAD, *map(_overview_row, found)])
    lines, pod = [head], ""
    for one, row in zip(found, rows, strict=True):
        if pod != one.row.record.pod_uid:
            pod = one.row.record.pod_uid
            lines += [f"{one.row.namespace}/{one.row.pod_name}"]
        lines.append(row)
    return lines


def _overview_row(one: MeasuredContainer) -> tuple[str, ...]:
    found = one.noise.totals()
    totals = (found.get(kind) for kind in COLUMNS)
    return (
        INDENT + (one.row.record.name or one.row.record.id[:12]),
        str(one.noise.cpus),
        *(amount(kind, total) for kind, total in zip(COLUMNS, totals, strict=True)),
    )


def report(one: MeasuredContainer, interrupts: Mapping[int, ReachingInterrupt], width: int) -> list[str]:
    """The sources of one container, by CPU as far as the width allows, then causes."""
    noise = one.noise
    lines = [f"{one.row.name}  CPUs {noise.cpus}, {noise.seconds:.1f} s"]
    if noise.uncounted:
        lines.append(_offline(noise))
    cells, cpus = _grid(noise), loudest(noise)
    shown = len(cpus)
    grid = table(_with_cpus(cells, cpus))
    while shown and max(map(len, grid)) > width:
        shown -= 1
        grid = table(_with_cpus(cells, cpus[:shown]))
    lines += ["", *grid]
    if shown < len(cpus):
        lines.append(f"{len(cpus) - shown} quieter CPUs are left out; -o wide shows all")
    return [*lines, *_causes(noise, interrupts, width), *_unseen(noise.unseen, width)]


def _offline(noise: CPUNoise) -> str:
    return f"CPUs {noise.uncounted} were offline at one end of the interval and are not counted"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Attributes:
        by_cpu: cells by CPU; a CPU that is not there cannot be told.
    """

    label: str
    total: str
    rate: str
    by_cpu: Mapping[int, str]


def _grid(noise: CPUNoise) -> list[Line]:
    totals, by_cpu = noise.totals(), {int(cpu): noise.totals(cpu) for cpu in noise.cpus}
    lines = []
    for kind, total in totals.items():
        found = {cpu: one[kind] for cpu, one in by_cpu.items() if kind in one}
        lines.append(_line(noise, LABELS[kind], kind, total, found))
        lines += [
            _line(noise, INDENT + name_of(row), kind, row.total, row.by_cpu)
            for row in noise.rows
            if row.kind is kind and kind in NAMED and row.total
        ]
    return lines


def _line(noise: CPUNoise, label: str, kind: NoiseKind, total: int, by_cpu: Mapping[int, int]) -> Line:
    cells = {cpu: amount(kind, value) for cpu, value in by_cpu.items()}
    return Line(label, amount(kind, total), rate(noise, kind, total), cells)


def _with_cpus(lines: Sequence[Line], cpus: Sequence[CPUID]) -> list[tuple[str, ...]]:
    shown = sorted(cpus)
    head = ("SOURCE", "SUM", "EACH CPU", *(f"CPU{cpu}" for cpu in shown))
    rows = [
        (one.label, one.total, one.rate, *(one.by_cpu.get(cpu, NOTHING) for cpu in shown)) for one in lines
    ]
    return [head, *rows]


def name_of(row: NoiseRow) -> str:
    """The name of a source in words."""
    if row.interrupt is not None:
        return f"{row.name or NOTHING} (IRQ {row.interrupt})"
    return WORDS.get(row.name, row.name)


def amount(kind: NoiseKind, value: int | None) -> str:
    """A value with its unit; counts have none."""
    if value is None:
        return UNKNOWN
    if kind in TIMES:
        return f"{value / 1000:.1f} ms" if value else "0"
    return f"{value >> 20} MiB" if kind is NoiseKind.MEMORY and value >> 20 else str(value)


def rate(noise: CPUNoise, kind: NoiseKind, total: int) -> str:
    """The value for each CPU: counts in a second, times as a share."""
    counted = len(noise.cpus - noise.uncounted)
    if kind is NoiseKind.MEMORY or not counted or not noise.seconds:
        return NOTHING
    if kind in TIMES:
        return f"{total / (noise.seconds * 1e4 * counted):.3f} %"
    return f"{total / noise.seconds / counted:.1f}/s"


def _causes(noise: CPUNoise, interrupts: Mapping[int, ReachingInterrupt], width: int) -> list[str]:
    """What caused each source that was seen, and what would end it."""
    lines = []
    for row in noise.rows:
        if not row.total or _is_below_resolution(noise, row):
            continue
        cause = cause_of(row, noise.cpus, interrupts)
        title = f"{LABELS[row.kind]}: {name_of(row)}" if row.kind in NAMED else LABELS[row.kind]
        lines += fold_words(f"{title}: {cause.says}", width, INDENT)
        lines += fold_words(f"{INDENT}-> {cause.ends}{':' if cause.command else ''}", width, INDENT + INDENT)
        lines += [f"{INDENT}   {cause.command}"] if cause.command else []
    if lines:
        return ["", *lines]
    is_counted = bool(noise.cpus - noise.uncounted)
    return [
        "",
        "nothing disturbed these CPUs as far as can be seen"
        if is_counted
        else "none of these CPUs was counted",
    ]


def _is_below_resolution(noise: CPUNoise, row: NoiseRow) -> bool:
    return row.kind is NoiseKind.STRANGERS and row.total <= resolution_us(noise.cpus)


def _unseen(unseen: Sequence[Unseen], width: int) -> list[str]:
    lines = []
    for what in unseen:
        reason = UNSEEN[what]
        see = f"; {reason.see}" if reason.see else ""
        lines += fold_words(f"not visible: {reason.says}{see}", width, INDENT)
    return ["", *lines] if lines else []


def facts(one: MeasuredContainer, interrupts: Mapping[int, ReachingInterrupt]) -> dict[str, Any]:
    """One container for programs; values that cannot be told are absent from `totals`."""
    row, noise = one.row, one.noise
    return {
        "pod_uid": row.record.pod_uid,
        "namespace": row.pod.namespace if row.pod else None,
        "pod": row.pod.name if row.pod else None,
        "container": row.record.name,
        "id": row.record.id,
        "cpus": noise.cpus,
        "uncounted": noise.uncounted,
        "seconds": round(noise.seconds, 6),
        "foreign_run_time_resolution_us": resolution_us(noise.cpus),
        "totals": noise.totals(),
        "sources": [_source(source, noise, interrupts) for source in noise.rows],
        "not_visible": [{"what": what, **UNSEEN[what]._asdict()} for what in noise.unseen],
    }


def _source(row: NoiseRow, noise: CPUNoise, interrupts: Mapping[int, ReachingInterrupt]) -> dict[str, Any]:
    cause = cause_of(row, noise.cpus, interrupts)
    unit = "us" if row.kind in TIMES else "bytes" if row.kind is NoiseKind.MEMORY else "count"
    return {
        "kind": row.kind,
        "name": row.name,
        "interrupt": row.interrupt,
        "device": row.device,
        "unit": unit,
        "total": row.total,
        "by_cpu": row.by_cpu,
        "cause": cause.says,
        "ends": cause.ends,
        "command": cause.command,
    }
