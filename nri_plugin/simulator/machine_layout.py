"""From a description to the place of every CPU and node.

The layout is what the hardware is; what is online, and what the kernel shows of
it, is decided by those who read it (`build_topology`, `build_sysfs`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, zip_longest
from typing import NoReturn

from nri_plugin import bits
from nri_plugin.errors import ConfigError
from nri_plugin.nodemask import NodeMask
from nri_plugin.simulator.device_places import PlacedDevice, place_devices
from nri_plugin.simulator.machine_text import MAX_CPUS, MAX_NODES, Description, Hugepages


@dataclass(frozen=True, slots=True)
class Core:
    """One core.

    Attributes:
        cpus: its hardware threads, first thread first.
        socket: the kernel's id.
        node: likewise.
        cache: counted from 0 over the machine; CPUs named by `no L3` are not part of it.
        number: counted from 0 within the socket.
    """

    cpus: tuple[int, ...]
    socket: int
    node: int
    cache: int
    number: int


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node; `distances` to all nodes by ascending id."""

    id: int
    cpus: int
    memory_kb: int
    hugepages: tuple[tuple[int, int], ...]
    distances: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """A machine worked out.

    Attributes:
        cores: in the order of the shape.
        nodes: by ascending id; CPUs of `no NUMA` machines are in nodes here too.
        present: mask of all CPUs.
        online: present without the offline ones; never empty.
        isolated: mask.
        tickless: mask; the kernel calls them nohz_full.
        with_l3: mask of CPUs that have a level 3 cache.
        has_numa: whether the kernel shows the nodes.
        devices: what pods can ask for; on no NUMA node where the kernel shows none.
    """

    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    present: int
    online: int
    isolated: int
    tickless: int
    with_l3: int
    has_numa: bool
    devices: tuple[PlacedDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a core goes, counted in units of the shape."""

    socket: int
    node: int
    cache: int
    threads: int


def lay_out(description: Description) -> Layout:
    """The place of every CPU and node.

    Raises:
        ConfigError: the clauses do not fit together; says which, and both numbers.
    """
    places = list(_places(description))
    total = sum(place.threads for place in places)
    if total > MAX_CPUS:
        _refuse(description, f"{total} cpus are more than the {MAX_CPUS} the kernel can have")
    socket_ids = _named(
        description, "socket", description.socket_ids, 1 + max(place.socket for place in places)
    )
    node_ids = _named(description, "node", description.node_ids, 1 + max(place.node for place in places))
    cores = _cores(description, places, socket_ids, node_ids)
    present = (1 << total) - 1
    for what, mask in _named_cpus(description).items():
        if mask & ~present:
            where = next((where for named, where in description.cpu_places if named & mask & ~present), "")
            detail = f"'{what} {bits.format_list(mask)}' names cpus beyond 0-{total - 1}"
            _refuse(description, detail, where)
    if not present & ~description.offline:
        _refuse(description, "every cpu is offline; leave at least one online")
    nodes = _nodes(description, cores, node_ids)
    return Layout(
        cores=cores,
        nodes=nodes,
        present=present,
        online=present & ~description.offline,
        isolated=description.isolated,
        tickless=description.tickless,
        with_l3=0 if description.without_l3 < 0 else present & ~description.without_l3,
        has_numa=description.has_numa,
        devices=_devices(description, [node.id for node in nodes]),
    )


def _places(description: Description) -> Iterator[_Place]:
    """The cores in the order of the shape; what the shape does not name is one per socket."""
    names = [level for level, _ in description.levels]
    counts = [how_many for _, how_many in description.levels]
    kinds = [(how_many, threads or description.smt) for how_many, threads in description.cores]
    units = 1
    for how_many in counts:
        units *= how_many
    if units * sum(how_many for how_many, _ in kinds) > MAX_CPUS:
        _refuse(description, f"the shape has more than the {MAX_CPUS} cpus the kernel can have")
    for unit in range(units):
        index = _indexes(names, counts, unit)
        socket = index.get("socket", 0)
        for how_many, threads in kinds:
            for _ in range(how_many):
                yield _Place(socket, index.get("node", socket), index.get("cache", socket), threads)


def _indexes(names: Sequence[str], counts: Sequence[int], unit: int) -> dict[str, int]:
    """The number, over the whole machine, of the unit of each level that holds innermost unit `unit`."""
    index = {}
    for name, how_many in zip(reversed(names), reversed(counts), strict=True):
        index[name] = unit
        unit //= how_many
    return index


def _cores(
    description: Description, places: Sequence[_Place], socket_ids: Sequence[int], node_ids: Sequence[int]
) -> tuple[Core, ...]:
    cpus: list[list[int]] = [[] for _ in places]
    for cpu, place in enumerate(_numbering(description, places)):
        cpus[place].append(cpu)
    seen: dict[int, count[int]] = {}
    return tuple(
        Core(
            cpus=tuple(cpus[position]),
            socket=socket_ids[place.socket],
            node=node_ids[place.node],
            cache=place.cache,
            number=next(seen.setdefault(place.socket, count())),
        )
        for position, place in enumerate(places)
    )


def _numbering(description: Description, places: Sequence[_Place]) -> Iterator[int]:
    """Positions of cores in the order in which CPU numbers are given to them, one per thread."""
    order: Sequence[int] = range(len(places))
    if description.interleaved_by:
        groups: dict[int, list[int]] = {}
        for position in order:
            groups.setdefault(getattr(places[position], description.interleaved_by), []).append(position)
        turns = chain.from_iterable(zip_longest(*groups.values()))
        order = [position for position in turns if position is not None]
    if description.are_siblings_adjacent:
        for position in order:
            yield from [position] * places[position].threads
        return
    for thread in range(max(place.threads for place in places)):
        yield from (position for position in order if thread < places[position].threads)


def _nodes(description: Description, cores: Sequence[Core], node_ids: Sequence[int]) -> tuple[Node, ...]:
    cpus = dict.fromkeys(sorted(node_ids), 0)
    for core in cores:
        cpus[core.node] |= bits.from_ids(core.cpus)
    memory = dict(zip(sorted(node_ids), _memory(description, len(node_ids)), strict=True))
    for node, size_kb in description.cpuless:
        if node in cpus or node >= MAX_NODES:
            why = "has cpus or was named before" if node in cpus else f"is above {MAX_NODES - 1}"
            _refuse(description, f"cpu-less node {node} {why}")
        cpus[node] = 0
        memory[node] = size_kb
    ids = sorted(cpus)
    sockets = {node: {core.socket for core in cores if core.node == node} for node in ids}
    for pool in description.hugepages:
        if (pool.nodes or 0) & ~bits.from_ids(ids):
            _refuse(
                description, f"hugepages on {bits.format_list(pool.nodes or 0)}: the nodes are {_list(ids)}"
            )
    return tuple(
        Node(
            id=node,
            cpus=cpus[node],
            memory_kb=memory[node],
            hugepages=_hugepages(description.hugepages, node, has_cpus=bool(cpus[node])),
            distances=_distance_row(description, position, ids, sockets),
        )
        for position, node in enumerate(ids)
    )


def _memory(description: Description, nodes: int) -> Sequence[int]:
    sizes = description.memory_kb
    if len(sizes) not in {1, nodes}:
        _refuse(
            description, f"{len(sizes)} memory sizes for {nodes} nodes with cpus: give one, or one for each"
        )
    return sizes if len(sizes) == nodes else sizes * nodes


def _hugepages(pools: Sequence[Hugepages], node: int, *, has_cpus: bool) -> tuple[tuple[int, int], ...]:
    """Every size there is, as the kernel shows it: also where a node has none of it."""
    pages = dict.fromkeys(sorted(pool.size_kb for pool in pools), 0)
    for pool in pools:
        if has_cpus if pool.nodes is None else pool.nodes >> node & 1:
            pages[pool.size_kb] += pool.pages
    return tuple(pages.items())


def _distance_row(
    description: Description, position: int, ids: Sequence[int], sockets: Mapping[int, set[int]]
) -> tuple[int, ...] | None:
    distances = description.distances
    if distances is None:
        return None
    if distances.rows is not None:
        widths = sorted({len(row) for row in distances.rows})
        if len(distances.rows) != len(ids) or widths != [len(ids)]:
            found = f"{len(distances.rows)} rows of {' or '.join(map(str, widths))} distances"
            _refuse(description, f"{found} for the {len(ids)} nodes {_list(ids)}: give a square table")
        return distances.rows[position]
    own = ids[position]
    remote = distances.remote if distances.cpuless is None else distances.cpuless

    def distance(other: int) -> int:
        if other == own:
            return distances.local
        if not sockets[own] or not sockets[other]:
            return remote
        return distances.socket if sockets[own] & sockets[other] else distances.remote

    return tuple(map(distance, ids))


def _named(description: Description, what: str, ids: Sequence[int], needed: int) -> Sequence[int]:
    if ids and len(ids) != needed:
        _refuse(description, f"{len(ids)} {what} ids for {needed} {what}s: give one for each")
    numbers = ids or range(needed)
    if what == "node" and max(numbers) >= MAX_NODES:
        _refuse(description, f"node {max(numbers)} is above {MAX_NODES - 1}, the highest the kernel can have")
    return numbers


def _named_cpus(description: Description) -> dict[str, int]:
    without_l3 = max(description.without_l3, 0)
    return {
        "offline": description.offline,
        "isolated": description.isolated,
        "nohz_full": description.tickless,
        "no L3 on": without_l3,
    }


def _list(ids: Sequence[int]) -> str:
    return bits.format_list(bits.from_ids(ids))


def _devices(description: Description, ids: Sequence[int]) -> tuple[PlacedDevice, ...]:
    devices = description.devices
    for device in devices:
        if device.nodes.mask & ~bits.from_ids(ids):
            detail = f"devices {device.resource} on {bits.format_list(device.nodes.mask)}: the nodes are {_list(ids)}"
            _refuse(description, detail, device.where)
    if not description.has_numa:
        devices = tuple(replace(device, nodes=NodeMask()) for device in devices)
    return place_devices(devices)


def _refuse(description: Description, detail: str, where: str = "") -> NoReturn:
    raise ConfigError(where or description.file or f"machine {description.name}", detail)
