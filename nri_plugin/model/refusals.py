"""A refusal as a record: why a container or a resize is not admitted, and what would have fitted instead.

The policies and the core raise an `AdmissionError`, which carries an `AdmissionRefusal` without advice. The engine adds
the `Advice` to a copy of the record and puts that copy into the decision. Both are frozen.

`str()` of the record is the only text of a refusal. The runtime's error, the log, the event on the pod and
`nri-pin explain` all show it. No code takes that text apart: a reader that needs a part of it uses the fields.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from nri_plugin.model.quantity import format_bytes, round_down

LONGEST_REFUSAL = 920
"""Characters: an event on a pod holds 1024 bytes, and the container's name is among them."""

LONGEST_ADVICE = 360
"""Longer advice is cut, so that there is room for the numbers of the refusal."""

UNEXPECTED = "UnexpectedAdmissionError"
"""The kubelet's reason for every refusal that has no reason of its own."""


class RefusalKind(StrEnum):
    """The subject of a refusal; the kubelet has a reason of its own for three of them."""

    TOPOLOGY_AFFINITY = "topology-affinity"
    SMT_ALIGNMENT = "smt-alignment"
    CPUS = "cpus"
    UNCORE_CACHE = "uncore-cache"
    MEMORY = "memory"
    EMPTY_POD_SHARED_POOL = "empty-pod-shared-pool"
    ANNOTATION = "annotation"
    HINT_PROVIDER = "hint-provider"
    TWO_OWNERS = "two-owners"
    OTHER = "other"


_REASONS = {
    RefusalKind.TOPOLOGY_AFFINITY: "TopologyAffinityError",
    RefusalKind.SMT_ALIGNMENT: "SMTAlignmentError",
    RefusalKind.EMPTY_POD_SHARED_POOL: "EmptyPodSharedPoolError",
}


def kind_of(reason: str) -> RefusalKind:
    """Return the kind with this reason word of the kubelet; `OTHER` where several kinds have it."""
    return next((kind for kind, word in _REASONS.items() if word == reason), RefusalKind.OTHER)


class Obstacle(StrEnum):
    """The reason why a request does not fit."""

    CONFIGURATION = "configuration"
    """No other pod holds anything, and the request does not fit nevertheless."""
    HOLDERS = "holders"
    """Allocations of other pods: without them the request fits."""
    MACHINE = "machine"
    """The request does not fit without the other pods either."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The CPUs and memory of one other container.

    Attributes:
        container: NAMESPACE/POD/CONTAINER.
        cpus: its exclusive CPUs, as a kernel list.
        cpu_count: how many they are.
        memory_bytes: its allocated memory without huge pages.
        memory_nodes: the NUMA nodes that its memory is bound to, as a kernel list.
        has_ended: it is an init container that has ended and keeps its CPUs until its pod ends.
    """

    container: str
    cpus: str
    cpu_count: int
    memory_bytes: int
    memory_nodes: str
    has_ended: bool = False

    def __str__(self) -> str:
        amounts = [f"{self.cpu_count} CPUs {self.cpus}"] if self.cpus else []
        if self.memory_bytes:
            amounts.append(f"{round_down(self.memory_bytes)} on {_numa(self.memory_nodes)}")
        ended = " (ended)" if self.has_ended else ""
        return f"{self.container}{ended} ({', '.join(amounts) or 'huge pages'})"


@dataclass(frozen=True, slots=True)
class Holders:
    """The other containers that hold most.

    Attributes:
        largest: ended init containers with CPUs, which no list of running containers shows, then the largest by CPUs.
        more: how many others hold something.
    """

    largest: tuple[Holding, ...] = ()
    more: int = 0

    def __str__(self) -> str:
        return ", ".join(map(str, self.largest)) + (f" and {self.more} more" if self.more else "")


