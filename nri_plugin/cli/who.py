"""`nri-pin who`: who holds a CPU, a cache or a NUMA node, and who shares these with a container.

The rows go from the smallest part to the largest: core, uncore cache, NUMA node, socket, and the NUMA nodes that the
memory of a container is bound to. A part that the machine does not tell is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from nri_plugin.cli.output import (
    FOR_PROGRAMS,
    columns,
    count_of,
    echo,
    fold_words,
    format_option,
    memory_text,
    render,
    table,
    to_run,
)
from nri_plugin.cli.state.rows import StateRow, ids, rows_of, shared_pool
from nri_plugin.cli.state.source import (
    FailedError,
    Seen,
    WrongUsageError,
    file_option,
    load_checkpoint,
    machine_option,
    path_of,
    root_option,
    seen,
    state_dir_option,
    usage_errors,
)
from nri_plugin.model.options import Node
from nri_plugin.model.records import is_whole_pod, named, pod_of
from nri_plugin.model.sets import NO_CPUS, NO_NODES, CPUSet, NodeMask
from nri_plugin.policy.memory_state import MEMORY

PARTS = ("core", "cache", "numa", "socket")
MOST_NAMES = 8
"""Containers that an error names."""

EXAMPLES = """\b
Examples:
  nri-pin who shop/db-0/db
  nri-pin who 17
  nri-pin who cache 3
  nri-pin who numa 1 -o json
  nri-pin who shop/db-0/db --state ./state.json --machine ./topology-of-that-node.json
"""


@dataclass(frozen=True, slots=True)
class PartHolder:
    """A container or pod that holds something of a part alone.

    Attributes:
        name: NAMESPACE/POD/CONTAINER, or NAMESPACE/POD of a pod that owns CPUs as a whole.
        cpus: its exclusive CPUs there, as a kernel list.
        memory: (resource, bytes) allocated to it on the NUMA nodes of the part; whole blocks where they span nodes.
        is_asked: it is the container that was asked about.
    """

    name: str
    cpus: str
    memory: tuple[tuple[str, int], ...] = ()
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of the machine.

    Attributes:
        part: `core`, `cache`, `numa`, `socket` or `memory`.
        id: its number; those of several NUMA nodes as a list.
        cpus: its online CPUs, as a kernel list.
        holders: those that hold something there alone.
        pool: CPUs of the shared pool there.
        sharing: containers that run on these CPUs of the pool.
        available: CPUs there that can still become exclusive.
        reserved: CPUs there that are kept for the system.
        is_cache: whether a `cache` is an L3; else it stands for a socket without one.
    """

    part: str
    id: str
    cpus: str
    holders: tuple[PartHolder, ...]
    pool: str
    sharing: tuple[str, ...]
    available: str
    reserved: str
    is_cache: bool = True


@dataclass(frozen=True, slots=True)
class WhoAnswer:
    """The answer of the command.

    Attributes:
        asked: what was asked about, in words.
        cpus: of what was asked about, as a kernel list.
        parts: the parts of the machine, the smallest first.
        machine: where the machine is known from.
    """

    asked: str
    cpus: str
    parts: tuple[PartRow, ...]
    machine: str


@click.command(epilog=EXAMPLES)
@click.argument("words", nargs=-1, required=True, metavar="CONTAINER | CPU | (core|cache|numa|socket) ID")
@machine_option
@root_option
@state_dir_option
@file_option
@format_option()
def command(
    words: tuple[str, ...],
    machine: str | None,
    root: str | None,
    state_dir: str,
    path: str | None,
    output_format: str,
) -> None:
    """Show who holds a CPU, a cache or a NUMA node, and who shares core, caches and memory with a container.

    CONTAINER is NAMESPACE/POD/CONTAINER, the end of it, a pod with one container, or the beginning of its id. The checkpoint holds no devices:
    `nri-pin explain CONTAINER` shows those that it was created with, and their NUMA nodes.

    Exit code: 0; 1 when no container has such a name, or several have; 2 when there is no such CPU or part, no
    checkpoint, or the machine of the checkpoint is not known.
    """
    file = path_of(state_dir, path)
    checkpoint = load_checkpoint(file)
    with usage_errors():
        found = seen(checkpoint, machine, root, file)
    answer = who(found, words)
    if output_format in FOR_PROGRAMS:
        echo(render(answer, output_format))
    else:
        echo(as_text(answer, columns()))


