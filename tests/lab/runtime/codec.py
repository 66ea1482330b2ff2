"""NRI messages from the runtime's side: writers of requests and readers of answers."""

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeVar, cast

from google.protobuf.message import DecodeError, Message
from msgspec.structs import replace

from nri_plugin.model.errors import RemoteProtocolError
from nri_plugin.wire.nri import codec, decode, encode, events
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, Pod, Resources

_M = TypeVar("_M", bound=Message)


STATE_CHANGES: Final = frozenset(kind for kind, row in events.EVENTS.items() if row.in_state_change)
"""The nine events that are sent inside StateChange, always before NRI 0.12."""


def encode_event(event: events.NRIEvent) -> tuple[str, bytes]:
    """Returns the event's own method and its argument."""
    writer = _WRITERS.get(type(event), _pod_and_container)
    return type(event).__name__, writer(event).SerializeToString()


def encode_state_change(event: events.NRIEvent) -> tuple[str, bytes]:
    """Returns StateChange and its argument for one of the nine events."""
    message = pb.StateChangeEvent(event=pb.Event.Name(events.EVENTS[type(event)].bit.bit_length()))
    both = _pod_and_container(event)
    message.pod.CopyFrom(both.pod)
    if both.HasField("container"):
        message.container.CopyFrom(both.container)
    return "StateChange", message.SerializeToString()


def encode_synchronize(pods: tuple[Pod, ...], containers: tuple[Container, ...], *, more: bool) -> bytes:
    """Returns one message of a Synchronize."""
    return pb.SynchronizeRequest(
        pods=[encode_pod(pod) for pod in pods],
        containers=[encode_container(container) for container in containers],
        more=more,
    ).SerializeToString()


def encode_pod(pod: Pod) -> pb.PodSandbox:
    """Writes a pod."""
    message = pb.PodSandbox(
        id=pod.id,
        name=pod.name,
        uid=pod.uid,
        namespace=pod.namespace,
        labels=pod.labels,
        annotations=pod.annotations,
        runtime_handler=pod.runtime_handler,
        pid=pod.pid,
    )
    linux = message.linux
    linux.cgroup_parent, linux.cgroups_path = pod.cgroup_parent, pod.cgroups_path
    if pod.resources is not None:
        linux.pod_resources.CopyFrom(_resources(pod.resources))
    if pod.overhead is not None:
        linux.pod_overhead.CopyFrom(_resources(pod.overhead))
    return message


def encode_container(container: Container) -> pb.Container:
    """Writes a container."""
    message = pb.Container(
        id=container.id,
        pod_sandbox_id=container.pod_id,
        name=container.name,
        labels=container.labels,
        annotations=container.annotations,
        env=container.env,
        pid=container.pid,
        CDI_devices=[pb.CDIDevice(name=name) for name in container.cdi_devices],
    )
    message.state = pb.ContainerState.Name(container.state)  # type: ignore[assignment]
    linux = message.linux
    linux.cgroups_path = container.cgroups_path
    linux.resources.CopyFrom(_resources(container.resources))
    linux.devices.extend(
        pb.LinuxDevice(path=one.path, type=one.type, major=one.major, minor=one.minor)
        for one in container.devices
    )
    for name in container.net_devices:
        linux.net_devices[name].name = name
    if container.oom_score_adj is not None:
        linux.oom_score_adj.value = container.oom_score_adj
    return message


def _resources(values: Resources) -> pb.LinuxResources:
    return pb.LinuxResources(**encode.resource_fields(values))


def _pod_and_container(event: events.NRIEvent) -> pb.CreateContainerRequest:
    """Writes field 1 and, where the event has one, field 2: all these messages are alike on the wire."""
    message = pb.CreateContainerRequest()
    pod, container = getattr(event, "pod", None), getattr(event, "container", None)
    if pod is not None:
        message.pod.CopyFrom(encode_pod(pod))
    if container is not None:
        message.container.CopyFrom(encode_container(container))
    return message


def _configure(event: events.Configure) -> Message:
    return pb.ConfigureRequest(
        config=event.config,
        runtime_name=event.runtime_name,
        runtime_version=event.runtime_version,
        registration_timeout=event.registration_timeout_ms,
        request_timeout=event.request_timeout_ms,
        NRI_version=event.nri_version,
    )


def _shutdown(_: events.Shutdown) -> Message:
    return pb.Empty()


def _update_container(event: events.UpdateContainer) -> Message:
    return pb.UpdateContainerRequest(
        pod=encode_pod(event.pod),
        container=encode_container(event.container),
        linux_resources=_resources(event.resources),
    )


