"""How often a trouble that lasts is said: at once, then at long intervals."""

AGAIN_S = 600.0
"""Often enough for somebody who looks at the last lines, seldom enough to leave others in sight."""


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
