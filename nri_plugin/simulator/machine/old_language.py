"""Reads descriptions in the language of earlier releases (`2 sockets, 4 cores each, SMT 2`) for one release more.

`convert` writes the same machine in the fields of `description`; `nri-pin topology FILE --convert` prints it. Numbers
are checked where the new text is read.
"""

import re
import sys
from collections.abc import Iterator
from math import prod

from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError

_OLD = re.compile(r"^[^#:]*\b[0-9]+\s+cores?\b(?!:)", re.IGNORECASE | re.MULTILINE)
_CONTINUED = re.compile(r"([/+])[ \t]*(?:#[^\n]*)?\n")
_NAMES = {"socket": "pack", "package": "pack", "numa": "numa", "node": "numa", "l3": "l3", "cache": "l3"}
_LISTS = {"offline": "offline", "isolated": "isolated", "nohz_full": "nohz_full", "no l3 on": "without_l3"}
_DEVICES = re.compile(r"(\d+)(?: named (.+?))?(?: on (?:numa )?(?:nodes? )?([0-9,-]+))?", re.IGNORECASE)


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
    old = _OldDescription(source)
    for line, clause in _clauses(text):
        try:
            known = old.read(clause)
        except ValueError:
            known = False
        if not known:
            raise ConfigError(f"{source}:{line}", f"expected a clause of the old language, found '{clause}'")
    first = text.lstrip().partition("\n")[0]
    heading = [first] if first.startswith("#") else []
    return "\n".join([*heading, *old.lines()]) + "\n"


def _clauses(text: str) -> Iterator[tuple[int, str]]:
    """The clauses with their lines; a line that ends in `/` or `+` goes on in the next."""
    # the line end stays countable as \f while it joins two lines
    joined = _CONTINUED.sub("\\1 \f", text)
    line = 1
    for whole in joined.split("\n"):
        for clause in re.split(r"[,;](?=\s|\Z)", whole.partition("#")[0]):
            # a colon after a word means nothing; one inside a word is part of a PCI address
            if words := re.sub(r":(?=\s|\Z)", "", clause).split():
                yield line, " ".join(words)
        line += 1 + whole.count("\f")


