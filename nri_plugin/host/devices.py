"""Device locality: the NUMA nodes of a container's devices, from the runtime's message and from sysfs.

A container shows its devices in four ways. Each leads to a directory of sysfs, which names the NUMA node:

* a device node: its major and minor number; a vfio group stands for all PCI devices of the group;
* a network interface that moves into the container: the PCI device below it;
* a CDI name: the device nodes in its specification;
* a variable `PCIDEVICE_*`, set by SR-IOV device plugins: PCI addresses of one resource.

A variable only groups devices that the container has in another way. It adds none, because the author of a pod writes its
environment. A device that is not found, or whose NUMA node is unknown, is near every node.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.host.sysfs_parts import NET_DIR, PCI_DIR
from nri_plugin.model import bounds
from nri_plugin.model.errors import HostError
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.device_hints import Device, DeviceResource
from nri_plugin.wire.nri.messages import Container, DeviceNode

# Source: Container Device Interface specification 1.0, "Specification directories". A file in /var/run/cdi takes
# precedence over one in /etc/cdi.
FOLDERS = ("var/run/cdi", "etc/cdi")
MOST_FILES = 1024
"""Of a folder. A container waits while they are read, 10 ms for so many unchanged ones. DRA drivers write one for each
claim."""
MOST_BYTES = 256 << 10
"""Larger files are not read. One for 16 GPUs has 20 kB."""
MOST_NEW_BYTES, YAML_COST = 4 << 20, 4
"""Of files that are new or changed, for one container; the next one goes on with the rest. A byte of YAML counts as four."""

IOMMU_DIR = "sys/kernel/iommu_groups"
NVIDIA_DIR = "proc/driver/nvidia/gpus"
NVIDIA_MAJOR = 195
"""Source: Linux, Documentation/admin-guide/devices.txt. The NVIDIA driver makes no entries in /sys/dev."""

NICPlaces = Callable[[Sequence[str]], Mapping[str, str]]
"""Returns the directories of network interfaces' devices, as paths below the root, by name of the interface."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_VARIABLE_NAME = re.compile(r"[A-Z0-9_]+\Z")
_INTERFACE = re.compile(r"[^/\s:\0]{1,15}\Z")  # Source: Linux, dev_valid_name
_GROUP = re.compile(r"sys/devices/virtual/vfio/([0-9]+)\Z")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)
_BRIDGE_CLASS = "0x06"
_KINDS = {"c": "char", "u": "char", "b": "block"}
"""Folders of /sys/dev by type of a device node; a FIFO (`p`) is no device."""


class _DeviceNode(Struct, rename="camel"):
    path: str
    type: str = ""
    major: int = 0
    minor: int = 0


class _Edits(Struct, rename="camel"):
    device_nodes: list[_DeviceNode] = []


class _Device(Struct, rename="camel"):
    name: str
    container_edits: _Edits = msgspec.field(default_factory=_Edits)


class _Spec(Struct, rename="camel"):
    kind: str
    devices: list[_Device] = []


