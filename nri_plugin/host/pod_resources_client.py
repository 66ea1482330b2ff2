"""Asks the exporter what it knows of a container and its pod; see `nri_plugin.facts` for the protocol.

The runtime waits meanwhile, and so does every pod of the node: one question, one limit, no second try.
"""

import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nri_plugin.errors import HostError
from nri_plugin.facts import LINE_BYTES, Answer
from nri_plugin.host.facts_reader import read_facts
from nri_plugin.nodemask import NodeMask
from nri_plugin.nri.events import CreateContainer
from nri_plugin.pod_facts import PodFacts
from nri_plugin.policy.device_hints import Device, DeviceResource, device_totals

MOST_ENTRIES = 1024
"""Of a list in an answer; a container has a few dozen devices."""

_BLOCK_BYTES = 8192

_Name = Annotated[str, Meta(pattern=r"^[!-~]{1,256}$")]
"""What is printed in refusals and logs: visible ASCII, as Kubernetes has it."""

LARGEST_NODE = 1023
"""Source: Linux, NODES_SHIFT is at most 10."""

_Node = Annotated[int, Meta(ge=-1, le=LARGEST_NODE)]

_Nodes = Annotated[str, Meta(pattern=r"^(-1|[0-9]{1,4}([-,][0-9]{1,4}){0,255})$")]
"""NUMA nodes as a kernel list; -1 for none."""


class _Entry(Struct):
    resource: _Name
    ids: Annotated[list[_Name], Meta(max_length=MOST_ENTRIES)]
    nodes: Annotated[list[_Node], Meta(max_length=MOST_ENTRIES)] = []
    totals: Annotated[dict[_Nodes, Annotated[int, Meta(ge=0)]], Meta(max_length=MOST_ENTRIES)] = {}


_Entries = Annotated[list[_Entry], Meta(max_length=MOST_ENTRIES)]


class _Answer(Struct):
    devices: _Entries | None = None
    pod_devices: _Entries = []
    facts: msgspec.Raw = msgspec.Raw()


class NoAnswerError(HostError):
    """The exporter said nothing that can be used.

    Attributes:
        late: it took too long; asking it again soon would hold up the next container as well.
    """

    def __init__(self, path: str, detail: str, *, late: bool = False) -> None:
        super().__init__(path, detail)
        self.late = late


class PodResourcesClient:
    """Asks over one socket.

    Args:
        path: of the exporter's socket; it need not exist yet.
        clock: seconds, monotonic.
    """

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock

    def ask(self, event: CreateContainer, limit_s: float, *, devices: bool = True) -> Answer:
        """What the exporter knows of the container and its pod.

        Without `devices` it need not ask the kubelet, and answers at once.

        Raises:
            NoAnswerError: no usable answer within `limit_s` seconds.
        """
        until = self._clock() + limit_s
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(limit_s)
                sock.connect(self.path)
                sock.sendall(_question(event, devices=devices))
                line = self._line(sock, until)
        except TimeoutError:
            raise NoAnswerError(self.path, f"no answer within {limit_s * 1000:.0f} ms", late=True) from None
        except OSError as error:
            raise NoAnswerError(self.path, (error.strerror or str(error)).lower()) from None
        return self._read(event, line)

    def _line(self, sock: socket.socket, until: float) -> bytes:
        """What comes before the first newline.

        Raises:
            TimeoutError: it is not there by `until`.
            NoAnswerError: the connection ended before it, or it is too long.
        """
        data = b""
        while b"\n" not in data:
            left = until - self._clock()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            block = sock.recv(_BLOCK_BYTES)
            if not block:
                raise NoAnswerError(
                    self.path, f"the connection ended after {len(data)} bytes without a newline"
                )
            data += block
            if len(data) > LINE_BYTES:
                raise NoAnswerError(
                    self.path, f"expected an answer of up to {LINE_BYTES} bytes, found a longer one"
                )
        return data.partition(b"\n")[0]

    def _read(self, event: CreateContainer, line: bytes) -> Answer:
        try:
            answer = msgspec.json.decode(line, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NoAnswerError(self.path, f"not an answer: {error}") from None
        try:
            devices = None if answer.devices is None else _resources(answer.devices)
            known = Answer(devices, _resources(answer.pod_devices))
        except ValueError as error:
            raise NoAnswerError(self.path, f"not an answer: {error}") from None
        try:
            return replace(known, facts=_facts(event, answer.facts))
        except ValueError as error:
            return replace(known, unusable=str(error))


def _facts(event: CreateContainer, raw: msgspec.Raw) -> PodFacts | None:
    """The facts of the event's pod, None where none were sent.

    Raises:
        ValueError: they are of another form, or of another pod.
    """
    if bytes(raw) in (b"", b"null"):
        return None
    facts = read_facts(raw)
    if facts.uid != event.pod.uid:
        raise ValueError(f"facts of pod {facts.uid[:64]}, asked for {event.pod.uid}")
    return facts


def _question(event: CreateContainer, *, devices: bool) -> bytes:
    pod = event.pod
    words: dict[str, object] = {
        "pod": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "container": event.container.name,
    }
    if not devices:
        words["devices"] = False
    return msgspec.json.encode(words) + b"\n"


def _resources(entries: Iterable[_Entry]) -> tuple[DeviceResource, ...]:
    """One value for each resource; a device that is named twice, as in an init container too, counts once."""
    devices: dict[str, dict[str, Device]] = {}
    totals: dict[str, dict[NodeMask, int]] = {}
    for entry in entries:
        nodes = NodeMask.from_ids(node for node in entry.nodes if node >= 0)
        devices.setdefault(entry.resource, {}).update({name: Device(name, nodes) for name in entry.ids})
        totals.setdefault(entry.resource, {}).update(_totals(entry))
    return tuple(
        DeviceResource(name, tuple(given.values()), device_totals(totals[name].items()))
        for name, given in devices.items()
        if given
    )


def _totals(entry: _Entry) -> dict[NodeMask, int]:
    """The entry's totals by NUMA nodes.

    Raises:
        ValueError: not a list of nodes, or one beyond those that Linux knows.
    """
    known = {NodeMask.parse(text): count for text, count in entry.totals.items() if text != "-1"}
    if any(nodes.mask >> (LARGEST_NODE + 1) for nodes in known):
        raise ValueError(f"totals name a NUMA node above {LARGEST_NODE}")
    return known
