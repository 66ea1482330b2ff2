"""Laws of deciding with a pod's facts."""

import dataclasses

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_plugin.core.decision import Decision, InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.model.options import (
    MemoryManagerPolicy,
    Node,
    SMTOddCounts,
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
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
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


def play(on: Node, of: Pod, facts: PodFacts, *, informed: bool) -> list[Decision]:
    """The decision about every container. Every container begins in its turn, init containers end before the next; a refused one is left out."""
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


def held_by(decision: Decision, facts: PodFacts) -> dict[str, Allocation]:
    """What sidecars and app containers hold; init containers keep and pass on otherwise without facts."""
    keys = {allocation_key(facts.uid, name) for name in facts.names(Kind.APP, Kind.SIDECAR)}
    return {key: held for key, held in decision.state.allocations.items() if key in keys}


@given(nodes_of, containers(Kind.INIT, Kind.APP))
@example(node(MACHINE, memory_manager_policy=MemoryManagerPolicy.STATIC), SHRUNK)
def test_a_pod_is_admitted_as_a_whole_where_each_container_would_be_in_its_turn(
    on: Node, rows: tuple[ContainerFacts, ...]
) -> None:
    on = dataclasses.replace(
        on, options=dataclasses.replace(on.options, topology_manager_scope=TopologyManagerScope.CONTAINER)
    )
    of, facts = pod(), PodFacts("p1", QOSClass.GUARANTEED, rows)
    whole, in_turn = (play(on, of, facts, informed=known) for known in (True, False))
    assert (whole[0].refusal is None) == all(decision.refusal is None for decision in in_turn)
    if whole[0].refusal is None:
        assert held_by(whole[-1], facts) == held_by(in_turn[-1], facts)


@given(nodes_of, containers(*Kind, most=5))
def test_the_first_container_decides_for_all_of_its_pod(on: Node, rows: tuple[ContainerFacts, ...]) -> None:
    of, facts = pod(), PodFacts("p1", QOSClass.GUARANTEED, rows)
    first, *later = play(on, of, facts, informed=True)
    if first.refusal is not None:
        assert first.state.allocations == {}
        return
    assert [decision.refusal for decision in later] == [None] * len(later)
    for decision in later:
        assert held_by(decision, facts) == held_by(first, facts)
        cpus = {key: held.cpus for key, held in decision.state.allocations.items()}
        assert cpus == {key: held.cpus for key, held in first.state.allocations.items()}


@given(nodes_of, containers(*Kind, most=5), st.integers(0, 4))
def test_a_container_that_does_not_fit_is_named_and_nothing_is_allocated(
    on: Node, rows: tuple[ContainerFacts, ...], number: int
) -> None:
    large = Amounts(40_000, 40_000, GIB, GIB)
    number %= len(rows)
    rows = (*rows[:number], replace(rows[number], amounts=large), *rows[number + 1 :])
    of, facts = pod(), PodFacts("p1", QOSClass.GUARANTEED, rows)
    event = InformedCreate(nri.CreateContainer(of, told(of, rows[0])), facts=facts)
    before = decide(on, State(), nri.RunPodSandbox(of)).state
    decision = decide(on, before, event)
    assert decision.refusal is not None
    assert (decision.state.allocations, decision.state.containers) == (before.allocations, before.containers)
    assert len(rows) == 1 or decision.refusal.container in {row.name for row in rows}


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
        assert violations(on, decision.state) == []
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
