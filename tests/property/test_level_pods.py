"""Random pods with resources of their own on random nodes: the engine decides as a slow reading of the kubelet's rules.

`compare` plays one life; a seed gives the same one each time. Under container scope such a pod is an ordinary one whose
containers without a claim ask for nothing.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    MemoryManagerPolicy,
    Node,
    Options,
    ReservedMemory,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.records import (
    Allocation,
    Amounts,
    ContainerFacts,
    Kind,
    PodFacts,
    QOSClass,
    allocation_key,
)
from nri_plugin.model.sets import NO_NODES, CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.policy.pod_level import is_eligible
from nri_plugin.wire.nri import events as nri
from tests.builders import container, pod
from tests.oracles.distribution import NeverReturnsError
from tests.oracles.level_pods import AFFINITY, OTHER, POOL, SMT, Admitted, RejectedError, SlowKubelet
from tests.oracles.memory_manager import SlowMemoryManager
from tests.topology_rows import topology_of_rows

PAGE = 2 << 20
PODS = 12
POLICIES = [one for one in TopologyManagerPolicy if one is not TopologyManagerPolicy.NONE]


def drawn_rows(rng: Random) -> list[list[int]]:
    """A machine whose cores and sockets are all alike; others the kubelet itself miscounts."""
    sockets, nodes_a_socket = rng.choice([1, 2, 2]), rng.choice([1, 2, 2])
    caches, cores, threads = rng.choice([1, 2]), rng.choice([2, 3, 4]), rng.choice([1, 2, 2])
    nodes = sockets * nodes_a_socket
    total = nodes * caches * cores
    is_interleaved = rng.random() < 0.5
    rows = []
    for core in range(total):
        node, cache = core // (caches * cores), core // cores
        ids = [
            thread * total + core if is_interleaved else core * threads + thread for thread in range(threads)
        ]
        rows += [[cpu, ids[0], node // nodes_a_socket, node, cache] for cpu in ids]
    return sorted(rows)


class Nodes:
    """A node of ours and the slow one, alike."""

    def __init__(self, rng: Random) -> None:
        rows = drawn_rows(rng)
        numbers = sorted({row[3] for row in rows})
        kind = rng.choice(["packed", "cache", "distribute", "spread", "full", "full-distribute", "socket"])
        policy = rng.choice(POLICIES)
        if kind == "socket" and policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
            kind = "packed"
        has_memory = rng.random() < 0.7
        # Some nodes beside the first have CPUs and no memory.
        bare = {number for number in numbers[1:] if rng.random() < 0.2}
        memory = {number: 0 if number in bare else rng.randint(20, 60) * PAGE for number in numbers}
        pages = {number: 0 if number in bare else rng.randint(0, 6) for number in numbers}
        distances = {
            one: {other: 10 if one == other else rng.choice([12, 21]) for other in numbers} for one in numbers
        }
        is_closest = rng.random() < 0.3
        made = topology_of_rows(
            rows,
            memory_bytes=memory,
            distances={one: [distances[one][other] for other in numbers] for one in numbers},
        )
        self.has_pages = has_memory and rng.random() < 0.5
        if self.has_pages:
            made = replace(
                made, nodes=tuple(replace(one, hugepages=((2048, pages[one.id]),)) for one in made.nodes)
            )
        reserved = CPUSet.of(rows[0][0])
        options = Options(
            topology_manager_policy=policy,
            topology_manager_scope=TopologyManagerScope.POD,
            memory_manager_policy=MemoryManagerPolicy.STATIC if has_memory else MemoryManagerPolicy.NONE,
            reserved_memory=(ReservedMemory(0, "memory", PAGE),) if has_memory else (),
            full_pcpus_only=kind.startswith("full"),
            prefer_align_cpus_by_uncore_cache=kind == "cache",
            distribute_cpus_across_numa=kind.endswith("distribute"),
            distribute_cpus_across_cores=kind == "spread",
            align_by_socket=kind == "socket",
            prefer_closest_numa_nodes=is_closest,
            pod_level_managers=True,
        )
        self.on, self.state = Node(made, options, reserved), State()
        self.slow = SlowKubelet(
            rows,
            frozenset(reserved),
            str(policy),
            {row[0] for row in rows} - set(reserved),
            full=options.full_pcpus_only,
            by_cache=options.prefer_align_cpus_by_uncore_cache,
            distribute=options.distribute_cpus_across_numa,
            spread=options.distribute_cpus_across_cores,
            by_socket=options.align_by_socket,
            distances=distances if is_closest else None,
        )
        if has_memory:
            allocatable = {
                number: memory[number]
                - (PAGE if number == 0 else 0)
                - (pages[number] * PAGE if self.has_pages else 0)
                for number in numbers
            }
            tables = {"memory": allocatable}
            if self.has_pages:
                tables["hugepages-2Mi"] = {number: pages[number] * PAGE for number in numbers}
            self.slow.memory = SlowMemoryManager(tables)
        self.size = len(rows)
        self.reasons: list[str] = []

    # ------------------------------------------------------------------ pods

    def drawn_pod(self, rng: Random, uid: str) -> PodFacts:
        """As the API server hands it over: its containers never ask for more than the pod has."""
        kinds = sorted(
            (rng.choice([Kind.INIT, Kind.SIDECAR, Kind.APP]) for _ in range(rng.randint(0, 4))),
            key=lambda kind: kind is Kind.APP,
        )
        rows = [
            self.drawn_container(rng, f"c{number}", kind) for number, kind in enumerate([*kinds, Kind.APP])
        ]
        cpu = self.peak(rows, lambda one: one.cpu_request_milli)
        memory = self.peak(rows, lambda one: one.memory_request_bytes)
        huge = self.peak(rows, lambda one: sum(size for _, size in one.hugepages))
        cpu = -(-cpu // 1000) * 1000 + rng.choice([0, 0, 1000, 2000, 3000, 500])
        cpu, memory = cpu or 1000, (memory + rng.choice([0, 1, 4]) * PAGE) or PAGE
        huge += rng.choice([0, 1]) * PAGE if huge or (self.has_pages and rng.random() < 0.1) else 0
        pages = (("hugepages-2Mi", huge),) if huge else ()
        is_guaranteed = rng.random() < 0.93
        limits = (cpu, memory) if is_guaranteed else (cpu + 1000, memory)
        total = Amounts(cpu, limits[0], memory, limits[1], pages)
        return PodFacts(uid, QOSClass.GUARANTEED if is_guaranteed else QOSClass.BURSTABLE, tuple(rows), total)

    def drawn_container(self, rng: Random, name: str, kind: Kind) -> ContainerFacts:
        cpu = 1000 * rng.randint(1, max(1, self.size // 6)) if rng.random() < 0.8 else 500
        memory = rng.randint(1, 8) * PAGE
        pages = (
            (("hugepages-2Mi", rng.randint(1, 2) * PAGE),) if self.has_pages and rng.random() < 0.3 else ()
        )
        given = rng.choice(["equal", "equal", "nothing", "cpu", "memory", "less"])
        amounts = {
            "equal": Amounts(cpu, cpu, memory, memory, pages),
            "nothing": Amounts(),
            "cpu": Amounts(cpu, cpu),
            "memory": Amounts(0, 0, memory, memory),
            "less": Amounts(cpu, cpu, memory, memory + PAGE),
        }[given]
        return ContainerFacts(name, kind, amounts)

    @staticmethod
    def peak(rows: Sequence[ContainerFacts], amount: Callable[[Amounts], int]) -> int:
        running = most = 0
        for one in rows:
            if one.kind is Kind.INIT:
                most = max(most, running + amount(one.amounts))
            else:
                running += amount(one.amounts)
        return max(most, running)

    # ------------------------------------------------------------------ both

    def add(self, facts: PodFacts) -> str:
        """What differs, or nothing."""
        try:
            theirs: Admitted | str = self.slow.add(facts)
        except RejectedError as error:
            theirs = str(error)
        of = pod(facts.uid, str(facts.qos))
        message = container(of, facts.containers[0].name)
        decision = decide(self.on, self.state, InformedCreate(nri.CreateContainer(of, message), facts=facts))
        self.state = decision.state
        assert violations(self.on, self.state) == []
        self.reasons.append(decision.refusal.reason if decision.refusal else "")
        ours = decision.refusal.reason if decision.refusal else self.shown(facts)
        return "" if ours == theirs else f"{facts}: ours {decision.refusal or ours}, theirs {theirs}"

    def shown(self, facts: PodFacts) -> Admitted:
        block = self.state.allocations.get(allocation_key(facts.uid, ""), Allocation())
        cpus = {
            one.name: frozenset(self.state.allocations[allocation_key(facts.uid, one.name)].cpus)
            for one in facts.containers
            if block.cpus
        }
        nodes = NO_NODES
        for one in block.memory:
            nodes |= one.nodes
        assert block.mems == nodes & self.on.topology.nodes_with_memory
        return Admitted(frozenset(block.cpus), cpus, frozenset(nodes))

    def remove(self, uid: str) -> None:
        self.slow.remove(uid)
        of = pod(uid)
        self.state = decide(self.on, self.state, nri.StopPodSandbox(of)).state
        self.state = decide(self.on, self.state, nri.RemovePodSandbox(of)).state


def compare(seed: int) -> tuple[str, list[str]]:
    """What differs in a life, or nothing; and the reasons of the answers, empty where a pod was admitted."""
    rng = Random(seed)
    nodes = Nodes(rng)
    there: list[str] = []
    for number in range(PODS):
        facts = nodes.drawn_pod(rng, f"p{number}")
        try:
            wrong = nodes.add(facts)
        except NeverReturnsError:
            break
        if wrong:
            return f"seed {seed}, pod {number}: {wrong}", nodes.reasons
        if facts.uid in nodes.slow.held:
            there.append(facts.uid)
        if there and rng.random() < 0.3:
            gone = there.pop(rng.randrange(len(there)))
            if len(nodes.slow.held[gone].mems) > 1:
                break  # the kubelet gives memory back on other nodes than it took it from
            nodes.remove(gone)
    return "", nodes.reasons


def test_pods_are_admitted_and_divided_as_by_the_slow_reading() -> None:
    answers: Counter[str] = Counter()
    for seed in range(60):
        wrong, reasons = compare(seed)
        assert wrong == ""
        answers.update(reasons)
    assert answers.keys() == {"", AFFINITY, POOL, SMT, OTHER}
    assert answers[""] > 300


def stripped(facts: PodFacts) -> PodFacts:
    """The ordinary pod that gets the same under container scope."""
    rows = (one if is_eligible(facts, one) else replace(one, amounts=Amounts()) for one in facts.containers)
    return replace(facts, containers=tuple(rows), pod_resources=None)


def test_under_container_scope_claims_are_placed_as_those_of_ordinary_pods() -> None:
    admitted = refused = 0
    for seed in range(60):
        rng = Random(seed)
        nodes = Nodes(rng)
        policy = rng.choice(list(TopologyManagerPolicy))
        if nodes.on.options.align_by_socket and policy is TopologyManagerPolicy.SINGLE_NUMA_NODE:
            continue
        options = dataclasses.replace(
            nodes.on.options,
            topology_manager_scope=TopologyManagerScope.CONTAINER,
            topology_manager_policy=policy,
        )
        on, states = dataclasses.replace(nodes.on, options=options), [State(), State()]
        for number in range(PODS):
            facts = nodes.drawn_pod(rng, f"p{number}")
            if facts.qos is not QOSClass.GUARANTEED:
                continue
            of = pod(facts.uid)
            creation = nri.CreateContainer(of, container(of, facts.containers[0].name))
            both = [
                decide(on, state, InformedCreate(creation, facts=known))
                for state, known in zip(states, (facts, stripped(facts)), strict=True)
            ]
            states = [one.state for one in both]
            assert states[0].allocations == states[1].allocations, (seed, facts)
            refusals = [one.refusal.reason if one.refusal else "" for one in both]
            assert refusals[0] == refusals[1]
            admitted, refused = admitted + (not refusals[0]), refused + bool(refusals[0])
    assert min(admitted, refused) > 50
