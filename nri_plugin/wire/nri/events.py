"""Events that a session reports, the responses to them, and the table of both.

An event has one meaning, whether it came as a method of its own (NRI 0.12 and later) or inside `StateChange` (before).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final, TypeAlias

from nri_plugin.wire.nri.messages import EMPTY, Container, ContainerUpdate, Pod, Resources

# Events


class EventMask(IntFlag):
    """Subscription bits of a Configure reply: bit of event E is `1 << (E - 1)`, by the protocol's enumeration."""

    RUN_POD_SANDBOX = 0x0001
    STOP_POD_SANDBOX = 0x0002
    REMOVE_POD_SANDBOX = 0x0004
    CREATE_CONTAINER = 0x0008
    POST_CREATE_CONTAINER = 0x0010
    START_CONTAINER = 0x0020
    POST_START_CONTAINER = 0x0040
    UPDATE_CONTAINER = 0x0080
    POST_UPDATE_CONTAINER = 0x0100
    STOP_CONTAINER = 0x0200
    REMOVE_CONTAINER = 0x0400
    UPDATE_POD_SANDBOX = 0x0800
    POST_UPDATE_POD_SANDBOX = 0x1000


@dataclass(frozen=True, slots=True)
class Configure:
    """The name, version and timeouts of the runtime; times are milliseconds, 0 = not sent (NRI <= 0.6)."""

    config: str = ""
    runtime_name: str = ""
    runtime_version: str = ""
    registration_timeout_ms: int = 0
    request_timeout_ms: int = 0
    nri_version: str = ""


@dataclass(frozen=True, slots=True)
class Synchronize:
    """All pods and containers that exist; the session has joined the parts."""

    pods: tuple[Pod, ...] = ()
    containers: tuple[Container, ...] = ()


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The runtime ends the plugin; no runtime sends it so far."""


@dataclass(frozen=True, slots=True)
class RunPodSandbox:
    """A pod sandbox runs. Never refuse it: a refused sandbox can keep containerd from restarting."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class UpdatePodSandbox:
    """New pod-level resources, about to be applied."""

    pod: Pod
    overhead: Resources | None = None
    resources: Resources | None = None


@dataclass(frozen=True, slots=True)
class PostUpdatePodSandbox:
    """New pod-level resources were applied."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class StopPodSandbox:
    """A pod sandbox stopped: the pod ends."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class RemovePodSandbox:
    """A pod sandbox was removed."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class CreateContainer:
    """A container is about to be created; the only event that may be refused."""

    pod: Pod
    container: Container


@dataclass(frozen=True, slots=True)
class PostCreateContainer:
    """A container was created; nothing of it runs, it may have no cgroup yet."""

    pod: Pod
    container: Container


@dataclass(frozen=True, slots=True)
class StartContainer:
    """The cgroup exists and the container's process does not run yet."""

    pod: Pod
    container: Container


@dataclass(frozen=True, slots=True)
class PostStartContainer:
    """The container runs."""

    pod: Pod
    container: Container


@dataclass(frozen=True, slots=True)
class UpdateContainer:
    """The runtime is about to apply `resources`, given by the kubelet or another plugin."""

    pod: Pod
    container: Container
    resources: Resources


@dataclass(frozen=True, slots=True)
class PostUpdateContainer:
    """New resources were applied."""

    pod: Pod
    container: Container


@dataclass(frozen=True, slots=True)
class StopContainer:
    """The container has stopped (it comes after the fact; `pod` may be nearly empty)."""

    pod: Pod
    container: Container


@dataclass(frozen=True, slots=True)
class RemoveContainer:
    """The container was removed (`pod` may be nearly empty)."""

    pod: Pod
    container: Container


NRIEvent: TypeAlias = (
    Configure
    | Synchronize
    | Shutdown
    | RunPodSandbox
    | UpdatePodSandbox
    | PostUpdatePodSandbox
    | StopPodSandbox
    | RemovePodSandbox
    | CreateContainer
    | PostCreateContainer
    | StartContainer
    | PostStartContainer
    | UpdateContainer
    | PostUpdateContainer
    | StopContainer
    | RemoveContainer
)


@dataclass(frozen=True, slots=True)
class Request:
    """An event that waits for `session.respond(call, ...)` or `session.refuse(call, ...)`.

    Attributes:
        call: names the waiting call on this connection.
        deadline: in the caller's clock (the `now` given to `receive_data`), None = none.
        size_bytes: encoded size of the request.
    """

    call: int
    deadline: float | None
    event: NRIEvent
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Registered:
    """The runtime accepted our RegisterPlugin (may come after Configure)."""


