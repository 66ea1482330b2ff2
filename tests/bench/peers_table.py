"""What was measured against Go, for eyes: times of all plugins, and ratios beside what they should be at most.

A target is a figure beside another one; nothing is judged here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.against_peers import EMPTY, FULL, HUGE, NOTHING, OURS, Beside, Samples
from tests.bench.figures import at

SERIES = ("shared", "exclusive", "shared-20ms", "exclusive-20ms")
LARGEST_RATIO = {"shared": 2.5, "exclusive": 4.0, "synchronize": 1.2}
"""p50 in times that of the Go plugin that does nothing: creations on an empty node, Synchronize of a full one."""

LARGEST_GROWTH, LARGEST_TAIL, LARGEST_CRI = 1.3, 1.5, 1.2
ENOUGH = 100
"""Samples that show a p99."""

LARGEST_MIB = {EMPTY.name: 30, FULL.name: 60, HUGE.name: 120}
LARGEST_PEAK_MIB = 20 + 4
"""Above the resident memory after Synchronize: 20 MiB and the largest message."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: values by plugin, and the most that ours should be."""

    what: str
    values: Mapping[str, str]
    most: str = ""


def tables(measured: Sequence[Beside], cri: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Both tables.

    Args:
        measured: one for each crowd; growth is in times the figures of the empty node, where those are there.
        cri: ratios of creations by a real runtime, with each plugin to without any.
    """
    asked = (*(one.found for one in measured), *(found for _, found in cri))
    names = list(dict.fromkeys((*(name for one in asked for name in one), OURS.name)))
    ratios = [
        *_ratios(measured),
        *(Row(what, _numbers(found), str(LARGEST_CRI)) for what, found in cri),
    ]
    times = list(_times(measured))
    return "\n\n".join(
        (
            *([_table("milliseconds, p50 and p99", names, times)] if times else []),
            *([_table("ratios and memory", names, ratios, "at most")] if ratios else []),
        )
    )


def _times(measured: Sequence[Beside]) -> Iterator[Row]:
    for one in measured:
        for series in ("synchronize", *SERIES):
            values = {
                name: _pair(samples.us[series]) for name, samples in one.found.items() if series in samples.us
            }
            if values:
                yield Row(f"{_words(series)}, {one.crowd.name}", values)


def _pair(us: Sequence[float]) -> str:
    """p50, and p99 where there are enough samples for one."""
    tail = f"{at(us, 0.99) / 1e3:9.2f}" if len(us) >= ENOUGH else f"{'':9}"
    return f"{at(us, 0.5) / 1e3:8.2f}{tail}"


def _ratios(measured: Sequence[Beside]) -> Iterator[Row]:
    alone = next((one.found for one in measured if one.crowd == EMPTY), {})
    for one in measured:
        for series in ("synchronize", *SERIES):
            if series in one.found[NOTHING.name].us and (one.crowd.pods or series != "synchronize"):
                yield from _against(one, series, alone)
        yield _memory(one)
        if one.crowd.pods:
            peaks = {
                name: at(samples.peak_mib, 0.5) - at(samples.rss_mib, 0.5)
                for name, samples in one.found.items()
            }
            yield Row(
                "    peak of Synchronize above that, MiB", _numbers(peaks, "{:.1f}"), str(LARGEST_PEAK_MIB)
            )


def _against(one: Beside, series: str, alone: Mapping[str, Samples]) -> Iterator[Row]:
    go = one.found[NOTHING.name].us[series]
    others = {
        name: of.us[series] for name, of in one.found.items() if series in of.us and name != NOTHING.name
    }
    what = f"{_words(series)}, {one.crowd.name}"
    is_target = one.crowd == (FULL if series == "synchronize" else EMPTY)
    most = str(LARGEST_RATIO[series.partition("-")[0]]) if is_target else ""
    yield Row(
        f"{what}: p50 to Go's", _numbers({n: at(us, 0.5) / at(go, 0.5) for n, us in others.items()}), most
    )
    if series == "synchronize":
        return
    if one.crowd.pods:
        growth = {
            name: at(us, 0.5) / at(alone[name].us[series], 0.5)
            for name, us in others.items()
            if name in alone
        }
        if growth:
            most = str(LARGEST_GROWTH) if one.crowd == FULL else ""
            yield Row("    p50 to the own one on an empty node", _numbers(growth), most)
        updates = {n: one.found[n].updates[series] / len(us) for n, us in others.items()}
        if any(updates.values()):
            yield Row("    updates of others that the runtime has to make", _numbers(updates, "{:.0f}"))
    if len(go) >= ENOUGH:
        late = {name: at(us, 0.99) / at(go, 0.99) for name, us in others.items()}
        yield Row("    p99 to Go's", _numbers(late))
        tails = {name: _tail(us) / _tail(go) for name, us in others.items()}
        yield Row("    p99/p50 to Go's", _numbers(tails), str(LARGEST_TAIL))


def _tail(us: Sequence[float]) -> float:
    return at(us, 0.99) / at(us, 0.5)


def _memory(one: Beside) -> Row:
    values = _numbers({name: at(samples.rss_mib, 0.5) for name, samples in one.found.items()}, "{:.1f}")
    return Row(f"resident memory, {one.crowd.name}, MiB", values, str(LARGEST_MIB.get(one.crowd.name, "")))


def _numbers(values: Mapping[str, float], form: str = "{:.2f}") -> dict[str, str]:
    return {name: form.format(value) for name, value in values.items()}


def _words(series: str) -> str:
    if series == "synchronize":
        return "Synchronize"
    kind, _, pause = series.partition("-")
    return f"CreateContainer {kind}{', every 20 ms' if pause else ''}"


def _table(title: str, names: Sequence[str], rows: Sequence[Row], last: str = "") -> str:
    width = max(len(row.what) for row in rows)
    columns = [max(len(name), *(len(row.values.get(name, "")) for row in rows)) for name in names]

    def line(what: str, cells: Sequence[str], end: str) -> str:
        padded = (f"{cell:>{column}}" for cell, column in zip(cells, columns, strict=True))
        return f"{what:{width}}  {'  '.join(padded)}  {end:>7}".rstrip()

    head = line(title, names, last)
    return "\n".join(
        [head, *(line(row.what, [row.values.get(n, "") for n in names], row.most) for row in rows)]
    )
