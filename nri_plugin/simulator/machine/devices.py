"""The devices of a described machine: what kubelet device plugins offer, and how strongly devices are joined.

    devices nvidia.com/gpu 4 on 0 + 4 on 1
    links nvidia.com/gpu nvlink 0 3 / 1 2 / 4 7 / 5 6

says that eight GPUs are on two NUMA nodes, and that each has a partner.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations, islice

from nri_plugin.model.sets import NodeMask
from nri_plugin.simulator.machine.words import Clause

MAX_DEVICES = 4096
"""Of one machine: sixty-four cards with sixty-four functions each."""

LINK_WEIGHTS = {"nvlink": 100, "switch": 50, "bridge": 30}
"""Kinds of links, the stronger the heavier: a direct connection, one PCIe switch, one PCIe host bridge."""

MAX_WEIGHT = 100_000

_DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\Z")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}\Z")


class Delivery(StrEnum):
    """How a device is made known to a container."""

    NODES = "device"
    """A device node, as plugins of GPUs give them."""
    VARIABLE = "variable"
    """A device node, and `PCIDEVICE_*` with its PCI address, as the SR-IOV plugin gives a function bound to vfio-pci."""
    CDI = "cdi"
    """A CDI name."""


@dataclass(frozen=True, slots=True)
class DescribedDevice:
    """One device.

    Attributes:
        resource: what pods ask for, `nvidia.com/gpu`.
        id: unique within the resource.
        nodes: the NUMA nodes it is attached to; empty where nobody says.
        delivery: how it reaches containers.
        where: FILE:LINE:COLUMN of its NUMA nodes.
    """

    resource: str
    id: str
    nodes: NodeMask
    delivery: Delivery = Delivery.NODES
    where: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Link:
    """Two devices of one resource, and how strongly they are joined."""

    resource: str
    one: str
    other: str
    weight: int


def read_devices(clause: Clause, there: Iterable[DescribedDevice]) -> tuple[DescribedDevice, ...]:
    """The devices of a clause, behind those that are `there`.

    Raises:
        ConfigError: the clause is wrong; names the place.
    """
    there = tuple(there)
    resource = _resource(clause)
    ids = [device.id for device in there if device.resource == resource]
    found: list[tuple[str, NodeMask, str]] = []
    while not found or clause.take("+"):
        named = _named(clause, clause.number(1, "how many"), ids, len(there))
        ids += named
        where, nodes = _nodes(clause)
        found += [(name, nodes, where) for name in named]
    delivery = _delivery(clause)
    return tuple(DescribedDevice(resource, name, nodes, delivery, where) for name, nodes, where in found)


def read_links(clause: Clause, devices: Iterable[DescribedDevice]) -> tuple[Link, ...]:
    """The links of a clause: every two devices of a group are joined.

    Raises:
        ConfigError: the clause is wrong, or names a device that no earlier clause has.
    """
    start = clause.position
    resource = _resource(clause)
    known = [device.id for device in devices if device.resource == resource]
    if not known:
        clause.position = start
        clause.fail("a resource of an earlier clause of devices")
    kind = clause.expect(*LINK_WEIGHTS, "weight")
    weight = LINK_WEIGHTS[kind] if kind in LINK_WEIGHTS else _weight(clause)
    return tuple(
        Link(resource, one, other, weight)
        for group in _groups(clause, known)
        for one, other in combinations(group, 2)
    )


def _resource(clause: Clause) -> str:
    what = "a resource such as nvidia.com/gpu"
    domain = clause.literal(_DOMAIN, what)
    if not clause.take("/"):
        clause.fail(f"'/', as in {what}")
    return f"{domain}/{clause.literal(_NAME, what)}"


def _named(clause: Clause, count: int, there: list[str], total: int) -> list[str]:
    """`count` new ids: those that are named, else numbers that go on from the ones before."""
    if total + count > MAX_DEVICES or len(there) + count > MAX_DEVICES:
        clause.position -= 1
        clause.fail(f"at most {MAX_DEVICES} devices on a machine")
    if not clause.take("named"):
        free = (name for name in map(str, itertools.count(len(there))) if name not in there)
        return list(islice(free, count))
    names: list[str] = []
    for _ in range(count):
        names.append(clause.literal(_ID, f"{count} ids behind 'named'"))
        if names[-1] in there or names[-1] in names[:-1]:
            clause.position -= 1
            clause.fail("every id once")
    return names


def _nodes(clause: Clause) -> tuple[str, NodeMask]:
    if not clause.take("on"):
        return "", NodeMask()
    clause.take("numa")
    clause.take("node")
    where = clause.where
    return where, NodeMask(clause.ids("NUMA node ids such as 0 or 0,1"))


def _delivery(clause: Clause) -> Delivery:
    if not clause.take("as"):
        return Delivery.NODES
    delivery = Delivery(clause.expect(*Delivery, what="device nodes, variable or CDI"))
    if delivery is Delivery.NODES:
        clause.take("node")
    return delivery


def _weight(clause: Clause) -> int:
    number = clause.number(1, "a weight")
    if number > MAX_WEIGHT:
        clause.position -= 1
        clause.fail(f"a weight up to {MAX_WEIGHT}")
    return number


def _groups(clause: Clause, known: list[str]) -> Iterator[list[str]]:
    more = True
    while more:
        group = [_known(clause, known)]
        while clause.peek() not in {"", "/"}:
            group.append(_known(clause, known))
            if group[-1] in group[:-1]:
                clause.position -= 1
                clause.fail("every id once in a group")
        if len(group) < 2:
            clause.fail("two or more ids in a group")
        yield group
        more = bool(clause.take("/"))


def _known(clause: Clause, known: list[str]) -> str:
    name = clause.literal(_ID, "the id of a device")
    if name not in known:
        clause.position -= 1
        shown = ", ".join(known[:16]) + (", ..." if len(known) > 16 else "")
        clause.fail(f"one of the ids {shown}")
    return name