@dataclass(frozen=True, slots=True)
class Advice:
    """Alternatives that would have fitted, and the obstacle to the request. Each alternative was tried.

    Attributes:
        obstacle: the reason why the request does not fit.
        holders: who holds most; named in the text where they are the obstacle.
        cpu_counts: numbers of CPUs that fit.
        memory: resource and bytes that fit, for a request whose CPUs are not the problem.
        pod_cpu_milli: the largest total that the pod may grow to; 0 where that was not asked.
        policy: a less strict topology policy, and the NUMA nodes of the container under it, as a kernel list, empty
            for any.
        pod_end: NAMESPACE/POD whose end makes enough room.
        siblings: the other containers of its own pod that hold something; named where no other pod is the obstacle.
    """

    obstacle: Obstacle
    holders: Holders = Holders()
    cpu_counts: tuple[int, ...] = ()
    memory: tuple[str, int] | None = None
    pod_cpu_milli: int = 0
    policy: tuple[str, str] | None = None
    pod_end: str = ""
    siblings: Holders = Holders()

    def __str__(self) -> str:
        fits = " or ".join(self._alternatives())
        text = f"would fit: {fits}; {self.obstacle_text}" if fits else self.obstacle_text
        return _cut(text, LONGEST_ADVICE)

    @property
    def obstacle_text(self) -> str:
        """The obstacle in words."""
        if self.obstacle is Obstacle.HOLDERS:
            return f"in the way: {self.holders}"
        if self.siblings.largest:
            return (
                f"{_BESIDE_SIBLINGS[self.obstacle]} beside the other containers of its pod: {self.siblings}"
            )
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

_BESIDE_SIBLINGS = {
    Obstacle.CONFIGURATION: "no other pod holds anything; with this configuration it never fits",
    Obstacle.MACHINE: "without other pods it would not fit either",
}


# Why a policy refuses: one record for each reason. `str()` makes its sentence, which only the refusal as a whole shows.
#
# CPUs and NUMA nodes are kernel lists here. The wire raises errors of the same tree, and must not know the machine.


@dataclass(frozen=True, slots=True)
class CPUShortage:
    """Fewer CPUs are available than requested.

    Source: the sentence is the kubelet's, pkg/kubelet/cm/cpumanager/cpu_assignment.go.
    """

    requested: int
    available: int

    def __str__(self) -> str:
        return f"not enough cpus available to satisfy request: requested={self.requested}, available={self.available}"


@dataclass(frozen=True, slots=True)
class CacheShortage:
    """No uncore cache has as many CPUs available as requested (strictUncoreCache).

    Attributes:
        requested: CPUs.
        largest_hole: CPUs available in the cache that has most of them available.
        largest_cache: all CPUs of the largest cache.
    """

    requested: int
    largest_hole: int
    largest_cache: int

    def __str__(self) -> str:
        return (
            f"strictUncoreCache: {self.requested} cpus requested, but the uncore cache with most available has "
            f"{self.largest_hole} (the largest has {self.largest_cache} in all)"
        )

    @property
    def remedy(self) -> str:
        """What an operator can do."""
        if self.requested > self.largest_cache:
            return f"ask for {self.largest_cache} or fewer"
        fewer = f", or ask for {self.largest_hole} or fewer" if self.largest_hole else ""
        return f"wait until others end{fewer}"


@dataclass(frozen=True, slots=True)
class PartialCore:
    """The requested CPUs do not fill their last core.

    Attributes:
        requested: CPUs.
        threads: CPUs of a core.
        by_odd_counts: smtOddCounts refuses it, not full-pcpus-only.
        container: that asks for a slice of its pod; empty where the CPUs are those of the request itself.
    """

    requested: int
    threads: int
    by_odd_counts: bool = False
    container: str = ""

    def __str__(self) -> str:
        below = self.requested - self.requested % self.threads
        near = f"{below} or {below + self.threads}" if below else f"{self.threads}"
        core = f"not a multiple of the {self.threads} cpus per core"
        if self.by_odd_counts:
            core = f"{core if below else f'less than the {self.threads} cpus of a core'} and smtOddCounts is reject"
        whose = f" for container {self.container}" if self.container else ""
        return f"requested {self.requested} cpus{whose} is {core}; ask for {near}"


@dataclass(frozen=True, slots=True)
class WholeCoreShortage:
    """full-pcpus-only, and fewer CPUs are available outside of cores with reserved CPUs than requested."""

    requested: int
    available: int
    threads: int

    def __str__(self) -> str:
        return (
            f"requested {self.requested} cpus, but only {self.available} are available outside cores with reserved "
            f"cpus ({self.threads} cpus per core); ask for less or wait until others end"
        )


@dataclass(frozen=True, slots=True)
class HintNotAdmitted:
    """The topology policy does not admit the merged hint.

    Attributes:
        policy: `restricted` or `single-numa-node`.
        is_single: the policy needs one NUMA node for all resources.
        affinity: NUMA nodes of the merged hint, as a kernel list; empty where no NUMA nodes satisfy all requests.
        level_scope: `pod` or `container`, by which a pod with resources of its own is placed; empty for other pods.

    Source: the first words are the kubelet's, v1.36.2 pkg/kubelet/cm/topologymanager (scope.go).
    """

    policy: str
    is_single: bool
    affinity: str
    level_scope: str = ""

    def __str__(self) -> str:
        needed = "the fewest NUMA nodes that could hold everything, the same for all resources"
        if self.is_single:
            needed = "one NUMA node that holds everything"
        found = "there is none"
        if self.affinity:
            found = f"the best there is now is NUMA nodes {self.affinity}"
        return f"{_NOT_ADMITTED[self.level_scope]}: policy {self.policy} needs {needed}, and {found}"


