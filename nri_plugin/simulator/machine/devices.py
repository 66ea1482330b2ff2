"""The devices of a described machine: the resources that pods request, and the files that show devices on a host.

A description names resources as kubelet device plugins do, the NUMA nodes of their devices, and the links between
devices. Each device gets a PCI address and a device node. As on a real node, an agent locates the devices of a
container by device numbers and `sys/dev`, by addresses and `sys/bus/pci`, by CDI specifications, and by the files of
the NVIDIA driver below `proc`.

Source: Linux, Documentation/ABI/testing/sysfs-bus-pci and admin-guide/devices.txt; CDI specification 0.6.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations, islice

from nri_plugin.config import yaml_tree
from nri_plugin.config.values import one_of, unknown
from nri_plugin.config.yaml_tree import Value
from nri_plugin.model import bits
from nri_plugin.model.sets import NodeMask
from nri_plugin.wire.nri.messages import DeviceNode

MAX_DEVICES = 4096
"""Of one machine: 64 cards with 64 functions each."""

LINK_WEIGHTS = {"nvlink": 100, "switch": 50, "bridge": 30}
"""Kinds of links, the stronger the heavier: a direct connection, one PCIe switch, one PCIe host bridge."""

MAX_WEIGHT = 100_000

NVIDIA = "nvidia.com"
NVIDIA_MAJOR = 195
LOCAL_MAJOR = 240
"""The first major number for local use. Source: Linux, admin-guide/devices.txt."""

FIRST_BUS, BUSES = 0x10, 0xF0
"""Lower buses belong to the chip set. After the last bus of a domain comes the next domain."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")

_RESOURCE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,62}\Z")
_DEVICE_KEYS = ("resource", "count", "ids", "nodes", "as")
_LINK_KEYS = ("resource", "weight", "groups")


Files = dict[str, str]


class Delivery(StrEnum):
    """How a container learns of a device."""

    NODES = "device"
    """A device node, as plugins of GPUs give them."""
    VARIABLE = "variable"
    """A device node, and `PCIDEVICE_*` with its PCI address, as the SR-IOV plugin gives a function bound to vfio-pci."""
    CDI = "cdi"
    """A CDI name."""


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """A device of a described machine.

    Attributes:
        resource: the resource that pods request, `nvidia.com/gpu`.
        id: unique within the resource.
        nodes: the NUMA nodes it is attached to; empty if the description or the kernel does not say.
        delivery: how it reaches containers.
        address: its PCI address, which is its id if that has the form of an address.
        node: its device node.
        model: its PCI vendor, device and class.
    """

    resource: str
    id: str
    nodes: NodeMask
    delivery: Delivery
    address: str
    node: DeviceNode
    model: tuple[str, str, str]

    @property
    def cdi_name(self) -> str:
        """Its name in CDI."""
        return f"{self.resource}={self.id}"


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """Two devices of one resource, and how strongly they are linked."""

    resource: str
    one: str
    other: str
    weight: int


_Described = tuple[str, str, NodeMask, Delivery]
"""Resource, id, NUMA nodes and delivery of a device."""


def id_list(value: Value, what: str) -> int:
    """A list such as `0-3,8` as a mask.

    Raises:
        ConfigError: no such list, or an empty one.
    """
    text = yaml_tree.scalar(value).text
    try:
        mask = bits.parse_list(text)
    except ValueError:
        mask = 0
    if not mask:
        raise value.place.error(f"expected {what}, found {text or 'nothing'}")
    return mask


