"""What a step of a scenario did, as it is told."""

from dataclasses import dataclass, field

from nri_plugin.cpuset import CPUSet
from nri_plugin.simulator.runtime_store import Placement
from nri_plugin.simulator.steps import Step


@dataclass(frozen=True, slots=True)
class Change:
    """A running container whose CPUs are no longer what they were before the step."""

    key: str
    before: CPUSet
    after: CPUSet


@dataclass(frozen=True, slots=True)
class Refusal:
    """A container that was refused, with the agent's words."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did.

    Attributes:
        arrived: containers that exist since this step.
        refused: containers that were refused in it.
        changed: running containers whose effective CPUs changed.
        left: keys of containers that no longer run.
        compared: how many running containers were compared.
        problems: what should not have happened, a sentence each.
        took_s: the whole step, seconds.
        updates: how many containers the agent had updated when it came back.
    """

    step: Step
    arrived: tuple[Placement, ...] = ()
    refused: tuple[Refusal, ...] = ()
    changed: tuple[Change, ...] = ()
    left: tuple[str, ...] = ()
    compared: int = 0
    problems: tuple[str, ...] = ()
    took_s: float = 0.0
    updates: int = 0


@dataclass(slots=True)
class Notes:
    """What is noted while a step runs."""

    arrived: list[str] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    updates: int = 0
