"""Numbers, letters and colours of the containers of a report, and sentences about them.

A container has one number, one letter and one colour in every simulation of a report. The attribute `data-c` of all
elements about a container holds its number, so that the script of the page can highlight the container everywhere. A pod
with CPUs as a whole has the same, for those of its CPUs that no container of it owns.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nri_plugin.cli.output import count_of
from nri_plugin.cli.topology.palette import Paint, paint_of
from nri_plugin.model import bits

_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, halves of surrogate pairs, and marks that change the direction of the text after them."""
_REPLACEMENT = "\ufffd"

Row = Mapping[str, Any]

LEVELS = {
    "numa_node": "NUMA node",
    "socket": "socket",
    "uncore_cache": "L3 cache",
    "whole_cores": "whole cores",
}
"""Levels of alignment, in the order of the report."""


def showable(text: object) -> str:
    """Text with a replacement character in place of each unshowable one."""
    return _UNSHOWABLE.sub(_REPLACEMENT, str(text))


class Marks:
    """Numbers, letters and colours of all containers of one report, the same in every simulation of it.

    Args:
        simulations: as JSON; containers with exclusive CPUs, then pods with CPUs, then ended containers that keep some,
            get letters in the order in which they appear.
    """

    def __init__(self, simulations: Sequence[Row]) -> None:
        self.simulations = simulations
        rows = [row for simulation in simulations for row in all_containers(simulation)]
        pods = [row["key"] for simulation in simulations for row in blocks(simulation)]
        keys = dict.fromkeys([*(row["key"] for row in rows), *pods])
        self._number_by_key = {key: number for number, key in enumerate(keys)}
        own = [
            row["key"] for simulation in simulations for row in simulation["containers"] if row["exclusive"]
        ]
        kept = [key for simulation in simulations for key in kept_by_ended(simulation)]
        owners = dict.fromkeys([*own, *pods, *kept])
        self._paint_by_key: dict[str, Paint] = {key: paint_of(place) for place, key in enumerate(owners)}
        looks = dict.fromkeys((paint.fill, paint.ink) for paint in self._paint_by_key.values())
        self._class_by_look = {look: f"k{number}" for number, look in enumerate(looks)}

    def number(self, key: str) -> int | None:
        """The number of a container or pod; None for an unknown one."""
        return self._number_by_key.get(key)

    def letter(self, key: str) -> str:
        """The letter of a container or pod; empty without exclusive CPUs."""
        paint = self._paint_by_key.get(key)
        return paint.letter if paint else ""

    def colour(self, key: str) -> str:
        """The CSS class of the colour of a container or pod; empty without exclusive CPUs."""
        paint = self._paint_by_key.get(key)
        return self._class_by_look[paint.fill, paint.ink] if paint else ""

    def css(self) -> str:
        """The rules of the colours."""
        return "\n".join(
            f".{name}{{--fill:{fill};--mark:{ink}}}" for (fill, ink), name in self._class_by_look.items()
        )

    def says(self) -> list[list[Any]]:
        """By number: name, letter, colour, and a sentence for each simulation."""
        by_key = [
            {row["key"]: sentence(row) for row in all_containers(simulation)}
            | {
                key: f"ended, keeps CPUs {cpus} until its pod ends"
                for key, cpus in kept_by_ended(simulation).items()
            }
            | {row["key"]: block_sentence(row, simulation) for row in blocks(simulation)}
            for simulation in self.simulations
        ]
        return [
            [
                showable(key),
                self.letter(key),
                self.colour(key),
                [showable(told.get(key, sentence(None))) for told in by_key],
            ]
            for key in self._number_by_key
        ]

    def pools(self) -> list[str]:
        """A sentence about the shared pool of each simulation."""
        return [pool_sentence(simulation) for simulation in self.simulations]


def all_containers(simulation: Row) -> list[Row]:
    """The containers that run at the end, then the others: refused, skipped and ended ones."""
    rows = {row["key"]: row for row in simulation["containers"]}
    for step in simulation["steps"]:
        for row in step["containers"]:
            rows.setdefault(row["key"], row)
    return list(rows.values())


