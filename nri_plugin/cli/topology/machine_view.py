"""A machine and the containers that run on it: the data behind each output format of `nri-pin topology`.

Placements come from a checkpoint, or from the output of `nri-pin topology -o json`. The devices of each NUMA node come from the
description of the machine or from the PCI devices of this one.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from operator import or_
from typing import Any, Literal

from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint
from nri_plugin.checkpoint.format import Checkpoint
from nri_plugin.cli.output import count_of, memory_text
from nri_plugin.cli.state.rows import is_over, kept_by_ended
from nri_plugin.host.sysfs_parts import read_pci
from nri_plugin.model import bits
from nri_plugin.model.errors import CheckpointError, ConfigError
from nri_plugin.model.records import Allocation, Phase, allocation_key, is_whole_pod, owner_of, pod_of
from nri_plugin.model.sets import CPUID, NO_CPUS, NO_NODES, CPUSet, NodeMask
from nri_plugin.model.state import State
from nri_plugin.model.topology import NUMANode, Topology
from nri_plugin.simulator.machine.description import Description
from nri_plugin.simulator.machine.source import SourcedMachine


def summary(topology: Topology) -> str:
    """The machine in one line: counts of sockets, NUMA nodes, caches, cores and CPUs, and its memory."""
    widths = sorted({len(cpus) for _, cpus in topology.cores})
    sizes = [node.memory_bytes for node in topology.nodes]
    parts = [
        count_of(len(topology.sockets), "socket"),
        count_of(len(topology.nodes), "NUMA node"),
        _caches(topology),
        count_of(len(topology.cores), "core"),
        f"{count_of(len(topology.online), 'CPU')} (SMT {'/'.join(map(str, widths))})",
        "memory unknown" if None in sizes else memory_text(sum(size or 0 for size in sizes)) + " memory",
    ]
    return ", ".join(parts)


def _caches(topology: Topology) -> str:
    if not topology.caches_known:
        return "no L3 cache"
    count = count_of(sum(1 for _, cpus in topology.caches if topology.is_l3(cpus)), "uncore cache")
    return f"{count} ({count_of(len(topology.without_l3), 'CPU')} without)" if topology.without_l3 else count


@dataclass(frozen=True, slots=True)
class CachePart:
    """The part of an uncore cache that is in one NUMA node of one socket.

    Attributes:
        id: number of the cache.
        cpus: mask of the CPUs in this part.
        cores: masks of the threads of each core, by lowest CPU.
        whole: mask of all CPUs of the cache.
        is_l3: False for CPUs that share no L3.
    """

    id: int
    cpus: int
    cores: tuple[int, ...]
    whole: int
    is_l3: bool = True

    @property
    def is_part(self) -> bool:
        """Whether another node or socket has the rest of the cache."""
        return self.is_l3 and self.cpus != self.whole

    @property
    def name(self) -> str:
        """The name in a picture."""
        return f"L3 {self.id}" if self.is_l3 else "no L3"


@dataclass(frozen=True, slots=True)
class NodePart:
    """The part of a NUMA node that is in one socket; the first part of a node has its lowest CPU."""

    node: NUMANode
    cpus: int
    caches: tuple[CachePart, ...]

    @property
    def is_part(self) -> bool:
        """Whether another socket has the rest of the node."""
        return self.cpus != self.node.cpus.mask

    @property
    def is_first(self) -> bool:
        """Whether this is the first part; only this one shows the memory of the node."""
        return bits.lowest(self.cpus) == bits.lowest(self.node.cpus.mask)


@dataclass(frozen=True, slots=True)
class SocketPart:
    """A socket."""

    id: int
    cpus: int
    nodes: tuple[NodePart, ...]


def members(mask: int) -> Iterator[CPUID]:
    """The CPUs of a mask, ascending; faster than `bits.iterate` for a few CPUs with high numbers."""
    while mask:
        yield CPUID(bits.lowest(mask))
        mask &= mask - 1


def machine_parts(topology: Topology) -> tuple[SocketPart, ...]:
    """The sockets with their nodes, caches and cores, each level by id.

    Every online CPU is in exactly one core of one cache of one node of one socket. A node over two sockets, or a cache
    over two nodes, appears in each with its part.
    """
    cores: dict[tuple[int, int, int], dict[int, int]] = {}
    for core, cpus in topology.cores:
        for cpu in members(cpus.mask):
            place = (topology.socket_by_cpu[cpu], topology.node_by_cpu[cpu], topology.cache_by_cpu[cpu])
            here = cores.setdefault(place, {})
            here[core] = here.get(core, 0) | 1 << cpu
    whole = {int(cache): cpus.mask for cache, cpus in topology.caches}
    caches: dict[tuple[int, int], list[CachePart]] = {}
    for (socket, node, cache), found in sorted(cores.items()):
        masks = sorted(found.values(), key=bits.lowest)
        is_l3 = topology.is_l3(CPUSet(whole[cache]))
        part = CachePart(cache, reduce(or_, masks), tuple(masks), whole[cache], is_l3)
        caches.setdefault((socket, node), []).append(part)
    by_id = {int(node.id): node for node in topology.nodes}
    nodes: dict[int, list[NodePart]] = {}
    for (socket, number), parts in caches.items():
        mask = reduce(or_, (part.cpus for part in parts))
        nodes.setdefault(socket, []).append(NodePart(by_id[number], mask, tuple(parts)))
    return tuple(
        SocketPart(socket, reduce(or_, (part.cpus for part in inside)), tuple(inside))
        for socket, inside in sorted(nodes.items())
    )


def nodes_without_cpus(topology: Topology) -> tuple[NUMANode, ...]:
    """NUMA nodes that belong to no socket."""
    return tuple(node for node in topology.nodes if not node.cpus)


CLASSES = {"01": "storage", "02": "network", "03": "display", "0b": "coprocessor", "12": "accelerator"}
"""PCI base classes of devices that pods use. Source: PCI Code and ID Assignment Specification, base classes."""


def resource_lines(description: Description | None) -> list[str]:
    """The device resources of a described machine, a line each."""
    counts: dict[str, Counter[str]] = {}
    for device in description.devices if description else ():
        where = f"on NUMA {device.nodes}" if device.nodes else "on no NUMA node"
        counts.setdefault(device.resource, Counter())[where] += 1
    return [
        f"{name}: " + ", ".join(f"{count} {where}" for where, count in by_place.items())
        for name, by_place in counts.items()
    ]


def resources_by_node(description: Description | None) -> dict[int, list[str]]:
    """The device resources of each NUMA node, with the ids of the devices."""
    found: dict[int, dict[str, list[str]]] = {}
    for device in description.devices if description else ():
        for node in device.nodes:
            found.setdefault(node, {}).setdefault(device.resource, []).append(device.id)
    return {
        node: [f"{name} {' '.join(ids)}" for name, ids in by_name.items()] for node, by_name in found.items()
    }


def pci_by_node(machine: SourcedMachine) -> dict[int, str]:
    """The PCI devices of each NUMA node, counted by class; devices without a node are left out.

    Raises:
        HostError: a file of the machine cannot be read.
    """
    counts: dict[int, Counter[str]] = {}
    for device in _pci(machine).values():
        name = CLASSES.get(str(device.get("class"))[2:4]) if isinstance(device, Mapping) else None
        node = device.get("numa_node") if name else None
        if name and isinstance(node, int) and node in machine.topology.node_ids:
            counts.setdefault(node, Counter())[name] += 1
    return {
        node: "PCI: " + ", ".join(f"{count} {name}" for name, count in sorted(by_name.items()))
        for node, by_name in sorted(counts.items())
    }


def pci_lines(machine: SourcedMachine) -> list[str]:
    """The PCI devices, one line for all NUMA nodes that have the same ones."""
    ids_by_text: dict[str, list[int]] = {}
    for node, text in pci_by_node(machine).items():
        ids_by_text.setdefault(text, []).append(node)
    return [
        f"{text}{' each' if ids[1:] else ''} on NUMA {NodeMask.from_ids(ids)}"
        for text, ids in ids_by_text.items()
    ]


def _pci(machine: SourcedMachine) -> Mapping[str, Any]:
    if machine.files is not None:
        return read_pci(machine.files, machine.topology.online.mask)
    dumped = (machine.dump or {}).get("pci")
    return dumped if isinstance(dumped, Mapping) else {}


LETTERS = (
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    "αβγδεζηθκλμξπρστφχψωΓΔΘΛΞΠΣΦΨΩБДЖЗИЛЦЧШЩЫЭЮЯбджзилцчшщыэюя"
)
BEYOND = "*"
"""The letter of all containers after the last letter."""


@dataclass(frozen=True, slots=True)
class Paint:
    """How an owner is drawn: the letter alone identifies it.

    Attributes:
        letter: one character.
        fill: the background colour, `#rrggbb`; empty for the background of the page.
        ink: a text colour with enough contrast on `fill`; empty for the ordinary one.
        ansi: both colours for a terminal, as the parameters of an escape sequence.
    """

    letter: str
    fill: str = ""
    ink: str = ""
    ansi: str = ""


SHARED = Paint("·", ansi="2")
_BLACK, _WHITE = ("#000000", 16), ("#ffffff", 231)
_COLOURS = (
    (26, "#005fd7", _WHITE),
    (208, "#ff8700", _BLACK),
    (28, "#008700", _WHITE),
    (169, "#d75faf", _BLACK),
    (38, "#00afd7", _BLACK),
    (160, "#d70000", _WHITE),
    (220, "#ffd700", _BLACK),
    (91, "#8700af", _WHITE),
    (112, "#87d700", _BLACK),
    (94, "#875f00", _WHITE),
    (30, "#008787", _BLACK),
    (218, "#ffafd7", _BLACK),
    (111, "#87afff", _BLACK),
    (60, "#5f5f87", _WHITE),
    (210, "#ff8787", _BLACK),
    (122, "#87ffd7", _BLACK),
)
"""Of containers, over and over: xterm's number, the same as `#rrggbb`, and the ink that is legible on it."""


