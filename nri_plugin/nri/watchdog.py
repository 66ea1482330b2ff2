"""When a connection has to be given up although it is open: runtimes keep some that they no longer serve.

Source: containerd 1.7 up to 1.7.25 keeps a plugin connected that failed to synchronize and never sends it
another event; NRI 0.6 leaves half a frame behind when a message is too long for it.
"""

from typing import Final

from nri_plugin.nri.events import Configure
from nri_plugin.nri.versions import is_before_0_7

INCOMPLETE_FRAME_SECONDS: Final = 10.0
LATE_ANSWER_SECONDS: Final = 1.0
"""After a late answer the runtime closes; we wait so long for it."""


class Watchdog:
    """Expectations by name, each with the time at which it is broken and the sentence to say then."""

    def __init__(self, timeout: float, *, prelaunched: bool) -> None:
        self._timeout = timeout
        self._prelaunched = prelaunched
        self._due: dict[str, tuple[float, str]] = {}
        self._frames_read = 0

    def next_check(self) -> float | None:
        """Returns the earliest time at which an expectation is broken."""
        return min((due_at for due_at, _ in self._due.values()), default=None)

    def overdue(self, now: float) -> str | None:
        """Returns the sentence of the expectation that was broken first."""
        broken = [due for due in self._due.values() if due[0] <= now]
        return min(broken)[1] if broken else None

    def registering(self, now: float) -> None:
        """We asked to be registered: Configure must come."""
        text = f"no Configure within {self._timeout:g} s after connecting; another connection may hold the runtime up"
        self._due["configure"] = (now + self._timeout, text)

    def configured(self, runtime: Configure, now: float) -> None:
        """We answered Configure: Synchronize must come, except where a launched plugin never gets one."""
        self._due.pop("configure", None)
        if self._prelaunched and is_before_0_7(runtime):
            return
        text = f"no Synchronize within {self._timeout:g} s after Configure; the runtime may have forgotten us"
        self._due["synchronize"] = (now + self._timeout, text)

    def synchronized(self, *, is_lost: bool) -> None:
        """We answered Synchronize, in a way that keeps us on the runtime's list or not."""
        self._due.pop("synchronize", None)
        if is_lost:
            text = "our answer to Synchronize was an error or too late; the runtime may keep us without serving us"
            self._due["lost"] = (float("-inf"), text)

    def answered_late(self, now: float) -> None:
        """An answer left after its deadline: the runtime closes the connection."""
        text = f"an answer left after its deadline and the runtime did not close within {LATE_ANSWER_SECONDS:g} s"
        self._due.setdefault("late", (now + LATE_ANSWER_SECONDS, text))

    def received(self, now: float, frames_read: int, *, is_incomplete: bool) -> None:
        """Bytes came and left the stream between two frames or in the middle of one.

        Args:
            now: in seconds.
            frames_read: whole frames read since the connection began.
            is_incomplete: whether another has begun.
        """
        if not is_incomplete or frames_read != self._frames_read:
            self._due.pop("frame", None)
        self._frames_read = frames_read
        if is_incomplete:
            text = f"a frame is incomplete for {INCOMPLETE_FRAME_SECONDS:g} s; the runtime cannot send the rest of it"
            self._due.setdefault("frame", (now + INCOMPLETE_FRAME_SECONDS, text))

    def updating(self, call: int, due_at: float) -> None:
        """An unsolicited update is on its way."""
        self._due[f"update {call}"] = (
            due_at,
            "the runtime did not answer UpdateContainers in time; it may hang",
        )

    def updated(self, call: int) -> None:
        """It was answered."""
        self._due.pop(f"update {call}", None)
