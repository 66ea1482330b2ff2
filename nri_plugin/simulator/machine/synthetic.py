"""hwloc's synthetic strings: the shape of a machine in one line.

`pack:2 numa:2 l3:4 core:4 pu:2` is a tree. Each word is a level, from the outside in, with the number of objects in
each object of the level before. Attributes follow a level in parentheses: `numa:2(memory=16GiB indexes=0,2,1,3)`.
`[numa(memory=16GiB)]` attaches a node to each object of the level before it; of several, the first one has the CPUs.

CPUs and NUMA nodes are numbered in the order of the tree, unless `indexes=` says otherwise, in one of hwloc's forms:

    indexes=0,4,1,5     the number of each object
    indexes=4*2:2*2     loops: STEP*COUNT, the innermost first. The number grows by one for each step of the first loop,
                        by the first count for each step of the second, and so on
    indexes=pack:core   the same loops, as the levels that they step over

Source: hwloc 2.9, "Synthetic topologies" and topology-synthetic.c.
Differs: hwloc reports wrong `indexes` and numbers objects in the order of the tree; here: they are refused.
    Why: a described machine must be the one that was meant. Option: none.
Differs: hwloc accepts levels that are not named (`2 2 2`); here: they are refused. Why: every level needs a
    meaning. Option: none.
Differs: hwloc gives a node without a memory attribute a size; here: it has no size, and `description` gives
    it one. Why: the description of the machine has the default. Option: none.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from typing import NoReturn

from nri_plugin.model.errors import ConfigError

MAX_CPUS = 8192
"""The kernel's largest NR_CPUS on common architectures."""
MAX_NODES = 1024
"""The kernel's largest NODES_SHIFT is 10."""

_WORD = re.compile(r"(?:([A-Za-z][A-Za-z0-9]*):([0-9]{1,6})|\[([A-Za-z]+))(?:\(([^()]*)\))?(\])?(?=\s|\Z)")
_ALIASES = {
    "package": "pack",
    "socket": "pack",
    "node": "numa",
    "numanode": "numa",
}
_CACHE = re.compile(r"(l[1-5])[diu]?(?:cache)?\Z")
_LEVELS = ("pack", "die", "group", "numa", "l5", "l4", "l3", "l2", "l1", "core", "pu")
_ATTRIBUTES = {"numa": ("memory", "indexes"), "pu": ("indexes",)} | {
    f"l{level}": ("size",) for level in range(1, 6)
}
_SIZE = re.compile(r"([0-9]{1,15})(k|M|G|T)?(i)?(B)?\Z")
_LOOP = re.compile(r"([0-9]{1,6})\*([0-9]{1,6})\Z")
_LIST = re.compile(r"[0-9]{1,6}(?:,[0-9]{1,6})*\Z")

Fail = Callable[[str], ConfigError]
"""Makes an error with the place of the string."""


@dataclass(frozen=True, slots=True)
class SyntheticTopology:
    """A synthetic string that has been read.

    Attributes:
        widths: objects of each level over the whole machine, outer levels first; `pu` is the last one.
        cpus: the number of each PU, in the order of the tree.
        node_ids: the number of each NUMA node, in the order of the tree.
        memory_kb: the memory of each NUMA node of a unit; None where the string does not say.
    """

    widths: dict[str, int]
    cpus: tuple[int, ...]
    node_ids: tuple[int, ...]
    memory_kb: tuple[int | None, ...]

    @property
    def cores(self) -> int:
        """The number of cores; without a level of cores, each PU is one."""
        return self.widths.get("core", len(self.cpus))

    @property
    def innermost(self) -> int:
        """The number of objects that hold cores."""
        outside = takewhile(lambda level: level not in {"core", "pu"}, self.widths)
        return [1, *(self.widths[level] for level in outside)][-1]

    def index(self, level: str, pu: int) -> int:
        """The object of a level that holds a PU, both counted in the order of the tree; 0 without the level."""
        return pu * self.widths.get(level, 1) // len(self.cpus)


@dataclass(slots=True)
class _Level:
    name: str
    count: int
    attributes: dict[str, str]


def read_synthetic(text: str, fail: Fail) -> SyntheticTopology:
    """Read a synthetic string.

    Raises:
        ConfigError: made by `fail`; names the word and what is expected.
    """
    levels: list[_Level] = []
    attached: list[_Level] = []
    attached_to = 0
    for word, level in _words(text, fail):
        if level.count:
            levels.append(level)
        elif attached and attached_to != len(levels):
            raise fail(f"{word}: attach NUMA nodes to one level only")
        else:
            attached.append(level)
            attached_to = len(levels)
    widths = _widths(levels, fail)
    nodes = next((level for level in levels if level.name == "numa"), None)
    if nodes is not None and attached:
        raise fail("NUMA nodes are a level or attached ([numa]), not both")
    # hwloc has one node for the whole machine where the string has none
    carriers = attached or [nodes or _Level("numa", 1, {})]
    units = prod(level.count for level in levels[:attached_to]) if attached else widths.get("numa", 1)
    if attached:
        # insert `numa` at the place where it nests, so that levels inside it come later
        items = list(widths.items())
        widths = dict([*items[:attached_to], ("numa", units), *items[attached_to:]])
    cpus = _indexes(levels[-1].attributes, widths, widths["pu"], fail)
    indexes = next((level.attributes for level in reversed(carriers) if "indexes" in level.attributes), {})
    node_ids = _indexes(indexes, widths, units * len(carriers), fail)
    for what, numbers, limit in (("CPU", cpus, MAX_CPUS), ("NUMA node", node_ids, MAX_NODES)):
        if max(numbers) >= limit:
            raise fail(f"{what} {max(numbers)} is above {limit - 1}, the highest the kernel can have")
    memory = (level.attributes.get("memory") for level in carriers)
    sizes = tuple(None if text is None else _size_kb(text, fail) for text in memory)
    return SyntheticTopology(widths, cpus, node_ids, sizes)


