"""Laws of pods with resources of their own, against a walk through every moment of their lives."""

from hypothesis import example, given
from hypothesis import strategies as st

from nri_plugin.model.options import Node
from nri_plugin.model.records import Amounts, ContainerFacts, Kind, allocation_key
from nri_plugin.model.refusals import RefusalKind
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.policy.pod_level import memory_of
from nri_plugin.wire.nri import events as nri
from tests.builders import GIB, machine
from tests.oracles.whole_pod import has_empty_pool, moments, needs, owns
from tests.whole_pods import PodLife, part, pod_scope, whole

MACHINE = machine(nodes=2, cores=5, threads=2, memory=16 * GIB)
"""18 CPUs beside the two that are reserved: room for every pod that is drawn."""

ONLY_INIT_SHARES = part("mesh", 4, Kind.SIDECAR), part("setup", 0.5, Kind.INIT)
"""The sidecar leaves no CPU to the init container that starts beside it."""

nodes_of = st.builds(
    lambda **options: pod_scope(topology=MACHINE, **options),
    distribute_cpus_across_numa=st.booleans(),
    strict_cpu_reservation=st.booleans(),
)
amounts = st.builds(
    lambda milli, memory, limits: Amounts(milli, milli * limits, memory * GIB, memory * GIB),
    st.sampled_from([500, 1000, 1000, 2000, 3000, 1500]),
    st.integers(1, 3),
    st.sampled_from([1, 1, 1, 2]),
)
resources = st.builds(whole, st.sampled_from([1, 2, 3, 4, 5, 6, 8, 4.5]), st.integers(1, 9).map(GIB.__mul__))


@st.composite
def containers(draw) -> tuple[ContainerFacts, ...]:
    """Init containers and sidecars first, as a specification has them."""
    drawn = draw(st.lists(st.tuples(st.sampled_from(Kind), amounts), min_size=1, max_size=5))
    in_order = sorted(drawn, key=lambda row: row[0] is Kind.APP)
    return tuple(ContainerFacts(f"c{number}", kind, asked) for number, (kind, asked) in enumerate(in_order))


def cpus_of(life: PodLife, name: str) -> CPUSet:
    held = life.state.allocations.get(allocation_key(life.facts.uid, name))
    return held.cpus if held else CPUSet()


def union(*sets: CPUSet) -> CPUSet:
    return CPUSet(sum(1 << cpu for cpu in {cpu for one in sets for cpu in one}))


@given(nodes_of, containers(), resources)
@example(pod_scope(topology=MACHINE), ONLY_INIT_SHARES, whole(4))
def test_a_pod_is_admitted_where_no_moment_of_its_life_lacks_a_cpu_or_a_byte(
    on: Node, rows: tuple[ContainerFacts, ...], own: Amounts
) -> None:
    life = PodLife(on, *rows, resources=own)
    count = own.cpu_request_milli // 1000 if own.cpu_request_milli % 1000 == 0 else 0
    refusal = life.create(rows[0].name).refusal
    lacks_cpu = bool(count) and has_empty_pool(life.facts, 0, count)
    lacks_memory = has_empty_pool(life.facts, 1, own.memory_request_bytes)
    is_too_small = bool(count) and needs(life.facts) > count
    assert (refusal is not None) == (lacks_cpu or lacks_memory or is_too_small)
    if refusal is None:
        return
    assert life.state.allocations == {}
    if lacks_cpu or not is_too_small:
        assert refusal.kind is RefusalKind.EMPTY_POD_SHARED_POOL
    else:
        assert refusal.kind is RefusalKind.CPUS


@given(nodes_of, containers(), resources)
def test_at_every_moment_containers_run_inside_their_pod_and_on_no_cpu_that_another_owns(
    on: Node, rows: tuple[ContainerFacts, ...], own: Amounts
) -> None:
    life = PodLife(on, *rows, resources=own)
    if life.create(rows[0].name).refusal is not None or own.cpu_request_milli % 1000:
        return
    block = cpus_of(life, "")
    assert len(block) == own.cpu_request_milli // 1000
    assert block.isdisjoint(on.reserved)
    for moment in moments(life.facts):
        owned = {one.name: owns(life.facts, one)[0] for one in moment.running}
        for one in moment.running:
            mine = cpus_of(life, one.name)
            assert mine
            assert mine <= block
            assert not owned[one.name] or len(mine) == owned[one.name]
            # A plain init container may run on CPUs that sidecars share: only what others own is closed to it.
            others = [other for other in moment.running if other is not one and owned[other.name]]
            for other in others:
                is_with_init = moment.init in (one, other) and not (owned[one.name] and owned[other.name])
                if not is_with_init or moment.init is one:
                    assert mine.isdisjoint(cpus_of(life, other.name))
    final = [one for one in rows if one.kind is not Kind.INIT]
    slices = [cpus_of(life, one.name) for one in final if owns(life.facts, one)[0]]
    pool = block - union(*slices)
    assert {cpus_of(life, one.name) for one in final if not owns(life.facts, one)[0]} <= {pool}
    assert sum(map(len, slices)) + len(pool) == len(block)


