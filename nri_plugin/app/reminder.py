"""How often a trouble that lasts is said: at once, then at long intervals; or once, for as long as it is repeated."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

AGAIN_S = 600.0
"""Often enough for somebody who looks at the last lines, seldom enough to leave others in sight."""

MOST_REMEMBERED = 1024
"""Keys; what is forgotten beyond that is said once more."""


class Reminder:
    """Tells whether a line is due; another text, or the same after `forget`, is due at once.

    Args:
        interval_s: between two lines of one text.
    """

    def __init__(self, interval_s: float = AGAIN_S) -> None:
        self._interval_s = interval_s
        self._text = ""
        self._due_at: float | None = None

    def is_due(self, text: str, now: float) -> bool:
        """Whether to say it now; if so, it counts as said."""
        if text == self._text and self._due_at is not None and now < self._due_at:
            return False
        self._text, self._due_at = text, now + self._interval_s
        return True

    def forget(self) -> None:
        """The trouble is over."""
        self._due_at = None


class Repeats(Generic[Key]):
    """Tells the first of many equal happenings from its repetitions, for each of many keys.

    A happening is new when its text differs from the last one of its key, or when none came for `calm_s`.

    Args:
        calm_s: seconds without a repetition after which the next is new.
    """

    def __init__(self, calm_s: float = AGAIN_S) -> None:
        self._calm_s = calm_s
        self._latest: dict[Key, tuple[str, float]] = {}

    def is_first(self, key: Key, text: str, now: float) -> bool:
        """Whether this is new; in both cases it counts as the latest of its key."""
        former, at = self._latest.pop(key, ("", float("-inf")))
        self._latest[key] = (text, now)
        if len(self._latest) > MOST_REMEMBERED:
            del self._latest[next(iter(self._latest))]
        return former != text or now - at > self._calm_s

    def forget(self, key: Key) -> None:
        """The next happening of this key is new."""
        self._latest.pop(key, None)
