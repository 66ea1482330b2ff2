"""Laws of resizing in place, over random lives: nobody shares, what was promised at the start stays, and back is back."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_plugin.core.engine import decide
from nri_plugin.model.errors import InsufficientCPUsError
from nri_plugin.model.options import Options, TopologyManagerPolicy, TopologyManagerScope
from nri_plugin.model.records import Phase
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.model.violations import violations
from nri_plugin.policy.cpu_assignment import cpu_tables
from nri_plugin.policy.cpu_policy import nearest, without_last
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Pod
from tests.builders import container, cpu_resources, node, pod
from tests.property.machines import straddled_rows
from tests.topology_rows import topology_of_rows

PODS = [pod(f"p{number}") for number in range(3)]
SIZES = st.integers(1, 8)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["done", "done", "unheard", "failed", "container again", "agent again", "pod again"]),
        SIZES,
    ),
    max_size=12,
)
SETTINGS = st.sampled_from(
    [{}, {"full_pcpus_only": True}, {"strict_uncore_cache": True}, {"distribute_cpus_across_numa": True}]
)
ANY_POLICY = st.builds(
    lambda options, policy, scope: {
        **options,
        "topology_manager_policy": policy,
        "topology_manager_scope": scope,
    },
    SETTINGS,
    st.sampled_from(TopologyManagerPolicy),
    st.sampled_from(TopologyManagerScope),
)


def together(steps: tuple[CPUSet, ...]) -> CPUSet:
    found = CPUSet()
    for step in steps:
        found |= step
    return found


@given(straddled_rows(), st.data())
def test_growing_and_shrinking_again_is_as_if_nothing_had_been(
    rows: list[list[int]], data: st.DataObject
) -> None:
    tables = cpu_tables(topology_of_rows(rows))
    every = sorted(CPUSet(tables.online))
    held = CPUSet.from_ids(data.draw(st.sets(st.sampled_from(every), min_size=1)))
    free = CPUSet(tables.online) - held
    options = Options(full_pcpus_only=data.draw(st.booleans()))
    grown: tuple[CPUSet, ...] = ()
    sizes = []
    for count in data.draw(st.lists(st.integers(1, 4), max_size=4)):
        now = held | together(grown)
        try:
            more = nearest(tables, now, free - now, count, options)
        except InsufficientCPUsError:
            continue
        assert len(together(more)) == count == sum(map(len, more))
        assert together(more) <= free - now
        sizes.append((grown, count))
        grown = (*grown, *more)
    for before, count in reversed(sizes):
        grown = without_last(tables, grown, count, options)
        assert together(grown) == together(before)


class Life:
    """Three pods of one container each, as a kubelet and a runtime would move them."""

    def __init__(self, settings: dict[str, bool]) -> None:
        self.node = node(**settings)
        self.state = State()
        self.what: dict[int, Container] = {}
        self.first: dict[str, CPUSet] = {}
        self.serial = 0
        for number in range(len(PODS)):
            self.create(number, 2)

    def tell(self, event: nri.NRIEvent) -> nri.NRIResponse | None:
        """The answer, None for a refusal, which changed nothing."""
        before = self.state
        decision = decide(self.node, before, event)
        self.state = decision.state
        if decision.refusal is not None:
            assert self.state is before
            return None
        assert violations(self.node, self.state) == []
        return decision.response

    def create(self, number: int, cpu: int) -> None:
        """The container, anew; it is started."""
        self.serial += 1
        mine = PODS[number]
        fresh = replace(container(mine, "c", cpu=cpu), id=f"id{self.serial}")
        self.tell(nri.RunPodSandbox(mine))
        answer = self.tell(nri.CreateContainer(mine, fresh))
        if answer is None:
            return
        assert isinstance(answer, nri.CreateContainerResponse)
        assert answer.resources is not None
        fresh = replace(fresh, resources=cpu_resources(cpu, cpus=answer.resources.cpus))
        self.tell(nri.StartContainer(mine, fresh))
        self.what[number] = fresh
        self.first.setdefault(f"{mine.uid}/c", self.state.allocations[f"{mine.uid}/c"].cpus)

    def step(self, number: int, how: str, cpu: int) -> None:
        mine, what = PODS[number], self.what.get(number)
        if what is None:
            self.create(number, cpu)
        elif how == "pod again":
            self.end(mine, what)
            del self.what[number]
        elif how == "container again":
            self.tell(nri.StopContainer(mine, what))
            del self.what[number]
            self.create(number, cpu)
            assert number in self.what, "a container that was admitted is not refused when it starts again"
            self.tell(
                nri.RemoveContainer(mine, what)
            )  # a kubelet keeps the dead one until there is a new one
        elif how == "agent again":
            self.tell(nri.Synchronize(tuple(PODS[each] for each in self.what), tuple(self.what.values())))
        else:
            self.resize(mine, number, what, how, cpu)

    def end(self, mine: Pod, what: Container) -> None:
        for event in (
            nri.StopContainer(mine, what),
            nri.StopPodSandbox(mine),
            nri.RemoveContainer(mine, what),
            nri.RemovePodSandbox(mine),
        ):
            self.tell(event)
        assert f"{mine.uid}/c" not in self.state.allocations
        del self.first[f"{mine.uid}/c"]

    def resize(self, mine: Pod, number: int, what: Container, how: str, cpu: int) -> None:
        answer = self.tell(nri.UpdateContainer(mine, what, cpu_resources(cpu)))
        if answer is None:
            return
        assert isinstance(answer, nri.UpdateContainerResponse)
        own = [update.resources.cpus for update in answer.updates if update.container_id == what.id]
        cpus = own[0] if own else what.resources.cpus
        # A container that was started again with a size that was refused keeps its CPUs, and this asks for no other.
        assert len(CPUSet.parse(cpus)) == cpu or what.resources.cpu_shares == cpu_resources(cpu).cpu_shares
        if how != "failed":
            self.what[number] = replace(what, resources=cpu_resources(cpu, cpus=cpus))
        if how == "done":
            self.tell(nri.PostUpdateContainer(mine, self.what[number]))
            assert str(self.state.allocations[f"{mine.uid}/c"].in_force) == cpus


@given(STEPS, SETTINGS)
def test_whatever_is_asked_nobody_shares_and_the_first_promise_stays(
    steps: list[tuple[int, str, int]], settings: dict[str, bool]
) -> None:
    life = Life(settings)
    for number, how, cpu in steps:
        life.step(number, how, cpu)
        held = life.state.allocations
        for key, first in life.first.items():
            assert first <= held[key].in_force, f"{key} lost CPUs of its start after {how}"
        sets = [held[key].cpus for key in sorted(held)]
        assert len(together(tuple(sets))) == sum(map(len, sets))


def outcome(state: State) -> tuple[str, list[str], bool]:
    """What the container has, how it grew, and whether it is marked."""
    held = state.allocations["p0/c"]
    live = (
        one for one in state.containers.values() if one.pod_uid == "p0" and one.phase is not Phase.STOPPED
    )
    return str(held.in_force), [str(step) for step in held.grown], any(one.unplaced for one in live)


@given(st.integers(1, 6), st.integers(1, 8), st.lists(SIZES, max_size=3), ANY_POLICY)
def test_a_resize_ends_in_one_state_however_the_agent_learns_of_it(
    size: int, asks: int, others: list[int], settings: dict[str, object]
) -> None:
    on, mine = node(**settings), PODS[0]
    what = container(mine, cpu=size)
    state = State()
    for number, cpu in enumerate(others):
        other = pod(f"other{number}")
        state = decide(on, state, nri.CreateContainer(other, container(other, cpu=cpu))).state
    for event in (nri.RunPodSandbox(mine), nri.CreateContainer(mine, what), nri.StartContainer(mine, what)):
        state = decide(on, state, event).state
    if "p0/c" not in state.allocations:
        return
    cpus = str(state.allocations["p0/c"].cpus)
    stored = replace(what, resources=cpu_resources(size, cpus=cpus))
    resized = replace(what, resources=cpu_resources(asks, cpus=cpus))
    again = replace(container(mine, cpu=asks), id="again")

    def after(*events: nri.NRIEvent, state: State = state) -> State:
        for event in events:
            decision = decide(on, state, event)
            assert violations(on, decision.state) == []
            state = decision.state
        return state

    def synchronized(now: Container, state: State = state) -> State:
        pods = tuple(pod(uid) for uid in state.pods)
        rest = (
            container(pod(one.pod_uid), one.name) for one in state.containers.values() if one.pod_uid != "p0"
        )
        beside = tuple(
            replace(
                one,
                resources=cpu_resources(others[number], cpus=str(state.allocations[f"other{number}/c"].cpus)),
            )
            for number, one in ((int(one.id.removeprefix("other").partition("-")[0]), one) for one in rest)
            if f"other{number}/c" in state.allocations
        )
        return after(nri.Synchronize(pods, (now, *beside)), state=state)

    in_time = decide(on, state, nri.UpdateContainer(mine, stored, cpu_resources(asks)))
    if in_time.refusal is None:
        expected = outcome(after(nri.PostUpdateContainer(mine, resized), state=in_time.state))
        assert not expected[2]
    else:
        expected = (*outcome(state)[:2], True)
    ended = after(nri.StopContainer(mine, stored))
    ways = {
        "started again": after(nri.CreateContainer(mine, again), state=ended),
        "while away": synchronized(resized),
        "started again while away": synchronized(replace(again, resources=resized.resources)),
        "twice while away": synchronized(resized, synchronized(resized)),
        "away, then started again": after(
            nri.StopContainer(mine, resized), nri.CreateContainer(mine, again), state=synchronized(resized)
        ),
    }
    assert {how: outcome(state) for how, state in ways.items()} == dict.fromkeys(ways, expected)
