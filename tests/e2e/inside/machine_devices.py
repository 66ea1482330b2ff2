"""The devices that a guest was given, found again: each is behind a root port, on the NUMA node it was put on.

Each has a device file. Those that are given "as variable" are named by their PCI address in the environment besides, as the
SR-IOV device plugin does; the variable alone would count for nothing.
"""

import re
from pathlib import Path
from typing import Any

_PCI = Path("/sys/bus/pci/devices")
_PORTS = Path("/sys/class/virtio-ports")
_OTHER = re.compile(r"[^A-Z0-9]")


class DeviceFinder:
    """Knows where the described devices are; `described` is in the order in which QEMU was told."""

    def __init__(self, described: list[dict[str, Any]]) -> None:
        left = _behind_ports() if described else {}
        self._places: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._described = {(each["resource"], each["id"]): each["node"] for each in described}
        for number, device in enumerate(described):
            address = left[device["node"] or "-1"].pop(0)
            self._places[device["resource"], device["id"]] = (
                address,
                _character_device(number),
                device["how"],
            )

    def nodes(self, given: dict[str, list[str]]) -> set[int]:
        """NUMA nodes of these ids by resource: the kernel's word for one on the bus, else as described."""
        found = set()
        for resource, ids in given.items():
            for each in ids:
                file = _PCI / self._places[resource, each][0] / "numa_node"
                word = file.read_text().strip() if file.exists() else self._described[resource, each]
                found |= {int(word)} if word not in ("", "-1") else set()
        return found

    def delivered(self, given: dict[str, list[str]]) -> tuple[list[str], list[str]]:
        """Environment and device files of a container that was given ids by resource."""
        environment, files = [], []
        for resource, ids in given.items():
            places = [self._places[resource, each] for each in ids]
            addresses = [address for address, _, how in places if how == "variable"]
            if addresses:
                name = _OTHER.sub("_", resource.upper())
                environment.append(f"PCIDEVICE_{name}={','.join(addresses)}")
            files += [file for _, file, _ in places]
        return environment, files


def _behind_ports() -> dict[str, list[str]]:
    """Addresses by NUMA node, in the order of the bus, of devices behind a root port."""
    found: dict[str, list[str]] = {}
    for path in sorted(_PCI.iterdir()):
        if not (path.resolve().parent / "numa_node").exists():
            continue
        found.setdefault((path / "numa_node").read_text().strip(), []).append(path.name)
    return found


def _character_device(number: int) -> str:
    """The port that QEMU was told to name so."""
    for path in _PORTS.iterdir():
        name = path / "name"
        if name.exists() and name.read_text().strip() == f"device{number}":
            return f"/dev/{path.name}"
    raise LookupError(f"the guest has no port named device{number}")
