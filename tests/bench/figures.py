"""One measured thing, and how it is shown."""

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the report; values are in `unit`, None where they make no sense."""

    what: str
    unit: str
    p50: float
    p99: float | None = None
    samples: int = 1


def microseconds(what: str, took_ns: Sequence[int]) -> Figure:
    """A figure from durations in nanoseconds."""
    return Figure(what, "us", at(took_ns, 0.50) / 1e3, at(took_ns, 0.99) / 1e3, len(took_ns))


def milliseconds(what: str, took_s: Sequence[float]) -> Figure:
    """A figure from durations in seconds; p99 only from a hundred samples on."""
    tail = at(took_s, 0.99) * 1e3 if len(took_s) >= 100 else None
    return Figure(what, "ms", at(took_s, 0.50) * 1e3, tail, len(took_s))


def machine() -> str:
    """The machine the figures were measured on, in one line."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    count = Path("/proc/cpuinfo").read_text("utf-8").count("processor\t")
    return f"{count} x {model}, Linux {platform.release()}, Python {platform.python_version()}"


def table(figures: Sequence[Figure]) -> str:
    """The figures for eyes."""
    width = max(len(figure.what) for figure in figures)
    lines = [f"{'':{width}}  {'p50':>10}  {'p99':>10}      {'samples':>7}"]
    for figure in figures:
        tail = "" if figure.p99 is None else _number(figure.p99)
        row = f"{figure.what:{width}}  {_number(figure.p50):>10}  {tail:>10}  {figure.unit:<3} {figure.samples:>7}"
        lines.append(row)
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def as_json(figures: Sequence[Figure]) -> str:
    """The figures for programs."""
    return json.dumps({"machine": machine(), "figures": [asdict(figure) for figure in figures]}, indent=1)


def at(values: Sequence[float], quantile: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(quantile * len(ordered)) - 1)]