def read_devices(value: Value, node_ids: Iterable[int], *, has_numa: bool) -> tuple[PlacedDevice, ...]:
    """Read a list of `{resource, count or ids, nodes, as}`, and give each device an address and a device node.

    Args:
        value: the list.
        node_ids: NUMA nodes of the machine.
        has_numa: whether the kernel shows NUMA nodes.

    Raises:
        ConfigError: an entry is wrong; names file, line and what is expected.
    """
    nodes = bits.from_ids(node_ids)
    found: list[_Described] = []
    for item in yaml_tree.items(value):
        given = _entries(item, _DEVICE_KEYS)
        resource = _resource(item, given)
        known = {name for other, name, _, _ in found if other == resource}
        mask = id_list(given["nodes"], "NUMA node ids such as 0 or 0,1") if "nodes" in given else 0
        if mask & ~nodes:
            what = f"{resource} on NUMA nodes {bits.format_list(mask)}"
            raise given["nodes"].place.error(f"{what}: the machine has {bits.format_list(nodes)}")
        delivery = Delivery(one_of(*Delivery)(given["as"])) if "as" in given else Delivery.NODES
        names = _ids(item, given, known)
        if len(found) + len(names) > MAX_DEVICES:
            raise item.place.error(f"more than {MAX_DEVICES} devices on a machine")
        found += [(resource, name, NodeMask(mask if has_numa else 0), delivery) for name in names]
    return tuple(_placed(found))


def read_links(value: Value, devices: Sequence[PlacedDevice]) -> tuple[DeviceLink, ...]:
    """Read a list of `{resource, weight, groups}`: every two devices of a group are linked.

    Raises:
        ConfigError: an entry is wrong, or names a device that is not described.
    """
    return tuple(link for item in yaml_tree.items(value) for link in _links(item, devices))


def _links(item: Value, devices: Sequence[PlacedDevice]) -> Iterator[DeviceLink]:
    given = _entries(item, _LINK_KEYS)
    resource = _resource(item, given)
    known = [device.id for device in devices if device.resource == resource]
    for key in ("weight", "groups"):
        if key not in given:
            raise item.place.error(f"{key} is missing")
    weight = _weight(given["weight"])
    for group in yaml_tree.items(given["groups"]):
        names = [yaml_tree.text_or_number(name) for name in yaml_tree.items(group)]
        if missing := [name for name in names if name not in known]:
            shown = ", ".join(known[:16]) + (", ..." if len(known) > 16 else "")
            raise group.place.error(
                f"{missing[0]}: expected ids of {resource}: {shown or 'it has no device'}"
            )
        if len(names) < 2 or len(set(names)) < len(names):
            raise group.place.error("expected two or more ids, each once")
        for one, other in combinations(names, 2):
            yield DeviceLink(resource, one, other, weight)


def _entries(item: Value, known: tuple[str, ...]) -> Mapping[str, Value]:
    section = yaml_tree.section(item)
    for key, place in section.keys.items():
        if key not in known:
            raise unknown(place, key, known)
    return section.entries


def _resource(item: Value, given: Mapping[str, Value]) -> str:
    name = yaml_tree.text(given["resource"]) if "resource" in given else ""
    if not _RESOURCE.match(name):
        raise item.place.error(
            f"expected 'resource: DOMAIN/NAME' such as nvidia.com/gpu, found {name or 'none'}"
        )
    return name


def _ids(item: Value, given: Mapping[str, Value], known: set[str]) -> list[str]:
    """The ids of the entry, else numbers that follow those of the same resource."""
    if ("count" in given) == ("ids" in given):
        raise item.place.error("expected either 'count: NUMBER' or 'ids: [ID, ...]'")
    if "count" in given:
        count = yaml_tree.number(given["count"])
        if not 1 <= count <= MAX_DEVICES:
            raise given["count"].place.error(f"expected a count from 1 to {MAX_DEVICES}, found {count}")
        free = (name for name in map(str, itertools.count(len(known))) if name not in known)
        return list(islice(free, count))
    names: list[str] = []
    for value in yaml_tree.items(given["ids"]):
        names.append(yaml_tree.text_or_number(value))
        if not _ID.match(names[-1]):
            raise value.place.error(f"expected the id of a device, found {names[-1]}")
        if names[-1] in known or names[-1] in names[:-1]:
            raise value.place.error(f"{names[-1]} is the id of another device of this resource")
    return names


def _weight(value: Value) -> int:
    kind = yaml_tree.text_or_number(value)
    if kind in LINK_WEIGHTS:
        return LINK_WEIGHTS[kind]
    if not kind.isdecimal() or not 1 <= int(kind) <= MAX_WEIGHT:
        raise value.place.error(
            f"expected {', '.join(LINK_WEIGHTS)} or a number from 1 to {MAX_WEIGHT}, found {kind}"
        )
    return int(kind)


