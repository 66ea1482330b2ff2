"""What a CDI device name stands for: the device nodes that its specification adds to a container.

Source: Container Device Interface specification 1.0; files in /etc/cdi and /var/run/cdi, the latter first.
"""

import os
from collections.abc import Collection, Iterator

import msgspec
from msgspec import Struct

from nri_plugin.host.sysfs_files import KernelFiles
from nri_plugin.nri.messages import Device as DeviceNode

FOLDERS = ("var/run/cdi", "etc/cdi")
MOST_FILES = 64
MOST_BYTES = 256 << 10
"""A larger file is passed over: it would be read while a container waits. One for 16 GPUs has 20 kB."""


class _Node(Struct, rename="camel"):
    path: str
    type: str = ""
    major: int = 0
    minor: int = 0


class _Edits(Struct, rename="camel"):
    device_nodes: list[_Node] = []


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
        """The device nodes of `vendor.com/class=name`, in the container's names; empty when nobody says.

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