def paint_of(place: int) -> Paint:
    """The paint of the container at this place, counted from 0."""
    number, fill, (ink, ink_number) = _COLOURS[place % len(_COLOURS)]
    letter = LETTERS[place] if place < len(LETTERS) else BEYOND
    return Paint(letter, fill, ink, f"1;38;5;{ink_number};48;5;{number}")


Kind = Literal["exclusive", "shared", "reserved", "isolated", "offline"]
_PAINTS = {
    "shared": SHARED,
    "reserved": Paint("="),
    "isolated": Paint(":"),
    "offline": Paint("-", ansi="2"),
}


@dataclass(frozen=True, slots=True)
class CPUOwner:
    """An owner of CPUs: a container, the shared pool, or a kind of CPUs.

    Attributes:
        label: a line of the legend.
        cpus: the CPUs.
        kind: `exclusive` owners have a letter each; later owners are drawn over earlier ones.
        note: more facts for the legend.
        members: containers that share these CPUs.
        mems: NUMA nodes its memory is bound to.
    """

    label: str
    cpus: CPUSet
    kind: Kind = "exclusive"
    note: str = ""
    members: tuple[str, ...] = ()
    mems: NodeMask = NO_NODES

    @property
    def details(self) -> str:
        """The legend behind the label: CPUs, note and members."""
        parts = f"{self.cpus} ({count_of(len(self.cpus), 'cpu')})" if self.cpus else "none"
        parts += f", {self.note}" if self.note else ""
        return parts + (": " + ", ".join(self.members) if self.members else "")


