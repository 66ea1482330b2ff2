"""The steps that need an agent process, a runtime, cgroups or a kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from nri_plugin.model.sets import CPUSet
from nri_plugin.simulator.simulate import steps


class Part(StrEnum):
    """A process that can be restarted."""

    AGENT = "agent"
    RUNTIME = "runtime"


class PartitionKind(StrEnum):
    """The partition type of a cgroup that another program owns."""

    ISOLATED = "isolated"
    ROOT = "root"
    MEMBER = "member"
    """No partition."""


class Writer(StrEnum):
    """How another program writes a container's cpuset."""

    PERSON = "write"
    """A write to the cgroup file."""
    PROPERTY = "set-property"
    """`systemctl set-property`. Without systemd, the write that it makes is simulated."""
    RELOAD = "daemon-reload"
    """systemd restores the unit's cpuset of creation after a reload."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Kill agent or runtime and start it again; `is_down` leaves it down.

    Attributes:
        writes: how many cpuset and quota files may be written because of the restart; None = not checked.
        config: keys of the agent's configuration that change.
    """

    line: int
    part: Part
    is_down: bool = False
    writes: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DriftStep:
    """Another program changes the CPUs of a container; the agent repairs that unless it is down.

    Attributes:
        meanwhile: values on a real kernel before the repair, as in `Expect.kernel`.
    """

    line: int
    target: str
    cpus: CPUSet
    by: Writer = Writer.PERSON
    meanwhile: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Second:
    """A second agent is started beside the running one. It must wait for the first one and log that."""

    line: int


@dataclass(frozen=True, slots=True)
class Release:
    """The agent ends and `nri-pin release` undoes its settings; an agent that starts later keeps the allocations."""

    line: int


@dataclass(frozen=True, slots=True)
class Online:
    """From now on exactly these CPUs are online."""

    line: int
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Foreign:
    """A cgroup of another program becomes a partition with these CPUs, or stops being one."""

    line: int
    kind: PartitionKind
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Kubepods:
    """Another program gives the cgroup above all pods exactly these CPUs."""

    line: int
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Logged:
    """The agent has logged this since the last such step, or logs it soon.

    Attributes:
        text: part of a line.
        only: `kernel` if only a real kernel makes the agent log it.
    """

    line: int
    text: str
    only: str = ""


@dataclass(frozen=True, slots=True)
class Spin:
    """Twice as many processes spin in a container as it has CPUs; a real kernel shows whether it balances them.

    Attributes:
        on: `all` its CPUs, or `one`.
    """

    line: int
    target: str
    on: str


@dataclass(frozen=True, slots=True)
class Measure:
    """`nri-pin noise` measures a container with exclusive CPUs; on a real kernel its figures are those of another reader.

    Attributes:
        load: `disk` if its CPUs read from a disk and a stranger runs on them meanwhile, `hotplug` if its last CPU goes
            offline until the end, `none` for nothing.
    """

    line: int
    target: str
    load: str


Step: TypeAlias = (
    steps.Step
    | Restart
    | DriftStep
    | Second
    | Release
    | Online
    | Foreign
    | Kubepods
    | Logged
    | Spin
    | Measure
)
