"""The little language in which a machine is described, and its parser.

A description is a list of clauses, separated by line ends or by a comma and a space; `#` starts a
comment. Upper and lower case, a plural s, `each` and a colon after a word mean nothing.

    2 sockets, 2 NUMA nodes each, 4 L3 each, 4 cores each, SMT 2
    distances local 10 socket 12 remote 32
    memory 64Gi each

The first line is the shape, **from the outside in, in the order written**: `2 sockets, 1 L3 each, 2 NUMA
each` is one cache over two nodes, `1 NUMA, 2 sockets each` one node over two sockets. Sockets, nodes
and caches that are not named: one socket, one node per socket, one L3 per socket.

    COUNT sockets | COUNT NUMA nodes | COUNT L3        one level of the shape
    COUNT cores [SMT T] [+ COUNT cores [SMT T]]        the innermost level; several kinds make a hybrid
    SMT T | T threads                                  threads of cores that do not say it (1)
    siblings split | siblings adjacent                 threads of a core are numbered apart (so it is
                                                       without this clause), or next to each other
    interleaved by sockets | interleaved by nodes      CPU numbers go round instead of through
    socket ids LIST | node ids LIST                    kernel ids in the order of the shape (0, 1, ...)
    memory SIZE [SIZE ...]                             one for all nodes with CPUs, or one per node (16Gi)
    hugepages COUNT x SIZE [on LIST]                   on every node with CPUs, or on those named
    cpu-less nodes LIST [memory SIZE]                  further nodes without CPUs (16Gi)
    distances [local N] [socket N] [remote N] [cpu-less N]   (10, 12, 21, as remote)
    distances N N ... / N N ... / ...                  rows by ascending node id
    offline LIST | isolated LIST | nohz_full LIST      CPUs; the last run without a tick
    no L3 [on LIST] | no NUMA | no distances           what the kernel does not show
    devices RESOURCE COUNT [named ID ...] [on NODES] [+ COUNT ...] [as device nodes | variable | CDI]
                                                       what pods can ask for, with ids 0, 1, ... where none
                                                       are named; see `machine_devices`
    links RESOURCE nvlink | switch | bridge | weight N  ID ID ... [/ ID ID ...]
                                                       how strongly every two of a group are joined
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nri_plugin.model import bits
from nri_plugin.model.errors import ConfigError
from nri_plugin.simulator.machine.devices import DescribedDevice, Link, read_devices, read_links
from nri_plugin.simulator.machine.words import Clause, read_clauses

DEFAULT_MEMORY_KB = 16 << 20
MAX_CPUS = 8192
"""The kernel's largest NR_CPUS on common architectures."""
MAX_NODES = 1024
"""The kernel's largest NODES_SHIFT is 10."""

_LEVELS = {
    "socket": "socket",
    "package": "socket",
    "numa": "node",
    "node": "node",
    "l3": "cache",
    "cache": "cache",
}
_TAIL = {"numa": "node", "l3": "cache"}
"""Words that may follow: `NUMA nodes`, `L3 caches`."""


@dataclass(frozen=True, slots=True)
class Hugepages:
    """`pages` of `size_kb` on each of `nodes` (all nodes with CPUs if None)."""

    size_kb: int
    pages: int
    nodes: int | None


