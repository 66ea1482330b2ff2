"""Facts of a container that the runtime does not report: its devices, and the pod's object. Step 2 of a request.

`PodFactsLookup` asks the exporter over a socket (`PodResourcesClient`), and finds devices in sysfs where the exporter
does not answer. The runtime waits meanwhile, and so does every pod of the node: one question, one time limit, no second
try. A late fact never delays an answer.

The protocol and the form of facts are in `nri_plugin.core.decision`.
"""

import logging
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nri_plugin.core.decision import LINE_BYTES, ExporterAnswer, InformedCreate
from nri_plugin.core.requests import has_too_many_devices, qos_of, slice_pattern
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.model import bounds
from nri_plugin.model.bounds import OWN_ANNOTATIONS, Cut
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.sets import NodeMask
from nri_plugin.model.state import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.policy.device_hints import Device, DeviceResource, device_totals
from nri_plugin.process.logs import say
from nri_plugin.wire.nri.events import CreateContainer, NRIEvent, Request, Synchronize
from nri_plugin.wire.nri.messages import Container, Pod

_Text = Annotated[str, Meta(min_length=1, max_length=bounds.NAME_CHARS)]
_Amount = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Source: Kubernetes, quantities are signed and 64 bits wide."""


class _Amounts(Struct):
    cpu_request_milli: _Amount = 0
    cpu_limit_milli: _Amount = 0
    memory_request_bytes: _Amount = 0
    memory_limit_bytes: _Amount = 0
    hugepages: Annotated[dict[_Text, _Amount], Meta(max_length=bounds.PAGE_SIZES)] = {}

    @property
    def value(self) -> Amounts:
        return Amounts(
            self.cpu_request_milli,
            self.cpu_limit_milli,
            self.memory_request_bytes,
            self.memory_limit_bytes,
            tuple((bounds.name(size), amount) for size, amount in self.hugepages.items()),
        )


class _Container(_Amounts, kw_only=True):
    name: _Text
    kind: Kind = Kind.APP


class _Facts(Struct):
    uid: _Text
    qos: QOSClass
    containers: Annotated[list[_Container], Meta(max_length=bounds.FACTS_CONTAINERS)] = []
    pod_resources: _Amounts | None = None


def read_facts(data: bytes | msgspec.Raw) -> PodFacts:
    """Decode the facts in `data`, a JSON object.

    Raises:
        ValueError: they are not of the form that is agreed on.
    """
    try:
        row = msgspec.json.decode(data, type=_Facts)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"not facts: {error}") from None
    names = [one.name for one in row.containers]
    if len(set(names)) < len(names):
        raise ValueError(f"not facts: {len(names)} containers of {len(set(names))} names")
    return PodFacts(
        row.uid,
        row.qos,
        tuple(ContainerFacts(bounds.name(one.name), one.kind, one.value) for one in row.containers),
        None if row.pod_resources is None else row.pod_resources.value,
    )


MOST_ENTRIES = 1024
"""Of a list in an answer; a container has a few dozen devices."""

_BLOCK_BYTES = 8192

_Name = Annotated[str, Meta(pattern=r"^[!-~]{1,256}$")]
"""Names in refusals and logs are visible ASCII, as in Kubernetes."""

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


class _AnswerLine(Struct):
    devices: _Entries | None = None
    pod_devices: _Entries = []
    facts: msgspec.Raw = msgspec.Raw()


class NoAnswerError(HostError):
    """The exporter sent no usable answer.

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

    def ask(self, event: CreateContainer, limit_s: float, *, devices: bool = True) -> ExporterAnswer:
        """Return the exporter's facts of the container and its pod.

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
        """Return the bytes before the first newline.

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

    def _read(self, event: CreateContainer, line: bytes) -> ExporterAnswer:
        try:
            answer = msgspec.json.decode(line, type=_AnswerLine)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NoAnswerError(self.path, f"not an answer: {error}") from None
        try:
            devices = None if answer.devices is None else _resources(answer.devices)
            known = ExporterAnswer(devices, _resources(answer.pod_devices))
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


EXPORTER_LIMIT_S = 0.1
"""An exporter that has the answer gives it in a millisecond; without one there is another way."""

SHARE_OF_TIME = 0.25
"""Of the time that is left for the request, when that is shorter."""

LATE_PAUSE_S = 5.0
"""An exporter that was late is not asked again for so long: a hanging one must not slow down every container."""

MOST_PODS_SAID = 1024
"""Pods whose cuts are remembered as logged; a node has fewer."""

NOTHING = ExporterAnswer()

RESULTS = ("answered", "unknown", "failed", "paused")
"""What may become of a question: it was answered, neither container nor pod were known, there was no answer in time, or
the exporter was not asked because it had been late."""


