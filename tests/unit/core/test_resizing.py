"""Resize in place, event by event."""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from nri_plugin.core.decision import Decision
from nri_plugin.core.drift import Observed, Target, drifts
from nri_plugin.core.engine import decide
from nri_plugin.core.validator import new_violations
from nri_plugin.model.options import (
    CPUManagerPolicy,
    MemoryManagerPolicy,
    Node,
    ReservedMemory,
    SMTOddCounts,
    TopologyManagerPolicy,
    TopologyManagerScope,
    UncoreCacheFit,
)
from nri_plugin.model.records import Allocation, Phase
from nri_plugin.model.sets import CPUSet
from nri_plugin.model.state import State
from nri_plugin.wire.nri import events as nri
from nri_plugin.wire.nri.messages import Container, Resources
from tests.builders import GIB, container, cpu_resources, machine, node, pod
from tests.topology_rows import topology_of_rows

POD = pod()
KEY = "p1/c"
Happens: TypeAlias = Callable[..., Decision]


def running(on: Node, cpu: float = 2, memory: int = 0, state: State | None = None) -> tuple[State, Container]:
    """A state with the pod's container running, and the container as the runtime has it stored."""
    what = container(POD, cpu=cpu, memory=memory)
    state = state or State()
    for event in (nri.RunPodSandbox(POD), nri.CreateContainer(POD, what), nri.StartContainer(POD, what)):
        decision = decide(on, state, event)
        assert decision.refusal is None
        state = decision.state
    cpus = str(state.desired_cpus(on, state.containers[what.id]))
    return state, replace(what, resources=cpu_resources(cpu, memory, cpus=cpus))


def resize(on: Node, state: State, what: Container, cpu: float, memory: int = 0) -> Decision:
    return decide(on, state, nri.UpdateContainer(POD, what, cpu_resources(cpu, memory)))


def reply(decision: Decision) -> str:
    assert decision.refusal is None, str(decision.refusal)
    assert isinstance(decision.response, nri.UpdateContainerResponse)
    (own,) = decision.response.updates
    return own.resources.cpus


def done(on: Node, decision: Decision, what: Container, cpu: float) -> tuple[State, Container]:
    """The runtime succeeded."""
    stored = replace(what, resources=cpu_resources(cpu, cpus=reply(decision)))
    return decide(on, decision.state, nri.PostUpdateContainer(POD, stored)).state, stored


def held(state: State) -> Allocation:
    return state.allocations[KEY]


def test_growth_keeps_what_was_promised_and_takes_the_nearest() -> None:
    on = node()
    state, what = running(on)
    decision = resize(on, state, what, 4)
    assert reply(decision) == "2-5"
    state, _ = done(on, decision, what, 4)
    assert (str(held(state).cpus), [str(step) for step in held(state).grown], held(state).cpu_milli) == (
        "2-5",
        ["4-5"],
        4000,
    )
    assert held(state).resize is None


def test_others_leave_what_it_grows_by_before_the_answer() -> None:
    on = node(pool_floor=False)
    other = pod("other", "BestEffort")
    state = State()
    beside = container(other)
    for event in (
        nri.RunPodSandbox(other),
        nri.CreateContainer(other, beside),
        nri.StartContainer(other, beside),
    ):
        state = decide(on, state, event).state
    state, what = running(on, state=state)
    decision = resize(on, state, what, 4)
    shrunk = {write.container_id: str(write.cpus) for write in decision.writes}
    assert shrunk[beside.id] == "0-1,6-15"
    assert shrunk.get(what.id, "2-3") == "2-3"  # its own cgroup is the runtime's until it says it is done


def test_shrinking_gives_back_the_last_grown_once_the_runtime_is_done() -> None:
    on = node()
    state, what = running(on)
    state, what = done(on, resize(on, state, what, 6), what, 6)
    decision = resize(on, state, what, 4)
    assert reply(decision) == "2-5"
    assert str(decision.state.exclusive) == "2-7"
    state, what = done(on, decision, what, 4)
    assert str(state.exclusive) == "2-5"
    assert reply(resize(on, state, what, 2)) == "2-3"


def test_what_was_promised_at_the_start_is_not_given_back() -> None:
    on = node()
    state, what = running(on, cpu=4)
    decision = resize(on, state, what, 2)
    assert str(decision.refusal) == (
        "UnexpectedAdmissionError: resize in place of the container from 4 to 2 CPUs: the 4 it was allocated at its start (2-5) "
        "stay; ask for 4 or more, or make the pod anew"
    )
    assert decision.state is state


