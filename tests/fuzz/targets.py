"""What is fuzzed: a function of bytes each, with every exception it may raise; any other is a defect.

Each target also says what must hold of its answer. The corpus of a target is the folder of its name in `corpus/`.
"""

import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from google.protobuf.message import DecodeError

from nri_plugin.agent.serving.pod_facts import NoAnswerError, PodResourcesClient
from nri_plugin.checkpoint.format import FORMAT, VERSION, Encoder, decode, last_checksum
from nri_plugin.checkpoint.kubelet_files import load_refusal
from nri_plugin.checkpoint.kubelet_import import File, allocations_in, shared_within_pods
from nri_plugin.config.loading import Config, load_text
from nri_plugin.core.annotations import EXCLUSIVE_CPUS, SMT_ODD_COUNTS
from nri_plugin.core.requests import annotated, container_request, pod_record
from nri_plugin.exporter import facts_socket, pod_resources
from nri_plugin.kube._pb import podresources_pb2
from nri_plugin.model import bits, bounds
from nri_plugin.model.errors import AnnotationError, CheckpointError, ConfigError, RemoteProtocolError
from nri_plugin.model.options import Options
from nri_plugin.model.records import PodRecord
from nri_plugin.model.state import State
from nri_plugin.wire.nri import codec
from nri_plugin.wire.nri._pb import nri_pb2
from nri_plugin.wire.nri.events import CreateContainer
from nri_plugin.wire.nri.mux import MuxReader
from nri_plugin.wire.ttrpc.connection import ClientConnection, ServerConnection
from nri_plugin.wire.ttrpc.frame import FrameReader, decode_request
from tests.builders import container, pod
from tests.lab.runtime.codec import encode_event
from tests.largest_pods import SHAPES, largest
from tests.protocol.peer import plugin

CORPUS = Path(__file__).with_name("corpus")

HEAD = f'{{"format":"{FORMAT}","version":{VERSION},'.encode()
JOURNALED = b"".join(Encoder().encode(State(), 1, None))
METHODS = sorted(
    {*nri_pb2.DESCRIPTOR.services_by_name["Plugin"].methods_by_name} - {"ValidateContainerAdjustment"}
)
EVENT = CreateContainer(pod(), container(pod()))
EXPORTER = PodResourcesClient("/nowhere", lambda: 0.0)
TRUSTED = Options(annotation_namespaces=frozenset({"trusted"}))
REQUESTS = {
    name: container_request(Options(), PodRecord("u", "s", qos=name), container(pod(), cpu=2))  # type: ignore[arg-type]
    for name in ("Guaranteed", "Burstable", "BestEffort")
}
KEYS = [
    f"{key}.{end}"
    for key in (SMT_ODD_COUNTS, EXCLUSIVE_CPUS)
    for end in ("pod", "container.c", "container.d")
]


@dataclass(frozen=True, slots=True)
class Target:
    """One function that is fed.

    Attributes:
        run: takes any bytes.
        allowed: what it may raise.
        longest: bytes of an input.
    """

    run: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    longest: int = 512


def frame(data: bytes) -> None:
    """The first byte says in which pieces the rest comes."""
    reader = FrameReader(max_data=200, max_skip=1000)
    for piece in _pieces(data):
        reader.feed(piece)
    for end in (ServerConnection(), ClientConnection()):
        with suppress(RemoteProtocolError):
            _receive(end, data[1:])


def _receive(end: ServerConnection | ClientConnection, data: bytes) -> None:
    if isinstance(end, ServerConnection):
        end.receive_data(data, 0.0)
        end.data_to_send()
    else:
        end.call("s", "m", b"", 0.0)
        end.receive_data(data)


def mux(data: bytes) -> None:
    reader = MuxReader(max_payload=200)
    taken = 0
    for piece in _pieces(data):
        taken += sum(len(part) for _, part in reader.feed(piece))
    assert taken <= len(data)


def codec_requests(data: bytes) -> None:
    """The first byte chooses the method."""
    if data:
        assert codec.decode_request(METHODS[data[0] % len(METHODS)], data[1:]) is not None
    with suppress(RemoteProtocolError):
        decode_request(data)


@lru_cache(maxsize=2)
def _largest(kind: str) -> bytes:
    of, (one, *_) = largest(kind)
    return encode_event(CreateContainer(of, one))[1]


