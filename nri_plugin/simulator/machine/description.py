"""The description of a machine: YAML with an hwloc synthetic string, and the place of every CPU and NUMA node in it.

    # The first comment line is the title
    topology: pack:2 numa:2(memory=64GiB) l3:2 core:4 pu:2(indexes=core)
    distances: {local: 10, socket: 12, remote: 32}

Only `topology` is required. A file may hold the string alone. The other fields describe properties that the string
cannot express. Numbers in lists are the kernel's.

    topology        see `synthetic`
    sockets         [ID, ...]; physical_package_id of each socket in the order of the string (0, 1, ...)
    kinds           [{cores: COUNT, threads: COUNT}, ...]; the kinds of cores in each innermost object
    nodes           {NODES: {memory: SIZE, hugepages: {SIZE: COUNT}, cpus: none}}; by NUMA node. `cpus: none` adds a node
                    without CPUs. A node whose memory is not given has 16Gi
    distances       {local: 10, socket: 12, remote: 21, cpuless: as remote}, or rows by ascending node id, or none
    offline         CPUS
    isolated        CPUS
    nohz_full       CPUS; they run without a timer tick
    without_l3      CPUS whose L3 the kernel does not show
    queues          {CPUS: CPU or none}; CPUs that share a queue of a disk, and the one that its interrupt comes to
    numa            none: the kernel does not show NUMA nodes
    devices         [{resource: NAME, count: COUNT or ids: [ID, ...], nodes: NODES, as: device|variable|cdi}, ...]
    links           [{resource: NAME, weight: nvlink|switch|bridge|NUMBER, groups: [[ID, ID, ...], ...]}, ...]
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, cycle

from nri_plugin.config import yaml_tree
from nri_plugin.config.values import one_of, unknown
from nri_plugin.config.yaml_tree import Place, Scalar, Section, Value
from nri_plugin.model import bits
from nri_plugin.simulator.machine.devices import (
    DeviceLink,
    PlacedDevice,
    id_list,
    read_devices,
    read_links,
)
from nri_plugin.simulator.machine.synthetic import MAX_NODES, SyntheticTopology, read_synthetic

DEFAULT_MEMORY_KB = 16 << 20
FIELDS = (
    "topology",
    "sockets",
    "kinds",
    "nodes",
    "distances",
    "offline",
    "isolated",
    "nohz_full",
    "without_l3",
    "queues",
    "numa",
    "devices",
    "links",
)
_NODE_FIELDS = ("memory", "hugepages", "cpus")
_DISTANCES = {"local": 10, "socket": 12, "remote": 21}
_SIZE = re.compile(r"([0-9]{1,12})(Ki|Mi|Gi|Ti)\Z|0\Z")
_KB_BY_UNIT = {"Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20, "Ti": 1 << 30}


@dataclass(frozen=True, slots=True)
class DescribedCore:
    """One core.

    Attributes:
        cpus: its hardware threads, first thread first.
        socket: the kernel's id.
        node: the kernel's id.
        cache: the L3, counted from 0 over the machine.
        number: counted from 0 within the socket.
    """

    cpus: tuple[int, ...]
    socket: int
    node: int
    cache: int
    number: int


@dataclass(frozen=True, slots=True)
class DescribedNode:
    """One NUMA node; `distances` to all nodes by ascending id, None where the kernel shows none."""

    id: int
    cpus: int
    memory_kb: int
    hugepages: tuple[tuple[int, int], ...] = ()
    distances: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A described machine: the hardware, and the part of it that the kernel shows.

    Attributes:
        name: its name in lists and pictures.
        title: the first comment line of its text.
        cores: in the order of the string.
        nodes: by ascending id; also where the kernel does not show them.
        present: mask of all CPUs.
        online: present without the offline ones; never empty.
        isolated: mask.
        tickless: mask; the kernel calls them nohz_full.
        with_l3: mask of CPUs that have a level 3 cache.
        queues: masks of the CPUs that share a queue of a disk, and of the one that its interrupt comes to.
        has_numa: whether the kernel shows NUMA nodes.
        devices: they have no NUMA nodes if the kernel shows none.
        links: between devices. The heaviest link of a pair counts.
    """

    name: str
    title: str
    cores: tuple[DescribedCore, ...]
    nodes: tuple[DescribedNode, ...]
    present: int
    online: int
    isolated: int = 0
    tickless: int = 0
    with_l3: int = 0
    queues: tuple[tuple[int, int], ...] = ()
    has_numa: bool = True
    devices: tuple[PlacedDevice, ...] = ()
    links: tuple[DeviceLink, ...] = ()