def test_too_much_is_refused_with_the_numbers() -> None:
    on = node()
    state, what = running(on)
    decision = resize(on, state, what, 20)
    assert "requested=18, available=12; to grow beside 2-3" in str(decision.refusal)


@pytest.mark.parametrize("policy", [TopologyManagerPolicy.SINGLE_NUMA_NODE, TopologyManagerPolicy.RESTRICTED])
def test_a_strict_topology_policy_keeps_it_on_its_numa_nodes(policy: TopologyManagerPolicy) -> None:
    on = node(topology_manager_policy=policy)
    state, what = running(on)
    assert reply(resize(on, state, what, 6)) == "2-7"
    refused = resize(on, state, what, 8)
    assert "available=4; to grow beside 2-3 on NUMA nodes 0, where topology policy keeps it" in str(
        refused.refusal
    )
    assert reply(resize(node(), state, what, 8)) == "2-9"


def test_exclusive_to_a_fraction_and_the_shared_pool_to_exclusive_are_refused() -> None:
    on = node()
    state, what = running(on)
    assert "keeps a whole number of them" in str(resize(on, state, what, 1.5).refusal)
    state, what = running(on, cpu=0.5)
    assert "runs in the shared pool and stays there" in str(resize(on, state, what, 2).refusal)
    assert resize(on, state, what, 0.7).refusal is None


def test_full_pcpus_only_grows_by_whole_cores_only() -> None:
    on = node(full_pcpus_only=True)
    state, what = running(on)
    assert "3 cpus is not a multiple of the 2 cpus per core" in str(resize(on, state, what, 3).refusal)
    assert reply(resize(on, state, what, 4)) == "2-5"


def test_an_update_without_cpu_or_with_the_same_is_no_resize() -> None:
    on = node()
    state, what = running(on)
    for asked in (Resources(), Resources(memory_limit_bytes=GIB), cpu_resources(2)):
        decision = decide(on, state, nri.UpdateContainer(POD, what, asked))
        assert decision.refusal is None
        assert decision.state.allocations == state.allocations


def test_a_failed_growth_is_noticed_at_the_next_try() -> None:
    """No PostUpdateContainer came, and the runtime still has the old cpuset stored."""
    on = node()
    state, what = running(on)
    state = resize(on, state, what, 6).state
    assert str(state.exclusive) == "2-7"
    decision = resize(on, state, what, 4)
    assert reply(decision) == "2-5"
    state, what = done(on, decision, what, 4)
    assert str(state.exclusive) == "2-5"


def test_a_success_nobody_heard_of_is_noticed_at_the_next_try() -> None:
    on = node()
    state, what = running(on)
    decision = resize(on, state, what, 4)
    stored = replace(what, resources=cpu_resources(4, cpus=reply(decision)))
    state, _ = done(on, resize(on, decision.state, stored, 6), stored, 6)
    assert [str(step) for step in held(state).grown] == ["4-5", "6-7"]


@pytest.mark.parametrize(
    ("offline", "stored", "asks", "expected"),
    [("", "2-3", 2, "2-3"), ("", "2-5", 4, "2-5"), ("3", "2", 2, "2-3"), ("3", "2,4-5", 4, "2-5")],
)
def test_synchronize_tells_how_a_resize_ended(offline: str, stored: str, asks: int, expected: str) -> None:
    """The runtime is not told of CPUs that are offline."""
    on = node()
    state, what = running(on)
    state = resize(on, state, what, 4).state
    on = dataclasses.replace(on, topology=on.topology.within(on.topology.online - CPUSet.parse(offline)))
    listed = replace(what, resources=cpu_resources(asks, cpus=stored))
    after = decide(on, state, nri.Synchronize((POD,), (listed,))).state
    assert (str(held(after).cpus), held(after).resize) == (expected, None)


@pytest.mark.parametrize(("cpu", "expected"), [(2, "2-3"), (4, "2-5")])
def test_an_instance_made_in_the_middle_tells_by_its_request(cpu: float, expected: str) -> None:
    on = node()
    state, what = running(on)
    state = resize(on, state, what, 4).state
    again = decide(on, state, nri.CreateContainer(POD, container(POD, cpu=cpu, number=1)))
    assert (str(held(again.state).cpus), held(again.state).resize) == (expected, None)


