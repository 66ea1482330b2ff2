"""Pods with resources of their own under pod scope, as the kubelet admits them: every rule written out, on plain sets.

Written from the facts about KEP-5526, on top of the slow readings of the two managers and of the merge. Every pod has one
answer: what each container gets, or the reason of the refusal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil

from nri_plugin.model.records import Amounts, ContainerFacts, Kind, PodFacts, QOSClass
from tests.oracles.assignment import CORE, CPU, NODE, SOCKET, Row, packed
from tests.oracles.distribution import distributed
from tests.oracles.memory import hints
from tests.oracles.memory_manager import RefusedError, SlowMemoryManager
from tests.oracles.merge import HintPair, members_of, merged

AFFINITY, POOL, SMT, OTHER = (
    "TopologyAffinityError",
    "EmptyPodSharedPoolError",
    "SMTAlignmentError",
    "UnexpectedAdmissionError",
)
STRICT = ("restricted", "single-numa-node")


class RejectedError(Exception):
    """The reason."""


@dataclass(frozen=True)
class Admitted:
    """What a pod has: its CPUs, those of each container, and its memory nodes."""

    block: frozenset[int]
    cpus: Mapping[str, frozenset[int]]
    mems: frozenset[int]


@dataclass
class SlowKubelet:
    """One node.

    Attributes:
        free: CPUs that may become exclusive.
        memory: None where its policy is None.
    """

    rows: Sequence[Row]
    reserved: frozenset[int]
    policy: str
    free: set[int]
    memory: SlowMemoryManager | None = None
    full: bool = False
    by_cache: bool = False
    distribute: bool = False
    spread: bool = False
    by_socket: bool = False
    distances: Mapping[int, Mapping[int, int]] | None = None
    held: dict[str, Admitted] = field(default_factory=dict)

    # ------------------------------------------------------------------ admission

    def add(self, facts: PodFacts) -> Admitted:
        """Admit a pod.

        Raises:
            RejectedError: the kubelet would not.
        """
        nodes = sorted(self.ids(NODE))
        cpu, memory = self.cpu_need(facts), self.memory_need(facts)
        pools = {name: _has_empty_pool(facts, name, size) for name, size in memory.items()}
        lists: list[Sequence[HintPair] | None] = [self.cpu_hints(facts, cpu)]
        found = [] if any(pools.values()) else self.memory_hints(memory)
        # Memory that fits nowhere is no preference, and is refused later.
        if memory and (found or any(pools.values())):
            lists += [[(_mask(one), preferred) for one, preferred in found]] * len(memory)
        mask, preferred = merged(self.policy, _mask(nodes), lists, self.distances)
        if self.policy in STRICT and not preferred:
            raise RejectedError(AFFINITY)
        where = None if mask is None else frozenset(members_of(mask))
        block = self.cpus_of(facts, cpu, where)
        cpus = self.parts(facts, block)
        mems = self.memory_of(facts, memory, (where, preferred), any(pools.values()))
        self.free -= block
        self.held[facts.uid] = Admitted(block, cpus, mems)
        return self.held[facts.uid]

    def remove(self, uid: str) -> None:
        """End a pod."""
        self.free |= self.held.pop(uid).block
        if self.memory is not None and (uid, "") in self.memory.blocks:
            self.memory.remove(uid, "")

    # ------------------------------------------------------------------ needs and hints

    def cpu_need(self, facts: PodFacts) -> int:
        amounts = facts.pod_resources or Amounts()
        is_whole = facts.qos is QOSClass.GUARANTEED and amounts.cpu_request_milli % 1000 == 0
        return amounts.cpu_request_milli // 1000 if is_whole else 0

    def memory_need(self, facts: PodFacts) -> dict[str, int]:
        amounts = facts.pod_resources or Amounts()
        if self.memory is None or facts.qos is not QOSClass.GUARANTEED:
            return {}
        told = {"memory": amounts.memory_request_bytes, **dict(amounts.hugepages)}
        return {name: size for name, size in told.items() if size}

    def cpu_hints(self, facts: PodFacts, count: int) -> list[HintPair] | None:
        if not count:
            return None
        if _has_empty_pool(facts, "cpu", count):
            return []
        nodes = sorted(self.ids(NODE))
        sets = [frozenset(one) for size in range(1, len(nodes) + 1) for one in combinations(nodes, size)]
        smallest = min((len(one) for one in sets if len(self.on(one)) >= count), default=len(nodes))
        sockets = ceil(smallest / (len(nodes) // len(self.ids(SOCKET)) or 1))
        found = []
        for one in sets:
            if len(self.on(one) & self.free) >= count:
                spanned = {row[SOCKET] for row in self.rows if row[NODE] in one}
                is_near = self.by_socket and len(spanned) == sockets
                found.append((_mask(one), len(one) == smallest or is_near))
        return found

    def memory_hints(self, need: Mapping[str, int]) -> list[tuple[frozenset[int], bool]]:
        of = self.memory
        if of is None or not need:
            return []
        free = {name: {node: of.free(name, node) for node in of.assignments} for name in of.allocatable}
        return hints(free, of.allocatable, of.assignments, of.groups, need)

    # ------------------------------------------------------------------ allocations

    def cpus_of(self, facts: PodFacts, count: int, where: frozenset[int] | None) -> frozenset[int]:
        """Raises RejectedError."""
        if not count:
            return frozenset()
        if _has_empty_pool(facts, "cpu", count):
            raise RejectedError(POOL)
        threads = len(self.rows) // len(self.ids(CORE))
        held_cores = {row[CORE] for row in self.rows if row[CPU] in self.reserved}
        whole = {cpu for cpu in self.free if self.row(cpu)[CORE] not in held_cores}
        if self.full and (count % threads or count > len(whole)):
            raise RejectedError(SMT)
        near = self.free if where is None else self.on(where) & self.free
        if where is not None and self.by_socket:
            sockets = {row[SOCKET] for row in self.rows if row[NODE] in where}
            near = {cpu for cpu in self.free if self.row(cpu)[SOCKET] in sockets}
        if len(self.free) < count:
            raise RejectedError(OTHER)
        first = self.chosen(near, min(count, len(near)))
        return frozenset(first | self.chosen(self.free - first, count - len(first)))

    def parts(self, facts: PodFacts, block: frozenset[int]) -> dict[str, frozenset[int]]:
        if not block:
            return {}
        sidecars: set[int] = set()
        parts: dict[str, set[int]] = {}
        sharers = []
        for one in facts.containers:
            count = _cpus(facts, one)
            if one.kind is Kind.INIT:
                parts[one.name] = (
                    self.chosen(set(block) - sidecars, count) if count else set(block) - sidecars
                )
            elif count and one.kind is Kind.SIDECAR:
                parts[one.name] = self.chosen(set(block) - sidecars, count)
                sidecars |= parts[one.name]
            elif not count:
                sharers.append(one.name)
        left = set(block) - sidecars
        for one in facts.containers:
            count = _cpus(facts, one)
            if one.kind is Kind.APP and count:
                parts[one.name] = self.chosen(left, count)
                left -= parts[one.name]
        return {name: frozenset(cpus) for name, cpus in {**parts, **dict.fromkeys(sharers, left)}.items()}

    def memory_of(
        self,
        facts: PodFacts,
        need: Mapping[str, int],
        hint: tuple[frozenset[int] | None, bool],
        is_empty: bool,
    ) -> frozenset[int]:
        """Raises RejectedError."""
        if self.memory is None or not need:
            return frozenset()
        if is_empty:
            raise RejectedError(POOL)
        try:
            self.memory.allocate(facts.uid, "", need, hint, init=False, earlier_inits=())
        except RefusedError:
            raise RejectedError(OTHER) from None
        return self.memory.blocks[facts.uid, ""][0][0]

    def chosen(self, among: set[int], count: int) -> set[int]:
        if self.distribute:
            threads = len(self.rows) // len(self.ids(CORE))
            group = threads if self.full else 1
            found = distributed(self.rows, among, count, group=group, spread=self.spread)
        else:
            found = packed(self.rows, among, count, by_cache=self.by_cache, spread=self.spread)
        assert found is not None
        return found

    # ------------------------------------------------------------------ the machine

    def ids(self, column: int) -> set[int]:
        return {row[column] for row in self.rows}

    def on(self, nodes: frozenset[int]) -> set[int]:
        return {row[CPU] for row in self.rows if row[NODE] in nodes}

    def row(self, cpu: int) -> Row:
        return next(row for row in self.rows if row[CPU] == cpu)


def _mask(nodes: Sequence[int] | frozenset[int]) -> int:
    return sum(1 << node for node in nodes)


def _is_eligible(facts: PodFacts, one: ContainerFacts) -> bool:
    told = one.amounts
    cpu, memory = told.cpu_request_milli, told.memory_request_bytes
    is_equal = cpu == told.cpu_limit_milli and memory == told.memory_limit_bytes
    return facts.qos is QOSClass.GUARANTEED and is_equal and cpu > 0 and memory > 0


def _cpus(facts: PodFacts, one: ContainerFacts) -> int:
    milli = one.amounts.cpu_request_milli
    return milli // 1000 if _is_eligible(facts, one) and milli % 1000 == 0 else 0


def _has_empty_pool(facts: PodFacts, resource: str, amount: int) -> bool:
    run, shares = 0, False
    for one in facts.containers:
        told = {"memory": one.amounts.memory_request_bytes, **dict(one.amounts.hugepages)}
        is_shared = not _cpus(facts, one) if resource == "cpu" else not _is_eligible(facts, one)
        own = 0 if is_shared else _cpus(facts, one) if resource == "cpu" else told.get(resource, 0)
        if one.kind is Kind.INIT:
            if is_shared and run >= amount:
                return True
        elif is_shared:
            shares = True
        else:
            run += own
    return shares and run >= amount