def pod_key(row: Row) -> str:
    """The pod of a container."""
    return f"{row['namespace']}/{row['pod']}"


def blocks(simulation: Row) -> list[Row]:
    """The pods that own CPUs as a whole."""
    return [row for row in simulation["pods"] if row["cpus"]]


def kept_by_ended(simulation: Row) -> dict[str, str]:
    """The CPUs of containers that do not run at the end, such as init containers, as kernel lists."""
    runs = {row["key"] for row in simulation["containers"]}
    cpus: dict[str, int] = {}
    for owner in simulation["owners"]:
        if owner["container"] and owner["container"] not in runs:
            cpus[owner["container"]] = cpus.get(owner["container"], 0) | 1 << owner["cpu"]
    return {key: bits.format_list(mask) for key, mask in cpus.items()}


def block_sentence(pod: Row, simulation: Row) -> str:
    """The CPUs of a pod as a whole, and which containers have or share them."""
    sharing = [
        row["container"]
        for row in simulation["containers"]
        if row["is_pod_shared"] and pod_key(row) == pod["key"]
    ]
    parts = [f"a pod with CPUs of its own: {pod['cpus']}"]
    parts += [f"{name} has {cpus} to itself" for name, cpus in pod["slices"].items()]
    if pod["shared_pool"]:
        parts.append(f"pod shared pool {pod['shared_pool']}: {', '.join(sharing) or 'no container'}")
    parts += [f"no container of it runs on {pod['unused']}"] if pod["unused"] else []
    return "; ".join(parts)


def is_refused(row: Row) -> bool:
    """Whether a container was refused; a container that runs because of `neverRefuse` was not."""
    return bool(row["status"] == "refused")


def sentence(row: Row | None) -> str:
    """The outcome for a container in one simulation."""
    if row is None:
        return "not part of this simulation"
    if is_refused(row):
        return f"refused: {row['refusal']['text']}"
    if row["status"] == "skipped":
        return "never created, for its pod was over before its turn"
    have = f"in the shared pool{' of its pod' if row['is_pod_shared'] else ''}: {row['cpus']}"
    if row["exclusive"]:
        have = f"{count_of(row['exclusive'], 'CPU')} to itself: {row['cpus']}"
    parts = [have, f"NUMA {row['numa_nodes']}"]
    if row["exclusive"] and row["caches"]:
        parts.append(f"L3 {row['caches']}")
    if row["mems"]:
        parts.append(f"memory on NUMA {row['mems']}")
    parts += [f"{name}: {', '.join(ids)}" for name, ids in row["devices"].items()]
    if row["aligned"]:
        missing = missing_levels(row["aligned"])
        parts.append(f"not aligned: {missing}" if missing else "aligned at all levels")
    if row["refusal"]:
        parts.append(f"not refused because of its namespace: {row['refusal']['text']}")
    return "; ".join(parts)


def missing_levels(aligned: Row) -> str:
    """The levels at which exclusive CPUs are not aligned, in words; empty for none."""
    return ", ".join(words for level, words in LEVELS.items() if not aligned[level])


def pool_sentence(simulation: Row) -> str:
    """The CPUs of the shared pool and the number of containers in it."""
    totals = simulation["totals"]
    sharing = sum(not (row["exclusive"] or row["is_pod_shared"]) for row in simulation["containers"])
    return f"shared pool, {count_of(totals['shared_cpus'], 'CPU')}: {totals['shared_pool']}; {count_of(sharing, 'container')} in it"


def names(simulations: Sequence[Row]) -> list[str]:
    """Names of the simulations: A and B with their configurations where there are two."""
    configurations = [str(simulation["configuration"]["name"]) for simulation in simulations]
    if len(simulations) == 1:
        return configurations
    return [f"{chr(ord('A') + number)}: {name}" for number, name in enumerate(configurations)]


def letters(simulations: Sequence[Row]) -> list[str]:
    """The letters of the simulations; empty for a single one."""
    return [chr(ord("A") + number) if len(simulations) > 1 else "" for number in range(len(simulations))]
