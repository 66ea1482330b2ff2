"""Device locality: the NUMA nodes of a container's devices, from the runtime's message and from sysfs.

A device node leads by its numbers to its PCI device, a vfio group to all of its devices. A network interface names its
PCI device. A CDI name stands for the device nodes of its specification. A device that cannot be found, or that the host
places in no NUMA node, is near every node.

`PCIDEVICE_*` variables, which SR-IOV device plugins set, say which of these devices are of one resource. They add
none: the author of a pod writes its environment, so a device counts only where the container has it in another way.
"""

import os
import re
import select
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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

# Source: Container Device Interface specification 1.0; files in /etc/cdi and /var/run/cdi, the latter first.


FOLDERS = ("var/run/cdi", "etc/cdi")
MOST_FILES = 64
MOST_BYTES = 256 << 10
"""A larger file is passed over: it would be read while a container waits. One for 16 GPUs has 20 kB."""


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
    """The specifications below a root; a file is parsed again only when it has changed.

    Args:
        files: the root; where it has no such folders, no name stands for anything.
    """

    def __init__(self, files: KernelFiles) -> None:
        self._files = files
        self._parsed: dict[str, tuple[tuple[int, int], dict[str, tuple[DeviceNode, ...]]]] = {}

    def nodes(self, name: str) -> tuple[DeviceNode, ...]:
        """The device nodes of `vendor.com/class=name`, in the container's names; empty when no specification has it.

        Numbers are 0 where the specification leaves them to the runtime. Never raises: a file that cannot
        be read or is no specification says nothing.
        """
        return self.nodes_by_name((name,))[name]

    def nodes_by_name(self, names: Collection[str]) -> dict[str, tuple[DeviceNode, ...]]:
        """The same for several names; the specifications are looked at once."""
        specs = [self._read(path) for path in self._paths()] if names else []
        return {name: next((spec[name] for spec in specs if name in spec), ()) for name in names}

    def _paths(self) -> Iterator[str]:
        for folder in FOLDERS:
            where = self._files.path(folder)
            try:
                names = sorted(os.listdir(where))[:MOST_FILES]
            except OSError:
                continue
            yield from (f"{where}/{name}" for name in names if name.endswith((".json", ".yaml", ".yml")))

    def _read(self, path: str) -> dict[str, tuple[DeviceNode, ...]]:
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._parsed.get(path)
            if known is None or known[0] != stamp:
                found = _parse(path) if status.st_size <= MOST_BYTES else {}
                known = self._parsed[path] = (stamp, found)
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


# The helper process `nri_plugin.host.nic_probe`. The runtime waits for its answer, so a helper that is late is ended. The
# interfaces are then looked up in sysfs. The next container starts another helper, after a pause.


COMMAND = (sys.executable, "-P", "-m", "nri_plugin.host.nic_probe")

READY_S = 20.0
"""Its library loads in a quarter of a second; a machine that starts may need much longer."""

ANSWER_S = 0.05
"""One interface takes less than a millisecond."""

PAUSE_S = 5.0
"""Until another helper is started in place of one that failed."""

LINE_BYTES = 1 << 16

_WORD = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9:._-]{1,64}\Z")

_Answer = dict[str, tuple[str, str] | None]


class _SilentError(Exception):
    """No line came in time, or none that can be used."""