def test_a_shrink_that_failed_leaves_nobody_on_its_cpus() -> None:
    on = node()
    state, what = running(on)
    state, what = done(on, resize(on, state, what, 6), what, 6)
    state = resize(on, state, what, 4).state
    other = pod("p2")
    decision = decide(on, state, nri.CreateContainer(other, container(other, cpu=2)))
    assert str(decision.state.allocations["p2/c"].cpus) == "8-9"


def test_the_runtimes_own_write_is_no_drift_while_it_has_not_said_that_it_is_done() -> None:
    on = node()
    state, what = running(on)
    state = resize(on, state, what, 4).state
    target = Target(state.containers[what.id].cgroup, what.id)
    for seen in ("2-3", "2-5"):
        assert not drifts(on, state, [Observed(target, CPUSet.parse(seen), CPUSet.parse(seen))])
    (found,) = drifts(on, state, [Observed(target, CPUSet.parse("2-7"), CPUSet.parse("2-7"))])
    assert found.desired == CPUSet.of(2, 3)


def test_memory_grows_where_it_is_and_mems_never_shrink() -> None:
    reserved = tuple(ReservedMemory(number, "memory", GIB) for number in (0, 1))
    on = node(memory_manager_policy=MemoryManagerPolicy.STATIC, reserved_memory=reserved)
    state, what = running(on, memory=4 * GIB)
    mems = held(state).mems
    state = resize(on, state, what, 2, 8 * GIB).state
    state = decide(on, state, nri.PostUpdateContainer(POD, what)).state
    assert (held(state).memory[0].size_bytes, held(state).mems) == (8 * GIB, mems)
    refused = resize(on, state, what, 2, 60 * GIB)
    assert f"resize in place from {8 * GIB} to {60 * GIB} bytes of memory: NUMA nodes 0, where it is" in str(
        refused.refusal
    )
    state = resize(on, state, what, 2, 2 * GIB).state
    state = decide(on, state, nri.PostUpdateContainer(POD, what)).state
    assert (held(state).memory[0].size_bytes, held(state).mems) == (2 * GIB, mems)


def test_a_pod_that_cannot_grow_is_refused_before_anything_is_done() -> None:
    on = node()
    whole = pod(cpu=2)
    state = decide(on, State(), nri.RunPodSandbox(whole)).state
    what = container(whole, cpu=2)
    state = decide(on, state, nri.CreateContainer(whole, what)).state
    refused = decide(on, state, nri.UpdatePodSandbox(whole, resources=cpu_resources(20)))
    assert "requested=18, available=12; pod p1 cannot grow from 2000m to 20000m" in str(refused.refusal)
    after = decide(on, state, nri.UpdatePodSandbox(whole, resources=cpu_resources(4))).state
    assert after.pods["p1"].cpu_milli == 4000
    for event in (
        nri.UpdatePodSandbox(whole),
        nri.UpdatePodSandbox(pod("nobody"), resources=cpu_resources(4)),
    ):
        assert decide(on, state, event).state is state


def pod_total(on: Node, state: State, cpu: float) -> Decision:
    return decide(on, state, nri.UpdatePodSandbox(pod("p1", cpu=4), resources=cpu_resources(cpu)))


def shrunk_pod(on: Node, *containers: Container) -> State:
    """A pod of 4 CPUs, that many of its containers created."""
    whole = pod("p1", cpu=4)
    state = decide(on, State(), nri.RunPodSandbox(whole)).state
    for what in containers:
        decision = decide(on, state, nri.CreateContainer(whole, what))
        assert decision.refusal is None
        state = decision.state
    return state


def test_a_pod_below_the_first_size_of_its_container_is_refused_in_the_words_of_the_container() -> None:
    on = node()
    what = container(pod("p1", cpu=4), cpu=4)
    state = shrunk_pod(on, what)
    refused = str(pod_total(on, state, 2).refusal)
    assert refused == (
        "UnexpectedAdmissionError: resize in place of the pod from 4 to 2 CPUs: the 4 it was allocated at its start "
        "(2-5) stay; ask for 4 or more, or make the pod anew"
    )
    assert pod_total(on, state, 2).state is state
    by_container = decide(on, state, nri.UpdateContainer(pod("p1", cpu=4), what, cpu_resources(2))).refusal
    assert str(by_container) == refused.replace("the pod from", "the container from")