@given(nodes_of, containers(), resources)
def test_the_parts_of_a_pods_memory_add_up_at_its_end(
    on: Node, rows: tuple[ContainerFacts, ...], own: Amounts
) -> None:
    life = PodLife(on, *rows, resources=own)
    if life.create(rows[0].name).refusal is not None:
        return
    pod_blocks = life.state.allocations[allocation_key("p1", "")].memory
    (total,) = (block.size_bytes for block in pod_blocks)
    assert total == own.memory_request_bytes
    assert all(not one.memory for key, one in life.state.allocations.items() if not key.endswith("/"))
    parts = {
        name: sum(block.size_bytes for block in blocks)
        for name, blocks in memory_of(life.facts, pod_blocks).items()
    }
    final = [one for one in rows if one.kind is not Kind.INIT]
    owned = sum(owns(life.facts, one)[1] for one in final)
    for one in final:
        assert parts[one.name] == (owns(life.facts, one)[1] or total - owned)


@given(nodes_of, containers(), resources, containers(), resources)
def test_two_pods_live_side_by_side_and_leave_nothing(
    on: Node,
    rows: tuple[ContainerFacts, ...],
    own: Amounts,
    others: tuple[ContainerFacts, ...],
    theirs: Amounts,
) -> None:
    """Each step is checked by the validator. CPUs of every container are those of its admission until the pod ends."""
    first = PodLife(on, *rows, resources=own)
    if not lived(first):
        return
    second = PodLife(on, *others, resources=theirs, uid="p2", state=first.state)
    lived(second)
    assert cpus_of(first, "").isdisjoint(cpus_of(second, ""))
    first.state = second.state
    first.tell(nri.StopPodSandbox(first.of))
    assert {key.partition("/")[0] for key in first.state.allocations} <= {"p2"}
    second.state = first.state
    second.tell(nri.StopPodSandbox(second.of))
    assert second.state.allocations == State().allocations


def lived(life: PodLife) -> bool:
    """Whether the pod was admitted; then all its containers have started, and its init containers have ended."""
    life.tell(nri.RunPodSandbox(life.of))
    rows = life.facts.containers
    if life.create(rows[0].name).refusal is not None:
        return False
    admitted = life.held
    for one in rows:
        life.run(one.name)
        if one.kind is Kind.INIT:
            life.tell(nri.StopContainer(life.of, life.message(one.name)))
        assert life.held == admitted
        own = cpus_of(life, one.name)
        assert life.runs_on(one.name) == str(own or life.state.shared_pool(life.on))
    return True


@given(nodes_of, containers(), resources, st.sets(st.integers(2, 19)))
def test_cpus_that_go_offline_move_no_container_onto_those_of_another(
    on: Node, rows: tuple[ContainerFacts, ...], own: Amounts, gone: set[int]
) -> None:
    life = PodLife(on, *rows, resources=own)
    if not lived(life):
        return
    admitted = life.state.allocations
    life.lose(str(CPUSet.of(*gone)))
    assert life.state.allocations == admitted
    left = on.topology.online - CPUSet.of(*gone)
    for one in rows:
        record = life.record(one.name)
        runs_on, held = life.state.desired_cpus(life.on, record), cpus_of(life, one.name)
        assert runs_on
        assert runs_on <= left
        assert not held & left or runs_on == held & left
        others = [
            row for row in rows if row is not one and row.kind is not Kind.INIT and owns(life.facts, row)[0]
        ]
        if one.kind is not Kind.INIT:
            assert all(runs_on.isdisjoint(cpus_of(life, other.name)) for other in others)
    life.lose("")
    assert {
        one.name: life.state.desired_cpus(on, life.record(one.name))
        for one in rows
        if cpus_of(life, one.name)
    } == {one.name: cpus_of(life, one.name) for one in rows if cpus_of(life, one.name)}
