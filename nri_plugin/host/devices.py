"""Where the devices of a container are attached, by what the runtime says of it and what sysfs knows.

Device nodes are followed from their numbers to the PCI device they belong to; `PCIDEVICE_*` variables, which
SR-IOV device plugins set, and network interfaces name PCI devices themselves; a CDI name stands for the device
nodes of its specification. What cannot be found, and what the host does not place in a NUMA node, is near everywhere.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nri_plugin.errors import HostError
from nri_plugin.host.cdi import CDISpecs
from nri_plugin.host.sysfs_devices import NET_DIR, PCI_DIR
from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.nodemask import NodeMask
from nri_plugin.nri.messages import Container
from nri_plugin.nri.messages import Device as DeviceNode
from nri_plugin.policy.device_hints import Device, DeviceResource

MOST_NODES = 128
"""A container with more device nodes is taken for a privileged one; sixteen GPUs and NICs have fewer."""

MOST_ADDRESSES = 256
"""Of one variable: as many virtual functions as a device can have."""

MOST_NAMES = 64
"""CDI names of one container, and its network interfaces."""

NICPlaces = Callable[[Sequence[str]], Mapping[str, str]]
"""See `nri_plugin.host.nic_helper`."""

HOST_ONLY = frozenset({(1, 1), (1, 11)})
"""/dev/mem and /dev/kmsg: no device plugin gives them, a privileged container lists them with all others."""

IOMMU_DIR = "sys/kernel/iommu_groups"
NVIDIA_DIR = "proc/driver/nvidia/gpus"
NVIDIA_MAJOR = 195
"""Source: Linux, Documentation/admin-guide/devices.txt; that driver has no entries below /sys/dev."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_VARIABLE = re.compile(r"(PCIDEVICE_[A-Z0-9_]+)=(.*)\Z", re.DOTALL)
_INTERFACE = re.compile(r"[^/\s:\0]{1,15}\Z")  # Source: Linux, dev_valid_name
_GROUP = re.compile(r"sys/devices/virtual/vfio/([0-9]+)\Z")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)
_BRIDGE = "0x06"
_KINDS = {"c": "char", "u": "char", "b": "block"}


@dataclass(frozen=True, slots=True)
class Place:
    """A device of the host.

    Attributes:
        id: its PCI address, or the name of its directory in sysfs.
        kind: `pci/VENDOR:DEVICE`, or `device` for one on no PCI bus; alike ones are one resource.
        nodes: the NUMA node it is attached to; empty when nobody says.
    """

    id: str
    kind: str
    nodes: NodeMask


