"""A machine and the containers that run on it: the data that every form of `nri-pin topology` draws.

Placements come from a checkpoint, or from a dump that was printed with one. The devices of each NUMA node come from the
description of the machine or from the PCI devices of this one.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nri_plugin.cli.topology.picture import CPUOwner, memory_text
from nri_plugin.host.sysfs_parts import read_pci
from nri_plugin.model.errors import CheckpointError, ConfigError
from nri_plugin.model.sets import CPUSet, NodeMask
from nri_plugin.model.state import owner_of
from nri_plugin.model.topology import Topology

if TYPE_CHECKING:
    from nri_plugin.checkpoint.format import Checkpoint
    from nri_plugin.model.state import State
    from nri_plugin.simulator.machine.source import SourcedMachine
    from nri_plugin.simulator.machine.text import Description


def summary(topology: Topology) -> str:
    """How many of everything there are."""
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


def count_of(number: int, what: str) -> str:
    """As in `1 core`, `2 cores`."""
    return f"{number} {what}" + "s" * (number != 1)


CLASSES = {"01": "storage", "02": "network", "03": "display", "0b": "coprocessor", "12": "accelerator"}
"""PCI base classes that pods care for. Source: PCI Code and ID Assignment Specification, base classes."""


def resource_lines(description: "Description | None") -> list[str]:
    """What pods can ask for on a described machine: a line for each resource."""
    counts: dict[str, dict[str, int]] = {}
    for device in description.devices if description else ():
        where = f"on NUMA {device.nodes}" if device.nodes else "on no NUMA node"
        by_place = counts.setdefault(device.resource, {})
        by_place[where] = by_place.get(where, 0) + 1
    return [
        f"{name}: " + ", ".join(f"{count} {where}" for where, count in by_place.items())
        for name, by_place in counts.items()
    ]


def resources_by_node(description: "Description | None") -> dict[int, list[str]]:
    """The same node by node, with the ids of the devices."""
    found: dict[int, dict[str, list[str]]] = {}
    for device in description.devices if description else ():
        for node in device.nodes:
            found.setdefault(node, {}).setdefault(device.resource, []).append(device.id)
    return {
        node: [f"{name} {' '.join(ids)}" for name, ids in by_name.items()] for node, by_name in found.items()
    }


def pci_by_node(machine: "SourcedMachine") -> dict[int, str]:
    """How many PCI devices of which kind each node has; those that no firmware places are left out.

    Raises:
        HostError: a file of the machine cannot be read.
    """
    counts: dict[int, dict[str, int]] = {}
    for device in _pci(machine).values():
        name = CLASSES.get(str(device.get("class"))[2:4]) if isinstance(device, Mapping) else None
        node = device.get("numa_node") if name else None
        if name and isinstance(node, int) and node in machine.topology.node_ids:
            by_name = counts.setdefault(node, {})
            by_name[name] = by_name.get(name, 0) + 1
    return {
        node: "PCI: " + ", ".join(f"{count} {name}" for name, count in sorted(by_name.items()))
        for node, by_name in sorted(counts.items())
    }


def pci_lines(machine: "SourcedMachine") -> list[str]:
    """The same, a line for all nodes that have the same."""
    nodes_by_text: dict[str, NodeMask] = {}
    for node, text in pci_by_node(machine).items():
        nodes_by_text[text] = nodes_by_text.get(text, NodeMask()) | NodeMask.of(node)
    each = {text: " each" if len(nodes) > 1 else "" for text, nodes in nodes_by_text.items()}
    return [f"{text}{each[text]} on NUMA {nodes}" for text, nodes in nodes_by_text.items()]


def _pci(machine: "SourcedMachine") -> Mapping[str, Any]:
    if machine.files is not None:
        return read_pci(machine.files, machine.topology.online.mask)
    dumped = (machine.dump or {}).get("pci")
    return dumped if isinstance(dumped, Mapping) else {}


KEY = "placements"
"""The key of a dump that holds placements."""
MOST_NAMED = 20
"""Containers of the shared pool that a legend names; `-o json` and `state show` name all."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One container.

    Attributes:
        namespace: of its pod.
        pod: the pod's name, or its uid where the runtime told no name.
        container: its name in the pod.
        cpus: its exclusive CPUs; empty in the shared pool.
        mems: NUMA nodes its memory is bound to; empty where it is not bound.
    """

    namespace: str
    pod: str
    container: str
    cpus: CPUSet
    mems: NodeMask

    @property
    def name(self) -> str:
        """As people write it."""
        return "/".join(filter(None, (self.namespace, self.pod, self.container)))


@dataclass(frozen=True, slots=True)
class Placements:
    """The placements of containers on a machine.

    Attributes:
        source: the file, and which generation of it.
        seats: by name; at most one for each container of a pod.
        shared_pool: what all without exclusive CPUs run on.
        reserved: CPUs for the system; they are in the shared pool, too, unless reserved strictly.
    """

    source: str
    seats: tuple[Seat, ...]
    shared_pool: CPUSet
    reserved: CPUSet

    def as_dict(self) -> dict[str, Any]:
        """For `-o json`; sets are kernel lists."""
        return {
            "source": self.source,
            "shared_pool": str(self.shared_pool),
            "reserved": str(self.reserved),
            "containers": [
                {
                    "namespace": seat.namespace,
                    "pod": seat.pod,
                    "container": seat.container,
                    "cpus": str(seat.cpus),
                    "mems": str(seat.mems),
                }
                for seat in self.seats
            ],
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], where: str) -> "Placements":
        """What `as_dict` wrote.

        Raises:
            ConfigError: it is something else.
        """
        try:
            seats = tuple(
                Seat(
                    _plain(row["namespace"]),
                    _plain(row["pod"]),
                    _plain(row["container"]),
                    CPUSet.parse(row["cpus"]),
                    NodeMask.parse(row["mems"]),
                )
                for row in found["containers"]
            )
            pool, reserved = CPUSet.parse(found["shared_pool"]), CPUSet.parse(found["reserved"])
            return cls(_plain(found["source"]), seats, pool, reserved)
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            detail = f"its '{KEY}' are not what 'nri-pin topology -o json' prints: {err!r}; print it again"
            raise ConfigError(where, detail) from err


@dataclass(frozen=True, slots=True)
class View:
    """What is drawn.

    Attributes:
        machine: the machine.
        placements: None where they are not known.
        remark: why it is not known, or by which file it is; empty where there is nothing to say.
    """

    machine: "SourcedMachine"
    placements: Placements | None = None
    remark: str = ""

    @property
    def topology(self) -> Topology:
        """The machine as placement sees it."""
        return self.machine.topology

    @property
    def owners(self) -> list[CPUOwner] | None:
        """Owners of CPUs in the order of the legend; None where they are not known."""
        return None if self.placements is None else owners_of(self.placements, self.topology)


def _plain(name: object) -> str:
    """A name out of a file that anybody may have written: nothing in it moves the cursor of a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(name))


