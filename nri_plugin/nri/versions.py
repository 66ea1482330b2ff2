"""Which events a runtime knows, read off its introduction.

One bit too many in the subscription and the runtime closes the connection without a word, so the
smallest set that can be right is chosen when the version is in doubt.
"""

import re
from typing import Final

from nri_plugin.nri.events import Configure
from nri_plugin.nri.messages import EventMask

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
    if configure.nri_version:
        return MASK_SINCE_0_10
    if is_before_0_7(configure):
        return MASK_BEFORE_0_10
    version = minor_version(configure.runtime_version)
    if configure.runtime_name == "containerd" and version >= (2, 2):
        return MASK_SINCE_0_10
    if configure.runtime_name == "cri-o" and version >= (1, 33):
        return MASK_SINCE_0_10 if version >= (1, 34) else MASK_WITHOUT_VALIDATION
    return MASK_BEFORE_0_10


def is_before_0_7(configure: Configure) -> bool:
    """Whether the runtime's NRI is older than 0.7: it never synchronizes a plugin it launched."""
    told = configure.registration_timeout_ms or configure.request_timeout_ms or configure.nri_version
    return not told


def minor_version(text: str) -> tuple[int, int]:
    """Returns (major, minor); a pre-release of X.Y.0 counts as below X.Y, nothing readable as (0, 0)."""
    found = _VERSION.search(text)
    if found is None:
        return (0, 0)
    major, minor, patch, prerelease = found.groups()
    if prerelease and patch == "0":
        return (int(major), int(minor) - 1)
    return (int(major), int(minor))