def largest_pods(data: bytes) -> None:
    """The first byte chooses a pod, the next two where the rest goes into its request; it stays in its bounds."""
    kind = sorted(SHAPES)[data[0] % len(SHAPES)] if data else "names"
    request, place = _largest(kind), int.from_bytes(data[1:3], "little")
    request = request[:place] + data[3:] + request[place:]
    event = codec.decode_request("CreateContainer", request, lambda _: True)
    assert isinstance(event, CreateContainer)
    assert len(event.pod.annotations) <= bounds.ANNOTATIONS
    one = event.container
    assert sum(map(len, one.env)) <= bounds.ENVIRONMENT_CHARS
    assert max(len(one.env), len(one.devices), len(one.cdi_devices), len(one.net_devices)) <= bounds.DEVICES
    assert max(map(len, (event.pod.name, event.pod.uid, event.pod.namespace, one.name))) <= bounds.NAME_CHARS
    own_annotations = pod_record(event.pod, TRUSTED, run_seen=True).annotations
    assert not own_annotations or event.pod.namespace in TRUSTED.annotation_namespaces


def session(data: bytes) -> None:
    """Bytes of a runtime that has lost its mind; time passes with each piece."""
    ours = plugin()
    ours.register(0.0)
    now = 0.0
    for piece in _pieces(data):
        now += 0.3
        ours.receive_data(piece, now)
        ours.data_to_send()
        ours.overdue(now)


def cpulist(data: bytes) -> None:
    mask = bits.parse_list(data.decode("latin-1"))
    assert bits.parse_list(bits.format_list(mask)) == mask


def checkpoint(data: bytes) -> None:
    """As it is, and with true checksums behind a true head and as a record of a journal, so that the rows are reached."""
    with suppress(ValueError):
        decode(data)
    with suppress(ValueError):
        line = b'{"generation":2,' + data.replace(b"\n", b"")
        decode(JOURNALED + line + b',"checksum":"crc32:%08x"}\n' % zlib.crc32(line, last_checksum(JOURNALED)))
    body = HEAD + data
    decode(body + b',\n"checksum":"crc32:%08x"}\n' % zlib.crc32(body))


def kubelet_files(data: bytes) -> None:
    """Never raises: a refusal is a text. What an import refuses is named with the file."""
    for manager, policy in (("cpu", "static"), ("memory", "Static")):
        for pod_level in (False, True):
            assert isinstance(load_refusal(data, manager, policy, pod_level=pod_level), str)
    for cpu, memory in ((File("f", data), None), (None, File("f", data))):
        with suppress(CheckpointError):
            shared_within_pods(allocations_in(cpu, memory))


def configuration(data: bytes) -> None:
    assert isinstance(load_text(data.decode("utf-8", "replace"), "f"), Config)


def annotations(data: bytes) -> None:
    """Each line is the value of one of the annotations there are; without trust they must do nothing."""
    values = data.decode("utf-8", "replace").split("\n")
    given = tuple(zip(KEYS, values, strict=False))
    for qos, request in REQUESTS.items():
        elsewhere = PodRecord("u", "s", namespace="other", qos=qos, annotations=given)  # type: ignore[arg-type]
        assert annotated(TRUSTED, elsewhere, request) is request
        here = PodRecord("u", "s", namespace="trusted", qos=qos, annotations=given)  # type: ignore[arg-type]
        annotated(TRUSTED, here, request)


def exporter_answers(data: bytes) -> None:
    EXPORTER._read(EVENT.pod, data)


def pod_resources_answers(data: bytes) -> None:
    """The kubelet's answers on the way to the exporter's clients and to the agent."""
    listed = podresources_pb2.ListPodResourcesResponse.FromString(data)
    allocatable = podresources_pb2.AllocatableResourcesResponse.FromString(data)
    pod_resources.merged_list(listed, State())
    totals = facts_socket.totals_of(allocatable)
    pod_resources.devices_of(allocatable, listed)
    for one in listed.pod_resources:
        for each in one.containers:
            facts_socket.answer(one, each.name, totals)


def _pieces(data: bytes) -> list[bytes]:
    """The bytes after the first, in pieces as long as that says."""
    if not data:
        return []
    step = data[0] % 32 + 1
    return [data[start : start + step] for start in range(1, len(data), step)]


TARGETS = {
    "frame": Target(frame, (RemoteProtocolError,)),
    "mux": Target(mux, (RemoteProtocolError,)),
    "codec": Target(codec_requests, (RemoteProtocolError,)),
    "largest-pods": Target(largest_pods, (RemoteProtocolError,), 128),
    "session": Target(session, (RemoteProtocolError,)),
    "cpulist": Target(cpulist, (ValueError,), 64),
    "checkpoint": Target(checkpoint, (ValueError,), 1024),
    "kubelet-files": Target(kubelet_files, (), 512),
    "configuration": Target(configuration, (ConfigError,), 256),
    "annotations": Target(annotations, (AnnotationError,), 128),
    "exporter-answers": Target(exporter_answers, (NoAnswerError,), 512),
    "pod-resources": Target(pod_resources_answers, (DecodeError,), 512),
}
