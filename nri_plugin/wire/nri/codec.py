"""Methods of the Plugin service as two tables: readers of requests, and writers of answers.

`_READERS` has a reader for each method. Nine events exist in two forms: as methods of their own (NRI 0.12 and later)
and inside `StateChange` (all releases). Both give the same value. `_WRITERS` has a writer for each type of response.
`events.EMPTY_RESPONSES` tells which of them an event may have.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from nri_plugin.model import bounds
from nri_plugin.model.bounds import Cut
from nri_plugin.model.errors import LocalProtocolError, RemoteProtocolError
from nri_plugin.wire.nri import decode, encode, events
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.decode import PLACEMENT, Reading
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

_M = TypeVar("_M", bound=Message)


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
Reader: TypeAlias = Callable[[bytes, Reading], Decoded]


def decode_request(method: str, payload: bytes, reading: Reading = PLACEMENT) -> Decoded | None:
    """Reads a request of the Plugin service; None = no such method.

    Args:
        method: name of the method.
        payload: its argument.
        reading: how much of pods and containers to read.

    Raises:
        RemoteProtocolError: the payload is no such message.
    """
    reader = _READERS.get(method)
    if reader is None:
        return None
    # A field that we do not know is stepped over: newer runtimes add fields, and never renumber one.
    try:
        return reader(payload, reading)
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


def encode_update_containers(updates: tuple[ContainerUpdate, ...]) -> bytes:
    """Writes UpdateContainers' argument.

    Raises:
        LocalProtocolError: as `encode.updates`.
    """
    return pb.UpdateContainersRequest(update=encode.updates(updates)).SerializeToString()


def decode_update_containers_response(payload: bytes) -> tuple[str, ...]:
    """Reads the ids of the containers that were not updated.

    Raises:
        RemoteProtocolError: the payload is no such message.
    """
    try:
        message = pb.UpdateContainersResponse.FromString(payload)
    except DecodeError as err:
        raise RemoteProtocolError(f"UpdateContainers reply cannot be decoded: {err}") from err
    return tuple(update.container_id for update in message.failed)


# Requests


_CLAIMS_CPUS: Final = bounds.CLAIMS_CPUS.encode()


def _configure(payload: bytes, _: Reading) -> events.Configure:
    message = pb.ConfigureRequest.FromString(payload)
    return events.Configure(
        config=message.config,
        runtime_name=message.runtime_name,
        runtime_version=message.runtime_version,
        registration_timeout_ms=message.registration_timeout,
        request_timeout_ms=message.request_timeout,
        nri_version=message.NRI_version,
    )


def _synchronize(payload: bytes, reading: Reading) -> SynchronizePart:
    # Devices decide at a creation alone. CPUs of a claim stay those of a running container.
    messages = reading.created if _CLAIMS_CPUS in payload else reading.messages
    message = messages.SynchronizeRequest.FromString(payload)

    def read() -> events.Synchronize:
        pods = tuple([reading.pod(pod) for pod in message.pods])
        return events.Synchronize(pods, tuple([reading.container(one) for one in message.containers]))

    return SynchronizePart(message.more, len(message.pods), len(message.containers), read)


def _shutdown(payload: bytes, _: Reading) -> events.Shutdown:
    pb.Empty.FromString(payload)
    return events.Shutdown()


def _update_container(payload: bytes, reading: Reading) -> events.UpdateContainer:
    message = reading.messages.UpdateContainerRequest.FromString(payload)
    resources = reading.resources(message.linux_resources)
    return events.UpdateContainer(reading.pod(message.pod), reading.container(message.container), resources)


def _update_pod_sandbox(payload: bytes, reading: Reading) -> events.UpdatePodSandbox:
    message = reading.messages.UpdatePodSandboxRequest.FromString(payload)
    # Presence matters: absent resources are no part of this request.
    overhead = message.overhead_linux_resources if message.HasField("overhead_linux_resources") else None
    resources = message.linux_resources if message.HasField("linux_resources") else None
    return events.UpdatePodSandbox(
        reading.pod(message.pod),
        None if overhead is None else reading.resources(overhead),
        None if resources is None else reading.resources(resources),
    )


def _validate(payload: bytes, reading: Reading) -> events.ValidateContainerAdjustment:
    message = reading.messages.ValidateContainerAdjustmentRequest.FromString(payload)
    return events.ValidateContainerAdjustment(
        pod=reading.pod(message.pod),
        container=reading.container(message.container),
        adjustment=decode.adjustment(message.adjust),
        updates=tuple(decode.update(update) for update in message.update),
        owners=decode.field_owners(message.owners),
        plugins=tuple(f"{plugin.index}-{plugin.name}" for plugin in message.plugins),
    )


def _of_pod(make: Callable[[Pod], events.NRIEvent]) -> Reader:
    """Returns a reader of the messages that carry a pod in field 1; they are all alike on the wire."""

    # `reading.messages` has one class for all of them, so that fewer classes are made at import.
    def read(payload: bytes, reading: Reading) -> Decoded:
        return make(reading.pod(reading.messages.RunPodSandboxRequest.FromString(payload).pod))

    return read


def _of_container(make: Callable[[Pod, Container], events.NRIEvent]) -> Reader:
    """Returns a reader of the messages that carry a pod in field 1 and a container in field 2."""

    def read(payload: bytes, reading: Reading) -> Decoded:
        message = reading.messages.CreateContainerRequest.FromString(payload)
        return make(reading.pod(message.pod), reading.container(message.container))

    return read


def _create_container(payload: bytes, reading: Reading) -> events.CreateContainer:
    """Reads the environment only if it may list devices or CPUs: reading it takes longer than all other fields."""
    # A search of the bytes decides. It may find the name in another field: then the environment is read for nothing.
    says_something = any(name in payload for name in decode.TELLING_VARIABLES)
    is_too_long = reading.is_bounded and len(payload) > bounds.ENVIRONMENT_REQUEST_BYTES
    messages = reading.created if says_something and not is_too_long else reading.messages
    message = messages.CreateContainerRequest.FromString(payload)
    container = reading.container(message.container)
    if says_something and is_too_long:
        container = replace(container, cut=(*container.cut, Cut.ENVIRONMENT))
    return events.CreateContainer(reading.pod(message.pod), container)


STATE_CHANGE_OF_POD: Final[dict[int, Callable[[Pod], events.NRIEvent]]] = {
    pb.RUN_POD_SANDBOX: events.RunPodSandbox,
    pb.STOP_POD_SANDBOX: events.StopPodSandbox,
    pb.REMOVE_POD_SANDBOX: events.RemovePodSandbox,
    pb.POST_UPDATE_POD_SANDBOX: events.PostUpdatePodSandbox,
}
STATE_CHANGE_OF_CONTAINER: Final[dict[int, Callable[[Pod, Container], events.NRIEvent]]] = {
    pb.POST_CREATE_CONTAINER: events.PostCreateContainer,
    pb.START_CONTAINER: events.StartContainer,
    pb.POST_START_CONTAINER: events.PostStartContainer,
    pb.POST_UPDATE_CONTAINER: events.PostUpdateContainer,
    pb.REMOVE_CONTAINER: events.RemoveContainer,
}


def _state_change(payload: bytes, reading: Reading) -> Decoded:
    # NRI before 0.12 sends these events so. NRI 0.12 and later do when a plugin answers UNIMPLEMENTED to a method.
    message = reading.messages.StateChangeEvent.FromString(payload)
    if of_pod := STATE_CHANGE_OF_POD.get(message.event):
        return of_pod(reading.pod(message.pod))
    if of_container := STATE_CHANGE_OF_CONTAINER.get(message.event):
        return of_container(reading.pod(message.pod), reading.container(message.container))
    # The method is known, only the event is not: acknowledge it, since an error could fail the runtime's operation.
    return UnknownEvent(message.event)


_READERS: Final[dict[str, Reader]] = {
    "Configure": _configure,
    "Synchronize": _synchronize,
    "Shutdown": _shutdown,
    "RunPodSandbox": _of_pod(events.RunPodSandbox),
    "UpdatePodSandbox": _update_pod_sandbox,
    "PostUpdatePodSandbox": _of_pod(events.PostUpdatePodSandbox),
    "StopPodSandbox": _of_pod(events.StopPodSandbox),
    "RemovePodSandbox": _of_pod(events.RemovePodSandbox),
    "CreateContainer": _create_container,
    "PostCreateContainer": _of_container(events.PostCreateContainer),
    "StartContainer": _of_container(events.StartContainer),
    "PostStartContainer": _of_container(events.PostStartContainer),
    "UpdateContainer": _update_container,
    "PostUpdateContainer": _of_container(events.PostUpdateContainer),
    "StopContainer": _of_container(events.StopContainer),
    "RemoveContainer": _of_container(events.RemoveContainer),
    "StateChange": _state_change,
    "ValidateContainerAdjustment": _validate,
}


# Responses


def _created(event: events.CreateContainer, response: events.CreateContainerResponse) -> Message:
    updates = encode.updates(response.updates, created_id=event.container.id) if response.updates else None
    if response.adjustment is not None:
        adjust = encode.adjustment_fields(response.whole())
    else:
        adjust = encode.resources_alone(response.resources) if response.resources is not None else {}
    return pb.CreateContainerResponse(adjust=adjust or None, update=updates)


def _configured(_: events.Configure, response: events.ConfigureResponse) -> Message:
    if not response.events:
        raise LocalProtocolError("an empty subscription would mean every event; name at least one")
    return pb.ConfigureResponse(events=int(response.events))


def _updates_in(make: Callable[..., Message]) -> Callable[..., Message]:
    """Returns a writer of the responses that hold updates of existing containers only."""
    return lambda _, response: make(update=encode.updates(response.updates))


def _validated(
    _: events.ValidateContainerAdjustment, response: events.ValidateContainerAdjustmentResponse
) -> Message:
    return pb.ValidateContainerAdjustmentResponse(reject=response.reject, reason=response.reason)


def _acknowledged(_: events.NRIEvent, __: events.EmptyResponse) -> Message:
    return pb.Empty()


_WRITERS: Final[dict[type, Callable[..., Message]]] = {
    events.EmptyResponse: _acknowledged,
    events.ConfigureResponse: _configured,
    events.SynchronizeResponse: _updates_in(pb.SynchronizeResponse),
    events.CreateContainerResponse: _created,
    events.UpdateContainerResponse: _updates_in(pb.UpdateContainerResponse),
    events.StopContainerResponse: _updates_in(pb.StopContainerResponse),
    events.ValidateContainerAdjustmentResponse: _validated,
}