def owner_paints(owners: Sequence[CPUOwner]) -> list[Paint]:
    """The paint of each owner; containers get letters in their order."""
    places = count()
    return [paint_of(next(places)) if owner.kind == "exclusive" else _PAINTS[owner.kind] for owner in owners]


KEY = "placements"
"""The key of a dump that holds placements."""
MOST_NAMED = 20
"""Containers of the shared pool that a legend names; `-o json` and `nri-pin state show` name all."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One container.

    Attributes:
        namespace: of its pod.
        pod: the pod's name, or its uid where the name is not known.
        container: its name in the pod.
        cpus: its exclusive CPUs, or the pod shared pool; empty in the shared pool of the node.
        mems: NUMA nodes its memory is bound to; empty for unbound memory.
        kind: `pod` for a pod that owns CPUs as a whole, `slice` and `pod-shared` for its containers, `init` for an init
            container whose CPUs later containers of its pod hold, too, `kept` for the CPUs of one that is over which no
            other has; else `container`.
    """

    namespace: str
    pod: str
    container: str
    cpus: CPUSet
    mems: NodeMask
    kind: str = "container"

    @property
    def name(self) -> str:
        """`namespace/pod/container`, or `namespace/pod` of a pod as a whole, without a namespace that is not known."""
        return "/".join(filter(None, (self.namespace, self.pod, self.container)))


