"""The tables of a report as data: totals, differences, placements, refusals, devices, memory, steps and orders.

`templates/tables.html.j2` draws them. A cell has a sort key where the order of its text is not useful.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nri_plugin.cli.output import count_of, memory_text
from nri_plugin.cli.simulate.report_marks import (
    LEVELS,
    Marks,
    Row,
    is_refused,
    missing_levels,
    names,
    pod_key,
)
from nri_plugin.model import bits

NONE = "-"


@dataclass(frozen=True, slots=True)
class ReportCell:
    """A cell.

    Attributes:
        text: plain text or a number; the template escapes it.
        key: sorts the column in place of the text.
        look: `name`, `cpulist`, `number`, or the CSS classes of a span around the text.
    """

    text: object
    key: int | float | None = None
    look: str = ""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of a table.

    Attributes:
        cells: as many as there are columns.
        joins: the number of the container or pod that the row is about.
        also: the name of the shared pool that the container runs in.
    """

    cells: Sequence[ReportCell]
    joins: int | None = None
    also: str | None = None


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table whose columns can be sorted by their heads.

    Attributes:
        id: HTML id.
        title: caption.
        columns: heads; the empty one is the column of the container's mark.
        rows: body.
        note: a sentence below the caption.
        nothing: a sentence in place of a table without rows; where it is empty too, nothing is shown.
    """

    id: str
    title: str
    columns: Sequence[str]
    rows: Sequence[ReportRow]
    note: str = ""
    nothing: str = ""


def row(*cells: object, joins: int | None = None, also: str | None = None) -> ReportRow:
    """A row; a value that is no `ReportCell` becomes the text of one."""
    return ReportRow(
        [cell if isinstance(cell, ReportCell) else ReportCell(cell) for cell in cells], joins, also
    )


def number(value: int, text: str = "") -> ReportCell:
    """A number; the column is sorted by it."""
    return ReportCell(text or value, value, "" if text else "number")


def name(key: str) -> ReportCell:
    """A name; it may break at slashes and cannot change the direction of other text."""
    return ReportCell(key, look="name")


def cpu_list(cpus: str, nothing: str = NONE) -> ReportCell:
    """A kernel list, sorted by its first number."""
    return (
        ReportCell(cpus, bits.lowest(bits.parse_list(cpus)), "cpulist") if cpus else ReportCell(nothing, -1)
    )


def percent(ratio: float) -> ReportCell:
    """A share, from 0 to 1, as a percentage."""
    return ReportCell(f"{100 * ratio:.0f} %", ratio)


class SimulationTables:
    """The tables about one simulation.

    Args:
        simulation: as JSON.
        number: of the simulation in the report, from 0.
        letter: in titles; empty where the report has one simulation.
        marks: of the containers.
    """

    def __init__(self, simulation: Row, number: int, letter: str, marks: Marks) -> None:
        self._simulation, self._number, self._letter, self._marks = simulation, number, letter, marks

    def placements(self) -> ReportTable:
        """The containers that run at the end."""
        has_devices = bool(self._simulation["devices"])
        columns = ["", "Container", "Own CPUs", "Runs on", "NUMA", "L3", "Memory on", "Aligned"]
        rows = [self._placement(found, has_devices=has_devices) for found in self._simulation["containers"]]
        return self._table("Placements", columns + ["Devices"] * has_devices, rows)

    def _placement(self, found: Row, *, has_devices: bool) -> ReportRow:
        key, exclusive = found["key"], found["exclusive"]
        joins = self._marks.number(key)
        # A container that shares the CPUs of its pod has the letter of the pod.
        pool = self._marks.number(pod_key(found)) if found["is_pod_shared"] else None
        return row(
            self._mark(pod_key(found) if found["is_pod_shared"] else key),
            name(key),
            number(exclusive) if exclusive else ReportCell(NONE, 0),
            cpu_list(found["cpus"]),
            cpu_list(found["numa_nodes"]),
            cpu_list(found["caches"] if exclusive else "", "any"),
            cpu_list(found["mems"], "any"),
            _aligned(found["aligned"]),
            *["; ".join(f"{name}: {', '.join(ids)}" for name, ids in found["devices"].items()) or NONE]
            * has_devices,
            joins=joins,
            also=None if exclusive else f"p{self._number}" if pool is None else str(pool),
        )

    def _mark(self, key: str) -> ReportCell:
        """The letter of a container or pod; `·` where it has no CPUs."""
        letter = self._marks.letter(key)
        return ReportCell(
            letter or "·",
            self._marks.number(key) if letter else -1,
            f"swatch {self._marks.colour(key)}" if letter else "",
        )

    def pods(self) -> ReportTable:
        """The pods that have CPUs or memory as a whole."""
        rows = [
            row(
                self._mark(found["key"]),
                name(found["key"]),
                cpu_list(found["cpus"]),
                "; ".join(f"{name}: {cpus}" for name, cpus in found["slices"].items()) or NONE,
                cpu_list(found["shared_pool"]),
                cpu_list(found["unused"]),
                cpu_list(found["mems"], "any"),
                number(found["memory_bytes"], memory_text(found["memory_bytes"])),
                joins=self._marks.number(found["key"]),
            )
            for found in self._simulation["pods"]
        ]
        columns = ["", "Pod", "CPUs", "Slices", "Pod shared pool", "Unused", "Memory on", "Memory"]
        return self._table("Pods", columns, rows)

    def refusals(self) -> ReportTable:
        """The refused containers and whole pods, with the full reason."""
        rows = [
            row(
                number(step["number"]),
                name(key),
                self._simulation["shapes"].get(step["shape"]) or step["action"],
                ReportCell(refusal["reason"], look="word"),
                ReportCell(refusal["text"], look="sentence"),
                joins=self._marks.number(key),
            )
            for step in self._simulation["steps"]
            for key, refusal in _refused(step)
        ]
        columns = ["Step", "Pod or container", "Asked for", "Reason", "Why"]
        return self._table(
            "Refusals", columns, rows, f"Nothing was refused{self._letter and ' in ' + self._letter}."
        )

    def devices(self) -> ReportTable:
        """The devices of the machine and the container that has each."""
        rows = [
            row(
                found["resource"],
                found["id"],
                ", ".join(map(str, found["numa_nodes"])) or "any",
                name(found["container"]) if found["container"] else NONE,
                joins=self._marks.number(found["container"]),
            )
            for found in self._simulation["devices"]
        ]
        return self._table("Devices", ["Resource", "Device", "NUMA", "Container"], rows)

    def memory(self) -> ReportTable:
        """The memory that the Static memory policy has allocated."""
        rows = [
            row(
                number(found["numa_node"]),
                found["resource"],
                number(found["allocated"], memory_text(found["allocated"])),
                number(found["allocatable"], memory_text(found["allocatable"])),
            )
            for found in self._simulation["memory"]
        ]
        return self._table("Memory", ["NUMA", "Resource", "Allocated", "Of"], rows)

    def steps(self) -> ReportTable:
        """The steps in order."""
        rows = [
            row(
                number(step["number"]),
                step["action"],
                name(step["target"]),
                self._simulation["shapes"].get(step["shape"], step["shape"]) or NONE,
                ReportCell("; ".join(_outcome(step)) or NONE, look="sentence"),
                number(step["exclusive_cpus"]),
            )
            for step in self._simulation["steps"]
        ]
        return self._table(
            "Steps", ["Step", "Action", "What", "Asked for", "Outcome", "Exclusive CPUs then"], rows
        )

    def _table(
        self, title: str, columns: Sequence[str], rows: Sequence[ReportRow], nothing: str = ""
    ) -> ReportTable:
        id_ = f"{title.lower()}-{self._number}"
        return ReportTable(id_, f"{title} {self._letter}".rstrip(), columns, rows, nothing=nothing)


KINDS: Sequence[Callable[[SimulationTables], ReportTable]] = (
    SimulationTables.placements,
    SimulationTables.pods,
    SimulationTables.refusals,
    SimulationTables.devices,
    SimulationTables.memory,
    SimulationTables.steps,
)
"""In the order of the report; tables of the same kind stand together."""

_ORDER_COLUMNS = {
    "pods_placed": "Pods placed",
    "containers_exclusive": "With exclusive CPUs",
    "exclusive_cpus": "Exclusive CPUs",
    "aligned_numa_node": "On one NUMA node",
    "aligned_uncore_cache": "In one L3",
}


def orders(simulations: Sequence[Row], letters: Sequence[str]) -> ReportTable:
    """The same pods in other orders."""
    is_pair = len(simulations) > 1
    rows = [
        row(
            *[letter] * is_pair,
            ReportCell("as written", -1)
            if found["seed"] is None
            else number(found["seed"], f"seed {found['seed']}"),
            *(number(found[key]) for key in _ORDER_COLUMNS),
            percent(found["fragmentation_numa"]),
        )
        for simulation, letter in zip(simulations, letters, strict=True)
        for found in simulation["orders"]
    ]
    columns = [*["Simulation"] * is_pair, "Order", *_ORDER_COLUMNS.values(), "Fragmentation"]
    return ReportTable("orders", "Other orders of the same pods", columns, rows)


def differences(comparison: Row, simulations: Sequence[Row], marks: Marks) -> list[ReportTable]:
    """The keys that differ between two configurations, and the containers with different results."""
    before, after = names(simulations)
    keys = [row(key, one or NONE, other or NONE) for key, one, other in comparison["configuration"]]
    rows = [
        row(
            name(found["key"]),
            found["what"],
            found["before"],
            found["after"],
            joins=marks.number(found["key"]),
        )
        for found in comparison["containers"]
    ]
    alike = f"{count_of(comparison['alike'], 'container')} the same with both."
    nothing = f"No container is treated differently: {alike}"
    return [
        ReportTable("differing-keys", "Configurations", ["Key", before, after], keys),
        ReportTable(
            "differing-containers", "Containers", ["Container", "What", before, after], rows, alike, nothing
        ),
    ]


def total_rows(simulations: Sequence[Row]) -> list[tuple[str, list[object]]]:
    """Totals at the end with a value for each simulation; a leading space marks a part of the row above."""
    totals = [_totals(simulation["totals"]) for simulation in simulations]
    return [(words, [values[words] for values in totals]) for words in totals[0]]


def _totals(totals: Row) -> dict[str, object]:
    own = totals["containers_exclusive"]
    return {
        "Pods asked for": totals["pods"],
        "Pods placed": totals["pods_placed"],
        "Pods placed in part": totals["pods_partly"],
        "Pods refused": totals["pods_refused"],
        "Containers that run": totals["containers"],
        "Containers with exclusive CPUs": own,
        " on one NUMA node": f"{totals['aligned_numa_node']} of {own}",
        " on one socket": f"{totals['aligned_socket']} of {own}",
        " in one L3 cache": f"{totals['aligned_uncore_cache']} of {own}",
        " on whole cores": f"{totals['aligned_whole_cores']} of {own}",
        "Exclusive CPUs": totals["exclusive_cpus"],
        "CPUs that can still become exclusive": totals["available_cpus"],
        "CPUs in the shared pool": totals["shared_cpus"],
        "Reserved CPUs": totals["reserved_cpus"],
        "Fragmentation by NUMA node": percent(totals["fragmentation_numa"]).text,
        "Fragmentation by L3 cache": percent(totals["fragmentation_cache"]).text,
        "Memory allocated": memory_text(totals["memory_allocated_bytes"]),
        "Expectations not met": totals["problems"],
    }


def _aligned(aligned: Row | None) -> ReportCell:
    if aligned is None:
        return ReportCell(NONE, -1)
    missing = missing_levels(aligned)
    text = f"not aligned: {missing}" if missing else "all levels"
    return ReportCell(text, sum(bool(aligned[level]) for level in LEVELS))


def _refused(step: Row) -> Iterable[tuple[str, Row]]:
    """The refusals of a step, with the name of the pod where it was refused as a whole, else of the container."""
    if step["refusal"]:
        yield step["target"], step["refusal"]
    for found in step["containers"]:
        if _is_of_pod(found):
            yield step["target"], found["refusal"]
            return
        if is_refused(found):
            yield found["key"], found["refusal"]


def _is_of_pod(found: Row) -> bool:
    """Whether the pod of the container was refused as a whole."""
    return is_refused(found) and bool(found["refusal"]["of_pod"])


def _outcome(step: Row) -> Iterable[str]:
    yield from step["problems"]
    if step["refusal"]:
        yield f"refused: {step['refusal']['reason']}"
    whole = next((one["refusal"] for one in step["containers"] if _is_of_pod(one)), None)
    if whole is not None:
        unfit = f"; container {whole['container']} does not fit" if whole["container"] else ""
        yield f"pod refused: {whole['reason']}{unfit}"
        return
    for found in step["containers"]:
        if is_refused(found):
            yield f"{found['container']} refused: {found['refusal']['reason']}"
        elif found["status"] == "skipped":
            yield f"{found['container']} never created"
        elif found["exclusive"]:
            yield f"{found['container']} has {found['cpus']}"
        elif found["is_pod_shared"]:
            yield f"{found['container']} shares {found['cpus']} of its pod"
        else:
            yield f"{found['container']} shares"