def parse(text: str, name: str = "machine", source: str = "") -> Description:
    """Read the description of a machine.

    Args:
        text: see the head of this module.
        name: the machine's name.
        source: the file named in errors; `name` if empty.

    Raises:
        ConfigError: names file, line and column, what is expected and what was found.
    """
    source = source or name
    first = text.lstrip().partition("\n")[0]
    section = _top(text, source)
    given = section.entries
    if "topology" not in given:
        raise section.place.error("topology is missing: an hwloc synthetic string such as pack:2 core:4 pu:2")
    value = given["topology"]
    tree = read_synthetic(yaml_tree.text(value), value.place.error)
    cores = _cores(tree, given)
    present = bits.from_ids(cpu for core in cores for cpu in core.cpus)
    offline, isolated, tickless, without_l3 = (
        _cpus(given, key, present) for key in ("offline", "isolated", "nohz_full", "without_l3")
    )
    if not present & ~offline:
        raise given["offline"].place.error("every CPU is offline; leave at least one online")
    nodes = _nodes(tree, cores, given)
    has_numa = "numa" not in given or not one_of("none")(given["numa"])
    devices: tuple[PlacedDevice, ...] = ()
    if "devices" in given:
        devices = read_devices(given["devices"], [node.id for node in nodes], has_numa=has_numa)
    return Description(
        name=name,
        title=first[1:].strip() if first.startswith("#") else "",
        cores=cores,
        nodes=nodes,
        present=present,
        online=present & ~offline,
        isolated=isolated,
        tickless=tickless,
        with_l3=present & ~without_l3 if "l3" in tree.widths else 0,
        queues=tuple(sorted(_queues(given, present))),
        has_numa=has_numa,
        devices=devices,
        links=read_links(given["links"], devices) if "links" in given else (),
    )


def _top(text: str, source: str) -> Section:
    """The fields; a text that is only a synthetic string is the field `topology`."""
    value = yaml_tree.parse_any(text, source)
    if isinstance(value, Scalar) and value.kind == "str":
        return Section(value.place, {"topology": value}, {})
    section = yaml_tree.section(value)
    for key, place in section.keys.items():
        if key not in FIELDS:
            raise unknown(place, key, FIELDS)
    return section


def _cpus(given: Mapping[str, Value], key: str, present: int) -> int:
    return _listed(given[key], present) if key in given else 0


def _listed(value: Value, present: int) -> int:
    mask = id_list(value, "CPUs such as 0-3,8")
    if beyond := mask & ~present:
        what = f"there is no CPU {bits.format_list(beyond)}"
        raise value.place.error(f"{what}; the machine has {bits.format_list(present)}")
    return mask


def _queues(given: Mapping[str, Value], present: int) -> Iterator[tuple[int, int]]:
    """The masks of each entry of the field `queues`."""
    if "queues" not in given:
        return
    section = yaml_tree.section(given["queues"])
    for key, value in section.entries.items():
        cpus = _listed(Scalar(section.keys[key], key, "str"), present)
        is_known = not isinstance(value, Scalar) or value.text != "none"
        delivered = _listed(value, present) if is_known else 0
        if delivered & ~cpus:
            raise value.place.error(f"expected one of the CPUs {key}, found {bits.format_list(delivered)}")
        yield cpus, delivered