def test_a_pod_to_half_a_cpu_is_refused_too() -> None:
    state = shrunk_pod(node(), container(pod("p1", cpu=4), cpu=4))
    assert "from 4 to 0.5 CPUs: the 4 it was" in str(pod_total(node(), state, 0.5).refusal)


def test_a_pod_may_give_back_what_it_grew_by_and_what_its_shared_containers_have() -> None:
    on = node()
    state = shrunk_pod(on, container(pod("p1", cpu=4), cpu=2))
    larger = pod_total(on, state, 6).state
    assert pod_total(on, larger, 2).refusal is None
    assert "the 2 it was allocated" in str(pod_total(on, larger, 1.5).refusal)


def test_the_same_total_again_changes_nothing() -> None:
    on = node()
    state = pod_total(on, shrunk_pod(on, container(pod("p1", cpu=4), cpu=2)), 6).state
    assert pod_total(on, state, 6).state is state


def test_cpus_that_an_annotation_gave_bound_no_total() -> None:
    on = node(annotation_namespaces=frozenset({"default"}))
    asked = {"nri-pin/exclusive-cpus.container.c": "2"}
    some = replace(pod("p1", cpu=1.5, qos="Burstable"), annotations=asked)
    state = decide(on, State(), nri.RunPodSandbox(some)).state
    state = decide(on, state, nri.CreateContainer(some, container(some, cpu=1.5))).state
    assert len(state.allocations[KEY].cpus) == 2
    lower = decide(on, state, nri.UpdatePodSandbox(some, resources=cpu_resources(0.5)))
    assert lower.refusal is None


def test_under_policy_none_earlier_promises_stay_as_they_are() -> None:
    state, what = running(node())
    decision = resize(node(cpu_manager_policy=CPUManagerPolicy.NONE), state, what, 4)
    assert decision.refusal is None
    assert held(decision.state).cpus == CPUSet.of(2, 3)


def test_the_last_cpus_of_the_shared_pool_are_not_given() -> None:
    on = node(machine(nodes=1, cores=2), reserved="")
    state, what = running(on)
    assert "last CPUs of the shared pool" in str(resize(on, state, what, 4).refusal)


@pytest.mark.parametrize("rule", [SMTOddCounts.KUBELET, SMTOddCounts.REJECT])
def test_an_update_that_is_no_resize_is_not_refused_to_a_container_that_runs_unplaced(
    rule: SMTOddCounts,
) -> None:
    on = node(smt_odd_counts=rule)
    unplaced = container(POD, cpu=15)
    state = decide(on, State(), nri.Synchronize((POD,), (unplaced,))).state
    assert state.containers[unplaced.id].unplaced
    same = decide(on, state, nri.UpdateContainer(POD, unplaced, Resources(cpu_shares=0, cpus="0-3")))
    assert same.refusal is None
    assert decide(on, state, nri.UpdateContainer(POD, unplaced, cpu_resources(4))).refusal is not None