class PodFactsLookup:
    """Adds facts to the creation of a container.

    Args:
        locator: finds devices in the runtime's message and the host's sysfs; None where devices give no hints.
        client: asks the exporter, which knows the devices that the kubelet gave, and the pod's object.
        log: the reasons for going without the exporter, at debug level.
        clock: seconds, monotonic, the one deadlines are in.
        count: called with each result.

    Attributes:
        outcomes: how often each of `RESULTS` came.
    """

    def __init__(
        self,
        locator: DeviceLocator | None,
        client: PodResourcesClient,
        log: logging.Logger,
        clock: Callable[[], float],
        count: Callable[[str], None] | None = None,
    ) -> None:
        self._told = count
        self.outcomes: Counter[str] = Counter()
        self._locator = locator
        self._client = client
        self._log = log
        self._clock = clock
        self._paused_until = clock()
        self._cuts = CutLog(log)

    def __call__(self, node: Node, request: Request) -> NRIEvent | InformedCreate:
        """Return the event to decide on; the exporter is asked only for facts that could change the decision."""
        event = request.event
        self._cuts.tell(event)
        if not isinstance(event, CreateContainer):
            return event
        devices_count = self._locator is not None and _asks_for_hints(node)
        if not devices_count and not _facts_count(node, event):
            return event
        known = self._asked(event, request.deadline, devices=devices_count)
        if not devices_count:
            return InformedCreate(event, facts=known.facts) if known.facts else event
        devices = self._located(event) if known.devices is None else known.devices
        if devices is None or has_too_many_devices(devices, known.pod_devices):
            event = without_devices(event)
            self._cuts.tell(event)
            return InformedCreate(event, facts=known.facts)
        return InformedCreate(event, devices, known.pod_devices, known.facts)

    def _located(self, event: CreateContainer) -> tuple[DeviceResource, ...] | None:
        return self._locator.resources(event.container) if self._locator else ()

    def _asked(self, event: CreateContainer, deadline: float | None, *, devices: bool) -> ExporterAnswer:
        """Return the exporter's facts; nothing when it does not answer in time."""
        limit_s = self._limit(deadline)
        if limit_s <= 0 or self._clock() < self._paused_until:
            self._count("paused")
            return NOTHING
        try:
            known = self._client.ask(event, limit_s, devices=devices)
        except NoAnswerError as error:
            self._count("failed")
            say(
                self._log,
                logging.DEBUG,
                "going by the runtime's message, the exporter did not answer",
                err=error,
            )
            if error.late:
                self._paused_until = self._clock() + LATE_PAUSE_S
            return NOTHING
        if known.unusable:
            say(
                self._log, logging.DEBUG, "facts of a pod passed over", pod=event.pod.name, err=known.unusable
            )
        self._count("unknown" if known.devices is None and known.facts is None else "answered")
        return known

    def _count(self, result: str) -> None:
        self.outcomes[result] += 1
        if self._told is not None:
            self._told(result)

    def _limit(self, deadline: float | None) -> float:
        if deadline is None:
            return EXPORTER_LIMIT_S
        return min(EXPORTER_LIMIT_S, (deadline - self._clock()) * SHARE_OF_TIME)


class CutLog:
    """Says once for each pod what exceeded a bound and was left out.

    Args:
        log: takes the lines.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: OrderedDict[str, frozenset[Cut]] = OrderedDict()

    def tell(self, event: NRIEvent) -> None:
        """Log the parts of the event's pods and containers that were left out, each once."""
        if isinstance(event, Synchronize):
            pods = {pod.id: pod for pod in event.pods}
            for pod in event.pods:
                self._about(pod, pod.cut)
            for one in event.containers:
                if one.cut and one.pod_id in pods:
                    self._about(pods[one.pod_id], one.cut, one.name)
            return
        of, container = getattr(event, "pod", None), getattr(event, "container", None)
        if isinstance(of, Pod):
            self._about(of, of.cut)
            if isinstance(container, Container):
                self._about(of, container.cut, container.name)

    def _about(self, pod: Pod, cut: tuple[Cut, ...], container: str = "") -> None:
        said = self._said.get(pod.uid, frozenset())
        if said.issuperset(cut):
            return
        self._said[pod.uid] = said.union(cut)
        self._said.move_to_end(pod.uid)
        if len(self._said) > MOST_PODS_SAID:
            self._said.popitem(last=False)
        say(
            self._log,
            logging.WARNING,
            "a pod has more than is looked at, the rest is left out",
            pod=f"{pod.namespace}/{pod.name}",
            container=container,
            what=", ".join(sorted(set(cut) - said)),
        )


def without_devices(event: CreateContainer) -> CreateContainer:
    """The event, marked: its container has more devices than hints are made of."""
    cut = tuple(dict.fromkeys((*event.container.cut, Cut.DEVICES)))
    return replace(event, container=replace(event.container, cut=cut))


def _asks_for_hints(node: Node) -> bool:
    return node.options.topology_manager_policy is not TopologyManagerPolicy.NONE


def _facts_count(node: Node, event: CreateContainer) -> bool:
    """Whether the pod's facts could change the decision: a container may get exclusive CPUs or memory.

    By its cgroup a pod is Guaranteed, or of unknown QoS class; or an annotation that is heard may make its
    containers exclusive.
    """
    options, pod = node.options, event.pod
    if options.cpu_manager_policy is CPUManagerPolicy.NONE and (
        options.memory_manager_policy is MemoryManagerPolicy.NONE
    ):
        return False
    heard = pod.namespace in options.annotation_namespaces and any(
        key.startswith(OWN_ANNOTATIONS) for key in pod.annotations
    )
    return heard or qos_of(pod.cgroup_parent) is QOSClass.GUARANTEED or not slice_pattern(pod.cgroup_parent)