class _OldDescription:
    """What the clauses said so far."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.levels: list[tuple[str, int]] = []
        self.cores: list[tuple[int, int | None]] = []
        self.threads = 1
        self.is_adjacent = False
        self.interleaved = ""
        self.socket_ids: list[int] = []
        self.node_ids: list[int] = []
        self.memory: list[str] = []
        self.hugepages: list[tuple[str, str, str]] = []
        self.cpuless: list[tuple[str, str]] = []
        self.has_l3 = True
        self.fields: list[str] = []
        self.lists: dict[str, list[str]] = {}
        self.devices: list[str] = []
        self.links: list[str] = []

    def read(self, clause: str) -> bool:
        """Take one clause; False if it is not known."""
        clause = re.sub(r"^numbering ", "", clause, flags=re.IGNORECASE)
        for pattern, take in _CLAUSES:
            if match := pattern.fullmatch(clause):
                take(self, *match.groups())
                return True
        return False

    def take_level(self, count: str, name: str) -> None:
        self.levels.append((_NAMES[name.lower().split()[0]], int(count)))

    def take_kinds(self, text: str) -> None:
        for kind in re.finditer(r"(\d+) cores?(?: each)?(?: smt (\d+))?", text, re.IGNORECASE):
            self.cores.append((int(kind[1]), int(kind[2]) if kind[2] else None))

    def take_threads(self, one: str, other: str) -> None:
        self.threads = int(one or other)

    def take_siblings(self, word: str) -> None:
        self.is_adjacent = word.lower() == "adjacent"

    def take_interleaved(self, level: str) -> None:
        self.interleaved = _NAMES[level.lower()]

    def take_socket_ids(self, ids: str) -> None:
        self.socket_ids = list(_numbers(ids))

    def take_node_ids(self, ids: str) -> None:
        self.node_ids = list(_numbers(ids))

    def take_memory(self, sizes: str) -> None:
        self.memory = sizes.split()

    def take_pool(self, pages: str, size: str, nodes: str) -> None:
        self.hugepages.append((pages, _size(size), nodes or ""))

    def take_cpuless(self, nodes: str, size: str) -> None:
        self.cpuless.append((nodes, _size(size or "16Gi")))

    def take_distances(self, text: str) -> None:
        self.fields.append("distances:" + _distances(text.lower()))

    def take_none(self, word: str) -> None:
        if word.lower() == "l3":
            self.has_l3 = False
        else:
            self.fields.append("numa: none" if word.lower() == "numa" else "distances: none")

    def take_list(self, name: str, cpus: str) -> None:
        self.lists.setdefault(_LISTS[name.lower()], []).append(cpus)

    def take_devices(self, resource: str, text: str, delivery: str) -> None:
        shown = f", as: {delivery.lower()}" if delivery else ""
        for part in text.split("+"):
            match = _DEVICES.fullmatch(part.strip())
            if match is None:
                raise ValueError
            names = [_quoted(name) for name in (match[2] or "").split()]
            what = f"ids: [{', '.join(names)}]" if names else f"count: {match[1]}"
            # in a flow mapping a comma ends the value
            nodes = f", nodes: {_quoted(match[3])}" if match[3] else ""
            self.devices.append(f"  - {{resource: {resource}, {what}{nodes}{shown}}}")

    def take_links(self, resource: str, weight: str, text: str) -> None:
        groups = ", ".join(f"[{', '.join(map(_quoted, group.split()))}]" for group in text.split("/"))
        self.links.append(f"  - {{resource: {resource}, weight: {weight.lower()}, groups: [{groups}]}}")

    def lines(self) -> list[str]:
        """The new text."""
        threads = [kind or self.threads for _, kind in self.cores]
        self._add_levels()
        nodes = prod(count for _, count in self.levels[: [name for name, _ in self.levels].index("numa") + 1])
        ids = sorted(self.node_ids or range(nodes))
        fields = list(self.fields)
        if self.socket_ids:
            fields.append(f"sockets: {self.socket_ids}")
        if len(self.cores) > 1:
            kinds = zip(self.cores, threads, strict=True)
            shown = ", ".join(f"{{cores: {cores}, threads: {count}}}" for (cores, _), count in kinds)
            fields.append(f"kinds: [{shown}]")
        if about_nodes := self._nodes(ids):
            fields += ["nodes:", *about_nodes]
        fields += [f"{key}: {','.join(items)}" for key, items in self.lists.items()]
        fields += ["devices:", *self.devices] if self.devices else []
        fields += ["links:", *self.links] if self.links else []
        string = self._string(max(threads))
        return [f"topology: {string}", *fields]

    def _add_levels(self) -> None:
        """Name the levels that the old language took for granted: a socket, one node and one L3 in each socket."""
        names = [name for name, _ in self.levels]
        if "pack" not in names:
            self.levels.insert(0, ("pack", 1))
        place = [name for name, _ in self.levels].index("pack") + 1
        self.levels[place:place] = [(name, 1) for name in ("numa", "l3") if name not in names]

    def _string(self, threads: int) -> str:
        cores = sum(count for count, _ in self.cores)
        words = []
        for level, count in self.levels:
            name, attributes = level, []
            if name == "numa" and len(self.memory) == 1 and self.memory[0] != "0":
                attributes.append(f"memory={_size(self.memory[0])}B")
            elif name == "numa" and self.memory == ["0"]:
                attributes.append("memory=0")
            if name == "numa" and self.node_ids:
                attributes.append("indexes=" + ",".join(map(str, self.node_ids)))
            if name == "l3" and not self.has_l3:
                if count == 1:
                    continue
                name = "group"
            words.append(f"{name}:{count}" + (f"({' '.join(attributes)})" if attributes else ""))
        return " ".join([*words, f"core:{cores}", f"pu:{threads}{self._indexes(cores, threads)}"])

    def _indexes(self, cores: int, threads: int) -> str:
        """The numbers of CPUs: hwloc numbers the threads of a core one after the other, the old language apart."""
        if self.is_adjacent or threads == 1:
            if not self.interleaved:
                return ""
            names = [name for name, _ in self.levels]
            counts = [count for _, count in self.levels]
            place = names.index(self.interleaved) + 1
            units, inside = prod(counts[:place]), prod(counts[place:]) * cores
            return f"(indexes=1*{threads}:{inside * threads}*{units}:{threads}*{inside})"
        return f"(indexes={self.interleaved}:core)" if self.interleaved else "(indexes=core)"

    def _nodes(self, ids: list[int]) -> Iterator[str] | list[str]:
        about: dict[int, list[str]] = {}
        if len(self.memory) > 1:
            if len(self.memory) != len(ids):
                raise ConfigError(
                    self.source,
                    f"{len(self.memory)} memory sizes for {len(ids)} NUMA nodes: give one for each",
                )
            for node, size in zip(ids, self.memory, strict=True):
                about.setdefault(node, []).append(f"memory: {_size(size)}")
        for listed, size in self.cpuless:
            for node in _numbers(listed):
                about.setdefault(node, []).extend(["cpus: none", f"memory: {size}"])
        pools: dict[int, dict[str, int]] = {}
        for pages, size, listed in self.hugepages:
            for node in _numbers(listed) if listed else ids:
                sizes = pools.setdefault(node, {})
                sizes[size] = sizes.get(size, 0) + int(pages)
        for node, sizes in pools.items():
            shown = ", ".join(f"{size}: {pages}" for size, pages in sizes.items())
            about.setdefault(node, []).append(f"hugepages: {{{shown}}}")
        alike: dict[str, list[int]] = {}
        for node, said in about.items():
            alike.setdefault(", ".join(said), []).append(node)
        return [f"  {bits.format_list(bits.from_ids(nodes))}: {{{said}}}" for said, nodes in alike.items()]


_CLAUSES = tuple(
    (re.compile(pattern.replace("LIST", "([0-9][0-9,-]*)"), re.IGNORECASE), take)
    for pattern, take in (
        (
            r"(\d+) (socket|package|numa(?: node| l3)?|node|l3(?: cache)?|cache)s?(?: each)?",
            _OldDescription.take_level,
        ),
        (
            r"(\d+ cores?(?: each)?(?: smt \d+)?(?: ?\+ ?\d+ cores?(?: each)?(?: smt \d+)?)*)",
            _OldDescription.take_kinds,
        ),
        (r"(?:smt (\d+)|(\d+) threads?)(?: each)?", _OldDescription.take_threads),
        (r"siblings? (split|adjacent)", _OldDescription.take_siblings),
        (r"interleaved (?:by |over )?(?:numa )?(socket|node)s?", _OldDescription.take_interleaved),
        (r"socket ids? ([0-9, -]+)", _OldDescription.take_socket_ids),
        (r"node ids? ([0-9, -]+)", _OldDescription.take_node_ids),
        (r"memory (\w+(?: \d\w*)*)(?: each)?", _OldDescription.take_memory),
        (r"hugepages? (\d+) x (\w+)(?: on (?:nodes? )?LIST)?(?: each)?", _OldDescription.take_pool),
        (r"cpu-less (?:numa )?nodes? LIST(?: memory (\w+))?", _OldDescription.take_cpuless),
        (r"distances? (.+)", _OldDescription.take_distances),
        (r"no (l3|numa|distances?)", _OldDescription.take_none),
        (r"(offline|isolated|nohz_full|no l3 on)(?: cpus?)? LIST", _OldDescription.take_list),
        (r"devices? (\S+) (\d.*?)(?: as (device|variable|cdi)(?: nodes?|s)?)?", _OldDescription.take_devices),
        (r"links? (\S+) (?:weight )?(\w+) (.+)", _OldDescription.take_links),
    )
)


def _numbers(text: str) -> Iterator[int]:
    """The numbers of a list in the order written."""
    for item in text.replace(",", " ").split():
        first, _, last = item.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _distances(text: str) -> str:
    if text[:1].isdigit():
        return "".join(f"\n  - [{', '.join(row.split())}]" for row in text.split("/"))
    words = text.replace("cpu-less", "cpuless").split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return " {" + ", ".join(f"{word}: {number}" for word, number in pairs) + "}"


def _size(text: str) -> str:
    """A size such as `16Gi` with its unit as Kubernetes spells it."""
    return text[:-2] + text[-2:].capitalize() if text[-1:].isalpha() else text


def _quoted(name: str) -> str:
    return f'"{name}"' if ":" in name or "," in name else name