class CDISpecs:
    """The CDI specifications below a root. A file is parsed again only after a change, and forgotten with its removal.

    Args:
        files: the root; it may have no such folders.
        warn: takes a sentence about files that are not read, and another one where they have doubled.
    """

    def __init__(self, files: KernelFiles, warn: Callable[[str], None] = lambda _sentence: None) -> None:
        self._files, self._warn = files, warn
        self._parsed: dict[str, tuple[tuple[int, int], dict[str, tuple[DeviceNode, ...]]]] = {}
        self._told = self._new_bytes = 0

    def nodes_by_name(self, names: Collection[str]) -> dict[str, tuple[DeviceNode, ...]]:
        """The device nodes of each name `vendor.com/class=name`; empty where no specification has the name.

        Paths are those in the container. Major and minor are 0 where the specification leaves them to the runtime. Never
        raises: a file that cannot be read or is no specification is ignored.
        """
        found: dict[str, tuple[DeviceNode, ...]] = {}
        if not names:
            return found
        self._new_bytes, there, unread = 0, set[str](), list[str]()
        for folder in FOLDERS:
            paths = self._paths(folder, names)
            there.update(paths)
            for number, path in enumerate(paths):
                if len(found) == len(names):
                    break
                spec = self._read(path) if number < MOST_FILES else None
                if spec is None:
                    unread.append(path)
                else:
                    found = {name: spec[name] for name in names if name in spec} | found
        for path in self._parsed.keys() - there:
            del self._parsed[path]
        self._tell(unread)
        return {name: found.get(name, ()) for name in names}

    def _tell(self, unread: Sequence[str]) -> None:
        if len(unread) >= 2 * self._told + 1:
            self._told = len(unread)
            shown = f"{', '.join(unread[:3])}{' and others' if len(unread) > 3 else ''}"
            self._warn(
                f"{len(unread)} CDI specifications not read, devices that only these describe have no NUMA node: {shown}; "
                f"at most {MOST_FILES} of a folder are read, of at most {MOST_BYTES >> 10} KiB"
            )

    def _paths(self, folder: str, names: Collection[str]) -> list[str]:
        """The files of a folder; those first that may have one of the names."""
        where = self._files.path(folder)
        classes = {name.partition("=")[0].replace("/", "-") for name in names}
        devices = [name.partition("=")[2] for name in names]

        def order(file: str) -> tuple[bool, bool, bool, str]:
            # Source: Container Device Interface, pkg/cdi GenerateTransientSpecName: a driver names the file of a claim
            # VENDOR-CLASS_ID; that of the machine's devices has no ID.
            stem, _, claim = file.rpartition(".")[0].partition("_")
            is_named = bool(claim) and any(claim in device for device in devices)
            return not is_named, bool(claim), not any(map(stem.endswith, classes)), file

        try:
            files = [name for name in os.listdir(where) if name.endswith((".json", ".yaml", ".yml"))]
        except OSError:
            return []
        return [f"{where}/{file}" for file in sorted(files, key=order)]

    def _read(self, path: str) -> dict[str, tuple[DeviceNode, ...]] | None:
        """What a file describes; None where it is too much to read."""
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._parsed.get(path)
            if known is None or known[0] != stamp:
                cost = status.st_size * (1 if path.endswith(".json") else YAML_COST)
                if status.st_size > MOST_BYTES or self._new_bytes + cost > MOST_NEW_BYTES:
                    return None
                self._new_bytes += cost
                known = self._parsed[path] = (stamp, _parse(path))
        except OSError:
            return {}
        return known[1]


def _parse(path: str) -> dict[str, tuple[DeviceNode, ...]]:
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES)
    decode = msgspec.json.decode if path.endswith(".json") else msgspec.yaml.decode
    try:
        spec = decode(data, type=_Spec)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return {
        f"{spec.kind}={device.name}": tuple(
            DeviceNode(node.path, node.type or "c", node.major, node.minor)
            for node in device.container_edits.device_nodes
        )
        for device in spec.devices
    }


@dataclass(frozen=True, slots=True)
class DeviceLocation:
    """A device of the host.

    Attributes:
        id: its PCI address, or the name of its directory in sysfs.
        kind: `pci/VENDOR:DEVICE`, or `device` for one on no PCI bus. Devices of one kind are one resource.
        nodes: the NUMA node it is attached to; empty if unknown.
    """

    id: str
    kind: str
    nodes: NodeMask


