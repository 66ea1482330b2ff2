"""The features of each release of NRI: events that a plugin may subscribe to, and parts of an answer that take effect.

A runtime closes the connection silently if the subscription has one event that it does not know. It drops unknown
fields of an answer silently. Releases before 0.12 do not send their version, so it is inferred from the runtime's.

Source: NRI releases 0.2.0 to 0.12.2 and the versions of NRI that containerd and CRI-O carry. The fields that
updates lose were found in the code of containerd 1.7 to 2.4 and CRI-O 1.31 to 1.36.
"""

import re
from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeAlias

from nri_plugin.wire.nri.events import (
    NOTHING,
    Adjustment,
    Configure,
    CreateContainerResponse,
    NRIEvent,
    NRIResponse,
    UpdateContainer,
)
from nri_plugin.wire.nri.messages import ContainerUpdate, EventMask, Resources

# Events: where the version is in doubt, the smallest set that can be right


OUR_NRI_VERSION: Final = "v0.12.2"
"""The release whose messages proto/nri.proto describes."""
MASK_BEFORE_0_10: Final = EventMask(0x07FF)
MASK_WITHOUT_VALIDATION: Final = EventMask(0x1FFF)
MASK_SINCE_0_10: Final = EventMask(0x3FFF)

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(-(?:alpha|beta|rc))?")


def legal_mask(configure: Configure) -> EventMask:
    """Returns every event this runtime lets a plugin subscribe to.

    Source: NRI releases up to 0.6 tell no timeouts; from 0.12 the NRI version is told; between them only the
    runtime's version tells (containerd 2.2 and CRI-O 1.34 came with 0.10, CRI-O 1.33 without validation).
    """
    # Only NRI 0.12 and later send their version. The text may be `(devel)`, so its presence decides, not its value.
    if configure.nri_version:
        return MASK_SINCE_0_10
    if is_before_0_7(configure):
        return MASK_BEFORE_0_10
    # One bit too many closes the connection without an error; one bit too few loses an event. So in doubt the smaller
    # mask is right: a runtime of another name, or a version that cannot be read.
    version = minor_version(configure.runtime_version)
    if configure.runtime_name == "containerd" and version >= (2, 2):
        return MASK_SINCE_0_10
    if configure.runtime_name == "cri-o" and version >= (1, 33):
        return MASK_SINCE_0_10 if version >= (1, 34) else MASK_WITHOUT_VALIDATION
    return MASK_BEFORE_0_10


def is_before_0_7(configure: Configure) -> bool:
    """Whether the runtime's NRI is older than 0.7: it never synchronizes a plugin it launched."""
    # NRI 0.7 added the timeouts to Configure, NRI 0.12 the version.
    told = configure.registration_timeout_ms or configure.request_timeout_ms or configure.nri_version
    return not told


def minor_version(text: str) -> tuple[int, int]:
    """Returns (major, minor); a pre-release of X.Y.0 counts as below X.Y, nothing readable as (0, 0)."""
    # Forms in use: `v2.1.9`, `1.36.0` (CRI-O), `1.7.24~ds1` (Debian), `1.7.24+unknown`.
    found = _VERSION.search(text)
    if found is None:
        return (0, 0)
    major, minor, patch, prerelease = found.groups()
    if prerelease and patch == "0":
        return (int(major), int(minor) - 1)
    return (int(major), int(minor))


# Fields of answers


Release: TypeAlias = tuple[int, int, int]

OLDEST: Final[Release] = (0, 2, 0)
_PIDS: Final = "resources.pids_limit"
SINCE: Final[Mapping[str, Release]] = MappingProxyType(
    {
        "rlimits": (0, 4, 0),
        "cdi_devices": (0, 7, 0),
        "oom_score_adj": (0, 7, 0),
        _PIDS: (0, 7, 0),
        "args": (0, 10, 0),
        "io_priority": (0, 10, 0),
        "seccomp_policy": (0, 10, 0),
        "namespaces": (0, 10, 0),
        "sysctl": (0, 11, 0),
        "net_devices": (0, 11, 0),
        "scheduler": (0, 11, 0),
        "rdt": (0, 11, 0),
        "memory_policy": (0, 12, 0),
    }
)
"""First release that knows a field of `Adjustment` (`resources.X`: of its resources); 0.2.0 knew all others."""

