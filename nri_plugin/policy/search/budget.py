"""A number of steps for a search: time is bounded without a clock, and alike on every machine."""

STEP_BUDGET = 6_000
"""Steps of the searches of one merge; about 10 ms on the machine of the first bench."""


class BudgetSpentError(Exception):
    """The step budget of a search ran out; caught by the searches, never seen outside."""


class Budget:
    """Counts the steps of one search.

    Attributes:
        left: steps that remain; below 0 once a search wanted more than there were.
        reserve: further steps, kept for what is to be done if this search finds nothing.
    """

    __slots__ = ("left", "reserve")

    def __init__(self, steps: int | None = None) -> None:
        self.left = STEP_BUDGET if steps is None else steps
        self.reserve = 0

    @property
    def is_spent(self) -> bool:
        """Whether a search had to stop."""
        return self.left < 0

    def release(self) -> None:
        """Something is found: the reserve may go into something better."""
        self.left += self.reserve
        self.reserve = 0

    def step(self, count: int = 1) -> None:
        """Count steps.

        Raises:
            BudgetSpentError: there are not as many left.
        """
        self.left -= count
        if self.left < 0:
            raise BudgetSpentError