class NICHelper:
    """One helper process and the way to it.

    Args:
        clock: seconds, monotonic.
        command: the helper.

    Attributes:
        failures: how often a helper was given up.
    """

    def __init__(self, clock: Callable[[], float], command: Sequence[str] = COMMAND) -> None:
        self.failures = 0
        self._clock = clock
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._buffer = b""
        self._again_at = clock()

    def start(self, limit_s: float = READY_S) -> None:
        """Start the helper and wait until it hears questions.

        Raises:
            HostError: it does not; says why.
        """
        try:
            self._spawn()
            line = self._line(limit_s)
            said = msgspec.json.decode(line, type=dict[str, str])
        except (OSError, _SilentError, msgspec.DecodeError) as error:
            self.close()
            raise _unusable(str(error)) from None
        if "error" in said:
            self.close()
            raise _unusable(said["error"])
        self._is_ready = True

    def __call__(self, names: Sequence[str]) -> Mapping[str, str]:
        """Paths below the root, such as `sys/bus/pci/devices/0000:3b:00.0`, of interfaces on a device.

        Never raises: without an answer in time nothing is known.
        """
        if not names or not self._hears():
            return {}
        try:
            self._send(msgspec.json.encode(list(names)) + b"\n")
            found = msgspec.json.decode(self._line(ANSWER_S), type=_Answer)
        except (OSError, _SilentError, msgspec.DecodeError):
            self._fail()
            return {}
        return {
            name: f"sys/bus/{place[0]}/devices/{place[1]}"
            for name, place in found.items()
            if place is not None and all(map(_WORD.match, place))
        }

    def close(self) -> None:
        """End the helper."""
        process, self._process = self._process, None
        self._is_ready, self._buffer = False, b""
        if process is not None:
            process.kill()
            process.communicate()

    def _hears(self) -> bool:
        """Whether the helper is ready; one that is not there is started, and ready for a later question."""
        if self._process is None:
            if self._clock() >= self._again_at:
                with suppress(OSError):
                    self._spawn()
        elif not self._is_ready:
            try:
                self._is_ready = msgspec.json.decode(self._line(0.0)) == {}
            except _SilentError:
                if self._process.poll() is not None:
                    self._fail()
            except (OSError, msgspec.DecodeError):
                self._fail()
        return self._is_ready

    def _spawn(self) -> None:
        self._again_at = self._clock() + PAUSE_S
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )

    def _fail(self) -> None:
        self.failures += 1
        self.close()
        self._again_at = self._clock() + PAUSE_S

    def _send(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None or len(line) > LINE_BYTES:
            raise _SilentError("there is no helper")
        self._process.stdin.write(line)

    def _line(self, limit_s: float) -> bytes:
        """The next line.

        Raises:
            _SilentError: there is none in time, or it is too long.
        """
        if self._process is None or self._process.stdout is None:
            raise _SilentError("there is no helper")
        number = self._process.stdout.fileno()
        until = self._clock() + limit_s
        poller = select.poll()
        poller.register(number, select.POLLIN)
        while b"\n" not in self._buffer:
            left_s = max(until - self._clock(), 0.0)
            if not poller.poll(left_s * 1000):
                raise _SilentError(f"it says nothing within {limit_s:g} s")
            block = os.read(number, LINE_BYTES)
            if not block or len(self._buffer) > LINE_BYTES:
                raise _SilentError("it ended" if not block else "its answer has no end")
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _unusable(why: str) -> HostError:
    return HostError(
        "nicLocality: netlink", f"the helper process does not work: {why}; install pyroute2, or use sysfs"
    )


NICPlaces = Callable[[Sequence[str]], Mapping[str, str]]
"""See `nri_plugin.host.devices`."""

IOMMU_DIR = "sys/kernel/iommu_groups"
NVIDIA_DIR = "proc/driver/nvidia/gpus"
NVIDIA_MAJOR = 195
"""Source: Linux, Documentation/admin-guide/devices.txt; that driver has no entries below /sys/dev."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_VARIABLE_NAME = re.compile(r"[A-Z0-9_]+\Z")
_INTERFACE = re.compile(r"[^/\s:\0]{1,15}\Z")  # Source: Linux, dev_valid_name
_GROUP = re.compile(r"sys/devices/virtual/vfio/([0-9]+)\Z")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)
_BRIDGE = "0x06"
_KINDS = {"c": "char", "u": "char", "b": "block"}


@dataclass(frozen=True, slots=True)
class DeviceLocation:
    """A device of the host.

    Attributes:
        id: its PCI address, or the name of its directory in sysfs.
        kind: `pci/VENDOR:DEVICE`, or `device` for one on no PCI bus; alike ones are one resource.
        nodes: the NUMA node it is attached to; empty when that is unknown.
    """

    id: str
    kind: str
    nodes: NodeMask


class DeviceLocator:
    """Finds the devices of containers.

    Args:
        files: where the host's `sys` is, and its CDI specifications where they can be seen.
        own: where this process's `proc` is; the NVIDIA driver shows there which device has which minor.
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

    def resources(self, container: Container) -> tuple[DeviceResource, ...] | None:
        """The container's devices: one resource for each variable, each class of CDI names, each kind of others.

        None where it has more than `bounds` takes; then nothing is said of any of them. Never raises: a file that
        cannot be read says nothing.

        Differs: the kubelet goes by what a device plugin says of each device. A device that reached the
            container in another way, such as a raw block volume, counts here too where it is on a PCI bus.
        """
        try:
            return self._resources(container, _SysfsSearch(self))
        except _TooManyError:
            return None

    def _resources(self, container: Container, search: "_SysfsSearch") -> tuple[DeviceResource, ...]:
        by_class, is_privileged = self._by_class(container, search), _is_privileged(container)
        others = search.found(self._of_interfaces(container.net_devices))
        if not is_privileged:
            others = [*search.behind(container.devices), *others]
        given = {place.id: place for places in (*by_class.values(), others) for place in places}
        if is_privileged and container.env:  # it has all devices of the host, and chose those that it names
            given |= {place.id: place for place in search.behind(container.devices)}
        env = container.env if given else ()
        named = {name: [given[one] for one in sorted(given.keys() & ids)] for name, ids in _variables(env)}
        for name, places in by_class.items():
            named[name] = [*named.get(name, ()), *places]
        known = {place.id for places in named.values() for place in places}
        for place in others:
            if place.id not in known:
                named.setdefault(place.kind, []).append(place)
        return tuple(_resource(name, places) for name, places in named.items() if places)

    def _by_class(self, container: Container, search: "_SysfsSearch") -> dict[str, list[DeviceLocation]]:
        """The devices behind CDI names by their class, by the numbers their nodes have in the container."""
        by_path = {node.path: node for node in container.devices}
        found: dict[str, list[DeviceLocation]] = {}
        for name, behind in self._cdi.nodes_by_name(dict.fromkeys(container.cdi_devices)).items():
            nodes = (by_path.get(node.path, node) for node in behind)
            found.setdefault(name.partition("=")[0], []).extend(search.behind(nodes))
        return found

    def of_numbers(self, kind: str, major: int, minor: int) -> Iterator[DeviceLocation]:
        """The devices behind a device node."""
        path = self._real(f"sys/dev/{kind}/{major}:{minor}")
        group = _GROUP.match(path or "")
        if group:
            names = self._names(f"{IOMMU_DIR}/{group[1]}/devices")
            yield from self._of_addresses(name for name in names if not self._is_bridge(name))
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
        yield DeviceLocation(name, kind, NodeMask.of(node) if node >= 0 else NodeMask())

    def _node(self, where: str) -> int:
        """The NUMA node of a device, -1 when the file does not name one."""
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


class _TooManyError(Exception):
    """A container has more devices than are looked at."""


class _SysfsSearch:
    """Looks devices up for one container, each device number once, up to the bounds."""

    def __init__(self, locator: DeviceLocator) -> None:
        self._locator = locator
        self._by_number: dict[tuple[str, int, int], list[DeviceLocation]] = {}
        self._ids: set[str] = set()
        self._seen = 0

    def behind(self, nodes: Iterable[DeviceNode]) -> list[DeviceLocation]:
        """The devices behind these nodes.

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
        """The places, counted.

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


def _variables(env: Iterable[str]) -> Iterator[tuple[str, set[str]]]:
    """Variables and the addresses they list; those that end with _INFO hold other things."""
    for line in env:
        name, _, value = line.partition("=")
        if (
            name.startswith(bounds.LISTS_DEVICES)
            and _VARIABLE_NAME.match(name)
            and not name.endswith("_INFO")
        ):
            yield name, set(value.lower().replace(" ", "").split(","))


def _is_privileged(container: Container) -> bool:
    """Whether it lists devices that no container is given alone: it has all of the host's, and has chosen none."""
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