@dataclass(frozen=True, slots=True)
class RegistrationRefused:
    """The runtime refused our name or index; the connection is dead and retrying is useless."""

    code: int
    message: str


SessionEvent: TypeAlias = Request | Registered | RegistrationRefused


# Responses


@dataclass(frozen=True, slots=True)
class ConfigureResponse:
    """The subscription; None lets the session choose all that this runtime's version allows of `wanted`."""

    events: EventMask | None = None


@dataclass(frozen=True, slots=True)
class SynchronizeResponse:
    """Updates of existing containers."""

    updates: tuple[ContainerUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateContainerResponse:
    """What the new container gets (`resources`: only fields that are set; `env`: variable -> value), and updates of others.

    Two plugins that set the same field or variable fail the creation, with equal values too.

    Differs: the NRI protocol has evictions; here: there are none. Why: no runtime applies them. Option: none.
    """

    resources: Resources | None = None
    updates: tuple[ContainerUpdate, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class UpdateContainerResponse:
    """Own update replaces the request after merging; others are applied first."""

    updates: tuple[ContainerUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class StopContainerResponse:
    """Updates of other containers."""

    updates: tuple[ContainerUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class EmptyResponse:
    """Acknowledges an event whose reply carries nothing."""


ACKNOWLEDGED = EmptyResponse()


NRIResponse: TypeAlias = (
    ConfigureResponse
    | SynchronizeResponse
    | CreateContainerResponse
    | UpdateContainerResponse
    | StopContainerResponse
    | EmptyResponse
)

# The table of events


Release: TypeAlias = tuple[int, int]
OLDEST: Final[Release] = (0, 2)
NO_BIT: Final = EventMask(0)


@dataclass(frozen=True, slots=True)
class EventRow:
    """What the protocol says of an event.

    Attributes:
        bit: of a subscription; none for what every plugin gets.
        in_state_change: whether it may come inside `StateChange`, as it always does before NRI 0.12.
        response: the one that changes nothing; its type is the one that the event may have.
        since: the first release of NRI that has it.
    """

    bit: EventMask = NO_BIT
    in_state_change: bool = False
    response: NRIResponse = ACKNOWLEDGED
    since: Release = OLDEST


EVENTS: Final[Mapping[type, EventRow]] = {
    Configure: EventRow(response=ConfigureResponse()),
    Synchronize: EventRow(response=SynchronizeResponse()),
    Shutdown: EventRow(),
    RunPodSandbox: EventRow(EventMask.RUN_POD_SANDBOX, in_state_change=True),
    UpdatePodSandbox: EventRow(EventMask.UPDATE_POD_SANDBOX, since=(0, 10)),
    PostUpdatePodSandbox: EventRow(EventMask.POST_UPDATE_POD_SANDBOX, in_state_change=True, since=(0, 10)),
    StopPodSandbox: EventRow(EventMask.STOP_POD_SANDBOX, in_state_change=True),
    RemovePodSandbox: EventRow(EventMask.REMOVE_POD_SANDBOX, in_state_change=True),
    CreateContainer: EventRow(EventMask.CREATE_CONTAINER, response=CreateContainerResponse()),
    PostCreateContainer: EventRow(EventMask.POST_CREATE_CONTAINER, in_state_change=True),
    StartContainer: EventRow(EventMask.START_CONTAINER, in_state_change=True),
    PostStartContainer: EventRow(EventMask.POST_START_CONTAINER, in_state_change=True),
    UpdateContainer: EventRow(EventMask.UPDATE_CONTAINER, response=UpdateContainerResponse()),
    PostUpdateContainer: EventRow(EventMask.POST_UPDATE_CONTAINER, in_state_change=True),
    StopContainer: EventRow(EventMask.STOP_CONTAINER, response=StopContainerResponse()),
    RemoveContainer: EventRow(EventMask.REMOVE_CONTAINER, in_state_change=True),
}
"""Every event, by its class, whose name is that of the method. The codec derives readers from the fields of the class; the
rooms outside have tables with these keys: `core.engine` (decision), of which subscription, recording and metrics follow.

Source: `nri.pkg.api.v1alpha1`, NRI 0.12.2. Its validation of adjustments is left out: we never ask for it.
"""


def empty_response(event: object) -> NRIResponse:
    """Returns the response to `event` that changes nothing."""
    row = EVENTS.get(type(event))
    return row.response if row is not None else ACKNOWLEDGED