@dataclass(frozen=True, slots=True)
class Distances:
    """Distances by what two nodes have in common, or the whole table.

    Attributes:
        local: from a node to itself.
        socket: between nodes that have CPUs of one socket.
        remote: between others.
        cpuless: where one of the two has no CPUs.
        rows: the table by ascending node ids; None where the values above make it.
    """

    local: int = 10
    socket: int = 12
    remote: int = 21
    cpuless: int | None = None
    rows: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A machine as described: the clauses, with nothing worked out yet.

    Attributes:
        name: what it is called in lists and pictures.
        title: the first comment line of its text.
        levels: (`socket`, `node` or `cache`; how many in each unit of the level before), outer first.
        cores: (how many, threads of each; None for `smt`) in each innermost unit.
        smt: threads of a core whose kind does not say.
        are_siblings_adjacent: whether threads of a core have consecutive CPU numbers.
        interleaved_by: the level over which CPU numbers go round; empty for none.
        socket_ids: kernel ids in the order of the shape; empty for 0, 1, ...
        node_ids: likewise.
        memory_kb: one for all nodes with CPUs, or one for each.
        hugepages: pools.
        cpuless: (node id, memory in kB).
        distances: None for a kernel that does not show them.
        offline: mask of CPUs.
        isolated, tickless: likewise.
        without_l3: likewise; -1 for all.
        has_numa: False for a kernel without NUMA nodes.
        cpu_places: where CPUs are named: (mask, FILE:LINE:COLUMN).
        devices: in the order written.
        links: between devices; of several for one pair the heaviest counts.
        file: where it was read; empty where only its name is known.
    """

    name: str = "machine"
    title: str = ""
    levels: tuple[tuple[str, int], ...] = ()
    cores: tuple[tuple[int, int | None], ...] = ()
    smt: int = 1
    are_siblings_adjacent: bool = False
    interleaved_by: str = ""
    socket_ids: tuple[int, ...] = ()
    node_ids: tuple[int, ...] = ()
    memory_kb: tuple[int, ...] = (DEFAULT_MEMORY_KB,)
    hugepages: tuple[Hugepages, ...] = ()
    cpuless: tuple[tuple[int, int], ...] = ()
    distances: Distances | None = field(default=Distances())
    offline: int = 0
    isolated: int = 0
    tickless: int = 0
    without_l3: int = 0
    has_numa: bool = True
    cpu_places: tuple[tuple[int, str], ...] = field(default=(), compare=False)
    devices: tuple[DescribedDevice, ...] = ()
    links: tuple[Link, ...] = ()
    file: str = field(default="", compare=False)


def parse(text: str, name: str = "machine", source: str = "") -> Description:
    """The description a text stands for.

    Args:
        text: see the head of this module.
        name: what the machine is called.
        source: the file named in errors; `name` if empty.

    Raises:
        ConfigError: with file, line and column, what was expected and what was found.
    """
    description = Description(name=name, title=_title(text), file=source)
    source = source or name
    for clause in read_clauses(text, source):
        description = _clause(description, clause)
    if not description.cores:
        raise ConfigError(f"{source}:1:1", "expected a clause such as '4 cores each', found none")
    return description


def _title(text: str) -> str:
    first = text.lstrip().partition("\n")[0]
    return first[1:].strip() if first.startswith("#") else ""


def _clause(description: Description, clause: Clause) -> Description:
    clause.take("numbering")
    if clause.sees_number():
        return _shape(description, clause)
    word = clause.expect(*_KEYWORDS, what="a number or one of " + ", ".join(_KEYWORDS))
    changed = _KEYWORDS[word](description, clause)
    clause.end()
    return changed


def _shape(description: Description, clause: Clause) -> Description:
    start = clause.position
    count = clause.number(1, "how many")
    if clause.peek() == "core":
        clause.position = start
        return _cores(description, clause)
    if clause.take("thread"):
        clause.end()
        return replace(description, smt=count)
    if description.cores:
        clause.fail("a clause that is no level of the shape: cores come last")
    word = clause.expect(*_LEVELS, "core", "thread", what="sockets, NUMA nodes, L3, cores or threads")
    level = _LEVELS[word]
    if any(level == other for other, _ in description.levels):
        clause.position -= 1
        clause.fail(f"a level other than {level}, which is there already")
    clause.take(_TAIL.get(word, ""))
    clause.end()
    return replace(description, levels=(*description.levels, (level, count)))


def _cores(description: Description, clause: Clause) -> Description:
    if description.cores:
        clause.fail("one clause of cores; write several kinds as '8 cores SMT 2 + 8 cores'")
    kinds: list[tuple[int, int | None]] = []
    while not kinds or clause.take("+"):
        count = clause.number(1, "how many")
        clause.expect("core")
        clause.take("each")
        kinds.append((count, clause.number(1, "threads") if clause.take("smt") else None))
    clause.end()
    return replace(description, cores=tuple(kinds))


def _smt(description: Description, clause: Clause) -> Description:
    return replace(description, smt=clause.number(1, "threads"))


def _siblings(description: Description, clause: Clause) -> Description:
    return replace(description, are_siblings_adjacent=clause.expect("split", "adjacent") == "adjacent")


def _interleaved(description: Description, clause: Clause) -> Description:
    clause.take("by", "over")
    clause.take("numa")
    return replace(description, interleaved_by=clause.expect("socket", "node"))


def _ids(key: str) -> "Handler":
    def handler(description: Description, clause: Clause) -> Description:
        clause.expect("id", "ids")
        numbers: list[int] = []
        while not numbers or clause.sees_number():
            numbers += _id_sequence(clause)
        if len(set(numbers)) < len(numbers):
            clause.fail("every id once")
        if key == "socket_ids":
            return replace(description, socket_ids=tuple(numbers))
        return replace(description, node_ids=tuple(numbers))

    return handler


def _id_sequence(clause: Clause) -> list[int]:
    """The numbers of a list in the order written; `bits` would sort them."""
    text = clause.text
    clause.ids("ids such as 0,2 or 0-3")
    numbers: list[int] = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _memory(description: Description, clause: Clause) -> Description:
    sizes = [clause.size_kb()]
    while clause.sees_number():
        sizes.append(clause.size_kb())
    return replace(description, memory_kb=tuple(sizes))


def _hugepages(description: Description, clause: Clause) -> Description:
    pages = clause.number(0, "how many pages")
    clause.expect("x")
    size_kb = clause.size_kb()
    if not size_kb:
        clause.position -= 1
        clause.fail("a page size such as 2Mi")
    nodes = None
    if clause.take("on"):
        clause.take("node")
        nodes = clause.ids("node ids such as 0-1")
    return replace(description, hugepages=(*description.hugepages, Hugepages(size_kb, pages, nodes)))


def _cpuless(description: Description, clause: Clause) -> Description:
    clause.take("numa")
    clause.expect("node")
    mask = clause.ids("node ids such as 4-33")
    size_kb = clause.size_kb() if clause.take("memory") else DEFAULT_MEMORY_KB
    return replace(
        description, cpuless=(*description.cpuless, *((node, size_kb) for node in bits.iterate(mask)))
    )


def _distances(description: Description, clause: Clause) -> Description:
    if clause.sees_number():
        return replace(description, distances=Distances(rows=_rows(clause)))
    values: dict[str, int] = {}
    while clause.peek() in {"local", "socket", "remote", "cpu-less"} or not values:
        word = clause.expect("local", "socket", "remote", "cpu-less")
        values[word.replace("-", "")] = _distance(clause)
    distances = Distances(
        local=values.get("local", 10),
        socket=values.get("socket", 12),
        remote=values.get("remote", 21),
        cpuless=values.get("cpuless"),
    )
    return replace(description, distances=distances)


def _rows(clause: Clause) -> tuple[tuple[int, ...], ...]:
    rows: list[tuple[int, ...]] = []
    while not rows or clause.take("/"):
        row = [_distance(clause)]
        while clause.sees_number():
            row.append(_distance(clause))
        rows.append(tuple(row))
    return tuple(rows)


def _distance(clause: Clause) -> int:
    number = clause.number(10, "a distance")
    if number > 255:
        clause.position -= 1
        clause.fail("a distance from 10 to 255")
    return number


def _named_cpus(description: Description, clause: Clause, attribute: str, what: str) -> Description:
    where = clause.where
    mask = clause.ids(what)
    changed = replace(description, cpu_places=(*description.cpu_places, (mask, where)))
    return replace(changed, **{attribute: getattr(description, attribute) | mask})


def _offline(description: Description, clause: Clause) -> Description:
    clause.take("cpu")
    return _named_cpus(description, clause, "offline", "cpus such as 0-3,8")


def _isolated(description: Description, clause: Clause) -> Description:
    clause.take("cpu")
    return _named_cpus(description, clause, "isolated", "cpus such as 0-3,8")


def _tickless(description: Description, clause: Clause) -> Description:
    clause.take("cpu")
    return _named_cpus(description, clause, "tickless", "cpus such as 0-3,8")


def _no(description: Description, clause: Clause) -> Description:
    word = clause.expect("l3", "numa", "distance")
    if word == "distance":
        return replace(description, distances=None)
    if word == "numa":
        return replace(description, has_numa=False)
    if not clause.take("on"):
        return replace(description, without_l3=-1)
    clause.take("cpu")
    return _named_cpus(description, clause, "without_l3", "cpus such as 4-7")


def _devices(description: Description, clause: Clause) -> Description:
    found = read_devices(clause, description.devices)
    return replace(description, devices=(*description.devices, *found))


def _links(description: Description, clause: Clause) -> Description:
    return replace(description, links=(*description.links, *read_links(clause, description.devices)))


Handler = Callable[[Description, Clause], Description]

_KEYWORDS: Mapping[str, Handler] = {
    "smt": _smt,
    "sibling": _siblings,
    "interleaved": _interleaved,
    "socket": _ids("socket_ids"),
    "node": _ids("node_ids"),
    "memory": _memory,
    "hugepage": _hugepages,
    "cpu-less": _cpuless,
    "distance": _distances,
    "offline": _offline,
    "isolated": _isolated,
    "nohz_full": _tickless,
    "no": _no,
    "device": _devices,
    "link": _links,
}
