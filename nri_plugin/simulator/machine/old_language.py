"""Reads descriptions in the language of earlier releases (`2 sockets, 4 cores each, SMT 2`) for one release more.

`convert` writes the same machine in the fields of `description`; `nri-pin topology FILE --convert` prints it. Ids and
numbers are checked where the new text is read.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from math import prod

from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError

_OLD = re.compile(r"^[^#:\n]*\b[0-9]+[ \t]+cores?\b(?!:)", re.IGNORECASE | re.MULTILINE)
_CONTINUED = re.compile(r"([/+])[ \t]*(?:#[^\n]*)?\n")
_NAMES = {"socket": "pack", "package": "pack", "numa": "numa", "node": "numa", "l3": "l3", "cache": "l3"}
_KIND = r"(\d+) cores?(?: each)?(?: smt (\d+))?"
_DEVICES = r"(\d+)(?: named (.+?))?(?: on (?:numa )?(?:nodes? )?([0-9,-]+))?"
_CLAUSES = {
    "level": r"(\d+) (socket|package|numa|node|l3|cache)(?: node| l3| cache)?s?(?: each)?",
    "cores": rf"({_KIND}(?: ?\+ ?{_KIND})*)",
    "threads": r"(?:smt )?(\d+)(?: threads?)?(?: each)?",
    "siblings": r"(?:numbering )?siblings? (split|adjacent)",
    "interleaved": r"(?:numbering )?interleaved (?:by |over )?(?:numa )?(socket|node)s?",
    "sockets": r"socket ids? ([0-9, -]+)",
    "node ids": r"node ids? ([0-9, -]+)",
    "memory": r"memory (\w+(?: \d\w*)*)(?: each)?",
    "pool": r"hugepages? (\d+) x (\w+)(?: on (?:nodes? )?([0-9,-]+))?(?: each)?",
    "cpuless": r"cpu-less (?:numa )?nodes? ([0-9,-]+)(?: memory (\w+))?",
    "rows": r"distances? (\d.+)",
    "distances": r"distances? ([a-z].+)",
    "none": r"no (distances|numa)",
    "no l3": r"no (l3)",
    "list": r"(offline|isolated|nohz_full|no l3 on)(?: cpus?)? ([0-9,-]+)",
    "devices": rf"devices? (\S+) ({_DEVICES}(?: ?\+ ?{_DEVICES})*)(?: as (device|variable|cdi)(?: nodes?|s)?)?",
    "links": r"links? (\S+) (?:weight )?(\w+) (.+)",
}
_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _CLAUSES.items()}

_Said = Mapping[str, list[tuple[str, ...]]]
"""The groups of each clause, by the name of its pattern, in the order written."""


def is_old(text: str) -> bool:
    """Whether a text is in the old language: it has `N cores`, which every old description has."""
    return _OLD.search(text) is not None


def note(source: str) -> None:
    """Tell the user how to convert an old file."""
    sys.stderr.write(
        f"note: {source} is in the old language of machines, which the next release does not read; "
        "convert it: nri-pin topology OLD --convert > NEW\n"
    )


def convert(text: str, source: str) -> str:
    """The same machine in the fields of `description`.

    Raises:
        ConfigError: a clause is not known; names file and line.
    """
    said: dict[str, list[tuple[str, ...]]] = {name: [] for name in _PATTERNS}
    for line, clause in _clauses(text):
        matches = ((name, pattern.fullmatch(clause)) for name, pattern in _PATTERNS.items())
        name, groups = next(((name, match.groups("")) for name, match in matches if match), ("", ()))
        if not name:
            raise ConfigError(f"{source}:{line}", f"expected a clause of the old language, found '{clause}'")
        said[name].append(groups)
    first = text.lstrip().partition("\n")[0]
    heading = [first] if first.startswith("#") else []
    return "\n".join([*heading, *_fields(said, source)]) + "\n"


def _clauses(text: str) -> Iterator[tuple[int, str]]:
    """The clauses with their lines; a line that ends in `/` or `+` goes on in the next."""
    line = 1
    # a form feed replaces the line end of a continued line, so that lines are counted right
    for whole in _CONTINUED.sub("\\1 \f", text).split("\n"):
        for clause in re.split(r"[,;](?=\s|\Z)", whole.partition("#")[0]):
            # a colon after a word has no meaning; a colon inside a word is part of a PCI address
            if words := re.sub(r":(?=\s|\Z)", "", clause).split():
                yield line, " ".join(words)
        line += 1 + whole.count("\f")


def _fields(said: _Said, source: str) -> Iterator[str]:
    threads = said["threads"][-1][0] if said["threads"] else "1"
    kinds = [(count, own or threads) for count, own in re.findall(_KIND, said["cores"][-1][0], re.IGNORECASE)]
    levels = _levels(said)
    names = [name for name, _ in levels]
    nodes = prod(count for _, count in levels[: names.index("numa") + 1])
    node_ids = sorted(_numbers(said["node ids"][-1][0]) if said["node ids"] else range(nodes))
    yield "topology: " + _string(
        said, levels, sum(int(count) for count, _ in kinds), max(int(t) for _, t in kinds)
    )
    for (pairs,) in said["distances"]:
        values = re.sub(r"(\S+) (\d+) ?", r"\1: \2, ", pairs.lower().replace("cpu-less", "cpuless"))
        yield f"distances: {{{values.removesuffix(', ')}}}"
    for (rows,) in said["rows"]:
        yield from ["distances:", *(f"  - [{', '.join(row.split())}]" for row in rows.split("/"))]
    yield from (f"{word.lower()}: none" for (word,) in said["none"])
    yield from (f"sockets: {list(_numbers(ids))}" for (ids,) in said["sockets"])
    if len(kinds) > 1:
        yield f"kinds: [{', '.join(f'{{cores: {count}, threads: {own}}}' for count, own in kinds)}]"
    if nodes_said := _nodes(said, node_ids, source):
        yield from ["nodes:", *nodes_said]
    for name in dict.fromkeys(name for name, _ in said["list"]):
        field = "without_l3" if name.lower() == "no l3 on" else name.lower()
        yield f"{field}: {','.join(cpus for other, cpus in said['list'] if other == name)}"
    if said["devices"]:
        yield from ["devices:", *_devices(said)]
    if said["links"]:
        yield "links:"
    for resource, weight, text in said["links"]:
        groups = ", ".join(f"[{', '.join(map(_quoted, group.split()))}]" for group in text.split("/"))
        yield f"  - {{resource: {resource}, weight: {weight.lower()}, groups: [{groups}]}}"


def _levels(said: _Said) -> list[tuple[str, int]]:
    """The levels, with the implied ones of the old language: a socket, one NUMA node and one L3 in each socket."""
    levels = [(_NAMES[name.lower()], int(count)) for count, name in said["level"]]
    names = [name for name, _ in levels]
    if "pack" not in names:
        levels.insert(0, ("pack", 1))
    place = [name for name, _ in levels].index("pack") + 1
    levels[place:place] = [(name, 1) for name in ("numa", "l3") if name not in names]
    return levels


def _string(said: _Said, levels: list[tuple[str, int]], cores: int, threads: int) -> str:
    memory = said["memory"][-1][0].split() if said["memory"] else []
    sizes = (
        [f"memory={_size(memory[0])}".removesuffix("i") + "iB" * (memory[0] != "0")]
        if len(memory) == 1
        else []
    )
    ids = [f"indexes={','.join(map(str, _numbers(ids)))}" for (ids,) in said["node ids"]]
    words = []
    for name, count in levels:
        attributes = f"({' '.join([*sizes, *ids])})" if name == "numa" and (sizes or ids) else ""
        if name == "l3" and said["no l3"]:
            words += [f"group:{count}"] * (count > 1)
        else:
            words.append(f"{name}:{count}{attributes}")
    return " ".join([*words, f"core:{cores}", f"pu:{threads}{_indexes(said, levels, cores, threads)}"])


def _indexes(said: _Said, levels: list[tuple[str, int]], cores: int, threads: int) -> str:
    """The numbers of CPUs. hwloc numbers the threads of a core consecutively, the old language does not."""
    interleaved = _NAMES[said["interleaved"][-1][0].lower()] if said["interleaved"] else ""
    is_adjacent = bool(said["siblings"]) and said["siblings"][-1][0].lower() == "adjacent"
    if not is_adjacent and threads > 1:
        return f"(indexes={interleaved}:core)" if interleaved else "(indexes=core)"
    if not interleaved:
        return ""
    place = [name for name, _ in levels].index(interleaved) + 1
    counts = [count for _, count in levels]
    units, inside = prod(counts[:place]), prod(counts[place:]) * cores
    return f"(indexes=1*{threads}:{inside * threads}*{units}:{threads}*{inside})"


def _nodes(said: _Said, ids: list[int], source: str) -> list[str]:
    """The lines of the nodes, those that are alike in one."""
    about: dict[int, list[str]] = {}
    memory = said["memory"][-1][0].split() if said["memory"] else []
    if len(memory) > 1:
        if len(memory) != len(ids):
            raise ConfigError(
                source, f"{len(memory)} memory sizes for {len(ids)} NUMA nodes: give one for each"
            )
        about = {node: [f"memory: {_size(size)}"] for node, size in zip(ids, memory, strict=True)}
    for listed, size in said["cpuless"]:
        about |= {node: ["cpus: none", f"memory: {_size(size or '16Gi')}"] for node in _numbers(listed)}
    pools: dict[int, dict[str, int]] = {}
    for pages, size, listed in said["pool"]:
        for node in _numbers(listed) if listed else ids:
            sizes = pools.setdefault(node, {})
            sizes[_size(size)] = sizes.get(_size(size), 0) + int(pages)
    for node, sizes in pools.items():
        shown = ", ".join(f"{size}: {pages}" for size, pages in sizes.items())
        about.setdefault(node, []).append(f"hugepages: {{{shown}}}")
    alike: dict[str, list[int]] = {}
    for node, words in about.items():
        alike.setdefault(", ".join(words), []).append(node)
    return [f"  {bits.format_list(bits.from_ids(nodes))}: {{{words}}}" for words, nodes in alike.items()]


def _devices(said: _Said) -> Iterator[str]:
    for resource, text, *_, delivery in said["devices"]:
        shown = f", as: {delivery.lower()}" if delivery else ""
        for count, named, nodes in re.findall(_DEVICES + r"(?: ?\+ ?|\Z)", text, re.IGNORECASE):
            ids = ", ".join(map(_quoted, named.split()))
            where = f", nodes: {_quoted(nodes)}" if nodes else ""
            yield f"  - {{resource: {resource}, {f'ids: [{ids}]' if ids else f'count: {count}'}{where}{shown}}}"


def _numbers(text: str) -> Iterator[int]:
    """The numbers of a list in the order written."""
    for item in text.replace(",", " ").split():
        first, _, last = item.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _size(text: str) -> str:
    """A size such as `16Gi` with its unit as Kubernetes spells it."""
    return text[:-2] + text[-2:].capitalize() if text[-1:].isalpha() else text


def _quoted(name: str) -> str:
    """A value of a flow mapping, in quotes where a colon or a comma would end it."""
    return f'"{name}"' if ":" in name or "," in name else name