def _update_pod(event: events.UpdatePodSandbox) -> Message:
    message = pb.UpdatePodSandboxRequest(pod=encode_pod(event.pod))
    if event.overhead is not None:
        message.overhead_linux_resources.CopyFrom(_resources(event.overhead))
    if event.resources is not None:
        message.linux_resources.CopyFrom(_resources(event.resources))
    return message


_WRITERS: Final[dict[type, Callable[..., Message]]] = {
    events.Configure: _configure,
    events.Shutdown: _shutdown,
    events.UpdateContainer: _update_container,
    events.UpdatePodSandbox: _update_pod,
}


# Answers


def decode_registration(payload: bytes) -> tuple[str, str, str]:
    """Reads (name, index, NRI version) of RegisterPlugin."""
    message = _parse(pb.RegisterPluginRequest(), payload)
    return message.plugin_name, message.plugin_idx, message.NRI_version


def decode_mask(payload: bytes) -> int:
    """Reads the subscription of a Configure answer."""
    return _parse(pb.ConfigureResponse(), payload).events


def decode_synchronize(payload: bytes) -> tuple[tuple[ContainerUpdate, ...], bool]:
    """Reads the updates of a Synchronize answer, and whether it asks for more."""
    message = _parse(pb.SynchronizeResponse(), payload)
    return _updates(message.update), message.more


def decode_answer(event: events.NRIEvent, payload: bytes) -> events.NRIResponse:
    """Reads the answer to an event.

    Raises:
        RemoteProtocolError: it is no such message.
    """
    if isinstance(event, events.CreateContainer):
        return _created(payload)
    if isinstance(event, events.UpdateContainer):
        return events.UpdateContainerResponse(_updates(_parse(pb.UpdateContainerResponse(), payload).update))
    if isinstance(event, events.StopContainer):
        return events.StopContainerResponse(_updates(_parse(pb.StopContainerResponse(), payload).update))
    _parse(pb.Empty(), payload)
    return events.EmptyResponse()


def _created(payload: bytes) -> events.CreateContainerResponse:
    message = _parse(pb.CreateContainerResponse(), payload)
    adjust, linux = message.adjust, message.adjust.linux
    _refuse_others(adjust, {"env", "linux"})
    _refuse_others(linux, {"resources"})
    resources = _read_resources(linux.resources) if linux.HasField("resources") else None
    env = {one.key: one.value for one in adjust.env}
    return events.CreateContainerResponse(resources, _updates(message.update), env)


def _updates(messages: Iterable[pb.ContainerUpdate]) -> tuple[ContainerUpdate, ...]:
    return tuple(
        ContainerUpdate(one.container_id, _read_resources(one.linux.resources), one.ignore_failure)
        for one in messages
    )


_HEEDED = {"cpu", "memory", "hugepage_limits"}


def _read_resources(message: pb.LinuxResources) -> Resources:
    _refuse_others(message, _HEEDED)
    return decode.resources(message)


def _refuse_others(message: Message, known: Collection[str]) -> None:
    """Refuses fields that this runtime does not apply: the agent sends none of them."""
    if others := [field.name for field, _ in message.ListFields() if field.name not in known]:
        raise RemoteProtocolError(f"the answer has {others[0]}, which is not played")


def _parse(message: _M, payload: bytes) -> _M:
    try:
        message.ParseFromString(payload)
    except DecodeError as err:
        raise RemoteProtocolError(f"answer of {len(payload)} bytes cannot be decoded: {err}") from err
    return message


# For a plugin that notes everything


def decode_fully(method: str, payload: bytes) -> codec.Decoded | None:
    """Reads a request as a session does, and beside that labels, annotations and environment of its pod and container."""
    event: Any = codec.decode_request(method, payload)
    if not hasattr(event, "pod"):
        return cast("codec.Decoded | None", event)
    kind = pb.StateChangeEvent if method == "StateChange" else pb.CreateContainerRequest
    message = kind.FromString(payload)
    pod = replace(event.pod, labels=dict(message.pod.labels), annotations=dict(message.pod.annotations))
    if not hasattr(event, "container"):
        return cast("codec.Decoded", dataclasses.replace(event, pod=pod))
    told = message.container
    container = replace(
        event.container, labels=dict(told.labels), annotations=dict(told.annotations), env=tuple(told.env)
    )
    return cast("codec.Decoded", dataclasses.replace(event, pod=pod, container=container))
