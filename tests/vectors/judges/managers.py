"""The kubelet's CPU and Memory Managers played with our rules, to replay recorded sequences."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

from nri_plugin.config.option_checks import GATES, option_values, refusals, socket_refusals
from nri_plugin.core.requests import pod_total
from nri_plugin.model.errors import (
    AdmissionError,
    ConfigError,
    EmptyPodSharedPoolError,
    InsufficientCPUsError,
    InsufficientMemoryError,
    SMTAlignmentError,
    TopologyAffinityError,
)
from nri_plugin.model.option_rows import CPU_MANAGER
from nri_plugin.model.options import Options, TopologyManagerPolicy
from nri_plugin.model.quantity import parse_bytes, parse_cpu_milli
from nri_plugin.model.records import MemoryBlock
from nri_plugin.model.refusals import AdmissionRefusal, RefusalKind
from nri_plugin.model.sets import CPUSet
from nri_plugin.policy.cpu_assignment import CPUTables
from nri_plugin.policy.cpu_policy import (
    allocate_cpus,
    cpu_hint_sets,
    exclusive_count,
    take_cpus,
)
from nri_plugin.policy.hints import Provider
from nri_plugin.policy.memory_assignment import allocate_memory, memory_hint_sets
from nri_plugin.policy.memory_state import (
    MemoryMachine,
    memory_state,
    shrink_reused,
)
from nri_plugin.policy.merge import MergedHint
from tests.oracles.kubelet_start import check_reserved_cpus
from tests.oracles.manager_steps import reusable_after, reuse_after, reuse_without, without_blocks

ERROR_CLASSES = (
    (r"SMT Alignment Error", SMTAlignmentError),
    (r"not enough cpus available", InsufficientCPUsError),
    (r"TopologyAffinityError|Resources cannot be allocated", TopologyAffinityError),
    (
        r"\[memorymanager\] failed to (get the default NUMA|find NUMA nodes to extend)",
        InsufficientMemoryError,
    ),
    (r"\[memorymanager\] (failed to find the|preferred hint violates)", AdmissionError),
    (r"(\[\w+\] )?pod rejected, (pod has shared|sum of exclusive)", EmptyPodSharedPoolError),
    (r"(\[\w+\] )?pod rejected, largest exclusive init container", InsufficientCPUsError),
)
"""Start of the kubelet's text, and our class of the same kind."""


def same_error(
    ours: AdmissionError | AdmissionRefusal | None, recorded: str, *, compares_numbers: bool = True
) -> bool:
    """Whether ours is of the recorded kind, with the recorded numbers where both have them and they are to be compared."""
    if ours is None or not recorded:
        return ours is None and not recorded
    recorded = recorded.removeprefix("Allocate failed due to ")
    kinds = [error.kind for start, error in ERROR_CLASSES if re.match(start, recorded)]
    if not kinds or ours.kind is not kinds[0]:
        return False
    if kinds[0] is RefusalKind.EMPTY_POD_SHARED_POOL:
        # The kubelet names a random one of several exhausted resources.
        return _without_resource(recorded) in _without_resource(str(ours))
    if compares_numbers and kinds[0] in (RefusalKind.SMT_ALIGNMENT, RefusalKind.CPUS):
        return set(re.findall(r"\d+", recorded)) <= set(re.findall(r"\d+", str(ours)))
    return True


def _without_resource(text: str) -> str:
    sentence = re.sub(r"^.*?(?=pod rejected)", "", text).removesuffix(", which is unexpected")
    return re.sub(r"\b(cpus?|memory|hugepages-\w+)\b", "RESOURCE", sentence)


def options_of(given: Mapping[str, str] | None) -> Options:
    """The CPU Manager's options; a ConfigError where it refuses them."""
    # The recordings were made with every option in sight.
    options = Options(**option_values(CPU_MANAGER, given or {}, dict.fromkeys(GATES, True)))
    _refuse(detail for _, detail in refusals(options))
    return options


def _refuse(details: Iterable[str]) -> None:
    for detail in details:
        raise ConfigError("", detail)


def check_start(case: Mapping[str, Any], tables: CPUTables) -> None:
    """What the CPU Manager looks at when it is made; a ConfigError where it refuses."""
    options = options_of(case.get("options"))
    if options.align_by_socket:
        policy = TopologyManagerPolicy(case["tm_policy"])
        _refuse(detail for _, detail in refusals(replace(options, topology_manager_policy=policy)))
        _refuse(socket_refusals(1, tables.nodes_per_socket))  # the counters as the reference was told them
    listed, count = reserved_of(case)
    check_reserved_cpus(frozenset(map(int, listed)), frozenset(map(int, CPUSet(tables.online))), count)


def reserved_of(case: Mapping[str, Any]) -> tuple[CPUSet, int]:
    """The reserved CPUs by number, if they are listed, and how many there are to be."""
    listed = CPUSet.parse(case.get("reserved_cpus") or "")
    return listed, case.get("num_reserved", len(listed))