def test_the_runtime_is_not_asked_for_cpus_that_went_offline_whatever_is_promised() -> None:
    on = node()
    state, what = running(on, cpu=4)
    online = on.topology.online - CPUSet.of(5)
    rows = [(cpu, cpu // 2, 0, 0, 0) for cpu in online]
    smaller = dataclasses.replace(on, topology=replace(topology_of_rows(rows), offline=CPUSet.of(5)))
    decision = resize(smaller, state, what, 6)
    assert CPUSet.parse(reply(decision)) <= online
    assert new_violations(smaller, state, nri.UpdateContainer(POD, what, cpu_resources(6)), decision) == []
    assert CPUSet.of(5) <= held(decision.state).cpus


def test_a_strict_uncore_cache_keeps_it_in_its_cache() -> None:
    on = node(machine(caches=2), uncore_cache_fit=UncoreCacheFit.BEST, strict_uncore_cache=True)
    state, what = running(on)
    refused = resize(on, state, what, 4)
    assert "available=0; to grow beside 2-3" in str(refused.refusal)
    assert "in its uncore cache, where strictUncoreCache keeps it" in str(refused.refusal)


def test_the_total_of_a_pod_without_exclusive_cpus_is_taken_as_it_is() -> None:
    on, whole = node(), pod("s", "Burstable", cpu=1)
    state = decide(on, State(), nri.RunPodSandbox(whole)).state
    after = decide(on, state, nri.UpdatePodSandbox(whole, resources=cpu_resources(90))).state
    assert after.pods["s"].cpu_milli == 90_000


# ----------------------------------------------------------------------------------------------------
# The container has the new size already: it was started again, or no agent was there.


ONE_NODE = {
    "topology_manager_policy": TopologyManagerPolicy.SINGLE_NUMA_NODE,
    "topology_manager_scope": TopologyManagerScope.POD,
}


def limited(cpu: float, memory: int = 0, *, cpus: str = "", mems: str = "") -> Resources:
    """The amounts of a Guaranteed container, whose limit is its request."""
    asked = cpu_resources(cpu, memory, cpus=cpus, mems=mems)
    return replace(asked, cpu_quota_us=round(cpu * 100_000), cpu_period_us=100_000)


def started(on: Node, cpu: float, memory: int = 0) -> tuple[State, Container]:
    """As `running`, with quotas and memory nodes as the runtime stores them."""
    what = replace(container(POD), resources=limited(cpu, memory))
    state = State()
    for event in (nri.RunPodSandbox(POD), nri.CreateContainer(POD, what), nri.StartContainer(POD, what)):
        state = decide(on, state, event).state
    mems = str(state.allocations[KEY].mems) if KEY in state.allocations else ""
    cpus = str(state.desired_cpus(on, state.containers[what.id]))
    return state, replace(what, resources=limited(cpu, memory, cpus=cpus, mems=mems))


def again(on: Node, state: State, what: Container, cpu: float, memory: int = 0) -> Decision:
    """It ends and is created again with another size."""
    state = decide(on, state, nri.StopContainer(POD, what)).state
    fresh = replace(what, id=f"{what.id}-again", resources=limited(cpu, memory))
    return decide(on, state, nri.CreateContainer(POD, fresh))


def found(on: Node, state: State, what: Container, cpu: float, memory: int = 0) -> Decision:
    """It was resized while no agent was there."""
    had = what.resources
    now = replace(what, resources=limited(cpu, memory, cpus=had.cpus, mems=had.mems))
    return decide(on, state, nri.Synchronize((POD,), (now,)))


def marks(state: State) -> list[str]:
    live = (one for one in state.containers.values() if one.phase is not Phase.STOPPED)
    return [one.unplaced for one in live if one.unplaced]


MISSED = pytest.mark.parametrize("happens", [again, found])


@MISSED
@pytest.mark.parametrize(
    ("options", "cpu", "asks", "has"),
    [
        ({}, 2, 4, "2-5"),
        (ONE_NODE, 4, 6, "2-7"),
        ({"full_pcpus_only": True}, 2, 4, "2-5"),
        ({}, 1.5, 0.5, ""),
    ],
)
def test_a_resize_that_was_missed_is_made_up_for(
    happens: Happens, options: dict[str, object], cpu: float, asks: float, has: str
) -> None:
    on = node(**options)
    state, what = started(on, cpu)
    decision = happens(on, state, what, asks)
    after = decision.state
    assert decision.refusal is None
    assert str(after.exclusive) == (has or "")
    assert marks(after) == []
    assert new_violations(on, state, nri.StartContainer(POD, what), decision) == []


@MISSED
@pytest.mark.parametrize(
    ("options", "cpu", "asks", "has", "why"),
    [
        (ONE_NODE, 4, 8, "2-5", "to grow beside 2-5 on NUMA nodes 0"),
        ({"full_pcpus_only": True}, 2, 3, "2-3", "not a multiple of the 2 cpus per core"),
        ({"strict_uncore_cache": True}, 2, 8, "2-3", "in its uncore cache"),
        ({}, 4, 2, "2-5", "the 4 it was allocated at its start (2-5) stay"),
        ({}, 2, 2.5, "2-3", "keeps a whole number of them"),
        ({}, 2, 20, "2-3", "requested=18, available=12"),
        ({}, 1.5, 2, "", "runs in the shared pool and stays there"),
        ({"smt_odd_counts": SMTOddCounts.REJECT}, 2, 3, "2-3", "not a multiple"),
    ],
)
def test_a_missed_resize_that_is_refused_leaves_the_allocation_and_marks_the_container(
    happens: Happens, options: dict[str, object], cpu: float, asks: float, has: str, why: str
) -> None:
    on = node(**options)
    state, what = started(on, cpu)
    decision = happens(on, state, what, asks)
    after = decision.state
    assert decision.refusal is None, "it was admitted once"
    assert str(after.exclusive) == has
    (mark,) = marks(after)
    assert why in mark
    twice = happens(
        on, after, replace(what, id=next(one.id for one in after.containers.values() if one.unplaced)), asks
    )
    assert (str(twice.state.exclusive), len(marks(twice.state))) == (has, 1)
    # An update that asks for nothing changes nothing.
    same = replace(
        what, id=what.id if happens is found else f"{what.id}-again", resources=limited(asks, cpus=has)
    )
    quiet = decide(on, after, nri.UpdateContainer(POD, same, Resources()))
    assert (quiet.refusal, str(quiet.state.exclusive)) == (None, has)
    # The size that it had ends the mark, by a resize as by another start.
    (record,) = [one for one in after.containers.values() if one.unplaced]
    now = replace(what, id=record.id, resources=limited(asks, cpus=str(record.stored_cpus)))
    back = decide(on, after, nri.UpdateContainer(POD, now, limited(cpu)))
    assert (back.refusal, marks(back.state), str(back.state.exclusive)) == (None, [], has)
    assert marks(happens(on, after, now, cpu).state) == []


@MISSED
@pytest.mark.parametrize("asks", [2, 3])
def test_memory_that_is_not_there_is_no_reason_against_a_container_that_was_admitted(
    happens: Happens, asks: int
) -> None:
    on = node(machine(memory=4 * GIB), **ONE_NODE, memory_manager_policy=MemoryManagerPolicy.STATIC)
    state, what = started(on, 2, 2 * GIB)
    decision = happens(on, state, what, asks, 6 * GIB)
    assert decision.refusal is None
    assert (str(held(decision.state).cpus), held(decision.state).memory) == ("2-3", held(state).memory)
    assert len(marks(decision.state)) == 1


def test_a_request_that_the_runtime_cannot_tell_is_no_other_size() -> None:
    on = node()
    state, what = started(on, 2)
    untold = replace(what, resources=Resources(cpu_shares=262144, cpus="2-3"))
    after = decide(on, state, nri.Synchronize((POD,), (untold,))).state
    assert (str(held(after).cpus), marks(after)) == ("2-3", [])


def test_a_container_with_an_annotation_that_is_refused_is_left_alone() -> None:
    on = node(annotation_namespaces=frozenset({"default"}))
    state, what = started(on, 2)
    odd = replace(POD, annotations={"nri-pin/exclusive-cpus.container.c": "2"})
    now = replace(what, resources=limited(4, cpus="2-3"))
    after = decide(on, state, nri.Synchronize((odd,), (now,))).state
    assert str(held(after).cpus) == "2-3"


def test_a_size_that_the_runtime_has_forgotten_moves_nothing() -> None:
    on = node()
    state, what = running(on)
    state, _ = done(on, resize(on, state, what, 6), what, 6)
    # CRI-O lost the update at its restart: shares and cpuset are those of the creation, at each restart of the agent.
    for _ in range(2):
        state = decide(on, state, nri.Synchronize((POD,), (what,))).state
        assert (str(held(state).cpus), marks(state)) == ("2-7", [])
    # Its cpuset was written again since, and its shares were not.
    state = decide(
        on, state, nri.Synchronize((POD,), (replace(what, resources=cpu_resources(2, cpus="2-7")),))
    ).state
    assert (str(held(state).cpus), marks(state)) == ("2-7", [])


@pytest.mark.parametrize("asks", [1, 2, 6])
def test_a_second_instance_of_a_name_does_not_resize_the_first(asks: int) -> None:
    on = node()
    state, what = running(on)
    state, what = done(on, resize(on, state, what, 4), what, 4)
    # A runtime that crashed lost the container, which still runs, and gave its name again.
    second = replace(what, id="second", resources=cpu_resources(asks))
    after = decide(on, state, nri.Synchronize((POD,), (what, second))).state
    assert str(held(after).cpus) == "2-5"
    created = decide(
        on, state, nri.CreateContainer(POD, replace(second, resources=cpu_resources(asks)))
    ).state
    assert CPUSet.parse("2-5") <= held(created).cpus
