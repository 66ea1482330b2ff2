"""What a runtime's session reports to whoever drives it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from nri_plugin.nri.events import NRIEvent, NRIResponse
from nri_plugin.nri.messages import ContainerUpdate, EventMask, FieldOwners


@dataclass(frozen=True, slots=True)
class PluginRegistered:
    """A plugin registered under a name and index that are accepted; now call `configure`."""

    name: str
    index: str
    nri_version: str = ""


@dataclass(frozen=True, slots=True)
class RegistrationRejected:
    """Name or index are wrong: the plugin was told, and the connection is open and dead from now on."""

    name: str
    index: str
    reason: str


@dataclass(frozen=True, slots=True)
class Configured:
    """The plugin subscribed (0 is already taken for everything); now call `synchronize`."""

    mask: EventMask


@dataclass(frozen=True, slots=True)
class Synchronized:
    """The plugin is on the list; its updates are to be applied."""

    updates: tuple[ContainerUpdate, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A call ended. With `error` the CRI request fails and `response` is None.

    `is_fail_open` marks a call that was lost with the plugin: the request goes on as if it had not been asked.
    `owners` is container id -> what the plugin set, as validators are told.
    """

    call: int
    event: NRIEvent
    response: NRIResponse | None
    error: str = ""
    is_fail_open: bool = False
    owners: Mapping[str, FieldOwners] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdateRequested:
    """The plugin asks for updates by itself; answer with `finish_update`."""

    call: int
    updates: tuple[ContainerUpdate, ...]


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The runtime gives the plugin up: send what is queued, then close the socket."""

    reason: str


RuntimeEvent: TypeAlias = (
    PluginRegistered
    | RegistrationRejected
    | Configured
    | Synchronized
    | Answered
    | UpdateRequested
    | ConnectionLost
)
