"""Step 2 of a request: facts of a container that the runtime does not send, which are its devices and the pod's object.

`PodFactsLookup`, at the end of the file, does the step:

1. decide whether facts could change the decision; most events end here
2. ask the exporter over its socket (`PodResourcesClient`), within a share of the time that is left
3. find the devices in sysfs where the exporter did not answer
4. leave out devices beyond the bounds

The runtime waits meanwhile, and so does every pod of the node. So there is one question, one time limit and no second
attempt. A late fact never delays an answer; it is used from the next event on.

The protocol and the form of facts are documented in `nri_plugin.core.decision`.
"""

import dataclasses
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from nri_plugin.core.decision import LINE_BYTES, ExporterAnswer, InformedCreate
from nri_plugin.core.requests import has_too_many_devices, qos_of, slice_pattern
from nri_plugin.host.cpu_claims import CPUClaims
from nri_plugin.host.devices import DeviceLocator
from nri_plugin.model import bounds
from nri_plugin.model.bounds import HEARD_ANNOTATIONS, Cut
from nri_plugin.model.errors import HostError
from nri_plugin.model.options import CPUManagerPolicy, MemoryManagerPolicy, Node, TopologyManagerPolicy
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from nri_plugin.model.sets import NodeMask
from nri_plugin.policy.device_hints import Device, DeviceResource, device_totals
from nri_plugin.process.logs import say
from nri_plugin.wire.nri.events import CreateContainer, NRIEvent, Request, Synchronize
from nri_plugin.wire.nri.messages import Container, Pod

# The answer of the exporter: JSON whose lengths and numbers are bounded by these types


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
        ValueError: they do not have the documented form.
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
"""The longest list in an answer; a container has a few dozen devices."""

_Name = Annotated[str, Meta(pattern=r"^[!-~]{1,256}$")]
"""Visible ASCII, as names in Kubernetes: these names appear in refusals and logs."""

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
    devices_by_container: Annotated[dict[_Text, _Entries], Meta(max_length=bounds.FACTS_CONTAINERS)] = {}
    facts: msgspec.Raw = msgspec.Raw()
    has_ended: bool = False


# The question


_BLOCK_BYTES = 8192


class NoAnswerError(HostError):
    """The exporter sent no usable answer.

    Attributes:
        late: it took too long; another question soon would delay the next container as well.
    """

    def __init__(self, path: str, detail: str, *, late: bool = False) -> None:
        super().__init__(path, detail)
        self.late = late


class PodResourcesClient:
    """Asks the exporter, over a new connection for each question.

    Args:
        path: of the exporter's socket; it may appear later.
        clock: seconds, monotonic.
    """

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock

    def ask(self, event: CreateContainer, limit_s: float, *, devices: bool = True) -> ExporterAnswer:
        """Return the exporter's facts about the container and its pod.

        Without `devices` the exporter does not ask the kubelet, so it answers at once.

        Raises:
            NoAnswerError: no usable answer within `limit_s` seconds.
        """
        return self._exchange(event.pod, event.container.name, limit_s, devices=devices)

    def ask_about(self, pod: Pod, limit_s: float, devices: bool) -> ExporterAnswer:
        """Return the exporter's facts about the pod alone; safe in any thread.

        Raises:
            NoAnswerError: no usable answer within `limit_s` seconds.
        """
        return self._exchange(pod, "", limit_s, devices=devices)

    def _exchange(self, pod: Pod, container: str, limit_s: float, *, devices: bool) -> ExporterAnswer:
        # Without an exporter one system call tells it; making a socket takes ten times as long, for each container.
        if not os.access(self.path, os.F_OK):
            raise NoAnswerError(self.path, "no such socket")
        until = self._clock() + limit_s  # of the whole exchange; a socket's time limit is that of one call
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(limit_s)
                sock.connect(self.path)
                sock.sendall(_question(pod, container, devices=devices))
                line = self._line(sock, until)
        except TimeoutError:
            raise NoAnswerError(self.path, f"no answer within {limit_s * 1000:.0f} ms", late=True) from None
        except OSError as error:
            raise NoAnswerError(self.path, (error.strerror or str(error)).lower()) from None
        return self._read(pod, line)

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

    def _read(self, pod: Pod, line: bytes) -> ExporterAnswer:
        try:
            answer = msgspec.json.decode(line, type=_AnswerLine)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NoAnswerError(self.path, f"not an answer: {error}") from None
        try:
            devices = None if answer.devices is None else _resources(answer.devices)
            of_pod = _resources(answer.pod_devices)
            others = _of_others(answer.devices_by_container, of_pod)
            known = ExporterAnswer(devices, of_pod, devices_by_container=others, has_ended=answer.has_ended)
        except ValueError as error:
            raise NoAnswerError(self.path, f"not an answer: {error}") from None
        # Wrong facts of the pod do not make the devices wrong.
        try:
            return replace(known, facts=_facts(pod, answer.facts))
        except ValueError as error:
            return replace(known, unusable=str(error))