def _cores(tree: SyntheticTopology, given: Mapping[str, Value]) -> tuple[DescribedCore, ...]:
    threads = len(tree.cpus) // tree.cores
    sockets = _socket_ids(tree, given)
    found = []
    numbers: dict[int, count[int]] = {}
    kinds = _threads_by_core(tree, given, threads)
    numbering = _numbering(tree.cpus, kinds, threads)
    attached = len(tree.memory_kb)
    for core in range(tree.cores):
        first = core * threads
        socket = sockets[tree.index("pack", first)]
        found.append(
            DescribedCore(
                cpus=tuple(numbering[pu] for pu in range(first, first + kinds[core % len(kinds)])),
                socket=socket,
                node=tree.node_ids[tree.index("numa", first) * attached],
                cache=tree.index("l3", first),
                number=next(numbers.setdefault(socket, count())),
            )
        )
    return tuple(found)


def _numbering(cpus: tuple[int, ...], kinds: list[int], threads: int) -> Mapping[int, int]:
    """The number of each PU. Threads that a kind of core does not have leave no gap in the numbers."""
    if min(kinds) == threads:
        return dict(enumerate(cpus))
    there = [pu for pu in range(len(cpus)) if pu % threads < kinds[pu // threads % len(kinds)]]
    return {pu: number for number, pu in enumerate(sorted(there, key=cpus.__getitem__))}


def _threads_by_core(tree: SyntheticTopology, given: Mapping[str, Value], threads: int) -> list[int]:
    """The threads of each core of an innermost object."""
    if "kinds" not in given:
        return [threads]
    value = given["kinds"]
    each = tree.cores // tree.innermost
    cores: list[int] = []
    for item in yaml_tree.items(value):
        kind = yaml_tree.section(item)
        if set(kind.entries) != {"cores", "threads"}:
            raise item.place.error("expected {cores: COUNT, threads: COUNT}")
        # one core too many is enough to be refused
        number = min(yaml_tree.number(kind.entries["cores"]), each + 1)
        cores += [yaml_tree.number(kind.entries["threads"])] * number
    if len(cores) != each or max(cores) != threads or not min(cores):
        detail = f"expected kinds for the {each} cores of an innermost object, with up to {threads} threads"
        raise value.place.error(detail)
    return cores


def _socket_ids(tree: SyntheticTopology, given: Mapping[str, Value]) -> list[int]:
    needed = tree.widths.get("pack", 1)
    if "sockets" not in given:
        return list(range(needed))
    ids = [yaml_tree.number(item) for item in yaml_tree.items(given["sockets"])]
    if len(ids) != needed or len(set(ids)) != needed:
        raise given["sockets"].place.error(f"expected {needed} ids, each once, found {ids}")
    return ids


def _nodes(
    tree: SyntheticTopology, cores: tuple[DescribedCore, ...], given: Mapping[str, Value]
) -> tuple[DescribedNode, ...]:
    sizes = cycle(tree.memory_kb)
    memory = {
        node: DEFAULT_MEMORY_KB if size is None else size
        for node, size in zip(tree.node_ids, sizes, strict=False)
    }
    pools: dict[int, dict[int, int]] = {}
    for node, fields, place in _node_fields(given):
        if node in memory and "cpus" in fields:
            raise place.error(f"NUMA node {node} is in the topology; remove 'cpus: none'")
        if node not in memory and "cpus" not in fields:
            raise place.error(f"there is no NUMA node {node}; 'cpus: none' adds one")
        memory.setdefault(node, DEFAULT_MEMORY_KB)
        if "memory" in fields:
            memory[node] = _size_kb(yaml_tree.scalar(fields["memory"]).text, fields["memory"].place)
        if "hugepages" in fields:
            pools[node] = _pools(fields["hugepages"])
    ids = sorted(memory)
    cpus = dict.fromkeys(ids, 0)
    sockets: dict[int, set[int]] = {node: set() for node in ids}
    for core in cores:
        cpus[core.node] |= bits.from_ids(core.cpus)
        sockets[core.node].add(core.socket)
    rows = _distances(given.get("distances"), ids, sockets)
    # the kernel shows every page size on every node, also where the node has none of it
    page_sizes = sorted({size for pool in pools.values() for size in pool})
    return tuple(
        DescribedNode(
            id=node,
            cpus=cpus[node],
            memory_kb=memory[node],
            hugepages=tuple((size, pools.get(node, {}).get(size, 0)) for size in page_sizes),
            distances=None if rows is None else rows[position],
        )
        for position, node in enumerate(ids)
    )


def _node_fields(given: Mapping[str, Value]) -> Iterator[tuple[int, Mapping[str, Value], Place]]:
    """Each NUMA node of the field `nodes`, with the fields and the place of its entry."""
    if "nodes" not in given:
        return
    section = yaml_tree.section(given["nodes"])
    seen = 0
    for key, value in section.entries.items():
        fields, place = yaml_tree.section(value), section.keys[key]
        mask = id_list(Scalar(place, key, "str"), "NUMA node ids such as 0-3")
        if mask & seen:
            raise place.error(f"expected each NUMA node once, found {key}")
        if mask >> MAX_NODES:
            raise place.error(f"expected ids up to {MAX_NODES - 1}, found {key}")
        seen |= mask
        for name, where in fields.keys.items():
            if name not in _NODE_FIELDS:
                raise unknown(where, name, _NODE_FIELDS)
        if "cpus" in fields.entries:
            one_of("none")(fields.entries["cpus"])
        yield from ((node, fields.entries, place) for node in bits.iterate(mask))


def _pools(value: Value) -> dict[int, int]:
    section = yaml_tree.section(value)
    pools = {}
    for key, pages in section.entries.items():
        size_kb = _size_kb(key, section.keys[key])
        if not size_kb:
            raise section.keys[key].error("expected a page size such as 2Mi")
        pools[size_kb] = yaml_tree.number(pages)
    return pools


def _size_kb(text: str, place: Place) -> int:
    match = _SIZE.match(text)
    if match is None:
        raise place.error(f"expected a size such as 64Gi or 0, found {text}")
    return int(match[1]) * _KB_BY_UNIT[match[2]] if match[1] else 0


def _distances(
    value: Value | None, ids: list[int], sockets: Mapping[int, set[int]]
) -> list[tuple[int, ...]] | None:
    """The row of each node; None where the kernel shows no distances."""
    if isinstance(value, Scalar):
        one_of("none")(value)
        return None
    if isinstance(value, yaml_tree.Sequence):
        rows = [tuple(map(_distance, yaml_tree.items(row))) for row in value.items]
        if len(rows) != len(ids) or any(len(row) != len(ids) for row in rows):
            widths = " or ".join(map(str, sorted({len(row) for row in rows})))
            what = f"{len(rows)} rows of {widths} distances for the {len(ids)} NUMA nodes {bits.format_list(bits.from_ids(ids))}"
            raise value.place.error(f"{what}: expected a square table")
        return rows
    said = dict(_DISTANCES)
    for key, number in (value.entries if value else {}).items():
        if key not in {*_DISTANCES, "cpuless"}:
            raise unknown(value.keys[key] if value else number.place, key, (*_DISTANCES, "cpuless"))
        said[key] = _distance(number)

    def distance(one: int, other: int) -> int:
        if one == other:
            return said["local"]
        if not sockets[one] or not sockets[other]:
            return said.get("cpuless", said["remote"])
        return said["socket"] if sockets[one] & sockets[other] else said["remote"]

    return [tuple(distance(one, other) for other in ids) for one in ids]


def _distance(value: Value) -> int:
    number = yaml_tree.number(value)
    if not 10 <= number <= 255:
        raise value.place.error(f"expected a distance from 10 to 255, found {number}")
    return number
