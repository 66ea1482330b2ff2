"""The events of each release of NRI that a plugin may subscribe to.

A runtime closes the connection silently if the subscription has one event that it does not know. Releases before 0.12 do
not send their version, so it is inferred from the runtime's.

Source: NRI releases 0.2.0 to 0.12.2 and the versions of NRI that containerd and CRI-O carry.
"""

import re
from typing import Final

from nri_plugin.wire.nri.events import EVENTS, OLDEST, Configure, EventMask, Release

OUR_NRI_VERSION: Final = "v0.12.2"
"""The release whose messages proto/nri.proto describes."""
WITH_POD_UPDATES: Final[Release] = (0, 10)
_FIRST_RUNTIME: Final = {"containerd": (2, 2), "cri-o": (1, 33)}
"""First versions of runtimes that have the events of NRI 0.10."""

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(-(?:alpha|beta|rc))?")


def mask_of(release: Release) -> EventMask:
    """Returns every event of a release."""
    mask = EventMask(0)
    for row in EVENTS.values():
        if row.since <= release:
            mask |= row.bit
    return mask


def legal_mask(configure: Configure) -> EventMask:
    """Returns every event this runtime lets a plugin subscribe to.

    Source: NRI releases up to 0.6 tell no timeouts; from 0.12 the NRI version is told; between them only the
    runtime's version tells (containerd 2.2 came with 0.10, CRI-O 1.33 with its events).
    """
    # Only NRI 0.12 and later send their version. The text may be `(devel)`, so its presence decides, not its value.
    # One bit too many closes the connection without an error; one bit too few loses an event. So in doubt the smaller
    # mask is right: a runtime of another name, or a version that cannot be read.
    first = _FIRST_RUNTIME.get(configure.runtime_name)
    version = minor_version(configure.runtime_version)
    by_version = not is_before_0_7(configure) and first is not None and version >= first
    return mask_of(WITH_POD_UPDATES if configure.nri_version or by_version else OLDEST)


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