_NOT_ADMITTED = {
    "": "resources cannot be allocated with topology locality",
    # The kubelet says "pod scope pod" under either scope.
    "pod": "pod scope pod with pod-level resources failed admission under pod-scope topology manager",
    "container": "pod scope pod with pod-level resources failed admission with a container-level topology manager",
}


@dataclass(frozen=True, slots=True)
class MixedMemory:
    """Memory over `nodes` would mix with allocations over other `groups` of NUMA nodes."""

    nodes: str
    groups: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"memory on NUMA nodes {self.nodes} together would mix with allocations on "
            f"{' and '.join(self.groups)}; a node serves one group of nodes at a time"
        )


@dataclass(frozen=True, slots=True)
class MemoryAmount:
    """How much of a resource is wanted, and free on NUMA nodes together."""

    resource: str
    wanted_bytes: int
    free_bytes: int
    nodes: str

    def __str__(self) -> str:
        wanted, free = format_bytes(self.wanted_bytes), format_bytes(self.free_bytes)
        return f"{self.resource}: {wanted} wanted, {free} free on {self.nodes}"


@dataclass(frozen=True, slots=True)
class MemoryNotPreferred:
    """The hint was preferred, and the NUMA nodes with enough free memory are not.

    Attributes:
        hinted: NUMA nodes of the hint; empty for any.
        nodes: the narrowest with enough free memory.
        amounts: wanted and free memory of these nodes.
    """

    hinted: str
    nodes: str
    amounts: tuple[MemoryAmount, ...]

    def __str__(self) -> str:
        hinted = f"NUMA nodes {self.hinted}" if self.hinted else "any NUMA nodes"
        return (
            f"memory has a preferred hint for {hinted}, but only NUMA nodes {self.nodes} have enough free: "
            f"{'; '.join(map(str, self.amounts))}"
        )


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """No NUMA nodes have enough free memory.

    Attributes:
        within: NUMA nodes that must be among them; empty for any.
        amounts: wanted and free memory of all NUMA nodes.
        mixed: why all NUMA nodes together do not do, where they have enough.
    """

    within: str
    amounts: tuple[MemoryAmount, ...]
    mixed: MixedMemory | None

    def __str__(self) -> str:
        where = f"that include {self.within} " if self.within else ""
        text = f"no NUMA nodes {where}have enough free memory: {'; '.join(map(str, self.amounts))}"
        return f"{text}; {self.mixed}" if self.mixed else text


@dataclass(frozen=True, slots=True)
class EmptyPodSharedPool:
    """The exclusive containers of a pod with resources of its own leave nothing to those that share.

    Source: the first sentence is the kubelet's, v1.36.2 pkg/kubelet/cm/cpumanager and memorymanager.

    Attributes:
        resource: `cpu`, `memory` or `hugepages-SIZE`.
        container: the first that would share nothing.
        taken: what the exclusive containers take: CPUs or bytes.
        amount: what the pod has.
        is_init: that container is a plain init container.
    """

    resource: str
    container: str
    taken: int
    amount: int
    is_init: bool

    def __str__(self) -> str:
        if self.is_init:
            what = "cpus" if self.resource == "cpu" else self.resource
            return f"pod rejected, pod has shared init containers but no {what} available for them"
        left = "cpus" if self.resource == "cpu" else "memory"
        return (
            f"pod rejected, sum of exclusive container {self.resource} requests equals pod budget, leaving no {left} for "
            "shared containers"
        )

    @property
    def remedy(self) -> str:
        """What an operator can do."""
        said = str if self.resource == "cpu" else format_bytes
        option = ", or `podSharedPoolRule: cpu-and-memory`" if self.resource not in {"cpu", "memory"} else ""
        return (
            f"container {self.container} shares what the exclusive containers leave, and they take {said(self.taken)} of "
            f"{said(self.amount)}; set more {self.resource} for the pod itself{option}"
        )


@dataclass(frozen=True, slots=True)
class PodMemoryShortage:
    """Less memory is free on all NUMA nodes together than the containers of the pod ask for."""

    pod: str
    resource: str
    wanted_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        return (
            f"pod {self.pod} asks for {format_bytes(self.wanted_bytes)} of {self.resource} in all, but only "
            f"{round_down(self.free_bytes)} are free; end others or ask for less"
        )