@dataclass(frozen=True, slots=True)
class Placements:
    """The placements of containers on a machine.

    Attributes:
        source: the file and its generation.
        seats: by name; at most one for each container of a pod, and one for a pod that owns CPUs as a whole.
        shared_pool: the CPUs of all containers without exclusive CPUs.
        reserved: CPUs for the system; also in the shared pool unless reserved strictly.
        unreachable: online CPUs that the cgroup above the pods does not have.
    """

    source: str
    seats: tuple[Seat, ...]
    shared_pool: CPUSet
    reserved: CPUSet
    unreachable: CPUSet = NO_CPUS

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], where: str) -> "Placements":
        """Read what `nri-pin topology -o json` printed.

        Raises:
            ConfigError: the value has another form.
        """
        try:
            seats = tuple(
                Seat(
                    _plain(row["namespace"]),
                    _plain(row["pod"]),
                    _plain(row["container"]),
                    CPUSet.parse(row["cpus"]),
                    NodeMask.parse(row["mems"]),
                    _plain(row.get("kind", "container")),
                )
                for row in found["containers"]
            )
            pool, reserved = CPUSet.parse(found["shared_pool"]), CPUSet.parse(found["reserved"])
            unreachable = CPUSet.parse(found.get("unreachable", ""))
            return cls(_plain(found["source"]), seats, pool, reserved, unreachable)
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            detail = f"its '{KEY}' are not what 'nri-pin topology -o json' prints: {err!r}; print it again"
            raise ConfigError(where, detail) from err


@dataclass(frozen=True, slots=True)
class View:
    """A machine and its containers, as a picture shows them.

    Attributes:
        machine: the machine.
        placements: None where they are not known.
        remark: a doubt about the machine, or the reason why no placements are known; empty for none.
    """

    machine: SourcedMachine
    placements: Placements | None = None
    remark: str = ""

    @property
    def topology(self) -> Topology:
        """The topology by which CPUs are assigned."""
        return self.machine.topology

    @property
    def source(self) -> str:
        """The file of the placements; the remark where they are not known."""
        return self.remark if self.placements is None else f"containers: {self.placements.source}"

    @property
    def owners(self) -> list[CPUOwner] | None:
        """Owners of CPUs in the order of the legend; None where placements are not known."""
        return None if self.placements is None else owners_of(self.placements, self.topology)


