"""Methods of the Plugin service as two tables: readers of requests, and writers of answers.

`_READERS` has a reader for each method, made of `events.EVENTS`. Nine events exist in two forms: as methods of their own (NRI 0.12 and later)
and inside `StateChange` (all releases). Both give the same value. `_WRITERS` has a writer for each type of response.
`events.EVENTS` tells which of them an event may have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError, Message
from msgspec.structs import replace

from nri_plugin.model import bounds
from nri_plugin.model.bounds import Cut
from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri import decode, encode, events
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.decode import WITH_ENVIRONMENT, WITHOUT_ENVIRONMENT, Hears, deaf

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"


@dataclass(frozen=True, slots=True)
class SynchronizePart:
    """One message of a Synchronize: it is decoded, and `read` makes values of it, which takes ten times as long.

    Attributes:
        more: others follow.
        pods: how many it lists.
        containers: how many it lists.
        read: makes the values; never fails.
    """

    more: bool
    pods: int
    containers: int
    read: Callable[[], events.Synchronize]


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """A StateChange with an event of a later release: it is acknowledged and ignored."""

    number: int


Decoded: TypeAlias = events.NRIEvent | SynchronizePart | UnknownEvent
Reader: TypeAlias = Callable[[bytes, Hears], Decoded]


def decode_request(method: str, payload: bytes, hears: Hears = deaf) -> Decoded | None:
    """Reads a request of the Plugin service; None = no such method.

    Args:
        method: name of the method.
        payload: its argument.
        hears: whether annotations of a namespace's pods are obeyed.

    Raises:
        RemoteProtocolError: the payload is no such message.
    """
    reader = _READERS.get(method)
    if reader is None:
        return None
    # A field that we do not know is stepped over: newer runtimes add fields, and never renumber one.
    try:
        return reader(payload, hears)
    except DecodeError as err:
        raise RemoteProtocolError(
            f"{method} request of {len(payload)} bytes cannot be decoded: {err}"
        ) from err


def encode_response(event: events.NRIEvent, response: events.NRIResponse) -> bytes:
    """Writes the answer to `event`.

    Raises:
        LocalProtocolError: this event cannot have that response, or it holds values that the protocol or a
            runtime does not take.
    """
    # Messages carry no type: the runtime would read a wrong response as another message, without an error.
    # Every event but Configure may be answered with nothing; the empty message is the same for all of them.
    kind = type(response)
    is_acknowledged = kind is events.EmptyResponse and not isinstance(event, events.Configure)
    if not is_acknowledged and kind is not type(events.empty_response(event)):
        msg = f"{type(event).__name__} cannot be answered with {type(response).__name__}"
        raise LocalProtocolError(msg)
    try:
        return _WRITERS[kind](event, response).SerializeToString()
    except (ValueError, TypeError) as err:
        raise LocalProtocolError(f"answer to {type(event).__name__} cannot be encoded: {err}") from err


def encode_more() -> bytes:
    """Writes the answer to all parts of a Synchronize but the last: go on, and no updates yet."""
    return pb.SynchronizeResponse(more=True).SerializeToString()


def encode_registration(name: str, index: str, nri_version: str) -> bytes:
    """Writes RegisterPlugin's argument."""
    return pb.RegisterPluginRequest(
        plugin_name=name, plugin_idx=index, NRI_version=nri_version
    ).SerializeToString()


# Requests


_CLAIMS_CPUS: Final = bounds.CLAIMS_CPUS.encode()


def _configure(payload: bytes, _: Hears) -> events.Configure:
    message = pb.ConfigureRequest.FromString(payload)
    return events.Configure(
        config=message.config,
        runtime_name=message.runtime_name,
        runtime_version=message.runtime_version,
        registration_timeout_ms=message.registration_timeout,
        request_timeout_ms=message.request_timeout,
        nri_version=message.NRI_version,
    )


def _synchronize(payload: bytes, hears: Hears) -> SynchronizePart:
    # Devices decide at a creation alone. CPUs of a claim stay those of a running container.
    messages = WITH_ENVIRONMENT if _CLAIMS_CPUS in payload else WITHOUT_ENVIRONMENT
    message = messages.SynchronizeRequest.FromString(payload)

    def read() -> events.Synchronize:
        pods = tuple([decode.pod(pod, hears) for pod in message.pods])
        return events.Synchronize(pods, tuple([decode.container(one) for one in message.containers]))

    return SynchronizePart(message.more, len(message.pods), len(message.containers), read)


def _shutdown(payload: bytes, _: Hears) -> events.Shutdown:
    pb.Empty.FromString(payload)
    return events.Shutdown()


def _update_container(payload: bytes, hears: Hears) -> events.UpdateContainer:
    message = WITHOUT_ENVIRONMENT.UpdateContainerRequest.FromString(payload)
    resources = decode.resources(message.linux_resources)
    return events.UpdateContainer(
        decode.pod(message.pod, hears), decode.container(message.container), resources
    )