def _facts(pod: Pod, raw: msgspec.Raw) -> PodFacts | None:
    """Return the facts of that pod, None where none were sent.

    Raises:
        ValueError: they have another form, or belong to another pod.
    """
    if bytes(raw) in (b"", b"null"):
        return None
    facts = read_facts(raw)
    if facts.uid != pod.uid:
        raise ValueError(f"facts of pod {facts.uid[:64]}, asked for {pod.uid}")
    return facts


def _question(pod: Pod, container: str, *, devices: bool) -> bytes:
    words: dict[str, object] = {
        "pod": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "container": container,
    }
    if not devices:
        words["devices"] = False
    return msgspec.json.encode(words) + b"\n"


def _resources(entries: Iterable[_Entry]) -> tuple[DeviceResource, ...]:
    """Return one value for each resource. A device counts once, also when an init container names it as well."""
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


def _of_others(
    given: Mapping[str, Iterable[_Entry]], of_pod: Iterable[DeviceResource]
) -> tuple[tuple[str, tuple[DeviceResource, ...]], ...]:
    """Return the devices of the other containers by name, with the totals that the pod's devices have."""
    totals = {one.name: one.totals for one in of_pod}
    return tuple(
        (
            bounds.name(container),
            tuple(dataclasses.replace(one, totals=totals.get(one.name, ())) for one in _resources(entries)),
        )
        for container, entries in given.items()
    )


def _totals(entry: _Entry) -> dict[NodeMask, int]:
    """Return the entry's totals by NUMA nodes.

    Raises:
        ValueError: a key is no list of nodes, or names a node above `LARGEST_NODE`.
    """
    known = {NodeMask.parse(text): count for text, count in entry.totals.items() if text != "-1"}
    if any(nodes.mask >> (LARGEST_NODE + 1) for nodes in known):
        raise ValueError(f"totals name a NUMA node above {LARGEST_NODE}")
    return known


# The step


EXPORTER_LIMIT_S = 0.1
"""Time limit of a question. An exporter that knows the answer sends it in a millisecond; sysfs is the other way."""

SHARE_OF_TIME = 0.25
"""The part of the time left for the request that a question may take, where that is shorter."""

LATE_PAUSE_S = 5.0
"""Seconds without questions after two late answers in a row: an exporter that hangs must not slow down every container. After
one late answer the agent asks on, so the other containers of the pod still get their facts."""

MOST_PODS_SAID = 1024
"""Pods whose cuts are remembered as logged; a node has fewer."""

NOTHING = ExporterAnswer()

RESULTS = ("answered", "unknown", "failed", "paused")
"""The results of a question: answered; neither container nor pod known; no answer in time; not asked, because two
answers had been late."""