def owners_of(placements: Placements, topology: Topology) -> list[CPUOwner]:
    """Containers first, by name; then what belongs to none of them."""
    owners = [
        CPUOwner(seat.name, seat.cpus, note=_place(seat, topology), mems=seat.mems)
        for seat in placements.seats
        if seat.cpus
    ]
    sharing = tuple(seat.name for seat in placements.seats if not seat.cpus)
    if len(sharing) > MOST_NAMED:
        sharing = (*sharing[:MOST_NAMED], f"and {len(sharing) - MOST_NAMED} more")
    taken = CPUSet()
    for owner in owners:
        taken |= owner.cpus
    owners.append(CPUOwner("shared pool", placements.shared_pool, "shared", members=sharing))
    isolated = (topology.isolated & topology.online) - taken
    if isolated:
        owners.append(CPUOwner("isolated by the kernel", isolated, "isolated"))
    reserved = placements.reserved - taken
    if reserved:
        where = ", in the shared pool" if reserved <= placements.shared_pool else ""
        owners.append(CPUOwner(f"reserved{where}", reserved, "reserved"))
    if topology.offline:
        owners.append(CPUOwner("offline", topology.offline - taken, "offline"))
    return owners


def _place(seat: Seat, topology: Topology) -> str:
    lost = seat.cpus - topology.online
    parts = [f"NUMA {topology.nodes_of(seat.cpus)}"] if seat.cpus & topology.online else []
    parts.append(f"memory {seat.mems}" if seat.mems else "memory anywhere")
    return ", ".join([*parts, *([f"of these {lost} offline"] if lost else [])])


def read_placements(path: str, topology: Topology, *, is_asked_for: bool) -> tuple[Placements | None, str]:
    """The placements of a checkpoint, and a remark about it.

    Args:
        path: the checkpoint, or the directory that holds it.
        topology: the machine that it should be about.
        is_asked_for: whether the user named it; one that was only looked for need not be there.

    Raises:
        ConfigError: it was asked for and is not there, or is about another machine.
        CheckpointError: it was asked for and cannot be read.
    """
    from nri_plugin.checkpoint.file import FILE_NAME, read_checkpoint

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


def _refuse_another_machine(checkpoint: "Checkpoint", topology: Topology, file: str) -> None:
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


def _placements(checkpoint: "Checkpoint", topology: Topology, file: str) -> Placements:
    state, facts = checkpoint.state, checkpoint.facts
    pool = topology.online - state.exclusive if facts is None else state.shared_pool(facts.as_node())
    return Placements(
        source=f"{file}, generation {checkpoint.generation}",
        seats=tuple(sorted(_seats(state), key=lambda seat: (seat.namespace, seat.pod, seat.container))),
        shared_pool=pool & topology.online,
        reserved=CPUSet() if facts is None else facts.reserved & topology.online,
    )


def _seats(state: "State") -> Sequence[Seat]:
    """All containers that have an allocation or run."""
    from nri_plugin.model.state import Phase

    keys = {record.key: None for record in state.containers.values() if record.phase != Phase.STOPPED}
    keys |= {key: None for key, allocation in state.allocations.items() if allocation.cpus or allocation.mems}
    seats = []
    for key in keys:
        uid, name = owner_of(key)
        pod = state.pods.get(uid)
        allocation = state.allocations.get(key)
        seats.append(
            Seat(
                namespace=pod.namespace if pod else "",
                pod=(pod.name if pod else "") or uid,
                container=name,
                cpus=allocation.cpus if allocation else CPUSet(),
                mems=allocation.mems if allocation else NodeMask(),
            )
        )
    return seats