def _update_pod_sandbox(payload: bytes, hears: Hears) -> events.UpdatePodSandbox:
    message = WITHOUT_ENVIRONMENT.UpdatePodSandboxRequest.FromString(payload)
    overhead, resources = message.overhead_linux_resources, message.linux_resources
    return events.UpdatePodSandbox(
        decode.pod(message.pod, hears),
        overhead=decode.resources(overhead) if message.HasField("overhead_linux_resources") else None,
        resources=decode.resources(resources) if message.HasField("linux_resources") else None,
    )


def _create_container(payload: bytes, hears: Hears) -> events.CreateContainer:
    """Reads the environment only if it may list devices or CPUs: reading it takes longer than all other fields."""
    # A search of the bytes decides. It may find the name in another field: then the environment is read for nothing.
    says_something = any(name in payload for name in decode.TELLING_VARIABLES)
    is_too_long = len(payload) > bounds.ENVIRONMENT_REQUEST_BYTES
    messages = WITH_ENVIRONMENT if says_something and not is_too_long else WITHOUT_ENVIRONMENT
    message = messages.CreateContainerRequest.FromString(payload)
    container = decode.container(message.container)
    if says_something and is_too_long:
        container = replace(container, cut=(*container.cut, Cut.ENVIRONMENT))
    return events.CreateContainer(decode.pod(message.pod, hears), container)


def _maker(kind: type) -> Callable[[Any, Hears], events.NRIEvent]:
    """Returns a function that makes an event of a message with a pod, and a container where the event has one."""
    if "container" not in kind.__annotations__:
        return lambda message, hears: kind(decode.pod(message.pod, hears))
    return lambda message, hears: kind(decode.pod(message.pod, hears), decode.container(message.container))


def _reader(kind: type) -> Reader:
    """Returns a reader of the messages that carry a pod in field 1 and a container in field 2; they are all alike."""
    make, message = _maker(kind), WITHOUT_ENVIRONMENT.CreateContainerRequest
    return lambda payload, hears: make(message.FromString(payload), hears)


_CHANGED: Final = {
    row.bit.bit_length(): _maker(kind) for kind, row in events.EVENTS.items() if row.in_state_change
}
"""Makers of the events that come inside `StateChange`, by the protocol's number."""


def _state_change(payload: bytes, hears: Hears) -> Decoded:
    # NRI before 0.12 sends these events so. NRI 0.12 and later do when a plugin answers UNIMPLEMENTED to a method.
    message = WITHOUT_ENVIRONMENT.StateChangeEvent.FromString(payload)
    make = _CHANGED.get(message.event)
    # The method is known, only the event is not: acknowledge it, since an error could fail the runtime's operation.
    return UnknownEvent(message.event) if make is None else make(message, hears)


_OWN_READERS: Final[dict[type, Reader]] = {
    events.Configure: _configure,
    events.Synchronize: _synchronize,
    events.Shutdown: _shutdown,
    events.UpdatePodSandbox: _update_pod_sandbox,
    events.CreateContainer: _create_container,
    events.UpdateContainer: _update_container,
}
"""Readers of the events that carry more than a pod and a container, or are read in another way."""
_READERS: Final[dict[str, Reader]] = {
    "StateChange": _state_change,
    **{kind.__name__: _OWN_READERS.get(kind) or _reader(kind) for kind in events.EVENTS},
}


# Responses


def _created(event: events.CreateContainer, response: events.CreateContainerResponse) -> Message:
    updates = encode.updates(response.updates, created_id=event.container.id) if response.updates else None
    adjust = encode.adjustment_fields(response.resources, response.env)
    return pb.CreateContainerResponse(adjust=adjust or None, update=updates)


def _configured(_: events.Configure, response: events.ConfigureResponse) -> Message:
    if not response.events:
        raise LocalProtocolError("an empty subscription would mean every event; name at least one")
    return pb.ConfigureResponse(events=int(response.events))


def _updates_in(make: Callable[..., Message]) -> Callable[..., Message]:
    """Returns a writer of the responses that hold updates of existing containers only."""
    return lambda _, response: make(update=encode.updates(response.updates))


def _acknowledged(_: events.NRIEvent, __: events.EmptyResponse) -> Message:
    return pb.Empty()


_WRITERS: Final[dict[type, Callable[..., Message]]] = {
    events.EmptyResponse: _acknowledged,
    events.ConfigureResponse: _configured,
    events.SynchronizeResponse: _updates_in(pb.SynchronizeResponse),
    events.CreateContainerResponse: _created,
    events.UpdateContainerResponse: _updates_in(pb.UpdateContainerResponse),
    events.StopContainerResponse: _updates_in(pb.StopContainerResponse),
}
