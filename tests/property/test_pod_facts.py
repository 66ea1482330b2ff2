"""Laws of deciding with a pod's facts."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    MemoryManagerPolicy,
    Node,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
)
from nri_plugin.model.sets import NO_NODES
from nri_plugin.model.state import Amounts, ContainerFacts, Kind, PodFacts, QOSClass, State, allocation_key
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod
from tests.builders import GIB, container, machine, node, pod

MACHINE = machine(nodes=2, cores=4, threads=2, memory=8 * GIB)

nodes_of = st.builds(
    lambda **options: node(MACHINE, **options),
    topology_manager_policy=st.sampled_from(TopologyManagerPolicy),
    topology_manager_scope=st.sampled_from(TopologyManagerScope),
    memory_manager_policy=st.sampled_from(MemoryManagerPolicy),
    smt_odd_counts=st.sampled_from(SMTOddCounts),
    full_pcpus_only=st.booleans(),
)
amounts = st.builds(
    lambda cpu, memory: Amounts(cpu, cpu, memory * GIB, memory * GIB),
    st.sampled_from([3, 500, 1000, 1500, 2000, 3000, 4000, 6000]),
    st.integers(1, 6),
)

SHRUNK = tuple(
    ContainerFacts(f"c{number}", kind, Amounts(3, 3, memory * GIB, memory * GIB))
    for number, (kind, memory) in enumerate([(Kind.INIT, 4), (Kind.APP, 3), (Kind.APP, 6), (Kind.APP, 6)])
)
"""The second container takes over a part of what the first one leaves; the last one is refused."""


def containers(*kinds: Kind, most: int = 4) -> st.SearchStrategy[tuple[ContainerFacts, ...]]:
    """Init containers and sidecars first, as a specification has them."""
    rows = st.lists(st.tuples(st.sampled_from(kinds), amounts), min_size=1, max_size=most)
    return rows.map(
        lambda drawn: tuple(
            ContainerFacts(f"c{number}", kind, asked)
            for number, (kind, asked) in enumerate(sorted(drawn, key=lambda row: row[0] is Kind.APP))
        )
    )


def told(of: Pod, one: ContainerFacts, number: int = 0) -> Container:
    cpu, memory = one.amounts.cpu_request_milli / 1000, one.amounts.memory_limit_bytes
    return container(of, one.name, cpu=cpu, memory=memory, number=number)


def without_facts(decision: Decision) -> Decision:
    pods = {uid: replace(record, facts=None) for uid, record in decision.state.pods.items()}
    return replace(decision, state=replace(decision.state, pods=pods))


def play(on: Node, of: Pod, facts: PodFacts, *, informed: bool) -> list[Decision]:
    """Every container begins in its turn, init containers end before the next; a refused one is left out."""
    state = decide(on, State(), nri.RunPodSandbox(of)).state
    decisions = []
    for one in facts.containers:
        what = told(of, one)
        known = InformedCreate(nri.CreateContainer(of, what), facts=facts if informed else None)
        decisions.append(decide(on, state, known))
        state = decisions[-1].state
        if decisions[-1].refusal is None:
            for kind in (nri.PostCreateContainer, nri.StartContainer):
                state = decide(on, state, kind(of, what)).state
            if one.kind is Kind.INIT:
                state = decide(on, state, nri.StopContainer(of, what)).state
    return decisions


def same(one: Decision, other: Decision) -> None:
    assert str(one.refusal) == str(other.refusal)
    assert replace(without_facts(one), refusal=None) == replace(without_facts(other), refusal=None)


@given(nodes_of, containers(Kind.APP), st.sampled_from(["Guaranteed", "Burstable"]))
def test_facts_that_say_what_is_inferred_change_nothing(
    on: Node, rows: tuple[ContainerFacts, ...], qos: str
) -> None:
    whole = all(row.amounts.cpu_request_milli % 1000 == 0 for row in rows)
    fills = on.options.smt_odd_counts is not SMTOddCounts.ROUND_UP or len(rows) == 1
    if on.options.topology_manager_scope is TopologyManagerScope.POD and not (whole and fills):
        on = replace(on, options=replace(on.options, topology_manager_scope=TopologyManagerScope.CONTAINER))
    memory = sum(row.amounts.memory_limit_bytes for row in rows)
    of = pod("p1", qos, cpu=sum(row.amounts.cpu_request_milli for row in rows) / 1000)
    assert of.resources is not None
    of = replace(of, resources=replace(of.resources, memory_limit_bytes=memory))
    facts = PodFacts("p1", QOSClass(qos), rows)
    for one, other in zip(
        play(on, of, facts, informed=True), play(on, of, facts, informed=False), strict=True
    ):
        same(one, other)


def without_memory_of_inits(decision: Decision, facts: PodFacts) -> Decision:
    inits = {allocation_key(facts.uid, name) for name in facts.names(Kind.INIT)}
    allocations = {
        key: replace(held, mems=NO_NODES, memory=(), returned=()) if key in inits else held
        for key, held in decision.state.allocations.items()
    }
    return replace(decision, state=replace(decision.state, allocations=allocations))


@given(nodes_of, containers(Kind.INIT, Kind.APP))
@example(node(MACHINE, memory_manager_policy=MemoryManagerPolicy.STATIC), SHRUNK)
def test_init_containers_whose_end_is_told_in_time_need_no_facts_to_be_placed(
    on: Node, rows: tuple[ContainerFacts, ...]
) -> None:
    """Each container gets the same with and without facts. Only what ended init containers hold afterwards differs."""
    on = replace(on, options=replace(on.options, topology_manager_scope=TopologyManagerScope.CONTAINER))
    of, facts = pod(), PodFacts("p1", QOSClass.GUARANTEED, rows)
    for turn, (one, other) in enumerate(
        zip(play(on, of, facts, informed=True), play(on, of, facts, informed=False), strict=True)
    ):
        same(without_memory_of_inits(one, facts), without_memory_of_inits(other, facts))
        key = allocation_key(of.uid, rows[turn].name)
        assert one.state.allocations.get(key) == other.state.allocations.get(key)


@given(nodes_of, containers(Kind.INIT, Kind.APP))
def test_with_facts_the_start_of_a_container_gives_the_memory_of_ended_init_containers_back(
    on: Node, rows: tuple[ContainerFacts, ...]
) -> None:
    """Without facts they keep it. With facts it is remembered as theirs until the whole pod has its place."""
    on = replace(on, options=replace(on.options, topology_manager_scope=TopologyManagerScope.CONTAINER))
    of, facts = pod(), PodFacts("p1", QOSClass.GUARANTEED, rows)
    informed, inferred = (play(on, of, facts, informed=known) for known in (True, False))
    started = [turn for turn, decision in enumerate(informed) if decision.refusal is None]
    for turn, (one, other) in enumerate(zip(informed, inferred, strict=True)):
        assert all(held.returned == () for held in other.state.allocations.values())
        last = max((before for before in started if before < turn), default=0)
        for row in (row for row in rows[:last] if row.kind is Kind.INIT):
            key = allocation_key(of.uid, row.name)
            left, kept = one.state.allocations.get(key), other.state.allocations.get(key)
            assert (left is None) == (kept is None)
            if left is not None and kept is not None:
                assert (left.mems, left.memory) == (NO_NODES, ())
                is_placed = all(allocation_key(of.uid, each.name) in one.state.allocations for each in rows)
                assert left.returned == (() if is_placed else kept.memory)


@given(nodes_of, containers(*Kind, most=5), st.lists(st.integers(0, 4), max_size=6), st.booleans())
def test_what_sidecars_and_app_containers_were_promised_stays_theirs_whoever_ends_and_comes_back(
    on: Node, rows: tuple[ContainerFacts, ...], ended: list[int], is_told: bool
) -> None:
    of, facts = pod(), PodFacts("p1", QOSClass.GUARANTEED, rows)
    state, held = State(), {}
    for turn, one in enumerate((*rows, *(rows[number % len(rows)] for number in ended))):
        kind = one.kind
        if turn >= len(rows) and kind is Kind.INIT:
            continue
        known = facts if is_told or turn == 0 else None  # heard once is enough
        event = nri.CreateContainer(of, told(of, one, turn))
        decision = decide(on, state, InformedCreate(event, facts=known))
        assert decision.state.violations(on) == []
        if turn == 0 and decision.refusal is not None:
            return
        state = decision.state
        if decision.refusal is None:
            for step in (nri.PostCreateContainer, nri.StartContainer, nri.StopContainer):
                state = decide(on, state, step(of, event.container)).state
        for key, promised in held.items():
            assert state.allocations[key] == promised
        held = {
            key: promised
            for key, promised in state.allocations.items()
            if key in {f"p1/{name}" for name in facts.names(Kind.APP, Kind.SIDECAR)}
        }