RefusalDetail: TypeAlias = (
    CPUShortage
    | CacheShortage
    | PartialCore
    | WholeCoreShortage
    | HintNotAdmitted
    | MixedMemory
    | MemoryNotPreferred
    | MemoryShortage
    | EmptyPodSharedPool
    | PodMemoryShortage
)


@dataclass(frozen=True, slots=True)
class FoundInPart:
    """Some of the CPUs were found on the NUMA nodes of the hint; the shortage is about the rest."""

    wanted: int
    found: int
    nodes: str

    def __str__(self) -> str:
        return f"{self.wanted} wanted in all, {self.found} found on NUMA nodes {self.nodes}"


@dataclass(frozen=True, slots=True)
class GrowsBeside:
    """The shortage is about CPUs to add to those that a running container holds."""

    held: str

    def __str__(self) -> str:
        return f"to grow beside {self.held}; end a container that holds some"


RefusalRemark: TypeAlias = FoundInPart | GrowsBeside


@dataclass(frozen=True, slots=True)
class AdmissionRefusal:
    """Why something is not admitted.

    Attributes:
        kind: what could not be had.
        detail: the request and what there is; a record where a policy refuses.
        findings: what each hint provider found, in its own words.
        remark: more about the request, or what an operator can do; follows the findings.
        requested: how many CPUs were asked for; 0 where it was not about a number of CPUs.
        available: how many there were.
        exact: False where a search for a better hint was cut short.
        container: the container that does not fit, where the whole pod was asked about; else empty.
        advice: what would have fitted; None where the refusal is not about room, or no alternative was tried.
        is_of_pod: it is about the resources of the pod itself, not about those of one container.
    """

    kind: RefusalKind
    detail: RefusalDetail | str
    findings: tuple[str, ...] = ()
    remark: RefusalRemark | str = ""
    requested: int = 0
    available: int = 0
    exact: bool = True
    container: str = ""
    advice: Advice | None = None
    is_of_pod: bool = False

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
        whose = f"container {self.container} of the pod: " if self.container else ""
        parts = [f"{self.reason}: {whose}{self.detail}", *(one for one in self.findings if one not in said)]
        if not self.exact:
            parts.append(
                "the search ran out of steps, so there may be a better one: ask again or ask for less"
            )
        if self.remark:
            parts.append(str(self.remark))
        return "; ".join(parts)

    def __str__(self) -> str:
        # The advice is never cut for the sake of the numbers: it tells the operator what to do.
        advice = f"; {self.advice}" if self.advice else ""
        return _cut(self.text_without(), LONGEST_REFUSAL - len(advice)) + advice

    @property
    def message(self) -> str:
        """The kubelet's message about a pod that it does not admit, and ours behind it."""
        ours = str(self).removeprefix(f"{self.reason}: ")
        match self.detail:
            case EmptyPodSharedPool():  # its sentence is the kubelet's
                return ours
            case str():
                return f"Allocate failed due to {ours}, which is unexpected"
        return f"{kubelet_words(self)}; {ours}"


def kubelet_words(refusal: AdmissionRefusal) -> str:
    """Return the kubelet's message about such a pod.

    Source: kubelet v1.37.2, pkg/kubelet/cm/admission/errors.go; topologymanager/topology_manager.go, scope_pod.go and
        scope_container.go; cpumanager/policy_static.go; memorymanager/policy_static.go.
    """
    match refusal.detail:
        case HintNotAdmitted(level_scope=scope):
            return _KUBELET_NOT_ADMITTED[scope]
        case PartialCore(requested, threads):
            return f"SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {threads}"
        case WholeCoreShortage(requested, available, threads):
            return (
                f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, "
                f"requested CPUs = {requested}, CPUs per core = {threads}"
            )
        case MixedMemory():
            why = "[memorymanager] preferred hint violates NUMA node allocation"
        case MemoryNotPreferred(hinted=hinted):
            which = "extended" if hinted else "default"
            why = f"[memorymanager] failed to find the {which} preferred hint"
        case MemoryShortage(within=within) if within:
            why = "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
        case MemoryShortage() | PodMemoryShortage():
            why = "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
        case _:
            why = str(refusal.detail)
    return f"Allocate failed due to {why}, which is unexpected"


_KUBELET_NOT_ADMITTED = {
    "": "Resources cannot be allocated with Topology locality",
    "pod": "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
    "container": "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
}


def _numa(nodes: str) -> str:
    return f"NUMA node{'' if nodes.isdigit() else 's'} {nodes}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