def who(found: Seen, words: Sequence[str]) -> WhoAnswer:
    """The answer to the words of a command line.

    Raises:
        FailedError: no container has such a name, or several have.
        WrongUsageError: there is no such CPU or part, or the machine is not known.
    """
    if found.node is None:
        raise WrongUsageError("the machine of the checkpoint is not known; name it with --machine")
    rows = rows_of(found)
    if len(words) == 2 and words[0] in PARTS:
        part, number = words
        cpus = _part(found, part, number)
        row = _row(found, rows, part, number, cpus)
        return WhoAnswer(f"{part} {number}", str(cpus), (row,), found.machine)
    if len(words) != 1:
        raise WrongUsageError(
            f"expected a container, a CPU, or one of {', '.join(PARTS)} with its number; found {' '.join(words)}"
        )
    if words[0].isdecimal():
        cpus = CPUSet.parse(words[0])
        if not cpus <= found.node.topology.online:
            raise WrongUsageError(f"CPU {words[0]} is not online; online are {found.node.topology.online}")
        return WhoAnswer(f"CPU {words[0]}", str(cpus), tuple(_rows(found, rows, cpus)), found.machine)
    asked = _container(rows, words[0])
    cpus = asked.cpus or NO_CPUS
    own = cpus if asked.is_exclusive or asked.allocation.is_pod_shared else NO_CPUS
    parts = tuple(_rows(found, rows, own, asked.allocation.mems, asked))
    return WhoAnswer(f"{_path(asked)}, {asked.kind}", str(cpus), parts, found.machine)


def as_text(answer: WhoAnswer, width: int) -> str:
    """The answer for eyes."""
    is_one = answer.asked == f"CPU {answer.cpus}"
    head = answer.asked if is_one else f"{answer.asked}, CPUs {answer.cpus or 'none'}"
    rows = [
        ("PART", "CPUS", "WHO", "ITS CPUS", "MEMORY"),
        *(line for row in answer.parts for line in _lines(row)),
    ]
    lines = [*fold_words(head, width, "  "), *(["", *table(rows)] if answer.parts else [])]
    if not answer.parts:
        lines.append(
            "it has no CPUs or memory of its own: it runs in the shared pool, with every other such container"
        )
    return "\n".join(lines)


def _rows(
    found: Seen,
    rows: Sequence[StateRow],
    cpus: CPUSet,
    mems: NodeMask = NO_NODES,
    asked: StateRow | None = None,
) -> Iterator[PartRow]:
    """Every part that has one of the CPUs, and the memory nodes."""
    node = _node(found)
    topology = node.topology
    groups = [("core", topology.cores), ("cache", topology.caches)] if found.has_parts else []
    groups.append(("numa", tuple((each.id, each.cpus) for each in topology.nodes)))
    groups += [("socket", topology.sockets)] if found.has_parts else []
    for part, members in groups:
        for number, of_part in members:
            if of_part & cpus:
                yield _row(found, rows, part, str(number), of_part, asked)
    if mems:
        yield _row(found, rows, "memory", str(mems), NO_CPUS, asked)


def _row(
    found: Seen, rows: Sequence[StateRow], part: str, number: str, cpus: CPUSet, asked: StateRow | None = None
) -> PartRow:
    node = _node(found)
    nodes = NodeMask.parse(number) if part in {"numa", "memory"} else NO_NODES
    pool = (shared_pool(found) or NO_CPUS) & cpus
    sharing = tuple(_path(row) for row in rows if row.kind == "shared" and (row.cpus or NO_CPUS) & cpus)
    return PartRow(
        part,
        number,
        str(cpus & node.topology.online),
        tuple(_held(found, cpus, nodes, asked)),
        str(pool),
        sharing,
        str(found.state.available(node) & cpus),
        str(node.reserved & cpus),
        is_cache=part != "cache" or node.topology.is_l3(cpus),
    )