class DeviceLocator:
    """Finds the devices of containers.

    Args:
        files: the root with the host's `sys` and, where they are mounted, its CDI specifications.
        own: the root with this process's `proc`, where the NVIDIA driver shows the minor of each device.
        nics: finds the devices of network interfaces. Interfaces that it does not return, or all of them if it is None,
            are looked up in sysfs.
        warn: as `CDISpecs` has it.
    """

    def __init__(
        self,
        files: KernelFiles,
        own: KernelFiles | None = None,
        nics: NICPlaces | None = None,
        warn: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        self._files = files
        self._own = own or files
        self._root = os.path.realpath(files.root)
        self._cdi = CDISpecs(files, warn)
        self._nics = nics

    def resources(self, container: Container) -> tuple[DeviceResource, ...] | None:
        """The container's devices by resource; None where it has more than `bounds` allows.

        There is one resource for each variable, for each class of CDI names, and for each kind of the other devices.
        Never raises: a file that cannot be read counts as missing.

        Differs: the kubelet goes by what a device plugin says of each device; here: a device that reached the
            container in another way, such as a raw block volume, also counts where it is on a PCI bus. Why:
            the container works with it, and it has a NUMA node. Option: none.
        """
        if not (container.devices or container.cdi_devices or container.net_devices or container.env):
            return ()
        try:
            return self._resources(container, _SysfsSearch(self))
        except _TooManyError:
            return None

    def _resources(self, container: Container, search: "_SysfsSearch") -> tuple[DeviceResource, ...]:
        by_class, is_privileged = self._by_class(container, search), _is_privileged(container)
        others = search.found(self._of_interfaces(container.net_devices))
        # The runtime gives all device nodes of the host to a privileged container, so they show no choice.
        if not is_privileged:
            others = [*search.behind(container.devices), *others]
        given = {place.id: place for places in (*by_class.values(), others) for place in places}
        # Of those, the variables of a privileged container name the ones that were allocated to it.
        if is_privileged and container.env:
            given |= {place.id: place for place in search.behind(container.devices)}
        env = container.env if given else ()
        named = {name: [given[one] for one in sorted(given.keys() & ids)] for name, ids in _variables(env)}
        for name, places in by_class.items():
            named[name] = [*named.get(name, ()), *places]
        # A device that a variable or a CDI name has put into a resource does not count once more by its kind.
        known = {place.id for places in named.values() for place in places}
        for place in others:
            if place.id not in known:
                named.setdefault(place.kind, []).append(place)
        return tuple(_resource(name, places) for name, places in named.items() if places)

    def _by_class(self, container: Container, search: "_SysfsSearch") -> dict[str, list[DeviceLocation]]:
        """The devices of CDI names, by class of the name (`vendor.com/class`)."""
        # The node in the container has the numbers, which the specification may leave to the runtime.
        by_path = {node.path: node for node in container.devices}
        found: dict[str, list[DeviceLocation]] = {}
        for name, behind in self._cdi.nodes_by_name(dict.fromkeys(container.cdi_devices)).items():
            nodes = (by_path.get(node.path, node) for node in behind)
            found.setdefault(name.partition("=")[0], []).extend(search.behind(nodes))
        return found

    def of_numbers(self, kind: str, major: int, minor: int) -> Iterator[DeviceLocation]:
        """The devices of a device node: none, one, or all of a vfio group."""
        path = self._real(f"sys/dev/{kind}/{major}:{minor}")
        group = _GROUP.match(path or "")
        if group:
            # A group may contain the bridge above its devices, which the container does not use.
            names = self._names(f"{IOMMU_DIR}/{group[1]}/devices")
            yield from self._of_addresses(
                name
                for name in names
                if not _text(self._files, f"{PCI_DIR}/{name}/class").startswith(_BRIDGE_CLASS)
            )
        elif path:
            yield from self._at(path)
        elif kind == "char" and major == NVIDIA_MAJOR:
            yield from self._of_addresses(self._nvidia(minor))

    def _of_addresses(self, addresses: Iterable[str]) -> Iterator[DeviceLocation]:
        for address in addresses:
            if _ADDRESS.match(address):
                path = self._real(f"{PCI_DIR}/{address}")
                if path:
                    yield from self._at(path)

    def _nvidia(self, minor: int) -> Iterator[str]:
        # The driver shows its devices in `proc`. In a container the host's `proc` may not be mounted.
        for files in dict.fromkeys((self._files, self._own)):
            for address in self._names(NVIDIA_DIR, files):
                match = _MINOR.search(_text(files, f"{NVIDIA_DIR}/{address}/information"))
                if match and int(match[1]) == minor:
                    yield address.lower()
                    return

    def _of_interfaces(self, names: Iterable[str]) -> Iterator[DeviceLocation]:
        usable = [name for name in names if _INTERFACE.match(name) and name not in {".", ".."}]
        told = self._nics(usable) if self._nics is not None and usable else {}
        for name in usable:
            path = self._real(told[name]) if name in told else None
            path = path or self._real(f"{NET_DIR}/{name}/device")
            if path:
                yield from self._at(path)

    def _at(self, path: str) -> Iterator[DeviceLocation]:
        """The device of a directory: the nearest PCI device at or above it, else the directory itself.

        A virtual device has no place. Neither has a device on no PCI bus without a NUMA node.
        """
        if path.startswith("sys/devices/virtual/") or not path.startswith("sys/devices/"):
            return
        parts = path.split("/")
        # The nearest directory first. A partition or a port has no `numa_node` file, and a directory above it has one.
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
        yield DeviceLocation(name, kind, NodeMask.of(node) if node >= 0 else NodeMask())

    def _node(self, where: str) -> int:
        """The NUMA node of a device; -1 if the file is missing, cannot be read or names none."""
        try:
            number = self._files.number(f"{where}/numa_node")
        except HostError:
            return -1
        return -1 if number is None or number > 1023 else number

    def _hex(self, where: str, name: str) -> str:
        return _text(self._files, f"{where}/{name}").removeprefix("0x")[:8] or "unknown"

    def _names(self, where: str, files: KernelFiles | None = None) -> list[str]:
        try:
            return sorted((files or self._files).names(where) or ())
        except HostError:
            return []

    def _real(self, name: str) -> str | None:
        """The path below the root that a link leads to; None if it is missing or leads out of the root."""
        path = os.path.realpath(self._files.path(name))
        prefix = self._root.rstrip("/") + "/"
        return path.removeprefix(prefix) if path.startswith(prefix) and os.path.exists(path) else None


class _TooManyError(Exception):
    """The container exceeds a bound on devices."""


class _SysfsSearch:
    """Looks up the devices of one container, each device number once, within the bounds."""

    def __init__(self, locator: DeviceLocator) -> None:
        self._locator = locator
        self._by_number: dict[tuple[str, int, int], list[DeviceLocation]] = {}
        self._ids: set[str] = set()
        self._seen = 0

    def behind(self, nodes: Iterable[DeviceNode]) -> list[DeviceLocation]:
        """The devices of these device nodes.

        Raises:
            _TooManyError: they exceed a bound.
        """
        places = []
        for node in nodes:
            self._seen += 1
            if self._seen > bounds.DEVICE_LOOKUPS:
                raise _TooManyError
            if node.type in _KINDS:
                places += self._of(_KINDS[node.type], node.major, node.minor)
        return places

    def found(self, places: Iterable[DeviceLocation]) -> list[DeviceLocation]:
        """The same places, after they were counted.

        Raises:
            _TooManyError: they exceed a bound.
        """
        counted = []
        for place in places:
            counted.append(place)
            self._ids.add(place.id)
            if len(self._ids) > bounds.DEVICES:
                raise _TooManyError
        return counted

    def _of(self, kind: str, major: int, minor: int) -> list[DeviceLocation]:
        key = (kind, major, minor)
        if key not in self._by_number:
            self._by_number[key] = self.found(self._locator.of_numbers(kind, major, minor))
        return self._by_number[key]


def listed_addresses(container: Container) -> tuple[str, ...]:
    """The PCI addresses that variables of SR-IOV device plugins list, in order."""
    listed = {address for _, addresses in _variables(container.env) for address in addresses}
    return tuple(sorted(filter(_ADDRESS.match, listed)))


def _variables(env: Iterable[str]) -> Iterator[tuple[str, set[str]]]:
    """Variables that list devices, each with its PCI addresses. A variable that ends in `_INFO` holds JSON."""
    for line in env:
        name, _, value = line.partition("=")
        if (
            name.startswith(bounds.LISTS_DEVICES)
            and _VARIABLE_NAME.match(name)
            and not name.endswith("_INFO")
        ):
            yield name, set(value.lower().replace(" ", "").split(","))


def _is_privileged(container: Container) -> bool:
    """Whether the container has all devices of the host: it lists some that no container gets one by one."""
    return any(
        (node.major, node.minor) in bounds.HOST_ONLY_DEVICES and node.type == "c"
        for node in container.devices
    )


def _text(files: KernelFiles, name: str) -> str:
    try:
        return files.text(name) or ""
    except HostError:
        return ""


def _resource(name: str, places: Iterable[DeviceLocation]) -> DeviceResource:
    distinct = {place.id: Device(place.id, place.nodes) for place in places}
    return DeviceResource(name, tuple(distinct.values()))