def _plain(name: object) -> str:
    """A name from an untrusted file, without characters that control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(name))


def owners_of(placements: Placements, topology: Topology) -> list[CPUOwner]:
    """Containers with exclusive CPUs by name, then the shared pool, isolated, reserved and offline CPUs."""
    owners = [
        owner for seat in placements.seats if seat.cpus and (owner := _owner(seat, placements, topology))
    ]
    sharing = tuple(seat.name for seat in placements.seats if not seat.cpus)
    if len(sharing) > MOST_NAMED:
        sharing = (*sharing[:MOST_NAMED], f"and {len(sharing) - MOST_NAMED} more")
    taken = CPUSet(reduce(or_, (owner.cpus.mask for owner in owners), 0))
    owners.append(CPUOwner("shared pool", placements.shared_pool, "shared", members=sharing))
    isolated = (topology.isolated & topology.online) - taken
    if isolated:
        owners.append(CPUOwner("isolated by the kernel", isolated, "isolated"))
    reserved = placements.reserved - taken
    if reserved:
        where = ", in the shared pool" if reserved <= placements.shared_pool else ""
        owners.append(CPUOwner(f"reserved{where}", reserved, "reserved"))
    if placements.unreachable:
        owners.append(CPUOwner("not in the cgroup above the pods", placements.unreachable - taken, "offline"))
    if topology.offline:
        owners.append(CPUOwner("offline", topology.offline - taken, "offline"))
    return owners


def _owner(seat: Seat, placements: Placements, topology: Topology) -> CPUOwner | None:
    """The owner of the CPUs of a seat; None where those of its pod stand for it.

    What a pod owns as a whole is divided: each container with a slice has a letter, the rest has that of the pod.
    """
    place = _place(seat, topology)
    if seat.kind == "pod-shared":
        return None
    if seat.kind == "pod":
        of_pod = [one for one in placements.seats if (one.namespace, one.pod) == (seat.namespace, seat.pod)]
        slices = reduce(or_, (one.cpus.mask for one in of_pod if one.kind == "slice"), 0)
        members = tuple(one.container for one in of_pod if one.kind == "pod-shared")
        rest = seat.cpus - CPUSet(slices)
        if not rest:
            return None
        what = "pod shared pool" if members else "no container of it runs here"
        note = f"{what}, of the pod's CPUs {seat.cpus}, {place}"
        return CPUOwner(seat.name, rest, note=note, members=members, mems=seat.mems)
    notes = {
        "slice": "slice of its pod, ",
        "init": "init, later containers of its pod have them too, ",
        "kept": "init, ended, kept until its pod ends, ",
    }
    return CPUOwner(seat.name, seat.cpus, note=notes.get(seat.kind, "") + place, mems=seat.mems)


def _place(seat: Seat, topology: Topology) -> str:
    lost = seat.cpus - topology.online
    parts = [f"NUMA {topology.nodes_of(seat.cpus)}"] if seat.cpus & topology.online else []
    parts.append(f"memory {seat.mems}" if seat.mems else "memory anywhere")
    return ", ".join([*parts, *([f"of these {lost} offline"] if lost else [])])


def read_placements(path: str, topology: Topology, *, is_asked_for: bool) -> tuple[Placements | None, str]:
    """The placements of a checkpoint, and a remark about it.

    Args:
        path: the checkpoint, or the directory that holds it.
        topology: the machine that the checkpoint should be about.
        is_asked_for: whether the user named the file; the default file may be absent.

    Raises:
        ConfigError: a file that the user named is absent, or is about another machine.
        CheckpointError: a file that the user named cannot be read.
    """
    file = os.path.join(path, FILE_NAME) if os.path.isdir(path) else path
    try:
        checkpoint = read_checkpoint(file)
    except CheckpointError as err:
        advice = (
            "run as root to see them"
            if isinstance(err.__cause__, PermissionError)
            else "see nri-pin state verify"
        )
        if is_asked_for:
            raise CheckpointError(file, f"{err.detail}; {advice}") from err
        return None, f"no containers are shown: {err}; {advice}"
    if checkpoint is None:
        if is_asked_for:
            raise ConfigError(
                file, "there is no such checkpoint; name a file, or the agent's state directory"
            )
        return None, f"no containers are shown: there is no {file}; --state FILE names another checkpoint"
    if is_asked_for:
        _refuse_another_machine(checkpoint, topology, file)
    return _placements(checkpoint, topology, file), ""


def _refuse_another_machine(checkpoint: Checkpoint, topology: Topology, file: str) -> None:
    facts = checkpoint.facts
    online = checkpoint.state.exclusive if facts is None else facts.online
    nodes = None if facts is None else NodeMask.from_ids(node for node, _ in facts.numa_nodes)
    if online - (topology.online | topology.offline) or nodes not in {None, topology.node_mask}:
        theirs = f"CPUs {online}" + (f" on NUMA nodes {nodes}" if nodes else "")
        detail = (
            f"is about a machine with {theirs}; this one has CPUs {topology.online} on NUMA nodes "
            f"{topology.node_mask}; name its own with --machine"
        )
        raise ConfigError(file, detail)


def _placements(checkpoint: Checkpoint, topology: Topology, file: str) -> Placements:
    state, facts = checkpoint.state, checkpoint.facts
    pool = topology.online - state.exclusive if facts is None else state.shared_pool(facts.as_node())
    return Placements(
        source=f"{file}, generation {checkpoint.generation}",
        seats=tuple(sorted(_seats(state), key=lambda seat: (seat.namespace, seat.pod, seat.container))),
        shared_pool=pool & topology.online,
        reserved=CPUSet() if facts is None else facts.reserved & facts.online & topology.online,
        unreachable=CPUSet() if facts is None else topology.online - facts.online,
    )


def _seats(state: State) -> Iterator[Seat]:
    """All containers that have an allocation or run, and the pods that own CPUs as wholes.

    Of init containers that are over, the CPUs are shown which no later container has.
    """
    keys = [record.key for record in state.containers.values() if record.phase != Phase.STOPPED]
    keys += [key for key, allocation in state.allocations.items() if allocation.cpus or allocation.mems]
    kept = kept_by_ended(state)
    for key in dict.fromkeys(keys):
        uid, name = owner_of(key)
        pod = state.pods.get(uid)
        allocation = state.allocations.get(key) or Allocation()
        namespace, pod_name = (pod.namespace, pod.name) if pod else ("", "")
        if key in kept:
            yield Seat(namespace, pod_name or uid, name, kept[key], allocation.mems, "kept")
        elif not (allocation.cpus and is_over(state, key)):
            kind = _kind(state, key, allocation)
            yield Seat(namespace, pod_name or uid, name, allocation.cpus, allocation.mems, kind)


def _kind(state: State, key: str, allocation: Allocation) -> str:
    if is_whole_pod(key):
        return "pod"
    if allocation.is_pod_shared:
        return "pod-shared"
    if allocation.is_init and state.owned.get(key) != allocation.cpus:
        return "init"
    return (
        "slice" if allocation.cpus and allocation_key(pod_of(key), "") in state.allocations else "container"
    )