def same_refusal(ours: str, recorded: str) -> bool:
    """Whether both refuse to start, and ours says what the reference says and then what to do."""
    words = re.sub(r"^\[\w+\] ", "", recorded)
    words = re.sub(r"size of \S* did not", "size of .* did not", re.escape(words).replace("\\ ", " "))
    return bool(ours) == bool(recorded) and re.match(words, ours) is not None


@dataclass(frozen=True)
class Container:
    """A container of a recorded step."""

    name: str
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    init: bool
    restartable: bool

    @property
    def plain_init(self) -> bool:
        return self.init and not self.restartable

    @property
    def memory(self) -> dict[str, int]:
        return {
            name: parse_bytes(text)
            for name, text in self.requests.items()
            if name == "memory" or name.startswith("hugepages-")
        }

    @property
    def is_guaranteed(self) -> bool:
        pairs = [(self.requests.get(name), self.limits.get(name)) for name in ("cpu", "memory")]
        return all(one == other and one is not None and parse_cpu_milli(one) > 0 for one, other in pairs)


def amounts_in(told: Mapping[str, Any]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The requests and limits of a container; absent limits equal the requests, null is none."""
    requests = told.get("requests") or {}
    return requests, told.get("limits", requests) or {}


@dataclass(frozen=True)
class Pod:
    """A pod of a recorded step, containers in the order they start.

    Attributes:
        has_own_resources: resources are given for the pod as a whole; then neither manager does anything for it.
    """

    uid: str
    containers: tuple[Container, ...]
    has_own_resources: bool = False

    @classmethod
    def of(cls, step: Mapping[str, Any]) -> "Pod":
        recorded = [(c, True) for c in step.get("init_containers") or ()] + [
            (c, False) for c in step.get("containers") or ()
        ]
        return cls(
            step["pod"],
            tuple(
                Container(c["name"], *amounts_in(c), init, bool(c.get("restartable"))) for c, init in recorded
            ),
            bool(step.get("pod_resources")),
        )

    @property
    def guaranteed(self) -> bool:
        return all(container.is_guaranteed for container in self.containers)

    @property
    def has_memory(self) -> bool:
        """Whether the Memory Manager does anything for it."""
        return self.guaranteed and not self.has_own_resources

    def total(self, amounts: Mapping[str, int]) -> int:
        inits = [(amounts[c.name], c.restartable) for c in self.containers if c.init]
        return pod_total(inits, [amounts[c.name] for c in self.containers if not c.init])


@dataclass
class CPUManager:
    """Exclusive CPUs by (pod, container), and what each pod may reuse.

    Attributes:
        unknown: CPUs on offer that the machine does not have: a state may name them.
        ended: containers whose CPUs later ones of their pod may have too.
    """

    tables: CPUTables
    reserved: CPUSet
    options: Options
    held: dict[tuple[str, str], CPUSet] = field(default_factory=dict)
    reusable: dict[str, CPUSet] = field(default_factory=dict)
    unknown: CPUSet = field(default_factory=CPUSet)
    ended: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, case: Mapping[str, Any], tables: CPUTables) -> "CPUManager":
        options, (listed, count) = options_of(case.get("options")), reserved_of(case)
        return cls(tables, listed or take_cpus(tables, CPUSet(tables.online), count, options), options)

    @property
    def default(self) -> CPUSet:
        taken = 0
        for cpus in self.held.values():
            taken |= cpus.mask
        kept = self.reserved.mask if self.options.strict_cpu_reservation else 0
        return CPUSet((self.tables.online | self.unknown.mask) & ~taken & ~kept)

    @property
    def given_twice(self) -> str:
        """Who has CPUs that somebody else has too, in words; empty when nobody. What passes on within a pod may be."""
        for (one, mine), (other, theirs) in combinations(self.held.items(), 2):
            passes_on = one[0] == other[0] and not self.ended.isdisjoint((one, other))
            if not passes_on and not mine.isdisjoint(theirs):
                return f"CPUs {mine & theirs} are given to {'/'.join(one)} and {'/'.join(other)}"
        return ""

    @property
    def available(self) -> CPUSet:
        return self.default - self.reserved

    def count(self, pod: Pod, container: Container) -> int:
        if pod.has_own_resources:
            return 0
        milli = parse_cpu_milli(container.requests.get("cpu", "0"))
        return exclusive_count(milli, guaranteed=pod.guaranteed)

    def hint_sets(self, pod: Pod, container: Container) -> Provider:
        return cpu_hint_sets(
            self.tables,
            self.count(pod, container),
            self.available,
            reusable=self.reusable.get(pod.uid, CPUSet()),
            held=self.held.get((pod.uid, container.name), CPUSet()),
            align_by_socket=self.options.align_by_socket,
        )

    def pod_hint_sets(self, pod: Pod) -> Provider:
        counts = {container.name: self.count(pod, container) for container in pod.containers}
        total = pod.total(counts)
        assigned = CPUSet()
        for container in pod.containers:
            cpus = self.held.get((pod.uid, container.name))
            if cpus is not None and len(cpus) != counts[container.name]:
                return cpu_hint_sets(self.tables, len(cpus) + 1, self.available, held=cpus)
            assigned |= cpus or CPUSet()
        reusable = self.reusable.get(pod.uid, CPUSet()) | assigned
        held = assigned if len(assigned) == total else CPUSet()
        return cpu_hint_sets(
            self.tables,
            total,
            self.available,
            reusable=reusable,
            held=held,
            align_by_socket=self.options.align_by_socket,
        )

    def allocate(self, pod: Pod, container: Container, merged: MergedHint) -> None:
        key = pod.uid, container.name
        cpus = allocate_cpus(
            self.tables,
            self.count(pod, container),
            self.available,
            merged.affinity,
            reserved=self.reserved,
            reusable=self.reusable.get(pod.uid, CPUSet()),
            held=self.held.get(key, CPUSet()),
            options=self.options,
        )
        if not cpus:
            return
        self.held[key] = cpus
        if container.plain_init:
            self.ended.add(key)
        before = self.reusable.get(pod.uid, CPUSet())
        self.reusable = {pod.uid: reusable_after(before, cpus, init=container.plain_init)}

    def remove(self, uid: str, name: str) -> None:
        self.held.pop((uid, name), None)


@dataclass
class MemoryManager:
    """Blocks by (pod, container); amounts promised, as they came to be."""

    machine: MemoryMachine
    reuse_outlives: bool = False
    blocks: dict[tuple[str, str], tuple[MemoryBlock, ...]] = field(default_factory=dict)
    plain_inits: dict[str, list[str]] = field(default_factory=dict)
    reuse: dict[str, Mapping[tuple[int, str], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = memory_state(self.machine)

    def hint_sets(self, pod: Pod, container: Container) -> Provider:
        if not pod.has_memory:
            return None
        held = self.blocks.get((pod.uid, container.name), ())
        return memory_hint_sets(self.state, container.memory, held=held, reuse=self.reuse.get(pod.uid, {}))

    def pod_hint_sets(self, pod: Pod) -> Provider:
        if not pod.has_memory:
            return None
        names = {name for c in pod.containers if not c.init for name in c.memory}
        request = {n: pod.total({c.name: c.memory.get(n, 0) for c in pod.containers}) for n in sorted(names)}
        held = next((b for c in pod.containers if (b := self.blocks.get((pod.uid, c.name)))), ())
        return memory_hint_sets(self.state, request, held=held, reuse=self.reuse.get(pod.uid, {}))

    def allocate(self, pod: Pod, container: Container, merged: MergedHint) -> None:
        key = pod.uid, container.name
        if not pod.has_memory:
            return
        before = self.reuse.get(pod.uid, {})
        if key in self.blocks:
            self.reuse = {pod.uid: reuse_after(before, self.blocks[key], init=container.plain_init)}
            return
        grant = allocate_memory(self.state, container.memory, merged, reuse=before)
        self.state = grant.state
        self.reuse = {pod.uid: reuse_after(before, grant.blocks, init=container.plain_init)}
        self._shrink(pod, container, grant.blocks)
        self.blocks[key] = grant.blocks

    def _shrink(self, pod: Pod, container: Container, blocks: Sequence[MemoryBlock]) -> None:
        self.plain_inits[pod.uid] = [c.name for c in pod.containers if c.plain_init]
        earlier = pod.containers[: pod.containers.index(container)]
        held = [c.name for c in earlier if c.plain_init and (pod.uid, c.name) in self.blocks]
        shrunk = shrink_reused([self.blocks[pod.uid, name] for name in held], blocks)
        self.blocks |= {(pod.uid, name): kept for name, kept in zip(held, shrunk, strict=True)}

    def remove(self, uid: str, name: str) -> None:
        blocks = self.blocks.pop((uid, name), ())
        self.state = without_blocks(self.state, blocks)
        if uid in self.reuse and name in self.plain_inits.get(uid, ()) and not self.reuse_outlives:
            self.reuse[uid] = reuse_without(self.reuse[uid], blocks)

    def shown(self) -> dict[str, list]:
        """As the recordings show the machine: node -> [assignments, group, {resource: [promised, free]}]."""
        state = self.state
        return {
            str(node): [
                state.assignments[node],
                [other for other in self.machine.nodes if state.group[node] >> other & 1],
                {
                    name: [state.allocated.get((node, name), 0), state.free(name)[node]]
                    for name in self.machine.allocatable
                },
            ]
            for node in self.machine.nodes
        }


def shown_blocks(blocks: Sequence[MemoryBlock]) -> list[dict]:
    return [{"type": b.resource, "size": b.size_bytes, "numa": list(b.nodes)} for b in blocks]


def shown_hint_sets(provider: Provider) -> dict[str, list] | None:
    """As the recordings show hints: null without a hint set, {} when memory fits nowhere."""
    if provider is None:
        return None
    return {w.resource: [list(hint) for hint in w.hints] for w in provider if w.hints is not None}
