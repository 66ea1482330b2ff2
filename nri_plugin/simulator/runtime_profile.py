"""How NRI releases differ on the wire, seen from the runtime's side."""

from dataclasses import dataclass
from typing import Final

from nri_plugin.nri.messages import EventMask
from nri_plugin.nri.versions import MASK_BEFORE_0_10, MASK_SINCE_0_10


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    """A runtime as a plugin meets it.

    Attributes:
        nri_version: NRI library release, `X.Y.Z`.
        runtime_name: as told in Configure.
        runtime_version: as told in Configure.
        registration_timeout: seconds from accepting a connection to RegisterPlugin.
        request_timeout: seconds for Configure, for all of Synchronize, and for each event.
    """

    nri_version: str
    runtime_name: str
    runtime_version: str
    registration_timeout: float = 5.0
    request_timeout: float = 2.0

    @property
    def release(self) -> tuple[int, ...]:
        """NRI release as numbers."""
        return tuple(int(part) for part in self.nri_version.removeprefix("v").split("."))

    @property
    def legal_mask(self) -> EventMask:
        """Events a plugin may subscribe to; one bit more and the connection is closed."""
        return MASK_SINCE_0_10 if self.release >= (0, 10) else MASK_BEFORE_0_10

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
