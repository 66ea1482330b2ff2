"""Differences between runtimes, as data, and the events that a simulated session reports.

A profile describes an NRI release on the wire. A behaviour describes a runtime around its plugins.

Source: containerd 1.7.24, 2.1.9, 2.2.7 and 2.3.4 as recorded (`tests/vectors/nri`); the others from their code.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

from nri_plugin.simulator.simulate.pods import RUNTIMES, RuntimeKind
from nri_plugin.wire.nri.events import EventMask, NRIEvent, NRIResponse
from nri_plugin.wire.nri.messages import ContainerState, ContainerUpdate
from nri_plugin.wire.nri.releases import mask_of

# Profiles


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    """A runtime on the wire, as a plugin sees it.

    Attributes:
        nri_version: NRI library release, `X.Y.Z`.
        runtime_name: as sent in Configure.
        runtime_version: as sent in Configure.
        registration_timeout: seconds from accepting a connection to RegisterPlugin.
        request_timeout: seconds for Configure, for all of Synchronize, and for each event.
    """

    nri_version: str
    runtime_name: str
    runtime_version: str
    registration_timeout: float = 5.0
    request_timeout: float = 2.0

    @property
    def release(self) -> tuple[int, int, int]:
        """NRI release as numbers."""
        major, minor, patch = self.nri_version.removeprefix("v").split(".")
        return int(major), int(minor), int(patch)

    @property
    def legal_mask(self) -> EventMask:
        """Events a plugin may subscribe to; one bit more and the connection is closed."""
        return mask_of(self.release[:2])

    @property
    def tells_timeouts(self) -> bool:
        """Whether Configure carries the timeouts."""
        return self.release >= (0, 7)

    @property
    def tells_nri_version(self) -> bool:
        """Whether Configure carries the NRI version."""
        return self.release >= (0, 12)

    @property
    def splits_synchronize(self) -> bool:
        """Whether a long Synchronize comes in parts; before, it was one message of any length."""
        return self.release >= (0, 7)

    @property
    def has_own_methods(self) -> bool:
        """Whether the nine events that were StateChange have methods of their own."""
        return self.release >= (0, 12)

    @property
    def checks_names(self) -> bool:
        """Whether a plugin's name may hold letters, digits and -_.+ only."""
        return self.release >= (0, 12)

    @property
    def keeps_zombies(self) -> bool:
        """Whether a plugin that failed to synchronize stays connected and is never called again."""
        return self.release < (0, 7)

    @property
    def max_send_bytes(self) -> int:
        """Longest message it sends: 4 MiB is checked only from ttrpc 1.2.6 on."""
        return 4 << 20 if self.splits_synchronize else 16 << 20


CONTAINERD_1_7: Final = RuntimeProfile("0.6.1", "containerd", "1.7.24~ds1")
CONTAINERD_2_1: Final = RuntimeProfile("0.8.0", "containerd", "v2.1.9")
CONTAINERD_2_2: Final = RuntimeProfile("0.10.0", "containerd", "v2.2.0")
CRIO_1_36: Final = RuntimeProfile("0.11.0", "cri-o", "1.36.0")
CONTAINERD_2_4: Final = RuntimeProfile("0.12.2", "containerd", "v2.4.0")

PROFILES: Final = {
    profile.nri_version: profile
    for profile in (CONTAINERD_1_7, CONTAINERD_2_1, CONTAINERD_2_2, CRIO_1_36, CONTAINERD_2_4)
}
"""One runtime per NRI release that differs."""


# Behaviours

PodFields: TypeAlias = tuple[Literal["pid", "cgroups_path"], ...]


@dataclass(frozen=True, slots=True)
class Behaviour(RuntimeKind):
    """The behaviour of one runtime towards its plugins.

    Attributes:
        profile: what it is on the wire.
        stores_updates: an update survives the runtime's own restart.
        forgets_pods: after its own restart it does not report the end of older pods, nor that of containers that had ended.
        ignores_start_errors: an error in StartContainer is only a warning.
        stop_tells: the state of a container that ran, in its StopContainer.
        end_tells: the state of a container that has ended or was not started, in StopContainer and RemoveContainer.
        pod_loses: fields of a pod that are no longer told: in StopPodSandbox, between, and in RemovePodSandbox.
        was_watched: whether the behaviour was observed on the real runtime; else it is written after its code.
    """

    profile: RuntimeProfile = field(kw_only=True)
    stores_updates: bool = True
    forgets_pods: bool = True
    ignores_start_errors: bool = False
    stop_tells: ContainerState = ContainerState.STOPPED
    end_tells: ContainerState = ContainerState.STOPPED
    pod_loses: tuple[PodFields, PodFields, PodFields] = ((), (), ())
    was_watched: bool = True


def _behaviour(name: str, profile: RuntimeProfile, **more: Any) -> Behaviour:
    return Behaviour(**asdict(RUNTIMES[name]), profile=profile, **more)


BEHAVIOURS = {
    each.name: each
    for each in (
        _behaviour(
            "containerd-1.7",
            CONTAINERD_1_7,
            stop_tells=ContainerState.RUNNING,
            pod_loses=(("pid", "cgroups_path"), ("pid", "cgroups_path"), ("pid", "cgroups_path")),
        ),
        _behaviour(
            "containerd-2.1",
            CONTAINERD_2_1,
            stop_tells=ContainerState.RUNNING,
            pod_loses=(("pid",), ("pid",), ("pid", "cgroups_path")),
        ),
        _behaviour(
            "containerd-2.4",
            CONTAINERD_2_4,
            end_tells=ContainerState.UNKNOWN,
            pod_loses=(("pid",), ("pid",), ("pid",)),
            was_watched=False,
        ),
        _behaviour(
            "cri-o",
            CRIO_1_36,
            stores_updates=False,
            forgets_pods=False,
            ignores_start_errors=True,
            was_watched=False,
        ),
    )
}


# Events of a session


@dataclass(frozen=True, slots=True)
class PluginRegistered:
    """A plugin registered under a name and index that are accepted; now call `configure`."""

    name: str
    index: str
    nri_version: str = ""


@dataclass(frozen=True, slots=True)
class RegistrationRejected:
    """Name or index are wrong: the plugin got an error, and the connection stays open but dead."""

    name: str
    index: str
    reason: str


@dataclass(frozen=True, slots=True)
class Configured:
    """The plugin subscribed (0 is already taken for everything); now call `synchronize`."""

    mask: EventMask


@dataclass(frozen=True, slots=True)
class Synchronized:
    """The plugin is ready; its updates are to be applied."""

    updates: tuple[ContainerUpdate, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A call ended. With `error` the CRI request fails and `response` is None.

    `is_fail_open` marks a call that was lost with the plugin: the request goes on without its answer.
    """

    call: int
    event: NRIEvent
    response: NRIResponse | None
    error: str = ""
    is_fail_open: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The runtime gives the plugin up: send what is queued, then close the socket."""

    reason: str


RuntimeEvent: TypeAlias = (
    PluginRegistered | RegistrationRejected | Configured | Synchronized | Answered | ConnectionLost
)
