"""A refusal as a record: why a container or a resize is not admitted, and what would have fitted instead.

The policies and the core raise an `AdmissionError`, which carries an `AdmissionRefusal` without advice. The engine adds
the `Advice` to a copy of the record and puts that copy into the decision. Both are frozen.

`str()` of the record is the only text of a refusal. The runtime's error, the log, the event on the pod and
`nri-pin explain` all show it. No code takes that text apart: a reader that needs a part of it uses the fields.
"""

from dataclasses import dataclass
from enum import StrEnum

from nri_plugin.model.quantity import format_bytes, round_down

LONGEST_REFUSAL = 920
"""Characters: an event on a pod holds 1024 bytes, and the container's name is among them."""

LONGEST_ADVICE = 360
"""Longer advice is cut, so that there is room for the numbers of the refusal."""

UNEXPECTED = "UnexpectedAdmissionError"
"""The kubelet's reason for every refusal that has no reason of its own."""


class RefusalKind(StrEnum):
    """The subject of a refusal; the kubelet has a reason of its own only for the first two."""

    TOPOLOGY_AFFINITY = "topology-affinity"
    SMT_ALIGNMENT = "smt-alignment"
    CPUS = "cpus"
    UNCORE_CACHE = "uncore-cache"
    MEMORY = "memory"
    ANNOTATION = "annotation"
    HINT_PROVIDER = "hint-provider"
    OTHER = "other"


_REASONS = {
    RefusalKind.TOPOLOGY_AFFINITY: "TopologyAffinityError",
    RefusalKind.SMT_ALIGNMENT: "SMTAlignmentError",
}


class Obstacle(StrEnum):
    """What stands in the way of a request."""

    CONFIGURATION = "configuration"
    """No other pod holds anything, and the request does not fit nevertheless."""
    HOLDERS = "holders"
    """Allocations of other pods: without them the request fits."""
    MACHINE = "machine"
    """The request does not fit without the other pods either."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one other container holds.

    Attributes:
        container: NAMESPACE/POD/CONTAINER.
        cpus: its exclusive CPUs, as a kernel list.
        cpu_count: how many they are.
        memory_bytes: its allocated memory without huge pages.
        memory_nodes: the NUMA nodes that its memory is bound to, as a kernel list.
    """

    container: str
    cpus: str
    cpu_count: int
    memory_bytes: int
    memory_nodes: str

    def __str__(self) -> str:
        amounts = [f"{self.cpu_count} CPUs {self.cpus}"] if self.cpus else []
        if self.memory_bytes:
            amounts.append(f"{round_down(self.memory_bytes)} on {_numa(self.memory_nodes)}")
        return f"{self.container} ({', '.join(amounts) or 'huge pages'})"


@dataclass(frozen=True, slots=True)
class Holders:
    """The other containers that hold most.

    Attributes:
        largest: the largest of them, by CPUs.
        more: how many others hold something.
    """

    largest: tuple[Holding, ...] = ()
    more: int = 0

    def __str__(self) -> str:
        return ", ".join(map(str, self.largest)) + (f" and {self.more} more" if self.more else "")


@dataclass(frozen=True, slots=True)
class Advice:
    """What would have fitted, and what stands in the way. Each alternative was tried.

    Attributes:
        obstacle: what stands in the way.
        holders: who holds most; named in the text where they are the obstacle.
        cpu_counts: numbers of CPUs that fit.
        memory: resource and bytes that fit, for a request whose CPUs are not the problem.
        pod_cpu_milli: the largest total that the pod may grow to; 0 where that was not asked.
        policy: a less strict topology policy, and the NUMA nodes of the container under it, as a kernel list, empty
            for any.
        pod_end: NAMESPACE/POD whose end makes enough room.
    """

    obstacle: Obstacle
    holders: Holders = Holders()
    cpu_counts: tuple[int, ...] = ()
    memory: tuple[str, int] | None = None
    pod_cpu_milli: int = 0
    policy: tuple[str, str] | None = None
    pod_end: str = ""

    def __str__(self) -> str:
        fits = " or ".join(self._alternatives())
        text = f"would fit: {fits}; {self.obstacle_text}" if fits else self.obstacle_text
        return _cut(text, LONGEST_ADVICE)

    @property
    def obstacle_text(self) -> str:
        """What stands in the way, in words."""
        if self.obstacle is Obstacle.HOLDERS:
            return f"in the way: {self.holders}"
        return _OBSTACLES[self.obstacle]

    def _alternatives(self) -> list[str]:
        found = []
        if self.cpu_counts:
            found.append(f"{' or '.join(map(str, self.cpu_counts))} CPUs")
        if self.memory:
            resource, size = self.memory
            found.append(f"{format_bytes(size)} of {resource}")
        if self.pod_cpu_milli:
            found.append(f"{self.pod_cpu_milli}m for the pod")
        if self.policy:
            policy, nodes = self.policy
            found.append(f"policy {policy} on {_numa(nodes or 'any')}")
        if self.pod_end:
            found.append(f"after {self.pod_end} ends")
        return found


_OBSTACLES = {
    Obstacle.CONFIGURATION: "no other pod holds anything; with this configuration it never fits on this machine",
    Obstacle.MACHINE: "without other pods it would not fit either",
}


@dataclass(frozen=True, slots=True)
class AdmissionRefusal:
    """Why something is not admitted.

    Attributes:
        kind: what could not be had.
        detail: the request and what there is, in words.
        findings: what each hint provider found, in its own words.
        remark: a doubt about the answer, or what an operator can do; follows the findings.
        requested: how many CPUs were asked for; 0 where it was not about a number of CPUs.
        available: how many there were.
        exact: False where a search for a better hint was cut short.
        advice: what would have fitted; None where the refusal is not about room, or no alternative was tried.
    """

    kind: RefusalKind
    detail: str
    findings: tuple[str, ...] = ()
    remark: str = ""
    requested: int = 0
    available: int = 0
    exact: bool = True
    advice: Advice | None = None

    @property
    def reason(self) -> str:
        """The kubelet's reason word."""
        return _REASONS.get(self.kind, UNEXPECTED)

    @property
    def steps(self) -> tuple[str, ...]:
        """Why, in the short codes of a decision."""
        return (self.reason,) if self.exact else (self.reason, "inexact-hint")

    def text_without(self, said: frozenset[str] = frozenset()) -> str:
        """The refusal without its advice, and without the findings that the reader has seen already."""
        findings = (one for one in self.findings if one not in said)
        return "; ".join(
            [f"{self.reason}: {self.detail}", *findings, *([self.remark] if self.remark else [])]
        )

    def __str__(self) -> str:
        # The advice is never cut for the sake of the numbers: it tells the operator what to do.
        advice = f"; {self.advice}" if self.advice else ""
        return _cut(self.text_without(), LONGEST_REFUSAL - len(advice)) + advice


def _numa(nodes: str) -> str:
    return f"NUMA node{'' if nodes.isdigit() else 's'} {nodes}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