def _words(text: str, fail: Fail) -> "list[tuple[str, _Level]]":
    """The words with their levels; an attached node has the count 0."""
    found = []
    position = 0
    while rest := text[position:].lstrip():
        position = len(text) - len(rest)
        match = _WORD.match(text, position)
        if match is None or bool(match[3]) != bool(match[5]):
            _refuse(rest.split()[0], fail)
        name, count, node, attributes, _ = match.groups()
        level = _name(name or node, fail)
        if node and level != "numa":
            raise fail(f"{match[0]}: expected [numa], the only object that can be attached")
        if count and not int(count):
            raise fail(f"{match[0]}: expected a count from 1")
        found.append(
            (match[0], _Level(level, int(count or 0), _attributes(level, match[0], attributes, fail)))
        )
        position = match.end()
    return found


def _refuse(word: str, fail: Fail) -> NoReturn:
    raise fail(f"{word}: expected LEVEL:COUNT such as core:4, or [numa], as in 'pack:2 numa:2 core:4 pu:2'")


def _name(word: str, fail: Fail) -> str:
    name = word.lower()
    if match := _CACHE.match(name):
        return match[1]
    name = _ALIASES.get(name, name)
    if name not in _LEVELS:
        raise fail(f"{word}: expected a level: {', '.join(_LEVELS)}")
    return name


def _attributes(level: str, word: str, text: str | None, fail: Fail) -> dict[str, str]:
    known = _ATTRIBUTES.get(level, ())
    found: dict[str, str] = {}
    for item in (text or "").split():
        key, equals, value = item.partition("=")
        if key not in known or not equals or key in found:
            expected = " or ".join(f"{name}=..." for name in known) or "no attribute"
            raise fail(f"{word}: {item}: expected {expected} of {level}")
        found[key] = value
    return found


def _widths(levels: Sequence[_Level], fail: Fail) -> dict[str, int]:
    names = [level.name for level in levels]
    if not names or names[-1] != "pu":
        raise fail("expected pu:COUNT, the threads of a core, as the last level")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise fail(f"{twice[0]}: a level can be there only once")
    below = names[names.index("core") + 1 : -1] if "core" in names else []
    if wrong := [name for name in below if name not in {"l1", "l2"}]:
        raise fail(f"{wrong[0]}: expected core:COUNT behind it; a core holds its own caches and pu only")
    widths = {}
    total = 1
    for level in levels:
        total *= level.count
        if total > MAX_CPUS:
            raise fail(f"the machine has more than the {MAX_CPUS} CPUs the kernel can have")
        widths[level.name] = total
    return widths


def _indexes(attributes: dict[str, str], widths: dict[str, int], total: int, fail: Fail) -> tuple[int, ...]:
    """The numbers of `total` objects in the order of the tree."""
    text = attributes.get("indexes")
    if text is None:
        return tuple(range(total))
    if _LIST.match(text):
        numbers = tuple(map(int, text.split(",")))
        if len(numbers) != total:
            raise fail(f"indexes={text}: {len(numbers)} numbers for {total} objects; give one for each")
    else:
        loops = _loops(text, widths, total, fail)
        found = [0] * total
        factor = 1
        for step, count in loops:
            for position in range(total):
                found[position] += position // step % count * factor
            factor *= count
        numbers = tuple(found)
    if len(set(numbers)) != total:
        raise fail(f"indexes={text}: the same number is there twice")
    return numbers


def _loops(text: str, widths: dict[str, int], total: int, fail: Fail) -> list[tuple[int, int]]:
    """The loops as (step, count). One that is missing steps over single objects, as hwloc has it."""
    words = text.split(":")
    if "*" in text:
        matches = [_LOOP.match(word) for word in words]
        loops = [(int(match[1]), int(match[2])) for match in matches if match]
        if len(loops) != len(words) or any(not step or not count for step, count in loops):
            raise fail(f"indexes={text}: expected loops such as 4*2:2*2, each STEP*COUNT from 1")
    else:
        loops = _loops_over_levels(text, [_name(word, fail) for word in words], widths, total, fail)
    product = prod(count for _, count in loops)
    if product != total:
        if total % product or min(step for step, _ in loops) != total // product:
            raise fail(f"indexes={text}: the loops number {product} objects, there are {total}")
        loops.append((1, total // product))
    return loops


def _loops_over_levels(
    text: str, names: Sequence[str], widths: dict[str, int], total: int, fail: Fail
) -> list[tuple[int, int]]:
    order = list(widths)
    inner = [name for name in names if name not in widths or total % widths[name] or name == "pu"]
    if inner or len(set(names)) < len(names):
        raise fail(
            f"indexes={text}: expected levels outside of the numbered one, each once: {', '.join(order[:-1])}"
        )
    loops = []
    for name in names:
        # a loop runs over the objects within one object of the next outer level that has a loop, too
        outer = [widths[other] for other in order[: order.index(name)] if other in names]
        loops.append((total // widths[name], widths[name] // (outer[-1] if outer else 1)))
    return loops


def _size_kb(text: str, fail: Fail) -> int:
    match = _SIZE.match(text)
    if match is None or (match[2] and not match[4]) or (match[3] and not match[2]):
        raise fail(f"memory={text}: expected a size such as 16GiB, 16GB or a number of bytes")
    power = " kMGT".index(match[2] or " ")
    base = 1024 if match[3] else 1000
    return int(match[1]) * int(base**power) >> 10