def _held(found: Seen, cpus: CPUSet, nodes: NodeMask, asked: StateRow | None) -> Iterator[PartHolder]:
    """Holders, the one that was asked about first, then those of the most CPUs."""
    state, own = found.state, asked.record.key if asked else ""
    held = []
    for key, owned in state.owned.items():
        blocks = [block for block in state.allocations[key].memory if block.nodes & nodes]
        if owned & cpus or blocks:
            is_asked = key == own or (is_whole_pod(key) and bool(own) and pod_of(key) == pod_of(own))
            memory = tuple((block.resource, block.size_bytes) for block in blocks)
            held.append(
                (
                    not is_asked,
                    -len(owned & cpus),
                    PartHolder(named(state.pods, key), str(owned & cpus), memory, is_asked),
                )
            )
    for _, _, holder in sorted(held, key=lambda one: (one[0], one[1], one[2].name)):
        yield holder


def _part(found: Seen, part: str, number: str) -> CPUSet:
    topology = _node(found).topology
    if part != "numa" and not found.has_parts:
        raise WrongUsageError(f"cores, caches and sockets of the machine are not known; {found.machine}")
    groups = {
        "core": topology.cores,
        "cache": topology.caches,
        "numa": tuple((each.id, each.cpus) for each in topology.nodes),
        "socket": topology.sockets,
    }[part]
    found_cpus = {str(each): cpus for each, cpus in groups}
    if number not in found_cpus:
        raise WrongUsageError(
            f"there is no {part} {number}; there are {ids(int(each) for each in found_cpus)}"
        )
    return found_cpus[number]


def _container(rows: Sequence[StateRow], word: str) -> StateRow:
    """The container that a word names.

    Raises:
        FailedError: none is called so, or several are.
    """
    meant = [row for row in rows if word == _path(row)]
    meant = meant or [
        row
        for row in rows
        if _path(row).endswith(f"/{word}")
        or _path(row).startswith(f"{word}/")
        or (len(word) > 3 and row.record.id.startswith(word))
    ]
    if not meant:
        number = f"; a {word} needs its number: {word} 0" if word in PARTS else ""
        raise FailedError(f"no container is called {word}; {to_run('state show')} lists them{number}")
    if len(meant) > 1:
        names = ", ".join(_path(row) for row in meant[:MOST_NAMES])
        raise FailedError(
            f"{word} names {len(meant)} containers: {names}; give NAMESPACE/POD/CONTAINER or an id"
        )
    return meant[0]


def _path(row: StateRow) -> str:
    return f"{row.namespace}/{row.pod_name}/{row.record.name}"


def _node(found: Seen) -> Node:
    assert found.node is not None, "checked at the beginning"
    return found.node


NAMES = {
    "core": "core",
    "cache": "L3",
    "numa": "NUMA node",
    "socket": "socket",
    "memory": "memory of NUMA node",
}


def _name(row: PartRow) -> str:
    return f"{NAMES[row.part] if row.is_cache else 'no L3, socket'} {row.id}"


def _memory(resource: str, size: int) -> str:
    """An amount; the head of its column is `MEMORY`, so only other resources have a name."""
    return memory_text(size) if resource == MEMORY else f"{memory_text(size)} of {resource}"


def _lines(row: PartRow) -> Iterator[tuple[str, ...]]:
    """The rows of a table: a line for each holder, the first with the name of the part."""
    found = [
        (
            "itself" if one.is_asked else one.name,
            one.cpus or "-",
            ", ".join(_memory(name, size) for name, size in one.memory),
        )
        for one in row.holders
    ]
    if row.pool:
        sharing = count_of(len(row.sharing), "container") if row.sharing else "no container"
        found.append((f"shared pool, {sharing}", row.pool, ""))
    if row.reserved:
        found.append(("reserved", row.reserved, ""))
    if row.available:
        found.append(("available", row.available, ""))
    heads = [(_name(row), row.cpus or "-"), *([("", "")] * len(found))]
    for head, cells in zip(heads, found or [("nobody", "-", "")], strict=False):
        yield *head, *cells