def _placed(devices: Sequence[_Described]) -> Iterator[PlacedDevice]:
    named = {name for _, name, _, _ in devices if _ADDRESS.match(name)}
    free = (address for address in map(_address, itertools.count()) if address not in named)
    order = list(dict.fromkeys(resource for resource, _, _, _ in devices))
    minors = {NVIDIA_MAJOR: itertools.count(), LOCAL_MAJOR: itertools.count()}
    for resource, name, nodes, delivery in devices:
        major = NVIDIA_MAJOR if resource.startswith(f"{NVIDIA}/") else LOCAL_MAJOR
        minor = next(minors[major])
        yield PlacedDevice(
            resource,
            name,
            nodes,
            delivery,
            address=name if name in named else next(free),
            node=DeviceNode(path=_path(resource, major, minor), type="c", major=major, minor=minor),
            model=_model(major, order.index(resource)),
        )


def device_files(devices: Iterable[PlacedDevice], cpus_by_node: dict[int, int]) -> tuple[Files, Files]:
    """Files by path and symbolic links by path, relative to the root."""
    devices = tuple(devices)
    files: Files = {}
    links: Files = {}
    for device in devices:
        where = f"devices/pci{device.address[:-5]}/{device.address}"
        node = bits.lowest(device.nodes.mask) if len(device.nodes) == 1 else -1
        vendor, model, kind = device.model
        files |= {
            f"sys/{where}/vendor": vendor,
            f"sys/{where}/device": model,
            f"sys/{where}/class": kind,
            f"sys/{where}/numa_node": str(node),
            f"sys/{where}/local_cpulist": bits.format_list(_local(device, cpus_by_node)),
        }
        links[f"sys/bus/pci/devices/{device.address}"] = f"../../../{where}"
        numbers = f"{device.node.major}:{device.node.minor}"
        if device.node.major == NVIDIA_MAJOR:
            about = f"proc/driver/nvidia/gpus/{device.address}/information"
            files[about] = f"Bus Location: \t {device.address}\nDevice Minor: \t {device.node.minor}"
        else:
            entry = f"{where}/local/{device.node.path.rpartition('/')[2]}"
            files[f"sys/{entry}/dev"] = numbers
            links[f"sys/dev/char/{numbers}"] = f"../../{entry}"
    return files | _specifications(devices), links


def _address(number: int) -> str:
    return f"{number // BUSES:04x}:{FIRST_BUS + number % BUSES:02x}:00.0"


def _path(resource: str, major: int, minor: int) -> str:
    return f"/dev/nvidia{minor}" if major == NVIDIA_MAJOR else f"/dev/{resource.rpartition('/')[2]}{minor}"


def _model(major: int, number: int) -> tuple[str, str, str]:
    """PCI vendor, device and class: equal for devices of one resource, different for two resources."""
    if major == NVIDIA_MAJOR:
        return "0x10de", f"0x{0x2330 + number:04x}", "0x030200"
    return "0x8086", f"0x{0x1000 + number:04x}", "0x020000"


def _local(device: PlacedDevice, cpus_by_node: dict[int, int]) -> int:
    """CPUs near a device: those of its NUMA nodes, else all."""
    cpus = 0
    for number, mask in cpus_by_node.items():
        if not device.nodes or number in device.nodes:
            cpus |= mask
    return cpus


def _specifications(devices: Iterable[PlacedDevice]) -> Files:
    """A CDI specification for each resource that is delivered by CDI names."""
    entries: dict[str, list[object]] = {}
    for device in devices:
        if device.delivery is Delivery.CDI:
            node = {name: getattr(device.node, name) for name in ("path", "type", "major", "minor")}
            edits = {"deviceNodes": [node]}
            entries.setdefault(device.resource, []).append({"name": device.id, "containerEdits": edits})
    return {
        f"etc/cdi/{resource.replace('/', '-')}.json": json.dumps(
            {"cdiVersion": "0.6.0", "kind": resource, "devices": members}
        )
        for resource, members in entries.items()
    }
