"""What can happen in a scenario, one value per step.

A target is `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from nri_plugin.cpuset import CPUSet
from nri_plugin.nodemask import NodeMask
from nri_plugin.nri.messages import Resources
from nri_plugin.simulator.pods import PodSpec


class Part(StrEnum):
    """What can be restarted."""

    AGENT = "agent"
    RUNTIME = "runtime"


class Kind(StrEnum):
    """What a cgroup of somebody else is to the kernel."""

    ISOLATED = "isolated"
    ROOT = "root"
    MEMBER = "member"
    """None any more."""


class Writer(StrEnum):
    """Who writes a cpuset that is not theirs."""

    PERSON = "write"
    """A write to the cgroup file."""
    PROPERTY = "set-property"
    """`systemctl set-property`; only systemd has it, elsewhere the write that it makes is played."""
    RELOAD = "daemon-reload"
    """systemd puts back what it was told at creation, after a reload and a change of the unit."""


@dataclass(frozen=True, slots=True)
class Say:
    """A sentence for the reader."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """A pod with its containers is created and, unless `start` is off, started."""

    line: int
    pod: PodSpec
    start: bool = True


@dataclass(frozen=True, slots=True)
class Start:
    """Created containers are started."""

    line: int
    target: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Containers exit; with a pod as target the sandbox stops too."""

    line: int
    target: str


@dataclass(frozen=True, slots=True)
class Remove:
    """What the target names is stopped and removed."""

    line: int
    target: str


@dataclass(frozen=True, slots=True)
class Update:
    """The kubelet changes a container's resources."""

    line: int
    target: str
    resources: Resources


@dataclass(frozen=True, slots=True)
class Restart:
    """A part is killed without warning and started again; `is_down` leaves it down.

    Attributes:
        writes: how many cpuset and quota files may be written until what follows from it is done; None = not asked.
        config: keys of the agent's configuration that are others from now on.
    """

    line: int
    part: Part
    is_down: bool = False
    writes: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drift:
    """Somebody else changes the CPUs of a container; it happens, and is put right unless the agent is down.

    Attributes:
        meanwhile: what a real kernel says of containers before it is put right, as in `Expect.kernel`.
    """

    line: int
    target: str
    cpus: CPUSet
    by: Writer = Writer.PERSON
    meanwhile: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Second:
    """Another agent is started beside the one that runs, by mistake; it must end by itself and say why."""

    line: int


@dataclass(frozen=True, slots=True)
class Release:
    """The agent ends and `nri-pin release` gives everything back; who is restarted later keeps its promises."""

    line: int


@dataclass(frozen=True, slots=True)
class Online:
    """From now on exactly these CPUs are online."""

    line: int
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody else's cgroup beside those of pods becomes a partition with these CPUs, or ceases to be one."""

    line: int
    kind: Kind
    cpus: CPUSet


@dataclass(frozen=True, slots=True)
class Logged:
    """The agent's log has said this since the last such step, or says it soon; it is no fault then.

    Attributes:
        text: part of a line.
        only: `kernel` where only a real one gives reason to say it.
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
class Expect:
    """What must be true of a container now; None = not asked.

    Attributes:
        cpus: its effective CPUs.
        mems: its effective memory nodes.
        exclusive: how many CPUs it has to itself, 0 = it runs in the shared pool.
        numa_nodes: over how many NUMA nodes its CPUs are spread.
        caches: over how many uncore caches.
        devices: ids by resource, all it has.
        refused: a part of the reason for which it was refused.
        kernel: what only a real kernel can tell: `quota`, `podQuota`, `partition`, the CPUs of its `sandbox`, and
            those that the `root` of the cgroup tree can run on.
    """

    line: int
    target: str
    cpus: CPUSet | None = None
    mems: NodeMask | None = None
    exclusive: int | None = None
    numa_nodes: int | None = None
    caches: int | None = None
    devices: Mapping[str, tuple[str, ...]] | None = None
    refused: str | None = None
    kernel: Mapping[str, str] | None = None


Step: TypeAlias = (
    Say
    | Run
    | Start
    | Stop
    | Remove
    | Update
    | Restart
    | Drift
    | Second
    | Release
    | Online
    | Foreign
    | Logged
    | Spin
    | Expect
)
