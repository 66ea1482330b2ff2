"""NRI messages from the runtime's side: writers of requests and readers of answers."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar, get_args

from google.protobuf.message import DecodeError, Message

from nri_plugin.model.errors import RemoteProtocolError
from nri_plugin.wire.nri import decode, encode, events, tables
from nri_plugin.wire.nri._pb import nri_pb2 as pb
from nri_plugin.wire.nri.events import NOTHING
from nri_plugin.wire.nri.messages import Container, ContainerUpdate, EventMask, FieldOwners, Pod

_M = TypeVar("_M", bound=Message)


def _constant(kind: type) -> str:
    """The name of an event in the protocol's enumerations: `RunPodSandbox` is `RUN_POD_SANDBOX`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()


EVENT_BIT: Final[dict[type, EventMask]] = {
    kind: EventMask[_constant(kind)]
    for kind in get_args(events.NRIEvent)
    if _constant(kind) in EventMask.__members__
}
"""The bit of each event to which a plugin can subscribe."""
STATE_CHANGES: Final[frozenset[type]] = frozenset(
    {
        events.RunPodSandbox,
        events.StopPodSandbox,
        events.RemovePodSandbox,
        events.PostUpdatePodSandbox,
        events.PostCreateContainer,
        events.StartContainer,
        events.PostStartContainer,
        events.PostUpdateContainer,
        events.RemoveContainer,
    }
)
"""The nine events that are sent inside StateChange, always before NRI 0.12."""


def encode_event(event: events.NRIEvent) -> tuple[str, bytes]:
    """Returns the event's own method and its argument."""
    writer = _WRITERS.get(type(event), _pod_and_container)
    return type(event).__name__, writer(event).SerializeToString()


def encode_state_change(event: events.NRIEvent) -> tuple[str, bytes]:
    """Returns StateChange and its argument for one of the nine events."""
    message = pb.StateChangeEvent(event=_constant(type(event)))
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
    if pod.details is not None:
        message.MergeFrom(pb.PodSandbox(**tables.POD_DETAILS.write(pod.details)))
    linux = message.linux
    linux.cgroup_parent, linux.cgroups_path = pod.cgroup_parent, pod.cgroups_path
    if pod.resources is not None:
        linux.pod_resources.CopyFrom(encode.resources(pod.resources))
    if pod.overhead is not None:
        linux.pod_overhead.CopyFrom(encode.resources(pod.overhead))
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
    linux.resources.CopyFrom(encode.resources(container.resources))
    linux.devices.extend(pb.LinuxDevice(**tables.DEVICE.write(device)) for device in container.devices)
    for name in container.net_devices:
        linux.net_devices[name].name = name
    if container.oom_score_adj is not None:
        linux.oom_score_adj.value = container.oom_score_adj
    if container.details is not None:
        message.MergeFrom(pb.Container(**tables.CONTAINER_DETAILS.write(container.details)))
    return message


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
        linux_resources=encode.resources(event.resources),
    )


def _update_pod(event: events.UpdatePodSandbox) -> Message:
    message = pb.UpdatePodSandboxRequest(pod=encode_pod(event.pod))
    if event.overhead is not None:
        message.overhead_linux_resources.CopyFrom(encode.resources(event.overhead))
    if event.resources is not None:
        message.linux_resources.CopyFrom(encode.resources(event.resources))
    return message


def _validate(event: events.ValidateContainerAdjustment) -> Message:
    message = pb.ValidateContainerAdjustmentRequest(
        pod=encode_pod(event.pod),
        container=encode_container(event.container),
        update=encode.updates(event.updates),
    )
    if event.adjustment != NOTHING:
        message.adjust.CopyFrom(encode.adjustment(event.adjustment))
    for container_id, owners in event.owners.items():
        message.owners.owners[container_id].CopyFrom(_owners(owners))
    for plugin in event.plugins:
        index, _, name = plugin.partition("-")
        message.plugins.add(name=name, index=index)
    return message


def _owners(owners: FieldOwners) -> pb.FieldOwners:
    message = pb.FieldOwners()
    message.simple.update({int(what): plugin for what, plugin in owners.simple.items()})
    for what, plugins in owners.compound.items():
        message.compound[int(what)].owners.update(plugins)
    return message


_WRITERS: Final[dict[type, Callable[..., Message]]] = {
    events.Configure: _configure,
    events.Shutdown: _shutdown,
    events.UpdateContainer: _update_container,
    events.UpdatePodSandbox: _update_pod,
    events.ValidateContainerAdjustment: _validate,
}


# Answers


def decode_registration(payload: bytes) -> tuple[str, str, str]:
    """Reads (name, index, NRI version) of RegisterPlugin."""
    message = _parse(pb.RegisterPluginRequest(), payload)
    return message.plugin_name, message.plugin_idx, message.NRI_version


def decode_update_containers(payload: bytes) -> tuple[ContainerUpdate, ...]:
    """Reads the updates of an unsolicited UpdateContainers."""
    return _updates(_parse(pb.UpdateContainersRequest(), payload).update)


def encode_update_containers_response(failed: tuple[ContainerUpdate, ...]) -> bytes:
    """Writes the updates that failed; the real runtimes repeat them whole."""
    return pb.UpdateContainersResponse(failed=encode.updates(failed)).SerializeToString()


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
    if isinstance(event, events.ValidateContainerAdjustment):
        verdict = _parse(pb.ValidateContainerAdjustmentResponse(), payload)
        return events.ValidateContainerAdjustmentResponse(verdict.reject, verdict.reason)
    _parse(pb.Empty(), payload)
    return events.EmptyResponse()


def _created(payload: bytes) -> events.CreateContainerResponse:
    message = _parse(pb.CreateContainerResponse(), payload)
    adjustment = decode.adjustment(message.adjust)
    rest = replace(adjustment, resources=None)
    return events.CreateContainerResponse(
        resources=adjustment.resources,
        updates=_updates(message.update),
        adjustment=None if rest == NOTHING else rest,
    )


def _updates(messages: Iterable[pb.ContainerUpdate]) -> tuple[ContainerUpdate, ...]:
    return tuple(decode.update(message) for message in messages)


def _parse(message: _M, payload: bytes) -> _M:
    try:
        message.ParseFromString(payload)
    except DecodeError as err:
        raise RemoteProtocolError(f"answer of {len(payload)} bytes cannot be decoded: {err}") from err
    return message
