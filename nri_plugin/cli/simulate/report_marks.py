"""What containers are drawn with in a report, and the sentences that are shown when one is pointed at."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nri_plugin.cli.topology.palette import Paint, Palette

# ----------------------------------------------------------------------------------------------------
# HTML that cannot be broken out of: whatever is not `Markup` is text, and is escaped.
#
# Only `element` and `joined` make `Markup`. Names of elements and attributes are ours; every value may be anybody's.


Value = str | int | float | bool | None

VOID = frozenset({"meta", "input", "wbr"})
"""HTML elements without an end tag. Shapes of SVG are none of them."""
_UNSHOWABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Control characters, halves of surrogate pairs, and marks that turn the reading direction of what follows."""
_REPLACEMENT = "\ufffd"
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


NOTHING = Markup()


def showable(text: object) -> str:
    """Text with a replacement character for each one that cannot be shown, or that would turn what follows."""
    return _UNSHOWABLE.sub(_REPLACEMENT, str(text))


def escape(text: object) -> Markup:
    """Text as HTML shows it; what cannot be shown is a replacement character."""
    if isinstance(text, Markup):
        return text
    return Markup(showable(text).translate(_ENTITIES))


def joined(parts: Iterable[object], separator: str = "") -> Markup:
    """Several pieces in a row; those that are no markup are escaped."""
    return Markup(separator.join(map(escape, parts)))


def element(tag: str, *children: object, **attributes: Value) -> Markup:
    """One element.

    Args:
        tag: its name.
        children: what it holds; text is escaped.
        attributes: by name, `class_` for `class` and `data_key` for `data-key`. True is an attribute without a
            value; False, None and an empty class leave it out.
    """
    words = [tag, *(_attribute(name, value) for name, value in attributes.items() if _is_said(name, value))]
    opening = "<" + " ".join(words) + ">"
    return Markup(opening if tag in VOID else opening + joined(children) + f"</{tag}>")


def raw_element(tag: str, content: str, **attributes: Value) -> Markup:
    """A `script` or `style` whose content is our own file, or JSON made by `script_json`."""
    if f"</{tag}" in content.lower() or "<!--" in content:
        raise ValueError(f"the content of <{tag}> would end it early")
    return Markup(element(tag, Markup(content), **attributes))


