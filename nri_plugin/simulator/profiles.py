"""How the runtimes differ, as far as a plugin can see it.

Source: recorded behaviour of containerd 1.7.24 and 2.1.9; the others are written after their code.
"""

from dataclasses import dataclass, replace

from nri_plugin.errors import ConfigError
from nri_plugin.nri.messages import EventMask

BASE_EVENTS = EventMask(0x07FF)
POD_UPDATE_EVENTS = EventMask(0x1FFF)
ALL_EVENTS = EventMask(0x3FFF)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one runtime does around its plugins.

    Attributes:
        name: as a scenario names it.
        runtime_name: what it calls itself in Configure.
        runtime_version: likewise.
        nri_version: the NRI library it is built with.
        tells_nri_version: whether Configure carries that version (NRI >= 0.12).
        tells_timeouts: whether Configure carries the timeouts (NRI >= 0.7).
        events: the subscription bits it accepts.
        cgroup_prefix: first part of a container's scope.
        undoes_failed_creation: whether a refused container is followed by StopContainer and RemoveContainer.
        stores_updates: whether an update survives the runtime's own restart.
        zero_resources: absent times and limits are sent as 0 rather than left out.
        has_run: whether this profile was checked against the real thing.
    """

    name: str
    runtime_name: str
    runtime_version: str
    nri_version: str
    tells_nri_version: bool
    tells_timeouts: bool
    events: EventMask
    cgroup_prefix: str = "cri-containerd"
    undoes_failed_creation: bool = True
    stores_updates: bool = True
    zero_resources: bool = False
    has_run: bool = True


CONTAINERD_17 = Behaviour(
    name="containerd-1.7",
    runtime_name="containerd",
    runtime_version="1.7.24~ds1",
    nri_version="v0.6.1",
    tells_nri_version=False,
    tells_timeouts=False,
    events=BASE_EVENTS,
)
CONTAINERD_21 = replace(
    CONTAINERD_17,
    name="containerd-2.1",
    runtime_version="2.1.9",
    nri_version="v0.8.0",
    tells_timeouts=True,
)
CONTAINERD_24 = replace(
    CONTAINERD_21,
    name="containerd-2.4",
    runtime_version="v2.4.0-beta.0",
    nri_version="v0.12.2",
    tells_nri_version=True,
    events=ALL_EVENTS,
    has_run=False,
)
CRI_O = Behaviour(
    name="cri-o",
    runtime_name="cri-o",
    runtime_version="1.36.0",
    nri_version="v0.11.0",
    tells_nri_version=False,
    tells_timeouts=True,
    events=ALL_EVENTS,
    cgroup_prefix="crio",
    undoes_failed_creation=False,
    stores_updates=False,
    zero_resources=True,
    has_run=False,
)

BEHAVIOURS = {each.name: each for each in (CONTAINERD_17, CONTAINERD_21, CONTAINERD_24, CRI_O)}


def behaviour(name: str, where: str = "") -> Behaviour:
    """The runtime of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in BEHAVIOURS:
        raise ConfigError(where, f"runtime '{name}' is not one of {', '.join(BEHAVIOURS)}")
    return BEHAVIOURS[name]