class PodFactsLookup:
    """Adds facts to the creation of a container.

    Args:
        locator: finds the devices of the runtime's message in sysfs; None where devices give no hints.
        client: asks the exporter, which knows the devices that the kubelet gave, and the pod's object.
        log: takes the reasons for deciding without the exporter, at debug level.
        clock: seconds, monotonic; deadlines are on the same clock.
        count: called with one of `RESULTS` for each question.
        claims: checks what the environments of containers say about resource claims; None where it counts unchecked.
    """

    def __init__(
        self,
        locator: DeviceLocator | None,
        client: PodResourcesClient,
        log: logging.Logger,
        clock: Callable[[], float],
        count: Callable[[str], None] | None = None,
        claims: CPUClaims | None = None,
    ) -> None:
        self._checked: Callable[[Container], Container] = claims.checked if claims else lambda one: one
        self._count = count or (lambda _result: None)
        self._locator = locator
        self._client = client
        self._log = log
        self._clock = clock
        self._paused_until = clock()
        self._was_late = False
        self._cuts = CutLog(log)

    def __call__(self, node: Node, request: Request) -> NRIEvent | InformedCreate:
        """Return the event to decide on, with the facts that could change the decision."""
        event = request.event
        self._cuts.tell(event)
        if isinstance(event, Synchronize):
            return self._listed(event)
        if not isinstance(event, CreateContainer):
            return event
        checked = self._checked(event.container)
        event = event if checked is event.container else dataclasses.replace(event, container=checked)
        # 1: is there a fact that could change the decision?
        devices_count = self._locator is not None and asks_for_hints(node)
        if not devices_count and not _facts_count(node, event):
            return event
        # 2: the exporter's answer wins over the runtime's message: the kubelet gave the devices.
        known = self._asked(event, request.deadline, devices=devices_count)
        informed = InformedCreate(event, facts=known.facts, has_ended=known.has_ended)
        if not devices_count:
            return informed if known.facts or known.has_ended else event
        # 3: sysfs; None where the container has more devices than are located.
        devices = known.devices
        if devices is None:
            devices = self._locator.resources(event.container) if self._locator else ()
        if devices == () and known is NOTHING:
            return informed
        # 4: hints of too many devices would take too long; their pod's author chose the number.
        if devices is None or has_too_many_devices(devices, known.pod_devices):
            event = without_devices(event)
            self._cuts.tell(event)
            return replace(informed, event=event)
        # A line of the recording has the devices of all containers: none of the others where all lists together exceed
        # the bounds. The devices of the pod then still decide under pod scope.
        others = known.devices_by_container
        if has_too_many_devices(devices, known.pod_devices, *(given for _, given in others)):
            others = ()
        return replace(informed, devices=devices, pod_devices=known.pod_devices, devices_by_container=others)

    def _listed(self, event: Synchronize) -> Synchronize:
        """Return the event with the claims of its containers checked; the same where none has any."""
        containers = tuple([self._checked(one) for one in event.containers])
        is_same = all(one is other for one, other in zip(containers, event.containers, strict=True))
        return event if is_same else dataclasses.replace(event, containers=containers)

    def _asked(self, event: CreateContainer, deadline: float | None, *, devices: bool) -> ExporterAnswer:
        """Return the exporter's facts; none when it does not answer in time."""
        limit_s = EXPORTER_LIMIT_S
        if deadline is not None:
            limit_s = min(limit_s, (deadline - self._clock()) * SHARE_OF_TIME)
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
                "no answer of the exporter, deciding by the runtime's message",
                err=error,
            )
            if error.late and self._was_late:
                self._paused_until = self._clock() + LATE_PAUSE_S
            self._was_late = error.late
            return NOTHING
        self._was_late = False
        if known.unusable:
            say(self._log, logging.DEBUG, "facts of a pod ignored", pod=event.pod.name, err=known.unusable)
        self._count("unknown" if known.devices is None and known.facts is None else "answered")
        return known


class CutLog:
    """Logs, once for each pod, which parts exceeded a bound and were left out."""

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
            "a pod exceeds the bounds of its input, the rest is left out",
            pod=f"{pod.namespace}/{pod.name}",
            container=container,
            what=", ".join(sorted(set(cut) - said)),
        )


def without_devices(event: CreateContainer) -> CreateContainer:
    """Return the event with a mark: its container has too many devices for hints."""
    cut = tuple(dict.fromkeys((*event.container.cut, Cut.DEVICES)))
    return dataclasses.replace(event, container=replace(event.container, cut=cut))


def asks_for_hints(node: Node) -> bool:
    """Return whether devices could change a decision."""
    return node.options.topology_manager_policy is not TopologyManagerPolicy.NONE


def allocates(node: Node) -> bool:
    """Return whether a policy allocates CPUs or memory here."""
    options = node.options
    return (
        options.cpu_manager_policy is not CPUManagerPolicy.NONE
        or options.memory_manager_policy is not MemoryManagerPolicy.NONE
    )


def _facts_count(node: Node, event: CreateContainer) -> bool:
    """Return whether the pod's facts could change the decision: a container may get exclusive CPUs or memory.

    They could if the pod's cgroup is that of a Guaranteed pod or tells no QoS class, or if an annotation may make containers
    exclusive.
    """
    options, pod = node.options, event.pod
    if not allocates(node):
        return False
    heard = pod.namespace in options.annotation_namespaces and any(
        key.startswith(HEARD_ANNOTATIONS) for key in pod.annotations
    )
    return heard or qos_of(pod.cgroup_parent) is QOSClass.GUARANTEED or not slice_pattern(pod.cgroup_parent)