_CLASSES: Final = frozenset({"blockio_class", "rdt_class"})
_BESIDE_CPU: Final = _CLASSES | {
    "memory_reservation_bytes",
    "memory_swap_bytes",
    "memory_kernel_bytes",
    "memory_swappiness",
    "pids_limit",
    "device_rules",
}
LOST_IN_UPDATES: Final[Mapping[tuple[str, bool], frozenset[str]]] = MappingProxyType(
    {
        ("containerd", False): _BESIDE_CPU,
        ("containerd", True): _BESIDE_CPU,
        ("cri-o", False): _CLASSES,
        ("cri-o", True): _BESIDE_CPU | {"hugepage_limits"},
    }
)
"""(runtime, whether a container is updated in the answer to its own UpdateContainer) -> fields of
`Resources` that the runtime is known to drop from a `ContainerUpdate`."""

_UNSET: Final = Resources()
_NEWER: Final = tuple(name for name in SINCE if name != _PIDS)
_contents: Final = attrgetter(*_NEWER)
_NO_CONTENTS: Final = _contents(NOTHING)
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
# Newest first: a runtime has the NRI of the first line whose version it reaches.
_CARRIED: Final[Mapping[str, tuple[tuple[Release, Release], ...]]] = MappingProxyType(
    {
        "containerd": (((2, 2, 1), (0, 11, 0)), ((2, 2, 0), (0, 10, 0)), ((1, 7, 26), (0, 8, 0))),
        "cri-o": (((1, 35, 0), (0, 11, 0)), ((1, 34, 0), (0, 10, 0)), ((1, 32, 0), (0, 9, 0))),
    }
)


def release_of(configure: Configure) -> Release:
    """Returns the NRI release of a runtime, the oldest it can be when that is in doubt."""
    # A version that cannot be read, such as `(devel)`, is at least the first release that sends one.
    if configure.nri_version:
        return max(_release(configure.nri_version), (0, 12, 0))
    if is_before_0_7(configure):
        return (0, 6, 1)
    version = (*minor_version(configure.runtime_version), _release(configure.runtime_version)[2])
    for since, release in _CARRIED.get(configure.runtime_name, ()):
        if version >= since:
            return release
    return (0, 7, 0)


def unheeded(runtime: Configure, event: NRIEvent, response: NRIResponse) -> str:
    """Returns "" if the runtime applies all of an answer, else one sentence that names the dropped fields."""
    updates: tuple[ContainerUpdate, ...] = getattr(response, "updates", ())
    adjustment = NOTHING
    if isinstance(response, CreateContainerResponse):
        if is_known_to_all(response) and not updates:
            return ""
        adjustment = response.whole()
    own_id = event.container.id if isinstance(event, UpdateContainer) else ""
    problems = [*_unknown(runtime, adjustment), *_lost(runtime.runtime_name, updates, own_id)]
    if not problems:
        return ""
    name = f"{runtime.runtime_name} {runtime.runtime_version}".strip() or "the runtime"
    return f"the answer was sent, but {name} does not heed {'; '.join(problems)}"


def is_known_to_all(response: CreateContainerResponse) -> bool:
    """Whether every release knows what the response sets for the new container; True for all that placement sets."""
    resources = response.resources
    return response.adjustment is None and (resources is None or resources.pids_limit is None)


def fields_since(adjustment: Adjustment) -> dict[str, Release]:
    """Returns the fields an adjustment sets that not every release knows, with their first release."""
    resources = adjustment.resources or _UNSET
    found = {
        name: SINCE[name]
        for name, content, unset in zip(_NEWER, _contents(adjustment), _NO_CONTENTS, strict=True)
        # Mostly nothing is set, and then the content is the default itself: comparing identities is enough.
        if content is not unset and content != unset
    }
    if resources.pids_limit is not None:
        found[_PIDS] = SINCE[_PIDS]
    return found


def _unknown(runtime: Configure, adjustment: Adjustment) -> Iterable[str]:
    for name, since in fields_since(adjustment).items():
        release = release_of(runtime)
        if since > release:
            yield f"{name}, known since NRI {_text(since)} while it has {_text(release)}"


def _lost(runtime_name: str, updates: Iterable[ContainerUpdate], own_id: str) -> Iterable[str]:
    for update in updates:
        # The update of the container that the event is about is merged into the CRI request. So it loses other fields
        # than the update of another container.
        is_own = update.container_id == own_id
        lost = LOST_IN_UPDATES.get((runtime_name, is_own), frozenset())
        names = [name for name in sorted(lost) if getattr(update.resources, name) != getattr(_UNSET, name)]
        if names:
            yield f"{', '.join(names)} in the update of {update.container_id}"


def _release(text: str) -> Release:
    found = _NUMBERS.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)


def _text(release: Release) -> str:
    return ".".join(map(str, release))
