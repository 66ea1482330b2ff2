"""The node in a recording: the machine and the options, whole, so that decisions can be made again anywhere.

A change of the rows that an older reader would misread is a new version of the recording.
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import msgspec
from msgspec import Struct

from nri_plugin.cpuset import CPUSet
from nri_plugin.ids import CoreID, NUMANodeID, SocketID, UncoreCacheID
from nri_plugin.options import HintProvider, Node, Options
from nri_plugin.topology import NUMANode, Topology


class Row(Struct, frozen=True, omit_defaults=True):
    """A part of a line; what is at its default is left out, what is unknown is passed over."""


class NUMANodeRow(Row, frozen=True):
    """A `NUMANode`."""

    id: int
    cpus: str = ""
    memory_bytes: int | None = None
    hugepages: tuple[tuple[int, int], ...] = ()
    distances: tuple[int, ...] | None = None


class TopologyRow(Row, frozen=True):
    """A `Topology`; groups are pairs of a number and its CPUs."""

    online: str
    cores: tuple[tuple[int, str], ...]
    sockets: tuple[tuple[int, str], ...]
    nodes: tuple[NUMANodeRow, ...]
    caches: tuple[tuple[int, str], ...]
    caches_known: bool = True
    without_l3: str = ""
    offline: str = ""
    isolated: str = ""
    taken: str = ""


class NodeRow(Row, frozen=True):
    """A `Node`: the machine and what was chosen for it; providers from outside by name only."""

    topology: TopologyRow
    options: dict[str, Any]
    reserved: str = ""
    hint_providers: tuple[str, ...] = ()
    withheld: str = ""


def node_row(node: Node) -> NodeRow:
    """The row of a node."""
    return NodeRow(
        topology=topology_row(node.topology),
        options=msgspec.to_builtins(node.options, order="deterministic"),
        reserved=str(node.reserved),
        withheld=str(node.withheld),
        hint_providers=names_of(node.hint_providers),
    )


def names_of(providers: Iterable[HintProvider]) -> tuple[str, ...]:
    """How providers from outside are recorded: their code is not."""
    return tuple(getattr(one, "__qualname__", type(one).__name__) for one in providers)


def node_from(row: NodeRow, providers: tuple[HintProvider, ...] = ()) -> Node:
    """A node from its row; with `providers` where those are the ones that were asked.

    Raises:
        ValueError: a set is no kernel list, or an option is not known.
    """
    unknown = row.options.keys() - {one.name for one in fields(Options)}
    if unknown:
        raise ValueError(f"option {min(unknown)} is not known to this version")
    options = msgspec.convert(row.options, Options)
    return Node(
        topology_from(row.topology),
        options,
        CPUSet.parse(row.reserved),
        providers if names_of(providers) == row.hint_providers else (),
        withheld=CPUSet.parse(row.withheld),
    )


def topology_row(machine: Topology) -> TopologyRow:
    """The row of a machine."""
    return TopologyRow(
        online=str(machine.online),
        cores=_listed(machine.cores),
        sockets=_listed(machine.sockets),
        nodes=tuple(
            NUMANodeRow(one.id, str(one.cpus), one.memory_bytes, one.hugepages, one.distances)
            for one in machine.nodes
        ),
        caches=_listed(machine.caches),
        caches_known=machine.caches_known,
        without_l3=str(machine.without_l3),
        offline=str(machine.offline),
        isolated=str(machine.isolated),
        taken=str(machine.taken),
    )


def _listed(groups: Iterable[tuple[int, CPUSet]]) -> tuple[tuple[int, str], ...]:
    return tuple((number, str(cpus)) for number, cpus in groups)


def topology_from(row: TopologyRow) -> Topology:
    """A machine from its row.

    Raises:
        ValueError: a set is no kernel list.
    """
    return Topology(
        online=CPUSet.parse(row.online),
        cores=tuple((CoreID(number), CPUSet.parse(cpus)) for number, cpus in row.cores),
        sockets=tuple((SocketID(number), CPUSet.parse(cpus)) for number, cpus in row.sockets),
        nodes=tuple(
            NUMANode(
                NUMANodeID(one.id), CPUSet.parse(one.cpus), one.memory_bytes, one.hugepages, one.distances
            )
            for one in row.nodes
        ),
        caches=tuple((UncoreCacheID(number), CPUSet.parse(cpus)) for number, cpus in row.caches),
        caches_known=row.caches_known,
        without_l3=CPUSet.parse(row.without_l3),
        offline=CPUSet.parse(row.offline),
        isolated=CPUSet.parse(row.isolated),
        taken=CPUSet.parse(row.taken),
    )
