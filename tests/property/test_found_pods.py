"""Laws of pods with resources of their own whose record is lost: nobody is moved, and no CPU gets a second owner."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_plugin.core.decision import InformedCreate
from nri_plugin.core.engine import decide
from nri_plugin.core.pod_news import PodFactsTold
from nri_plugin.core.validator import new_violations
from nri_plugin.model.options import Node, TopologyManagerPolicy
from nri_plugin.model.records import Kind, Phase, Regime, allocation_key
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, ContainerState
from tests.builders import machine
from tests.whole_pods import PodLife, part, pod_scope, whole

Event = nri.NRIEvent | InformedCreate | PodFactsTold

STATES = {Phase.STOPPED: ContainerState.STOPPED, Phase.CREATED: ContainerState.CREATED}

parts = st.lists(
    st.tuples(
        st.sampled_from([0.5, 0.5, 1, 2, 3]), st.sampled_from([Kind.APP, Kind.APP, Kind.SIDECAR, Kind.INIT])
    ),
    min_size=1,
    max_size=5,
).map(
    lambda rows: [
        part(f"c{number}", cpu, kind)
        for number, (cpu, kind) in enumerate(sorted(rows, key=lambda row: row[1] is Kind.APP))
    ]
)


@st.composite
def lives(draw: st.DrawFn) -> tuple[Node, list[PodLife], State]:
    """Up to three pods on a node, each admitted by its facts; some containers have ended."""
    on = pod_scope(
        topology=machine(nodes=2, cores=8),
        topology_manager_policy=draw(
            st.sampled_from([TopologyManagerPolicy.BEST_EFFORT, TopologyManagerPolicy.RESTRICTED])
        ),
        full_pcpus_only=draw(st.booleans()),
        strict_cpu_reservation=draw(st.booleans()),
    )
    state, found = State(), list[PodLife]()
    for number in range(draw(st.integers(1, 3))):
        rows = draw(parts)
        has_own = draw(st.booleans() | st.just(True))
        most = sum(-(-one.amounts.cpu_request_milli // 1000) for one in rows)
        total = whole(most + draw(st.integers(0, 3))) if has_own else None
        life = PodLife(on, *rows, resources=total, uid=f"p{number}", state=state)
        if life.create(rows[0].name).refusal is not None:
            continue
        for one in rows:
            life.run(one.name)
            if one.kind is Kind.INIT or draw(st.integers(0, 3)) == 0:
                life.tell(nri.StopContainer(life.of, life.message(one.name)))
        state = life.state
        found.append(life)
    return on, found, state


def listed(life: PodLife, state: State) -> list[Container]:
    """The pod's containers as the runtime has them."""
    made = []
    for record in state.containers_of(life.of.uid):
        message = life.message(record.name)
        stored = replace(message.resources, cpus=str(record.stored_cpus), mems=str(record.stored_mems))
        made.append(
            replace(message, resources=stored, state=STATES.get(record.phase, ContainerState.RUNNING))
        )
    return made


def told(on: Node, state: State, event: Event) -> State:
    decision = decide(on, state, event)
    plain = event.event if isinstance(event, InformedCreate) else event
    assert decision.refusal is None
    assert new_violations(on, state, plain, decision) == []  # type: ignore[arg-type]
    assert violations(on, decision.state) == []
    return decision.state


def owned(state: State) -> dict[str, CPUSet]:
    """The CPUs of live containers that have some for themselves or with their pod."""
    held = {
        one.id: state.allocations.get(one.key)
        for one in state.containers.values()
        if one.phase is not Phase.STOPPED
    }
    return {name: one.cpus for name, one in held.items() if one is not None and one.cpus}


@given(lives(), st.data())
def test_who_runs_keeps_its_cpus_when_the_checkpoint_is_lost(
    found: tuple[Node, list[PodLife], State], data: st.DataObject
) -> None:
    on, pods, before = found
    had = owned(before)
    containers = [one for life in pods for one in listed(life, before)]
    state = told(on, State(), nri.Synchronize(tuple(life.of for life in pods), tuple(containers)))
    assert owned(state) == had
    for life in data.draw(st.permutations(pods)):
        state = told(on, state, PodFactsTold(life.of, life.facts))
        assert owned(state) == had
        key = allocation_key(life.of.uid, "")
        if state.pods[life.of.uid].regime is Regime.WHOLE:
            whole_before, after = before.allocations[key], state.allocations[key]
            assert (len(after.cpus), after.memory) == (len(whole_before.cpus), whole_before.memory)
    # A container that comes again gets what it had. Init containers do not come again in the same sandbox.
    for life in pods:
        life.state = state
        life.restart(*(one.name for one in life.facts.containers if one.kind is not Kind.INIT))
        state = life.state
    assert {key: cpus for key, cpus in owned(state).items() if key in had} == had