class DeviceLocator:
    """Finds the devices of containers.

    Args:
        files: where the host's `sys` is, and its CDI specifications where they can be seen.
        own: where this process's `proc` is; the NVIDIA driver tells there which device has which minor.
        nics: tells where interfaces are attached, as paths below the root by name; what it does not
            know, and everything where it is None, is looked up in sysfs.
    """

    def __init__(
        self, files: KernelFiles, own: KernelFiles | None = None, nics: NICPlaces | None = None
    ) -> None:
        self._files = files
        self._own = own or files
        self._root = os.path.realpath(files.root)
        self._cdi = CDISpecs(files)
        self._nics = nics

    def resources(self, container: Container) -> tuple[DeviceResource, ...]:
        """The container's devices: one resource for each variable, each class of CDI names, each kind of others.

        Never raises: a file that cannot be read says nothing.

        Differs: the kubelet goes by what a device plugin says of each device. A device that reached the
            container in another way, such as a raw block volume, counts here too where it is on a PCI bus.
        """
        named: dict[str, tuple[Place, ...]] = {}
        for name, places in (*self._variables(container.env), *self._of_names(container)):
            named[name] = (*named.get(name, ()), *places)
        known = {place.id for places in named.values() for place in places}
        kinds: dict[str, dict[str, Place]] = {}
        for place in (*self._of_nodes(container.devices), *self._of_interfaces(container.net_devices)):
            if place.id not in known:
                kinds.setdefault(place.kind, {})[place.id] = place
        rest = {kind: tuple(places.values()) for kind, places in kinds.items()}
        return tuple(_resource(name, places) for name, places in (named | rest).items() if places)

    def _variables(self, env: Iterable[str]) -> Iterator[tuple[str, Iterator[Place]]]:
        """Variables and the PCI devices they list; those that end with _INFO hold other things."""
        for line in env:
            match = _VARIABLE.match(line)
            if match and not match[1].endswith("_INFO"):
                yield match[1], self._of_addresses(match[2].split(",", MOST_ADDRESSES)[:MOST_ADDRESSES])

    def _of_names(self, container: Container) -> Iterator[tuple[str, Iterator[Place]]]:
        """Classes of CDI names and the devices behind their nodes, by the numbers these have in the container."""
        by_path = {node.path: node for node in container.devices}
        for name in container.cdi_devices[:MOST_NAMES]:
            nodes = [by_path.get(node.path, node) for node in self._cdi.nodes(name)]
            yield name.partition("=")[0], self._behind(nodes)

    def _of_addresses(self, addresses: Iterable[str]) -> Iterator[Place]:
        for address in addresses:
            if _ADDRESS.match(address := address.strip().lower()):
                path = self._real(f"{PCI_DIR}/{address}")
                if path:
                    yield from self._at(path)

    def _of_nodes(self, nodes: tuple[DeviceNode, ...]) -> Iterator[Place]:
        """Devices behind device nodes; a privileged container lists all of the host and has chosen none."""
        if len(nodes) > MOST_NODES or any((n.major, n.minor) in HOST_ONLY and n.type == "c" for n in nodes):
            return
        yield from self._behind(nodes)

    def _behind(self, nodes: Iterable[DeviceNode]) -> Iterator[Place]:
        for node in nodes:
            if node.type in _KINDS:
                yield from self._of_numbers(_KINDS[node.type], node.major, node.minor)

    def _of_numbers(self, kind: str, major: int, minor: int) -> Iterator[Place]:
        path = self._real(f"sys/dev/{kind}/{major}:{minor}")
        group = _GROUP.match(path or "")
        if group:
            names = self._names(f"{IOMMU_DIR}/{group[1]}/devices")
            yield from self._of_addresses(name for name in names if not self._is_bridge(name))
        elif path:
            yield from self._at(path)
        elif kind == "char" and major == NVIDIA_MAJOR:
            yield from self._of_addresses(self._nvidia(minor))

    def _nvidia(self, minor: int) -> Iterator[str]:
        for files in dict.fromkeys((self._files, self._own)):
            for address in self._names(NVIDIA_DIR, files):
                match = _MINOR.search(_text(files, f"{NVIDIA_DIR}/{address}/information"))
                if match and int(match[1]) == minor:
                    yield address.lower()
                    return

    def _of_interfaces(self, names: Iterable[str]) -> Iterator[Place]:
        usable = [name for name in names if _INTERFACE.match(name) and name not in {".", ".."}][:MOST_NAMES]
        told = self._nics(usable) if self._nics is not None and usable else {}
        for name in usable:
            path = self._real(told[name]) if name in told else None
            path = path or self._real(f"{NET_DIR}/{name}/device")
            if path:
                yield from self._at(path)

    def _at(self, path: str) -> Iterator[Place]:
        """The device whose directory this is, or that it belongs to; virtual devices are nowhere."""
        if path.startswith("sys/devices/virtual/") or not path.startswith("sys/devices/"):
            return
        parts = path.split("/")
        ancestors = ["/".join(parts[:end]) for end in range(len(parts), 2, -1)]
        on_pci = [one for one in ancestors if _ADDRESS.match(os.path.basename(one))]
        found = (self._node(one) for one in on_pci or ancestors)
        node = next((number for number in found if number >= 0), -1)
        if not on_pci and node < 0:
            return
        name, kind = parts[-1], "device"
        if on_pci:
            name = os.path.basename(on_pci[0])
            kind = f"pci/{self._hex(on_pci[0], 'vendor')}:{self._hex(on_pci[0], 'device')}"
        yield Place(name, kind, NodeMask.of(node) if node >= 0 else NodeMask())

    def _node(self, where: str) -> int:
        """The NUMA node of a device, -1 when it is not said here."""
        try:
            number = self._files.number(f"{where}/numa_node")
        except HostError:
            return -1
        return -1 if number is None or number > 1023 else number

    def _hex(self, where: str, name: str) -> str:
        return _text(self._files, f"{where}/{name}").removeprefix("0x")[:8] or "unknown"

    def _is_bridge(self, address: str) -> bool:
        return _text(self._files, f"{PCI_DIR}/{address}/class").startswith(_BRIDGE)

    def _names(self, where: str, files: KernelFiles | None = None) -> list[str]:
        try:
            return sorted((files or self._files).names(where) or ())
        except HostError:
            return []

    def _real(self, name: str) -> str | None:
        """The path below the root that a link leads to; None when there is none or it leads out."""
        path = os.path.realpath(self._files.path(name))
        prefix = self._root.rstrip("/") + "/"
        return path.removeprefix(prefix) if path.startswith(prefix) and os.path.exists(path) else None


def _text(files: KernelFiles, name: str) -> str:
    try:
        return files.text(name) or ""
    except HostError:
        return ""


def _resource(name: str, places: Iterable[Place]) -> DeviceResource:
    distinct = {place.id: Device(place.id, place.nodes) for place in places}
    return DeviceResource(name, tuple(distinct.values()))
