"""Where described devices are on the host: PCI addresses, device numbers, and the files that tell of them.

An agent finds the NUMA node of a device from what a container is given, as on a node: by device numbers and
`sys/dev`, by addresses and `sys/bus/pci`, by CDI specifications, and by what the NVIDIA driver says below `proc`.

Source: Linux, Documentation/ABI/testing/sysfs-bus-pci and admin-guide/devices.txt; CDI specification 0.6.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from nri_plugin.model import bits
from nri_plugin.model.sets import NodeMask
from nri_plugin.simulator.machine.devices import Delivery, DescribedDevice
from nri_plugin.wire.nri.messages import DeviceNode

NVIDIA = "nvidia.com"
NVIDIA_MAJOR = 195
LOCAL_MAJOR = 240
"""The first of those the kernel leaves to local use."""

FIRST_BUS, BUSES = 0x10, 0xF0
"""Buses below have the chip set; where one domain is full the next one begins."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")

Files = dict[str, str]


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """A device as the host has it.

    Attributes:
        resource: what pods ask for.
        id: unique within the resource.
        nodes: the NUMA nodes it is attached to.
        delivery: how it reaches containers.
        address: its PCI address.
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
        """What CDI calls it."""
        return f"{self.resource}={self.id}"


def place_devices(devices: Iterable[DescribedDevice]) -> tuple[PlacedDevice, ...]:
    """Each device with an address (its id, where that is one) and a device node of its own."""
    devices = tuple(devices)
    named = {device.id for device in devices if _ADDRESS.match(device.id)}
    free = (address for address in map(_address, count()) if address not in named)
    order = list(dict.fromkeys(device.resource for device in devices))
    minors: dict[int, int] = {}
    found = []
    for device in devices:
        major = NVIDIA_MAJOR if device.resource.startswith(f"{NVIDIA}/") else LOCAL_MAJOR
        minor = minors.setdefault(major, 0)
        minors[major] += 1
        found.append(
            PlacedDevice(
                resource=device.resource,
                id=device.id,
                nodes=device.nodes,
                delivery=device.delivery,
                address=device.id if device.id in named else next(free),
                node=DeviceNode(
                    path=_path(device.resource, major, minor), type="c", major=major, minor=minor
                ),
                model=_model(major, order.index(device.resource)),
            )
        )
    return tuple(found)


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
    """Devices of one resource are alike, those of two are not."""
    if major == NVIDIA_MAJOR:
        return "0x10de", f"0x{0x2330 + number:04x}", "0x030200"
    return "0x8086", f"0x{0x1000 + number:04x}", "0x020000"


def _local(device: PlacedDevice, cpus_by_node: dict[int, int]) -> int:
    """CPUs near a device: those of its node, else all."""
    cpus = 0
    for number, mask in cpus_by_node.items():
        if not device.nodes or number in device.nodes:
            cpus |= mask
    return cpus


def _specifications(devices: Iterable[PlacedDevice]) -> Files:
    """A CDI specification for each resource whose devices are given by name."""
    by_resource: dict[str, list[PlacedDevice]] = {}
    for device in devices:
        if device.delivery is Delivery.CDI:
            by_resource.setdefault(device.resource, []).append(device)
    return {
        f"etc/cdi/{resource.replace('/', '-')}.json": json.dumps(_specification(resource, members))
        for resource, members in by_resource.items()
    }


def _specification(resource: str, members: Iterable[PlacedDevice]) -> dict[str, object]:
    return {
        "cdiVersion": "0.6.0",
        "kind": resource,
        "devices": [
            {
                "name": device.id,
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": device.node.path,
                            "type": device.node.type,
                            "major": device.node.major,
                            "minor": device.node.minor,
                        }
                    ]
                },
            }
            for device in members
        ],
    }
