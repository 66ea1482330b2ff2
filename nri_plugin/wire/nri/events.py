"""Events that a session reports, responses to them, and adjustments of a new container.

An event has one meaning, whether it came as a method of its own (NRI 0.12 and later) or inside `StateChange` (before).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from nri_plugin.model.errors import LocalProtocolError
from nri_plugin.wire.nri import spec
from nri_plugin.wire.nri.messages import (
    EMPTY,
    Container,
    ContainerUpdate,
    DeviceNode,
    EventMask,
    FieldOwners,
    Pod,
    Resources,
)

# Adjustments: changes by a plugin of a container that is being created
#
# * Fields that are not set change nothing; plugins called later see the changed container.
# * `removed(key)` removes: an annotation, variable, mount (by destination), device (by path), namespace (by
#   type), sysctl or network device. Removing and setting one key in the same adjustment replaces it, which is
#   how a plugin overwrites the value of an earlier one.
# * `args` replace the command once; `overriding(args)` does so even after another plugin did.
# * Hooks accumulate. CDI devices, rlimits and device rules can only be added. `RDT(remove=True)` drops the class.
# * Two plugins that set the same field or key fail the creation, with equal values too: set only fields that you own.
#
# Source: `nri.pkg.api.v1alpha1` ContainerAdjustment, NRI 0.12.2, and how NRI's library applies it.


REMOVAL: Final = "-"
"""First character of a key that removes."""
ONLY_ADDED: Final = frozenset({"rlimit", "CDI device", "hugepage limit"})
"""Entries that nothing removes."""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Changes of the container that is being created.

    Attributes:
        env: variable -> value.
        args: the command; an empty first element overrides another plugin's.
        devices: device nodes; the rules that allow using them are `resources.device_rules`.
        cdi_devices: fully qualified names.
        net_devices: name on the host -> name in the container.
    """

    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    mounts: tuple[spec.MountSpec, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    hooks: spec.Hooks = field(default=spec.Hooks())
    rlimits: tuple[spec.Rlimit, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    resources: Resources | None = None
    cgroups_path: str = ""
    oom_score_adj: int | None = None
    io_priority: spec.IOPriority | None = None
    seccomp_policy: spec.Seccomp | None = None
    namespaces: tuple[spec.Namespace, ...] = ()
    sysctl: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    net_devices: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    scheduler: spec.Scheduler | None = None
    rdt: spec.RDT | None = None
    memory_policy: spec.MemoryPolicy | None = None


NOTHING: Final = Adjustment()


def removed(key: str) -> str:
    """Returns the key that removes `key`."""
    return REMOVAL + key


def is_removal(key: str) -> bool:
    """Whether a key removes."""
    return key.startswith(REMOVAL)


def overriding(args: Iterable[str]) -> tuple[str, ...]:
    """Returns a command that holds even when another plugin set one."""
    return ("", *args)


def check(adjustment: Adjustment) -> None:
    """Refuses an adjustment that a runtime would drop silently or fail the creation for.

    Raises:
        LocalProtocolError: an entry without key, two entries that set one key, the removal of something that
            can only be added, or a command that overrides with nothing.
    """
    for what, keys in _keys(adjustment):
        if keys:
            _check_keys(what, keys)
    if adjustment.args == ("",):
        raise LocalProtocolError(
            "args override the command with nothing; name the command after the empty element"
        )


def _keys(adjustment: Adjustment) -> tuple[tuple[str, Collection[str]], ...]:
    limits = () if adjustment.resources is None else adjustment.resources.hugepage_limits
    return (
        ("annotation", adjustment.annotations),
        ("environment variable", adjustment.env),
        ("sysctl", adjustment.sysctl),
        ("network device", adjustment.net_devices),
        ("mount", [mount.destination for mount in adjustment.mounts]),
        ("device", [device.path for device in adjustment.devices]),
        ("namespace", [namespace.type for namespace in adjustment.namespaces]),
        ("rlimit", [limit.type for limit in adjustment.rlimits]),
        ("CDI device", adjustment.cdi_devices),
        ("hugepage limit", [size for size, _ in limits]),
    )


def _check_keys(what: str, keys: Collection[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in {"", REMOVAL}:
            raise LocalProtocolError(f"an adjustment of a {what} has the key {key!r}, which names nothing")
        if is_removal(key):
            if what in ONLY_ADDED:
                raise LocalProtocolError(f"{what} {key!r} cannot be removed, only added; leave it out")
        elif key in seen:
            msg = f"{what} {key!r} is set twice in one adjustment, which fails the creation; set it once"
            raise LocalProtocolError(msg)
        seen.add(key)


# Events


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


@dataclass(frozen=True, slots=True)
class ValidateContainerAdjustment:
    """All plugins' changes to a container, for a yes or no (NRI >= 0.10).

    Attributes:
        container: as it was before any plugin changed it.
        adjustment: its changes by all plugins together.
        updates: their changes of other containers.
        owners: container id -> which plugin set what.
        plugins: `NN-name` of every plugin consulted.
    """

    pod: Pod
    container: Container
    adjustment: Adjustment = NOTHING
    updates: tuple[ContainerUpdate, ...] = ()
    owners: Mapping[str, FieldOwners] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()


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
    | ValidateContainerAdjustment
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


@dataclass(frozen=True, slots=True)
class UpdatesDone:
    """An unsolicited UpdateContainers call ended; `failed` are container ids, `error` empty when accepted."""

    call: int
    failed: tuple[str, ...] = ()
    error: str = ""


SessionEvent: TypeAlias = Request | Registered | RegistrationRefused | UpdatesDone


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
    """The new container's adjustment (`resources`: only fields that are set) and updates of others.

    `resources` is short for `Adjustment(resources=...)`, which is all that placement sets.

    Differs: the NRI protocol has evictions; here: there are none. Why: no runtime applies them. Option: none.
    """

    resources: Resources | None = None
    updates: tuple[ContainerUpdate, ...] = ()
    adjustment: Adjustment | None = None

    def whole(self) -> Adjustment:
        """Returns the adjustment with `resources` in it.

        Raises:
            LocalProtocolError: the response and its adjustment both set resources.
        """
        if self.resources is None:
            return self.adjustment or NOTHING
        if self.adjustment is None:
            return Adjustment(resources=self.resources)
        if self.adjustment.resources is not None:
            msg = "resources is set in the response and in its adjustment; set it in one of them"
            raise LocalProtocolError(msg)
        return replace(self.adjustment, resources=self.resources)


@dataclass(frozen=True, slots=True)
class UpdateContainerResponse:
    """Own update replaces the request after merging; others are applied first."""

    updates: tuple[ContainerUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class StopContainerResponse:
    """Updates of other containers."""

    updates: tuple[ContainerUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class ValidateContainerAdjustmentResponse:
    """`reject` fails the creation with `reason`."""

    reject: bool = False
    reason: str = ""


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
    | ValidateContainerAdjustmentResponse
    | EmptyResponse
)

EMPTY_RESPONSES: Final[Mapping[type, NRIResponse]] = {
    Configure: ConfigureResponse(),
    Synchronize: SynchronizeResponse(),
    CreateContainer: CreateContainerResponse(),
    UpdateContainer: UpdateContainerResponse(),
    StopContainer: StopContainerResponse(),
    ValidateContainerAdjustment: ValidateContainerAdjustmentResponse(),
}
"""The response to each event that changes nothing. Its type is the one that the event may have.

All other events are acknowledged.
"""


def empty_response(event: object) -> NRIResponse:
    """Returns the response to `event` that changes nothing."""
    return EMPTY_RESPONSES.get(type(event), ACKNOWLEDGED)