def script_json(value: object) -> str:
    """JSON that may stand in a script element: nothing in it is read as markup."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _is_said(name: str, value: Value) -> bool:
    return value is not None and value is not False and not (name == "class_" and value == "")


def _attribute(name: str, value: Value) -> str:
    name = name.rstrip("_").replace("_", "-")
    return name if value is True else f'{name}="{escape(value)}"'


# ----------------------------------------------------------------------------------------------------


Row = Mapping[str, Any]

LEVELS = {
    "numa_node": "NUMA node",
    "socket": "socket",
    "uncore_cache": "L3 cache",
    "whole_cores": "whole cores",
}
"""Levels of alignment in words, in the order they are told."""


class Marks:
    """Numbers, letters and colours of all containers of one report, the same in every simulation of it.

    Args:
        simulations: as JSON; containers with CPUs of their own get letters in the order they appear.
    """

    def __init__(self, simulations: Sequence[Row]) -> None:
        self.simulations = simulations
        rows = [row for simulation in simulations for row in everybody(simulation)]
        self._number_by_key = {
            row["key"]: number for number, row in enumerate({row["key"]: row for row in rows}.values())
        }
        self._palette = Palette()
        self._paint_by_key: dict[str, Paint] = {}
        for simulation in simulations:
            for owner in ordered_owners(simulation):
                self._paint_by_key.setdefault(owner, self._palette.paint(owner))
        looks = dict.fromkeys((paint.fill, paint.ink) for paint in self._paint_by_key.values())
        self._class_by_look = {look: f"k{number}" for number, look in enumerate(looks)}

    def number(self, key: str) -> int | None:
        """The number that joins all elements of one container; None for an unknown one."""
        return self._number_by_key.get(key)

    def letter(self, key: str) -> str:
        """Its letter; empty for a container without CPUs of its own."""
        paint = self._paint_by_key.get(key)
        return paint.letter if paint else ""

    def colour(self, key: str) -> str:
        """The CSS class of its colour; empty for a container without CPUs of its own."""
        paint = self._paint_by_key.get(key)
        return self._class_by_look[paint.fill, paint.ink] if paint else ""

    def swatch(self, key: str) -> Markup:
        """Its letter on its colour."""
        letter = self.letter(key)
        return element("span", letter, class_=f"swatch {self.colour(key)}") if letter else Markup()

    def css(self) -> str:
        """The rules of the colours."""
        return "\n".join(
            f".{name}{{--fill:{fill};--mark:{ink}}}" for (fill, ink), name in self._class_by_look.items()
        )

    def says(self) -> list[list[Any]]:
        """By number: name, letter, colour, and a sentence for each simulation."""
        by_key = [{row["key"]: row for row in everybody(simulation)} for simulation in self.simulations]
        return [
            [
                showable(key),
                self.letter(key),
                self.colour(key),
                [showable(sentence(rows.get(key))) for rows in by_key],
            ]
            for key in self._number_by_key
        ]

    def pools(self) -> list[str]:
        """What is said of the shared pool, by simulation."""
        return [pool_sentence(simulation) for simulation in self.simulations]


def everybody(simulation: Row) -> list[Row]:
    """The containers that run at the end, then those that were refused, skipped or have ended."""
    rows = {row["key"]: row for row in simulation["containers"]}
    for step in simulation["steps"]:
        for row in step["containers"]:
            rows.setdefault(row["key"], row)
    return list(rows.values())


def runs_at_the_end(simulation: Row) -> frozenset[str]:
    """Keys of the containers that run at the end."""
    return frozenset(row["key"] for row in simulation["containers"])


def ordered_owners(simulation: Row) -> list[str]:
    """Containers that have CPUs of their own at the end, in their order."""
    return [row["key"] for row in simulation["containers"] if row["exclusive"]]


def is_refused(row: Row) -> bool:
    """Whether a container was refused; what runs in a namespace that is never refused was not."""
    return bool(row["status"] == "refused")


def sentence(row: Row | None) -> str:
    """What one simulation made of a container."""
    if row is None:
        return "not part of this simulation"
    if is_refused(row):
        return f"refused: {row['refusal']['text']}"
    if row["status"] == "skipped":
        return "never created, for its pod was over before its turn"
    have = (
        f"{cpu_count(row['exclusive'])} to itself: {row['cpus']}"
        if row["exclusive"]
        else f"in the shared pool: {row['cpus']}"
    )
    parts = [have, f"NUMA {row['numa_nodes']}"]
    if row["exclusive"] and row["caches"]:
        parts.append(f"L3 {row['caches']}")
    if row["mems"]:
        parts.append(f"memory on NUMA {row['mems']}")
    parts += [f"{name}: {', '.join(ids)}" for name, ids in row["devices"].items()]
    if row["aligned"]:
        parts.append(alignment(row["aligned"]))
    if row["refusal"]:
        parts.append(f"its namespace is never refused, elsewhere it were: {row['refusal']['text']}")
    return "; ".join(parts)


def alignment(aligned: Row) -> str:
    """At which levels it is aligned, in words."""
    missing = [words for level, words in LEVELS.items() if not aligned[level]]
    return "aligned at all levels" if not missing else "not aligned: " + ", ".join(missing)


def pool_sentence(simulation: Row) -> str:
    """Who shares which CPUs."""
    totals = simulation["totals"]
    sharing = sum(not row["exclusive"] for row in simulation["containers"])
    return f"shared pool, {cpu_count(totals['shared_cpus'])}: {totals['shared_pool']}; {count(sharing, 'container')} in it"


def cpu_count(number: int) -> str:
    """A number of CPUs in words."""
    return count(number, "CPU")


def count(number: int, what: str) -> str:
    """A number of something in words."""
    return f"{number} {what}" + "s" * (number != 1)


def names(simulations: Sequence[Row]) -> list[str]:
    """What the simulations are called: A and B with their configurations where there are two."""
    configurations = [str(simulation["configuration"]["name"]) for simulation in simulations]
    if len(simulations) == 1:
        return configurations
    return [f"{chr(ord('A') + number)}: {name}" for number, name in enumerate(configurations)]


def letters(simulations: Sequence[Row]) -> list[str]:
    """The same in a letter; empty where there is only one."""
    return [chr(ord("A") + number) if len(simulations) > 1 else "" for number in range(len(simulations))]
